"""Export of routines: kernels for one thread, a layout of their memory, and the values in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ocannl_core.base.errors import CodegenError, LinkError, UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.files.digests import text_digest
from ocannl_core.base.files.new_files import replacement
from ocannl_core.codegen.c_family import render_step
from ocannl_core.codegen.export import c_file, web
from ocannl_core.codegen.export import header as c_header
from ocannl_core.codegen.export.exported_dialect import INSTRUCTION_FUNCTIONS, exported_dialect
from ocannl_core.codegen.export.model import (
    ALIGNMENT,
    INNER_NAMES,
    LEAST,
    MOST,
    ExportedFunction,
    ExportedTensor,
    FileContent,
    IndexArgument,
    Role,
    aligned,
    argument,
)
from ocannl_core.codegen.text.routine_source import Launch, RoutineSource, RunStep
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.ir import host_arrays
from ocannl_core.ir.external import NativeOp
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import HostCall, LeafStep, Plan, nodes_written
from ocannl_core.ir.loops.usage import IndexBound
from ocannl_core.ir.matrix_units import TileProduct
from ocannl_core.ir.node import NodeInfo, Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, uint4x32, uint8, uint32, uint64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.ir.serialization.safetensors import StoredArray, header_bytes, layout
from ocannl_core.ir.target import Target
from ocannl_core.runtime import values
from ocannl_core.runtime.export.webassembly import compile_wasm
from ocannl_core.runtime.store import BufferStore
from ocannl_core.runtime.target_code import described_target

if TYPE_CHECKING:
    from ocannl_core.codegen.dialect import Dialect
    from ocannl_core.compile.stages import Linkable, ResolvedCode
    from ocannl_core.tensor.graph.tensor import Tensor

Arguments = Sequence["Tensor"] | Mapping[str, "Tensor"]
"""Tensors in the order of arguments; with their names in C, or under their own."""

_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        auto break case char const continue default do double else enum extern float for goto if
        inline int long register restrict return short signed sizeof static struct switch typedef
        union unsigned void volatile while
        alignas alignof asm bool constexpr false nullptr static_assert thread_local true typeof
        typeof_unqual
        and and_eq bitand bitor catch char8_t char16_t char32_t class co_await co_return co_yield
        compl concept const_cast consteval constinit decltype delete dynamic_cast explicit export
        friend mutable namespace new noexcept not not_eq operator or or_eq private
        protected public reinterpret_cast requires static_cast template this throw try typeid
        typename using virtual wchar_t xor xor_eq
        assert complex errno i386 linux offsetof stderr stdin stdout unix
        int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t size_t
        """,
    )
)
"""Words of C and C++, and macros of common headers, for which no tensor is named."""

_MACROS = re.compile(
    "EOF|I|INFINITY|NAN|NULL|[A-Z0-9_]+_(MAX|MIN|C|WIDTH)|(M|FE|FLT|DBL|LDBL|FP)_[A-Z0-9_]+"
)
"""Macros of the standard headers in capitals, likewise."""

_OWN_FUNCTIONS = frozenset(
    (
        *("init", "call", "cells", "status", "status_text", "facts"),
        *("tensor", "tensors", "function", "functions", "arguments"),
        *("threads", "parallel_for", "constructor", "then"),
    )
)
"""The names behind the prefix that every file has, or the fronts of exported models."""

_METADATA = {"format": "ocannl export"}

_FINGERPRINT = "__model__"
"""The entry of a file of weights with the number of the model."""


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """The files of an export."""

    source: Path
    """The C file."""
    header: Path
    """The interface in C and C++."""
    weights: Path | None
    """The safetensors file with the weights; None if the C file contains them."""
    state_bytes: int
    """The memory of a state."""
    weights_bytes: int
    """The memory of the weights."""
    module: tuple[Path, ...] = ()
    """The WebAssembly module, its JavaScript front, and the types of that, if any."""


@dataclass(frozen=True, slots=True)
class ExportedRoutine:
    """A routine, as the exporter needs it."""

    linkable: Linkable
    needed: frozenset[TensorNode]
    """The nodes whose values it reads before it writes them."""
    accepted: Mapping[str, range | None]
    """The values of each static index that it accepts, by name; None for any."""
    limits: tuple[IndexBound, ...]
    """The limits of several indices together."""


