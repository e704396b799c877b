"""Closing of formulas and counts: the order of guesses on sizes, by the components of the graph of
sizes, and the rows that counts close.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import gcd, lcm

from ocannl_core.base.graphs import strongly_connected_components
from ocannl_core.shape.closing.closing_state import Closing
from ocannl_core.shape.language.constraints import (
    DimEqual,
    Exact,
    Formula,
    SliceLength,
    Strided,
    TotalElements,
)
from ocannl_core.shape.language.shape_terms import AffineDim, ConcatDim, DimVar, RowVar, Size
from ocannl_core.shape.solving import ranks
from ocannl_core.shape.solving.computed_sizes import SolutionRole, linear, roles
from ocannl_core.shape.solving.counts import Count
from ocannl_core.shape.solving.messages import part_without_cells
from ocannl_core.shape.solving.selections import selected_rows
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.solving.underdetermined import refuse_guesses


def waiting_dims(closing: Closing) -> dict[DimVar, SolutionRole]:
    """Return the undecided sizes that open formulas will compute, with their role in these.

    Guesses on them could only contradict the formulas. The sizes above a computed size are bounded
    by it, and wait as well.
    """
    state = closing.state
    waiting: dict[DimVar, SolutionRole] = {}
    parts: dict[DimVar, set[DimVar]] = {}
    for formula in closing.formulas():
        unknown = list(_unknown(state, formula))
        lowest = min((role for _, role in unknown), default=SolutionRole.WHOLE)
        for var, role in unknown:
            if var is None:
                continue
            if role > lowest:
                waiting[var] = max(role, waiting.get(var, role))
            if role is SolutionRole.WHOLE:
                others = {other for other, each in unknown if other and each is not role}
                parts.setdefault(var, set()).update(others)
    waiting.update(dict.fromkeys(_above(closing, parts, waiting), SolutionRole.WHOLE))
    return waiting


def _above(
    closing: Closing, parts: Mapping[DimVar, set[DimVar]], known: Collection[DimVar]
) -> dict[DimVar, None]:
    """Return the sizes above computed ones.

    The operands of a formula do not wait for its result: `i` in `o = 2*i`, `o ⊑ i`.

    Args:
        parts: The computed sizes, and the operands of their formulas.
        known: Sizes at which the search stops.
    """
    state = closing.state

    def informants(var: DimVar) -> set[DimVar]:
        return {*state.undecided(state.results.get(var, ())), *parts.get(var, ())}

    circle_of: dict[DimVar, int] = {}
    found: dict[DimVar, None] = {}
    pending = list(parts)
    while pending:
        var = pending.pop()
        operands = dict.fromkeys(state.undecided(state.operands.get(var, ())))
        if operands and not circle_of:
            circles = strongly_connected_components([*parts, *closing.open_dims()], informants)
            circle_of = {each: number for number, circle in enumerate(circles) for each in circle}
        above = [each for each in operands if circle_of.get(each) != circle_of[var]]
        pending += [each for each in above if each not in known and each not in found]
        found.update(dict.fromkeys(above))
    return found


def _unknown(state: SolverState, formula: Formula) -> Iterator[tuple[DimVar | None, SolutionRole]]:
    """Yield a formula's undecided sizes with their roles; None for rows with unknown axes."""
    if isinstance(formula, DimEqual):
        for dim, role in roles(formula):
            for var in state.undecided((dim,)):
                optional = role is SolutionRole.PART and state.optional.get(var)
                yield var, SolutionRole.KERNEL if optional else role
        return
    if isinstance(formula, SliceLength):
        yield from ((var, SolutionRole.PART) for var in state.undecided((formula.whole,)))
        yield from ((var, SolutionRole.WHOLE) for var in state.undecided((formula.length,)))
        return
    for row in formula.rows:
        tail, unknown = state.unknowns(row)
        yield from ((var, SolutionRole.PART) for var in unknown)
        if tail is not None:
            yield None, SolutionRole.PART
    yield from ((var, SolutionRole.PART) for var in state.undecided(formula.divided_by))
    if isinstance(formula.count, Strided):
        yield from ((var, SolutionRole.WHOLE) for var in state.undecided((formula.count.dim,)))


