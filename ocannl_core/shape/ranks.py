"""How many axes rows have, relative to each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from ocannl_core.shape.constraints import Constraint, RowBelow, RowEqual
from ocannl_core.shape.messages import rank_cycle
from ocannl_core.shape.state import LeafTensor, State, stronger
from ocannl_core.shape.terms import RowVar

_SUSPICIOUS_DEPTH = 16


# ----- growing without end ------------------------------------------------------------------------


def record(state: State, longer: RowVar, shorter: RowVar, surplus: int, cause: Constraint) -> None:
    """Record that one row variable stands for at least `surplus` more axes than another."""
    long_root, long_outside = state.root(longer)
    short_root, short_outside = state.root(shorter)
    surplus += long_outside - short_outside
    if long_root == short_root and surplus <= 0:
        return
    edges = state.rank_edges.get(long_root, {})
    if edges.get(short_root, surplus - 1) < surplus:
        state.put_inner(state.rank_edges, long_root, short_root, surplus)
        state.put_inner(state.rank_causes, long_root, short_root, cause)


def born_within(state: State, var: RowVar, outer: RowVar, outside: int) -> None:
    """Record that a new variable is a part of what another one stands for."""
    root, outer_outside = state.root(outer)
    state.roots[var] = (root, outer_outside + outside)
    state.depths[var] = state.depths.get(outer, 0) + 1


def check_growth(state: State, var: RowVar, cause: Constraint) -> None:
    """Look for a circle when a row keeps growing.

    Raises:
        ShapeError: if the row takes part in a circle of rows each longer than the next.
    """
    depth = state.depths.get(var, 0)
    if (
        depth >= _SUSPICIOUS_DEPTH
        and depth & (depth - 1) == 0
        and (circle := _gaining_circle(state, var))
    ):
        raise rank_cycle(cause, circle)


def _gaining_circle(state: State, var: RowVar) -> list[Constraint]:
    """Return the causes of rank edges that form a circle with a positive sum, if one can be
    reached (Bellman and Ford); otherwise nothing.
    """
    start, _ = state.root(var)
    best = {start: 0}
    length = {start: 0}
    came_from: dict[RowVar, RowVar] = {}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for there, surplus in state.rank_edges.get(here, {}).items():
            if best.get(there, best[here] + surplus - 1) < best[here] + surplus:
                best[there] = best[here] + surplus
                length[there] = length[here] + 1
                came_from[there] = here
                if length[there] > len(best):
                    return _circle(state, came_from, there)
                queue.append(there)
    return []


def _circle(state: State, came_from: dict[RowVar, RowVar], var: RowVar) -> list[Constraint]:
    """Return the causes along the circle that the way back from a variable ends in."""
    passed: set[RowVar] = set()
    while var not in passed:
        passed.add(var)
        var = came_from[var]
    causes: list[Constraint] = []
    last = var
    while True:
        before = came_from[var]
        causes.append(state.rank_causes[before][var])
        var = before
        if var == last:
            return causes


# ----- the greatest number of axes ----------------------------------------------------------------


def bounds(state: State, var: RowVar) -> Iterator[RowBelow]:
    """Yield the suspended constraints in which the variable is the operand's, not to itself."""
    for constraint in state.suspended.get(var, ()):
        if not isinstance(constraint, RowBelow) or constraint.opnd.tail != var:
            continue
        if constraint.res.tail != var:
            yield constraint


def open_operands(state: State, var: RowVar) -> Iterator[RowBelow]:
    """Yield the suspended constraints that make the variable refine an open operand."""
    for constraint in state.suspended.get(var, ()):
        if not isinstance(constraint, RowBelow) or constraint.res.tail != var:
            continue
        if constraint.opnd.tail not in (None, var):
            yield constraint


def linked(state: State, var: RowVar) -> Iterator[RowVar]:
    """Yield the variables that an equation of rows makes stand for as many axes."""
    for constraint in state.suspended.get(var, ()):
        if isinstance(constraint, RowEqual):
            for tail in (constraint.left.tail, constraint.right.tail):
                if tail is not None and tail != var:
                    yield tail


