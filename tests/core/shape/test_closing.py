"""Closing of constraints that leave sizes open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, permutations

import pytest

from ocannl_core.base.errors import ShapeError, SpecWarning
from ocannl_core.base.origin import Origin
from ocannl_core.shape.environment import Axes, Environment
from ocannl_core.shape.language.constraints import (
    AtLeast,
    Constraint,
    DimBelow,
    DimEqual,
    RowEqual,
    Strided,
    TotalElements,
)
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import (
    AffineDim,
    ConcatDim,
    Dim,
    DimVar,
    Row,
    RowVar,
    Shape,
    Size,
    Window,
)
from ocannl_core.shape.language.subscripts import Position
from ocannl_core.shape.translation.logic import Compose, Einsum, Logic, Pointwise, Slice, Transpose

ORIGIN = Origin("test", detail="output row")
A, B, C = DimVar(10_001, "a"), DimVar(10_002, "b"), DimVar(10_003, "c")


class ClosingModel:
    """An expression being built."""

    def __init__(self) -> None:
        self.environment = Environment()

    def given(self, batch: Axes = (), input: Axes = (), output: Axes = ()) -> Shape:
        return self.environment.fresh_shape(batch=batch, input=input, output=output)

    def leaf(self, batch: Axes = (), input: Axes = None, output: Axes = None) -> Shape:
        shape = self.environment.fresh_shape(batch=batch, input=input, output=output)
        self.environment.leaf(shape, Origin("leaf"))
        return shape

    def param(self, name: str, input: Axes = None, output: Axes = None) -> Shape:
        shape = self.environment.fresh_shape(batch=[], input=input, output=output, name=name)
        self.environment.leaf(shape, Origin(f"parameter {name}"), parameter=True)
        return shape

    def apply(self, logic: Logic | str, *operands: Shape, result: Shape | None = None) -> Shape:
        if result is None:
            result = self.environment.fresh_shape()
        if isinstance(logic, str):
            logic = Einsum(parse_spec(logic))
        self.environment.relate(logic, result, operands, Origin("operation"))
        return result

    def add(self, *operands: Shape) -> Shape:
        return self.apply(Pointwise(), *operands)

    def matmul(self, one: Shape, two: Shape) -> Shape:
        return self.apply(Compose(), one, two)

    def closed(self, *shapes: Shape) -> list[str]:
        """Close the leaves of the first shape; return all shapes."""
        self.environment.close(shapes[:1])
        return [str(self.environment.view(shape)) for shape in shapes]


@pytest.fixture
def model() -> ClosingModel:
    return ClosingModel()


def sizes(
    constraints: Sequence[Constraint], dims: Sequence[DimVar], leaves: Sequence[DimVar] = ()
) -> str:
    environment = Environment()
    for dim in leaves:
        environment.leaf(Shape(output=Row(trailing=(dim,))), Origin("leaf"))
    environment.constrain(constraints)
    shape = Shape(output=Row(trailing=tuple(dims)))
    environment.close([shape])
    return str(environment.view(shape))


def below(res: Dim | int, opnd: Dim | int) -> DimBelow:
    left = Size(res) if isinstance(res, int) else res
    right = Size(opnd) if isinstance(opnd, int) else opnd
    return DimBelow(left, right, ORIGIN)


def test_conflicting_uses_close_the_shared_operand_to_1_in_any_order() -> None:
    constraints = [below(3, A), below(A, B), below(5, B)]
    assert {sizes(order, [A, B]) for order in permutations(constraints)} == {"3,1"}


def test_a_bound_passes_to_results_of_a_variable() -> None:
    assert sizes([below(3, A), below(B, A)], [A, B]) == "3,3"


def test_leaves_close_to_their_uses_even_if_a_common_result_then_fails() -> None:
    constraints = [below(3, A), below(5, B), below(C, A), below(C, B)]
    with pytest.raises(ShapeError):
        sizes(constraints, [A, B, C], leaves=[A, B])


def test_an_unused_size_is_1() -> None:
    assert sizes([], [A]) == "1"


WRITTEN = AtLeast(A, 3, ORIGIN, lengthens=True)
READ = AtLeast(A, 3, ORIGIN)


def test_an_accessed_size_is_as_small_as_the_access_allows() -> None:
    assert sizes([WRITTEN], [A]) == "3"
    assert sizes([WRITTEN, below(A, 1)], [A]) == "3"
    assert sizes([READ], [A], leaves=[A]) == "3"
    assert sizes([READ, below(5, A)], [A]) == "5"


def test_a_size_is_not_made_larger_for_a_position_that_is_read() -> None:
    for constraints in ([READ], [READ, below(A, 1)], [READ, WRITTEN, AtLeast(A, 4, ORIGIN)]):
        with pytest.raises(ShapeError, match="is accessed"):
            sizes(constraints, [A])
    with pytest.raises(ShapeError, match="is accessed"):
        sizes([READ, below(A, 1)], [A], leaves=[A])


def test_a_size_accessed_only_at_0_is_1_for_all_uses() -> None:
    assert sizes([AtLeast(A, 1, ORIGIN), below(4, A)], [A]) == "1"


def test_a_result_of_operands_of_size_1_stays_1_although_its_use_is_larger() -> None:
    assert sizes([below(A, 1), below(5, A)], [A]) == "1"
    assert sizes([below(A, 1), below(5, A)], [A], leaves=[A]) == "5"


def test_a_chain_of_results_of_size_1_stays_1() -> None:
    assert sizes([below(A, 1), below(B, A), below(C, B), below(5, C)], [A, B, C]) == "1,1,1"


def test_in_a_cycle_of_formulas_parts_default_before_their_sums() -> None:
    # a = 2*b with a window of size a, and c = 3 + a
    window = AffineDim(2, B, Window(A, padded=True))
    constraints: list[Constraint] = [
        DimEqual(A, window, ORIGIN),
        DimEqual(C, ConcatDim((Size(3), A)), ORIGIN),
    ]
    for order in permutations(constraints):
        assert sizes(order, [A, B, C]) == "2,1,5"


def test_a_circle_of_variables_is_one_variable() -> None:
    constraints: list[Constraint] = [below(A, B), below(B, C), below(C, A), WRITTEN]
    assert sizes(constraints, [A, B, C]) == "3,3,3"


def test_a_leaf_takes_the_shape_of_its_only_use(model: ClosingModel) -> None:
    leaf = model.leaf()
    y = model.add(model.given(output=[3, 4]), leaf)
    assert model.closed(y, leaf) == ["3,4", "3,4"]


def test_a_leaf_used_in_rows_of_different_lengths_takes_the_shorter(model: ClosingModel) -> None:
    leaf = model.leaf()
    one = model.add(model.given(output=[3, 4]), leaf)
    two = model.add(model.given(output=[4]), leaf)
    model.environment.close([one, two])
    assert model.closed(one, two, leaf) == ["3,4", "4", "4"]


def test_a_leaf_used_with_different_sizes_is_1(model: ClosingModel) -> None:
    leaf = model.leaf()
    one = model.add(model.given(output=[3]), leaf)
    two = model.add(model.given(output=[4]), leaf)
    model.environment.close([one, two])
    assert model.closed(one, two, leaf) == ["3", "4", "1"]


def test_a_leaf_without_uses_is_a_scalar(model: ClosingModel) -> None:
    assert model.closed(model.leaf()) == ["()"]


def test_a_leaf_learns_its_axes_through_intermediate_results(model: ClosingModel) -> None:
    leaf = model.leaf()
    middle = model.add(model.add(leaf))
    y = model.apply(Pointwise(), middle, result=model.given(output=[2, 3]))
    assert model.closed(y, middle, leaf) == ["2,3", "2,3", "2,3"]


def test_leaves_that_learn_from_each_other_close_one_after_the_other(model: ClosingModel) -> None:
    leaves = [model.leaf() for _ in range(30)]
    pairs = [model.add(one, two) for one, two in pairwise(leaves)]
    model.apply(Pointwise(), leaves[0], result=model.given(output=[5, 6]))
    model.environment.close(pairs)
    assert {str(model.environment.view(shape)) for shape in [*leaves, *pairs]} == {"5,6"}


def test_a_result_is_not_enlarged_by_its_use(model: ClosingModel) -> None:
    scale = model.add(model.given(output=[8]))
    y = model.add(model.given(batch=[32], output=[2, 8]), scale)
    assert model.closed(y, scale) == ["32|2,8", "8"]


def test_a_reduction_is_not_enlarged_by_its_use(model: ClosingModel) -> None:
    x = model.given(batch=[32], output=[512])
    mean = model.apply("...|...c => ...|...0", x)
    total = model.apply("...|... => 0", x)
    y = model.add(x, mean, total)
    assert model.closed(y, mean, total) == ["32|512", "32|1", "1"]


def test_an_axis_only_in_the_result_follows_its_use(model: ClosingModel) -> None:
    outer = model.apply("j=>ij", model.given(output=[4]))
    y = model.add(model.given(output=[3, 4]), outer)
    assert model.closed(y, outer) == ["3,4", "3,4"]


def test_an_axis_only_in_the_result_is_1_without_uses(model: ClosingModel) -> None:
    outer = model.apply("j=>ij", model.given(output=[4]))
    with pytest.warns(SpecWarning, match="`i` in j=>ij is undetermined, and so it is 1"):
        assert model.closed(outer) == ["1,4"]


def test_a_new_axis_is_long_enough_for_the_position_written(model: ClosingModel) -> None:
    assert model.closed(model.apply("... => ...2", model.given(output=[4]))) == ["4,3"]


def test_a_row_variable_carries_batch_axes_to_outputs(model: ClosingModel) -> None:
    x = model.given(batch=[5], output=[2, 3, 4])
    assert model.closed(model.apply("..v..|ijk => ..v..kji", x)) == ["5,4,3,2"]


@pytest.mark.parametrize("spec", ["...|...->... => 0", "...|... => 0", "... => 0"])
def test_axes_that_are_not_mentioned_are_reduced(model: ClosingModel, spec: str) -> None:
    x = model.given(batch=[5], input=[2], output=[3])
    assert model.closed(model.apply(spec, x)) == ["1"]


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("...|...->... => ...|...->...", "5,6|2->3"),
        ("...|...->... => ...->...", "2->3"),
        ("...->... => ...->...", "2->3"),
        ("2...|...->... => ...|...->...", "6|2->3"),
        ("...|... => ...|...2", "5,6|3,3"),
        ("2..v..|... => ..v..", "6"),
        ("...|c => ...|0", "5,6|1"),
    ],
)
def test_the_examples_of_the_notation(model: ClosingModel, spec: str, shape: str) -> None:
    x = model.given(batch=[5, 6], input=[2], output=[3])
    assert model.closed(model.apply(spec, x)) == [shape]


def test_slicing_a_leaf_leaves_it_its_sliced_axis(model: ClosingModel) -> None:
    x = model.leaf(batch=None, input=[])
    y = model.apply(Slice((Position(2),)), x)
    z = model.add(y, model.given(batch=[6], output=[4]))
    assert model.closed(z, y, x) == ["6|4", "6|4", "3,6|4"]


def test_shifted_equations_of_one_variable_close_it_to_nothing(model: ClosingModel) -> None:
    tail = model.environment.fresh_shape().output.tail
    assert tail is not None
    shifted = RowEqual(Row((Size(3),), tail), Row(tail=tail, trailing=(Size(3),)), ORIGIN)
    model.environment.constrain([shifted])
    assert model.closed(Shape(output=Row(tail=tail))) == ["()"]
    other = RowVar(99_999)
    conflict = RowEqual(Row((Size(3),), other), Row(tail=other, trailing=(Size(5),)), ORIGIN)
    model.environment.constrain([conflict])
    with pytest.raises(ShapeError):
        model.environment.close([Shape(output=Row(tail=other))])


@pytest.mark.parametrize(
    ("ahead", "behind", "closed"),
    [((3,), (3,), ("()", "()")), ((2, 3), (3,), ("()", "2")), ((3,), (3, 4), ("4", "()"))],
)
def test_axes_at_opposite_ends_of_equal_rows_are_the_same_if_nothing_else_is_known(
    model: ClosingModel, ahead: tuple[int, ...], behind: tuple[int, ...], closed: tuple[str, str]
) -> None:
    v, w = RowVar(99_998), RowVar(99_999)
    left = Row(tuple(map(Size, ahead)), v)
    right = Row(tail=w, trailing=tuple(map(Size, behind)))
    model.environment.constrain([RowEqual(left, right, ORIGIN)])
    assert tuple(model.closed(Shape(output=Row(tail=v)), Shape(output=Row(tail=w)))) == closed


def test_axes_at_opposite_ends_of_equal_rows_are_different_if_the_rows_are_long(
    model: ClosingModel,
) -> None:
    v, w = RowVar(99_998), RowVar(99_999)
    equation = RowEqual(Row((Size(3),), v), Row(tail=w, trailing=(Size(5),)), ORIGIN)
    model.environment.constrain([equation, RowEqual(Row(tail=v), Row(trailing=(A, B)), ORIGIN)])
    assert model.closed(Shape(output=Row(tail=v)), Shape(output=Row(tail=w))) == ["1,5", "3,1"]


def test_a_weight_gets_its_axes_from_the_data_and_the_bias(model: ClosingModel) -> None:
    x, w, b = model.given(output=[3]), model.param("w"), model.param("b", output=[8])
    y = model.add(model.matmul(w, x), b)
    assert model.closed(y, w, b) == ["8", "3->8", "8"]


def test_a_network_without_a_hidden_size_is_an_error(model: ClosingModel) -> None:
    x, w1, b1 = model.given(batch=[32], output=[3]), model.param("w1"), model.param("b1")
    h = model.add(model.add(model.matmul(w1, x), b1))
    y = model.matmul(model.param("w2", output=[2]), h)
    with pytest.raises(ShapeError, match="hidden dimension"):
        model.closed(y)


def test_a_network_with_a_hidden_size_is_inferred(model: ClosingModel) -> None:
    x, w1, b1 = (
        model.given(batch=[32], output=[3]),
        model.param("w1"),
        model.param("b1", output=[8]),
    )
    w2 = model.param("w2", output=[2])
    h = model.add(model.add(model.matmul(w1, x), b1))
    y = model.matmul(w2, h)
    assert model.closed(y, w1, b1, w2, h) == ["32|2", "3->8", "8", "8->2", "32|8"]


def test_a_weight_on_data_of_one_feature_has_one_input(model: ClosingModel) -> None:
    w = model.param("w", output=[4])
    y = model.matmul(w, model.given(output=[1]))
    assert model.closed(y, w) == ["4", "1->4"]


def test_a_weight_on_a_scalar_has_no_input(model: ClosingModel) -> None:
    w = model.param("w", output=[4])
    y = model.matmul(w, model.given(output=[]))
    assert model.closed(y, w) == ["4", "4"]


def test_parameters_that_meet_axis_by_axis_only_are_scalars(model: ClosingModel) -> None:
    a, b = model.param("a"), model.param("b")
    assert model.closed(model.add(a, b), a, b) == ["()", "()", "()"]


def test_a_parameter_named_by_a_spec_must_get_its_sizes(model: ClosingModel) -> None:
    p = model.param("p")
    y = model.apply("i;ij=>j", model.given(output=[4]), p)
    with pytest.raises(ShapeError, match="hidden dimension"):
        model.closed(y)
    z = model.apply(Pointwise(), y, result=model.given(output=[6]))
    assert model.closed(z, p) == ["6", "4,6"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_that_must_be_as_long_as_a_parameters_is_not_guessed(
    model: ClosingModel, order: tuple[int, int]
) -> None:
    w, v = model.param("w"), model.param("v", input=[4, 2])
    x = model.matmul(w, v)
    steps = (lambda: model.apply("a,...;b,...=>a^b,...", x, w), lambda: model.apply("i^j=>i", x))
    results = [steps[position]() for position in order]
    with pytest.raises(ShapeError, match="hidden dimension") as caught:
        model.closed(model.matmul(x, v), *results)
    assert "parameter w: its output axes can be anything" in caught.value.found


def _open_size(model: ClosingModel) -> Shape:
    return model.apply("i;ij=>j", model.given(output=[4]), model.param("p"))


def _counted_row(model: ClosingModel) -> Shape:
    p = model.param("p")
    model.environment.total_elements(p, 6)
    return model.apply(Transpose(), p)


def _counted_size(model: ClosingModel) -> Shape:
    p, numbers = model.param("p"), model.leaf(input=())
    count = TotalElements((numbers.output,), Strided(4, A), ORIGIN)
    model.environment.constrain([RowEqual(p.output, Row(trailing=(A,)), ORIGIN), count])
    return p


def _open_row(model: ClosingModel) -> Shape:
    return model.matmul(model.param("p"), model.given(output=[3]))


def _computed_size(model: ClosingModel) -> Shape:
    return model.apply("o<+k; k => o", model.given(output=[9]), model.param("p"))


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (_open_size, "the size of its output axis -1"),
        (_counted_row, "its input axes"),
        (_counted_size, "the size of its output axis -1"),
        (_open_row, "its output axes"),
        (_computed_size, "the size of its output axis -1"),
    ],
)
def test_an_error_about_a_hidden_dimension_names_the_open_part(
    model: ClosingModel, make: Callable[[ClosingModel], Shape], part: str
) -> None:
    y = make(model)
    with pytest.raises(ShapeError, match="hidden dimension") as caught:
        model.closed(y)
    assert f"parameter p: {part} can be anything" in caught.value.found


def test_a_transposed_weight_can_be_shared(model: ClosingModel) -> None:
    w = model.param("w", output=[8])
    h = model.matmul(w, model.given(output=[3]))
    back = model.matmul(model.apply(Transpose(), w), h)
    assert model.closed(back, w, h) == ["3", "3->8", "8"]


def test_a_size_does_not_wait_for_sizes_computed_from_it(model: ClosingModel) -> None:
    table = model.given(input=[2], output=[3, 1])
    scalar = model.apply("=>", table)
    x = model.add(scalar, table)
    spec = Einsum(parse_spec("d,->i,; k=+c, m => 2*i, 1^d,->m, k"), values=(("c", 1),))
    y = model.apply(spec, x, x)
    z = model.add(model.matmul(y, y), scalar)
    assert model.closed(z, y) == ["2,3->1,3", "2,3->1,3"]


def test_a_later_position_beyond_a_computed_axis_of_size_1_is_refused(model: ClosingModel) -> None:
    x = model.apply("row,k1,|=>k1,row|", model.given(batch=[1, 2]))
    y = model.apply("i^i,j|=>2*j<+i,|", x)
    with pytest.raises(ShapeError, match="Position 1 is accessed"):
        model.closed(model.apply("1,|=>", y), y, x)


def test_closing_leaves_unconnected_tensors_open(model: ClosingModel) -> None:
    x = model.given(output=[3])
    here, there = model.param("here"), model.param("there")
    y, other = model.matmul(here, x), model.matmul(there, x)
    model.apply(Pointwise(), y, result=model.given(output=[2]))
    assert model.closed(y, here) == ["2", "3->2"]
    assert not model.environment.view(other).is_closed
    assert not model.environment.view(there).is_closed


def test_closing_leaves_unconnected_numbers_of_cells_open(model: ClosingModel) -> None:
    counted = model.leaf(input=())
    model.environment.total_elements(counted, 12)
    assert model.closed(model.add(model.leaf(), model.given(output=[2]))) == ["2"]
    assert not model.environment.view(counted).is_closed
    assert model.closed(model.add(counted, model.given(output=[3, 4])), counted)[1] == "3,4"


def test_expressions_built_later_start_from_closed_shapes(model: ClosingModel) -> None:
    leaf = model.leaf()
    assert model.closed(model.add(leaf, model.given(output=[3])), leaf) == ["3", "3"]
    y = model.add(leaf, model.given(output=[2, 3]))
    assert model.closed(y, leaf) == ["2,3", "3"]


def test_a_thousand_operations_close(model: ClosingModel) -> None:
    h, weights = model.given(batch=[32], output=[4]), []
    for _ in range(334):
        w, b = model.param("w"), model.param("b", output=[8])
        weights.append(w)
        h = model.add(model.add(model.matmul(w, h), b))
    assert model.closed(h, *weights[:3]) == ["32|8", "4->8", "8->8", "8->8"]


def test_an_equation_decides_a_leaf(model: ClosingModel) -> None:
    leaf = model.leaf()
    tail = leaf.output.tail
    assert tail is not None
    model.environment.constrain([RowEqual(Row(tail=tail), Row(trailing=(A, B)), ORIGIN)])
    model.environment.constrain([DimEqual(A, B, ORIGIN)])
    y = model.add(leaf, model.given(output=[4, 4]))
    assert model.closed(y, leaf) == ["4,4", "4,4"]
