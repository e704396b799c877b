"""The axes of a schedule: trees of splits, and the position of a point in them.

The parts of an axis `j` are `j0`, the number of a block, and `j1`, the position inside the block;
`j0` is not split any further. A part that is not split is a leaf, and the leaves are loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, IndexVar, affine, as_affine
from ocannl_core.ir.kernels.nest import LoopAxis
from ocannl_core.ir.kernels.transforms import Order, Schedule, Split, schedule_text
from ocannl_core.ir.loops.nodes import Expr, LoopBound
from ocannl_core.ir.loops.traverse import free_variables


@dataclass(frozen=True, slots=True)
class IterationRange:
    """Iterations of a loop with equal extents inside.

    Attributes:
        size: The iterations of a block; 1 for leaves that are no block numbers.
    """

    count: int
    first: int
    size: int
    start: int


@dataclass(frozen=True, slots=True)
class AxisTree:
    """Axes and their splits."""

    axes: Mapping[str, LoopAxis]
    splits: Mapping[str, Split]

    @classmethod
    def of(cls, axes: Iterable[LoopAxis], schedule: Schedule) -> AxisTree:
        """Return the tree of the splits of a schedule."""
        roots = {axis.name: axis for axis in axes}
        splits: dict[str, Split] = {}
        parts = set(roots)
        for transform in schedule:
            if not isinstance(transform, Split):
                continue
            name = transform.axis
            if name not in parts or (len(name) > 1 and name.endswith("0")):
                raise UsageError(
                    "An axis, or the inside of its blocks, is split once.",
                    found=f"split {name} with the axes {' '.join(sorted(parts))}",
                    where=f"schedule {schedule_text(schedule)!r}",
                )
            splits[name] = transform
            parts.remove(name)
            parts |= {f"{name}0", f"{name}1"}
        return cls(roots, splits)

    def order(self, schedule: Schedule, *, is_nested: bool = True) -> tuple[str, ...]:
        """Return the leaves in the order of a schedule, or of the nest.

        Args:
            is_nested: True if every block runs inside of the loop over blocks; blocks of equal
                size may run outside of it.

        Raises:
            UsageError: for an order of other axes, or one in which a block runs outside of its
                number.
        """
        natural = tuple(leaf for root in self.axes for leaf in self.leaves(root))
        orders = [each.axes for each in schedule if isinstance(each, Order)]
        order = orders[-1] if orders else natural
        if sorted(order) != sorted(natural):
            raise UsageError(
                f"An order has the axes {' '.join(natural)}, each once.",
                found=f"order {' '.join(order)}",
                where=f"schedule {schedule_text(schedule)!r}",
            )
        for name in self.splits if is_nested else ():
            inside = self.leaves(f"{name}1")
            if any(order.index(leaf) < order.index(f"{name}0") for leaf in inside):
                raise UsageError(
                    "The loop over blocks runs outside of the blocks.",
                    found=f"order {' '.join(order)}: {name}0 comes after a part of {name}1",
                    where=f"schedule {schedule_text(schedule)!r}",
                )
        return order

    def leaves(self, name: str) -> tuple[str, ...]:
        """Return the loops of a part, outermost first."""
        if name in self.splits:
            return (*self.leaves(f"{name}0"), *self.leaves(f"{name}1"))
        if name not in self.axes and name[:-1] not in self.splits:
            raise UsageError(
                f"The axes of this nest are {' '.join(self.axes)} and their parts.", found=name
            )
        return (name,)

    def is_reduced(self, name: str) -> bool:
        return self.axes[name[0]].is_reduced

    def hint(self, name: str) -> str:
        """Return the name of a loop variable."""
        return self.axes[name[0]].var.hint

    def axes_of(self, expr: Expr) -> tuple[str, ...]:
        """Return the axes on which an expression depends."""
        used = set(free_variables(expr))
        return tuple(name for name, axis in self.axes.items() if axis.var in used)

    def full_region(self) -> Region:
        """Return the region of all iterations."""
        return Region(self, {name: axis.extent for name, axis in self.axes.items()})

    def max_extent(self, name: str) -> int:
        """Return the most iterations of a part."""
        return self.full_region().max_extent(name)


@dataclass(frozen=True, slots=True)
class Region:
    """A point in the loops that are open, and the extents of those inside.

    Attributes:
        extents: The iterations of every part with a known extent: whole axes, and blocks whose
            number is bound.
    """

    tree: AxisTree
    extents: Mapping[str, int]
    numbers: Mapping[str, AxisIndex] = field(default_factory=dict)
    starts: Mapping[str, AxisIndex] = field(default_factory=dict)

    def ranges(self, name: str) -> tuple[IterationRange, ...]:
        """Return the iterations of a leaf, grouped by the extents inside them."""
        split = self._find_split(name)
        if split is None:
            extent = self.extents[name]
            return (IterationRange(extent, 0, 1, 0),) if extent else ()
        return _block_ranges(split, self.extents[split.axis])

    def _find_split(self, name: str) -> Split | None:
        """Return the split whose blocks a leaf numbers."""
        return self.tree.splits.get(name[:-1]) if name.endswith("0") else None

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
            extents={**self.extents, f"{split.axis}1": block.size},
            numbers=numbers,
            starts={**self.starts, split.axis: start},
        )

    def position(self, name: str) -> AxisIndex:
        """Return the position of the point along a part; all its leaves must be bound."""
        if name in self.numbers:
            return self.numbers[name]
        start, inner = as_affine(self.starts[name]), as_affine(self.position(f"{name}1"))
        return affine([*start[0], *inner[0]], start[1] + inner[1])

    def first_position(self, name: str) -> AxisIndex:
        """Return the first position along a part of the points in this region."""
        if name not in self.tree.splits:
            return self.numbers.get(name, FixedIndex(0))
        if name not in self.starts:
            return FixedIndex(0)
        start, inner = as_affine(self.starts[name]), as_affine(self.first_position(f"{name}1"))
        return affine([*start[0], *inner[0]], start[1] + inner[1])

    def bound(self, name: str) -> LoopBound | None:
        """Return the end at run time of the axis that a leaf belongs to, with the first position in
        this region.
        """
        root = name[0]
        return self.tree.axes[root].bound_at(self.first_position(root))

    def substitution(self) -> dict[IndexVar, AxisIndex]:
        """Return the values of the nest's variables whose leaves are all bound."""
        values: dict[IndexVar, AxisIndex] = {}
        for name, axis in self.tree.axes.items():
            if all(leaf in self.numbers for leaf in self.tree.leaves(name)):
                terms, offset = as_affine(self.position(name))
                values[axis.var] = affine(terms, offset + axis.start)
        return values

    def max_extent(self, name: str) -> int:
        """Return the most iterations of a part inside this region."""
        return max(self._possible_extents(name), default=0)

    def _possible_extents(self, name: str) -> frozenset[int]:
        """Return the numbers of iterations that a part may have inside this region."""
        if name in self.extents:
            return frozenset({self.extents[name]})
        split = self.tree.splits[name[:-1]]
        outer = self._possible_extents(split.axis)
        if name.endswith("0"):
            return frozenset(-(-extent // split.size) for extent in outer)
        return frozenset(block.size for extent in outer for block in _block_ranges(split, extent))


def _block_ranges(split: Split, extent: int) -> tuple[IterationRange, ...]:
    """Return the blocks of a split axis, grouped by their sizes."""
    if split.evenly and extent:
        blocks = -(-extent // split.size)
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
