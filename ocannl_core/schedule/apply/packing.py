"""Pack an operand: the loops that fill its buffer.

A buffer is filled along its own axes. Rows of narrow floats that are widened are copied in vectors;
if the lanes of a buffer are strided in memory, squares of it are transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, VarIndex, affine, as_affine, fresh_var
from ocannl_core.ir.kernels.transforms import Pack
from ocannl_core.ir.loops.nodes import AxisKind, Block, Expr, For, Load, Stmt, Unary
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.schedule.apply.axis_tree import AxisTree, IterationRange, Region

Body = Callable[[Region], tuple[Stmt, ...]]
"""Return the statements of an iteration."""


class LoopBuilder(Protocol):
    """Return nested loops of several axes from a region; `unrolls` is False for loops that are not
    unrolled, regardless of the schedule.
    """

    def __call__(
        self, names: Sequence[str], region: Region, body: Body, *, unrolls: bool = True
    ) -> tuple[Stmt, ...]: ...


def packing_order(tree: AxisTree, pack: Pack) -> list[str]:
    """Return the loops that fill a buffer: in the order of its axes, but loops over blocks
    first.
    """
    leaves = [leaf for axis in pack.axes for leaf in tree.leaves(axis)]
    ordered: list[str] = []
    for leaf in leaves:
        numbers = [f"{leaf[:end]}0" for end in range(1, len(leaf))]
        ordered += [each for each in (*numbers, leaf) if each in leaves]
    return list(dict.fromkeys(ordered))


@dataclass(frozen=True, slots=True)
class Packer:
    """A builder of the loops that fill buffers."""

    tree: AxisTree
    kinds: Mapping[str, AxisKind]
    loops: LoopBuilder

    def fill(self, factor: Expr, leaves: list[str], region: Region, copy: Body) -> tuple[Stmt, ...]:
        """Return the loops that fill a buffer, in squares if its lanes are strided in memory.

        for k: for j: packed[k, j] = b[j, k]  -->  for k0: for k1, j: a square of vectors,
            transposed
        """
        inner = leaves[-2:] if self.kinds.get(leaves[-1]) is AxisKind.DOT else leaves[-1:]
        if self._is_widened_along(factor, inner[-1]):
            outer, last = leaves[:-1], leaves[-1]
            return self.loops(outer, region, lambda region: self._fill_row(last, region, copy))
        along = self._contiguous_leaf(factor, leaves[: -len(inner)], inner)
        if along is None or self.kinds[inner[0]] is not AxisKind.VECTOR:
            return self.loops(leaves, region, copy)
        outer = [leaf for leaf in leaves if leaf not in (along, *inner)]
        return self.loops(
            outer, region, lambda region: self._fill_transposed(along, inner, region, copy)
        )

    def _is_widened_along(self, factor: Expr, leaf: str) -> bool:
        """Return True if rows of a buffer are rows of narrow floats in memory, widened."""
        match factor:
            case Unary(UnaryOp.IDENTITY, Load(_, (*_, last), dtype)) if dtype.is_narrow:
                is_row = (1, self.tree.axes[leaf[0]].var) in as_affine(last)[0]
                return is_row and self.kinds[leaf] is AxisKind.SERIAL
            case _:
                return False

    def _fill_row(self, leaf: str, region: Region, copy: Body) -> tuple[Stmt, ...]:
        """Return a loop in vectors of the schedule's width.

        for k: packed[i, k] = float32(a[i, k])  -->  for k0: for 16 lanes: ...
        """
        vectors = [name for name, kind in self.kinds.items() if kind is AxisKind.VECTOR]
        width = max(map(self.tree.max_extent, vectors), default=1)
        stmts: list[Stmt] = []
        for run in region.ranges(leaf):
            blocks, rest = divmod(run.count, width)
            block, lane = fresh_var(self.tree.hint(leaf)), fresh_var(self.tree.hint(leaf))
            inside = copy(region.bind(leaf, run, affine([(width, block), (1, lane)])))
            whole = For(lane, 0, width, Block(inside), AxisKind.VECTOR)
            stmts += [For(block, 0, blocks, Block((whole,)))] if blocks else []
            last = fresh_var(self.tree.hint(leaf))
            inside = copy(region.bind(leaf, run, affine([(1, last)], width * blocks)))
            stmts += [For(last, 0, rest, Block(inside), AxisKind.VECTOR)] if rest else []
        return tuple(stmts)

    def _fill_transposed(
        self, along: str, inner: list[str], region: Region, copy: Body
    ) -> tuple[Stmt, ...]:
        """Return the loops along an axis and, inside, over lanes and the terms of dot products."""
        ranges = region.ranges(along)
        widths = [run.count for run in region.ranges(inner[0])]
        width = widths[0] if len(widths) == 1 else 1
        is_power = width > 1 and width & (width - 1) == 0
        stmts: list[Stmt] = []
        for run in ranges:
            squares = run.count // width if is_power else 0

            def lanes(index: AxisIndex, run: IterationRange = run) -> tuple[Stmt, ...]:
                return self.loops(inner, region.bind(along, run, index), copy)

            block, inside = fresh_var(self.tree.hint(along)), fresh_var(self.tree.hint(along))
            if squares:
                terms = [(1, inside)] if squares == 1 else [(width, block), (1, inside)]
                square = For(inside, 0, width, Block(lanes(affine(terms))), AxisKind.VECTOR)
                stmts.append(square if squares == 1 else For(block, 0, squares, Block((square,))))
            if squares * width < run.count:
                rest = fresh_var(self.tree.hint(along))
                body = Block(lanes(VarIndex(rest)))
                stmts.append(For(rest, squares * width, run.count, body))
        return tuple(stmts)

    def _contiguous_leaf(self, factor: Expr, leaves: list[str], inner: list[str]) -> str | None:
        """Return the loop along which an operand, or the terms of its dot products, are contiguous
        in memory, if that is not the loop over lanes.
        """
        if isinstance(factor, Unary) and factor.op is UnaryOp.IDENTITY:
            factor = factor.arg
        if not isinstance(factor, Load) or not factor.indices:
            return None
        terms, _ = as_affine(factor.indices[-1])
        if self.tree.axes[inner[0][0]].var in (var for _, var in terms):
            return None
        groups = f"{inner[1][:-1]}0" if len(inner) > 1 else None
        for leaf in leaves:
            whole = leaf == groups if groups else leaf in self.tree.axes or leaf.endswith("1")
            if (1, self.tree.axes[leaf[0]].var) in terms and whole:
                return leaf
        return None
