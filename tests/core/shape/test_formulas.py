"""Sizes computed from other sizes: strided, windowed and concatenated axes, and counts of cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.base.errors import ShapeError, SpecError, UsageError
from ocannl_core.base.origin import Origin
from ocannl_core.shape.environment import Axes, Environment
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.constraints import (
    Constraint,
    DimBelow,
    DimEqual,
    ReverseEqual,
    Strided,
    TotalElements,
)
from ocannl_core.shape.language.shape_terms import (
    AffineDim,
    ConcatDim,
    Dim,
    DimVar,
    FreshVariables,
    Row,
    RowVar,
    Shape,
    Size,
    Window,
    closed_row,
    closed_shape,
)
from ocannl_core.shape.solving import solver
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.translation.logic import logic_from_text

ORIGIN = Origin("formula", detail="output row")


def solved(
    constraints: Sequence[Constraint], *dims: Dim, leaves: Sequence[Dim] = (), close: bool = False
) -> list[str]:
    """Return the known sizes after adding constraints one by one."""
    environment = Environment()
    environment._state.fresh.dims(20)
    if leaves:
        environment.leaf(Shape(output=Row(trailing=tuple(leaves))), Origin("leaf"))
    for constraint in constraints:
        environment.constrain([constraint])
    shape = Shape(output=Row(trailing=dims))
    if close:
        environment.close([shape])
    return str(environment.view(shape).output).split(",")


def equal(left: Dim, right: Dim) -> DimEqual:
    return DimEqual(left, right, ORIGIN, -1)


def variables(number: int) -> tuple[DimVar, ...]:
    supply = FreshVariables()
    return tuple(supply.dim(f"d{n}") for n in range(number))


def inferred(
    spec: str,
    *operands: Sequence[int] | None,
    result: Axes = None,
    values: dict[str, int] | None = None,
    padded: bool | None = None,
) -> str:
    """Return the closed shapes of operands (output axes; None to infer) and result."""
    environment = Environment()
    shapes = [environment.fresh_shape(batch=[], input=[], output=axes) for axes in operands]
    for position, shape in enumerate(shapes):
        environment.leaf(shape, Origin(f"tensor {position}"))
    whole = environment.fresh_shape(output=result)
    logic = logic_from_text(spec, len(operands), padded, values)
    environment.relate(logic, whole, shapes, Origin("einsum"))
    environment.close([whole, *shapes])
    views = [str(environment.view(shape)) for shape in [*shapes, whole]]
    return "; ".join(views[:-1]) + " => " + views[-1]


_N = None


@pytest.mark.parametrize(
    ("spec", "operands", "result", "expected"),
    [
        ("2*o<+k, ; k, => o", [[9], [3]], _N, "9; 3 => 4"),
        ("2*o<+k, ; k, => o", [[4], [2]], _N, "4; 2 => 2"),
        ("2*o<+k, ; k, => o", [_N, [3]], [4], "9; 3 => 4"),
        ("2*o<+k, ; k, => o", [[9], _N], [4], "9; 3 => 4"),
        ("o<+2*k, ; k, => o", [[7], [3]], _N, "7; 3 => 3"),
        ("o<+2*k, ; k, => o", [[7], _N], [3], "7; 3 => 3"),
        ("3*o<+2*k, ; k, => o", [_N, [3]], [4], "14; 3 => 4"),
        ("2*o=+k, ; k, => o", [[6], [5]], _N, "6; 5 => 3"),
        ("2*o=+k, ; k, => o", [_N, [4]], [3], "6; 4 => 3"),
        ("o=+3*k, ; k, => o", [[5], [3]], _N, "5; 3 => 5"),
        ("..., i => ..., 2*i", [[2, 3]], _N, "2,3 => 2,6"),
        ("…, i => …, 2*i + 1", [[2, 3]], _N, "2,3 => 2,6"),
        ("..., i => ..., 2*i", [_N], [2, 6], "2,3 => 2,6"),
        ("..., 2*i => ..., i", [[2, 6]], _N, "2,6 => 2,3"),
        *((f"3*i+{offset}, => i", [[9]], _N, "9 => 3") for offset in range(3)),
        ("2*o<+k, ; k, => o", [[0], [2]], _N, "0; 2 => 0"),
        ("5*o<+2*k, ; k, => o", [_N, [3]], [0], "0; 3 => 0"),
        ("2*o<+k, ; k, => o", [[0], _N], [0], "0; 2 => 0"),
        ("o, ; k, => 2*o<+k", [[0], [2]], _N, "0; 2 => 0"),
        ("2*i, => i", [[1]], [3], "1 => 3"),
        ("o<+k; k => o", [[5], _N], _N, "5; 1 => 5"),
    ],
)
def test_sizes_of_strided_and_windowed_axes(
    spec: str, operands: list[Sequence[int] | None], result: Axes, expected: str
) -> None:
    assert inferred(spec, *operands, result=result) == expected


@pytest.mark.parametrize(
    ("spec", "operands", "result", "rule"),
    [
        ("2*o<+k, ; k, => o", [[10], [3]], _N, "Incompatible stride: the last position"),
        ("2*o<+k, ; k, => o", [[5], [2]], _N, "Incompatible stride: the last position"),
        ("2*i, => i", [[7]], _N, "Incompatible stride: the size of a strided axis"),
        ("2*o=+k, ; k, => o", [[7], [3]], _N, "Incompatible stride: the size of a strided axis"),
        ("o<+2*k, ; k, => o", [[8], _N], [3], "The kernel dimension cannot be inferred: no kernel"),
        ("2*o<+k, ; k, => o", [[5], _N], [4], "The kernel dimension cannot be inferred: the span"),
        ("o<+k, ; k, => o", [[2], [3]], _N, "A window must fit into its axis"),
        ("3*o<+k, ; k, => o", [[0], [2]], _N, "Incompatible stride: the last position"),
        ("2*o<+k, ; k, => o", [_N, [3]], [0], "A window must fit into its axis"),
        ("2*o<+k, ; k, => o", [_N, [0]], [3], "A window must fit into its axis"),
        ("o<+k, ; k, => o", [[7], [3]], [6], "An axis must have the size that its stride"),
        ("a; b => a^b", [[2], [3]], [6], "An axis must have the size that its stride"),
        ("a; b => a^b", [[2], _N], [1], "The parts of a concatenated axis must not exceed"),
    ],
)
def test_sizes_that_do_not_fit(
    spec: str, operands: list[Sequence[int] | None], result: Axes, rule: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        inferred(spec, *operands, result=result)
    assert caught.value.rule.startswith(rule)
    assert "einsum" in caught.value.where
    assert caught.value.found
    assert caught.value.fix


def test_the_offset_of_a_strided_axis_must_be_less_than_its_stride() -> None:
    with pytest.raises(SpecError, match="less than the stride"):
        inferred("2*i+2, => i", [4])


def test_a_window_without_mark_needs_padded() -> None:
    with pytest.raises(ShapeError, match="padded= must be stated"):
        inferred("o+k, ; k, => o", [5], [3])
    assert inferred("o+k, ; k, => o", [5], [3], padded=True) == "5; 3 => 5"
    assert inferred("o+k, ; k, => o", [5], [3], padded=False) == "5; 3 => 3"


def test_values_stand_for_coefficients_and_sizes_of_labels() -> None:
    values = {"stride": 2, "k": 3, "gap": 2}
    assert inferred("stride*o<+gap*k, => o", [11], values=values) == "11 => 4"
    with pytest.raises(SpecError, match="expected integer"):
        inferred("stride*o, => o", [4])
    with pytest.raises(SpecError, match="A value is for an axis or a coefficient"):
        inferred("2*o, => o", [4], values={"p": 3})
    with pytest.raises(SpecError, match=r"between commas names are words: `row,`") as error:
        inferred("i => row|i", [4], values={"row": 3})
    assert error.value.found == "row = 3; the axes are i, o, r, w"


def test_affine_sizes_of_equal_stride_and_window_have_equal_positions() -> None:
    o, p, k = variables(3)
    for window in (None, Window(k), Window(Size(3)), Window(k, 2, padded=True)):
        equation = equal(AffineDim(2, o, window), AffineDim(2, p, window))
        assert solved([equation, equal(p, Size(5))], o) == ["5"]


def test_strides_that_are_multiples_reduce_to_their_quotient() -> None:
    o, p = variables(2)
    equation = equal(AffineDim(6, o), AffineDim(2, p))
    assert solved([equation, equal(o, Size(4))], p) == ["12"]
    assert solved([equation, equal(p, Size(12))], o) == ["4"]
    with pytest.raises(ShapeError, match="Incompatible stride"):
        solved([equation, equal(p, Size(4))])


def test_windows_of_different_strides_are_related_when_their_kernels_are_known() -> None:
    o, p = variables(2)
    left = AffineDim(4, o, Window(Size(4)))
    right = AffineDim(2, p, Window(Size(2)))
    assert solved([equal(left, right), equal(o, Size(3))], p) == ["6"]
    with pytest.raises(ShapeError, match="Incompatible stride"):
        solved([equal(left, AffineDim(2, p, Window(Size(3))))])


def test_a_formula_is_solved_once_two_of_its_sizes_are_known() -> None:
    n, o, k = variables(3)
    formula = equal(n, AffineDim(2, o, Window(k, 3)))
    known = [equal(n, Size(13)), equal(o, Size(4)), equal(k, Size(3))]
    for missing, size in enumerate(("13", "4", "3")):
        rest = known[:missing] + known[missing + 1 :]
        for order in (rest, rest[::-1]):
            assert solved([formula, *order], (n, o, k)[missing]) == [size]
            assert solved([*order, formula], (n, o, k)[missing]) == [size]


def test_a_basis_passes_between_a_strided_axis_and_its_positions() -> None:
    n, o = variables(2)
    formula = equal(n, AffineDim(2, o))
    assert solved([formula, equal(n, Size(6, "time"))], o) == ["3:time"]
    assert solved([equal(n, Size(6)), equal(o, Size(3, "time")), formula], n) == ["6:time"]
    with pytest.raises(ShapeError, match="same basis"):
        solved([formula, equal(n, Size(6, "time")), equal(o, Size(3, "space"))])


def test_a_multiple_of_itself_is_refused_for_all_sizes() -> None:
    (n,) = variables(1)
    itself = equal(n, AffineDim(2, n))
    for order in permutations([itself, equal(n, Size(0))]):
        with pytest.raises(ShapeError, match="computed from itself"):
            solved(order, n)


BASES = ("x", "y", None)


@pytest.mark.parametrize(
    "formula",
    [
        lambda n, a, b: equal(n, AffineDim(1, a, Window(b))),
        lambda n, a, b: equal(n, AffineDim(2, a, Window(b, 3, padded=True))),
        lambda n, a, b: equal(n, ConcatDim((a, b))),
    ],
    ids=["a window inside", "a padded window", "a concatenation"],
)
@pytest.mark.parametrize("bases", list(product(BASES, repeat=3)), ids=str)
def test_an_axis_and_its_parts_have_one_basis(
    formula: Callable[[Dim, Dim, Dim], Constraint], bases: tuple[str | None, ...]
) -> None:
    n, a, b = variables(3)
    whole = solved([formula(n, a, b), equal(a, Size(4)), equal(b, Size(3))], n)[0]
    known = [
        equal(dim, Size(size, basis))
        for dim, size, basis in zip((n, a, b), (int(whole), 4, 3), bases, strict=True)
    ]
    stated = {basis for basis in bases if basis}
    for order in permutations([formula(n, a, b), *known]):
        if len(stated) > 1:
            with pytest.raises(ShapeError, match="same basis"):
                solved(order, n, a, b)
        else:
            mark = "".join(f":{basis}" for basis in stated)
            assert solved(order, n, a, b) == [f"{whole}{mark}", f"4{mark}", f"3{mark}"]


def test_an_operand_of_size_1_is_repeated_along_a_formula() -> None:
    o, x = variables(2)
    below = DimBelow(AffineDim(2, o), x, ORIGIN, -1)
    orders: list[list[Constraint]] = [[below, equal(x, Size(1))], [equal(x, Size(1)), below]]
    for order in orders:
        assert solved([*order, equal(o, Size(4))], o, x) == ["4", "1"]
    assert solved([below, equal(x, Size(6))], o) == ["3"]


def steps_until_settled(constraints: Sequence[Constraint]) -> int:
    """Return the steps that solving takes, whether or not there is a solution."""
    state = SolverState()
    state.fresh.dims(20)
    state.agenda.extend(constraints)
    steps = 0
    while state.agenda:
        steps += 1
        assert steps < 1000
        try:
            solver.step(state, state.agenda.popleft())
        except ShapeError:
            return steps
    return steps


def test_a_size_computed_from_itself_is_refused() -> None:
    (o,) = variables(1)
    with pytest.raises(ShapeError, match="cannot be computed from itself"):
        solved([equal(o, AffineDim(2, o))])


def test_circles_of_formulas_end_within_few_steps() -> None:
    o, k, n, m = variables(4)
    circles: list[list[Constraint]] = [
        [equal(o, AffineDim(1, o, Window(k))), equal(k, o)],
        [equal(n, AffineDim(2, o)), equal(o, AffineDim(2, n))],
        [equal(n, ConcatDim((o, k))), equal(o, ConcatDim((n, k)))],
        [equal(n, AffineDim(1, o, Window(k))), equal(o, AffineDim(1, n, Window(k, 2)))],
        [equal(n, AffineDim(3, o, Window(m))), equal(m, AffineDim(1, n, Window(k))), equal(k, o)],
    ]
    for circle in circles:
        assert steps_until_settled(circle) < 50


@pytest.mark.parametrize("spec", ["o<+k; k => o", "o=+k; k => o", "2*o<+k, ; k, => o"])
def test_one_tensor_as_data_and_as_kernel_does_not_hang(spec: str) -> None:
    environment = Environment()
    x, y = environment.fresh_shape(name="x"), environment.fresh_shape(name="y")
    logic = logic_from_text(spec, 2)
    environment.relate(logic, y, [x, x], Origin("first"))
    environment.relate(logic, x, [y, y], Origin("second"))
    try:
        environment.close([x, y])
    except ShapeError as error:
        if "step budget" in error.rule:
            raise
    else:
        assert environment.view(x).is_closed
        assert environment.view(y).is_closed


@pytest.mark.parametrize(
    ("spec", "operands", "result", "expected"),
    [
        ("a; b => a^b", [[2], [3]], _N, "2; 3 => 5"),
        ("a; b; c => a^b^c", [[2], [3], [1]], _N, "2; 3; 1 => 6"),
        ("a; b => a^b", [[2], _N], [6], "2; 4 => 6"),
        ("..., a; ..., b => ..., a^b", [[7, 2], [7, 3]], _N, "7,2; 7,3 => 7,5"),
        ("a^b => a", [[5]], [3], "5 => 3"),
        ("a^b => b", [[5]], [3], "5 => 3"),
        ("a^b => a", [[5]], _N, "5 => 5"),
        ("3^a => a", [[5]], _N, "5 => 2"),
        ("a => a^2", [[5]], _N, "5 => 7"),
        ("a; b => a^b", [[0], [3]], _N, "0; 3 => 3"),
    ],
)
def test_sizes_of_concatenated_axes(
    spec: str, operands: list[Sequence[int] | None], result: Axes, expected: str
) -> None:
    assert inferred(spec, *operands, result=result) == expected


def test_equal_parts_cancel() -> None:
    a, b, c, d = variables(4)
    equation = equal(ConcatDim((a, b, c)), ConcatDim((c, d, a)))
    assert solved([equation, equal(b, Size(4))], d) == ["4"]


def test_concatenations_nest() -> None:
    a, b, c = variables(3)
    nested = ConcatDim((a, ConcatDim((b, Size(2)))))
    assert solved([equal(c, nested), equal(c, Size(9)), equal(a, Size(4))], b) == ["3"]


def test_parts_of_equal_concatenations_are_paired_when_closing() -> None:
    a, b, c, d = variables(4)
    equation = equal(ConcatDim((a, b)), ConcatDim((c, d)))
    sizes = [equal(a, Size(2)), equal(d, Size(3))]
    assert solved([equation], a, b, c, d, close=True) == ["1", "1", "1", "1"]
    assert solved([equation, *sizes[:1]], a, c, leaves=[b, d], close=True) == ["2", "2"]


def test_an_empty_concatenation_has_size_0() -> None:
    (a,) = variables(1)
    assert solved([equal(a, ConcatDim(()))], a) == ["0"]


def test_a_number_of_cells_gives_the_one_unknown_size() -> None:
    environment = Environment()
    (n,) = environment._state.fresh.dims(1)
    shape = Shape(batch=closed_row(2), output=Row(trailing=(n, Size(3))))
    environment.total_elements(shape, 24)
    assert str(environment.view(shape)) == "2|4,3"
    with pytest.raises(ShapeError, match="number of cells"):
        environment.total_elements(shape, 25)


def test_a_leaf_with_a_number_of_cells_gets_one_axis_unless_its_uses_state_axes() -> None:
    environment = Environment()
    alone, used, single = (environment.fresh_shape(batch=[], input=[]) for _ in range(3))
    for shape in (alone, used, single):
        environment.leaf(shape, Origin("literal"))
    environment.total_elements(alone, 6)
    environment.total_elements(used, 6)
    environment.total_elements(single, 1)
    result = environment.fresh_shape()
    operands = [used, closed_shape(output=(2, 3))]
    environment.relate(logic_from_text(".", 2), result, operands, Origin("add"))
    environment.close([alone, result, single])
    assert [str(environment.view(s)) for s in (alone, used, single)] == ["6", "2,3", "()"]


def test_a_number_of_cells_goes_to_the_output_row() -> None:
    environment = Environment()
    shape = environment.fresh_shape()
    environment.total_elements(shape, 12)
    environment.close([shape])
    assert str(environment.view(shape)) == "12"


@pytest.mark.parametrize(
    ("row", "count", "expected"),
    [
        (closed_row(8), (4, 1), "2"),
        (closed_row(2, 6), (4, 1), "3"),
        (closed_row(6), (3, 2), "4"),
        (closed_row(), (1, 2), "2"),
    ],
)
def test_a_strided_count_follows_from_the_cells(
    row: Row, count: tuple[int, int], expected: str
) -> None:
    (v,) = variables(1)
    assert solved([TotalElements((row,), Strided(count[0], v, count[1]), ORIGIN)], v) == [expected]


def test_two_counts_of_one_row_determine_a_size() -> None:
    tail, n, v = RowVar(0, "r"), DimVar(0, "n"), DimVar(1, "v")
    whole = TotalElements((Row(tail=tail),), 6, ORIGIN)
    more = TotalElements((Row((n,), tail),), 18, ORIGIN)
    words = TotalElements((Row(tail=tail),), Strided(4, v, 2), ORIGIN)
    for order in permutations([whole, more, words]):
        assert solved(list(order), n, v) == ["3", "3"]
    for other in (
        TotalElements((Row(tail=tail),), 7, ORIGIN),
        TotalElements((Row((n,), tail),), 19, ORIGIN),
        TotalElements((Row(tail=tail),), Strided(4, v), ORIGIN),
    ):
        for order in permutations([whole, other]):
            with pytest.raises(ShapeError, match="number of cells"):
                solved(list(order))


def test_a_strided_count_that_does_not_divide_is_refused() -> None:
    (v,) = variables(1)
    with pytest.raises(ShapeError, match="number of cells"):
        solved([TotalElements((closed_row(6),), Strided(4, v), ORIGIN)])


def test_cells_follow_from_a_strided_count() -> None:
    v, n = variables(2)
    count = TotalElements((Row(trailing=(n,)),), Strided(4, v), ORIGIN)
    orders: list[list[Constraint]] = [[count, equal(v, Size(3))], [equal(v, Size(3)), count]]
    for order in orders:
        assert solved(order, n) == ["12"]
    cancelled = TotalElements((Row(trailing=(n,)),), Strided(4, v), ORIGIN, (v,))
    assert solved([cancelled], n) == ["4"]


@pytest.mark.parametrize(
    ("coefficient", "denominator", "size", "cells"), [(4, 6, 3, "2"), (2, 4, 2, "()")]
)
def test_an_open_strided_count_closes_to_the_smallest_numbers(
    coefficient: int, denominator: int, size: int, cells: str
) -> None:
    environment = Environment()
    shape = environment.fresh_shape(batch=[], input=[])
    (v,) = environment._state.fresh.dims(1)
    count = Strided(coefficient, v, denominator)
    environment.constrain([TotalElements((shape.output,), count, ORIGIN)])
    environment.close([shape])
    assert str(environment.view(shape)) == cells
    assert environment._state.size(v) == Size(size)


def test_exact_axes_fill_the_one_open_row() -> None:
    environment = Environment()
    shape = environment.fresh_shape(batch=[2], input=[4])
    environment.exact(shape, [2, 3, 3, 4])
    assert str(environment.view(shape)) == "2|4->3,3"
    with pytest.raises(ShapeError, match="exactly"):
        environment.exact(shape, [2, 3, 4])


def test_a_row_is_the_reverse_of_another_as_soon_as_that_is_known() -> None:
    environment = Environment()
    one, other = environment.fresh_shape(), environment.fresh_shape()
    environment.constrain([ReverseEqual(one.output, other.output, ORIGIN)])
    environment.exact(Shape(output=one.output), [2, 3, 4])
    assert str(environment.view(Shape(output=other.output))) == "4,3,2"


def test_two_open_rows_that_are_each_others_reverse_close_empty() -> None:
    environment = Environment()
    one, other = environment.fresh_shape(), environment.fresh_shape()
    environment.constrain([ReverseEqual(one.output, other.output, ORIGIN)])
    environment.close([one])
    assert str(environment.view(one)) == str(environment.view(Shape(output=other.output))) == "()"


def test_captured_labels_give_their_sizes() -> None:
    environment = Environment()
    rest, k = DimRef(), DimRef()
    shapes = [closed_shape(batch=(2, 5), output=(7,)), closed_shape(output=(3,))]
    result = environment.fresh_shape()
    logic = logic_from_text("..v..| o<+k; k => ..v.., o", 2)
    environment.relate(logic, result, shapes, ORIGIN, {"v": rest, "k": k})
    environment.close([result], [rest, k])
    assert environment.size_of(k) == 3
    assert environment.size_of(rest) == 10


def test_captured_sizes_can_be_given_and_related() -> None:
    environment = Environment()
    k, o, n = DimRef(), DimRef(), DimRef()
    x, result = closed_shape(output=(9,)), environment.fresh_shape()
    environment.relate(logic_from_text("o<+k => o", 1), result, [x], ORIGIN, {"k": k, "o": o})
    environment.set_dim(k, 2)
    environment.set_scale(o, 4, k)
    environment.close([result])
    assert (environment.size_of(k), environment.size_of(o)) == (2, 8)
    other = environment.fresh_shape()
    environment.relate(logic_from_text("i => i", 1), other, [result], ORIGIN, {"i": n})
    environment.set_scale(n, 1, o)
    with pytest.raises(ShapeError):
        environment.set_dim(n, 9)


def test_a_captured_row_can_be_given_its_number_of_cells() -> None:
    environment = Environment()
    v = DimRef()
    x = environment.fresh_shape(batch=[], input=[])
    environment.leaf(x, Origin("x"))
    result = environment.fresh_shape()
    environment.relate(logic_from_text("..v.. => ..v..", 1), result, [x], ORIGIN, {"v": v})
    environment.set_dim(v, 6)
    environment.close([result], [v])
    assert environment.size_of(v) == 6


def test_only_names_of_the_spec_can_be_captured() -> None:
    environment = Environment()
    x, result = closed_shape(output=(9,)), environment.fresh_shape()
    with pytest.raises(SpecError, match="can be captured"):
        environment.relate(logic_from_text("i => i", 1), result, [x], ORIGIN, {"j": DimRef()})
    with pytest.raises(UsageError, match="captured size belongs to a label"):
        environment.size_of(DimRef())


@st.composite
def _formulas(draw: st.DrawFn) -> tuple[tuple[DimVar, ...], list[Constraint]]:
    dims = variables(5)
    plain: st.SearchStrategy[Dim] = st.sampled_from(dims) | st.builds(Size, st.integers(1, 9))
    window = st.none() | st.builds(Window, plain, st.integers(1, 2), st.booleans())
    formula = st.builds(AffineDim, st.integers(1, 3), plain, window) | st.builds(
        ConcatDim, st.lists(plain, min_size=1, max_size=3).map(tuple)
    )
    constraint: st.SearchStrategy[Constraint] = st.one_of(
        st.builds(equal, plain, formula),
        st.builds(equal, formula, formula),
        st.builds(DimBelow, formula, plain, st.just(ORIGIN)),
        st.builds(DimBelow, plain, plain, st.just(ORIGIN)),
        st.builds(equal, st.sampled_from(dims), st.builds(Size, st.integers(1, 9))),
    )
    return dims, draw(st.lists(constraint, min_size=1, max_size=7))


def _outcome(dims: tuple[DimVar, ...], constraints: Sequence[Constraint]) -> list[str] | None:
    try:
        return solved(constraints, *dims, leaves=dims[:2], close=True)
    except ShapeError as error:
        if "step budget" in error.rule:
            raise
        return None


@settings(max_examples=100, deadline=None)
@given(_formulas(), st.data())
def test_formulas_in_any_order_have_the_same_solution(
    problem: tuple[tuple[DimVar, ...], list[Constraint]], data: st.DataObject
) -> None:
    dims, constraints = problem
    first = _outcome(dims, constraints)
    assert first == _outcome(dims, data.draw(st.permutations(constraints)))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 12), st.booleans())
def test_any_two_of_axis_positions_and_kernel_give_the_third(
    stride: int, dilation: int, kernel: int, positions: int, padded: bool
) -> None:
    mark = "=" if padded else "<"
    spec = f"{stride}*o{mark}+{dilation}*k, ; k, => o"
    span = 1 + (kernel - 1) * dilation
    n = stride * positions if padded else stride * (positions - 1) + span
    expected = f"{n}; {kernel} => {positions}"
    assert inferred(spec, [n], [kernel]) == expected
    if n > 1:
        assert inferred(spec, None, [kernel], result=[positions]) == expected
    if not padded:
        assert inferred(spec, [n], None, result=[positions]) == expected
