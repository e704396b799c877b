"""Closing: decisions on sizes and rows that the constraints leave open.

All guesses are made here. Closing runs the stages of `STAGES`; each makes its guesses from one
state, applies them together, runs the solver, and repeats until it has no more guesses. Leaves,
the tensors that no operation computes, take their shape from their uses; results take it from their
operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.graphs import reachable, strongly_connected_components
from ocannl_core.base.origin import Origin
from ocannl_core.shape.closing import close_formulas
from ocannl_core.shape.closing.closing_state import Closing, OperandReader
from ocannl_core.shape.language.constraints import DimEqual, RowBelow, RowEqual, Subscript
from ocannl_core.shape.language.shape_terms import DimVar, Row, RowKind, RowVar, Shape, Size
from ocannl_core.shape.language.subscripts import Blocked, Position
from ocannl_core.shape.solving import ranks, row_order
from ocannl_core.shape.solving.computed_sizes import SolutionRole
from ocannl_core.shape.solving.selections import made_from
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.solving.subscripted_rows import addressed
from ocannl_core.shape.solving.underdetermined import may_be_guessed, parameter_text, refuse_guesses


def close_subscripted_rows(closing: Closing) -> None:
    """Stage 2: decide the rows that keys address, operands before results of subscripts.

    A result takes the axes of its operands. A leaf takes the axes of its other uses; without any it
    has the stated axes alone. Positions in a tensor about which nothing is known are on its
    leftmost batch axes.
    """
    state = closing.state
    while pending := _pending(closing):
        results = [state.flat(row).tail for each in pending for _, row in each.result.rows()]
        waiting = ranks.sources(state, [tail for tail in results if tail is not None])
        ready = (
            each
            for each in pending
            if all(state.flat(row).tail not in waiting for _, row in each.operand.rows())
        )
        _decide(closing, next(ready, pending[0]))


def _pending(closing: Closing) -> list[Subscript]:
    suspended = closing.state.suspended
    found = [each for var in closing.open_rows() for each in suspended.get(var, ())]
    return list(dict.fromkeys([each for each in found if isinstance(each, Subscript)]))


def _decide(closing: Closing, constraint: Subscript) -> None:
    """Decide the row for which a subscript waits, or rows that it depends on."""
    state = closing.state
    found = addressed(state, constraint)
    assert isinstance(found, Blocked), "a subscript waits only for a row"
    row = constraint.operand.row(found.kind)
    tail = state.flat(row).tail
    assert tail is not None
    if first := _first_awaited(state, tail):
        tail = first
    if not first and _is_about_unknown(state, constraint):
        axes = Row(state.fresh.dims(len(constraint.keys)), state.fresh.row())
        closing.add_constraints([RowEqual(axes, row, constraint.origin)])
    elif ranks.is_anchored(state, tail):
        together = ranks.group(state, tail)
        number = ranks.missing_between(state, together)
        closing.decide_rows(dict.fromkeys(together, number), _STAGE)
    else:
        reached = ranks.reachable_rows(state, [tail])
        leaves = [var for var in reached if ranks.leaf_of(state, var)] or [tail]
        bounds = {**ranks.known_axes(state, leaves), **ranks.upper_bounds(state, leaves)}
        unknown = [var for var in leaves if var not in bounds]
        refuse_guesses(state, unknown, ())
        if tail in unknown:
            _refuse_contracted(state, constraint, found.kind)
        closing.decide_rows({var: bounds.get(var, 0) for var in leaves}, _STAGE)


def _first_awaited(state: SolverState, tail: RowVar) -> RowVar | None:
    """Return the row that selections and joins, of which a row is made, wait for; None without."""
    first: RowVar | None = None
    passed = {tail}
    while awaited := [
        source
        for var in ranks.reachable_rows(state, [first or tail])
        for source in made_from(state, var)
        if source not in passed
    ]:
        first = awaited[0]
        passed.add(first)
    return first


_STAGE = "subscripted rows"


def _refuse_contracted(state: SolverState, constraint: Subscript, kind: RowKind) -> None:
    """Refuse to guess the row of a subscripted parameter along which the part is contracted."""
    leaf = ranks.leaf_of(state, tail) if (tail := constraint.operand.row(kind).tail) else None
    part = state.flat(constraint.result.row(kind)).tail
    if leaf is None or not leaf.parameter or part is None or not ranks.is_contracted(state, part):
        return
    raise ShapeError(
        "Keys address axes by number, so the axes of a subscripted parameter are stated.",
        found=f"{leaf.origin.operation}: its {kind.value} axes can be anything",
        where=f"{constraint.origin}\n{leaf.origin}",
        fix=f"give them where the parameter is made: {parameter_text(leaf)}",
    )


def _is_about_unknown(state: SolverState, constraint: Subscript) -> bool:
    """Return True for positions in a tensor of which no axis is known."""
    return all(isinstance(key, Position) for key in constraint.keys) and not any(
        flat.known or (flat.tail is not None and ranks.is_anchored(state, flat.tail))
        for flat in (state.flat(row) for _, row in constraint.operand.rows())
    )


def close(
    state: SolverState, shapes: Iterable[Shape], origin: Origin, *, has_defaults: bool = True
) -> None:
    """Decide every variable that is connected with some shapes.

    Args:
        origin: The name and the line of the computation that is closed.
        has_defaults: False to refuse guesses on leaves that no use says anything about.

    Raises:
        ShapeError: if guesses contradict constraints, or a parameter's shape must be guessed.
    """
    state.closing = origin
    closing = Closing(state, shapes, origin, has_defaults=has_defaults)
    row_order.decide_scalars(state, closing.open_rows())
    closing.run()
    for stage in STAGES:
        if not closing.start_stage():
            break
        stage(closing)
    close_formulas.refuse_lost_parts(state)
    closing.finish()


def unify_cycles(closing: Closing) -> None:
    """Stage 2: unify the variables of each cycle of refinements, and lone pairs of sizes.

    First, equations of sizes are solved as a system, as before every stage that guesses sizes.
    """
    state = closing.state
    _solve_systems(closing)
    origin = closing.guess_origin("circles")
    dims, row_vars = closing.open_dims(), closing.open_rows()
    equations: list[DimEqual | RowEqual] = []
    for circle in strongly_connected_components(dims, partial(_open_operands, state)):
        equations += [DimEqual(circle[0], other, origin) for other in circle[1:]]
    for ring in strongly_connected_components(row_vars, partial(_bare_operands, state)):
        equations += [RowEqual(Row(tail=ring[0]), Row(tail=other), origin) for other in ring[1:]]
    equations += [DimEqual(res, opnd, origin) for res, opnd in _lonely_pairs(closing, dims)]
    for equation in equations:
        closing.note_guess(equation, "circles")
    closing.add_constraints(equations)


def _open_operands(state: SolverState, var: DimVar) -> list[DimVar]:
    return state.undecided(state.operands.get(var, ()))


def _bare_operands(state: SolverState, var: RowVar) -> Iterator[RowVar]:
    for constraint in ranks.open_operands(state, var):
        if constraint.opnd.tail and not constraint.res.known and not constraint.opnd.known:
            yield constraint.opnd.tail


def _lonely_pairs(closing: Closing, dims: Iterable[DimVar]) -> Iterator[tuple[DimVar, DimVar]]:
    """Yield unbounded sizes `res ⊑ opnd` of which each is the only operand or result of the other.

    Sizes in open rows are skipped, because they may be compared with further ones. So are operands
    that a formula computes: such an operand may turn out to be 1, and is broadcast then.
    """
    state = closing.state
    waiting = close_formulas.waiting_dims(closing)
    for res in dims:
        operands = state.operands.get(res, {})
        if len(operands) == 1 and res not in state.ceilings and res not in state.units:
            (opnd,) = operands
            if opnd in state.values or len(state.results[opnd]) > 1:
                continue
            if waiting.get(opnd) is SolutionRole.WHOLE:
                continue
            if not any(_is_awaiting(state, dim) for dim in (res, opnd)):
                yield res, opnd


def close_leaf_rows(closing: Closing) -> None:
    """Stage 3: close rows of leaves with the number of axes that their uses allow or imply."""
    _follow_uses(closing, closing.row_reader())


def close_leaves(closing: Closing) -> None:
    """Stage 4: take the sizes of leaves from their uses; close rows without informative uses."""
    state = closing.state
    row_news, row_news_for_uses = closing.row_reader(), closing.row_reader()
    dim_news = closing.dim_reader()
    awaiting = close_formulas.rows_awaiting_counts(closing)
    while True:
        progress = _follow_uses(closing, row_news_for_uses)
        leaves = [var for var in closing.open_rows(row_news.take()) if ranks.leaf_of(state, var)]
        empty = {var: 0 for var in leaves if _is_row_ready(state, var) and var not in awaiting}
        sizes = {
            dim: state.ceilings[dim].size
            for dim in closing.open_dims(dim_news.take())
            if dim in state.dim_leaves and dim in state.ceilings
        }
        refuse_guesses(state, empty, ())
        progress |= closing.decide_rows(empty, "rows of leaves")
        sizes = {dim: size for dim, size in sizes.items() if dim in closing.open_dims([dim])}
        progress |= closing.decide_dims(sizes, "sizes of leaves")
        if not progress:
            return


def _waiting_after_systems(closing: Closing) -> dict[DimVar, SolutionRole]:
    """Solve the equations of sizes as a system; return the sizes that open formulas compute."""
    _solve_systems(closing)
    return close_formulas.waiting_dims(closing)


def _solve_systems(closing: Closing) -> None:
    solutions: list[DimEqual] = []
    if formulas := closing.formulas():
        from ocannl_core.shape.solving.systems import solve_systems

        solutions = solve_systems(closing.state, formulas)
    closing.add_constraints(solutions)


def close_unused_leaf_dims(closing: Closing) -> None:
    """Stage 5: set the sizes of leaves that no use constrains to 1.

    Sizes of parameters wait. So do sizes to be compared with axes of open rows, which may still
    determine them.
    """
    state = closing.state
    news = closing.dim_reader()
    while True:
        waiting = _waiting_after_systems(closing)
        guesses = {
            dim: Size(0 if state.optional.get(dim) else 1)
            for dim in closing.open_dims(news.take())
            if dim in state.dim_leaves
            and dim not in waiting
            and dim not in state.ceilings
            and _floor(state, dim) <= 1
            and _is_dim_ready(state, dim)
            and not _awaits_information(state, dim)
            and may_be_guessed(state, dim)
        }
        if not closing.decide_dims(guesses, "sizes of leaves"):
            return


def _follow_uses(closing: Closing, news: OperandReader[RowVar]) -> bool:
    """Close rows of leaves that have uses, limited ones first; return True if there were any."""
    state = closing.state
    waiting: dict[RowVar, None] = {}
    progress = False
    while True:
        leaves = [
            var for var in ranks.reachable_rows(state, news.take()) if ranks.leaf_of(state, var)
        ]
        waiting.update(dict.fromkeys(leaves))
        guesses = ranks.upper_bounds(state, leaves)
        guesses = {var: guesses[var] for var in leaves if var in guesses}
        if not guesses:
            leaves = closing.open_rows(waiting)
            waiting.clear()
            known = ranks.known_axes(state, leaves)
            guesses = {var: known[var] for var in leaves if var in known}
        if not closing.decide_rows(guesses, "rows of leaves"):
            return progress
        progress = True


def _is_row_ready(state: SolverState, var: RowVar) -> bool:
    """Return True if no open operand can still lengthen the row; an equally long one cannot."""
    together = ranks.group(state, var)
    for one in together:
        for constraint in ranks.open_operands(state, one):
            if constraint.opnd.tail not in together:
                return False
    return True


def _is_dim_ready(state: SolverState, dim: DimVar) -> bool:
    """Return True if no undecided operand can still decide the size."""
    return not _open_operands(state, dim)


def _is_awaiting(state: SolverState, dim: DimVar) -> bool:
    """Return True while the size is to be compared with an unknown axis of another row."""
    return any(
        isinstance(constraint, (RowBelow, RowEqual)) and state.is_suspended(constraint)
        for constraint in state.within.get(dim, ())
    )


def _awaits_information(state: SolverState, dim: DimVar) -> bool:
    """Return True while a size, or a result of it, is to be compared with unknown axes."""
    above = reachable([dim], lambda var: state.undecided(state.results.get(var, ())))
    return any(_is_awaiting(state, var) for var in above)


def _floor(state: SolverState, dim: DimVar) -> int:
    """Return the least size that a guess may have.

    A position that is read lengthens an axis only if the axis belongs to a leaf and has no other
    constraint.
    """
    is_constrained_by_reads = dim in state.dim_leaves and dim not in state.units
    floor = (state.floors if is_constrained_by_reads else state.written).get(dim)
    return floor.n if floor else 0


def _spans(state: SolverState, dim: DimVar, waiting: Mapping[DimVar, SolutionRole]) -> bool:
    """Return True for a computed size of a spec along which operands are broadcast. An operand of
    size 1 does not imply that it is 1.
    """
    return waiting.get(dim) is SolutionRole.WHOLE and bool(state.spanned.get(dim))


def close_rows(closing: Closing) -> None:
    """Stage 6: close rows, from operands to results: above closed operands, else from uses."""
    state = closing.state
    news = closing.row_reader()
    waiting: dict[RowVar, None] = {}
    awaiting = close_formulas.rows_awaiting_counts(closing)
    while True:
        ready = [var for var in closing.open_rows(news.take()) if _is_row_ready(state, var)]
        guesses = _guesses_from_operands(state, [var for var in ready if var not in awaiting])
        waiting.update({var: None for var in ready if var not in guesses})
        if not guesses:
            left = closing.open_rows(waiting) or closing.open_rows()
            guesses = _guesses_from_uses(
                state, [var for var in left if var not in awaiting] or left
            )
            waiting = {var: None for var in left if var not in guesses}
        if not closing.decide_rows(guesses, "rows"):
            return
        if awaiting:
            close_formulas.close_counted_rows(closing)
            awaiting = close_formulas.rows_awaiting_counts(closing)


def _guesses_from_operands(state: SolverState, candidates: list[RowVar]) -> dict[RowVar, int]:
    """Return guesses for rows above closed operands, and for rows of equal length.

    Such rows need no further axes, except between others: the axes before the variable stay the
    first ones only if the row is as long as its result.
    """
    guesses: dict[RowVar, int] = {}
    for var in candidates:
        if ranks.is_anchored(state, var):
            group = ranks.group(state, var)
            guesses.update(dict.fromkeys(group, ranks.missing_between(state, group)))
    return guesses


def _guesses_from_uses(state: SolverState, left: list[RowVar]) -> dict[RowVar, int]:
    """Return guesses for the most constrained rows; none only if there are no rows."""
    if guesses := _guesses_from_operands(state, left):
        return guesses
    limits = ranks.upper_bounds(state, left)
    if guesses := {var: limits[var] for var in left if var in limits}:
        return guesses
    known = ranks.known_axes(state, left)
    if guesses := {var: known[var] for var in left if var in known}:
        return guesses
    refuse_guesses(state, left, ())
    return dict.fromkeys(left, 0)


def close_dims_from_uses(closing: Closing) -> None:
    """Stage 6: decide sizes, from operands to results: 1 like operands, else from uses.

    Operands come first: an operand of size 1 is stronger evidence than a use, or than the guess of
    the kernel that slides over the axis.
    """
    state = closing.state
    news = closing.dim_reader()
    bounded: dict[DimVar, None] = {}
    while True:
        waiting = _waiting_after_systems(closing)
        found = [dim for dim in closing.open_dims(news.take()) if _is_dim_ready(state, dim)]
        bounded.update({dim: None for dim in found if dim in state.ceilings})
        ready = [dim for dim in found if dim in state.units and not _spans(state, dim, waiting)]
        if not ready:
            ready = closing.open_dims(bounded)
            bounded.clear()
        if not ready:
            ready = [dim for dim in closing.open_dims() if dim in state.ceilings]
        guesses = {dim: _size_from_uses(state, dim) for dim in ready}
        refuse_guesses(state, (), [dim for dim in ready if dim not in state.ceilings])
        if not closing.decide_dims(guesses, "sizes"):
            return


def _size_from_uses(state: SolverState, dim: DimVar) -> Size:
    ceiling, floor = state.ceilings.get(dim), state.floors.get(dim)
    is_first_only = floor is not None and floor.n == 1
    if ceiling is None or is_first_only or dim in state.units:
        return Size(max(1, _floor(state, dim)))
    return ceiling.size


def close_dims(closing: Closing) -> None:
    """Stage 7: make every other size the least that the accessed positions allow.

    Sizes that formulas compute follow from them: kernels are guessed before positions, and these
    before the axes that they index.
    """
    state = closing.state
    news = closing.dim_reader()
    while True:
        waiting = _waiting_after_systems(closing)
        found = [dim for dim in closing.open_dims(news.take()) if dim not in waiting]
        if not found:
            left = closing.open_dims()
            found = [dim for dim in left if dim not in waiting] or _of_lowest_role(left, waiting)
        # operands before results, or two simultaneous guesses could contradict
        found = [dim for dim in found if _is_dim_ready(state, dim)] or found
        guesses = {dim: _least_size(state, dim) for dim in found}
        refuse_guesses(state, (), [dim for dim in found if dim not in state.ceilings])
        if not closing.decide_dims(guesses, "remaining sizes"):
            return


def _of_lowest_role(dims: list[DimVar], roles: dict[DimVar, SolutionRole]) -> list[DimVar]:
    """Return the sizes to guess when all wait for each other: parts before their sums."""
    lowest = min((roles[dim] for dim in dims), default=None)
    return [dim for dim in dims if roles[dim] is lowest]


def _least_size(state: SolverState, dim: DimVar) -> Size:
    if dim in state.ceilings:
        return _size_from_uses(state, dim)
    return Size(max(0 if state.optional.get(dim) else 1, _floor(state, dim)))


STAGES: tuple[Callable[[Closing], None], ...] = (
    close_subscripted_rows,
    unify_cycles,
    close_leaf_rows,
    close_formulas.close_counted_leaf_rows,
    close_formulas.join_parts,
    close_leaves,
    close_unused_leaf_dims,
    close_formulas.close_counted_rows,
    close_rows,
    close_dims_from_uses,
    close_dims,
)
"""The stages, in order. Stage 1 is the solver at work while operations are composed."""
