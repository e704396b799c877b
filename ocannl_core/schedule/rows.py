"""Nests that run together, row by row, while a row is near.

    for i, j: e[i, j] = exp(x[i, j])           for i:
    for i: s[i, 0] = the sum of e[i, j]   -->      for j: row[j] = exp(x[i, j])
    for i, j: y[i, j] = e[i, j] / s[i, 0]          sum = the sum of row[j]
                                                   for j: y[i, j] = row[j] / sum

The axes that the nests share become the outer loops. Inside of them, each nest is one with fewer
axes, which has a schedule of its own. This is safe where each iteration touches only cells of its
own among all that the nests write, and that is verified. A node that nothing else reads is
*contracted* to what one row needs. A nest that sums over the rows adds to partial results while the
rows run; those of all groups of rows are combined at the end, so its sums are in another order. A
row of a *streamed* node goes to memory past the caches when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ocannl_core.errors import UsageError
from ocannl_core.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    Projections,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
    is_surjective,
)
from ocannl_core.loopir.nodes import (
    Allocate,
    Binary,
    Block,
    Expr,
    For,
    Load,
    LocalRead,
    Scope,
    Stmt,
    Store,
)
from ocannl_core.loopir.traverse import (
    map_expr,
    nodes_of,
    substitute_in_expr,
    substitute_in_stmt,
)
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.schedule.apply import apply
from ocannl_core.schedule.cells import Axis, CellNest, Reduction
from ocannl_core.schedule.parallel import is_independent
from ocannl_core.schedule.transforms import (
    AXIS_LETTERS,
    Contract,
    Rows,
    Schedule,
    Stream,
    to_text,
)

Infos = Mapping[TensorNode, NodeInfo]


@dataclass(frozen=True, slots=True)
class Member:
    """One of the nests that run together.

    Attributes:
        nest: The nest of the program.
        rows: The names of its axes whose loops are shared, outermost first.
    """

    nest: CellNest
    rows: tuple[str, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes whose loops are shared."""
        by_name = {axis.name: axis for axis in self.nest.axes}
        return tuple(by_name[name] for name in self.rows)

    @property
    def vars(self) -> tuple[LoopVar, ...]:
        """Their variables."""
        return tuple(axis.var for axis in self.axes)

    @property
    def is_sum(self) -> bool:
        """True if it combines rows, so that its results are complete after the last one."""
        return self.axes[0].is_reduced

    @property
    def written(self) -> tuple[TensorNode, ...]:
        """The nodes it writes."""
        return tuple(dict.fromkeys(store.node for store in self.nest.finish))

    @property
    def mentioned_last(self) -> frozenset[TensorNode]:
        """The nodes that a sum over rows reads or writes once it is complete."""
        assert self.nest.reduction is not None
        roots = [*map(nodes_of, self.nest.finish), nodes_of(self.nest.reduction.initial)]
        return frozenset(node for root in roots for node in root)


@dataclass(frozen=True, slots=True)
class Joined:
    """What nests that run together become.

    Attributes:
        body: The loops over rows.
        sums: Nests that combine partial results of sums over rows, to run afterwards.
        partial: The nodes of those results, which outlive the body.
        nodes: What is known of nodes that the program does not have.
    """

    body: Block
    sums: tuple[CellNest, ...]
    partial: tuple[TensorNode, ...]
    nodes: Mapping[TensorNode, NodeInfo]