def group(state: State, var: RowVar) -> list[RowVar]:
    """Return a variable and all those that must stand for as many axes."""
    found: dict[RowVar, None] = {}
    pending = [var]
    while pending:
        one = pending.pop()
        if one not in found:
            found[one] = None
            pending += linked(state, one)
    return list(found)


def leaf_of(state: State, var: RowVar) -> LeafTensor | None:
    """Return the leaf that decides how a row variable closes, and all that are as long with it."""
    found: LeafTensor | None = None
    for one in group(state, var):
        if (leaf := state.row_leaves.get(one)) is not None:
            found = stronger(found, leaf)
    return found


def is_anchored(state: State, var: RowVar) -> bool:
    """Return True for a row above a closed operand, which therefore needs no more axes."""
    return any(state.anchored.get(one) for one in group(state, var))


def is_contracted(state: State, var: RowVar) -> bool:
    """Return True for a row that meets another one in a product: its axes are not free to guess."""
    return any(state.contracted.get(one) for one in group(state, var))


def _surplus(constraint: RowBelow) -> int:
    return len(constraint.res.dims) - len(constraint.opnd.dims)


def limits(state: State, wanted: Iterable[RowVar]) -> dict[RowVar, int]:
    """Return the greatest numbers of axes that results leave room for, where there is a limit."""
    region = _behind(state, wanted)
    seeds: dict[RowVar, int] = {}
    for var in region:
        for constraint in bounds(state, var):
            if constraint.res.tail is None:
                seeds[var] = min(_surplus(constraint), seeds.get(var, _surplus(constraint)))
    return _nearest(state, region, seeds)


def missing_between(state: State, together: Iterable[RowVar]) -> int:
    """Return how many axes rows of specifications with axes before a variable lack to be as long
    as their results, as far as these are known; the least of the numbers for some variables.
    """
    held = [
        each
        for var in together
        for each in bounds(state, var)
        if each.is_written and each.opnd.leading
    ]
    return max(0, min(map(_surplus, held), default=0))


def known_axes(state: State, wanted: Iterable[RowVar]) -> dict[RowVar, int]:
    """Return, for the variables that have results with known axes, the least number of these;
    at least as many as a specification names.
    """
    region = _behind(state, wanted)
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
    """Return how many axes the operand lacks of those that a specification names."""
    return sum(constraint.named) - len(constraint.opnd.dims)


def _behind(state: State, wanted: Iterable[RowVar]) -> dict[RowVar, None]:
    """Return the variables from which the wanted ones can learn."""
    region: dict[RowVar, None] = {}
    pending = list(wanted)
    while pending:
        var = pending.pop()
        if var in region:
            continue
        region[var] = None
        pending += [c.res.tail for c in bounds(state, var) if c.res.tail is not None]
        pending += linked(state, var)
    return region


def reached(state: State, start: Iterable[RowVar]) -> list[RowVar]:
    """Return the open row variables that can learn from some, and those themselves."""
    seen: dict[RowVar, None] = {}
    pending = [var for var in start if var not in state.rows]
    while pending:
        var = pending.pop()
        if var not in seen:
            seen[var] = None
            pending += [c.opnd.tail for c in open_operands(state, var) if c.opnd.tail]
            pending += linked(state, var)
    return list(seen)


def _informed(state: State, region: dict[RowVar, None]) -> set[RowVar]:
    pending = [var for var in region if any(_surplus(c) > 0 for c in bounds(state, var))]
    informed: set[RowVar] = set()
    while pending:
        var = pending.pop()
        if var in informed:
            continue
        informed.add(var)
        pending += [other for other in linked(state, var) if other in region]
        for constraint in open_operands(state, var):
            if constraint.opnd.tail in region and constraint.opnd.tail is not None:
                pending.append(constraint.opnd.tail)
    return informed


def _nearest(
    state: State, region: dict[RowVar, None], seeds: dict[RowVar, int]
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
        for other in linked(state, var):
            if other in region and other not in found:
                heappush(heap, (value, other.id, other))
        for constraint in open_operands(state, var):
            tail = constraint.opnd.tail
            if tail is not None and tail in region and tail not in found:
                heappush(heap, (value + _surplus(constraint), tail.id, tail))
    return found
