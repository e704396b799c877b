"""A compiled routine, and its link to memory: every address is resolved before the first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, assert_never

from ocannl_core.backend_api import (
    Buffer,
    CallExternal,
    IdentityMap,
    Launcher,
    RepeatedSteps,
    StaticIndex,
    Target,
    TensorNode,
    dataclass,
    interior,
    leaf_steps,
    linked_buffer,
    make_exclusive,
    memory_plan,
    settings,
)
from ocannl_core.backend_api.launches import Launch, RoutineSource, RunStep
from ocannl_cpu_c import calling
from ocannl_cpu_c.bindings import ffi
from ocannl_cpu_c.loaded_objects import LoadedKernel
from ocannl_cpu_c.loader import load, pool, runtime
from ocannl_cpu_c.memory import Array, CBuffer, address, arena, raw
from ocannl_cpu_c.partition import partition, private_offsets

if TYPE_CHECKING:
    from ocannl_core.backend_api.loops import CheckPositions

Buffers = Mapping[TensorNode, Buffer]
Part = Callable[[Sequence[int]], None]
_Step = RunStep | RepeatedSteps[RunStep]


@dataclass(frozen=True, slots=True)
class CExecutable:
    """The compiled code of one routine.

    Attributes:
        source: The code.
        kernels: Its kernels by symbol.
        target: The device that runs it.
        threads: The number of threads that may share the work of one kernel.
    """

    source: RoutineSource
    kernels: Mapping[str, LoadedKernel]
    target: Target
    threads: int

    @classmethod
    def load(cls, source: RoutineSource, target: Target) -> CExecutable:
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
        (launch,) = self.link_parts(buffers, merge_buffers, [len(self.source.steps)])
        return launch

    def link_parts(
        self, buffers: Buffers, merge_buffers: Buffers | None, ends: Sequence[int]
    ) -> Sequence[Launcher]:
        """Return a callable for each of several parts of the routine, over common memory.

        Args:
            buffers: The memory of every parameter.
            merge_buffers: As for `link`.
            ends: The number of steps of the plan before the end of each part, ascending.

        Raises:
            LinkError: as `link`.
        """
        linker = _Linker(self, buffers, merge_buffers or {})
        steps = self.source.steps
        return [linker.launcher(steps[start:end]) for start, end in pairwise((0, *ends))]


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
        repeated = list(_repeated_indices(executable.source.steps))
        # the indices of the routine, a cell that is set during a call, the indices of repetitions
        self._cells = ffi.new("int64_t[]", self._count + 1 + len(repeated))
        self._index_cells = {index: self._cells + k for k, index in enumerate(plan.indices)}
        for k, index in enumerate(repeated, self._count + 1):
            self._index_cells[index] = self._cells + k
        # C holds addresses of all these; the launcher keeps them alive
        self._kept: list[object] = [self._arrays, self._cells]

    def launcher(self, steps: Sequence[_Step]) -> Launcher:
        """Return a callable that runs consecutive steps of the routine."""
        count, parts = self._count, self._parts(steps)
        if steps and not any(map(_calls_python, steps)):
            (part,) = parts
            return part

        def launch(values: Sequence[int]) -> None:
            if len(values) != count:
                calling.refuse(count, values)
            for part in parts:
                part(values)

        return make_exclusive(launch, self._name)

    def _parts(self, steps: Sequence[_Step]) -> list[Part]:
        """Return calls of kernels and calls into Python, in turn."""
        parts: list[Part] = []
        pending: list[_Native] = []
        for step in steps:
            if not _calls_python(step):
                pending += self._native(step)
                continue
            if pending:
                parts.append(self._dispatch(pending))
                pending = []
            match step:
                case CallExternal():
                    parts.append(self._external(step))
                case RepeatedSteps():
                    parts.append(self._repetition(step))
                case Launch():
                    raise AssertionError("a launch calls C")
                case _:
                    assert_never(step)
        if pending:
            parts.append(self._dispatch(pending))
        return parts

    def _native(self, step: _Step) -> Iterator[_Native]:
        """Yield the launches of a step, for a repetition between two jumps."""
        match step:
            case Launch():
                yield step
            case RepeatedSteps(count=count, is_reversed=is_reversed):
                inside = [each for one in step.steps for each in self._native(one)]
                index, length = self._index_cells[step.index], len(inside) + 1
                start, end, by = (count - 1, -1, -1) if is_reversed else (0, count, 1)
                yield _Jump(index, start, end, by, length)
                yield from inside
                yield _Jump(index, start, end, by, -length)
            case CallExternal():
                raise AssertionError("a call of Python is no launch")
            case _:
                assert_never(step)

    def _repetition(self, repeated: RepeatedSteps[RunStep]) -> Part:
        """Return a loop in Python around calls of which some are calls of Python."""
        cell, parts = self._index_cells[repeated.index], self._parts(repeated.steps)
        order = repeated.iterations

        def run(values: Sequence[int]) -> None:
            for position in order:
                cell[0] = position
                for part in parts:
                    part(values)

        return run

    def _dispatch(self, launches: Sequence[_Native]) -> Part:
        """Return the one call that runs several kernels; it keeps their memory alive."""
        steps = ffi.new("struct step[]", len(launches))
        flags = IdentityMap[Launch, Any]()
        for launch in launches:
            if isinstance(launch, Launch) and launch.checks:
                flags[launch] = self._keep(ffi.new("int64_t *"))
        room = 0
        for step, launch in zip(steps, launches, strict=True):
            if isinstance(launch, _Jump):
                step.index, step.start, step.end = launch.index, launch.start, launch.end
                step.by, step.jump = launch.by, launch.length
                continue
            tables = self._tables(launch, flags.find(launch))
            step.kernel = self._keep(self._executable.kernels[launch.text.symbol]).address
            step.args, step.parts = tables, len(tables)
            step.work = launch.shares.work if launch.shares is not None else 0
            *offsets, end = private_offsets(launch.text.private)
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
        checked = [
            (each.checks, flags[each])
            for each in launches
            if isinstance(each, Launch) and each.checks
        ]
        return calling.launcher(
            runtime(), routine, self._name, partial(self._raise_failure, checked), tuple(self._kept)
        )

    def _raise_failure(self, checked: Sequence[tuple[Sequence[CheckPositions], Any]]) -> None:
        """Raise the error of a check that set its flag, and clear the flags."""
        from ocannl_core.backend_api.loops import raise_failed_check

        failed = [check for checks, flag in checked if flag[0] for check in checks]
        for _, flag in checked:
            flag[0] = 0
        raise_failed_check(
            failed,
            lambda node: interior(self._arrays[node], self._nodes[node]),
            lambda extent: self._index_cells[extent][0],
            self._name,
        )

    def _tables(self, launch: Launch, flag: Any) -> Any:
        """Return the arguments of a kernel: a table for each part of its iterations."""
        pointers = [ffi.cast("void *", address(self._arrays[node])) for node in launch.arguments]
        for node in launch.merges:
            array = self._array(node, self._merges, "merge buffer")
            self._kept.append(array)
            pointers.append(ffi.cast("void *", address(array)))
        pointers += [self._index_cells[index] for index in launch.indices]
        pointers += [
            ffi.NULL for _ in launch.text.private
        ]  # filled in by the thread that runs a part
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
        """Return the number of arguments of a kernel that do not depend on the thread; they come
        first.
        """
        return len(launch.arguments) + len(launch.merges) + len(launch.indices)

    def _keep(self, thing: Any) -> Any:
        """Return an object after making it live as long as the launcher."""
        self._kept.append(thing)
        return thing

    def _external(self, call: CallExternal) -> Part:
        inputs = [interior(self._arrays[node], self._nodes[node]) for node in call.inputs]
        outputs = [interior(self._arrays[node], self._nodes[node]) for node in call.outputs]
        return lambda values: call.op.perform(inputs, outputs)

    def _array(self, node: TensorNode, buffers: Buffers, what: str) -> Array:
        return linked_buffer(buffers, node, self._nodes[node], CBuffer, what).array


@dataclass(frozen=True, slots=True)
class _Jump:
    """The start or the end of a repetition among launches.

    Attributes:
        index: The address of its index.
        start: The first value of the index.
        end: The value after the last one.
        by: The difference of two consecutive values.
        length: The distance of the other jump, negative at the end.
    """

    index: Any
    start: int
    end: int
    by: int
    length: int


_Native = Launch | _Jump


def _calls_python(step: _Step) -> bool:
    return any(isinstance(each, CallExternal) for each in leaf_steps((step,)))


def _repeated_indices(steps: Sequence[_Step]) -> Iterator[StaticIndex]:
    """Yield the indices of repetitions."""
    for step in steps:
        if isinstance(step, RepeatedSteps):
            yield step.index
            yield from _repeated_indices(step.steps)