def refuse_lost_parts(state: SolverState) -> None:
    """Refuse an empty part of a concatenation, unless its tensor is stated to be empty.

    Raises:
        ShapeError: if the equation of a concatenated axis leaves nothing for one of its parts.
    """
    for equation in list(state.concatenations):
        formulas = [dim for dim in (equation.left, equation.right) if isinstance(dim, ConcatDim)]
        parts = [part for formula in formulas for part in formula.parts]
        if any(state.size(part) is None for part in parts):
            continue
        state.undo_log.remove(state.concatenations, equation)
        for part in parts:
            if isinstance(part, DimVar) and not state.optional.get(state.find(part)):
                known = state.values[state.find(part)]
                if known.size.n == 0 and not known.stated:
                    raise part_without_cells(state, equation)


def join_parts(closing: Closing) -> None:
    """Stage 4: unify the parts of two concatenations of equally many parts, one by one.

    a^b = c^d  -->  a = c, b = d
    """
    state = closing.state
    equations: list[DimEqual] = []
    for formula in closing.formulas():
        if not isinstance(formula, DimEqual):
            continue
        left, right = linear(state, formula.left), linear(state, formula.right)
        if not isinstance(formula.left, ConcatDim) or not isinstance(formula.right, ConcatDim):
            continue
        ones = [var for var in left.terms if var not in right.terms]
        others = [var for var in right.terms if var not in left.terms]
        if len(ones) == len(others) and left.constant == right.constant:
            origin = closing.guess_origin("parts of concatenated axes")
            equations += [
                DimEqual(one, other, origin) for one, other in zip(ones, others, strict=True)
            ]
    for equation in equations:
        closing.note_guess(equation, "parts of concatenated axes")
    closing.add_constraints(equations)


def close_counted_leaf_rows(closing: Closing) -> None:
    """Stage 3: give rows of leaves that only a number of cells constrains one axis.

    The same holds for rows that leaves follow, which get this axis, too.
    """
    state = closing.state
    _close_counted(
        closing, lambda tail: ranks.leaf_of(state, tail) or _determines_leaf(state, tail)
    )


def close_counted_rows(closing: Closing) -> None:
    """Stage 5: give rows that only a number of cells constrains one axis."""
    _close_counted(closing, lambda tail: True)


def _determines_leaf(state: SolverState, tail: RowVar) -> bool:
    """Return True for a row that determines the axes of a leaf, and needs none by itself."""
    return not ranks.is_anchored(state, tail) and any(
        ranks.leaf_of(state, var) for var in ranks.reachable_rows(state, [tail])
    )


def _close_counted(closing: Closing, admits: Callable[[RowVar], object]) -> None:
    state = closing.state
    while True:
        axes: dict[RowVar, int] = {}
        guessed: list[RowVar] = []  # the number of cells of the others is known
        shared: dict[DimVar, list[Count]] = {}
        for formula in closing.formulas():
            if not isinstance(formula, TotalElements):
                continue
            count = Count(state, formula)
            tails = list(dict.fromkeys(count.tails))
            if count.var is not None:
                shared.setdefault(count.var, []).append(count)
            if len(tails) != len(count.tails) or not all(
                _is_free(state, tail) and admits(tail) for tail in tails
            ):
                continue
            if len(tails) > 1:
                axes.update(dict.fromkeys(tails[:-1], 0))
                guessed += tails[:-1]
            elif tails and not count.unknown and count.known and count.var is None:
                axes[tails[0]] = 0 if count.factor == count.known else 1
        sizes = _smallest_counts(state, closing.formulas(), shared, admits)
        guessed += [t for var in sizes for count in shared.get(var, ()) for t in count.tails]
        axes = {tail: number for tail, number in axes.items() if closing.open_rows([tail])}
        refuse_guesses(state, closing.open_rows(guessed), closing.open_dims(sizes))
        progress = closing.decide_rows(axes, "rows with a number of cells")
        sizes = {dim: size for dim, size in sizes.items() if closing.open_dims([dim]) == [dim]}
        if not (closing.decide_dims(sizes, "numbers of cells") or progress):
            return


