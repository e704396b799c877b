"""Apply row fusion: the loops over rows, and each nest inside of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    VarIndex,
    affine,
    affine_sum,
    fresh_var,
    substitute,
)
from ocannl_core.ir.kernels.dependence import access_set, iterations_are_independent
from ocannl_core.ir.kernels.nest import (
    LoopAxis,
    Nest,
    Reduction,
    map_parts,
    nodes_read,
    substitute_in_store,
    with_letters,
    with_nodes,
    with_value,
)
from ocannl_core.ir.kernels.nest_plan import NestKernel
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos, kernel_of
from ocannl_core.ir.kernels.row_fusion import (
    Member,
    RowFusion,
    find_row_dims,
    nodes_written_by_rows,
)
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.passes.kernels.find_constants import with_constants
from ocannl_core.passes.kernels.fusion import fuse_over_one_domain
from ocannl_core.passes.kernels.inline_nodes import inline_node
from ocannl_core.passes.kernels.rows.buffer_reuse import reuse_buffers
from ocannl_core.passes.kernels.rows.skipped_columns import (
    SkippedColumns,
    skip_columns,
    without_ends,
)
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.rules.decision import Rule, ScheduleDecision, products_of_rows


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """A row group with schedules."""

    kernel: Kernel
    sums: tuple[NestKernel, ...]
    """Kernels that combine partial results of sums over rows, without schedules."""
    partial: tuple[TensorNode, ...]
    """The nodes of those results: memory of the routine."""
    nodes: Mapping[TensorNode, NodeInfo]


def fuse_group(fusion: RowFusion, rule: Rule, nodes: Mapping[TensorNode, NodeInfo]) -> FusedKernel:
    """Fuse a row group; each nest has the rule's schedule inside of the shared loops."""
    loops = FusedLoops(fusion, nodes)
    decisions = list(loops.decide(rule))
    schedules = [each.schedule or () for each in decisions]
    body = loops.build(schedules)
    outer = [each for each in fusion.members if each.reduces_rows and not each.reduces_inner_rows]
    return FusedKernel(
        replace(
            kernel_of(body, fusion.title),
            schedule=fusion.schedule(schedules),
            products=products_of_rows(fusion, decisions),
        ),
        tuple(map(NestKernel, loops.sums(), [each.title for each in outer])),
        loops.partial,
        loops.new_nodes,
    )


