"""Explanations for people: why a shape is as it is, and where a routine keeps what.

`explain` gives a value with everything in it; printing the value gives the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from ocannl_core.compile.profile import duration
from ocannl_core.dtypes import DType
from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.kernel_passes.parallelise import parallel_axes
from ocannl_core.kernels.memory_plan import MemoryPlan
from ocannl_core.kernels.nodes import HostCall, TuningResult
from ocannl_core.kernels.transforms import schedule_text
from ocannl_core.node import Margin, MemoryMode
from ocannl_core.origin import Origin, caller_location
from ocannl_core.runtime.routine import Routine
from ocannl_core.shape.explain import AxisReport, Certainty, RowReport
from ocannl_core.shape.terms import Shape
from ocannl_core.tensor.tensor import Tensor

_SHOWN_CONSTRAINTS = 3
"""How many of the constraints behind a decision the text shows; the value has all of them."""


@dataclass(frozen=True, slots=True)
class TensorExplanation:
    """Why a tensor has its shape.

    Attributes:
        name: The tensor's label.
        origin: What made the tensor.
        shape: The shape as far as it is known.
        rows: What decided each row and axis, in the order batch, input, output.
    """

    name: str
    origin: Origin
    shape: Shape
    rows: tuple[RowReport, ...]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.shape}", f"  made by {self.origin}"]
        for row in self.rows:
            lines += _row_lines(row)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """Where a node's cells are.

    Attributes:
        name: The node's name.
        dtype: The number format of its cells.
        dims: Extents in buffer order, without margins.
        padding: Margins per axis; empty when there are none.
        mode: The memory mode.
        reason: Why it has this mode; empty if nothing decided.
        advice: What to do to have it otherwise; empty likewise.
        nbytes: The memory it takes; 0 for nodes that are never stored.
    """

    name: str
    dtype: DType
    dims: tuple[int, ...]
    padding: tuple[Margin, ...]
    mode: MemoryMode
    reason: str
    advice: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class KernelExplanation:
    """One step of a routine.

    Attributes:
        title: What it computes.
        arguments: Names of the nodes whose memory it is given.
        is_external: True for a call out of the loop language.
        parallel: The axes of which several threads may each take a part, and how many iterations
            or blocks there are of each; empty if it runs on one thread.
        schedule: How its loops were rearranged, in the notation of schedules; empty if they run as
            they were lowered.
        measured: What a search on this machine found, with times; None if there was none.
    """

    title: str
    arguments: tuple[str, ...]
    is_external: bool = False
    parallel: tuple[tuple[str, int], ...] = ()
    schedule: str = ""
    measured: TuningResult | None = None

    @property
    def is_parallel(self) -> bool:
        """True if several threads may share it."""
        return bool(self.parallel)


@dataclass(frozen=True, slots=True)
class RoutineExplanation:
    """What a routine consists of.

    Attributes:
        name: The routine's name.
        nodes: Every node that it mentions, oldest first.
        kernels: Its steps in the order of execution.
        memory: Where its own nodes are, on backends that keep them in one piece of memory.
    """

    name: str
    nodes: tuple[NodeExplanation, ...]
    kernels: tuple[KernelExplanation, ...]
    memory: MemoryPlan

    @property
    def nbytes(self) -> int:
        """The memory of all nodes together, if none share any."""
        return sum(node.nbytes for node in self.nodes)

    def __str__(self) -> str:
        lines = [f"routine {self.name}: {len(self.kernels)} kernels, {self.nbytes} bytes"]
        lines += ["nodes", *_table([_node_cells(node) for node in self.nodes])]
        if self.memory.places:
            lines.append(str(self.memory))
        lines += ["kernels"]
        for position, kernel in enumerate(self.kernels, start=1):
            what = "external call " if kernel.is_external else ""
            axes = " x ".join(f"{name} {count}" for name, count in kernel.parallel)
            threads = f" [parallel: {axes}]" if axes else ""
            lines.append(f"  {position}. {what}{kernel.title or 'untitled'}{threads}")
            if kernel.schedule:
                lines.append(f"     schedule: {kernel.schedule}")
            if kernel.measured is not None:
                lines.append(f"     {_measured_text(kernel.measured)}")
        return "\n".join(lines)


_PASSING = "kernels need no more than a row of it at a time, or compute it where they read it"

Explanation = TensorExplanation | RoutineExplanation


@overload
def explain(subject: Tensor) -> TensorExplanation: ...


@overload
def explain(subject: Routine) -> RoutineExplanation: ...


def explain(subject: object) -> Explanation:
    """Returns why a tensor has its shape, or what a routine consists of; `print` shows it.

    For a tensor: which constraint of which operation and line decided each axis, what bounds an
    axis that is open, and which guesses closing made. For a routine: the memory mode, the reason
    for it and the size of every node, and the kernels. Explaining never influences inference.

    Raises:
        UsageError: if the subject is neither a tensor nor a routine.
    """
    match subject:
        case Tensor():
            return _tensor(subject)
        case Routine():
            return _routine(subject)
        case _:
            raise UsageError(
                "Tensors and routines can be explained.",
                found=type(subject).__name__,
                where=str(caller_location() or ""),
                fix="pass a tensor, or what ctx.compile(...) returned",
            )


# ----- tensors ------------------------------------------------------------------------------------


def _tensor(tensor: Tensor) -> TensorExplanation:
    # the label, not the node's name: asking for the node would make the label final
    name = "_".join(tensor.label) or f"#{tensor.id}"
    report = tensor.session.environment.explain(tensor.terms)
    return TensorExplanation(name, tensor.origin, tensor.shape, report.rows)


def _row_lines(row: RowReport) -> Iterator[str]:
    kind = row.kind.value
    number = len(row.axes)
    axes = "no axes" if number == 0 else "1 axis" if number == 1 else f"{number} axes"
    if row.certainty is Certainty.OPEN:
        axes = f"at least {axes}, {row.row}" if number else "open"
    yield f"  {kind} row: {axes}{_certainty(row)}"
    yield from _details(row)
    for axis in row.axes:
        size = "open" if axis.certainty is Certainty.OPEN else f"{axis.dim}"
        yield f"  {kind} axis {axis.axis}: {size}{_certainty(axis)}"
        yield from _details(axis)


def _certainty(report: RowReport | AxisReport) -> str:
    return "" if report.certainty is Certainty.OPEN else f", {report.certainty.value}"


def _details(report: RowReport | AxisReport) -> Iterator[str]:
    shown = report.because[:_SHOWN_CONSTRAINTS]
    for position, origin in enumerate(shown):
        yield f"    {'by' if position == 0 else 'and'} {origin}"
    if left := len(report.because) - len(shown):
        yield f"    and {left} more"
    for guess in report.guesses:
        what = "guessed in" if report.certainty is Certainty.GUESSED else "rests on a guess of"
        yield f"    {what} {guess}"
    for bound in report.bounds:
        yield f"    bound: {bound}"


# ----- routines -----------------------------------------------------------------------------------


def _routine(routine: Routine) -> RoutineExplanation:
    nodes: list[NodeExplanation] = []
    stored = {*routine.plan.params, *routine.plan.scratch}
    for node, placement in sorted(routine.placements.items(), key=lambda item: item[0].id):
        info = routine.nodes[node]
        is_passing = placement.mode is MemoryMode.LOCAL and node not in stored
        nbytes = 0 if placement.mode is MemoryMode.VIRTUAL or is_passing else info.nbytes
        why = None if is_passing else placement.reason
        sentence = "" if why is None else why.text
        nodes.append(
            NodeExplanation(
                node.name,
                info.dtype,
                info.dims,
                info.padding,
                placement.mode,
                _PASSING if is_passing else sentence,
                "" if why is None else why.advice,
                nbytes,
            )
        )
    kernels = tuple(
        KernelExplanation(step.title, (), is_external=True)
        if isinstance(step, HostCall)
        else KernelExplanation(
            step.title,
            tuple(node.name for node in step.arguments),
            parallel=parallel_axes(step),
            schedule=schedule_text(step.schedule),
            measured=step.measured,
        )
        for step in routine.plan.steps
    )
    return RoutineExplanation(routine.name, tuple(nodes), kernels, routine.memory_plan)


def _measured_text(found: TuningResult) -> str:
    """Returns what is remembered of a kernel, and whether it is used."""
    times = f"{duration(found.seconds)}, best of {found.tried}"
    if found.problem:
        return f"what is remembered is not used: {found.problem}"
    if found.schedule == found.default:
        return f"this is the default's: {times} that were measured"
    return f"this is remembered: {times}; the default's took {duration(found.default_seconds)}"


def _node_cells(node: NodeExplanation) -> tuple[str, ...]:
    dims = " x ".join(map(str, node.dims)) or "1 cell"
    if any(margin.left or margin.right for margin in node.padding):
        dims += " with margins " + ", ".join(f"{m.left}+{m.right}" for m in node.padding)
    reason = f"because {node.reason}" if node.reason else ""
    return (
        node.name,
        f"{node.dtype} {dims}",
        f"{node.nbytes} bytes" if node.nbytes else "no memory",
        node.mode.value,
        reason,
    )


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns lines with the columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