def _smallest_counts(
    state: SolverState,
    formulas: Iterable[Formula],
    shared: Mapping[DimVar, Sequence[Count]],
    admits: Callable[[RowVar], object],
) -> dict[DimVar, Size]:
    """Return the smallest sizes that satisfy numbers of cells of rows without other unknowns.

    Of a size and its multiple, the former is chosen: 4*y = 6*cells  -->  y = 3.
    """
    divisors = {
        var: lcm(*(each.known // gcd(each.factor, each.known) for each in counts))
        for var, counts in shared.items()
        if all(_is_ready(state, count, admits) for count in counts)
    }
    if not divisors:
        return {}
    scales = [scale for formula in formulas if (scale := _scale(state, formula)) is not None]
    wholes = {whole for whole, _, _ in scales}
    blocked = shared.keys() - divisors.keys()
    pending = list(shared)
    while pending:
        whole = pending.pop()
        for _, factor, part in (each for each in scales if each[0] == whole):
            cells = divisors.get(whole, 1)
            least = lcm(divisors.get(part, 1), cells // gcd(cells, factor))
            is_news = whole in blocked and part not in blocked
            if is_news or least != divisors.get(part, 1):
                blocked |= {part} if is_news else set()
                divisors[part] = least
                pending.append(part)
    return {
        var: Size(n)
        for var, n in divisors.items()
        if var not in wholes | blocked and (n > 1 or var in shared)
    }


def _is_ready(state: SolverState, count: Count, admits: Callable[[RowVar], object]) -> bool:
    """Return True if the only unknowns of a count are its own size and one row."""
    is_known = not count.unknown and len(count.tails) <= 1 and count.known and count.factor
    return bool(is_known) and all(_is_free(state, tail) and admits(tail) for tail in count.tails)


def _scale(state: SolverState, formula: Formula) -> tuple[DimVar, int, DimVar] | None:
    """Return an undecided size, its factor, and the undecided size of which it is a multiple."""
    if not isinstance(formula, DimEqual):
        return None
    for whole, part in ((formula.left, formula.right), (formula.right, formula.left)):
        if isinstance(whole, DimVar) and isinstance(part, AffineDim) and part.window is None:
            sizes = state.undecided((whole, part.over))
            if len(sizes) == 2 and sizes[0] != sizes[1]:
                return sizes[0], part.stride, sizes[1]
    return None


def rows_awaiting_counts(closing: Closing) -> dict[RowVar, None]:
    """Return the rows whose number of cells depends on undecided sizes, or whose axes depend on the
    axes of other open rows, and the rows that depend on them. Output rows take those axes of an
    exact shape that no other row has.
    """
    state = closing.state
    counted = [
        tail
        for formula in closing.formulas()
        if isinstance(formula, TotalElements) and (count := Count(state, formula)).var is not None
        for tail in count.tails
    ]
    for row in closing.open_rows():
        for each in state.suspended.get(row, ()):
            if isinstance(each, Exact):
                _, output, _ = map(state.flat, each.rows)
                counted += [output.tail] if output.tail is not None else []
    counted += selected_rows(state, closing.open_rows())
    return dict.fromkeys(ranks.reachable_rows(state, counted))


def _is_free(state: SolverState, tail: RowVar) -> bool:
    """Return True if no result with known axes, direct or indirect, bounds the length of a row."""
    return tail not in ranks.known_axes(state, [tail])
