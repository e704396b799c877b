"""The leaves of a schedule for thread blocks: loops of the grid, of a block, and of a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.loops.loop_nests import guarded
from ocannl_core.ir.loops.nodes import Allocate, AxisKind, Block, For, LoopBound, Scope, Stmt
from ocannl_core.ir.node import TensorNode
from ocannl_core.schedule.apply.axis_tree import AxisTree

Numbers = Mapping[str, indexing.AxisIndex]
"""The number of the iteration of each leaf whose loop is open."""
Body = Callable[[Numbers], tuple[Stmt, ...]]
"""Makes the statements inside of loops, from the numbers of all leaves."""


@dataclass(frozen=True)  # without slots: properties are cached
class BlockAxes:
    """The leaves of a schedule for thread blocks.

    Attributes:
        unrolled: The names among them that are written out.
        vector: The part of an axis that a thread loads and stores at once, or "".
    """

    tree: AxisTree
    grid: tuple[str, ...]
    block: tuple[str, ...]
    serial: tuple[str, ...]
    unrolled: frozenset[str]
    vector: str
    variables: Mapping[str, indexing.LoopVar]

    @classmethod
    def of(cls, nest: KernelNest, schedule: transforms.Schedule) -> BlockAxes:
        """Return the leaves of a schedule.

        Raises:
            UsageError: if it maps an axis twice, or reduced axes to the grid, or vectorises more
                than one axis, or other iterations than neighbouring ones; or if it has a transform
                that thread blocks do not have.
        """
        for each in schedule:
            if not isinstance(each, _TRANSFORMS):
                raise UsageError(
                    "A schedule for thread blocks splits, orders, maps, unrolls, vectorises, "
                    "shuffles, packs and accumulates.",
                    found=transforms.schedule_text((each,)),
                    where=f"schedule {transforms.schedule_text(schedule)!r}",
                )
        tree = AxisTree.of(nest.axes, schedule)
        order = tree.order(schedule, is_nested=False)
        grid = tuple(
            a for each in schedule if isinstance(each, transforms.MapToGrid) for a in each.axes
        )
        block = tuple(
            a for each in schedule if isinstance(each, transforms.MapToBlock) for a in each.axes
        )
        mapped = (*grid, *block)
        if len(set(mapped)) < len(mapped) or not set(mapped) <= set(order):
            raise UsageError(
                f"Each of the axes {' '.join(order)} is mapped to the grid or a block, or neither.",
                found=f"grid {' '.join(grid)}; block {' '.join(block)}",
                where=f"schedule {transforms.schedule_text(schedule)!r}",
            )
        if any(tree.is_reduced(name) for name in grid):
            raise UsageError(
                "Thread blocks share no results, so that reduced axes are not those of the grid.",
                found=f"grid {' '.join(grid)}",
                where=f"schedule {transforms.schedule_text(schedule)!r}",
            )
        serial = tuple(name for name in order if name not in mapped)
        unrolled = frozenset(
            each.axis
            for each in schedule
            if isinstance(each, transforms.Unroll | transforms.Vectorize)
        )
        vectors = [each.axis for each in schedule if isinstance(each, transforms.Vectorize)]
        if vectors and (len(vectors) > 1 or not _is_vector(vectors[0], tree, serial)):
            raise UsageError(
                "A thread loads and stores neighbouring iterations of one axis at once, which is "
                "neither that of the grid nor of a block.",
                found=", ".join(f"vectorize {name}" for name in vectors),
                where=f"schedule {transforms.schedule_text(schedule)!r}",
            )
        variables = {name: indexing.fresh_var(tree.hint(name)) for name in mapped}
        vector = vectors[0] if vectors else ""
        return cls(tree, grid, block, serial, unrolled & set(serial), vector, variables)

    @cached_property
    def thread_numbers(self) -> dict[str, indexing.AxisIndex]:
        """The numbers of the leaves of grid and block."""
        return {
            name: indexing.VarIndex(var) if self.extent(name) > 1 else indexing.FixedIndex(0)
            for name, var in self.variables.items()
        }

    def extent(self, name: str) -> int:
        """Return the iterations of a part. A block may be larger than its axis."""
        if name in self.tree.axes:
            return self.tree.axes[name].extent
        split = self.tree.splits[name[:-1]]
        around, size = self.extent(split.axis), split.size
        blocks = -(-around // size)
        if split.evenly:
            size = -(-around // max(blocks, 1))
        return blocks if name.endswith("0") else size

    def count(self, names: Sequence[str]) -> int:
        """Return the iterations of several leaves together."""
        return prod(self.extent(name) for name in names)

    def position(self, name: str, numbers: Numbers) -> indexing.AxisIndex:
        """Return the position along a part, given the numbers of its leaves."""
        if name not in self.tree.splits:
            return numbers[name]
        outer = indexing.as_affine(self.position(f"{name}0", numbers))
        inner = indexing.as_affine(self.position(f"{name}1", numbers))
        size = self.extent(f"{name}1")
        scaled = [(size * coefficient, var) for coefficient, var in outer[0]]
        return indexing.affine([*scaled, *inner[0]], size * outer[1] + inner[1])

    def bound(self, root: str, numbers: Numbers) -> LoopBound | None:
        """Return the guard of the position along an axis; None if none exceeds it."""
        axis = self.tree.axes[root]
        position = self.position(root, numbers)
        if axis.bound is not None:
            return axis.bound_at(position)
        if not self.exceeds(root):
            return None
        return LoopBound(position, axis.extent)

    def exceeds(self, root: str) -> bool:
        """Return True if blocks reach beyond the end of an axis."""
        axis = self.tree.axes[root]
        return axis.bound is not None or self.count(self.tree.leaves(root)) > axis.extent

    def values(self, numbers: Numbers) -> dict[indexing.IndexVar, indexing.AxisIndex]:
        """Return the values of the nest's variables whose leaves all have numbers."""
        found: dict[indexing.IndexVar, indexing.AxisIndex] = {}
        for name, axis in self.tree.axes.items():
            if all(leaf in numbers for leaf in self.tree.leaves(name)):
                terms, offset = indexing.as_affine(self.position(name, numbers))
                found[axis.var] = indexing.affine(terms, offset + axis.start)
        return found

    def complete(self, numbers: Mapping[str, object]) -> frozenset[str]:
        """Return the axes whose leaves all have numbers."""
        return frozenset(
            name
            for name in self.tree.axes
            if all(leaf in numbers for leaf in self.tree.leaves(name))
        )

    def joint_number(self, names: Sequence[str], numbers: Numbers) -> indexing.AxisIndex:
        """Return the number of an iteration of several leaves together."""
        terms: list[tuple[int, indexing.IndexVar]] = []
        step = 1
        for name in reversed(names):
            inner, _ = indexing.as_affine(numbers[name])
            terms = [(step * coefficient, var) for coefficient, var in inner] + terms
            step *= self.extent(name)
        return indexing.affine(terms, 0)

    def guard(
        self, roots: Sequence[str], numbers: Numbers, stmts: tuple[Stmt, ...]
    ) -> tuple[Stmt, ...]:
        """Return statements that run if the positions along some axes are inside."""
        for root in roots:
            stmts = guarded(self.bound(root, numbers), stmts)
        return stmts

    def loops(
        self,
        names: Sequence[str],
        numbers: Numbers,
        body: Body,
        *,
        is_guarded: bool = True,
        unrolls: bool = True,
    ) -> tuple[Stmt, ...]:
        """Return loops of a thread around statements.

        Args:
            body: Makes the statements, from the numbers of all leaves.
            is_guarded: True if iterations beyond an axis are left out.
            unrolls: False if no loop is written out.
        """
        if not names:
            return body(numbers)
        name, rest = names[0], names[1:]
        extent = self.extent(name)
        if extent == 0:
            return ()
        root = name[0]
        var = indexing.fresh_var(self.tree.hint(name))
        index: indexing.AxisIndex = indexing.VarIndex(var) if extent > 1 else indexing.FixedIndex(0)
        inner = {**numbers, name: index}
        stmts = self.loops(rest, inner, body, is_guarded=is_guarded, unrolls=unrolls)
        is_last = is_guarded and root in self.complete(inner) and self.exceeds(root)
        bound = self.bound(root, inner) if is_last else None
        kind = AxisKind.UNROLLED if unrolls and name in self.unrolled else AxisKind.SERIAL
        if extent == 1:
            return guarded(bound, stmts)
        if bound is not None and kind is AxisKind.UNROLLED:
            stmts, bound = guarded(bound, stmts), None
        return (For(var, 0, extent, Block(stmts), kind, bound=bound),) if stmts else ()

    def around(self, stmts: tuple[Stmt, ...], shared: tuple[TensorNode, ...]) -> tuple[Stmt, ...]:
        """Return the statements of a thread in the loops of its block and of the grid."""
        body = self._device_loops(self.block, AxisKind.BLOCK, stmts)
        allocated = tuple(Allocate(node, Scope.GROUP) for node in shared)
        return self._device_loops(self.grid, AxisKind.GRID, (*allocated, *body))

    def _device_loops(
        self, names: Sequence[str], kind: AxisKind, stmts: tuple[Stmt, ...]
    ) -> tuple[Stmt, ...]:
        wide = [name for name in names if self.extent(name) != 1]
        for name in reversed(wide):
            bound = self._tile_bound(name, wide) if kind is AxisKind.GRID else None
            loop = For(self.variables[name], 0, self.extent(name), Block(stmts), kind, bound=bound)
            stmts = (loop,)
        if not wide:
            stmts = (For(indexing.fresh_var(kind.value), 0, 1, Block(stmts), kind),)
        return stmts

    def _tile_bound(self, name: str, grid: Sequence[str]) -> LoopBound | None:
        """Return the bound of a leaf of the grid that leaves out blocks whose tiles are beyond the
        end of an axis; None if there are none, or if another leaf has it.
        """
        root = name[0]
        own = [each for each in grid if each[0] == root]
        if own[-1] != name:
            return None
        numbers: dict[str, indexing.AxisIndex] = {
            leaf: indexing.FixedIndex(0) for leaf in self.tree.leaves(root)
        }
        last = {**numbers, **{leaf: indexing.FixedIndex(self.extent(leaf) - 1) for leaf in own}}
        _, reach = indexing.as_affine(self.position(root, last))
        extent = self.tree.axes[root].extent
        if reach < extent:
            return None
        first = {**numbers, **{leaf: indexing.VarIndex(self.variables[leaf]) for leaf in own}}
        return LoopBound(self.position(root, first), extent)


def _is_vector(name: str, tree: AxisTree, serial: Sequence[str]) -> bool:
    """Return True if a part of an axis has neighbouring iterations, all in one thread."""
    is_part = name in tree.splits or name in serial
    return is_part and "0" not in name and set(tree.leaves(name)) <= set(serial)


_TRANSFORMS: tuple[type[transforms.Transform], ...] = (
    transforms.Split,
    transforms.Order,
    transforms.MapToGrid,
    transforms.MapToBlock,
    transforms.Unroll,
    transforms.Vectorize,
    transforms.Shuffle,
    transforms.Pack,
    transforms.TileMatrix,
    transforms.Pipeline,
    transforms.Stage,
    transforms.Ring,
    transforms.AccumulateAt,
)
