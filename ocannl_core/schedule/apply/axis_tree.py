"""The axes of a schedule: trees of splits, and the position of a point in them.

The parts of an axis `j` are `j0`, the number of a block, and `j1`, the position inside the block;
`j0` is not split any further. A part that is not split is a leaf, and the leaves are loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import prod

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar, affine, as_affine
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.kernels.transforms import (
    Order,
    Split,
    inner_of,
    is_inner,
    is_outer,
    outer_of,
    parent_of,
    root_of,
)
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.nodes import Expr, LoopBound, Stmt
from ocannl_core.ir.loops.traverse import free_variables


@dataclass(frozen=True, slots=True)
class IterationRange:
    """Iterations of a loop with equal extents inside."""

    count: int
    first: int
    size: int
    """The iterations of a block; 1 for leaves that are no block numbers."""
    start: int


@dataclass(frozen=True)  # without slots: the region of all iterations is cached
class AxisTree:
    """Axes and their splits."""

    axes: Mapping[str, LoopAxis]
    splits: Mapping[str, Split] = field(default_factory=dict)
    is_rounded: bool = False
    """True if all blocks of a split are equal, as on the grid of a device; iterations beyond an
    axis are left out by guards. False if the last block is the remainder.
    """

    def split(self, split: Split) -> AxisTree:
        """Return the tree with another split.

        Raises:
            UsageError: if the axis is none, or is split already, or counts blocks.
        """
        name = split.axis
        is_inside = is_inner(name) and parent_of(name) in self.splits
        if name in self.splits or not (is_inside or name in self.axes):
            raise UsageError(
                "An axis, or the inside of its blocks, is split once.",
                found=f"split {name} with the axes {' '.join(sorted(self.natural_order))}",
            )
        return AxisTree(self.axes, {**self.splits, name: split}, self.is_rounded)

    @property
    def natural_order(self) -> tuple[str, ...]:
        """The leaves in the order of the nest."""
        return tuple(leaf for root in self.axes for leaf in self.leaves(root))

    def ordered(self, order: Order) -> tuple[str, ...]:
        """Return the leaves in an order.

        Raises:
            UsageError: for an order of other axes, or one in which a block runs outside of its
                number, unless all blocks are equal.
        """
        axes, natural = order.axes, self.natural_order
        if sorted(axes) != sorted(natural):
            raise UsageError(
                f"An order has the axes {' '.join(natural)}, each once.",
                found=f"order {' '.join(axes)}",
            )
        for name in () if self.is_rounded else self.splits:
            inside = self.leaves(inner_of(name))
            if any(axes.index(leaf) < axes.index(outer_of(name)) for leaf in inside):
                raise UsageError(
                    "The loop over blocks runs outside of the blocks.",
                    found=f"order {' '.join(axes)}: {outer_of(name)} comes after "
                    f"a part of {inner_of(name)}",
                )
        return axes

    def leaves(self, name: str) -> tuple[str, ...]:
        """Return the loops of a part, outermost first."""
        found = self._leaves.get(name)
        if found is None:
            found = self._leaves[name] = self._leaves_of(name)
        return found

    def _leaves_of(self, name: str) -> tuple[str, ...]:
        if name in self.splits:
            return (*self.leaves(outer_of(name)), *self.leaves(inner_of(name)))
        if name not in self.axes and parent_of(name) not in self.splits:
            raise UsageError(
                f"The axes of this nest are {' '.join(self.axes)} and their parts.", found=name
            )
        return (name,)

    @cached_property
    def _leaves(self) -> dict[str, tuple[str, ...]]:
        return {}

    def is_reduced(self, name: str) -> bool:
        return self.axes[root_of(name)].is_reduced

    def hint(self, name: str) -> str:
        """Return the name of a loop variable."""
        return self.axes[root_of(name)].var.hint

    def axes_of(self, expr: Expr) -> tuple[str, ...]:
        """Return the axes on which an expression depends."""
        used = set(free_variables(expr))
        return tuple(name for name, axis in self.axes.items() if axis.var in used)

    @cached_property
    def full_region(self) -> Region:
        """The region of all iterations."""
        extents = {name: axis.extent for name, axis in self.axes.items()}
        region = Region(self, extents)
        if not self.is_rounded:
            return region
        for name, split in sorted(self.splits.items()):  # a part after the part around it
            extents[inner_of(name)] = _equal_blocks(split, extents[name]).size
        return replace(region, extents=extents)

    @cached_property
    def _most(self) -> dict[str, int]:
        return {}

    def max_extent(self, name: str) -> int:
        """Return the most iterations of a part."""
        found = self._most.get(name)
        if found is None:
            found = self._most[name] = self.full_region.max_extent(name)
        return found

    def count(self, names: Iterable[str]) -> int:
        """Return the iterations of several leaves together."""
        return prod(map(self.max_extent, names))

    def exceeds(self, root: str) -> bool:
        """Return True if equal blocks reach beyond the end of an axis."""
        axis = self.axes[root]
        if axis.bound is not None or not self.is_rounded:
            return axis.bound is not None
        return self.count(self.leaves(root)) > axis.extent


@dataclass(frozen=True, slots=True)
class Region:
    """A point in the loops that are open, and the extents of those inside."""

    tree: AxisTree
    extents: Mapping[str, int]
    """The iterations of parts with a known extent: axes, and blocks of bound number."""
    numbers: Mapping[str, AxisIndex] = field(default_factory=dict)
    starts: Mapping[str, AxisIndex] = field(default_factory=dict)

    def ranges(self, name: str) -> tuple[IterationRange, ...]:
        """Return the iterations of a leaf, grouped by the extents inside them."""
        split = self._find_split(name)
        if split is not None and not self.tree.is_rounded:
            return _block_ranges(split, self.extents[split.axis])
        run = self._whole(name)
        return (run,) if run.count else ()

    def _whole(self, name: str) -> IterationRange:
        """Return all iterations of a leaf with equal extents inside."""
        split = self._find_split(name)
        if split is None:
            return IterationRange(self.extents[name], 0, 1, 0)
        return _equal_blocks(split, self.extents[split.axis])

    def _find_split(self, name: str) -> Split | None:
        """Return the split whose blocks a leaf numbers."""
        return self.tree.splits.get(parent_of(name)) if is_outer(name) else None

    def bind(self, name: str, block: IterationRange, index: AxisIndex) -> Region:
        """Return the region inside one iteration of a leaf.

        Args:
            index: The number of the iteration among them, from 0.
        """
        terms, offset = as_affine(index)
        numbers = {**self.numbers, name: affine(terms, block.first + offset)}
        split = self._find_split(name)
        if split is None:
            return replace(self, numbers=numbers)
        scaled = [(block.size * coefficient, var) for coefficient, var in terms]
        start = affine(scaled, block.start + block.size * offset)
        return replace(
            self,
            extents={**self.extents, inner_of(split.axis): block.size},
            numbers=numbers,
            starts={**self.starts, split.axis: start},
        )

    def at(self, positions: Mapping[str, AxisIndex]) -> Region:
        """Return the region at positions along some parts, whose blocks are all equal."""
        region = self
        for name, index in positions.items():
            if region._find_split(name) is None:
                region = replace(region, numbers={**region.numbers, name: index})
            else:
                region = region.bind(name, region._whole(name), index)
        return region

    def position(self, name: str) -> AxisIndex:
        """Return the position along a part, whose leaves, or inside of blocks, are bound."""
        if name in self.numbers:
            return self.numbers[name]
        start, inner = as_affine(self.starts[name]), as_affine(self.position(inner_of(name)))
        return affine([*start[0], *inner[0]], start[1] + inner[1])

    def first_position(self, name: str) -> AxisIndex:
        """Return the first position along a part of the points in this region."""
        if name in self.numbers or name not in self.starts:
            return self.numbers.get(name, FixedIndex(0))
        start, inner = as_affine(self.starts[name]), as_affine(self.first_position(inner_of(name)))
        return affine([*start[0], *inner[0]], start[1] + inner[1])

    def bound(self, name: str) -> LoopBound | None:
        """Return the end at run time of a leaf's axis, with the first position in this region."""
        root = root_of(name)
        axis = self.tree.axes[root]
        return None if axis.bound is None else axis.bound_at(self.first_position(root))

    def end(self, root: str) -> LoopBound:
        """Return the bound of the position along an axis."""
        axis, position = self.tree.axes[root], self.position(root)
        return axis.bound_at(position) or LoopBound(position, axis.extent)

    def guard(self, root: str) -> LoopBound | None:
        """Return the bound of the position along an axis; None if nothing exceeds it."""
        return self.end(root) if self.tree.exceeds(root) else None

    def guarded(self, roots: Iterable[str], stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return statements that run if the positions along some axes are inside."""
        for root in roots:
            stmts = guarded(self.guard(root), stmts)
        return stmts

    def is_complete(self, root: str) -> bool:
        """Return True if all leaves of an axis are bound."""
        return all(leaf in self.numbers for leaf in self.tree.leaves(root))

    def joint_number(self, names: Sequence[str]) -> AxisIndex:
        """Return the number of an iteration of several leaves together."""
        terms: list[tuple[int, IndexVar]] = []
        step = 1
        for name in reversed(names):
            inner, _ = as_affine(self.numbers[name])
            terms = [(step * coefficient, var) for coefficient, var in inner] + terms
            step *= self.tree.max_extent(name)
        return affine(terms, 0)

    def values(self, roots: Iterable[str]) -> dict[IndexVar, AxisIndex]:
        """Return the values of the variables of some axes."""
        found: dict[IndexVar, AxisIndex] = {}
        for root in roots:
            axis = self.tree.axes[root]
            terms, offset = as_affine(self.position(root))
            found[axis.var] = affine(terms, offset + axis.start)
        return found

    def substitution(self) -> dict[IndexVar, AxisIndex]:
        """Return the values of the nest's variables whose leaves are all bound."""
        return self.values(filter(self.is_complete, self.tree.axes))

    def max_extent(self, name: str) -> int:
        """Return the most iterations of a part inside this region."""
        return max(self._possible_extents(name), default=0)

    def _possible_extents(self, name: str) -> frozenset[int]:
        """Return the numbers of iterations that a part may have inside this region."""
        if name in self.extents:
            return frozenset({self.extents[name]})
        split = self.tree.splits[parent_of(name)]
        outer = self._possible_extents(split.axis)
        if is_outer(name):
            return frozenset(ceil_div(extent, split.size) for extent in outer)
        return frozenset(block.size for extent in outer for block in _block_ranges(split, extent))


def _equal_blocks(split: Split, extent: int) -> IterationRange:
    """Return the blocks of a split axis if all are equal; the last may reach beyond it."""
    count = ceil_div(extent, split.size)
    size = ceil_div(extent, max(count, 1)) if split.evenly else split.size
    return IterationRange(count, 0, size, 0)


def _block_ranges(split: Split, extent: int) -> tuple[IterationRange, ...]:
    """Return the blocks of a split axis, grouped by their sizes."""
    if split.evenly and extent:
        blocks = ceil_div(extent, split.size)
        size, larger = divmod(extent, blocks)
        ranges = (
            IterationRange(larger, 0, size + 1, 0),
            IterationRange(blocks - larger, larger, size, larger * (size + 1)),
        )
    else:
        full, rest = divmod(extent, split.size)
        ranges = (
            IterationRange(full, 0, split.size, 0),
            IterationRange(1 if rest else 0, full, rest, full * split.size),
        )
    return tuple(block for block in ranges if block.count)
