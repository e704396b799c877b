"""Row fusion as a value: nests that run together, row by row, while a row is in the nearest cache.

    for i, j: e[i, j] = exp(x[i, j])           for i:
    for i: s[i, 0] = the sum of e[i, j]   -->      for j: row[j] = exp(x[i, j])
    for i, j: y[i, j] = e[i, j] / s[i, 0]          sum = the sum of row[j]
                                                   for j: y[i, j] = row[j] / sum

The axes that the nests share become the outer loops. Inside of them, each nest has fewer axes and a
schedule of its own. This is safe if each iteration accesses only elements of its own row, of all
nodes that the nests write, and that is verified. A node that no other kernel reads is *folded* to
the size of one row. A nest that sums over the rows adds to partial results while the rows run; the
partial results of all groups of rows are combined at the end, so its sums are in another order. If
it sums over the innermost of the shared axes alone, its results are complete after that loop. A row
of a *streamed* node is stored past the caches when it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex, LoopVar, VarIndex
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import LoopAxis, Nest
from ocannl_core.ir.kernels.nodes import joint_title
from ocannl_core.ir.loops.traverse import nodes_of
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import ThreadBlocks


@dataclass(frozen=True)  # without slots: properties are cached
class Member:
    """One of the nests of a fusion."""

    nest: Nest
    rows: tuple[str, ...]
    """The names of its axes whose loops are shared, outermost first."""
    title: str = ""

    @cached_property
    def axes(self) -> tuple[LoopAxis, ...]:
        """The axes whose loops are shared."""
        by_name = {axis.name: axis for axis in self.nest.axes}
        return tuple(by_name[name] for name in self.rows)

    @cached_property
    def vars(self) -> tuple[LoopVar, ...]:
        """Their variables."""
        return tuple(axis.var for axis in self.axes)

    @cached_property
    def reduces_rows(self) -> bool:
        """Return True if it combines rows, so that its results are complete after the last one."""
        return any(axis.is_reduced for axis in self.axes)

    @property
    def reduces_inner_rows(self) -> bool:
        """True if its results are complete after the last row of the inner shared axes."""
        return self.reduces_rows and not all(axis.is_reduced for axis in self.axes)

    @cached_property
    def written(self) -> tuple[TensorNode, ...]:
        """The nodes it writes."""
        return tuple(dict.fromkeys(store.node for store in self.nest.epilogue))

    @cached_property
    def accessed_row_dims(self) -> tuple[tuple[TensorNode, tuple[int, ...] | None], ...]:
        """The axes of the rows in each node that it accesses, once for each kind of access."""
        found = (
            (access.node, row_dims(access.indices or (), self.vars))
            for access in self.nest.accesses
            if not access.merge
        )
        return tuple(dict.fromkeys(found))

    @cached_property
    def written_row_dims(self) -> tuple[tuple[TensorNode, tuple[int, ...] | None], ...]:
        """The axes of the rows in each node that it writes row by row."""
        if self.reduces_rows:
            return ()
        return tuple(
            (store.node, row_dims(store.indices, self.vars)) for store in self.nest.epilogue
        )

    @cached_property
    def epilogue_nodes(self) -> frozenset[TensorNode]:
        """The nodes that a sum over rows reads or writes once it is complete."""
        roots = [*map(nodes_of, self.nest.epilogue), nodes_of(self.nest.required_reduction.initial)]
        return frozenset(node for root in roots for node in root)


@dataclass(frozen=True, slots=True)
class RowFusion:
    """Nests that run together, row by row: a row group."""

    members: tuple[Member, ...]
    size: int = 1
    """The rows of the last shared axis in a block."""
    groups: int = 1
    """The parts of the outermost loop that have partial results of their own."""
    along: frozenset[int] = frozenset()
    """Positions of the nests that run in the loops of the nest before."""
    folded: tuple[TensorNode, ...] = ()
    """Nodes that become as large as one block of rows."""
    inlined: tuple[TensorNode, ...] = ()
    """Nodes that are computed where they are read."""
    streamed: tuple[TensorNode, ...] = ()
    """Nodes that are stored past the caches."""
    threads: int = 0
    """The threads of a block that run a row together; 0 where one thread runs it."""
    blocks: ThreadBlocks | None = None
    """The device of these blocks; None without one."""

    @property
    def nests(self) -> tuple[Nest, ...]:
        """The nests, in the order in which they run."""
        return tuple(each.nest for each in self.members)

    @property
    def titles(self) -> tuple[str, ...]:
        """The titles of the nests."""
        return tuple(each.title for each in self.members)

    @property
    def title(self) -> str:
        """The titles of the nests as one."""
        return joint_title(self.titles)

    def rows_of(self, at: int) -> transforms.FuseRows:
        """Return the shared axes of a nest; the first nest has the options of all."""
        options = (self.size, self.groups) if at == 0 else (1, 1)
        threads = self.threads if at == 0 else 0
        return transforms.FuseRows(self.members[at].rows, *options, at in self.along, threads)

    def schedule(self, schedules: Sequence[transforms.Schedule]) -> transforms.KernelSchedule:
        """Return the fusion as a schedule, from the schedules of nests that run along no other."""
        pending = list(schedules)
        schedule: list[transforms.Transform | transforms.GroupTransform] = []
        for at in range(len(self.members)):
            schedule.append(self.rows_of(at))
            schedule += () if at in self.along else pending.pop(0)
        written = nodes_written_by_rows(self.members)
        schedule += [transforms.FoldStorage(written.index(node)) for node in self.folded]
        schedule += [transforms.Inline(written.index(node)) for node in self.inlined]
        schedule += [transforms.StreamStores(written.index(node)) for node in self.streamed]
        return tuple(schedule)


def nodes_written_by_rows(members: Sequence[Member]) -> tuple[TensorNode, ...]:
    """Return the nodes that are written row by row, in the order of the program."""
    return tuple(
        dict.fromkeys(node for each in members if not each.reduces_rows for node in each.written)
    )


def row_dims(indices: Sequence[AxisIndex], vars: Sequence[LoopVar]) -> tuple[int, ...] | None:
    """Return the axes of a node that the variables index, each alone; None if one does not."""
    found: list[int] = []
    for var in vars:
        position = VarIndex(var)
        if indices.count(position) != 1:
            return None
        found.append(indices.index(position))
    return tuple(found)


def find_row_dims(members: Sequence[Member]) -> dict[TensorNode, tuple[int, ...]] | None:
    """Return the axes of the rows of each node written row by row; None if rows share an axis."""
    written_row_dims: dict[TensorNode, tuple[int, ...]] = {}
    for member in members:
        for node, dims in member.written_row_dims:
            if dims is None or written_row_dims.setdefault(node, dims) != dims:
                return None
    return written_row_dims
