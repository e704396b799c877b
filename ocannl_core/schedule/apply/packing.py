"""Pack an operand: the loops that fill its buffer.

A buffer is filled along its own axes. Rows of narrow floats that are widened are copied in vectors;
if the lanes of a buffer are strided in memory, squares of it are transposed in registers. Axes that
run along memory together, as all terms of a convolution do in its weights, are one row of squares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    VarIndex,
    affine,
    affine_sum,
    as_affine,
    fresh_var,
    joint_index,
    row_major,
    variables,
)
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import Pack, is_inner, outer_of, parent_of, root_of
from ocannl_core.ir.loops.nodes import AxisKind, Block, Expr, For, Load, Stmt, Store, Unary
from ocannl_core.ir.loops.traverse import map_expr
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
    """Return the loops that fill a buffer in the order of its axes, loops over blocks first."""
    leaves = [leaf for axis in pack.axes for leaf in tree.leaves(axis)]
    ordered: list[str] = []
    for leaf in leaves:
        numbers = [outer_of(leaf[:end]) for end in range(1, len(leaf))]
        ordered += [each for each in (*numbers, leaf) if each in leaves]
    return list(dict.fromkeys(ordered))


@dataclass(frozen=True, slots=True)
class _Row:
    """Loops that run along the memory of an operand, as one."""

    leaves: tuple[str, ...]
    """The loops, outermost first; the inner ones run over whole axes."""
    first: int
    """The first of the operand's indices that depends on them."""


