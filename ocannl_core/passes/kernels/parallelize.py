"""Mark loops whose iterations are independent, and split kernels where threads must synchronize.

A large kernel becomes *phases*, one kernel each; a phase depends on earlier phases only. Inside a
phase all top-level loops are independent of each other, and so are their iterations.

# operands are copied, then used                phase 1
for i in range(512): packed[...] = ...          for i in range(512):  # parallel
for j in range(8):                       -->    phase 2
    for i in range(86):                         for j in range(8):  # parallel
        c[...] = ... packed[...] ...                for i in range(86):  # parallel

The columns of a scatter are independent even where its rows are not. They are marked where they
are, inside of the serial loops over the rows, all of which each thread runs for columns of its own.

Scalars in front of the loops, such as a key of random numbers, are computed by each thread again,
for every part of the loops that it takes.

Loops directly inside those are marked, too, where the outer extents are small: threads may take
blocks of both. Statements before the inner loops, such as the packing of a panel, fill private
memory, and each thread that takes some inner iterations repeats them.

The marks are properties of the loops and do not depend on the machine. Each cell is computed by one
iteration, in the order of the program, so the bits do not depend on the distribution. Buffers of
kernels that are not parallel and too large for a stack become memory of the routine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import FixedIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels import dependence
from ocannl_core.ir.kernels.nodes import (
    Kernel,
    LeafStep,
    NodeInfos,
    StepReplacement,
    kernel_of,
    parallel_loop,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.loop_nests import loops_around
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import uint4x32
from ocannl_core.passes.kernels.parallel_loops import inner_loops, iteration_count
from ocannl_core.passes.kernels.parallel_scatters import scatter_in_strips
from ocannl_core.schedule.cost_model import estimated_cycles
from ocannl_core.schedule.machine_model import MIN_THREAD_CYCLES, STACK_BYTES

_PLENTY = 32
"""So many iterations can be distributed evenly among any number of threads."""
_LEAST_GAIN = 4
"""Inner loops are distributed if they take so many times as long as the repeated statements."""
_MOST_PIECES = 64
"""Kernels with more statements at the top are left alone: every pair would be compared."""


def parallelize_step(
    step: LeafStep, nodes: NodeInfos, least_work: int = MIN_THREAD_CYCLES
) -> StepReplacement:
    """Split a large kernel into phases whose iterations several threads share.

    A kernel stays as it is unless its work is enough for two threads and some of its loops are
    proven to be independent.

    Args:
        least_work: The least work that is worth another thread, in cycles.
    """
    if not isinstance(step, Kernel):
        return StepReplacement((step,))
    phases = _phases(step, nodes, 2 * least_work)
    if phases is None:
        return StepReplacement((step,))
    return StepReplacement(phases, tuple(top_allocations(step.body)))


def _phases(kernel: Kernel, nodes: NodeInfos, least_work: int) -> tuple[Kernel, ...] | None:
    """Return the phases of a kernel, some of them parallel; None if it stays as it is."""
    work = estimated_cycles(kernel.body, nodes)
    if work < least_work:
        return None
    scalars, body = _divided_scalars(kernel.body)
    pieces = top_pieces(body, nodes)
    constants = frozenset(scalar.local for scalar in scalars)
    groups = None if pieces is None else group_independent(pieces, constants)
    if groups is None:
        return None
    phases: list[Kernel] = []
    for group in groups:
        if len(groups) > 1:
            work = sum(estimated_cycles(piece.stmt, nodes) for piece in group)
        phase = _phase(kernel, group, nodes, constants, is_large=work >= least_work)
        phases.append(_with_scalars(phase, scalars))
    if not any(each.is_parallel for each in phases):
        return None
    if len(phases) == 1 and not top_allocations(kernel.body):
        return (phases[0],)
    return tuple(_titled([with_own_arguments(phase) for phase in phases], kernel))


def top_allocations(body: ir.Block) -> list[TensorNode]:
    """Return the nodes that a kernel allocates outside of its loops."""
    return [stmt.node for stmt in _flat(body) if isinstance(stmt, ir.Allocate)]


def _flat(body: ir.Block) -> list[ir.Stmt]:
    """Return the statements of a block, and of blocks in it that declare nothing or are alone."""
    while len(body.stmts) == 1 and isinstance(body.stmts[0], ir.Block):
        body = body.stmts[0]
    return list(traverse.flattened(body, keeps_scopes=True))


def top_pieces(body: ir.Block, nodes: NodeInfos) -> list[ir.Stmt] | None:
    """Return the top-level statements of a kernel; None if some are no loops or stores."""
    pieces: list[ir.Stmt] = []
    for stmt in _flat(body):
        match stmt:
            case ir.Fill():
                pieces.append(_as_loops(stmt, nodes[stmt.node]))
            case ir.For() | ir.Store() | ir.StoreVector() | ir.Scatter() | ir.Block():
                pieces.append(stmt)
            case ir.Allocate(_, ir.Scope.KERNEL) | ir.Remark():
                pass
            case _:
                return None
    return pieces if len(pieces) <= _MOST_PIECES else None


def _divided_scalars(body: ir.Block) -> tuple[tuple[ir.DeclareLocal | ir.SetLocal, ...], ir.Block]:
    """Split a kernel after the scalars in front that each thread can cheaply compute again."""
    stmts = _flat(body)
    scalars: list[ir.DeclareLocal | ir.SetLocal] = []
    rest: list[ir.Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, ir.DeclareLocal | ir.SetLocal) and not rest:
            scalars.append(stmt)
        elif not isinstance(stmt, ir.Remark):
            rest.append(stmt)
    read = {node for scalar in scalars for node in traverse.reads(scalar)}
    has_loops = any(traverse.contains(scalar, ir.Scoped) for scalar in scalars)
    if has_loops or any(not read.isdisjoint(traverse.writes(stmt)) for stmt in rest):
        return (), body
    return tuple(scalars), ir.Block(tuple(rest)) if scalars else body


def _with_scalars(phase: Kernel, scalars: Sequence[ir.DeclareLocal | ir.SetLocal]) -> Kernel:
    needed = set(traverse.free_locals(phase.body))
    kept: list[ir.Stmt] = []
    for scalar in reversed(scalars):
        if scalar.local in needed:
            kept.append(scalar)
            needed.update(traverse.free_locals(scalar))
    return replace(phase, body=ir.Block((*reversed(kept), *phase.body.stmts))) if kept else phase


def _as_loops(fill: ir.Fill, info: NodeInfo) -> ir.Stmt:
    """Return a fill as loops, unless its cells are words."""
    if info.dtype is uint4x32 or not info.buffer_dims:
        return fill
    loops = [(fresh_var("fill"), extent) for extent in info.buffer_dims]
    indices = tuple(VarIndex(var) if extent != 1 else FixedIndex(0) for var, extent in loops)
    store = ir.Store(fill.node, indices, ir.Const(fill.value, info.dtype))
    return loops_around([(var, extent) for var, extent in loops if extent != 1], store)


@dataclass(frozen=True, slots=True)
class StatementAccesses:
    """A statement and its accesses."""

    stmt: ir.Stmt
    touched: dependence.AccessSet

    def marked(self) -> ir.Stmt:
        """Return the statement, marked if its iterations or columns are independent."""
        if not isinstance(self.stmt, ir.For):
            return self.stmt
        if dependence.iterations_are_independent(self.stmt, self.touched):
            return replace(self.stmt, kind=ir.AxisKind.PARALLEL)
        return scatter_in_strips(self.stmt, self.touched) or self.stmt

    def is_apart(self, others: Sequence[StatementAccesses]) -> bool:
        """Return True if it may run concurrently with all of some others."""
        return all(dependence.are_independent(self.touched, other.touched) for other in others)


def group_independent(
    stmts: Sequence[ir.Stmt], constants: Collection[ir.Local] = ()
) -> list[list[StatementAccesses]] | None:
    """Group neighbors that may run concurrently; return None if that is undecidable.

    Args:
        constants: Scalars that have their values before the first statement.
    """
    groups: list[list[StatementAccesses]] = []
    for stmt in stmts:
        touched = dependence.access_set(stmt, constants)
        if touched is None:
            return None
        piece = StatementAccesses(stmt, touched)
        if not groups or not piece.is_apart(groups[-1]):
            groups.append([])
        groups[-1].append(piece)
    return groups


def _phase(
    kernel: Kernel,
    pieces: Sequence[StatementAccesses],
    nodes: NodeInfos,
    constants: Collection[ir.Local],
    *,
    is_large: bool,
) -> Kernel:
    stmts = [piece.stmt for piece in pieces]
    marked = [piece.marked() for piece in pieces] if is_large else stmts
    is_parallel = is_large and (
        len(stmts) > 1 or any(new is not old for new, old in zip(marked, stmts, strict=True))
    )
    inner = _with_inner(marked, nodes, constants) if is_parallel else ()
    body = ir.Block(tuple(map(_as_loop, inner) if is_parallel else stmts))
    return replace(kernel, body=body, is_parallel=is_parallel)


def with_own_arguments(phase: Kernel) -> Kernel:
    """Return a phase with the arguments and indices that it mentions, and its own products."""
    found = kernel_of(phase.body)
    written = frozenset(traverse.writes(phase.body))
    products = tuple(each for each in phase.products if each.result in written)
    return replace(phase, arguments=found.arguments, indices=found.indices, products=products)


def _titled(phases: Sequence[Kernel], kernel: Kernel) -> list[Kernel]:
    """Return the phases with titles; those that only fill buffers are copies for the kernel."""
    buffers = set(top_allocations(kernel.body))
    return [
        replace(phase, title=f"copies for {kernel.title}" if kernel.title else "", schedule=())
        if buffers.issuperset(
            {*traverse.writes(phase.body)}.difference(traverse.allocated_nodes(phase.body))
        )
        else phase
        for phase in phases
    ]


def _as_loop(stmt: ir.Stmt) -> ir.For:
    """Return a statement as a marked loop, of one iteration if it is none and contains none."""
    if isinstance(stmt, ir.For) and parallel_loop(stmt) is not None:
        return stmt
    body = stmt if isinstance(stmt, ir.Block) else ir.Block((stmt,))
    return ir.For(fresh_var("once"), 0, 1, body, ir.AxisKind.PARALLEL)


def _with_inner(
    pieces: Sequence[ir.Stmt], nodes: NodeInfos, constants: Collection[ir.Local]
) -> Sequence[ir.Stmt]:
    """Return statements with inner loops marked, equally many in each, if iterations are few."""
    if sum(_count(piece) for piece in pieces) >= _PLENTY:
        return pieces
    if any(loop.kind is not ir.AxisKind.PARALLEL for loop in map(_as_loop, pieces)):
        return pieces
    marked = [_inner_marked(piece, nodes, constants) for piece in pieces]
    loops = [loop for loop in marked if loop is not None]
    counts = {sum(map(iteration_count, inner_loops(loop))) for loop in loops}
    return loops if len(loops) == len(pieces) and len(counts) == 1 else pieces


def _count(stmt: ir.Stmt) -> int:
    """Return the number of iterations of a statement that can be distributed."""
    return iteration_count(parallel_loop(_as_loop(stmt)) or _as_loop(stmt))


def _inner_marked(
    stmt: ir.Stmt, nodes: NodeInfos, constants: Collection[ir.Local]
) -> ir.For | None:
    """Return a loop with marked loops inside; None unless what is before them is cheap."""
    loop = _as_loop(stmt)
    before, after = _divided(_flat(loop.body))
    if traverse.declares(after) or len(after) > _MOST_PIECES:
        return None
    groups = group_independent(after, constants)
    if groups is None or len(groups) != 1:
        return None
    inner = [_as_loop(piece.marked()) for piece in groups[0]]
    if any(each.kind is not ir.AxisKind.PARALLEL for each in inner):
        return None
    if all(iteration_count(each) == 1 for each in inner):
        return None
    repeated = sum(estimated_cycles(each, nodes) for each in before)
    if repeated and repeated * _LEAST_GAIN > sum(estimated_cycles(each, nodes) for each in inner):
        return None
    return replace(loop, body=ir.Block((*before, *inner)))


def _divided(stmts: Sequence[ir.Stmt]) -> tuple[Sequence[ir.Stmt], Sequence[ir.Stmt]]:
    """Split statements after those that fill the memory that they allocate."""
    own: set[TensorNode] = set()
    for position, stmt in enumerate(stmts):
        match stmt:
            case ir.Allocate(node, ir.Scope.KERNEL):
                own.add(node)
            case ir.For() | ir.Store() | ir.StoreVector() | ir.Fill() | ir.Block() if (
                own.issuperset(traverse.writes(stmt))
            ):
                pass
            case _:
                return stmts[:position], stmts[position:]
    return stmts, ()


def allocate_workspace(step: LeafStep, nodes: NodeInfos) -> StepReplacement:
    """Move the large buffers of a kernel to the memory of the routine.

    The buffers of parallel kernels stay: the backend allocates one for each thread.
    """
    if not isinstance(step, Kernel) or step.is_parallel:
        return StepReplacement((step,))
    large = [
        node for node in traverse.allocated_nodes(step.body) if nodes[node].nbytes > STACK_BYTES
    ]
    if not large:
        return StepReplacement((step,))

    def without(stmt: ir.Stmt) -> traverse.Replacement:
        match stmt:
            case ir.Allocate(node, ir.Scope.KERNEL) if node in large:
                return ()
            case _:
                return stmt

    body = traverse.map_stmts(step.body, without)
    kernel = replace(step, body=body, arguments=(*step.arguments, *large))
    return StepReplacement((kernel,), tuple(large))
