"""Expressions as files."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import onnx
from onnx import helper

import ocannl_core as oc
from ocannl_core import StaticExtent, Tensor
from ocannl_core.assignments import StaticIndex, TensorNode
from ocannl_onnx.errors import OnnxError
from ocannl_onnx.formats import format_named, format_numbered
from ocannl_onnx.writing.emitter import INT64, Array, Emitter, Names, Variable, raw_bytes
from ocannl_onnx.writing.functions import DOMAIN, Library, OwnedNode, reads, rename
from ocannl_onnx.writing.translation import Translation, make_port
from ocannl_onnx.writing.values import FORMATS, Source

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
    wanted = _named(outputs, "outputs")
    if not wanted:
        raise OnnxError("A model has outputs.", found="none", fix="outputs=[scores]")
    if code is None:
        code = _code_of(wanted.values())
    given = None if inputs is None else _named(inputs, "inputs")
    model, cells = _Saver(code, wanted, given, ctx, opset, ir_version).model()
    _write(Path(path), model, cells, weights)


def _named(tensors: Tensors, role: str) -> dict[str, Tensor]:
    """Return tensors by their names in the file."""
    if isinstance(tensors, Mapping):
        found = dict(tensors)
    else:
        found = {}
        for each in [tensors] if isinstance(tensors, Tensor) else tensors:
            name = each.node.name if isinstance(each, Tensor) else repr(each)
            while name in found:
                name += "_2"
            found[name] = each
    for name, each in found.items():
        if not isinstance(each, Tensor) or not name:
            raise OnnxError(
                f"The {role} of a model are tensors with names.", found=f"{name!r}: {each!r}"
            )
    return found


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
    if opset not in OPSETS or opset > newest:
        raise OnnxError(
            f"Models are written for operator sets {OPSETS.start} to "
            f"{min(OPSETS.stop - 1, newest)}.",
            found=f"opset={opset!r}",
            fix="" if opset <= newest else "a newer onnx package",
        )
    version = _IR_OF_OPSET[opset] if ir_version is None else ir_version
    if not _LEAST_IR <= version <= onnx.IR_VERSION:
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
            self.program = code.resolve()
        self.tensors = code.tensors(of_steps=True)
        self.literals = code.literals()
        named = (*code.params.items(), *code.statistics.items())
        self.weight_names = {tensor: name for name, tensor in named}
        self.names = Names()
        self.inputs = self._placeholders() if inputs is None else dict(inputs)
        self._check_inputs()
        for name in (*self.inputs, *outputs):
            self.names.unique(name)
        self.ports: dict[TensorNode, Variable] = {}
        self.indices: dict[StaticIndex, str] = {}
        self.initializers: dict[TensorNode, Variable] = {}
        self.cells: dict[str, Array] = {}

    def _placeholders(self) -> dict[str, Tensor]:
        found = {t for t in self.tensors.values() if t.is_placeholder}
        return _named(sorted(found, key=lambda t: t.id), "inputs")

    def _check_inputs(self) -> None:
        for name, tensor in self.inputs.items():
            if tensor.node not in self.program.nodes:
                raise OnnxError(
                    "The outputs of a model depend on each of its inputs.",
                    found=f"{name}, which nothing reads",
                    where=tensor.describe(),
                    fix="leave it out of inputs",
                )
        if both := self.inputs.keys() & self.outputs.keys():
            raise OnnxError(
                "Names in a model are unique.",
                found=f"{', '.join(sorted(both))} among the inputs and the outputs",
                fix=f'outputs={{"{min(both)}_after": ...}}',
            )

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """Return the model without the cells of initializers, and these by name."""
        library = Library(self.opset)
        emit = Emitter(self.names, self.opset, _Origins(self), library)
        source = Source(self.program, self.tensors, self.load)
        translation = Translation(source, emit)
        for name, tensor in self.inputs.items():
            self.ports[tensor.node] = Variable(
                name, translation.format(tensor.node), translation.sizes(tensor.node)
            )
        translation.values |= self.ports
        translation.run(self.program.body)
        results = self._results(translation, emit)
        nodes = library.grouped(emit.nodes, 0, set(self.outputs))
        used = {name for node in nodes for name in reads(node)}
        ports = [make_port(v.name, v.format, v.sizes) for v in self.ports.values()]
        ports += [make_port(name, INT64, ()) for name in self.indices.values()]
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
            found.append(make_port(name, value.format, value.sizes))
        for each in emit.nodes:
            rename(each.proto, names)
        return found

    def load(self, node: TensorNode) -> Variable:
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
            name = self.names.unique(self.weight_names.get(tensor, node.name))
            value = Variable(name, format_named(info.dtype.name), sizes)
            self.initializers[node] = value
            self.cells[name] = cells
        return self.initializers[node]

    def _cells(self, node: TensorNode, tensor: Tensor) -> Array:
        """Return the cells of a literal, or those in the context."""
        found = self.literals.get(node)
        if found is not None and not tensor.is_overwritten:
            return np.asarray(found)
        if self.ctx is not None and tensor in self.ctx:
            try:
                return np.asarray(self.ctx[tensor])
            except oc.OcannlError as error:
                raise self._no_value(tensor) from error
        raise self._no_value(tensor)

    def _no_value(self, tensor: Tensor) -> OnnxError:
        return OnnxError(
            "The tensors that a model reads are inputs, or have values in the context.",
            found=f"none for {tensor.describe()}",
            fix="ctx.init_params(y), then ocannl_onnx.save(path, y, inputs, ctx); or name the "
            "tensor among the inputs",
        )


class _Origins(Mapping[StaticIndex, Any]):
    """The values of indices and extents: of an extent the size of an axis of an input, if one has
    it; else inputs of their names.
    """

    def __init__(self, saver: _Saver) -> None:
        self.saver = saver

    def __getitem__(self, index: StaticIndex) -> Any:
        saver = self.saver
        if isinstance(index, StaticExtent):
            for value in saver.ports.values():
                if index in value.sizes:
                    axis = value.sizes.index(index)
                    return lambda emit: emit("Shape", value.name, start=axis, end=axis + 1)
        if index not in saver.indices:
            saver.indices[index] = saver.names.unique(index.name)
        name = saver.indices[index]
        if isinstance(index, StaticExtent):
            return lambda emit: emit.unsqueeze(name, [0], 0)
        return lambda emit: name

    def __iter__(self) -> Iterator[StaticIndex]:
        return iter(self.saver.indices)

    def __len__(self) -> int:
        return len(self.saver.indices)


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
            "A file with all weights inside is limited to 2 GiB.",
            found=f"{total:,} bytes of weights",
            fix='weights="beside"',
        )
    is_beside = weights == "beside" or total > _MOST_INSIDE
    data = path.with_name(path.name + ".data")
    beside = [
        proto
        for proto in model.graph.initializer
        if is_beside and cells[proto.name].nbytes >= _LEAST_BESIDE
    ]
    names = {proto.name for proto in beside}
    for proto in model.graph.initializer:
        if proto.name not in names:
            proto.raw_data = raw_bytes(cells[proto.name], format_numbered(proto.data_type))
    if beside:
        with _new_file(data) as (file, temporary):
            digest = _write_data(file, beside, cells)
            data = path.with_name(f"{path.name}.{digest}.data")
            for proto in beside:
                for entry in proto.external_data:
                    if entry.key == "location":
                        entry.value = data.name
            _finish(file, temporary, data)
    with _new_file(path) as (file, temporary):
        file.write(model.SerializeToString())
        _finish(file, temporary, path)
    _remove_others(path, data if beside else None)


def _write_data(
    file: BinaryIO, protos: Sequence[onnx.TensorProto], cells: Mapping[str, Array]
) -> str:
    """Write the cells of initializers, state their places, and return the digest of the file."""
    digest, place = hashlib.sha256(), 0
    for proto in protos:
        padding = bytes(-place % _ALIGNMENT)
        raw = raw_bytes(cells[proto.name], format_numbered(proto.data_type))
        for part in (padding, raw):
            file.write(part)
            digest.update(part)
        place += len(padding)
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", ""), ("offset", place), ("length", len(raw))):
            proto.external_data.add(key=key, value=str(value))
        place += len(raw)
    return digest.hexdigest()[:16]


@contextmanager
def _new_file(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield a temporary file beside a path; it is removed unless it has been renamed."""
    try:
        number, name = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    except OSError as error:
        raise OnnxError(
            "A model is written to a folder that exists and is writable.",
            found=str(error),
            where=str(path),
        ) from error
    try:
        with os.fdopen(number, "wb") as file:
            yield file, Path(name)
    finally:
        with suppress(OSError):
            Path(name).unlink()


def _finish(file: BinaryIO, temporary: Path, path: Path) -> None:
    """Give a complete file its name."""
    file.flush()
    os.fsync(file.fileno())
    mask = os.umask(0)
    os.umask(mask)
    temporary.chmod(0o666 & ~mask)
    os.replace(temporary, path)


def _remove_others(path: Path, data: Path | None) -> None:
    """Remove the weights of models that this one has replaced."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.data")
    for each in path.parent.iterdir():
        if pattern.fullmatch(each.name) and each != data:
            with suppress(OSError):
                each.unlink()