@dataclass(frozen=True, slots=True)
class Packer:
    """A builder of the loops that fill a buffer."""

    tree: AxisTree
    kinds: Mapping[str, AxisKind]
    loops: LoopBuilder
    pack: Pack
    dims: Sequence[int]
    """The extents of the buffer."""
    nodes: NodeInfos | None
    """The extents of operands; None if unknown."""

    def fill(self, factor: Expr, region: Region, copy: Body) -> tuple[Stmt, ...]:
        """Return the loops that fill a buffer, in squares if its lanes are strided in memory.

        for k: for j: packed[k, j] = b[j, k]  -->  for k0: for k1, j: a square of vectors,
            transposed
        """
        leaves = packing_order(self.tree, self.pack)
        inner = leaves[-2:] if self.kinds.get(leaves[-1]) is AxisKind.DOT else leaves[-1:]
        if self._is_widened_along(factor, inner[-1]):
            outer, last = leaves[:-1], leaves[-1]
            return self.loops(outer, region, lambda region: self._fill_row(last, region, copy))
        row = self._find_row(factor, leaves[: -len(inner)], inner)
        if row is None or self.kinds[inner[0]] is not AxisKind.VECTOR:
            return self.loops(leaves, region, copy)
        outer = [leaf for leaf in leaves if leaf not in (*row.leaves, *inner)]
        return self.loops(
            outer, region, lambda region: self._fill_transposed(row, inner, region, copy)
        )

    def _is_widened_along(self, factor: Expr, leaf: str) -> bool:
        """Return True if rows of a buffer are rows of narrow floats in memory, widened."""
        match factor:
            case Unary(UnaryOp.IDENTITY, Load(_, (*_, last), dtype)) if dtype.is_narrow:
                is_row = (1, self.tree.axes[root_of(leaf)].var) in as_affine(last)[0]
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
        self, row: _Row, inner: list[str], region: Region, copy: Body
    ) -> tuple[Stmt, ...]:
        """Return the loops along a row and, inside, over lanes and the terms of dot products."""
        first, *others = row.leaves
        for name in others:
            (whole,) = region.ranges(name)
            region = region.bind(name, whole, FixedIndex(0))
        widths = [run.count for run in region.ranges(inner[0])]
        width = widths[0] if len(widths) == 1 else 1
        is_power = width > 1 and width & (width - 1) == 0
        stmts: list[Stmt] = []
        for run in region.ranges(first):
            count = run.count * self.tree.count(others)
            squares = count // width if is_power else 0

            def lanes(index: AxisIndex, run: IterationRange = run) -> tuple[Stmt, ...]:
                if not others:
                    return self.loops(inner, region.bind(first, run, index), copy)
                start = region.bind(first, run, FixedIndex(0))
                return self.loops(inner, start, lambda at: self._moved(copy(at), row, index))

            block, inside = fresh_var(self.tree.hint(first)), fresh_var(self.tree.hint(first))
            if squares:
                terms = [(1, inside)] if squares == 1 else [(width, block), (1, inside)]
                square = For(inside, 0, width, Block(lanes(affine(terms))), AxisKind.VECTOR)
                stmts.append(square if squares == 1 else For(block, 0, squares, Block((square,))))
            if squares * width < count:
                rest = fresh_var(self.tree.hint(first))
                body = Block(lanes(VarIndex(rest)))
                stmts.append(For(rest, squares * width, count, body))
        return tuple(stmts)

    def _moved(self, stmts: tuple[Stmt, ...], row: _Row, index: AxisIndex) -> tuple[Stmt, ...]:
        """Return copies of the first cell of a row as copies of the one at an index.

        packed[0, 0, j] = b[j, 0, 0]  -->  packed[_, f, j] = b[j, _, f]
        """
        assert self.nodes is not None
        nodes, first = self.nodes, self.pack.axes.index(row.leaves[0])

        def moved(
            indices: tuple[AxisIndex, ...], dims: Sequence[int], first: int, end: int
        ) -> tuple[AxisIndex, ...]:
            *sub_axes, start = joint_index(indices[first:end], dims[first:end])
            cell = affine_sum((1, start), (1, index))
            return (*indices[:first], *sub_axes, cell, *indices[end:])

        def on_expr(each: Expr) -> Expr:
            if not isinstance(each, Load):
                return each
            dims = nodes[each.node].buffer_dims
            return replace(each, indices=moved(each.indices, dims, row.first, len(dims)))

        copies: list[Stmt] = []
        for stmt in stmts:
            assert isinstance(stmt, Store)
            indices = moved(stmt.indices, self.dims, first, first + len(row.leaves))
            copies.append(replace(stmt, indices=indices, value=map_expr(stmt.value, on_expr)))
        return tuple(copies)

    def _find_row(self, factor: Expr, leaves: list[str], inner: list[str]) -> _Row | None:
        """Return the loops along which an operand, or the terms of its dot products, are
        contiguous in memory, if lanes are in different rows.
        """
        if isinstance(factor, Unary) and factor.op is UnaryOp.IDENTITY:
            factor = factor.arg
        if not isinstance(factor, Load) or not factor.indices:
            return None
        steps = self._steps(factor)
        groups = outer_of(parent_of(inner[1])) if len(inner) > 1 else None
        found = [
            leaf
            for leaf in leaves
            if steps.get(self._var(leaf)) == 1
            and (leaf == groups if groups else leaf in self.tree.axes or is_inner(leaf))
        ][:1]
        cells = self.tree.count(found)
        while found and self.nodes is not None and not groups:
            outer = self._around(found[0], leaves)
            if outer is None or steps.get(self._var(outer)) != cells:
                break
            found.insert(0, outer)
            cells *= self.tree.max_extent(outer)
        if not found or 0 < steps.get(self._var(inner[0]), 0) < cells:
            return None
        own = set(map(self._var, found))
        first = next(at for at, each in enumerate(factor.indices) if own & {*variables(each)})
        return _Row(tuple(found), first)

    def _var(self, leaf: str) -> IndexVar:
        return self.tree.axes[root_of(leaf)].var

    def _steps(self, load: Load) -> dict[IndexVar, int]:
        """Return the cells that one step along each variable makes, or of the last index alone."""
        index = load.indices[-1]
        if self.nodes is not None:
            index = row_major(load.indices, self.nodes[load.node].buffer_dims)
        return {var: step for step, var in as_affine(index)[0]}

    def _around(self, leaf: str, leaves: Sequence[str]) -> str | None:
        """Return the loop over the next outer axis of the buffer if both cover whole axes."""
        axes = self.pack.axes
        at = axes.index(leaf) if leaf in axes else 0
        if at == 0 or leaf not in self.tree.axes or self.tree.axes[leaf].bound is not None:
            return None
        outer = axes[at - 1]
        is_whole = outer in self.tree.axes or is_inner(outer)
        return outer if outer in leaves and is_whole else None
