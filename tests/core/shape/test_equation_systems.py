"""Equations of sizes that determine sizes only together."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.origin import Origin
from ocannl_core.shape.closing.close import close
from ocannl_core.shape.language.constraints import Constraint, DimEqual
from ocannl_core.shape.language.shape_terms import (
    AffineDim,
    ConcatDim,
    Dim,
    DimVar,
    Row,
    Shape,
    Size,
    Window,
)
from ocannl_core.shape.solving.solver import run
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.solving.systems import _eliminate, solve_systems

ORIGIN = Origin("test")


def variables(count: int) -> list[DimVar]:
    return [DimVar(n, f"d{n}") for n in range(count)]


def equal(left: Dim, right: Dim) -> DimEqual:
    return DimEqual(left, right, ORIGIN)


def closed(constraints: list[Constraint], *wanted: DimVar) -> list[int]:
    state = SolverState()
    state.fresh.dims(20)
    state.agenda.extend(constraints)
    run(state)
    close(state, [Shape(output=Row(trailing=wanted))], ORIGIN)
    sizes = [state.size(var) for var in wanted]
    return [size.n for size in sizes if size is not None]


def test_two_equations_determine_two_sizes_in_any_order() -> None:
    o, k = variables(2)
    equations = [equal(Size(10), ConcatDim((o, k))), equal(o, AffineDim(4, k))]
    for order in permutations(equations):
        assert closed(list(order), o, k) == [8, 2]


def test_a_window_and_a_stride_determine_positions_and_kernel() -> None:
    o, k = variables(2)
    window = AffineDim(1, o, Window(k))  # o + k - 1
    assert closed([equal(Size(14), window), equal(k, AffineDim(2, o))], o, k) == [5, 10]
    with pytest.raises(ShapeError, match="together"):
        closed([equal(Size(12), window), equal(k, AffineDim(2, o))], o, k)


def test_equations_without_a_common_solution_are_refused() -> None:
    a, b, c = variables(3)
    system = [
        equal(Size(4), ConcatDim((a, b))),
        equal(Size(4), ConcatDim((b, c))),
        equal(Size(9), ConcatDim((a, b, b, c))),
    ]
    for order in permutations(system):
        with pytest.raises(ShapeError, match="together"):
            closed(list(order), a, b, c)


def test_equal_sizes_are_found_among_other_unknowns() -> None:
    # a = 2*x, a = 2*y, c = a + x  -->  x = y = c/3
    for a, c, x, y in permutations(variables(4)):
        equations = [
            equal(a, AffineDim(2, x)),
            equal(a, ConcatDim((y, y))),
            equal(c, ConcatDim((a, x))),
        ]
        for order in permutations(equations):
            state = SolverState()
            state.agenda.extend(order)
            run(state)
            pairs = {
                frozenset((e.left, e.right)) for e in solve_systems(state, state.open_formulas)
            }
            assert pairs == {frozenset((x, y))}


def test_equations_can_make_two_sizes_the_same() -> None:
    a, b, c, d = variables(4)
    system = [equal(d, ConcatDim((a, b))), equal(d, ConcatDim((c, b))), equal(a, Size(3))]
    assert closed([*system, equal(b, Size(2))], a, c, d) == [3, 3, 5]
    # without b: a and c are still the same
    assert closed([*system[:2], equal(c, Size(7)), equal(b, Size(1))], a) == [7]


@given(st.data())
def test_sums_of_known_sizes_give_these_sizes_back(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    names = variables(count)
    chain = [
        equal(Size(sizes[n] + sizes[n + 1]), ConcatDim((names[n], names[n + 1])))
        for n in range(count - 1)
    ]
    weights = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    alternating = sum(w * (-1) ** n for n, w in enumerate(weights))
    parts = tuple(v for v, w in zip(names, weights, strict=True) for _ in range(w))
    total = sum(w * n for w, n in zip(weights, sizes, strict=True))
    system: list[Constraint] = [*chain, equal(Size(total), ConcatDim(parts))]
    order = data.draw(st.permutations(system))
    if alternating:
        assert closed(list(order), *names) == sizes


def test_the_source_of_a_size_is_an_equation_that_contains_it() -> None:
    a, b, c, d = variables(4)
    origins = {var: Origin(f"about {var}") for var in (a, b, c, d)}
    state = SolverState()
    state.agenda.extend(
        [
            DimEqual(a, ConcatDim((c, Size(1))), origins[c]),
            DimEqual(b, ConcatDim((a, c)), origins[b]),
            DimEqual(d, AffineDim(2, b), origins[d]),
            DimEqual(d, AffineDim(3, ConcatDim((a, Size(1)))), origins[a]),
        ]
    )
    run(state)
    found = {each.left: each.origin for each in solve_systems(state, state.open_formulas)}
    assert found[d] in (origins[d], origins[a])
    assert found[b] in (origins[b], origins[d])


def test_a_long_chain_of_equations_stays_sparse() -> None:
    links = variables(1200)
    zeros = [
        (
            {links[i]: Fraction(1), links[i + 1]: Fraction(-1), links[i + 600]: Fraction(-1)},
            Fraction(0),
        )
        for i in range(599)
    ]
    solutions = _eliminate(zeros)
    assert solutions is not None
    assert max(len(terms) for terms, _ in solutions.values()) == 2