def joined(nests: Sequence[CellNest], schedule: Schedule, nodes: Infos) -> Joined:
    """Returns nests that run one after the other as nests that run together, row by row.

    Args:
        nests: The nests, in the order of the program.
        schedule: Their schedule. Contracted nodes must not be read by anything else.
        nodes: Extents and formats of their nodes.

    Raises:
        UsageError: for a schedule that does not fit the nests, or not their dependences.
    """
    starts = [at for at, each in enumerate(schedule) if isinstance(each, Rows)]
    if len(starts) != len(nests) or starts[:1] != [0]:
        raise UsageError(
            f"A schedule of {len(nests)} nests that run together has the rows of each.",
            found=to_text(schedule),
        )
    members: list[Member] = []
    tails: list[Schedule] = []
    for nest, start, end in zip(nests, starts, [*starts[1:], len(schedule)], strict=True):
        rows = schedule[start]
        assert isinstance(rows, Rows)
        members.append(Member(nest, rows.axes))
        tails.append(
            tuple(s for s in schedule[start + 1 : end] if not isinstance(s, Contract | Stream))
        )
    written = written_by(members)
    contracted = [e.written for e in schedule if isinstance(e, Contract)]
    streamed = [e.written for e in schedule if isinstance(e, Stream)]
    if any(at >= len(written) for at in (*contracted, *streamed)):
        raise UsageError(
            f"These nests write {len(written)} nodes row by row, which are numbered from 0.",
            found=to_text(schedule),
        )
    first = schedule[0]
    assert isinstance(first, Rows)
    frame = Frame(
        tuple(members),
        first.size,
        first.groups,
        tuple(written[at] for at in contracted),
        tuple(written[at] for at in streamed),
        nodes,
    )
    return frame.joined(tails)


def written_by(members: Sequence[Member]) -> tuple[TensorNode, ...]:
    """Returns the nodes that are written row by row, in the order of the program."""
    return tuple(
        dict.fromkeys(node for each in members if not each.is_sum for node in each.written)
    )


def row_dims(indices: Sequence[AxisIndex], vars: Sequence[LoopVar]) -> tuple[int, ...] | None:
    """Returns the axes of a node along which variables alone are the position; None if there is
    not one for each.
    """
    found: list[int] = []
    for var in vars:
        places = [at for at, index in enumerate(indices) if index == VarIndex(var)]
        if len(places) != 1:
            return None
        found += places
    return tuple(found)


