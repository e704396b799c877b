"""Row fusion on thread blocks: the grid runs the rows, the threads of a block one row together.

    for i in grid(rows):
      for t in block(threads):
        every nest, its axes inside of a row split over t
        barrier, where a nest reads what another one has written

Folded nodes are in the memory that the threads of a block share.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.rounding import ceil_div, power_above
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest, iterations, nodes_read
from ocannl_core.ir.kernels.nest_accesses import Ranges
from ocannl_core.ir.kernels.nodes import NodeInfos, kernel_of
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import ThreadBlocks
from ocannl_core.passes.kernels.rows.apply import FusedKernel, FusedLoops
from ocannl_core.passes.kernels.rows.private_rows import (
    allocated,
    arrays_of,
    find_private_rows,
    with_private_rows,
)
from ocannl_core.schedule.apply.apply_schedule import apply_in_block
from ocannl_core.schedule.machine_model import ROW_THREADS
from ocannl_core.schedule.rules.block_rules import row_schedule, vector_lanes
from ocannl_core.schedule.rules.decision import ScheduleDecision, products_of_rows


def row_threads(
    nests: Sequence[Nest], rows: int, nodes: NodeInfos, blocks: ThreadBlocks, shared_bytes: int
) -> int:
    """Return the threads that run a row of some nests together: one for each cell or vector.

    Where a row takes so much shared memory that few blocks run at the same time, a block has more
    threads.

    Args:
        rows: The iterations of the axes that they share.
        shared_bytes: The shared memory that a row takes.
    """

    def length(nest: Nest) -> int:
        lanes = max((vector_lanes(nest, axis, nodes, blocks) for axis in nest.axes), default=1)
        return ceil_div(iterations(nest.axes), rows * lanes)

    longest = max(map(length, nests))
    wanted = power_above(longest)
    together = max(1, blocks.local_bytes // max(1, shared_bytes))
    usual = blocks.threads
    while usual * together < ROW_THREADS * blocks.threads and 2 * usual <= blocks.max_threads:
        usual *= 2
    return min(usual, max(blocks.subgroup, wanted))


def fuse_on_blocks(fusion: RowFusion, nodes: NodeInfos) -> FusedKernel:
    """Fuse a row group for thread blocks, or raise `UsageError` if a row depends on another one."""
    blocks = fusion.blocks
    assert blocks is not None
    loops = FusedLoops(fusion, nodes)
    inner = loops.inner_nests()
    # plain loops show that the rows are independent
    FusedLoops(fusion, nodes).build([() for _ in inner])
    nests = loops.share_buffers(inner)
    known = {**nodes, **loops.new_nodes}
    schedules: list[Schedule] = [
        row_schedule(nest, known, fusion.threads, blocks) if nest is not None else ()
        for nest in nests
    ]
    body, arrays = _row_body(loops, nests, schedules, known)
    products = products_of_rows(fusion, [ScheduleDecision(each) for each in schedules])
    kernel = replace(
        kernel_of(body, fusion.title), schedule=fusion.schedule(schedules), products=products
    )
    return FusedKernel(kernel, (), (), {**loops.new_nodes, **arrays})


def _row_body(
    loops: FusedLoops, nests: Sequence[Nest | None], schedules: Sequence[Schedule], known: NodeInfos
) -> tuple[ir.Block, NodeInfos]:
    threads = fresh_var("thread")
    arrays: dict[TensorNode, NodeInfo] = {}
    shared: list[TensorNode] = []
    own: list[tuple[Nest, tuple[ir.Stmt, ...]]] = []
    for nest, schedule in zip(nests, schedules, strict=True):
        if nest is None:
            continue
        scheduled = apply_in_block(nest, schedule, known, threads)
        own.append((nest, scheduled.loops))
        arrays.update(scheduled.nodes)
        shared += scheduled.shared
    every = {**known, **arrays}
    around: Ranges = {var: Range(0, count - 1) for var, count in loops.loops}
    folded = frozenset(loops.buffers.values())
    private = find_private_rows(
        [made for _, made in own], threads, loops.fusion.threads, folded, every, around
    )
    stmts = list(allocated(private, every))
    alone = folded & private.keys()
    used: set[TensorNode] = set()
    read: set[TensorNode] = set()  # since the last barrier
    written: set[TensorNode] = set()
    for nest, made in own:
        used |= nest.mentioned - private.keys()
        if not (nest.mentioned.isdisjoint(written) and nest.written.isdisjoint(read)):
            stmts.append(ir.Barrier())
            read, written = set(), set()
        read |= nodes_read(nest) - alone
        written |= nest.written - alone
        stmts.append(ir.Block(with_private_rows(made, private)))  # each nest numbers its variables
    arrays.update(arrays_of(private, every))
    rows = [row for row in loops.buffers.values() if row in used]
    in_group = tuple(ir.Allocate(node, ir.Scope.GROUP) for node in (*rows, *shared))
    together = ir.For(threads, 0, loops.fusion.threads, ir.Block(tuple(stmts)), ir.AxisKind.BLOCK)
    body: tuple[ir.Stmt, ...] = (*in_group, together)
    for at, (var, count) in reversed(list(enumerate(loops.loops))):
        body = (ir.For(var, 0, count, ir.Block(body), ir.AxisKind.GRID, bound=loops.bound(at)),)
    return ir.Block(body), arrays
