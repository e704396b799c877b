"""Execution times of the kernels of a routine.

The routine runs on copies of its memory, one kernel after the other as in a call, so that the
contents of the caches are as in a call; the clock is read between kernels. The user's tensors do
not change.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.protocols import Buffer
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.files.new_files import write_text
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.live_ranges import live_bytes
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target

_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The execution time of one step of a routine."""

    position: int
    """Its number in the order of execution, from 1."""
    title: str
    seconds: float
    """The least time of all rounds: by the clock of the device if its backend reads it, else with
    the call from Python, some tenths of a microsecond. For a step that repeats, the first iteration
    is measured, and multiplied by their number.
    """
    schedule: str = ""
    """Its schedule as text; empty for plain loops."""
    nbytes: int = 0
    """The bytes of the memory that it reads or writes."""
    arena_bytes: int = 0
    """The bytes of the routine's own memory that hold values during the step."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The execution times of the kernels of a routine; printing it shows a table."""

    name: str
    """The routine's name."""
    kernels: tuple[KernelTime, ...]
    """Its steps in the order of execution."""
    rounds: int
    """The number of measurements of each."""

    @property
    def seconds(self) -> float:
        """The least times of all kernels together."""
        return sum(kernel.seconds for kernel in self.kernels)

    def __str__(self) -> str:
        whole = self.seconds or 1.0
        lines = [
            f"routine {self.name}: {len(self.kernels)} kernels, {duration(self.seconds)} "
            f"(least of {self.rounds} rounds)"
        ]
        for kernel in self.kernels:
            share = f"{100 * kernel.seconds / whole:.1f} %"
            title = kernel.title or "untitled"
            lines.append(
                f"{kernel.position:>4}. {duration(kernel.seconds):>10} {share:>7}  {title}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def trace(self) -> str:
        """Return the profile as JSON in the format of Chrome's traces, which `chrome://tracing` and
        Perfetto show.

        The steps stand one after the other, each with its least time; below them is the memory of
        the routine's own that holds values.
        """
        events: list[dict[str, object]] = [
            {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": self.name}}
        ]
        start = 0.0
        for kernel in self.kernels:
            microseconds = kernel.seconds * 1e6
            facts = {"title": kernel.title, "schedule": kernel.schedule, "bytes": kernel.nbytes}
            event = {"name": kernel.title or "untitled", "cat": "kernel", "args": facts}
            events.append(
                {"ph": "X", "pid": 0, "tid": 0, "ts": start, "dur": microseconds, **event}
            )
            memory = {"bytes": kernel.arena_bytes}
            events.append({"ph": "C", "pid": 0, "ts": start, "name": "memory", "args": memory})
            start += microseconds
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file, such as `step.json`.

        Raises:
            UsageError: if the file cannot be written.
        """
        text = self.trace()
        try:
            write_text(path, text + "\n")
        except (OSError, ValueError) as error:
            raise UsageError.at_caller(
                "A trace is saved as a file of the user.",
                found=str(error),
                fix="choose another folder",
            ) from error


def duration(seconds: float) -> str:
    """Return a time for people, with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


_DAY = 24 * 60 * 60


def check_seconds(seconds: float) -> None:
    """Raise UsageError unless a time is from 0 seconds to a day."""
    if not 0 <= seconds <= _DAY:
        raise UsageError.at_caller(
            "A profile takes a time from 0 seconds to a day.", found=f"seconds={seconds}"
        )


def profile(
    plan: kernel_ir.Plan,
    backend: Backend,
    target: Target,
    values: Sequence[int],
    memory: Mapping[TensorNode, Buffer],
    seconds: float,
) -> Profile:
    """Return the least time of every kernel of a routine.

    Args:
        values: The values of the plan's static indices.
        memory: The memory of the plan's parameters. It is copied.
        seconds: The time to spend; a few rounds are always made.

    Raises:
        UsageError: if the time is no number from 0 to a day.
    """
    check_seconds(seconds)
    buffers = {
        node: backend.allocate(plan.nodes[node], target) for node in (*plan.params, *plan.own_nodes)
    }
    for node, buffer in memory.items():
        backend.transfer(buffers[node], buffer).wait()
    arenas = live_bytes(plan)
    timed = [
        timed_step(plan, each, (backend, target), buffers, values, arena)
        for each, arena in zip(counted_steps(plan), arenas, strict=True)
    ]
    return measured(plan.name, timed, seconds)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step to measure."""

    time: KernelTime
    """The facts of the result; the seconds are still 0."""
    run: Callable[[], float]
    """Runs it, and returns the seconds that it took."""
    count: int = 1
    """The number of times that it runs."""


def timed_step(
    plan: kernel_ir.Plan,
    counted: CountedStep,
    device: tuple[Backend, Target],
    buffers: Mapping[TensorNode, Buffer],
    values: Sequence[int],
    arena: int = 0,
) -> TimedStep:
    """Return a step of a plan, to be measured on memory of a device.

    Args:
        buffers: The memory of all nodes that the step mentions.
        values: The values of the first of its static indices; those of repetitions are 0.
        arena: The bytes of the routine's own memory that hold values during the step.
    """
    backend, target = device
    alone, step = isolate_step(plan, counted), counted.step
    executable = backend.compile(backend.generate(alone, target), target)
    launch = backend.link(executable, {node: buffers[node] for node in alone.params})
    given = (*values, *(0 for _ in counted.indices[len(values) :]))

    def run() -> float:
        return backend.time_launch(launch, given, target)

    schedule = schedule_text(step.schedule) if isinstance(step, kernel_ir.Kernel) else ""
    nbytes = sum(plan.nodes[node].nbytes for node in set(kernel_ir.nodes_of_step(step)))
    return TimedStep(KernelTime(0, step.title, 0.0, schedule, nbytes, arena), run, counted.count)


def counted_steps(plan: kernel_ir.Plan) -> tuple[CountedStep, ...]:
    """Return the steps of a plan that contain no others, with the number of times that they run."""
    return tuple(_counted(plan.steps, 1, plan.indices))


def measured(name: str, steps: Sequence[TimedStep], seconds: float) -> Profile:
    """Return the least time of each of some steps, which run in turn.

    Args:
        seconds: The time to spend; a few rounds are always made.
    """
    least = [float("inf")] * len(steps)
    rounds = 0
    start = time.perf_counter()
    while rounds < _LEAST_ROUNDS or time.perf_counter() - start < seconds:
        for number, each in enumerate(steps):
            least[number] = min(least[number], each.run())
        rounds += 1
    found = zip(steps, least, strict=True)
    times = (
        replace(each.time, position=position, seconds=once * each.count)
        for position, (each, once) in enumerate(found, start=1)
    )
    return Profile(name, tuple(times), rounds)


@dataclass(frozen=True, slots=True)
class CountedStep:
    """A step, the number of times that it runs, and the static indices at that place."""

    step: kernel_ir.LeafStep
    count: int
    indices: tuple[StaticIndex, ...]


def _counted(
    steps: Sequence[kernel_ir.Step], count: int, indices: tuple[StaticIndex, ...]
) -> Iterator[CountedStep]:
    for step in steps:
        if isinstance(step, kernel_ir.RepeatedSteps):
            inside = (*indices, step.index)
            yield from _counted(step.steps, count * step.count, inside)
        else:
            yield CountedStep(step, count, indices)


def isolate_step(plan: kernel_ir.Plan, counted: CountedStep) -> kernel_ir.Plan:
    """Return a plan of one step, all memory of which comes from the context, and so do the indices
    of the repetitions around it.
    """
    params, steps = kernel_ir.nodes_of_step(counted.step), (counted.step,)
    return replace(plan, steps=steps, params=params, scratch=(), indices=counted.indices)
