"""Ranges of indices and certain coverage, compared with enumeration."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.ir.indexing import AxisIndex, IndexVar, LoopVar, affine, value_of
from ocannl_core.ir.loops.ranges import (
    Box,
    Range,
    bounded_range,
    boxes_cover,
    covered_box,
    index_range,
)

VARS = (LoopVar(0, "i"), LoopVar(1, "j"), LoopVar(2, "k"))
TERMS = st.lists(st.tuples(st.integers(-3, 3), st.sampled_from(VARS)), max_size=3)
INDICES: st.SearchStrategy[AxisIndex] = st.builds(affine, TERMS, st.integers(-3, 3))
RANGES = st.fixed_dictionaries(
    {
        var: st.builds(
            lambda low, n: Range(low, low + n - 1), st.integers(-2, 2), st.integers(1, 3)
        )
        for var in VARS
    }
)


def _points(ranges: dict[IndexVar, Range]) -> list[dict[IndexVar, int]]:
    values = [range(each.low, each.high + 1) for each in ranges.values()]
    return [dict(zip(ranges, point, strict=True)) for point in product(*values)]


@given(INDICES, RANGES)
def test_both_ends_of_a_range_are_taken(index: AxisIndex, ranges: dict[IndexVar, Range]) -> None:
    values = [value_of(index, env) for env in _points(ranges)]
    assert index_range(index, ranges) == Range(min(values), max(values))


@given(INDICES, RANGES, st.lists(st.tuples(INDICES, st.integers(-4, 8)), max_size=3))
def test_a_bounded_range_has_every_value_within_the_bounds(
    index: AxisIndex, ranges: dict[IndexVar, Range], bounds: list[tuple[AxisIndex, int]]
) -> None:
    found = bounded_range(index, ranges, bounds)
    assert found is not None
    for env in _points(ranges):
        if all(value_of(position, env) < limit for position, limit in bounds):
            assert found.low <= value_of(index, env) <= found.high


def test_bounds_on_different_terms_of_a_sum_add_up() -> None:
    i, j, k = VARS
    ranges: dict[IndexVar, Range] = {i: Range(0, 1), j: Range(0, 3), k: Range(0, 7)}
    block = affine([(4, i), (1, j)])
    bounds = [(block, 6), (affine([(1, k)]), 5)]
    assert bounded_range(affine([(4, i), (1, j), (2, k)]), ranges, bounds) == Range(0, 13)
    assert bounded_range(affine([(-4, i), (-1, j)], 5), ranges, bounds) == Range(0, 5)
    assert bounded_range(affine([(8, i), (2, j)], 1), ranges, bounds) == Range(1, 11)


@given(st.lists(INDICES, max_size=2), RANGES)
def test_every_cell_of_a_certain_box_is_taken(
    indices: list[AxisIndex], ranges: dict[IndexVar, Range]
) -> None:
    box = covered_box(indices, ranges)
    if box is not None:
        taken = {tuple(value_of(index, env) for index in indices) for env in _points(ranges)}
        assert set(product(*(range(r.low, r.high + 1) for r in box))) <= taken


def test_a_variable_without_range_or_iterations_makes_nothing_certain() -> None:
    index = affine([(1, VARS[0])])
    assert index_range(index, {}) is None
    assert covered_box((), {VARS[0]: Range(0, -1)}) is None


BOXES = st.lists(
    st.tuples(
        *[st.builds(lambda low, n: Range(low, low + n), st.integers(0, 3), st.integers(0, 4))] * 2
    ),
    max_size=5,
)


@given(BOXES, st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_boxes_cover_an_array_if_every_cell_is_in_one(
    boxes: list[Box], dims: tuple[int, int]
) -> None:
    inside = {
        cell
        for cell in product(*map(range, dims))
        if any(all(r.low <= x <= r.high for r, x in zip(box, cell, strict=True)) for box in boxes)
    }
    assert boxes_cover(boxes, dims) == (len(inside) == dims[0] * dims[1])
