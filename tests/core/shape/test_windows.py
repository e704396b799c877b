"""Index maps of strided, windowed and concatenated axes, by running through the domain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import (
    AxisIndex,
    ConcatIndex,
    FixedIndex,
    IndexVar,
    Margin,
    Projections,
    affine,
    value_of,
    variables,
)
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.language.constraints import Constraint, DimEqual
from ocannl_core.shape.language.shape_terms import AffineDim, DimVar, Row, Shape, Size, closed_shape
from ocannl_core.shape.projections.axis_classes import derive
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.translation.einsum import Relation
from ocannl_core.shape.translation.logic import logic_from_text

ORIGIN = Origin("test")
Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]


def output(*sizes: int) -> Shape:
    return closed_shape(output=sizes)


def projected(
    spec: str,
    *operands: Shape,
    result: Sequence[int] | None = None,
    values: dict[str, int] | None = None,
) -> Projections:
    environment = Environment()
    whole = environment.fresh_shape(output=result)
    logic = logic_from_text(spec, len(operands), None, values)
    environment.relate(logic, whole, operands, ORIGIN)
    environment.close([whole])
    return project(logic, environment.view(whole), operands, ORIGIN)


def points(projections: Projections) -> list[dict[IndexVar, int]]:
    """Return the values of the loop variables, iteration by iteration."""
    names = [var for var, _ in projections.domain]
    ranges = (range(extent) for _, extent in projections.domain)
    return [dict(zip(names, values, strict=True)) for values in product(*ranges)]


def cell(indices: Sequence[AxisIndex], env: dict[IndexVar, int]) -> Sizes:
    return tuple(value_of(index, env) for index in indices)


def padded_operand(array: Array, margins: Sequence[Margin]) -> Array:
    return np.pad(array, [(margin.left, margin.right) for margin in margins])


def correlate(projections: Projections, *operands: Array) -> Array:
    """Return the sum of products over the domain; every cell must lie in the padded buffers."""
    margins = projections.margins or tuple((Margin(),) * array.ndim for array in operands)
    buffers = [padded_operand(a, m) for a, m in zip(operands, margins, strict=True)]
    found = np.zeros(projections.lhs_dims, dtype=np.int64)
    for env in points(projections):
        value = 1
        for buffer, indices, margin in zip(buffers, projections.rhs, margins, strict=True):
            at = [p + m.left for p, m in zip(cell(indices, env), margin, strict=True)]
            assert all(0 <= p < n for p, n in zip(at, buffer.shape, strict=True))
            value *= int(buffer[tuple(at)])
        found[cell(projections.lhs, env)] += value
    return found


_windows = st.tuples(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.booleans()
)


@settings(max_examples=100, deadline=None)
@given(_windows)
def test_windows_agree_with_a_direct_sum_and_stay_in_the_buffer(
    window: tuple[int, int, int, int, bool],
) -> None:
    stride, dilation, kernel, positions, padded = window
    span = 1 + (kernel - 1) * dilation
    n = stride * positions if padded else stride * (positions - 1) + span
    mark = "=" if padded else "<"
    spec = f"{stride}*o{mark}+{dilation}*k, ; k, => o"
    if n == 1 and positions * kernel > 1 and not padded:
        return
    projections = projected(spec, output(n), output(kernel), result=[positions])
    x, w = np.arange(1, n + 1), np.arange(1, kernel + 1) * 10
    left = span - (span + 1) // 2 if padded else 0
    expected = [
        sum(
            int(w[k]) * int(x[p])
            for k in range(kernel)
            if 0 <= (p := stride * o + dilation * k - left) < n
        )
        for o in range(positions)
    ]
    assert correlate(projections, x, w).tolist() == expected
    right = max(0, span - left - stride) if padded else 0
    margins = ((Margin(left, right),), (Margin(),)) if left or right else ()
    assert projections.margins == margins


def test_one_pixel_under_a_padded_window_reads_the_margins() -> None:
    projections = projected("o=+k, ; k, => o", output(1), output(3))
    assert projections.margins == ((Margin(1, 1),), (Margin(0, 0),))
    assert correlate(projections, np.array([5]), np.array([1, 10, 100])).tolist() == [50]


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_margins_have_the_cells_that_windows_reach(stride: int, kernel: int) -> None:
    for offset in range(stride + 1):
        spec = f"{stride}*o=+{offset}+2*k, ; k, => o"
        projections = projected(spec, output(2 * stride), output(kernel))
        reached = [cell(projections.rhs[0], env)[0] for env in points(projections)]
        (margin,), _ = projections.margins or ((Margin(),), ())
        assert margin.left >= -min(reached)
        assert margin.right == max(0, max(reached) + 1 - 2 * stride)


def test_an_offset_in_a_window_that_stays_inside_reaches_a_margin() -> None:
    projections = projected("2*o<+1+k, ; k, => o", output(5), output(3))
    assert projections.margins[0] == (Margin(0, 1),)
    found = correlate(projections, np.arange(1, 6), np.ones(3, dtype=int))
    assert found.tolist() == [2 + 3 + 4, 4 + 5 + 0]


def test_a_window_may_be_written() -> None:
    projections = projected("o; k => o=+k", output(4), output(3))
    assert projections.lhs_dims == (4,)
    assert projections.lhs_margins == (Margin(1, 1),)
    reached = {cell(projections.lhs, env)[0] for env in points(projections)}
    assert reached == set(range(-1, 5))


CONVOLUTION = (
    "... | {s}*oh{m}+kh, {s}*ow{m}+kw, ..ic..; kh, kw, ..ic.. -> ..oc.. => ... | oh, ow, ..oc.."
)


@pytest.mark.parametrize("mark", ["<", "="])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_in_two_dimensions(mark: str, stride: int) -> None:
    size = 4 if mark == "=" else 2 * stride + 1
    image = closed_shape(batch=(2,), output=(size, size, 2))
    kernel = closed_shape(input=(3, 3, 2), output=(2,))
    projections = projected(CONVOLUTION.format(s=stride, m=mark), image, kernel)
    x = np.arange(image.size).reshape(image.dims) % 7
    w = np.arange(kernel.size).reshape(kernel.dims) % 5
    left = 1 if mark == "=" else 0
    buffer = np.pad(x, [(0, 0), (left, 2 * left), (left, 2 * left), (0, 0)])
    positions = projections.lhs_dims[1]
    assert projections.lhs_dims == (2, positions, positions, 2)
    found = correlate(projections, x, w)
    for b, i, j in product(range(2), range(positions), range(positions)):
        patch = buffer[b, i * stride : i * stride + 3, j * stride : j * stride + 3]
        assert found[b, i, j].tolist() == np.einsum("hwc,ohwc->o", patch, w).tolist()


def test_the_kernel_of_a_padded_window_needs_a_size() -> None:
    with pytest.raises(ShapeError, match="does not follow from the axis"):
        projected("o=+k, => o", output(4))
    projections = projected("o=+k, => o", output(4), values={"k": 3})
    assert correlate(projections, np.arange(1, 5)).tolist() == [3, 6, 9, 7]
    logic = logic_from_text("o=+k, => o", 1, values={"k": 3})
    sizes = project(logic, output(4), [output(4)], ORIGIN)
    assert sizes.margins == projections.margins


def test_interleaving_writes_even_and_odd_positions() -> None:
    even = projected("..., i => ..., 2*i", output(2, 3))
    odd = projected("…, i => …, 2*i + 1", output(2, 3))
    written = [[cell(p.lhs, env) for env in points(p)] for p in (even, odd)]
    assert [position for _, position in written[0]] == [0, 2, 4, 0, 2, 4]
    assert sorted(written[0] + written[1]) == list(product(range(2), range(6)))


def test_deinterleaving_reads_them() -> None:
    x = np.arange(6)
    assert correlate(projected("..., 2*i => ..., i", output(6)), x).tolist() == [0, 2, 4]
    assert correlate(projected("..., 2*i+1 => ..., i", output(6)), x).tolist() == [1, 3, 5]


def test_an_operand_of_size_1_is_repeated_along_strided_positions() -> None:
    projections = projected("2*i, => i", output(1), result=[3])
    assert correlate(projections, np.array([7])).tolist() == [7, 7, 7]


def test_windows_over_windows_of_one_label_are_independent() -> None:
    projections = projected("a<+k, b<+k; k, => a, b", output(4, 5), output(2))
    x = np.arange(20).reshape(4, 5)
    expected = x[:-1, :-1] + x[1:, 1:]
    assert correlate(projections, x, np.ones(2, dtype=int)).tolist() == expected.tolist()


def test_one_part_is_taken_at_its_offset() -> None:
    x = np.arange(7)
    for spec, expected in (
        ("a^b => a", [0, 1, 2]),
        ("a^b => b", [4, 5, 6]),
        ("4^b => b", [4, 5, 6]),
    ):
        assert correlate(projected(spec, output(7), result=[3]), x).tolist() == expected
    middle = projected("a^b^c => b", output(7), values={"a": 2, "b": 3})
    assert correlate(middle, x).tolist() == [2, 3, 4]


def nests(projections: Projections, operand: int) -> dict[Sizes, Sizes]:
    """Return the cell of the result for each cell of an operand, part by part."""
    indices = (projections.lhs, projections.rhs[operand])
    parts = {i.parts for m in indices for i in m if isinstance(i, ConcatIndex)}
    (components,) = parts
    extents, moves, start = projections.extents, {}, 0
    for active in components:
        chosen = affine([(1, active)], start)
        start += extents[active]  # type: ignore[index]
        lhs, rhs = (
            [chosen if isinstance(i, ConcatIndex) else i for i in index_map]
            for index_map in indices
        )
        used = {var for i in (*lhs, *rhs) for var in variables(i)}
        if used.isdisjoint(set(components) - {active}):
            loops = [(var, n) for var, n in projections.domain if var in used]
            for values in product(*(range(n) for _, n in loops)):
                env: dict[IndexVar, int] = dict(zip((v for v, _ in loops), values, strict=True))
                moves[cell(rhs, env)] = cell(lhs, env)
    return moves


@pytest.mark.parametrize("sizes", [(2, 3), (1, 3), (3, 1), (0, 2), (1, 1)])
def test_concatenation_moves_each_operand_to_its_part(sizes: tuple[int, int]) -> None:
    projections = projected("a; b => a^b", output(sizes[0]), output(sizes[1]))
    first, second = nests(projections, 0), nests(projections, 1)
    assert first == {(i,): (i,) for i in range(sizes[0])}
    assert second == {(i,): (sizes[0] + i,) for i in range(sizes[1])}


def test_concatenation_keeps_the_other_axes() -> None:
    projections = projected("..., a; ..., b => ..., a^b", output(2, 2), output(2, 3))
    assert nests(projections, 1) == {(i, j): (i, 2 + j) for i in range(2) for j in range(3)}


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.integers(1, 3)] * 4))
def test_a_spec_with_three_operands_agrees_with_numpy(sizes: tuple[int, int, int, int]) -> None:
    i, j, k, m = sizes
    shapes = [output(i, j), output(j, k), output(k, m)]
    arrays = [np.arange(s.size).reshape(s.dims) + 1 for s in shapes]
    projections = projected("ij; jk; km => im", *shapes)
    expected = np.einsum("ij,jk,km->im", *arrays)
    assert correlate(projections, *arrays).tolist() == expected.tolist()


def _derived(first: AffineDim, second: AffineDim | None, pin: int | None = None) -> Projections:
    """Project a relation in which one axis of 6 has two formulas, over an axis of 3."""
    state = SolverState()
    i, whole = Size(3, axis_id=0), Size(6, axis_id=1)
    label = state.fresh.dim("i")
    constraints: list[Constraint] = [DimEqual(i, label, ORIGIN)]
    axis: DimVar = state.fresh.dim("n")
    constraints.append(DimEqual(whole, axis, ORIGIN))
    for formula in (first, second):
        if formula is not None:
            over = AffineDim(formula.stride, label, None, formula.offset)
            constraints.append(DimEqual(axis, over, ORIGIN))
    relation = Relation(constraints, {} if pin is None else {axis: FixedIndex(pin)})
    shapes = [Shape(output=Row(trailing=(size,))) for size in (i, whole)]
    return derive(state, relation, shapes[0], shapes[1:])


def test_two_formulas_for_one_axis_must_agree() -> None:
    any_axis = Size(1)
    even, odd = AffineDim(2, any_axis), AffineDim(2, any_axis, None, 1)
    agreed = _derived(even, even)
    assert [cell(agreed.rhs[0], env) for env in points(agreed)] == [(0,), (2,), (4,)]
    with pytest.raises(ShapeError, match="either at one position or at another"):
        _derived(even, odd)


def test_a_formula_must_agree_with_a_fixed_position() -> None:
    with pytest.raises(ShapeError, match="position 3 and position 2\\*i"):
        _derived(AffineDim(2, Size(1)), None, pin=3)