def export(
    functions: Mapping[str, ExportedRoutine],
    path: Path,
    store: BufferStore,
    *,
    inputs: Arguments | None,
    outputs: Arguments | None,
    weights: Literal["inside", "beside"],
    target: Target | str | None,
    threads: bool,
) -> ExportedFiles:
    """Write routines over one memory as a C file and a header.

    Args:
        functions: The routines by the names of their functions.
        path: The C file, or the WebAssembly module; its stem is the prefix of all names.
        store: The memory.

    The other arguments and the errors are as for `Context.export`.
    """
    is_web = path.suffix == ".wasm"
    if is_web and threads:
        raise UsageError(
            "A WebAssembly module runs on one thread.",
            found="threads=True",
            fix='export to "model.c", and compile it with threads of your own',
        )
    if is_web and target is None:
        target = "wasm32"
    dialect = partial(exported_dialect, threads=threads)
    exporter = _Exporter(functions, path.stem, store, target, dialect)
    content, entries = exporter.content(inputs, outputs, are_inside=weights == "inside")
    source, header = path.with_suffix(".c"), path.with_suffix(".h")
    files = {
        source: c_file.c_file(content, exporter.dialect).encode(),
        header: c_header.header(content, exporter.dialect).encode(),
    }
    module: tuple[Path, ...] = ()
    if is_web:
        module = path, path.with_suffix(".mjs"), path.with_suffix(".d.ts")
        texts = web.javascript(content), web.declarations(content)
        texts_of_c = files[source], files[header]
        symbols, needs_library = web.symbols(content), bool(content.library)
        compiled = compile_wasm(*texts_of_c, path.stem, symbols, needs_library=needs_library)
        parts = (compiled, *(text.encode() for text in texts))
        files |= zip(module, parts, strict=True)
    beside = None if content.are_inside else path.with_suffix(".safetensors")
    if beside is not None:
        files[beside] = header_bytes(entries, _METADATA) + content.weights
    _write(files)
    return ExportedFiles(source, header, beside, content.state_bytes, len(content.weights), module)


def _write(files: Mapping[Path, bytes]) -> None:
    """Write files together: none takes its name before all are on the disk."""
    file = next(iter(files))
    try:
        with ExitStack() as stack:
            for file, content in files.items():
                new = stack.enter_context(replacement(file))
                new.write(content)
                new.flush()
    except OSError as error:
        raise UsageError(
            "The files of an export are written together, or not at all.",
            found=f"{type(error).__name__}: {error.strerror or error}",
            where=f"{file}; files that were there before are unchanged",
            fix="make room on the disk, or choose another folder",
        ) from error


