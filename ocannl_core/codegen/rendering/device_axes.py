"""Axes that the device runs: the GRID and BLOCK loops of a kernel.

All axes of a kind are one number of the device, the innermost axis fastest, so that a kernel may
have any number of them, and neighboring threads run neighboring iterations of the innermost axis.

    for i in grid(8):                  const int i = group / 33;
      for j in grid(33):        -->    const int j = group % 33;
        for k in block(16):            const int k = thread;

Statements of a kernel that have GRID axes of their own run on different blocks, side by side:

    for i in grid(8): ...              if (group < 8) { const int i = group; ... }
    for j in grid(5): ...       -->    if (group >= 8) { const int j = group - 8; ... }

A grid of more blocks than a device launches along one axis has two axes, with `group = x + X * y`
and the test that it is below the number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ocannl_core.base.errors import CodegenError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import IdentityMap
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import inner_statements, most_iterations
from ocannl_core.ir.loops.traverse import contains
from ocannl_core.ir.node import TensorNode

KINDS = (ir.AxisKind.GRID, ir.AxisKind.BLOCK)
_CHECK_BLOCKS, _CHECK_THREADS = 16, 128
"""The launch of a kernel that checks positions, whatever their number."""
_PRIVATE = frozenset({ir.Scope.KERNEL, ir.Scope.THREAD})


@dataclass(frozen=True, slots=True)
class DeviceAxis:
    """A loop that the device runs."""

    index: str
    """The number of the iteration that a thread runs, counted from the loop's start."""
    condition: str
    """The test that there is such an iteration; empty if the device runs no others."""

    @property
    def is_full(self) -> bool:
        """True if the device runs no iterations beyond the loop's."""
        return not self.condition


@dataclass(frozen=True, slots=True)
class DeviceAxes:
    """The loops of a kernel that the device runs."""

    axes: IdentityMap[ir.For, DeviceAxis]
    counts: tuple[int, int]
    """The number of thread blocks, and of the threads of each; 0 where loops run them."""
    grid: tuple[int, ...] = ()
    """The extents of a grid of two axes, of which some blocks may run nothing; empty for a grid of
    one axis.
    """

    @property
    def launch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents of the grid and of the block; empty where loops run them."""
        grid, block = ((count,) if count else () for count in self.counts)
        return self.grid or grid, block


def device_axes(body: ir.Block, dialect: Dialect) -> DeviceAxes:
    """Return the loops of a kernel that the device of a dialect runs.

    Raises:
        CodegenError: if some threads may not reach a barrier, or several would run one store.
    """
    axes: IdentityMap[ir.For, DeviceAxis] = IdentityMap()
    if _is_check(body) and None not in map(dialect.device_index, KINDS):
        return DeviceAxes(axes, (_CHECK_BLOCKS, _CHECK_THREADS))
    counts = []
    folded: tuple[int, ...] = ()
    for kind in KINDS:
        number = dialect.device_index(kind)
        if number is None:
            counts.append(0)
            continue
        parts = body.stmts if kind is ir.AxisKind.GRID else (body,)
        wide = [(part, most_iterations(part, kind)) for part in parts]
        wide = [(part, count) for part, count in wide if count]
        total = sum(count for _, count in wide)
        counts.append(total)
        if kind is ir.AxisKind.GRID and len(grid := dialect.fold_grid(total)) > 1:
            number, total, folded = dialect.folded_block_number, prod(grid), grid
        first = 0
        for part, count in wide:
            _number(part, kind, _Share(number, first, count, total), count, axes)
            first += count
    launched = frozenset(kind for kind, count in zip(KINDS, counts, strict=True) if count)
    if launched:
        _reject_repeated_writes(body, launched, set())
    return DeviceAxes(axes, (counts[0], counts[1]), folded)


def _is_check(body: ir.Block) -> bool:
    """Return True for the body of a kernel that only checks positions, in any number of threads."""
    return bool(body.stmts) and all(isinstance(stmt, ir.CheckPositions) for stmt in body.stmts)


@dataclass(frozen=True, slots=True)
class _Share:
    """The blocks, or the threads of each, that run a statement: some of all by number."""

    number: str
    first: int
    count: int
    total: int

    @property
    def own_number(self) -> str:
        """The number of a block among those that run the statement."""
        return f"({self.number} - {self.first})" if self.first else self.number

    @property
    def conditions(self) -> Iterator[str]:
        """The tests that a block is among these."""
        if self.first:
            yield f"{self.number} >= {self.first}"
        if self.first + self.count < self.total:
            yield f"{self.number} < {self.first + self.count}"


def _number(
    stmt: ir.Stmt,
    kind: ir.AxisKind,
    share: _Share,
    around: int,
    axes: IdentityMap[ir.For, DeviceAxis],
) -> None:
    """Number the iterations of the loops of a kind.

    Args:
        around: The iterations of all loops that share one iteration of those around.
    """
    if isinstance(stmt, ir.For) and stmt.kind is kind:
        inside = max(most_iterations(stmt.body, kind), 1)
        is_outermost = around == share.count
        index = share.own_number if is_outermost else f"{share.own_number} % {around}"
        index = index if inside == 1 else f"{index} / {inside}"
        is_full = (stmt.stop - stmt.start) * inside == around
        conditions = [*share.conditions] if is_outermost else []
        conditions += [] if is_full else [f"{index} < {stmt.stop - stmt.start}"]
        axes[stmt] = DeviceAxis(index, " && ".join(conditions))
        is_partial = not is_full or stmt.bound is not None
        if kind is ir.AxisKind.BLOCK and is_partial and _meets(stmt.body):
            raise CodegenError(
                "All iterations of a BLOCK axis meet at its barriers.",
                found=f"an axis of {stmt.stop - stmt.start} of which some threads leave out "
                "iterations",
            )
        around = inside
    for each in inner_statements(stmt):
        _number(each, kind, share, around, axes)


def _meets(body: ir.Block) -> bool:
    return contains(body, (ir.Barrier, ir.SubgroupReduce))


def _reject_repeated_writes(
    stmt: ir.Stmt, missing: frozenset[ir.AxisKind], private: set[TensorNode]
) -> None:
    """Check that every store to shared memory is inside axes of all kinds.

    Args:
        missing: The kinds of axes that are not around it.
        private: The nodes of which each thread has its own.
    """
    match stmt:
        case ir.Store(node) | ir.StoreVector(node) | ir.Scatter(node) | ir.Fill(node):
            if missing and node not in private:
                kinds = " and ".join(sorted(kind.name for kind in missing))
                raise CodegenError(
                    "A store is inside all axes of its kernel that the device runs.",
                    found=f"a store to {node.name} outside of the {kinds} axes",
                )
        case ir.Allocate(node, scope) if scope in _PRIVATE:
            private.add(node)
        case ir.For(kind=kind):
            missing = missing - {kind}
    for each in inner_statements(stmt):
        _reject_repeated_writes(each, missing, private)
