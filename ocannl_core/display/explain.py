"""Explanations of shapes and of routines.

`explain` returns a value with all facts; printing the value prints the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from ocannl_core.backend.protocols import Source
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.base.text_tables import aligned_rows
from ocannl_core.codegen.text.routine_source import Launch, RoutineSource
from ocannl_core.compile.memory_plan import MemoryPlan
from ocannl_core.compile.parts import PartitionedSource
from ocannl_core.compile.profile import duration
from ocannl_core.compile.tuned_placements import PlacementResult
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.product_status import ProductStatus, ProductUnit, product_counts
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.node import Margin, MemoryMode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.text import axis_texts
from ocannl_core.passes.kernels.parallel_loops import parallel_axes
from ocannl_core.runtime.routine import Routine
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.solving.derivations import AxisReport, Certainty, RowReport
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import NetworkBlock
from ocannl_core.tensor.models.schemes import Scheme, scheme_of

_SHOWN_CONSTRAINTS = 3
"""The number of constraints behind a decision that the text shows; the value holds all of them."""


@dataclass(frozen=True, slots=True)
class TensorExplanation:
    """An explanation of a tensor's shape."""

    name: str
    origin: Origin
    shape: Shape
    """The shape inferred so far."""
    rows: tuple[RowReport, ...]
    """The constraints that decided each row and axis, in the order batch, input, output."""

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.shape}", f"  made by {self.origin}"]
        for row in self.rows:
            lines += _row_lines(row)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """The placement of a node's cells."""

    name: str
    dtype: DType
    """The number format of its cells."""
    dims: tuple[int, ...]
    """Extents in buffer order, without margins."""
    padding: tuple[Margin, ...]
    """Margins per axis; empty when there are none."""
    mode: MemoryMode
    reason: str
    """The reason for this mode; empty if there is none."""
    advice: str
    """A change that leads to another mode; empty if there is none."""
    nbytes: int
    """The memory it takes; 0 for nodes that are never stored."""
    extents: tuple[StaticExtent | None, ...] = ()
    """The extent at run time of each axis that has one; empty if all sizes are constant."""


@dataclass(frozen=True, slots=True)
class KernelExplanation:
    """One step of a plan.

    Attributes:
        arguments: Names of the nodes that it takes as arguments.
        is_external: True for a call out of the loop language.
        parallel: The axes that are parallel, each with its number of iterations or blocks; empty if
            the kernel runs on one thread.
        schedule: Its schedule, in the notation of schedules; empty for plain loops.
        measured: The result of tuning on this machine, with times; None without one.
        products: The products that it computes, with the units that compute them and the reasons
            why no faster ones do.
        parts: The kernels that share its launch, if there are several.
        apart: The decisions not to merge it with launches before it.
        has_plain_tiles: True if code generation has replaced vectors, or the tiles of a matrix
            unit, by plain loops: it has no form for some expression or format in them.
    """

    title: str
    arguments: tuple[str, ...]
    is_external: bool = False
    parallel: tuple[tuple[str, int], ...] = ()
    schedule: str = ""
    measured: kernel_ir.TuningResult | None = None
    products: tuple[ProductStatus, ...] = ()
    parts: tuple[kernel_ir.LaunchPart, ...] = ()
    apart: tuple[kernel_ir.KeptApart, ...] = ()
    has_plain_tiles: bool = False

    @property
    def is_parallel(self) -> bool:
        """Return True if several threads may run it."""
        return bool(self.parallel)


@dataclass(frozen=True, slots=True)
class RoutineExplanation:
    """An explanation of a routine."""

    name: str
    nodes: tuple[NodeExplanation, ...]
    """All nodes of the routine, oldest first."""
    kernels: tuple[KernelExplanation, ...]
    """Its steps in the order of execution."""
    memory: MemoryPlan
    """The memory plan of its scratch nodes, on backends that keep them in one arena."""
    measured: PlacementResult | None = None
    """The result of a search over placements here, with times; None without one."""
    unused: tuple[str, ...] = ()
    """The placements of that result that are not in force, with the reasons."""
    devices: tuple[str, ...] = ()
    """The devices of its kernels and the transfers between them, as lines in the order of
    execution; empty if all run on the context's own device.
    """

    @property
    def nbytes(self) -> int:
        """The bytes of all nodes together, as if none shared memory."""
        return sum(node.nbytes for node in self.nodes)

    @property
    def products(self) -> tuple[ProductStatus, ...]:
        """The products of all kernels."""
        return tuple(each for kernel in self.kernels for each in kernel.products)

    def __str__(self) -> str:
        lines = [f"routine {self.name}: {len(self.kernels)} kernels, {self.nbytes} bytes"]
        counts = product_counts(self.products)
        if counts:
            units = (f"{counts[unit]} by {unit.value}" for unit in ProductUnit if counts[unit])
            lines.append(f"products: {', '.join(units)}")
        lines += [
            "nodes",
            *(f"  {row}" for row in aligned_rows([_node_cells(node) for node in self.nodes])),
        ]
        if self.measured is not None:
            lines.append(_placements_text(self.measured))
            lines += [f"  {each}" for each in self.unused]
        if self.memory.places:
            lines.append(str(self.memory))
        if self.devices:
            lines += ["devices", *(f"  {each}" for each in self.devices)]
        lines += ["kernels"]
        for position, kernel in enumerate(self.kernels, start=1):
            what = "external call " if kernel.is_external else ""
            axes = " x ".join(f"{name} {count}" for name, count in kernel.parallel)
            threads = f" [parallel: {axes}]" if axes else ""
            lines.append(f"  {position}. {what}{kernel.title or 'untitled'}{threads}")
            lines += _launch_lines(kernel.parts)
            if kernel.schedule:
                lines.append(f"     schedule: {kernel.schedule}")
            if kernel.has_plain_tiles:
                lines.append("     plain loops: the renderer has no form for the vectors or tiles")
            lines += [f"     product: {each}" for each in kernel.products]
            lines += [f"     apart from the launch before: {each}" for each in kernel.apart]
            if kernel.measured is not None:
                lines.append(f"     {_measured_text(kernel.measured)}")
        return "\n".join(lines)