class _Exporter:
    """The gathering of a model from routines."""

    def __init__(
        self,
        functions: Mapping[str, ExportedRoutine],
        prefix: str,
        store: BufferStore,
        target: Target | str | None,
        dialect: Callable[[Target], Dialect],
    ) -> None:
        joined = [f"{prefix}_{name}" for name in functions]
        for name in (prefix, *functions, *joined):
            _check_identifier(name)
        for name in joined:  # in capitals as the macros of the file, or as a function of its own
            if name.isupper() or INNER_NAMES.fullmatch(name):
                raise UsageError(
                    "Functions in C have the names of the file and of the routine, which are no "
                    "names of the file itself.",
                    found=name,
                    fix='small letters, and another name: ctx.export({"predict": routine}, '
                    '"model.c")',
                )
        taken = [each for each in functions if each in _OWN_FUNCTIONS or each.startswith("_")]
        if taken:
            raise UsageError(
                "An exported file has functions of its own: init, call, cells and others, and, in "
                "Python, some that begin with an underscore.",
                found=f"a routine of the name {', '.join(taken)}",
                fix='another name: ctx.export({"predict": routine}, "model.c")',
            )
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
        self.dialect = dialect(self.target)
        self._plans = {name: self._plan(each) for name, each in functions.items()}
        self._infos = {
            node: plan.nodes[node] for plan in self._plans.values() for node in plan.params
        }
        if not self._infos:
            raise UsageError(
                "Exported routines read or write some tensor with cells.",
                found=f"none in {', '.join(functions)}",
                fix="an axis of size 0 leaves nothing to compute: give it another size",
            )

    def content(
        self, inputs: Arguments | None, outputs: Arguments | None, *, are_inside: bool
    ) -> tuple[FileContent, tuple[StoredArray, ...]]:
        """Return the content of the file, and the entries of the file of weights."""
        given = self._inputs() if inputs is None else self._stated(inputs, "inputs")
        computed = self._outputs() if outputs is None else self._stated(outputs, "outputs")
        names = _Names(self._prefix)
        bindings = (each.linkable.bindings for each in self._functions.values())
        every = dict.fromkeys(index for indices in bindings for index in indices)
        indices = {index: names.unique(index.name) for index in every}
        called, returned = (
            {each.node: _own_name(name, names) for name, each in stated.items()}
            if isinstance(stated, Mapping)
            else {}
            for stated in (inputs, outputs)
        )
        called |= {node: name for node, name in returned.items() if node not in given}
        for node in self._in_order():
            if node not in called:
                called[node] = names.unique(node.name)
        for node in computed:
            if node in given and node not in returned:
                returned[node] = names.unique(f"{called[node]}_after")
        roles = self._roles(given, computed)
        contents = self._initial_cells(roles, called)
        shapes: list[tuple[str, DType, tuple[int, ...]]] = [(_FINGERPRINT, uint64, (1,))]
        stored = ((node, name) for node, name in called.items() if name in contents)
        shapes += [(name, *_stored_as(self._infos[node])) for node, name in stored]
        entries = layout(shapes)
        begins = {entry.name: entry.begin for entry in entries}
        tensors: dict[TensorNode, ExportedTensor] = {}
        end = ALIGNMENT  # behind the head
        for node, info in self._infos.items():
            offset = None if roles[node] is Role.CONSTANT else end
            end += 0 if offset is None else aligned(info.nbytes)
            name, sizes = called[node], _sizes(info, indices)
            place = begins.get(name)
            tensors[node] = ExportedTensor(node, name, sizes, info, roles[node], offset, place)
        functions = tuple(
            self._function(name, tensors, given, computed, returned, indices, end)
            for name in self._plans
        )
        ends = [
            each.private + max(map(_room, each.source.launches), default=0) for each in functions
        ]
        launches = [
            each
            for function in functions
            for each in function.source.launches
            if isinstance(each, Launch) and each.shares is not None
        ]
        # even if no work is worth a thread, so that programs link
        has_threads = self.dialect.partitions_loops
        thread_bytes = (max(map(_room, launches), default=0) or ALIGNMENT) if has_threads else 0
        texts = (each.source.text for each in functions)
        kernels = [kernel for each in functions for kernel in each.source.kernels]
        library = _library_functions(self.dialect.unit(kernels))
        # tensors that are zero have no weights: their places depend on values
        places = str([(each.offset, each.weights_offset) for each in tensors.values()])
        fingerprint = int(text_digest(self._prefix, *texts, str(max(ends)), places)[:16], 16)
        contents[_FINGERPRINT] = fingerprint.to_bytes(8, "little")
        content = FileContent(
            self._prefix,
            functions,
            tuple(tensors.values()),
            max(ends),
            thread_bytes,
            b"".join(contents[entry.name] for entry in entries),
            are_inside,
            len(header_bytes(entries, _METADATA)),
            tuple(self._remarks(library)),
            library,
            fingerprint,
        )
        return content, entries

    def _roles(
        self, given: Mapping[TensorNode, None], computed: Mapping[TensorNode, None]
    ) -> dict[TensorNode, Role]:
        steps = (step for plan in self._plans.values() for step in plan.steps)
        written = {node for step in steps for node in nodes_written(step)}

        def role(node: TensorNode) -> Role:
            if node in given:
                return Role.INPUT
            if node not in written:
                return Role.CONSTANT
            return Role.OUTPUT if node in computed else Role.STATE

        return {node: role(node) for node in self._infos}

    def _initial_cells(
        self, roles: Mapping[TensorNode, Role], called: Mapping[TensorNode, str]
    ) -> dict[str, bytes]:
        """Return the memory, margins included, of constants and of the nodes that functions read
        before they write them, by name. States without an entry begin with zeros.
        """
        usages = [each.linkable.usage for each in self._functions.values()]
        read = set().union(*(each.reads_first for each in usages))
        found: dict[str, bytes] = {}
        for node, role in roles.items():
            if role is Role.INPUT or not (role is Role.CONSTANT or node in read):
                continue
            cells = self._cells(node)
            if role is Role.CONSTANT or any(cells):
                found[called[node]] = cells
        return found

    def _cells(self, node: TensorNode) -> bytes:
        """Return the memory of a node; zeros if it has no value and needs none."""
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
        return bytes(self._infos[node].nbytes)

    def _plan(self, routine: ExportedRoutine) -> Plan:
        built = routine.linkable.built
        name = built.plan.name
        if built.program.usage.merged:
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
            _check_step(step, name, routine.linkable.code)
        return plan

    def _function(
        self,
        name: str,
        tensors: Mapping[TensorNode, ExportedTensor],
        given: Mapping[TensorNode, None],
        computed: Mapping[TensorNode, None],
        returned: Mapping[TensorNode, str],
        indices: Mapping[StaticIndex, str],
        start: int,
    ) -> ExportedFunction:
        """Return a function.

        Args:
            returned: The names of outputs that are inputs, too.
            start: The first byte behind the tensors.
        """
        routine, plan = self._functions[name], self._plans[name]
        dialect = self.dialect
        for tensor in (*given, *computed):
            _check_argument(tensor, plan)
        rendered = [render_step(step, plan.nodes, dialect) for step in plan.kernels]
        source = RoutineSource.of(plan, rendered, dialect)
        arena = memory_plan(plan)
        scratch = {node: start + place.offset for node, place in arena.places.items()}
        private = start + aligned(arena.nbytes)
        writes = routine.linkable.usage.writes
        inputs = tuple(tensors[node] for node in given if node in plan.params)
        outputs = tuple(
            replace(tensors[node], name=returned.get(node, tensors[node].name))
            for node in computed
            if node in plan.params and node in writes
        )
        stated = {size for each in (*inputs, *outputs) for size in each.sizes}
        arguments = tuple(
            self._index(index, routine, indices[index])
            for index in routine.linkable.bindings
            if index in plan.indices or indices[index] in stated
        )
        limits = routine.limits
        return ExportedFunction(name, source, inputs, outputs, arguments, limits, scratch, private)

    def _index(self, index: StaticIndex, routine: ExportedRoutine, name: str) -> IndexArgument:
        accepted = routine.accepted[index.name]
        least, most = (LEAST, MOST) if accepted is None else (accepted.start, accepted.stop - 1)
        for limit in routine.limits:  # their sums stay in the range of integers
            if any(each is index for _, each in limit.terms):
                largest = MOST // sum(abs(factor) for factor, _ in limit.terms)
                least, most = max(least, -largest), min(most, largest)
        return IndexArgument(index, name, least, most)

    def _inputs(self) -> dict[TensorNode, None]:
        """Return the placeholders, in the order of their creation."""
        linkables = [each.linkable for each in self._functions.values()]
        return {
            node: None
            for node in self._in_order()
            if any(
                node in each.kept
                and each.kept[node].reason is Reason.HOST_DATA
                and node not in each.code.literals
                for each in linkables
            )
        }

    def _outputs(self) -> dict[TensorNode, None]:
        """Return the nodes that each call computes anew, without gradients, oldest first."""
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

    def _stated(self, arguments: Arguments, argument: str) -> dict[TensorNode, None]:
        """Return the nodes of tensors that a user names."""
        tensors = [*(arguments.values() if isinstance(arguments, Mapping) else arguments)]
        nodes = Counter(each.node for each in tensors)
        writes = set().union(*(each.linkable.usage.writes for each in self._functions.values()))
        for each in tensors:
            if 0 in each.shape.dims:
                raise UsageError(
                    "A tensor without cells has no memory, and so is no argument in C.",
                    found=f"{each.describe()}, of shape {each.shape}, in {argument}=",
                    fix=f"leave it out of {argument}=",
                )
            if each.node not in self._infos:
                raise UsageError(
                    f"{argument}= names tensors that the routines keep in memory.",
                    found=each.describe(),
                    fix="compile the routines with keep=[...]; they keep "
                    + ", ".join(node.name for node in self._infos),
                )
            if nodes[each.node] > 1:
                raise UsageError(
                    f"{argument}= names each tensor once.", found=f"{each.describe()} again"
                )
            if argument == "outputs" and each.node not in writes:
                raise UsageError(
                    "outputs= names tensors that some routine writes.", found=each.describe()
                )
        return {each.node: None for each in tensors}

    def _remarks(self, library: Sequence[str]) -> Iterator[str]:
        target = self.target
        size = target.vector_bytes
        vectors = f"vectors of {size} bytes" if size else "plain loops"
        yield f"Generated for {target.description or target}: {vectors}."
        if target.has_fma:
            yield (
                "It uses fused multiply-add: without an instruction for it (-mfma, or "
                "-march=native), the compiler calls the function fmaf, with the same results."
            )
        if library:
            yield (
                f"It calls {', '.join(library)} of the C library, which rounds the last bits of "
                "float64 in its own way: link with -lm."
            )
        else:
            yield "Freestanding (-ffreestanding), it calls memcpy and memset alone."


