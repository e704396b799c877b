"""The parallel loops of a kernel: its iterations that threads share, with their cost."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.renamed import takes_old_keywords
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos, parallel_loop
from ocannl_core.ir.loops import nodes as ir


@dataclass(frozen=True, slots=True)
class UniformIterations:
    """Iterations of equal cost.

    Attributes:
        work: The cycles of each; less than one where vectors hold several.
    """

    count: int
    work: float


@dataclass(frozen=True, slots=True)
class ParallelIterations:
    """The iterations of a parallel kernel that can be distributed, counted through all its loops.

    Attributes:
        inner: The marks of the loops directly inside; empty if these are not distributed.
        repeated: The cycles of the statements that each thread repeats which takes some inner
            iterations of an outer one.
    """

    outer: tuple[UniformIterations, ...]
    inner: tuple[UniformIterations, ...] = ()
    repeated: int = 0

    @property
    def work(self) -> int:
        """The cycles of all iterations."""
        return round(sum(run.count * run.work for run in self.outer))


@takes_old_keywords("oc.backend_api.parallel.parallel_iterations")
def parallel_iterations(kernel: Kernel, nodes: NodeInfos) -> ParallelIterations | None:
    """Return the iterations of a kernel that can be distributed; None if it is not parallel."""
    if not kernel.is_parallel:
        return None
    # A start from disk reads these records and computes none.
    from ocannl_core.schedule.cost_model import estimated_cycles

    def run(loop: ir.For) -> UniformIterations:
        count = iteration_count(parallel_loop(loop) or loop)
        return UniformIterations(count, estimated_cycles(loop, nodes) / count)

    first = parallel_loops(kernel)[0]
    inner = inner_loops(first)
    outer = tuple(run(stmt) for stmt in kernel.body.stmts if isinstance(stmt, ir.For))
    if not inner:
        return ParallelIterations(outer)
    before = first.body.stmts[: len(first.body.stmts) - len(inner)]
    return ParallelIterations(
        outer,
        tuple(run(loop) for loop in inner),
        sum(estimated_cycles(stmt, nodes) for stmt in before),
    )


def parallel_axes(kernel: Kernel) -> tuple[tuple[str, int], ...]:
    """Return the axes that threads share, outermost first, and their iterations; none if serial."""
    if not kernel.is_parallel:
        return ()
    outer = parallel_loops(kernel)
    levels = [loops for loops in (outer, inner_loops(outer[0])) if loops]
    return tuple(
        (max(loops, key=iteration_count).var.hint, sum(map(iteration_count, loops)))
        for loops in levels
    )


def iteration_count(loop: ir.For) -> int:
    """Return the number of iterations of a loop."""
    return loop.stop - loop.start


def parallel_loops(kernel: Kernel) -> tuple[ir.For, ...]:
    """Return the marked loops of a parallel kernel; all their iterations may run concurrently."""
    loops = (parallel_loop(stmt) for stmt in kernel.body.stmts if isinstance(stmt, ir.For))
    return tuple(loop for loop in loops if loop is not None)


def inner_loops(loop: ir.For) -> tuple[ir.For, ...]:
    """Return the marked loops directly inside one of a parallel kernel, the last of its body."""
    return tuple(
        stmt
        for stmt in loop.body.stmts
        if isinstance(stmt, ir.For) and stmt.kind is ir.AxisKind.PARALLEL
    )