_PASSING = "kernels need no more than a row of it at a time, or compute it where they read it"

Explanation = TensorExplanation | RoutineExplanation | Scheme


@overload
def explain(subject: Tensor) -> TensorExplanation: ...


@overload
def explain(subject: NetworkBlock[Any]) -> Scheme: ...


@overload
def explain(subject: Routine) -> RoutineExplanation: ...


def explain(subject: object) -> Explanation:
    """Explain the shape of a tensor, the type of a block, or the parts of a routine; `print` shows
    the explanation.

    For a tensor: the constraint, operation and line that decided each axis, the bounds of open
    axes, and the guesses made by closing. For a block: its scheme, the shapes of its results and
    parameters for arguments of any shape. For a routine: the memory mode, the reason for it and the
    size of every node, and the kernels. Explaining never influences inference.

    Raises:
        UsageError: if it is none of these, or a block whose body must know more of arguments.
    """
    match subject:
        case Tensor():
            return _tensor(subject)
        case NetworkBlock():
            return scheme_of(subject)
        case Routine():
            return _routine(subject)
        case _:
            raise UsageError.at_caller(
                "Tensors, blocks and routines can be explained.",
                found=type(subject).__name__,
                fix="pass a tensor, a block such as oc.nn.dense(output=8), or the routine that "
                "ctx.compile(...) returned",
            )


def _tensor(tensor: Tensor) -> TensorExplanation:
    # the label, not the node's name: creating the node would make the label final
    name = "_".join(tensor.label) or f"#{tensor.id}"
    rows = tensor.session.environment.explain(tensor.terms)
    return TensorExplanation(name, tensor.origin, tensor.shape, rows)


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


def _routine(routine: Routine) -> RoutineExplanation:
    plain_tiles = _plain_tiles(routine.linkable.built.source, routine.plan)
    nodes: list[NodeExplanation] = []
    stored = {*routine.plan.params, *routine.plan.own_nodes}
    for node, placement in sorted(routine.placements.items(), key=lambda item: item[0].id):
        info = routine.nodes[node]
        is_passing = placement.mode is MemoryMode.LOCAL and node not in stored
        nbytes = 0 if placement.mode is MemoryMode.VIRTUAL or is_passing else info.nbytes
        why = None if is_passing else placement.reason
        nodes.append(
            NodeExplanation(
                node.name,
                info.dtype,
                info.dims,
                info.padding,
                placement.mode,
                _PASSING if is_passing else placement.why,
                "" if why is None else why.advice,
                nbytes,
                info.extents,
            )
        )
    kernels = tuple(
        KernelExplanation(step.title, (), is_external=True)
        if isinstance(step, kernel_ir.HostCall)
        else KernelExplanation(
            step.title,
            tuple(node.name for node in step.arguments),
            parallel=parallel_axes(step),
            schedule=schedule_text(step.schedule),
            measured=step.measured,
            products=step.products,
            parts=step.parts,
            apart=step.apart,
            has_plain_tiles=is_plain,
        )
        for step, is_plain in zip(routine.plan.kernels, plain_tiles, strict=True)
    )
    tuned = routine.tuned_placements
    return RoutineExplanation(
        routine.name,
        tuple(nodes),
        kernels,
        routine.memory_plan,
        None if tuned is None else tuned.measured,
        () if tuned is None else tuple(tuned.unused(routine.placements)),
        routine.devices,
    )


def _plain_tiles(source: Source, plan: kernel_ir.Plan) -> list[bool]:
    """Return `KernelText.has_plain_tiles` of each kernel; False for a source without such texts."""
    if isinstance(source, PartitionedSource):
        parts = kernel_ir.leaf_steps(source.items)
        return [each for part in parts for each in _plain_tiles(part.source, part.plan)]
    if not isinstance(source, RoutineSource):
        return [False] * len(plan.kernels)
    return [isinstance(each, Launch) and each.text.has_plain_tiles for each in source.launches]


def _placements_text(found: PlacementResult) -> str:
    """Return the result of a search over placements."""
    times = f"{duration(found.seconds)}, best of {found.tried}"
    if not found.flips:
        return f"tuning chose the default placements: {times}"
    return f"cached placements: {times}; the default's took {duration(found.default_seconds)}"


def _launch_lines(parts: Sequence[kernel_ir.LaunchPart]) -> Iterator[str]:
    """Yield the kernels that share a launch, with their blocks and schedules."""
    first = 0
    for part in parts:
        last = first + part.blocks - 1
        blocks = f"block {first}" if first == last else f"blocks {first} to {last}"
        yield f"     {blocks} of {part.threads} threads: {part.title or 'untitled'}"
        yield f"       schedule: {schedule_text(part.schedule) or 'plain loops'}"
        first = last + 1


def _measured_text(found: kernel_ir.TuningResult) -> str:
    """Return the tuning result of a kernel, and whether it is used."""
    times = f"{duration(found.seconds)}, best of {found.tried}"
    if found.problem:
        return f"the cached schedule is not used: {found.problem}"
    if found.schedule == found.default:
        return f"tuning chose the default schedule: {times}"
    return f"cached schedule: {times}; the default's took {duration(found.default_seconds)}"


def _node_cells(node: NodeExplanation) -> tuple[str, ...]:
    dims = " x ".join(axis_texts(node.dims, node.extents)) or "1 cell"
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
