"""Expressions as files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper

import ocannl_core as oc
from ocannl_core import StaticExtent, Tensor
from ocannl_core.assignments import StaticIndex, TensorNode, split_formulas
from ocannl_core.backend_api.files import replacement
from ocannl_onnx.errors import OnnxError
from ocannl_onnx.file_names import file_name_of
from ocannl_onnx.formats import format_named, format_numbered
from ocannl_onnx.reading import read_model
from ocannl_onnx.writing.emitter import INT64, Array, Emitter, UniqueNames, WrittenValue, raw_bytes
from ocannl_onnx.writing.functions import DOMAIN, Library, OwnedNode, reads, rename
from ocannl_onnx.writing.translation import Translation, port
from ocannl_onnx.writing.values import FORMATS, TranslatedProgram

if TYPE_CHECKING:
    from ocannl_core import Computation, Context

Tensors = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""Tensors in order, under their labels; or by the names that they get in the file."""

OPSETS = range(18, 27)
"""The versions of the operator set that can be written."""
DEFAULT_OPSET = 21

_LEAST_IR = 8
"""The first version of the file format with functions."""
_IR_OF_OPSET = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13, 26: 13}
"""The version of the file format in which an operator set was published."""

_MOST_INSIDE = 2**30
"""Bytes of weights in one file, which Protocol Buffers limit to 2 GiB."""
_LEAST_BESIDE = 1024
"""Bytes of a weight that is stored in a file of its own."""
_ALIGNMENT = 4096


def save(
    path: str | os.PathLike[str],
    outputs: Tensors,
    inputs: Tensors | None = None,
    ctx: Context | None = None,
    *,
    code: Computation | None = None,
    opset: int = DEFAULT_OPSET,
    ir_version: int | None = None,
    weights: Literal["inside", "beside"] | None = None,
) -> None:
    """Write an expression as an ONNX model.

    Blocks become functions of the model, parameters initializers under their names, and extents
    dimensions under theirs.

    Args:
        path: The file; it is replaced as a whole, or stays as it was.
        outputs: The results.
        inputs: The tensors whose cells a run of the model is given; by default the placeholders on
            which the outputs depend, in the order of their making.
        ctx: The context with the values of all other tensors that the outputs depend on.
        code: The code that computes the outputs, if it does more than evaluate them: recorded code
            that writes a cache, whose new cells are an output.
        opset: The version of the operator set, in `OPSETS`.
        ir_version: The version of the file format; by default the one of the operator set.
        weights: "inside" or "beside" the file, in `PATH.<digest>.data`; by default beside it only
            if they are more than a gigabyte.

    Raises:
        NoCounterpartError: if an operation has no counterpart; it names the operation and its line.
        OnnxError: if a tensor has no value, or the arguments contradict each other.
    """
    file = _file(path)
    wanted = _named(outputs, "outputs")
    if not wanted:
        raise OnnxError("A model has outputs.", found="none", fix="outputs=[scores]")
    for argument, value, kind in (("ctx", ctx, oc.Context), ("code", code, oc.Computation)):
        if value is not None and not isinstance(value, kind):
            raise OnnxError(f"{argument}= is a {kind.__name__}.", found=repr(value))
    if code is None:
        code = _code_of(wanted.values())
    given = None if inputs is None else _named(inputs, "inputs")
    model, cells = _Saver(code, wanted, given, ctx, opset, ir_version).model()
    _write(file, model, cells, weights)


def _file(path: str | os.PathLike[str]) -> Path:
    try:
        file = Path(path)
    except TypeError as error:
        raise OnnxError("A model is written to a path.", found=repr(path)) from error
    if not file.name or "\0" in str(file):
        raise OnnxError("A model is written to a file.", found=repr(str(path)), fix='"model.onnx"')
    return file


def _named(tensors: Tensors, role: str) -> dict[str, Tensor]:
    """Return tensors by their names in the file."""
    if isinstance(tensors, Mapping):
        found = dict(tensors)
    else:
        found, names = {}, UniqueNames()
        every = [tensors] if isinstance(tensors, Tensor) else tensors
        for each in every if isinstance(every, Iterable) else [every]:
            name = each.node.name if isinstance(each, Tensor) else repr(each)
            found[names.unique(name)] = each
    for name, each in found.items():
        if not isinstance(each, Tensor) or not _is_name(name):
            raise OnnxError(
                f"The {role} of a model are tensors with names.", found=f"{name!r}: {each!r}"
            )
    return found