_ELEMENTARY = {"fmod"} | {
    row.value.function for rows in (UnaryOp, BinaryOp, TernaryOp) for row in rows
}
_LIBRARY_CALL = re.compile(rf"\b((?:{'|'.join(sorted(each for each in _ELEMENTARY if each))})f?)\(")


def _library_functions(text: str) -> tuple[str, ...]:
    """Return the functions of the C library that code calls and that no instruction computes."""
    code = re.sub(r"//.*|/\*(?s:.*?)\*/", "", text)
    return tuple(sorted({*_LIBRARY_CALL.findall(code)}.difference(INSTRUCTION_FUNCTIONS)))


def _room(launch: RunStep) -> int:
    """Return the bytes of the private buffers of a thread in a launch."""
    return sum(map(aligned, launch.text.private)) if isinstance(launch, Launch) else 0


def _sizes(info: NodeInfo, indices: Mapping[StaticIndex, str]) -> tuple[int | str, ...]:
    """Return the cells along each axis, or the argument that states them."""
    extents = info.extents or (None,) * len(info.dims)
    return tuple(
        dim if extent is None else indices[extent]
        for dim, extent in zip(info.dims, extents, strict=True)
    )


def _stored_as(info: NodeInfo) -> tuple[DType, tuple[int, ...]]:
    """Return the format and the extents of a node's memory in a file."""
    if info.dtype is uint4x32:
        return uint32, (*info.buffer_dims, 4)
    return (uint8 if info.dtype.is_packed else info.dtype), info.memory_dims


