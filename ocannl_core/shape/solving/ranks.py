"""Relations between the ranks (numbers of axes) of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from ocannl_core.base.graphs import reachable
from ocannl_core.shape.language.constraints import (
    Constraint,
    RowBelow,
    RowJoin,
    Selection,
    Subscript,
)
from ocannl_core.shape.language.shape_terms import Row, RowVar
from ocannl_core.shape.solving.messages import rank_cycle
from ocannl_core.shape.solving.state import LeafTensor, SolverState, preferred_leaf

_SUSPICIOUS_DEPTH = 8
_MOST_AXES = 64
"""The most axes that a row gains from its operands; rows of a cycle may gain axes without end."""


def record(
    state: SolverState, longer: RowVar, shorter: RowVar, surplus: int, cause: Constraint
) -> None:
    """Record that a row variable has at least `surplus` more axes than another."""
    long_root, long_outside = state.roots.get(longer, (longer, 0))
    short_root, short_outside = state.roots.get(shorter, (shorter, 0))
    surplus += long_outside - short_outside
    if long_root == short_root and surplus <= 0:
        return
    known = state.rank_edges.get(long_root, {}).get(short_root)
    if known is None or known[0] < surplus:
        state.undo_log.put_inner(state.rank_edges, long_root, short_root, (surplus, cause))


def record_part(state: SolverState, var: RowVar, outer: RowVar, outside: int) -> None:
    """Record that a fresh variable is a part of the axes of another one."""
    root, outer_outside = state.root(outer)
    state.roots[var] = (root, outer_outside + outside)
    state.depths[var] = state.depths.get(outer, 0) + 1


def check_growth(state: SolverState, var: RowVar, cause: Constraint) -> None:
    """Search for a cycle if a row keeps growing.

    Raises:
        ShapeError: if the row is in a cycle of rows each longer than the next.
    """
    depth = state.depths.get(var, 0)
    if (
        depth >= _SUSPICIOUS_DEPTH
        and depth & (depth - 1) == 0
        and (circle := _positive_cycle(state, var))
    ):
        raise rank_cycle(cause, circle)


def _positive_cycle(state: SolverState, var: RowVar) -> list[Constraint]:
    """Return the causes of a cycle of rank edges with positive sum (Bellman-Ford), or none."""
    start, _ = state.root(var)
    best = {start: 0}
    length = {start: 0}
    came_from: dict[RowVar, RowVar] = {}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for there, (surplus, _) in state.rank_edges.get(here, {}).items():
            if best.get(there, best[here] + surplus - 1) < best[here] + surplus:
                best[there] = best[here] + surplus
                length[there] = length[here] + 1
                came_from[there] = here
                if length[there] > len(best):
                    return _cycle(state, came_from, there)
                queue.append(there)
    return []


def _cycle(state: SolverState, came_from: dict[RowVar, RowVar], var: RowVar) -> list[Constraint]:
    """Return the causes along the cycle that the predecessors of a variable lead to."""
    passed: set[RowVar] = set()
    while var not in passed:
        passed.add(var)
        var = came_from[var]
    causes: list[Constraint] = []
    last = var
    while True:
        before = came_from[var]
        causes.append(state.rank_edges[before][var][1])
        var = before
        if var == last:
            return causes


def implied_axes(state: SolverState, row: Row, *, closes_leaves: bool = False) -> int | None:
    """Return the number of axes that a row has because its operands have them.

    Return None if the rank of a leaf or of a declaration among the operands, or an equation of
    rows, is open: then uses that follow may add axes. Return None also for a cycle of rows, each
    longer than the next.

    Args:
        closes_leaves: True to let leaves, such as parameters that scale a computed row and have its
            axes, keep these as closing would: without another axis that a use demands.
    """
    flat = state.flat(row)
    known = len(flat.leading) + len(flat.trailing)
    if flat.tail is None:
        return known
    lengths: dict[RowVar, int] = {}  # beyond the known axes
    results: dict[RowVar, list[tuple[RowVar, int]]] = {}
    leaves: list[RowVar] = []
    pending = [flat.tail]
    while pending:
        var = pending.pop()
        if var in lengths:
            continue
        if equally_long(state, var) or _is_made_later(state, var):
            return None
        if (leaf := state.row_leaves.get(var)) is not None:
            if not (closes_leaves and has_stated_axes(state, leaf)):
                return None
            leaves.append(var)
        waiting = [
            each
            for each in state.suspended.get(var, ())
            if isinstance(each, RowBelow) and each.res.tail is var is not each.opnd.tail
        ]
        if not waiting and var not in state.anchored:
            return None  # nothing is known about it
        # closed operands wait where axes are named, and where the row may be a scalar
        lengths[var] = max([0, *[-_surplus(each) for each in waiting if each.opnd.tail is None]])
        for each in waiting:
            if (operand := each.opnd.tail) is not None:
                results.setdefault(operand, []).append((var, _surplus(each)))
                pending.append(operand)
    changed = deque(lengths)
    for _ in range(_MOST_AXES * len(lengths)):
        if not changed:
            break
        operand = changed.popleft()
        for var, surplus in results.get(operand, ()):
            if lengths[operand] - surplus > lengths[var]:
                lengths[var] = lengths[operand] - surplus
                changed.append(var)
    if changed or any(lengths[leaf] for leaf in leaves):
        return None
    if leaves and (upper_bounds(state, leaves) or known_axes(state, leaves)):
        return None
    return known + lengths[flat.tail]


def has_stated_axes(state: SolverState, leaf: LeafTensor) -> bool:
    """Return True if a leaf has axes, or was stated to have no output axes, as one number has."""
    return leaf.shape.output.is_closed or any(state.flat(row).known for _, row in leaf.shape.rows())


def _is_made_later(state: SolverState, var: RowVar) -> bool:
    """Return True if a row belongs to a subscript or a selection that waits for its operand."""
    return any(
        state.flat(row).tail == var
        for each in state.suspended.get(var, ())
        for row in made_rows(each)
    )


def made_rows(constraint: Constraint) -> Sequence[Row]:
    """Return the rows that a constraint makes of others."""
    match constraint:
        case Subscript(result=result):
            return [row for _, row in result.rows()]
        case Selection():
            return constraint.source if constraint.is_inserted else constraint.result
        case RowJoin(whole):
            return [whole]
        case _:
            return ()


def bounds(state: SolverState, var: RowVar) -> list[RowBelow]:
    """Return the suspended constraints whose operand has the variable, except reflexive ones."""
    found: list[RowBelow] = []
    for each in state.suspended.get(var, ()):  # not `[...]`, for one call less of a hot function
        if isinstance(each, RowBelow) and each.opnd.tail is var is not each.res.tail:
            found.append(each)
    return found


def open_operands(state: SolverState, var: RowVar) -> list[RowBelow]:
    """Return the suspended constraints by which the variable refines an open operand."""
    found: list[RowBelow] = []
    for each in state.suspended.get(var, ()):
        if isinstance(each, RowBelow) and each.res.tail is var is not each.opnd.tail is not None:
            found.append(each)
    return found


def equally_long(state: SolverState, var: RowVar) -> list[RowVar]:
    """Return the variables that an equation of rows makes equally long."""
    equations = state.equations.get(var)
    if not equations:
        return []
    tails = [tail for each in equations for tail in (each.left.tail, each.right.tail)]
    return [tail for tail in tails if tail is not None and tail != var]


def group(state: SolverState, var: RowVar) -> Collection[RowVar]:
    """Return a variable and all variables of the same length."""
    if not state.equations.get(var):
        return (var,)
    found = state.groups.get(var)
    if found is None:
        found = reachable([var], partial(equally_long, state))
        state.groups.update(dict.fromkeys(found, found))
    return found


def leaf_of(state: SolverState, var: RowVar) -> LeafTensor | None:
    """Return the leaf that decides how a row variable, and all of the same length, are closed."""
    if not state.equations.get(var):
        return state.row_leaves.get(var)
    found: LeafTensor | None = None
    for one in group(state, var):
        if (leaf := state.row_leaves.get(one)) is not None:
            found = preferred_leaf(found, leaf)
    return found


def is_anchored(state: SolverState, var: RowVar) -> bool:
    """Return True for a row above a closed operand, which needs no further axes."""
    return not state.anchored.keys().isdisjoint(group(state, var))


def is_contracted(state: SolverState, var: RowVar) -> bool:
    """Return True for a row that a contraction relates to another, so that no guess is allowed."""
    return any(state.contracted.get(one) for one in group(state, var))


def _surplus(constraint: RowBelow) -> int:
    return constraint.res.known - constraint.opnd.known


def upper_bounds(state: SolverState, wanted: Iterable[RowVar]) -> dict[RowVar, int]:
    """Return the upper bounds on numbers of axes from results, for the variables that have one."""
    region = sources(state, wanted)
    seeds: dict[RowVar, int] = {}
    for var in region:
        for constraint in bounds(state, var):
            if constraint.res.tail is None:
                seeds[var] = min(_surplus(constraint), seeds.get(var, _surplus(constraint)))
    return _nearest(state, region, seeds)


def missing_between(state: SolverState, together: Iterable[RowVar]) -> int:
    """Return the least number of axes by which rows of specs, with axes before their variable, are
    shorter than their results with known axes.
    """
    held = [
        each
        for var in together
        for each in bounds(state, var)
        if each.is_written and each.opnd.leading
    ]
    return max(0, min(map(_surplus, held), default=0))


def known_axes(state: SolverState, wanted: Iterable[RowVar]) -> dict[RowVar, int]:
    """Return, for variables with results of known axes, the least number of these axes; at least
    the number that a spec names.
    """
    region = sources(state, wanted)
    informed = _informed(state, region)
    seeds: dict[RowVar, int] = {}
    for var in region:
        for constraint in bounds(state, var):
            surplus = _surplus(constraint)
            if surplus > 0 and constraint.res.tail not in informed:
                seeds[var] = min(surplus, seeds.get(var, surplus))
        if var in seeds:
            seeds[var] = max(seeds[var], *(map(_named_surplus, bounds(state, var))))
    return _nearest(state, region, seeds)


def _named_surplus(constraint: RowBelow) -> int:
    """Return the number of axes named by a spec that the operand lacks."""
    return sum(constraint.named) - len(constraint.opnd.dims)


def sources(state: SolverState, wanted: Iterable[RowVar]) -> dict[RowVar, None]:
    """Return the variables that can propagate information to the given ones."""

    def informants(var: RowVar) -> list[RowVar]:
        results = [each.res.tail for each in bounds(state, var)]
        return [tail for tail in results if tail is not None] + equally_long(state, var)

    return reachable(wanted, informants)


def reachable_rows(state: SolverState, start: Iterable[RowVar]) -> list[RowVar]:
    """Return the given open row variables and the variables that they propagate information to."""
    opened = [var for var in start if var not in state.rows]
    return list(reachable(opened, partial(_informs, state)))


def _informs(state: SolverState, var: RowVar) -> list[RowVar]:
    """Return the variables that a variable propagates information to."""
    found = equally_long(state, var) if state.equations.get(var) else []
    operands = [each.opnd.tail for each in open_operands(state, var) if each.opnd.tail]
    return operands + found


def _informed(state: SolverState, region: dict[RowVar, None]) -> dict[RowVar, None]:
    start = [var for var in region if any(_surplus(c) > 0 for c in bounds(state, var))]
    return reachable(start, lambda var: (one for one in _informs(state, var) if one in region))


def _nearest(
    state: SolverState, region: dict[RowVar, None], seeds: dict[RowVar, int]
) -> dict[RowVar, int]:
    """Return the least sums of seed and surpluses along the constraints (Dijkstra)."""
    found: dict[RowVar, int] = {}
    heap = [(value, var.id, var) for var, value in seeds.items()]
    heapify(heap)
    while heap:
        value, _, var = heappop(heap)
        if var in found:
            continue
        found[var] = value
        for other in equally_long(state, var):
            if other in region and other not in found:
                heappush(heap, (value, other.id, other))
        for constraint in open_operands(state, var):
            tail = constraint.opnd.tail
            if tail is not None and tail in region and tail not in found:
                heappush(heap, (value + _surplus(constraint), tail.id, tail))
    return found
