"""Products on matrix units: their forms in the loop language, built and recognized here.

A *product nest* is a multiply-add in TILE loops, innermost a DOT loop where terms are in pairs:

    for i in tile(2): for j in tile(2): for k in tile(16): s[i, j] = fma(a[i, k], b[k, j], s[i, j])

A *stage of a ring* is copied by the first thread of a block, between barriers, and multiplied by
all of them; stages beyond an end are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import FixedIndex, LoopVar, substitute
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.loop_nests import guarded, loops_around
from ocannl_core.ir.numbers.primitives import TernaryOp, UnaryOp


@dataclass(frozen=True, slots=True)
class ProductNest:
    """A product nest.

    Attributes:
        loops: The loops, outermost first.
        store: The multiply-add.
        factors: The loads of both factors, before they are widened.
    """

    loops: tuple[ir.For, ...]
    store: ir.Store
    factors: tuple[ir.Load, ir.Load]

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(loop.stop for loop in self.loops)


@dataclass(frozen=True, slots=True)
class RingStage:
    """A stage of a ring.

    Attributes:
        first: The number of the thread, below one for the thread that copies.
        copies: The copies to the stage.
        product: The outermost loop of the product nest.
        end: The number of the stage, below the number of all stages; None if all are used.
    """

    first: ir.LoopBound
    copies: tuple[ir.Stmt, ...]
    product: ir.For
    end: ir.LoopBound | None

    def stmts(self) -> tuple[ir.Stmt, ...]:
        """Return the statements of the stage."""
        copies = guarded(self.first, self.copies)
        return guarded(self.end, (ir.Barrier(), *copies, ir.Barrier(), self.product))


def product_nest(loops: Sequence[tuple[LoopVar, int]], store: ir.Stmt) -> ir.For:
    """Return a product nest.

    Args:
        loops: The variables and the extents of the TILE loops, outermost first.
        store: The multiply-add.
    """
    nest = loops_around(loops, store, kind=ir.AxisKind.TILE)
    assert isinstance(nest, ir.For)
    return nest


def perfect_tile(loop: ir.For) -> tuple[tuple[ir.For, ...], ir.Stmt] | None:
    """Return perfectly nested TILE and DOT loops from 0 on, outermost first, and the statement
    inside of them; None for other loops.
    """
    loops: list[ir.For] = []
    stmt: ir.Stmt = loop
    while isinstance(stmt, ir.For):
        is_whole = stmt.kind in (ir.AxisKind.TILE, ir.AxisKind.DOT) and stmt.bound is None
        if not is_whole or stmt.start or len(stmt.body.stmts) != 1:
            return None
        loops.append(stmt)
        (stmt,) = stmt.body.stmts
    return tuple(loops), stmt


def match_product_nest(loop: ir.For) -> ProductNest | None:
    """Return the parts of a product nest; None for another loop."""
    match perfect_tile(loop):
        case (
            loops,
            ir.Store(
                node, indices, ir.Ternary(TernaryOp.FMA, first, second, ir.Load() as own)
            ) as store,
        ):
            left, right = _load_of(first), _load_of(second)
            is_sum = (own.node, own.indices, own.dtype) == (node, indices, store.value.dtype)
            if left is not None and right is not None and is_sum:
                return ProductNest(loops, store, (left, right))
    return None


def match_ring_stage(loop: ir.For) -> RingStage | None:
    """Return the stage that each iteration of a loop is; None for a loop over something else."""
    stmts, end = loop.body.stmts, None
    match stmts:
        case (ir.For(once, 0, 1, ir.Block(inside), bound=ir.LoopBound(index, int(extent))),):
            stmts, end = inside, ir.LoopBound(substitute(index, {once: FixedIndex(0)}), extent)
    match stmts:
        case (
            ir.Barrier(0),
            ir.For(start=0, stop=1, bound=ir.LoopBound(extent=1) as first, body=ir.Block(copies)),
            ir.Barrier(0),
            ir.For(kind=ir.AxisKind.TILE) as product,
        ) if loop.kind is ir.AxisKind.SERIAL and loop.bound is None and not loop.start:
            return RingStage(first, copies, product, end)
    return None


def _load_of(factor: ir.Expr) -> ir.Load | None:
    """Return the load of a factor, which may be widened; None if it is computed."""
    match factor:
        case (ir.Load() as load) | ir.Unary(UnaryOp.IDENTITY, ir.Load() as load):
            return load
        case _:
            return None
