"""Export of routines: kernels for one thread, a layout of their memory, and the values in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ocannl_core.base.errors import CodegenError, LinkError, UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.files.digests import text_digest
from ocannl_core.codegen.c_family import render_step
from ocannl_core.codegen.export import c_file, web
from ocannl_core.codegen.export.exported_dialect import exported_dialect
from ocannl_core.codegen.export.model import (
    ALIGNMENT,
    ExportedFunction,
    ExportedModel,
    ExportedTensor,
    IndexArgument,
    Role,
    aligned,
)
from ocannl_core.codegen.text.routine_source import RoutineSource
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.ir import host_arrays
from ocannl_core.ir.external import NativeOp
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import HostCall, LeafStep, Plan, nodes_written
from ocannl_core.ir.loops.traverse import merge_reads
from ocannl_core.ir.loops.usage import IndexBound
from ocannl_core.ir.matrix_units import TileProduct
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, uint4x32, uint8, uint32, uint64
from ocannl_core.ir.serialization.safetensors import StoredArray, header_bytes, layout
from ocannl_core.ir.target import Target
from ocannl_core.runtime import values
from ocannl_core.runtime.store import BufferStore
from ocannl_core.runtime.target_code import described_target
from ocannl_core.runtime.webassembly import compile_wasm

if TYPE_CHECKING:
    from ocannl_core.compile.stages import Linkable
    from ocannl_core.tensor.graph.tensor import Tensor

_RESERVED = frozenset(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
        "bool",
        "true",
        "false",
        "class",
        "new",
        "delete",
        "this",
        "template",
        "namespace",
        "s",
        "state",
        "head",
        "failed",
        "dims",
        "strides",
        "weights",
        "state_bytes",
        "weights_bytes",
        "fingerprint",
    ]
)
"""Words of C and C++, and names inside of functions."""

_METADATA = {"format": "ocannl export"}

_FINGERPRINT = "__model__"
"""The entry of a file of weights with the number of the model."""


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """The files of an export.

    Attributes:
        source: The C file.
        header: The interface in C and C++.
        weights: The safetensors file with the weights; None if the C file contains them.
        state_bytes: The memory of a state.
        weights_bytes: The memory of the weights.
        module: The WebAssembly module, its JavaScript front, and the types of that, if any.
    """

    source: Path
    header: Path
    weights: Path | None
    state_bytes: int
    weights_bytes: int
    module: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportedRoutine:
    """A routine, as the exporter needs it.

    Attributes:
        needed: The nodes whose values it reads before it writes them.
        accepted: The values of each static index that it accepts, by name; None for any.
        limits: The limits of several indices together.
    """

    linkable: Linkable
    needed: frozenset[TensorNode]
    accepted: Mapping[str, range | None]
    limits: tuple[IndexBound, ...]


def export(
    functions: Mapping[str, ExportedRoutine],
    path: Path,
    store: BufferStore,
    *,
    inputs: Sequence[Tensor] | None,
    outputs: Sequence[Tensor] | None,
    weights: Literal["inside", "beside"],
    target: Target | str | None,
) -> ExportedFiles:
    """Write routines over one memory as a C file and a header.

    Args:
        functions: The routines by the names of their functions.
        path: The C file, or the WebAssembly module; its stem is the prefix of all names.
        store: The memory.

    The other arguments and the errors are as for `Context.export`.
    """
    is_web = path.suffix == ".wasm"
    if is_web and target is None:
        target = "wasm32"
    exporter = _Exporter(functions, path.stem, store, target)
    model, entries = exporter.model(inputs, outputs, are_inside=weights == "inside")
    dialect = exported_dialect(exporter.target)
    source, header = path.with_suffix(".c"), path.with_suffix(".h")
    texts = {source: c_file.c_file(model, dialect), header: c_file.header(model, dialect)}
    module: tuple[Path, ...] = ()
    if is_web:
        front, types = path.with_suffix(".mjs"), path.with_suffix(".d.ts")
        texts |= {front: web.javascript(model), types: web.declarations(model)}
        module = path, front, types
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
    beside = None
    if not model.are_inside:
        beside = path.with_suffix(".safetensors")
        beside.write_bytes(header_bytes(entries, _METADATA) + model.weights)
    if is_web:
        compile_wasm(source, web.exported_symbols(model), path)
    return ExportedFiles(source, header, beside, model.state_bytes, len(model.weights), module)


class _Exporter:
    """The gathering of a model from routines."""

    def __init__(
        self,
        functions: Mapping[str, ExportedRoutine],
        prefix: str,
        store: BufferStore,
        target: Target | str | None,
    ) -> None:
        for name in (prefix, *functions):
            _check_identifier(name)
        self._functions, self._prefix, self._store = functions, prefix, store
        built = next(iter(functions.values())).linkable.built
        if built.source.language != "c":
            raise CodegenError(
                "Exported code is C: the context of its routines is on a backend that generates C.",
                found=f"{built.target}, which generates {built.source.language}",
                fix='oc.Context("cpu_c")',
            )
        self.target = (
            _without_tiles(built.target)
            if target is None
            else described_target(built.backend, target)
        )
        self._plans = {name: self._plan(each) for name, each in functions.items()}
        self._infos = {
            node: plan.nodes[node] for plan in self._plans.values() for node in plan.params
        }

    def model(
        self, inputs: Sequence[Tensor] | None, outputs: Sequence[Tensor] | None, *, are_inside: bool
    ) -> tuple[ExportedModel, tuple[StoredArray, ...]]:
        """Return the model, and the entries of its file of weights."""
        given = self._inputs() if inputs is None else self._stated(inputs, "inputs")
        computed = self._outputs() if outputs is None else self._stated(outputs, "outputs")
        steps = (step for plan in self._plans.values() for step in plan.steps)
        written = {node for step in steps for node in nodes_written(step)}
        names = _Names(self._prefix)
        tensors: dict[TensorNode, ExportedTensor] = {}
        cells: dict[str, bytes] = {}
        at = ALIGNMENT  # behind the head
        for node, info in self._infos.items():
            is_constant = node not in given and node not in written
            offset = None
            if not is_constant:
                offset, at = at, at + aligned(info.nbytes)
            name = names.unique(node.name)
            content = b"" if node in given else self._cells(node, info)
            if is_constant or any(content):
                cells[name] = content
            role = (
                Role.INPUT
                if node in given
                else Role.CONSTANT
                if is_constant
                else Role.OUTPUT
                if node in computed
                else Role.STATE
            )
            tensors[node] = ExportedTensor(node, name, node.name, info, role, offset, None)
        functions, end = [], at
        for name in self._plans:
            made, last = self._function(name, tensors, given, computed, at)
            functions.append(made)
            end = max(end, last)
        texts = (each.source.text for each in functions)
        fingerprint = int(text_digest(self._prefix, *texts, str(end))[:16], 16)
        entries, weights = _laid_out(tensors.values(), cells, fingerprint)
        places = {entry.name: entry.begin for entry in entries}
        placed = {
            node: replace(each, weights_offset=places.get(each.name))
            for node, each in tensors.items()
        }
        functions = [
            replace(
                each,
                inputs=tuple(placed[tensor.node] for tensor in each.inputs),
                outputs=tuple(placed[tensor.node] for tensor in each.outputs),
            )
            for each in functions
        ]
        model = ExportedModel(
            self._prefix,
            tuple(functions),
            tuple(placed.values()),
            end,
            weights,
            are_inside,
            len(header_bytes(entries, _METADATA)),
            tuple(self._remarks()),
            fingerprint,
        )
        return model, entries

    def _plan(self, routine: ExportedRoutine) -> Plan:
        """Return the plan of a routine for the target."""
        built = routine.linkable.built
        name = built.plan.name
        if merge_reads(built.optimized.body):
            raise CodegenError(
                "Exported code runs on one device, without merge buffers of others.",
                found=name,
                where=f"exporting {name}",
            )
        plan = built.plan
        if self.target != built.target:
            from ocannl_core.compile.driver import plan_for

            plan = plan_for(built.request, self.target)
        for step in plan.kernels:
            _check_step(step, name)
        return plan

    def _function(
        self,
        name: str,
        tensors: Mapping[TensorNode, ExportedTensor],
        given: Mapping[TensorNode, None],
        computed: Mapping[TensorNode, None],
        start: int,
    ) -> tuple[ExportedFunction, int]:
        """Return a function, and the end of the memory that it needs in the state.

        Args:
            start: The first byte behind the tensors.
        """
        routine, plan = self._functions[name], self._plans[name]
        dialect = exported_dialect(self.target)
        rendered = [render_step(step, plan.nodes, dialect) for step in plan.kernels]
        source = RoutineSource.of(plan, rendered, dialect)
        arena = memory_plan(plan)
        scratch = {node: start + place.offset for node, place in arena.places.items()}
        private = start + aligned(arena.nbytes)
        room = max((sum(map(aligned, each.private)) for each in source.kernels), default=0)
        writes = routine.linkable.usage.writes
        inputs = tuple(tensors[node] for node in given if node in plan.params)
        outputs = tuple(
            tensors[node] for node in computed if node in plan.params and node in writes
        )
        names = _Names(self._prefix, (each.name for each in (*inputs, *outputs)))
        indices = tuple(
            self._index(index, routine, names.unique(index.name)) for index in plan.indices
        )
        limits = routine.limits
        made = ExportedFunction(name, source, inputs, outputs, indices, limits, scratch, private)
        return made, private + room

    def _index(self, index: StaticIndex, routine: ExportedRoutine, name: str) -> IndexArgument:
        accepted = routine.accepted[index.name]
        if accepted is None:
            raise UsageError(
                "An integer argument of an exported function has a range.",
                found=f"the static index {index.name}",
                fix=f'oc.static_index("{index.name}", range=n)',
            )
        return IndexArgument(index, name, accepted.start, accepted.stop - 1)

    def _inputs(self) -> dict[TensorNode, None]:
        """Return the placeholders, in the order of their creation."""
        found = ((node, self._tensor(node)) for node in self._in_order())
        return {node: None for node, each in found if each is not None and each.is_placeholder}

    def _outputs(self) -> dict[TensorNode, None]:
        """Return the nodes that are computed anew by each call, gradients left out, in the order of
        their creation.
        """
        usages = [each.linkable.usage for each in self._functions.values()]
        writes = set().union(*(each.writes for each in usages))
        kept = set().union(*(each.reads_first for each in usages))
        return {
            node: None
            for node in self._in_order()
            if node in writes and node not in kept and node.gradient_of is None
        }

    def _in_order(self) -> list[TensorNode]:
        return sorted(self._infos, key=lambda node: node.id)

    def _stated(self, tensors: Sequence[Tensor], argument: str) -> dict[TensorNode, None]:
        """Return the nodes of tensors that a user names."""
        for each in tensors:
            if each.node not in self._infos:
                raise UsageError(
                    f"{argument}= names tensors that the routines keep in memory.",
                    found=each.describe(),
                    fix="compile the routines with keep=[...]; they keep "
                    + ", ".join(node.name for node in self._infos),
                )
        return {each.node: None for each in tensors}

    def _tensor(self, node: TensorNode) -> Tensor | None:
        codes = (each.linkable.code for each in self._functions.values())
        found = (code.tensors.get(node) for code in codes)
        return next((each for each in found if each is not None), None)

    def _cells(self, node: TensorNode, info: NodeInfo) -> bytes:
        """Return the memory of a node, margins included; zeros if it has no value yet and needs
        none.
        """
        stored = self._store.find(node)
        if stored is not None and stored.has_value:
            cells = values.download(self._store.backend, stored.buffer)
            return host_arrays.memory_of(cells, stored.info).tobytes()
        for name, routine in self._functions.items():
            if node in routine.needed:
                raise LinkError(
                    "The tensors that exported functions read have values, or are inputs.",
                    found=f"{node.name}, which {name} reads, has none",
                    where=f"exporting {name}",
                    fix="ctx.init_params(loss) before, or inputs=[...] with this tensor",
                )
        return bytes(info.nbytes)

    def _remarks(self) -> Iterator[str]:
        target = self.target
        size = target.vector_bytes
        vectors = f"vectors of {size} bytes" if size else "plain loops"
        yield f"Generated for {target.description or target}: {vectors}."
        if target.has_fma:
            yield (
                "It uses fused multiply-add: without an instruction for it (-mfma, or "
                "-march=native), the compiler calls the function fmaf, with the same results."
            )


def _laid_out(
    tensors: Iterable[ExportedTensor], cells: Mapping[str, bytes], fingerprint: int
) -> tuple[tuple[StoredArray, ...], bytes]:
    """Return the entries of a file of weights, and its data: the number of the model first."""
    shapes: list[tuple[str, DType, tuple[int, ...]]] = [(_FINGERPRINT, uint64, (1,))]
    shapes += [(each.name, *_stored_as(each.info)) for each in tensors if each.name in cells]
    entries = layout(shapes)
    contents = {_FINGERPRINT: fingerprint.to_bytes(8, "little"), **cells}
    return entries, b"".join(contents[entry.name] for entry in entries)


def _stored_as(info: NodeInfo) -> tuple[DType, tuple[int, ...]]:
    """Return the format and the extents of a node's memory in a file."""
    if info.dtype is uint4x32:
        return uint32, (*info.buffer_dims, 4)
    return (uint8 if info.dtype.is_packed else info.dtype), info.memory_dims


