"""Inlining among kernel nests: a read of a node becomes the value that its reaching definition
stores.

    for j: d[j] = x[j] - m                            (nothing)
    for j: v += d[j] * d[j]                     -->   for j: v += (x[j] - m) * (x[j] - m)
    for j: d[j] = d[j] * s                            (nothing)
    for j: y[j] = d[j] + b[j]                         for j: y[j] = (x[j] - m) * s + b[j]

`passes.loops.inline` has inlined what is cheaper without memory in any loops. Here the nests are
known that share a pass over memory, and the nodes that leave the caches. The definition is a fill
(`initialize_reductions`), a store of the same nest (`forward_stores`), or a store of an earlier
nest, which is computed again (`rematerialize`, and row fusion). A node may be written several
times; the operands of a definition must have the same values at the read. A value is computed in
the format in which it would be stored, so all bits are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, IndexVar, Projections, is_surjective, variables
from ocannl_core.ir.kernels import nest_plan
from ocannl_core.ir.kernels.nest import Nest, is_independent
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import Const, Expr, Fill, Gather, Load, LoadMerge, Remark, Unary
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.passes.loops.inline.invert_indices import NoSolution, solve
from ocannl_core.schedule.cost_model import is_cheap
from ocannl_core.schedule.machine_model import MAX_EXPRESSION_DEPTH


def initialize_reductions(plan: nest_plan.NestPlan) -> nest_plan.NestPlan:
    """Forward fills to the reductions that they initialize.

    c[:] = 0.0; ...; c[i, j] += x  -->  ...; c[i, j] = 0.0 + x

    The pass `forward_fills` over loops forwards the other fills, and has moved all of them in
    front of the first use.
    """
    steps: list[nest_plan.NestStep | None] = list(plan.steps)
    for position, step in enumerate(plan.steps):
        fill = fill_of(step)
        if fill is None:
            continue
        for later in range(position + 1, len(steps)):
            reader = steps[later]
            if reader is not None and fill.node in nest_plan.mentioned(reader):
                started = _initialized(reader, fill, plan.nodes)
                if started is not None:
                    steps[later], steps[position] = started, None
                break
    return nest_plan.with_steps(plan, [step for step in steps if step is not None])


def fill_of(step: nest_plan.NestStep) -> Fill | None:
    """Return the fill that a step consists of, if it is one."""
    if not isinstance(step, Kernel):
        return None
    match [stmt for stmt in step.body.stmts if not isinstance(stmt, Remark)]:
        case [Fill() as fill]:
            return fill
        case _:
            return None


def _initialized(
    kernel: nest_plan.NestStep, fill: Fill, nodes: NodeInfos
) -> nest_plan.NestKernel | None:
    """Return a nest that starts from the number of a fill; None if it needs the filled cells."""
    if not isinstance(kernel, nest_plan.NestKernel):
        return None
    if fill.node not in kernel.nest.written:
        return None  # a reader alone, which later ones may follow
    info = nodes[fill.node]
    inliner = _Inliner(fill.node, info, filled=Const(fill.value, info.dtype))
    try:
        nest = inliner.nest(kernel.nest)
    except _NotInlinableError:
        return None
    return kernel.with_nest(nest) if inliner.overwrites else None


def forward_stores(plan: nest_plan.NestPlan) -> nest_plan.NestPlan:
    """Forward stores to the nodes of the routine that one kernel alone mentions.

    g[i, j] = total                          m[i, j] = 0.9 * m[i, j] + total
    m[i, j] = 0.9 * m[i, j] + g[i, j]  -->   w[i, j] = w[i, j] - 0.1 * total
    w[i, j] = w[i, j] - 0.1 * g[i, j]
    """
    uses = Counter(node for step in plan.steps for node in nest_plan.mentioned(step))
    own = {node for node in plan.scratch if uses[node] == 1}

    def without_own_stores(nest: Nest) -> Nest:
        for node in dict.fromkeys(store.node for store in nest.epilogue):
            if node in own:
                (found,) = inline_node((nest,), node, plan.nodes[node]) or (nest,)
                nest = found if found.epilogue else nest
        return nest

    return nest_plan.map_nests(plan, without_own_stores)


def rematerialize(plan: nest_plan.NestPlan, cache: int) -> nest_plan.NestPlan:
    """Compute large nodes of the routine in each kernel that reads them.

    for i, j: d[i, j] = x[i, j] - m[j]                 (nothing)
    for i, j: v[j] += d[i, j] * d[i, j]          -->   v[j] += the square of x[i, j] - m[j]
    for i, j: y[i, j] = d[i, j] * s[j]                 y[i, j] = (x[i, j] - m[j]) * s[j]

    Storing a node beyond the near caches and loading it again costs more than a few additions; the
    readers must load less than before. Row fusion decides the same later for nodes in a near cache.

    Args:
        cache: Bytes; nodes that fit are stored.
    """
    steps = plan.steps
    for node in plan.scratch:
        info = plan.nodes[node]
        if info.nbytes > cache and not info.padding:
            steps = _rematerialize_node(steps, node, plan.nodes)
    return nest_plan.with_steps(plan, steps)


def _rematerialize_node(
    steps: tuple[nest_plan.NestStep, ...], node: TensorNode, nodes: NodeInfos
) -> tuple[nest_plan.NestStep, ...]:
    """Return the steps without a node; the same ones if that is not possible, or no gain."""
    uses = [at for at, step in enumerate(steps) if node in nest_plan.mentioned(step)]
    if len(uses) < 2:
        return steps
    span = steps[uses[0] : uses[-1] + 1]
    kernels = [step for step in span if isinstance(step, nest_plan.NestKernel)]
    nests = [kernel.nest for kernel in kernels]
    if len(kernels) < len(span) or not _is_less(nests, node, nodes):
        return steps
    found = inline_node(nests, node, nodes[node])
    if found is None:
        return steps
    changed = [kernel.with_nest(nest) for kernel, nest in zip(kernels, found, strict=True)]
    left = [kernel for kernel in changed if kernel.nest.epilogue]
    return (*steps[: uses[0]], *left, *steps[uses[-1] + 1 :])


def _is_less(nests: Sequence[Nest], node: TensorNode, nodes: NodeInfos) -> bool:
    """Return True if the readers load less in place of a node than storing and loading it takes."""
    stores = [store for nest in nests for store in nest.epilogue if store.node is node]
    if len(stores) != 1:
        return False
    needed = set(traverse.nodes_of(stores[0].value))
    readers = [nest for nest in nests if node in nest.mentioned and stores[0] not in nest.epilogue]
    more = sum(nodes[each].nbytes for nest in readers for each in needed - nest.mentioned)
    return more < (len(readers) + 1) * nodes[node].nbytes


def inline_node(
    nests: Sequence[Nest],
    node: TensorNode,
    info: NodeInfo,
    rows: Sequence[int] = (),
    *,
    is_kept: bool = False,
) -> tuple[Nest, ...] | None:
    """Inline the definitions of a node into the nests that read it; None if that would change a
    value, or is expensive.

    Args:
        node: The node. They write every element of it before they read it.
        rows: Its axes along which the nests are at one position.
        is_kept: True if another kernel reads it, so that the last store stays.
    """
    inliner = _Inliner(node, info, rows)
    try:
        found = [inliner.nest(nest) for nest in nests]
    except _NotInlinableError:
        return None
    if is_kept and not inliner.overwrites:
        return None
    if any(count + is_kept > 1 and not is_cheap(each) for each, count in inliner.forwarded.items()):
        return None
    last = next((at for at in reversed(range(len(nests))) if node in found[at].written), 0)
    return tuple(
        _without_stores(nest, node, is_kept=is_kept and at == last) for at, nest in enumerate(found)
    )


def _without_stores(nest: Nest, node: TensorNode, *, is_kept: bool) -> Nest:
    """Return a nest without the stores to a node, but for the last one if the node is kept."""
    if node not in nest.written:
        return nest
    own = [at for at, store in enumerate(nest.epilogue) if store.node is node]
    dropped = own[:-1] if is_kept else own
    kept = (store for at, store in enumerate(nest.epilogue) if at not in dropped)
    return replace(nest, epilogue=tuple(kept))


class _NotInlinableError(Exception):
    """A read has no reaching definition that can be inlined."""


@dataclass(frozen=True, slots=True)
class _ReachingDefinition:
    """The reaching definition of the node."""

    value: Expr
    indices: tuple[AxisIndex, ...]
    ranges: Mapping[IndexVar, Range]
    is_inside: bool
    """True if the nest of the reads stores it."""
    is_complete: bool
    """True if it assigns every cell."""


class _Inliner:
    """The state of going through nests."""

    def __init__(
        self,
        node: TensorNode,
        info: NodeInfo,
        rows: Sequence[int] = (),
        filled: Const | None = None,
    ) -> None:
        self._node = node
        self._info = info
        self._rows = frozenset(rows)
        self._filled = filled
        self._definition: _ReachingDefinition | None = None
        self.overwrites = True
        """True if every store of the node so far assigns every cell."""
        self.forwarded: Counter[Expr] = Counter()
        """The reads of each value in the nest that stores it."""

    def nest(self, nest: Nest) -> Nest:
        """Return a nest that does not read the node."""
        if self._definition is not None:
            self._definition = replace(self._definition, is_inside=False)
        if self._node not in nest.mentioned:
            for store in nest.epilogue:
                self._invalidate(store.node)
            return nest
        if any(axis.is_shifting for axis in nest.axes):
            raise _NotInlinableError
        ranges = nest.ranges
        reduction = nest.reduction
        if reduction is not None:
            self._check_reuse(nest)
            term = self._inline_reads(reduction.term, ranges)
            if isinstance(reduction.term, Load) and term != reduction.term:
                term = Unary(UnaryOp.IDENTITY, term, term.dtype)  # the product was rounded
            initial = self._inline_reads(reduction.initial, ranges)
            reduction = replace(reduction, term=term, initial=initial)
        epilogue = []
        for store in nest.epilogue:
            new = replace(store, value=self._inline_reads(store.value, ranges))
            if traverse.depth(new) > MAX_EXPRESSION_DEPTH and new.value != store.value:
                raise _NotInlinableError
            epilogue.append(new)
            if store.node is not self._node:
                self._invalidate(store.node)
                continue
            self._filled = None
            is_complete = self._is_complete(store.indices, nest)
            self.overwrites &= is_complete
            cells: dict[IndexVar, Range] = {axis.var: ranges[axis.var] for axis in nest.output_axes}
            self._definition = _ReachingDefinition(
                new.value, store.indices, cells, True, is_complete
            )
        new_nest = Nest(nest.axes, reduction, tuple(epilogue))
        if not is_independent(new_nest):
            raise _NotInlinableError  # results would depend on each other
        return new_nest

    def _check_reuse(self, nest: Nest) -> None:
        axes = {axis.var for axis in nest.axes if axis.extent > 1}
        for each in traverse.walk(nest.required_reduction.term):
            if isinstance(each, Load) and each.node is self._node:
                used = {var for index in each.indices for var in variables(index)}
                if used and axes - used:
                    raise _NotInlinableError

    def _invalidate(self, written: TensorNode) -> None:
        """Drop the definition if a store overwrites one of its operands."""
        if self._definition is not None and written in traverse.nodes_of(self._definition.value):
            self._definition = None

    def _is_complete(self, indices: tuple[AxisIndex, ...], nest: Nest) -> bool:
        """Return True if a store assigns every cell of the node, in the rows of the nests."""
        if any(axis.start for axis in nest.output_axes):
            return False
        dims = self._info.buffer_dims
        inside = [at for at in range(len(dims)) if at not in self._rows]
        domain = tuple((axis.var, axis.extent) for axis in nest.output_axes)
        cell, extents = tuple(indices[at] for at in inside), tuple(dims[at] for at in inside)
        return is_surjective(Projections(domain, cell, (), extents, ()))

    def _inline_reads(self, expr: Expr, ranges: Mapping[IndexVar, Range]) -> Expr:
        """Return an expression with the definition of the node substituted for its loads."""

        def replace_load(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices) if node is self._node:
                    return self._filled or self._value_at(indices, ranges)
                case Gather(node) | LoadMerge(node) if node is self._node:
                    raise _NotInlinableError
                case _:
                    return expr

        return traverse.map_expr(expr, replace_load)

    def _value_at(self, indices: tuple[AxisIndex, ...], ranges: Mapping[IndexVar, Range]) -> Expr:
        definition = self._definition
        if definition is None:
            raise _NotInlinableError
        if definition.is_inside and definition.indices == indices:
            self.forwarded[definition.value] += 1
            return definition.value
        if not definition.is_complete or traverse.locals_of(definition.value):
            raise _NotInlinableError
        if not is_cheap(definition.value):
            raise _NotInlinableError
        try:
            found = solve(definition.indices, definition.ranges, indices, ranges)
        except NoSolution:
            found = None
        if found is None or found.conditions or found.kept:
            raise _NotInlinableError
        if definition.ranges.keys() - found.values.keys():
            raise _NotInlinableError
        return traverse.substitute_in_expr(definition.value, found.values)