@dataclass(slots=True)
class FusedLoops:
    """Nests inside of shared loops over rows, before each has its own schedule.

    Two members over `i`, whose node `m` is folded, with groups and blocks of two rows:

        for i, j: m[i, j] = x[i, j] * 2              for g:              # `_group`
        for i, j: y[i, j] = m[i, j] + 1                 for r:           # `loops`
                                                           for i, j: ... # two `inner_nests`

    An inner nest keeps `i` as an axis for the rows of a block, reads row `_numbers` of `x`, which
    is `2 * (n * g + r) + i`, and writes cell `i, j` of a node of `buffers` in place of `m`.
    """

    fusion: RowFusion
    nodes: NodeInfos
    """The nodes of the members."""
    new_nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    """Extents and formats of `buffers` and `_partial`, and later those of schedules."""
    loops: list[tuple[LoopVar, int]] = field(init=False)
    """The variables and iterations of the shared loops, outermost first, without the groups."""
    _group: LoopVar = field(init=False)
    """The variable of the loop over groups of rows, around `loops`."""
    _numbers: list[AxisIndex] = field(init=False)
    """For each shared loop the number of the row, or of the block of rows at the last one."""
    _row_dims: dict[TensorNode, tuple[int, ...]] = field(init=False)
    """For each node that members write, its axes that are rows."""
    buffers: dict[TensorNode, TensorNode] = field(init=False)
    """For each folded node the node that holds its rows of one iteration."""
    _partial: dict[int, TensorNode] = field(init=False)
    """For the position of each member that sums over rows, the sums so far."""
    _skipped: SkippedColumns = field(init=False)

    def __post_init__(self) -> None:
        axes = self._shared_axes()
        counts = [axis.extent for axis in axes]
        counts[-1] //= self.fusion.size
        counts[0] //= self.fusion.groups
        self.loops = [(fresh_var(axis.var.hint), n) for axis, n in zip(axes, counts, strict=True)]
        self._group = fresh_var(axes[0].var.hint)
        self._numbers = [VarIndex(var) for var, _ in self.loops]
        if self.fusion.groups > 1:
            var, count = self.loops[0]
            self._numbers[0] = affine([(count, self._group), (1, var)])
        row_dims = find_row_dims(self.fusion.members)
        if row_dims is None:
            raise self._misfit(
                "A node that is written has an axis of its own for each shared axis."
            )
        self._row_dims = row_dims
        self.buffers = {node: self._fold_node(node) for node in self.fusion.folded}
        self._partial = {}
        for at, member in enumerate(self.fusion.members):
            if member.reduces_rows:
                self._check_sum(at, member)
            if self._is_accumulating(member):
                self._partial[at] = self._allocate_partial(member)
        self._skipped = skip_columns(self.fusion)

    def _shared_axes(self) -> tuple[LoopAxis, ...]:
        first = self.fusion.members[0].axes
        shapes = [[axis.domain for axis in member.axes] for member in self.fusion.members]
        kinds = [[axis.is_reduced for axis in member.axes] for member in self.fusion.members]
        if not first or any(shape != shapes[0] for shape in shapes) or shapes[0][0][1] == 0:
            raise self._misfit("Nests that run together have rows of equal extents.")
        if any(axis.start for axis in first):
            raise self._misfit("Rows count from 0.")
        inner = [kind for kind in kinds if len(set(kind)) > 1]
        if any(sum(kind) > 1 or not kind[-1] for kind in inner):
            raise self._misfit(
                "The shared axes of a nest are all reduced, or none of them but the last."
            )
        if inner and (self.fusion.groups > 1 or any(all(kind) for kind in kinds)):
            raise self._misfit("All sums are over the rows of the same loops.")
        if any(axis.is_shifting for member in self.fusion.members for axis in member.nest.axes):
            raise self._misfit("Nests with shifting axes do not run together with others.")
        last = first[-1].extent
        rest = last // self.fusion.size if len(first) == 1 else first[0].extent
        if last % self.fusion.size or rest % self.fusion.groups:
            raise self._misfit("Rows are divided into equal parts.")
        return first

    def _misfit(self, rule: str) -> UsageError:
        rows = "; ".join(f"rows {' '.join(member.rows)}" for member in self.fusion.members)
        return UsageError(rule, found=f"{rows} by {self.fusion.size} in {self.fusion.groups}")

    def _check_sum(self, position: int, member: Member) -> None:
        others = [other for at, other in enumerate(self.fusion.members) if at != position]
        last = member.epilogue_nodes
        if any(not last.isdisjoint(other.written) for other in others) or any(
            not other.nest.mentioned.isdisjoint(member.written) for other in others
        ):
            raise self._misfit("The result of a sum over rows is for later kernels.")

    def _is_accumulating(self, member: Member) -> bool:
        """Return True if a nest adds to partial results: over rows of more than one block."""
        return member.reduces_rows and not (member.reduces_inner_rows and self.loops[-1][1] == 1)

    def check_independent(self, var: LoopVar, count: int, body: ir.Block) -> None:
        if self.fusion.groups > 1:  # the number of the group moves all rows alike
            body = traverse.substitute_in_stmt(body, {self._group: FixedIndex(0)})
        loop = ir.For(var, 0, count, body)
        if count > 1 and not iterations_are_independent(loop, access_set(loop)):
            raise self._misfit("No row accesses elements that another row writes.")

    def _fold_node(self, node: TensorNode) -> TensorNode:
        """Allocate a node of the size that one iteration uses of another node."""
        info = self.nodes[node]
        dropped = self._dropped_dims(node)
        dims = [
            self.fusion.size if at == self._row_dims[node][-1] else n
            for at, n in enumerate(info.dims)
        ]
        row = TensorNode(node.id, (*node.label, "row"))
        kept = tuple(n for at, n in enumerate(dims) if at not in dropped)
        if info.padding:
            raise self._misfit("Nodes with margins keep their size.")
        self.new_nodes[row] = NodeInfo(info.dtype, kept)
        return row

    def _dropped_dims(self, node: TensorNode) -> tuple[int, ...]:
        row_dims = self._row_dims[node]
        return row_dims if self.fusion.size == 1 else row_dims[:-1]

    def _allocate_partial(self, member: Member) -> TensorNode:
        reduction = member.nest.required_reduction
        node = TensorNode(member.written[0].id, (*member.written[0].label, "partial"))
        groups = () if member.reduces_inner_rows else (self.fusion.groups,)
        dims = (*groups, *(axis.extent for axis in self._partial_axes(member)))
        self.new_nodes[node] = NodeInfo(reduction.dtype, dims)
        return node

    def _partial_axes(self, member: Member) -> tuple[LoopAxis, ...]:
        """Return the axes of partial results, without the axis of groups."""
        return tuple(axis for axis in member.nest.output_axes if axis.name not in member.rows)

    @property
    def partial(self) -> tuple[TensorNode, ...]:
        """The nodes of partial results that outlive the loops."""
        members = self.fusion.members
        return tuple(n for at, n in self._partial.items() if not members[at].reduces_inner_rows)

    def inner_nests(self) -> tuple[Nest | None, ...]:
        """Return the nests inside of the shared loops, with those merged that run along others;
        None for a nest without stores.

        Raises:
            UsageError: if a nest cannot run along another one, or a node cannot be inlined.
        """
        nests = self._nests()
        for node in self.fusion.inlined:
            changed = self._inline(nests, node)
            if changed is None:
                raise self._misfit(
                    "A node is inlined only if its definition has the same value at every read."
                )
            nests = changed
        loops: list[Nest | None] = []
        for at, nest in enumerate(nests):
            if at not in self.fusion.along:
                loops.append(nest if nest.epilogue else None)
                continue
            before = next((n for n in range(len(loops) - 1, -1, -1) if loops[n]), None)
            first = loops[before] if before is not None else None
            both = fuse_over_one_domain(first, nest) if first is not None else None
            if both is None or before is None:
                raise self._misfit(
                    "Nests that run along have one domain, and no dependence between its points."
                )
            loops[before] = both
        around = tuple(self.loops)
        if self.fusion.groups > 1:
            around = ((self._group, self.fusion.groups), *around)
        return tuple(nest and replace(nest, around=around) for nest in loops)

    def refine(self) -> RowFusion:
        """Return the fusion with inlined nodes, and with nests that can run along others."""
        nests = self._nests()
        inlined: list[TensorNode] = []
        for node in nodes_written_by_rows(self.fusion.members):
            changed = self._inline(nests, node)
            if changed is not None:
                nests = changed
                inlined.append(node)
        along: set[int] = set()
        loop: Nest | None = None
        for at, nest in enumerate(nests):
            if not nest.epilogue:
                continue
            both = fuse_over_one_domain(loop, nest) if loop is not None else None
            if both is not None:
                along.add(at)
            loop = both or nest
        return replace(
            self.fusion,
            along=frozenset(along),
            inlined=tuple(inlined),
            streamed=tuple(
                node
                for node in self.fusion.streamed
                if not any(node in nodes_read(n) for n in nests)
            ),
        )

    def _nests(self) -> tuple[Nest, ...]:
        return tuple(self._rewrite_nest(at, each) for at, each in enumerate(self._skipped.members))

    def _inline(self, nests: tuple[Nest, ...], node: TensorNode) -> tuple[Nest, ...] | None:
        if node in self.buffers:
            row = self.buffers[node]
            return inline_node(nests, row, self.new_nodes[row])
        if not any(node in nodes_read(nest) for nest in nests):
            return None
        return inline_node(nests, node, self.nodes[node], rows=self._row_dims[node], is_kept=True)

    def _rewrite_nest(self, position: int, member: Member) -> Nest:
        is_partial = self._is_accumulating(member)
        nest = self._accumulate(position, member) if is_partial else self.inner_nest(member)
        if position not in self._skipped.columns:
            return nest
        size = self.fusion.size
        last_row = affine_sum((size, self._numbers[-1]), (1, FixedIndex(size - 1)))
        return replace(nest, axes=self._skipped.end_columns(position, nest.axes, last_row))

    def inner_nest(self, member: Member) -> Nest:
        """Return a nest as it is inside of the shared loops."""
        nest = map_parts(
            member.nest, partial(self._rewrite_expr, member), partial(self._rewrite_store, member)
        )
        return replace(nest, axes=self._inner_axes(member))

    def _inner_axes(self, member: Member) -> tuple[LoopAxis, ...]:
        kept = member.rows[-1] if self.fusion.size > 1 else ""
        values = self._substitution(member)
        return tuple(
            self._row_axis(axis, values) if axis.name == kept else axis
            for axis in member.nest.axes
            if axis.name == kept or axis.name not in member.rows
        )

    def _row_axis(self, axis: LoopAxis, values: Mapping[IndexVar, AxisIndex]) -> LoopAxis:
        bound = axis.bound
        if bound is not None:
            bound = replace(bound, index=substitute(bound.index, values))
        return replace(axis, extent=self.fusion.size, bound=bound)

    def bound(self, at: int) -> ir.LoopBound | None:
        """Return the end at run time of a shared loop, in which the first row of a block counts."""
        size = self.fusion.size if at == len(self.loops) - 1 else 1
        return self.fusion.members[0].axes[at].bound_at(affine_sum((size, self._numbers[at])))

    def _substitution(self, member: Member) -> dict[IndexVar, AxisIndex]:
        values: dict[IndexVar, AxisIndex] = dict(zip(member.vars, self._numbers, strict=True))
        if self.fusion.size > 1:
            last = member.vars[-1]
            values[last] = affine_sum((self.fusion.size, self._numbers[-1]), (1, VarIndex(last)))
        return values

    def _rewrite_expr(self, member: Member, expr: ir.Expr) -> ir.Expr:
        def read(expr: ir.Expr) -> ir.Expr:
            match expr:
                case ir.Load(node, indices, dtype) if node in self.buffers:
                    return ir.Load(
                        self.buffers[node], self._folded_indices(member, node, indices), dtype
                    )
                case _:
                    return expr

        return traverse.map_expr(
            traverse.substitute_in_expr(expr, self._substitution(member)), read
        )

    def _rewrite_store(self, member: Member, store: ir.Store) -> ir.Store:
        rewritten = substitute_in_store(store, self._substitution(member))
        value = self._rewrite_expr(member, store.value)
        if store.node not in self.buffers:
            return replace(rewritten, value=value, is_streamed=store.node in self.fusion.streamed)
        indices = self._folded_indices(member, store.node, rewritten.indices)
        return replace(rewritten, node=self.buffers[store.node], indices=indices, value=value)

    def _folded_indices(
        self, member: Member, node: TensorNode, indices: tuple[AxisIndex, ...]
    ) -> tuple[AxisIndex, ...]:
        dropped, last = self._dropped_dims(node), self._row_dims[node][-1]
        return tuple(
            VarIndex(member.vars[-1]) if at == last else index
            for at, index in enumerate(indices)
            if at not in dropped
        )

    def share_buffers(self, nests: Sequence[Nest | None]) -> tuple[Nest | None, ...]:
        """Return the nests with folded nodes in the buffers of others where live ranges allow."""
        known = [nest for nest in nests if nest is not None]
        buffers = reuse_buffers(known, tuple(self.buffers.values()), self.new_nodes)

        return tuple(with_nodes(nest, buffers) if nest is not None else None for nest in nests)

    def _accumulate(self, position: int, member: Member) -> Nest:
        reduction = member.nest.required_reduction
        cell = self._partial_cell(position, member, self._own_group())
        term = self._rewrite_expr(member, reduction.term)
        axes = self._inner_axes(member)
        if not any(axis.is_reduced for axis in axes):
            value = ir.Binary(reduction.op, cell, term, reduction.dtype)
            return Nest(axes, None, (ir.Store(cell.node, cell.indices, value),))
        epilogue = (ir.Store(cell.node, cell.indices, ir.LocalRead(reduction.result)),)
        return Nest(axes, replace(reduction, term=term, initial=cell), epilogue)

    def _own_group(self) -> AxisIndex:
        return VarIndex(self._group) if self.fusion.groups > 1 else FixedIndex(0)

    def _partial_cell(self, position: int, member: Member, group: AxisIndex) -> ir.Load:
        node = self._partial[position]
        groups = () if member.reduces_inner_rows else (group,)
        cells = [affine([(1, axis.var)], -axis.start) for axis in self._partial_axes(member)]
        return ir.Load(node, (*groups, *cells), self.new_nodes[node].dtype)

    def _clear_partial(self, *, inner: bool) -> Iterator[ir.Stmt]:
        for at in self._partial:
            member = self.fusion.members[at]
            reduction = member.nest.reduction
            if member.reduces_inner_rows is inner and reduction is not None:
                cell = self._partial_cell(at, member, self._own_group())
                store = ir.Store(cell.node, cell.indices, reduction.neutral)
                yield from apply_schedule(
                    Nest(self._partial_axes(member), None, (store,)), ()
                ).loops

    def _complete_sums(self) -> Iterator[ir.Stmt]:
        """Yield the epilogues of the sums over the rows of the innermost shared loop."""
        for at in self._partial:
            member = self.fusion.members[at]
            reduction = member.nest.reduction
            if not member.reduces_inner_rows or reduction is None:
                continue
            total: ir.Expr = self._partial_cell(at, member, FixedIndex(0))
            if not reduction.starts_neutral:
                total = ir.Binary(reduction.op, reduction.initial, total, reduction.dtype)
            epilogue = tuple(
                self._substitute_total(member, store, total) for store in member.nest.epilogue
            )
            yield from apply_schedule(Nest(self._partial_axes(member), None, epilogue), ()).loops

    def _substitute_total(self, member: Member, store: ir.Store, total: ir.Expr) -> ir.Store:
        reduction = member.nest.required_reduction
        store = with_value(store, ir.LocalRead(reduction.result), total)
        return substitute_in_store(store, self._substitution(member))

    def sums(self) -> tuple[Nest, ...]:
        """Return the nests that combine partial results."""
        return tuple(
            self._combine_partial(at, each)
            for at, each in enumerate(self.fusion.members)
            if each.reduces_rows and not each.reduces_inner_rows
        )

    def _combine_partial(self, position: int, member: Member) -> Nest:
        nest, reduction = member.nest, member.nest.required_reduction
        var = fresh_var(self._group.hint)
        cell = self._partial_cell(position, member, VarIndex(var))
        axes = (*nest.output_axes, LoopAxis("", var, 0, self.fusion.groups, is_reduced=True))
        combined: Reduction = replace(reduction, term=cell)
        return Nest(with_letters(axes), combined, nest.epilogue)

    def decide(self, rule: Rule) -> Iterator[ScheduleDecision]:
        """Yield the decisions of a rule inside of the shared loops."""
        known = {**self.nodes, **self.new_nodes}
        for nest in self.inner_nests():
            found = ScheduleDecision(None)
            if nest is not None:
                found = rule(with_constants(nest, self.loops[-1][1], self._is_invariant), known)
            yield replace(found, schedule=found.schedule or ())

    def _is_invariant(self, root: traverse.Node) -> bool:
        """Return True if code in the innermost shared loop depends on no rows and no results."""
        var, count = self.loops[-1]
        if count == 1 or not {var, self._group}.isdisjoint(traverse.free_variables(root)):
            return False
        written = {*self._row_dims, *self.buffers.values(), *self._partial.values()}
        return written.isdisjoint(traverse.nodes_of(root))

    def _reach_to_tiles(self, schedules: Sequence[Schedule]) -> None:
        """Let nests compute the hidden columns in register tiles of sums over rows. The number of
        these columns does not change the tiles.
        """
        if not self._skipped.sums:
            return
        loops = (at for at in range(len(self.fusion.members)) if at not in self.fusion.along)
        nests = dict(zip(loops, zip(self.inner_nests(), schedules, strict=True), strict=True))
        self._skipped = self._skipped.with_tiles(
            (nest, schedule, self._skipped.columns[at])
            for at, (nest, schedule) in nests.items()
            if at in self._skipped.sums and nest is not None
        )

    def build(self, schedules: Sequence[Schedule]) -> ir.Block:
        """Build the fused loops, each nest by its own schedule; add the nodes that they need.

        Raises:
            UsageError: if a schedule does not fit its nest, or a row depends on another one.
        """
        self._reach_to_tiles(schedules)
        nests = self.share_buffers(self.inner_nests())
        once: list[ir.Stmt] = []
        stmts: list[ir.Stmt] = []
        for nest, schedule in zip(nests, schedules, strict=True):
            if nest is None:
                continue
            scheduled = apply_schedule(nest, schedule)
            self.new_nodes.update(scheduled.nodes)
            shared = frozenset((self._group, *(var for var, _ in self.loops)))
            scheduled = replace(scheduled, packing=without_ends(scheduled.packing, shared))
            is_invariant = self._is_invariant(ir.Block(scheduled.packing))
            if is_invariant:
                once += scheduled.packing
                scheduled = replace(scheduled, packing=())
            stmts.append(scheduled.body)
        used = {node for nest in nests if nest is not None for node in nest.mentioned}
        rows = [row for row in self.buffers.values() if row in used]
        body = ir.Block((*(ir.Allocate(row, ir.Scope.KERNEL) for row in rows), *stmts))
        own = tuple(ir.Allocate(node, ir.Scope.KERNEL) for node in self._partial.values())
        inner = [each for each in own if each.node not in self.partial]
        before = (*once, *inner, *self._clear_partial(inner=True))
        after = tuple(self._complete_sums())
        for at, (var, count) in reversed(list(enumerate(self.loops))):
            self.check_independent(var, count, ir.Block((*own, *body.stmts)))
            loop = ir.For(var, 0, count, body, bound=self.bound(at))
            body = ir.Block((*before, loop, *after))
            before = after = ()
        if self.fusion.groups > 1 or self.partial:
            whole = ir.Block((*self._clear_partial(inner=False), *body.stmts))
            body = whole
            if self.fusion.groups > 1:
                body = ir.Block((ir.For(self._group, 0, self.fusion.groups, whole),))
        return body