def _without_tiles(target: Target) -> Target:
    """Return a target without the units that need a permission of the operating system."""
    units = tuple(each for each in target.matrix_units if not isinstance(each, TileProduct))
    return target if units == target.matrix_units else replace(target, matrix_units=units)


def _check_step(step: LeafStep, name: str) -> None:
    """Check that a step has code in C."""
    if not isinstance(step, HostCall):
        return
    op = step.call.op
    if not isinstance(op, NativeOp) or op.native("c") is None:
        raise CodegenError(
            "Exported code is C: an operation in Python is none.",
            found=op.name,
            where=f"exporting {name}",
            fix='give the operation native code for the language "c"',
        )


class _Names:
    """Identifiers of C, each given once."""

    def __init__(self, prefix: str, given: Iterable[str] = ()) -> None:
        self._given = {*_RESERVED, prefix, *given}

    def unique(self, name: str) -> str:
        """Return a name, with a number behind it if others have it."""
        wanted = re.sub(r"\W", "_", name, flags=re.ASCII)
        found, number = wanted, 1
        while found in self._given:
            number += 1
            found = f"{wanted}_{number}"
        self._given.add(found)
        return found


def _check_identifier(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in _RESERVED:
        raise UsageError(
            "The names of an exported file and of its functions are identifiers of C.",
            found=repr(name),
            fix='ctx.export({"predict": routine}, "model.c")',
        )
