"""A compiled routine, and its link to memory: every address is resolved before the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ocannl_core.backend_api import (
    Buffer,
    CallExternal,
    IdentityMap,
    Launcher,
    LinkError,
    NodeInfo,
    Target,
    TensorNode,
    dataclass,
    interior,
    make_exclusive,
    memory_plan,
    settings,
)
from ocannl_core.backend_api.loops import CheckPositions, check_positions
from ocannl_cpu_c import calling
from ocannl_cpu_c.bindings import ffi
from ocannl_cpu_c.loaded_objects import LoadedKernel
from ocannl_cpu_c.loader import load, pool, runtime
from ocannl_cpu_c.memory import Array, CBuffer, address, arena, raw
from ocannl_cpu_c.partition import partition, private_offsets
from ocannl_cpu_c.source import CSource, Launch

Buffers = Mapping[TensorNode, Buffer]
Part = Callable[[Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class CExecutable:
    """The compiled code of one routine.

    Attributes:
        source: The code.
        kernels: Its kernels by symbol.
        target: The device that runs it.
        threads: The number of threads that may share the work of one kernel.
    """

    source: CSource
    kernels: Mapping[str, LoadedKernel]
    target: Target
    threads: int

    @classmethod
    def load(cls, source: CSource, target: Target) -> CExecutable:
        """Return the routine with its kernels loaded.

        Raises:
            CompileError: if there is no compiler, or it rejects the code.
        """
        threads = settings.current().threads or target.cores
        return cls(source, load(source.kernels, and_runtime=True), target, threads)

    def link(self, buffers: Buffers, merge_buffers: Buffers | None = None) -> Launcher:
        """Return a callable that runs the routine over these buffers.

        Args:
            buffers: The memory of every parameter.
            merge_buffers: The merge buffers of the nodes of which the routine reads one.

        Raises:
            LinkError: if a buffer is missing, belongs to another backend, or does not fit its node.
        """
        return _Linker(self, buffers, merge_buffers or {}).launcher()


class _Linker:
    """The memory of one link, and the tables that point into it."""

    def __init__(self, executable: CExecutable, buffers: Buffers, merges: Buffers) -> None:
        plan = executable.source.plan
        self._executable = executable
        self._nodes = plan.nodes
        self._name = plan.name
        self._merges = merges
        self._arrays = {node: self._array(node, buffers, "buffer") for node in plan.params}
        self._arrays |= arena(memory_plan(plan), plan.nodes)
        self._count = len(plan.indices)
        self._cells = ffi.new("int64_t[]", self._count + 1)  # the last one is 1 during a call
        self._index_cells = {index: self._cells + k for k, index in enumerate(plan.indices)}
        # C holds addresses of all these; the launcher keeps them alive
        self._kept: list[object] = [self._arrays, self._cells]

    def launcher(self) -> Launcher:
        count, parts = self._count, self._parts()
        if len(parts) == 1 and isinstance(self._executable.source.steps[0], Launch):
            return parts[0]

        def launch(values: Sequence[int]) -> None:
            if len(values) != count:
                calling.refuse(count, values)
            for part in parts:
                part(values)

        return make_exclusive(launch, self._name)

    def _parts(self) -> list[Part]:
        """Return calls of kernels and calls into Python, in turn."""
        parts: list[Part] = []
        pending: list[Launch] = []
        for step in self._executable.source.steps:
            if isinstance(step, Launch):
                pending.append(step)
                continue
            if pending:
                parts.append(self._dispatch(pending))
                pending = []
            parts.append(self._external(step))
        if pending:
            parts.append(self._dispatch(pending))
        return parts

    def _dispatch(self, launches: Sequence[Launch]) -> Part:
        """Return the one call that runs several kernels; it keeps their memory alive."""
        steps = ffi.new("struct step[]", len(launches))
        flags = IdentityMap[Launch, Any]()
        for launch in launches:
            if launch.checks:
                flags[launch] = self._keep(ffi.new("int64_t *"))
        room = 0
        for step, launch in zip(steps, launches, strict=True):
            tables = self._tables(launch, flags.find(launch))
            step.kernel = self._keep(self._executable.kernels[launch.kernel]).address
            step.args, step.parts = tables, len(tables)
            step.work = launch.shares.work if launch.shares is not None else 0
            *offsets, end = private_offsets(launch.private)
            step.private_count, step.private_at = len(offsets), self._given(launch)
            step.offsets = self._keep(ffi.new("int64_t[]", offsets))
            if launch.checks:
                step.failed = flags[launch]
            room = max(room, end)
        routine = ffi.new("struct routine *")
        routine.steps, routine.count = steps, len(launches)
        routine.indices, routine.index_count = self._cells, self._count
        is_shared = any(step.parts > 1 for step in steps)
        threads = self._executable.threads if is_shared else 1
        if is_shared:
            routine.pool = pool(self._executable.target.device, threads)
        memory = self._keep(raw(threads * room))
        routine.memory, routine.room = ffi.cast("char *", address(memory)), room
        self._kept.append(steps)
        checked = [(launch.checks, flags[launch]) for launch in launches if launch.checks]
        return calling.launcher(
            runtime(), routine, self._name, partial(self._raise_failure, checked), tuple(self._kept)
        )

    def _raise_failure(self, checked: Sequence[tuple[Sequence[CheckPositions], Any]]) -> None:
        """Raise the error of a check that set its flag, and clear the flag."""
        for checks, flag in checked:
            if flag[0]:
                flag[0] = 0
                for check in checks:
                    node = check.node
                    check_positions(check, interior(self._arrays[node], self._nodes[node]))
        raise LinkError(
            "Positions stay the same while a routine runs.",
            found="a check that failed, and positions that are in bounds now",
            where=f"running {self._name}",
            fix="let nothing else write them meanwhile",
        )

    def _tables(self, launch: Launch, flag: Any) -> Any:
        """Return the arguments of a kernel: a table for each part of its iterations."""
        pointers = [ffi.cast("void *", address(self._arrays[node])) for node in launch.arguments]
        for node in launch.merges:
            array = self._array(node, self._merges, "merge buffer")
            self._kept.append(array)
            pointers.append(ffi.cast("void *", address(array)))
        pointers += [self._index_cells[index] for index in launch.indices]
        pointers += [ffi.NULL for _ in launch.private]  # filled in by the thread that runs a part
        dealt = launch.shares
        bounds = [()] if dealt is None else partition(dealt, self._executable.threads)
        tables = []
        for each in bounds:
            cells = self._keep(ffi.new("int64_t[]", each or (0,)))
            limits = [cells + number for number in range(len(each))]
            last = [] if flag is None else [flag]
            tables.append(self._keep(ffi.new("void *[]", [*pointers, *limits, *last])))
        return self._keep(ffi.new("void **[]", tables))

    def _given(self, launch: Launch) -> int:
        """Return the number of arguments of a kernel before those that depend on the thread."""
        return len(launch.arguments) + len(launch.merges) + len(launch.indices)

    def _keep(self, thing: Any) -> Any:
        """Return an object after extending its life to that of the launcher."""
        self._kept.append(thing)
        return thing

    def _external(self, call: CallExternal) -> Part:
        inputs = [interior(self._arrays[node], self._nodes[node]) for node in call.inputs]
        outputs = [interior(self._arrays[node], self._nodes[node]) for node in call.outputs]
        return lambda values: call.op.perform(inputs, outputs)

    def _array(self, node: TensorNode, buffers: Buffers, what: str) -> Array:
        buffer = buffers.get(node)
        if not isinstance(buffer, CBuffer):
            raise LinkError(
                f"Linking gives a {what} of this backend for every node that needs one.",
                found="none" if buffer is None else f"one of {buffer.target}",
                where=repr(node),
                fix=f"allocate its {what} before linking",
            )
        _check_fit(node, buffer.info, self._nodes[node], what)
        return buffer.array


def _check_fit(node: TensorNode, given: NodeInfo, needed: NodeInfo, what: str) -> None:
    if (given.dtype, given.buffer_dims) != (needed.dtype, needed.buffer_dims):
        raise LinkError(
            f"A {what} has the number format and the extents of its node.",
            found=f"{given.dtype} {list(given.buffer_dims)} for "
            f"{needed.dtype} {list(needed.buffer_dims)}",
            where=repr(node),
        )