@dataclass(slots=True)
class Frame:
    """Nests that run together, before each has its own schedule.

    Attributes:
        members: The nests.
        size: How many rows of the last shared axis run together.
        groups: The parts of the outermost loop that have partial results of their own.
        contracted: Nodes that become as large as what one row needs.
        streamed: Nodes whose rows go to memory past the caches.
        nodes: Extents and formats of the nodes of the program.
    """

    members: tuple[Member, ...]
    size: int
    groups: int
    contracted: tuple[TensorNode, ...]
    streamed: tuple[TensorNode, ...]
    nodes: Infos
    made: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    _numbers: list[AxisIndex] = field(init=False)
    _loops: list[tuple[LoopVar, int]] = field(init=False)
    _group: LoopVar = field(init=False)
    _homes: dict[TensorNode, tuple[int, ...]] = field(init=False)
    _buffers: dict[TensorNode, TensorNode] = field(init=False)
    _partial: dict[int, TensorNode] = field(init=False)

    def __post_init__(self) -> None:
        axes = self._shared_axes()
        counts = [axis.extent for axis in axes]
        counts[-1] //= self.size
        counts[0] //= self.groups
        self._loops = [
            (fresh_var(axis.var.hint), n) for axis, n in zip(axes, counts, strict=True)
        ]
        self._group = fresh_var(axes[0].var.hint)
        self._numbers = [VarIndex(var) for var, _ in self._loops]
        if self.groups > 1:
            var, count = self._loops[0]
            self._numbers[0] = affine([(count, self._group), (1, var)])
        self._homes = self._found_homes()
        self._buffers = {
            node: self._narrow(node) for node in dict.fromkeys((*self.contracted, *self.streamed))
        }
        self._check_streams()
        self._partial = {}
        for at, member in enumerate(self.members):
            if member.is_sum:
                self._check_sum(at, member)
                self._partial[at] = self._partial_results(member)

    # ----- what must hold -------------------------------------------------------------------

    def _shared_axes(self) -> tuple[Axis, ...]:
        first = self.members[0].axes
        shapes = [[(a.start, a.extent) for a in member.axes] for member in self.members]
        kinds = [{axis.is_reduced for axis in member.axes} for member in self.members]
        if not first or any(shape != shapes[0] for shape in shapes) or shapes[0][0][1] == 0:
            raise self._misfit("Nests that run together have rows of the same numbers.")
        if any(axis.start for axis in first) or any(len(kind) > 1 for kind in kinds):
            raise self._misfit("Rows count from 0, and are either all reduced or all cells.")
        if any(axis.is_shifting for member in self.members for axis in member.nest.axes):
            raise self._misfit("Nests whose cells shift do not run together with others.")
        last = first[-1].extent
        rest = last // self.size if len(first) == 1 else first[0].extent
        if last % self.size or rest % self.groups:
            raise self._misfit("Rows are divided into equal parts.")
        return first

    def _misfit(self, rule: str) -> UsageError:
        rows = "; ".join(f"rows {' '.join(member.rows)}" for member in self.members)
        return UsageError(rule, found=f"{rows} by {self.size} in {self.groups}")

    def _found_homes(self) -> dict[TensorNode, tuple[int, ...]]:
        """Returns where in the index of each node that is written the rows are."""
        homes: dict[TensorNode, tuple[int, ...]] = {}
        for member in self.members:
            for store in () if member.is_sum else member.nest.finish:
                dims = row_dims(store.indices, member.vars)
                if dims is None or homes.setdefault(store.node, dims) != dims:
                    raise self._misfit("What is written has the rows along axes of its own.")
        return homes

    def _check_sum(self, position: int, member: Member) -> None:
        others = [other for at, other in enumerate(self.members) if at != position]
        last = member.mentioned_last
        if any(not last.isdisjoint(other.written) for other in others) or any(
            not other.nest.mentioned.isdisjoint(member.written) for other in others
        ):
            raise self._misfit("The result of a sum over rows is for later kernels.")

    def _check_streams(self) -> None:
        """Raises unless rows that are copied have been written as a whole."""
        for node in self.streamed:
            member = next(each for each in self.members if node in each.nest.mentioned)
            store = next(s for s in member.nest.finish if node in nodes_of(s))
            inner = self.inner(member)
            place = inner.finish[member.nest.finish.index(store)]
            domain = tuple((axis.var, axis.extent) for axis in inner.cells)
            is_read = node in nodes_of(store.value) or (
                inner.reduction is not None
                and self._buffers[node]
                in (*nodes_of(inner.reduction.term), *nodes_of(inner.reduction.initial))
            )
            dims = self.made[self._buffers[node]].dims
            whole = is_surjective(Projections(domain, place.indices, (), dims, ()))
            if is_read or store.node is not node or not (whole or prod(dims) == 1):
                raise self._misfit("Rows that are streamed are written as a whole first.")

    def _check_independent(self, var: LoopVar, count: int, body: Block) -> None:
        if self.groups > 1:  # which group it is moves all rows together
            body = substitute_in_stmt(body, {self._group: FixedIndex(0)})
        loop = For(var, 0, count, body)
        if count > 1 and not is_independent(loop, {**self.nodes, **self.made}):
            raise self._misfit("No row touches what another one writes.")

    # ----- nodes ----------------------------------------------------------------------------

    def _narrow(self, node: TensorNode) -> TensorNode:
        """Returns a node for what one iteration needs of another one."""
        info = self.nodes[node]
        dropped = self._dropped(node)
        dims = [self.size if at == self._homes[node][-1] else n for at, n in enumerate(info.dims)]
        row = TensorNode(node.id, (*node.label, "row"))
        kept = tuple(n for at, n in enumerate(dims) if at not in dropped)
        if info.padding:
            raise self._misfit("Nodes with margins keep their size.")
        self.made[row] = NodeInfo(info.dtype, kept)
        return row

    def _dropped(self, node: TensorNode) -> tuple[int, ...]:
        homes = self._homes[node]
        return homes if self.size == 1 else homes[:-1]

    def _partial_results(self, member: Member) -> TensorNode:
        reduction = member.nest.reduction
        assert reduction is not None
        node = TensorNode(member.written[0].id, (*member.written[0].label, "partial"))
        dims = (self.groups, *(axis.extent for axis in member.nest.cells))
        self.made[node] = NodeInfo(reduction.dtype, dims)
        return node

    @property
    def partial(self) -> tuple[TensorNode, ...]:
        """The nodes of partial results."""
        return tuple(self._partial.values())

    # ----- nests ----------------------------------------------------------------------------

    def inner_nests(self) -> tuple[CellNest, ...]:
        """Returns what each nest is inside of the shared loops."""
        return tuple(
            self._adding(at, each) if each.is_sum else self.inner(each)
            for at, each in enumerate(self.members)
        )

    def inner(self, member: Member) -> CellNest:
        """Returns what a nest is inside of the shared loops."""
        nest, reduction = member.nest, member.nest.reduction
        if reduction is not None:
            reduction = replace(
                reduction,
                term=self._placed(member, reduction.term),
                initial=self._placed(member, reduction.initial),
            )
        finish = tuple(self._placed_store(member, store) for store in nest.finish)
        return CellNest(self._inner_axes(member), reduction, finish)

    def _inner_axes(self, member: Member) -> tuple[Axis, ...]:
        kept = member.rows[-1] if self.size > 1 else ""
        return tuple(
            replace(axis, extent=self.size) if axis.name == kept else axis
            for axis in member.nest.axes
            if axis.name == kept or axis.name not in member.rows
        )

    def _values(self, member: Member) -> dict[IndexVar, AxisIndex]:
        values: dict[IndexVar, AxisIndex] = dict(zip(member.vars, self._numbers, strict=True))
        if self.size > 1:
            last = member.vars[-1]
            terms, _ = as_affine(self._numbers[-1])
            values[last] = affine([*((self.size * c, var) for c, var in terms), (1, last)])
        return values

    def _placed(self, member: Member, expr: Expr) -> Expr:
        """Returns an expression in a row, reading contracted nodes where they are."""

        def read(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices, dtype) if node in self._buffers:
                    return Load(self._buffers[node], self._row_places(member, node, indices), dtype)
                case _:
                    return expr

        return map_expr(substitute_in_expr(expr, self._values(member)), read)

    def _placed_store(self, member: Member, store: Store) -> Store:
        (placed,) = substitute_in_stmt(store, self._values(member)).stmts
        assert isinstance(placed, Store)
        value = self._placed(member, store.value)
        if store.node not in self._buffers:
            return replace(placed, value=value)
        places = self._row_places(member, store.node, placed.indices)
        return replace(placed, node=self._buffers[store.node], indices=places, value=value)

    def _row_places(
        self, member: Member, node: TensorNode, indices: tuple[AxisIndex, ...]
    ) -> tuple[AxisIndex, ...]:
        dropped, last = self._dropped(node), self._homes[node][-1]
        return tuple(
            VarIndex(member.vars[-1]) if at == last else index
            for at, index in enumerate(indices)
            if at not in dropped
        )

    # ----- sums over rows -------------------------------------------------------------------

    def _adding(self, position: int, member: Member) -> CellNest:
        """Returns a nest that adds one row to partial results."""
        reduction = member.nest.reduction
        assert reduction is not None
        group: AxisIndex = VarIndex(self._group) if self.groups > 1 else FixedIndex(0)
        cell = self._partial_cell(position, member.nest, group)
        term = self._placed(member, reduction.term)
        axes = self._inner_axes(member)
        if not any(axis.is_reduced for axis in axes):
            value = Binary(reduction.op, cell, term, reduction.dtype)
            return CellNest(axes, None, (Store(cell.node, cell.indices, value),))
        finish = (Store(cell.node, cell.indices, LocalRead(reduction.result)),)
        return CellNest(axes, replace(reduction, term=term, initial=cell), finish)

    def _partial_cell(self, position: int, nest: CellNest, group: AxisIndex) -> Load:
        node = self._partial[position]
        cells = [affine([(1, axis.var)], -axis.start) for axis in nest.cells]
        return Load(node, (group, *cells), self.made[node].dtype)

    def _cleared(self) -> Iterator[Stmt]:
        """Yields the loops that set partial results of a group to the neutral element."""
        group: AxisIndex = VarIndex(self._group) if self.groups > 1 else FixedIndex(0)
        for at, member in enumerate(self.members):
            if member.is_sum:
                reduction = member.nest.reduction
                assert reduction is not None
                cell = self._partial_cell(at, member.nest, group)
                store = Store(cell.node, cell.indices, reduction.neutral)
                yield from apply(CellNest(member.nest.cells, None, (store,)), ()).body.stmts

    def sums(self) -> tuple[CellNest, ...]:
        """Returns the nests that combine partial results."""
        return tuple(
            self._combining(at, each) for at, each in enumerate(self.members) if each.is_sum
        )

    def _combining(self, position: int, member: Member) -> CellNest:
        nest, reduction = member.nest, member.nest.reduction
        assert reduction is not None
        var = fresh_var(self._group.hint)
        cell = self._partial_cell(position, nest, VarIndex(var))
        axes = (*nest.cells, Axis("", var, 0, self.groups, is_reduced=True))
        named = tuple(replace(axis, name=AXIS_LETTERS[at]) for at, axis in enumerate(axes))
        combined: Reduction = replace(reduction, term=cell)
        return CellNest(named, combined, nest.finish)

    # ----- statements -----------------------------------------------------------------------

    def joined(self, tails: Sequence[Schedule]) -> Joined:
        """Returns the nests together, each by its own schedule.

        Raises:
            UsageError: if a schedule does not fit its nest, or a row needs another one.
        """
        stmts: list[Stmt] = [Allocate(row, Scope.KERNEL) for row in self._buffers.values()]
        for nest, tail in zip(self.inner_nests(), tails, strict=True):
            scheduled = apply(nest, tail)
            self.made.update(scheduled.nodes)
            stmts.append(Block(scheduled.body.stmts))
        stmts += [stmt for node in self.streamed for stmt in self._copied(node)]
        body = Block(tuple(stmts))
        own = tuple(Allocate(node, Scope.KERNEL) for node in self.partial)
        for var, count in reversed(self._loops):
            self._check_independent(var, count, Block((*own, *body.stmts)))
            body = Block((For(var, 0, count, body),))
        if self.groups > 1 or self.partial:
            whole = Block((*self._cleared(), *body.stmts))
            body = Block((For(self._group, 0, self.groups, whole),)) if self.groups > 1 else whole
        return Joined(body, self.sums(), self.partial, self.made)

    def _copied(self, node: TensorNode) -> tuple[Stmt, ...]:
        """Returns the loops that copy the complete row of a node to memory."""
        homes, row, dtype = self._homes[node], self._buffers[node], self.nodes[node].dtype
        target: list[AxisIndex] = []
        source: list[AxisIndex] = []
        loops: list[tuple[LoopVar, int]] = []
        for at, extent in enumerate(self.nodes[node].dims):
            var = fresh_var()
            number = self._numbers[homes.index(at)] if at in homes else FixedIndex(0)
            if at in self._dropped(node):
                target.append(number)
                continue
            count = self.size if at in homes else extent
            terms, _ = as_affine(number)
            target.append(affine([*((self.size * c, v) for c, v in terms), (1, var)]))
            source.append(VarIndex(var))
            loops.append((var, count))
        value = Load(row, tuple(source), dtype)
        stmt: Stmt = Store(node, tuple(target), value, is_streamed=True)
        for var, count in reversed(loops):
            stmt = For(var, 0, count, Block((stmt,)))
        return (stmt,)