def _without_tiles(target: Target) -> Target:
    """Return a target without the units that need a permission of the operating system."""
    units = tuple(each for each in target.matrix_units if not isinstance(each, TileProduct))
    return target if units == target.matrix_units else replace(target, matrix_units=units)


def _check_step(step: LeafStep, name: str, code: ResolvedCode) -> None:
    if not isinstance(step, HostCall):
        return
    op = step.call.op
    if not isinstance(op, NativeOp) or op.native("c") is None:
        raise CodegenError(
            "Exported code is C: an operation in Python is none.",
            found=f"{op.name}, which computes {', '.join(map(code.describe, step.call.outputs))}",
            where=f"exporting {name}",
            fix='give the operation native code for the language "c"',
        )


def _check_argument(node: TensorNode, plan: Plan) -> None:
    """Check that the cells of an argument can be copied as bytes."""
    info = plan.nodes.get(node)
    if info is None or not info.dtype.is_packed:
        return
    if info.extents or info.dims != info.buffer_dims:
        raise CodegenError(
            "An argument with two cells in a byte has neither margins nor an extent at run time.",
            found=f"{node.name} in {info.dtype}",
            where=f"exporting {plan.name}",
            fix="compute it from a tensor in int8",
        )


class _Names:
    """Identifiers of C, each given once."""

    def __init__(self, prefix: str) -> None:
        self._given = {*_RESERVED, *INSTRUCTION_FUNCTIONS, prefix.lower()}
        self._prefix = f"{prefix.lower()}_"

    def unique(self, name: str) -> str:
        """Return a name, with a number behind it if another one differs in case at most; in place
        of a macro in capitals, small letters.
        """
        wanted = re.sub(r"\W", "_", name, flags=re.ASCII)
        if self._is_macro(wanted):
            wanted = wanted.lower()
        found, number = wanted, 1
        while not self._given.isdisjoint(spellings := {found.lower(), argument(found.lower())}):
            number += 1
            found = f"{wanted}_{number}"
        self._given |= spellings
        return found

    def _is_macro(self, name: str) -> bool:
        is_own = name.isupper() and name.lower().startswith(self._prefix)
        return is_own or _MACROS.fullmatch(name) is not None


def _own_name(name: str, names: _Names) -> str:
    """Return the name that a user gives to an argument.

    Raises:
        UsageError: if it is no identifier, or another argument or a local variable has it.
    """
    _check_identifier(name)
    free = names.unique(name)
    if free != name:
        raise UsageError(
            "The arguments of exported functions have different names, also apart from case, and "
            "none of a function of the processor.",
            found=repr(name),
            fix=f'another name, such as "{free}"',
        )
    return name


def _check_identifier(name: str) -> None:
    is_identifier = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) is not None
    if not is_identifier or name in _RESERVED or _MACROS.fullmatch(name):
        raise UsageError(
            "The names of an exported file, of its functions and arguments are identifiers of C "
            "and C++, and not of macros in their headers.",
            found=repr(name),
            fix='ctx.export({"predict": routine}, "model.c")',
        )