def _is_name(name: object) -> bool:
    """Return True for a text that a file can hold, and that programs in C can state."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _code_of(tensors: Iterable[Tensor]) -> Computation:
    """Return code that computes tensors."""
    code: Computation | None = None
    for each in tensors:
        part = oc.train.forward(each)
        code = part if code is None else code + part
    assert code is not None
    return code


def _check_versions(opset: int, ir_version: int | None) -> int:
    """Return the version of the file format."""
    newest = onnx.defs.onnx_opset_version()
    if not isinstance(opset, Integral) or opset not in OPSETS or opset > newest:
        raise OnnxError(
            f"Models are written for operator sets {OPSETS.start} to "
            f"{min(OPSETS.stop - 1, newest)}.",
            found=f"opset={opset!r}",
            fix="a newer onnx package" if newest < OPSETS.stop - 1 else "",
        )
    version = _IR_OF_OPSET[opset] if ir_version is None else ir_version
    if not isinstance(version, Integral) or not _LEAST_IR <= version <= onnx.IR_VERSION:
        raise OnnxError(
            f"The versions of the file format are {_LEAST_IR}, the first with functions, to "
            f"{onnx.IR_VERSION}.",
            found=f"ir_version={version!r}",
        )
    return version


class _Saver:
    """The translation of one model.

    Attributes:
        cells: The values of initializers by name.
    """

    def __init__(
        self,
        code: Computation,
        outputs: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor] | None,
        ctx: Context | None,
        opset: int,
        ir_version: int | None,
    ) -> None:
        self.ir_version = _check_versions(opset, ir_version)
        self.opset = opset
        self.ctx = ctx
        self.outputs = outputs
        with next(iter(outputs.values())).session, oc.train.unchanged_roots():
            self.program = split_formulas(code.resolve())
        self.tensors = code.tensors(of_steps=True)
        self.literals = code.literals()
        self.names = UniqueNames()
        self.inputs = self._placeholders() if inputs is None else dict(inputs)
        self._check_tensors()
        for name in (*self.inputs, *outputs):
            self.names.unique(name)
        self.weight_names = self._weight_names(code)
        self.ports: dict[TensorNode, WrittenValue] = {}
        self.indices: dict[StaticIndex, str] = {}
        self.initializers: dict[TensorNode, WrittenValue] = {}
        self.cells: dict[str, Array] = {}

    def _placeholders(self) -> dict[str, Tensor]:
        found = {t for t in self.tensors.values() if t.is_placeholder}
        return _named(sorted(found, key=lambda t: t.id), "inputs")

    def _weight_names(self, code: Computation) -> dict[Tensor, str]:
        """Return the names of weights: those in the file that they were read from, or those in
        checkpoints.
        """
        every = sorted(self.tensors.values(), key=lambda t: t.id)
        wanted = {t: name for t in every if (name := file_name_of(t)) is not None}
        named = (*code.params.items(), *code.statistics.items())
        wanted |= {tensor: name for name, tensor in named if tensor not in wanted}
        given = set(self.inputs.values())
        return {t: self.names.unique(name) for t, name in wanted.items() if t not in given}

    def _check_tensors(self) -> None:
        names: dict[TensorNode, str] = {}
        for name, tensor in self.inputs.items():
            if tensor.node in names:
                raise OnnxError(
                    "Each input of a model is a tensor of its own.",
                    found=f"{names[tensor.node]} and {name}, which are one",
                    where=tensor.describe(),
                    fix="name it once among the inputs",
                )
            names[tensor.node] = name
            if tensor.node not in self.program.nodes:
                raise OnnxError(
                    "The outputs of a model depend on each of its inputs.",
                    found=f"{name}, which nothing reads",
                    where=tensor.describe(),
                    fix="leave it out of inputs",
                )
        for name, tensor in self.outputs.items():
            if tensor.node not in self.program.nodes:
                raise OnnxError(
                    "The code of a model computes its outputs.",
                    found=f"{name}, which it does not mention",
                    where=tensor.describe(),
                    fix=f"code=code + oc.train.forward({name})",
                )
        if both := self.inputs.keys() & self.outputs.keys():
            raise OnnxError(
                "Names in a model are unique.",
                found=f"{', '.join(sorted(both))} among the inputs and the outputs",
                fix=f'outputs={{"{min(both)}_after": ...}}',
            )

    def _origin(self, index: StaticIndex) -> Callable[[Emitter], str]:
        """Return a function that emits an index: of an extent the size of an axis of an input, if
        one has it; else an input of its name.
        """
        if isinstance(index, StaticExtent):
            for value in self.ports.values():
                if index in value.sizes:
                    axis = value.sizes.index(index)
                    return lambda emit: emit("Shape", value.name, start=axis, end=axis + 1)
        if index not in self.indices:
            self.indices[index] = self.names.unique(index.name)
        name = self.indices[index]
        if isinstance(index, StaticExtent):
            return lambda emit: emit.unsqueeze(name, [0], 0)
        return lambda emit: name

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """Return the model without the cells of initializers, and these by name."""
        library = Library(self.opset)
        emit = Emitter(self.names, self.opset, self._origin, library)
        source = TranslatedProgram(self.program, self.tensors, self._stored(), self.load)
        translation = Translation(source, emit)
        for name, tensor in self.inputs.items():
            self.ports[tensor.node] = WrittenValue(
                name, translation.format(tensor.node), translation.sizes(tensor.node)
            )
        translation.values |= self.ports
        translation.run(self.program.body)
        results = self._results(translation, emit)
        nodes = library.grouped(emit.nodes, 0, set(self.outputs))
        used = {name for node in nodes for name in reads(node)}
        ports = [port(v.name, v.format, v.sizes) for v in self.ports.values()]
        ports += [port(name, INT64, ()) for name in self.indices.values()]
        initializers = []
        kept = [v for v in self.initializers.values() if v.name in used | set(self.outputs)]
        cells = {v.name: self.cells[v.name] for v in kept}
        for value in kept:
            proto = onnx.TensorProto(name=value.name, data_type=value.format.number)
            proto.dims.extend(cells[value.name].shape)
            initializers.append(proto)
        graph = helper.make_graph(nodes, self.program.name, ports, results, initializers)
        imports = [helper.make_opsetid("", self.opset)]
        if library.functions:
            imports.append(helper.make_opsetid(DOMAIN, 1))
        model = helper.make_model(
            graph,
            opset_imports=imports,
            functions=list(library.functions.values()),
            ir_version=self.ir_version,
            producer_name="ocannl",
        )
        return model, cells

    def _stored(self) -> set[TensorNode]:
        """Return the nodes that have cells before the code runs: also those that it changes."""
        program = self.program
        given = {
            node
            for node, each in self.tensors.items()
            if each.is_parameter or each.is_placeholder or each.is_statistic or each.is_gradient
        }
        others = program.nodes.keys() - program.embedded
        return {*others, *program.fresh, *self.literals, *given}

    def _results(self, translation: Translation, emit: Emitter) -> list[onnx.ValueInfoProto]:
        """Give the results their names, and return their descriptions."""
        emit.owners = ()
        found = []
        made = {name: each for each in emit.nodes for name in each.proto.output}
        names: dict[str, str] = {}
        for name, tensor in self.outputs.items():
            value = translation.value(tensor.node)
            source = emit.materialized(value)
            made |= {n: each for each in emit.nodes[-1:] for n in each.proto.output}
            own = made.get(source)
            if own is None or source in names or own.proto.op_type == "Constant":
                emit.nodes.append(OwnedNode(helper.make_node("Identity", [source], [name]), ()))
            else:
                names[source] = name
            found.append(port(name, value.format, value.sizes))
        for each in emit.nodes:
            rename(each.proto, names)
        return found

    def load(self, node: TensorNode) -> WrittenValue:
        """Return the value of a node that the model reads before it writes it: an initializer."""
        if node not in self.initializers:
            tensor = self.tensors[node]
            cells = self._cells(node, tensor)
            info = self.program.nodes[node]
            if info.dtype.name not in FORMATS:
                raise OnnxError(
                    "The weights of a model have a number format of ONNX.",
                    found=f"{node.name}: {info.dtype}",
                )
            sizes = tuple(cells.shape)
            name = self.weight_names.get(tensor) or self.names.unique(node.name)
            value = WrittenValue(name, format_named(info.dtype.name), sizes)
            self.initializers[node] = value
            self.cells[name] = cells
        return self.initializers[node]

    def _cells(self, node: TensorNode, tensor: Tensor) -> Array:
        """Return the cells of a literal, or those in the context; state that no code has written
        yet is 0.
        """
        found = self.literals.get(node)
        if found is not None and not tensor.is_overwritten:
            return np.asarray(found)
        if self.ctx is not None and tensor in self.ctx:
            try:
                return np.asarray(self.ctx[tensor])
            except oc.OcannlError as error:
                raise self._no_value(tensor) from error
        if node in self.program.fresh:
            info = self.program.nodes[node]
            return np.zeros(info.dims, info.dtype.numpy)
        raise self._no_value(tensor)

    def _no_value(self, tensor: Tensor) -> OnnxError:
        return OnnxError(
            "The tensors that a model reads are inputs, or have values in the context.",
            found=f"none for {tensor.describe()}",
            fix="ctx.init_params(y), then ocannl_onnx.save(path, y, inputs, ctx); or name the "
            "tensor among the inputs",
        )


def _write(
    path: Path,
    model: onnx.ModelProto,
    cells: Mapping[str, Array],
    weights: Literal["inside", "beside"] | None,
) -> None:
    """Write a model with its initializers, whole or not at all."""
    if weights not in ("inside", "beside", None):
        raise OnnxError("Weights are inside the file or beside it.", found=f"weights={weights!r}")
    total = sum(array.nbytes for array in cells.values())
    if weights == "inside" and total > _MOST_INSIDE:
        raise OnnxError(
            "Weights of more than a gigabyte are beside the file, which is limited to 2 GiB.",
            found=f"{total:,} bytes of weights",
            fix='weights="beside"',
        )
    is_beside = weights == "beside" or total > _MOST_INSIDE
    raw = {
        each.name: raw_bytes(cells[each.name], format_numbered(each.data_type))
        for each in model.graph.initializer
    }
    try:
        data = None
        beside = [
            each
            for each in model.graph.initializer
            if is_beside and len(raw[each.name]) >= _LEAST_BESIDE
        ]
        if beside:
            data = _write_beside(path, beside, raw)
        for each in model.graph.initializer:
            if not each.external_data:
                each.raw_data = bytes(raw[each.name])
        before: list[Path] = []
        try:
            with replacement(path) as file:
                file.write(model.SerializeToString())
                before = weight_files(path)
        finally:
            kept = weight_files(path)
            for old in {*before, *filter(None, [data])}.difference(kept):
                with suppress(OSError):
                    old.unlink()
    except OSError as error:
        raise OnnxError(
            "A model is written as a whole, or not at all.",
            found=f"{type(error).__name__}: {error.strerror or error}",
            where=f"{path}; a model that was there before is unchanged",
            fix="a folder that exists, in which you may write, on a disk with room",
        ) from error


def _write_beside(
    path: Path, protos: Sequence[onnx.TensorProto], raw: Mapping[str, memoryview]
) -> Path:
    """Write the cells of initializers to a file of their own, state their places, and return it."""
    parts: list[memoryview | bytes] = []
    place = 0
    for proto in protos:
        cells = raw[proto.name]
        padding = bytes(-place % _ALIGNMENT)
        parts += [padding, cells]
        place += len(padding)
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", ""), ("offset", place), ("length", len(cells))):
            proto.external_data.add(key=key, value=str(value))
        place += len(cells)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    real = path.resolve()
    data = real.with_name(f"{real.name}.{digest.hexdigest()[:16]}.data")
    for proto in protos:
        proto.external_data[0].value = data.name
    with replacement(data) as file:
        for part in parts:
            file.write(part)
    return data


def weight_files(path: Path) -> list[Path]:
    """Return the files beside a model in which `save` has stored its weights."""
    real = path.resolve()
    own = re.compile(re.escape(real.name) + r"\.[0-9a-f]{16}\.data")
    if not real.is_file() or not any(own.fullmatch(each.name) for each in real.parent.iterdir()):
        return []
    try:
        model = read_model(real).proto
    except OnnxError:
        return []
    locations = {
        entry.value
        for each in model.graph.initializer
        for entry in each.external_data
        if entry.key == "location"
    }
    return [real.with_name(each) for each in sorted(locations) if own.fullmatch(each)]
