"""Affine indices, their algebra, and the verdicts on index maps."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.ir.indexing import (
    AffineIndex,
    AxisIndex,
    ConcatIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    Projections,
    StaticIndex,
    SubAxis,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
    is_injective,
    is_surjective,
    row_major,
    substitute,
    value_of,
    variables,
)

VARS = tuple(LoopVar(number, "ijkl"[number]) for number in range(4))
STATIC = StaticIndex("s", 5)
TERMS = st.lists(st.tuples(st.integers(-3, 3), st.sampled_from((*VARS, STATIC))), max_size=4)
INDICES: st.SearchStrategy[AxisIndex] = st.builds(affine, TERMS, st.integers(-4, 4))
ENVS = st.fixed_dictionaries({var: st.integers(0, 6) for var in (*VARS, STATIC)})


@given(TERMS, st.integers(-4, 4), ENVS)
def test_the_normal_form_denotes_the_same_position(
    terms: list[tuple[int, IndexVar]], offset: int, env: dict[IndexVar, int]
) -> None:
    expected = offset + sum(coefficient * env[var] for coefficient, var in terms)
    assert value_of(affine(terms, offset), env) == expected


@given(TERMS, st.integers(-4, 4))
def test_the_normal_form_has_no_zero_no_repetition_and_no_simpler_spelling(
    terms: list[tuple[int, IndexVar]], offset: int
) -> None:
    index = affine(terms, offset)
    found, found_offset = as_affine(index)
    assert all(coefficient for coefficient, _ in found)
    assert len({var for _, var in found}) == len(found)
    if isinstance(index, AffineIndex):
        assert found
        assert (found, found_offset) != (((1, found[0][1]),), 0)
    assert affine(found, found_offset) == index


def test_opposite_terms_cancel_to_a_fixed_position() -> None:
    assert affine([(2, VARS[0]), (-2, VARS[0])], 3) == FixedIndex(3)
    assert affine([(1, VARS[1])]) == VarIndex(VARS[1])


@given(INDICES, st.dictionaries(st.sampled_from(VARS), INDICES), ENVS)
def test_substitution_is_evaluation_in_a_changed_environment(
    index: AxisIndex, values: dict[IndexVar, AxisIndex], env: dict[IndexVar, int]
) -> None:
    changed = {**env, **{var: value_of(value, env) for var, value in values.items()}}
    assert value_of(substitute(index, values), env) == value_of(index, changed)


@given(
    INDICES,
    st.dictionaries(st.sampled_from(VARS), INDICES),
    st.dictionaries(st.sampled_from(VARS), INDICES),
    ENVS,
)
def test_substitutions_compose(
    index: AxisIndex,
    first: dict[IndexVar, AxisIndex],
    second: dict[IndexVar, AxisIndex],
    env: dict[IndexVar, int],
) -> None:
    composed = {**second, **{var: substitute(value, second) for var, value in first.items()}}
    in_turn = substitute(substitute(index, first), second)
    assert value_of(in_turn, env) == value_of(substitute(index, composed), env)


def test_substitution_exchanges_variables_simultaneously() -> None:
    i, j, *_ = VARS
    index = affine([(2, i), (1, j)])
    swapped = substitute(index, {i: VarIndex(j), j: VarIndex(i)})
    assert swapped == affine([(2, j), (1, i)])


def test_a_component_of_a_concatenation_can_be_renamed_only() -> None:
    i, j, k, _ = VARS
    assert substitute(ConcatIndex((i, j)), {i: VarIndex(k)}) == ConcatIndex((k, j))
    with pytest.raises(ValueError, match="renamed"):
        substitute(ConcatIndex((i, j)), {i: FixedIndex(0)})


@given(st.lists(st.tuples(INDICES, st.integers(1, 5)), max_size=4), ENVS)
def test_the_row_major_offset_is_horner_evaluation_of_the_position(
    axes: list[tuple[AxisIndex, int]], env: dict[IndexVar, int]
) -> None:
    expected = 0
    for index, dim in axes:
        expected = expected * dim + value_of(index, env)
    offset = row_major([index for index, _ in axes], [dim for _, dim in axes])
    assert value_of(offset, env) == expected


def test_static_indices_add_up_on_both_sides_of_an_operator() -> None:
    i, j = StaticIndex("i", 5), StaticIndex("j", 7)
    sums = (1 + i, 4 - i, -i, 2 * i - j, i * 2 + 1)
    assert [str(each) for each in sums] == ["i + 1", "-i + 4", "-i", "2*i - j", "2*i + 1"]
    assert (i + 4) - i == 4
    assert j - (j - i) is i


def test_variables_come_in_order_of_appearance() -> None:
    assert variables(affine([(2, VARS[1]), (1, VARS[0])], 1)) == (VARS[1], VARS[0])
    assert variables(SubAxis()) == ()


def test_fresh_variables_differ_even_with_one_hint() -> None:
    assert fresh_var("o") != fresh_var("o")


@st.composite
def index_maps(draw: st.DrawFn) -> Projections:
    """Index maps whose positions stay inside the result, as projection inference makes them."""
    extents = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    domain = tuple(zip(VARS, extents, strict=False))
    chosen = st.sampled_from([var for var, _ in domain])
    lhs: list[AxisIndex] = []
    dims: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        terms = draw(st.lists(st.tuples(st.integers(-2, 4), chosen), max_size=3))
        index = affine(terms, 0)
        values = [value_of(index, env) for env in _points(domain)] or [0]
        shift = draw(st.sampled_from((0, 0, 0, 1)))
        lhs.append(affine(as_affine(index)[0], shift - min(0, *values, 0)))
        dims.append(max(values) - min(0, *values, 0) + shift + draw(st.sampled_from((1, 1, 2))))
    return Projections(domain, tuple(lhs), (), tuple(dims), ())


def _points(domain: tuple[tuple[LoopVar, int], ...]) -> list[dict[IndexVar, int]]:
    names = [var for var, _ in domain]
    return [
        dict(zip(names, values, strict=True)) for values in product(*(range(n) for _, n in domain))
    ]


def _written(projections: Projections) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(value_of(index, env) for index in projections.lhs)
        for env in _points(projections.domain)
    )


@given(index_maps())
def test_a_map_called_surjective_writes_every_cell(projections: Projections) -> None:
    if is_surjective(projections):
        cells = set(product(*(range(dim) for dim in projections.lhs_dims)))
        assert cells <= set(_written(projections))


@given(index_maps())
def test_a_map_called_injective_writes_no_cell_twice(projections: Projections) -> None:
    if is_injective(projections):
        assert all(count == 1 for count in _written(projections).values())


def _map(extents: dict[LoopVar, int], *lhs: tuple[AxisIndex, int]) -> Projections:
    indices = tuple(index for index, _ in lhs)
    return Projections(tuple(extents.items()), indices, (), tuple(dim for _, dim in lhs), ())


I, J, K, _L = VARS  # noqa: E741
VERDICTS = {
    "all axes": (_map({I: 3, J: 2}, (VarIndex(I), 3), (VarIndex(J), 2)), True, True),
    "reduced axis": (_map({I: 3, J: 2}, (VarIndex(I), 3)), True, False),
    "diagonal": (_map({I: 3}, (VarIndex(I), 3), (VarIndex(I), 3)), False, True),
    "fixed place": (_map({I: 3}, (VarIndex(I), 3), (FixedIndex(2), 3)), False, True),
    "size 1": (_map({I: 3}, (VarIndex(I), 3), (FixedIndex(0), 1)), True, True),
    "strided": (_map({I: 3}, (affine([(2, I)], 1), 6)), False, True),
    "mixed radix": (_map({I: 3, J: 2}, (affine([(2, I), (1, J)]), 6)), True, True),
    "overlapping": (_map({I: 3, J: 3}, (affine([(2, I), (1, J)]), 7)), True, False),
    "sum": (_map({I: 2, J: 2}, (affine([(1, I), (1, J)]), 3)), True, False),
    "pinned": (_map({I: 2, J: 3}, (VarIndex(I), 2), (affine([(1, I), (1, J)]), 4)), False, True),
    "gap in a skewed pair": (_map({I: 3, J: 2}, (affine([(3, I), (4, J)]), 11)), False, False),
    "empty reduction": (_map({I: 3, J: 0}, (VarIndex(I), 3)), False, True),
    "static": (_map({I: 3}, (VarIndex(STATIC), 5), (VarIndex(I), 3)), False, True),
    "vector": (_map({I: 3}, (SubAxis(), 4), (VarIndex(I), 3)), False, True),
    "one iteration": (_map({I: 3, J: 1}, (VarIndex(I), 3)), True, True),
    "concatenation": (_map({I: 2, J: 3}, (ConcatIndex((I, J)), 5)), False, False),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdicts_on_typical_maps(name: str) -> None:
    projections, surjective, injective = VERDICTS[name]
    assert is_surjective(projections) is surjective
    assert is_injective(projections) is injective
