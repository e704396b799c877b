"""Consequences of constraints, before any guess."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest

from ocannl_core.base.errors import ShapeError, UsageError, VerifyError
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import StaticIndex, VarIndex
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.language.constraints import (
    AtLeast,
    Constraint,
    DimBelow,
    DimEqual,
    RowBelow,
    RowEqual,
)
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import Dim, DimVar, Row, RowVar, Shape, Size
from ocannl_core.shape.language.subscripts import Position
from ocannl_core.shape.solving.rows import solve
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.translation.logic import (
    Compose,
    ComposeAccumulate,
    Einsum,
    Logic,
    Pointwise,
    Slice,
    Transpose,
    logic_from_text,
)

ORIGIN = Origin("test", detail="output row")


class Scene:
    """An environment, with shorthands for making variables and looking at them."""

    def __init__(self) -> None:
        self.environment = Environment()

    def dims(self, number: int) -> list[DimVar]:
        """Return fresh axis sizes."""
        axes = RowBelow(Row(tail=self.rows(1)[0]), Row(), ORIGIN)
        self.environment.constrain([axes])
        start = self.rows(1)[0].id + 1000
        return [DimVar(start + offset, f"d{offset}") for offset in range(number)]

    def rows(self, number: int) -> list[RowVar]:
        """Return fresh row variables."""
        shapes = [self.environment.fresh_shape() for _ in range(number)]
        return [shape.output.tail for shape in shapes if shape.output.tail is not None]

    def tell(self, *constraints: Constraint) -> None:
        self.environment.constrain(constraints)

    def dim(self, dim: Dim) -> str:
        return str(self.environment.view(Shape(output=Row(trailing=(dim,)))))

    def row(self, row: RowVar) -> str:
        return str(self.environment.view(Shape(output=Row(tail=row))))

    def tensor(self, *output: int) -> Shape:
        return self.environment.fresh_shape(batch=[], input=[], output=output)

    def apply(self, logic: Logic | str, *operands: Shape) -> Shape:
        result = self.environment.fresh_shape()
        if isinstance(logic, str):
            logic = Einsum(parse_spec(logic))
        self.environment.relate(logic, result, operands, Origin("test"))
        return result

    def sizes(self, shape: Shape) -> str:
        """Return the known trailing output axes."""
        return ",".join(map(str, self.environment.view(shape).output.trailing))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def below(res: Dim | int, opnd: Dim | int) -> DimBelow:
    return DimBelow(_dim(res), _dim(opnd), ORIGIN)


def equal(left: Dim | int, right: Dim | int) -> DimEqual:
    return DimEqual(_dim(left), _dim(right), ORIGIN)


def _dim(dim: Dim | int) -> Dim:
    return Size(dim) if isinstance(dim, int) else dim


def test_a_result_has_the_size_of_an_operand_that_is_not_1(scene: Scene) -> None:
    (r,) = scene.dims(1)
    scene.tell(below(r, 3))
    assert scene.dim(r) == "3"


def test_an_operand_of_size_1_does_not_constrain_the_result(scene: Scene) -> None:
    (r,) = scene.dims(1)
    scene.tell(below(r, 1))
    assert scene.dim(r) == "d0"


def test_a_result_of_size_1_needs_operands_of_size_1(scene: Scene) -> None:
    (o,) = scene.dims(1)
    scene.tell(below(1, o))
    assert scene.dim(o) == "1"


def test_one_bound_leaves_an_operand_open(scene: Scene) -> None:
    (o,) = scene.dims(1)
    scene.tell(below(3, o), below(3, o))
    assert scene.dim(o) == "d0"


def test_conflicting_bounds_make_an_operand_1(scene: Scene) -> None:
    (o,) = scene.dims(1)
    scene.tell(below(3, o), below(5, o))
    assert scene.dim(o) == "1"


def test_bounds_pass_along_variables(scene: Scene) -> None:
    a, b, c = scene.dims(3)
    scene.tell(below(b, c), below(a, b), below(3, a), below(5, c))
    assert [scene.dim(d) for d in (a, b, c)] == ["d0", "d1", "1"]


def test_sizes_pass_from_operands_to_results(scene: Scene) -> None:
    a, b, c = scene.dims(3)
    scene.tell(below(a, b), below(b, c), equal(c, 4))
    assert [scene.dim(d) for d in (a, b, c)] == ["4", "4", "4"]


def test_two_variables_below_each_other_are_one(scene: Scene) -> None:
    a, b = scene.dims(2)
    scene.tell(below(a, b), below(b, a), equal(a, 7))
    assert scene.dim(b) == "7"


def test_joined_variables_keep_the_constraints_of_each(scene: Scene) -> None:
    a, b, c, d = scene.dims(4)
    scene.tell(below(c, a), below(3, b), equal(a, b), below(5, a), below(d, c))
    assert scene.dim(a) == scene.dim(b) == "1"
    assert scene.dim(c) == "d2"
    scene.tell(equal(d, 1))
    assert scene.dim(c) == "1"


def test_a_bound_and_an_access_beyond_0_fix_the_size(scene: Scene) -> None:
    (a,) = scene.dims(1)
    scene.tell(AtLeast(a, 2, ORIGIN), below(3, a))
    assert scene.dim(a) == "3"


def test_a_basis_is_adopted_through_variables_already_solved(scene: Scene) -> None:
    a, b, c = scene.dims(3)
    scene.tell(equal(a, 3), below(b, a), below(c, b))
    assert scene.dim(c) == "3"
    scene.tell(below(a, Size(3, "rgb")))
    assert [scene.dim(d) for d in (a, b, c)] == ["3:rgb"] * 3


def test_bounds_with_different_bases_make_an_operand_1(scene: Scene) -> None:
    (o,) = scene.dims(1)
    scene.tell(below(Size(3, "rgb"), o), below(Size(3, "hsv"), o))
    assert scene.dim(o) == "1"


def test_a_basis_passes_along_axes_of_size_1(scene: Scene) -> None:
    a, b, c = scene.dims(3)
    scene.tell(below(a, Size(1, "q")), below(b, a), below(b, c))
    assert scene.dim(a) == "d0"
    scene.tell(equal(b, 1))
    assert [scene.dim(d) for d in (a, b, c)] == ["1:q", "1:q", "1:q"]


@pytest.mark.parametrize(
    "constraints",
    [
        lambda a, b: [below(a, 3), below(a, 4)],
        lambda a, b: [below(3, 4)],
        lambda a, b: [equal(a, 3), equal(b, 4), equal(a, b)],
        lambda a, b: [below(3, a), equal(a, 4)],
        lambda a, b: [below(1, a), below(a, b), equal(b, 2)],
        lambda a, b: [equal(a, Size(3, "rgb")), below(b, a), below(b, Size(3, "hsv"))],
        lambda a, b: [below(a, Size(1, "q")), below(a, Size(1, "r")), equal(a, 1)],
        lambda a, b: [below(Size(1, "q"), a), below(a, b), equal(b, Size(1, "r"))],
        lambda a, b: [below(Size(1, "q"), Size(1, "r"))],
        lambda a, b: [AtLeast(a, 3, ORIGIN), equal(a, 2)],
        lambda a, b: [AtLeast(a, 3, ORIGIN), below(2, a)],
        lambda a, b: [AtLeast(a, 2, ORIGIN), below(2, a), below(3, a)],
    ],
)
def test_contradicting_sizes_are_an_error(scene: Scene, constraints) -> None:  # type: ignore[no-untyped-def]
    a, b = scene.dims(2)
    with pytest.raises(ShapeError):
        scene.tell(*constraints(a, b))


def test_a_result_has_the_axes_of_all_its_operands(scene: Scene) -> None:
    result = scene.apply(Pointwise(), scene.tensor(3, 4), scene.tensor(4))
    assert scene.sizes(result) == "3,4"


def test_an_operand_of_fewer_axes_is_repeated(scene: Scene) -> None:
    result = scene.apply(Pointwise(), scene.tensor(1), scene.tensor(2, 3))
    assert scene.sizes(result) == "2,3"


def test_an_operand_variable_stays_open_below_longer_results(scene: Scene) -> None:
    (o,) = scene.rows(1)
    scene.tell(RowBelow(Row(trailing=(Size(2), Size(3))), Row(tail=o), ORIGIN))
    assert scene.row(o).startswith("..")


def test_the_rest_of_a_closed_result_row_closes_the_operand(scene: Scene) -> None:
    (o,) = scene.rows(1)
    (d,) = scene.dims(1)
    scene.tell(RowBelow(Row(trailing=(Size(3),)), Row(tail=o, trailing=(d,)), ORIGIN))
    assert scene.row(o) == "()"


def test_equal_rows_share_the_axes_between_their_ends(scene: Scene) -> None:
    v, w = scene.rows(2)
    left = Row((Size(2),), v, (Size(5),))
    scene.tell(RowEqual(left, Row(tail=w), ORIGIN))
    scene.tell(RowEqual(Row(tail=w), Row(trailing=(Size(2), Size(7), Size(5))), ORIGIN))
    assert scene.row(v) == "7"


def test_rows_below_each_other_are_equal(scene: Scene) -> None:
    v, w = scene.rows(2)
    scene.tell(
        RowBelow(Row(tail=v), Row(tail=w), ORIGIN),
        RowBelow(Row(tail=w), Row(tail=v), ORIGIN),
        RowEqual(Row(tail=v), Row(trailing=(Size(2),)), ORIGIN),
    )
    assert scene.row(w) == "2"


def test_an_empty_result_takes_an_operand_of_one_cell(scene: Scene) -> None:
    environment = scene.environment
    scalar = environment.fresh_shape(batch=[], input=[], output=[])
    environment.relate(Pointwise(), scalar, [scene.tensor(1)], Origin("test"))
    with pytest.raises(ShapeError):
        environment.relate(Pointwise(), scalar, [scene.tensor(2)], Origin("test"))
    with pytest.raises(ShapeError):
        environment.relate(Pointwise(), scalar, [scene.tensor(1, 1)], Origin("test"))


@pytest.mark.parametrize(
    "constraints",
    [
        lambda v, w, d: [RowEqual(Row(tail=v), Row(tail=v, trailing=(d,)), ORIGIN)],
        lambda v, w, d: [RowBelow(Row(tail=v), Row(tail=v, trailing=(Size(2),)), ORIGIN)],
        lambda v, w, d: [RowBelow(Row(tail=v), Row(tail=v, trailing=(d, d)), ORIGIN)],
        lambda v, w, d: [
            RowEqual(Row(tail=v), Row(tail=w, trailing=(d,)), ORIGIN),
            RowEqual(Row(tail=w), Row(tail=v, trailing=(d,)), ORIGIN),
        ],
    ],
)
def test_a_row_that_contains_itself_is_an_error(scene: Scene, constraints) -> None:  # type: ignore[no-untyped-def]
    v, w = scene.rows(2)
    with pytest.raises(ShapeError, match="infinitely many"):
        scene.tell(*constraints(v, w, scene.dims(1)[0]))


@pytest.mark.parametrize("length", [2, 3, 7])
def test_a_circle_of_rows_each_longer_than_the_next_is_an_error(scene: Scene, length: int) -> None:
    ring = scene.rows(length)
    (d,) = scene.dims(1)
    steps = [
        RowBelow(Row(tail=one), Row(tail=next_one), ORIGIN) for one, next_one in pairwise(ring)
    ]
    with pytest.raises(ShapeError, match="in a circle"):
        scene.tell(*steps, RowBelow(Row(tail=ring[-1]), Row(tail=ring[0], trailing=(d, d)), ORIGIN))
    # one more axis could be that of a scalar, until the shapes close
    scene.tell(*steps, RowBelow(Row(tail=ring[-1]), Row(tail=ring[0], trailing=(d,)), ORIGIN))
    with pytest.raises(ShapeError, match="in a circle"):
        scene.environment.close([Shape(output=Row(tail=row)) for row in ring])


def test_a_circle_through_leading_and_trailing_axes_is_an_error_in_any_order() -> None:
    for order in permutations(range(3)):
        scene = Scene()
        u, v, w = scene.rows(3)
        a, b, c, d = scene.dims(4)
        steps = (
            RowBelow(Row(tail=v), Row((a, b), u), ORIGIN),
            RowBelow(Row(tail=u), Row((a,), w, (c,)), ORIGIN),
            RowEqual(Row((a,), v), Row((), w, (d,)), ORIGIN),
        )
        with pytest.raises(ShapeError, match="in a circle"):
            scene.tell(*(steps[position] for position in order))


def test_a_row_variable_is_decided_once_and_in_terms_of_an_undecided_one() -> None:
    state = SolverState()
    u, v = state.fresh.row("u"), state.fresh.row("v")
    cause = RowEqual(Row(tail=u), Row(tail=v), ORIGIN)
    solve(state, u, Row(tail=v), cause)
    for var, row in ((u, Row()), (v, Row(tail=u)), (v, Row(tail=v))):
        with pytest.raises(VerifyError, match="decided once"):
            solve(state, var, row, cause)


def test_a_circle_of_rows_without_gain_is_fine(scene: Scene) -> None:
    u, v, w = scene.rows(3)
    scene.tell(
        RowBelow(Row(tail=u), Row(tail=v), ORIGIN),
        RowBelow(Row(tail=v), Row(tail=w), ORIGIN),
        RowBelow(Row(tail=w), Row(tail=u), ORIGIN),
        RowEqual(Row(tail=v), Row(trailing=(Size(2), Size(3))), ORIGIN),
    )
    scene.environment.close([Shape(output=Row(tail=row)) for row in (u, v, w)])
    assert [scene.row(row) for row in (u, v, w)] == ["2,3"] * 3


def test_many_axes_are_not_taken_for_a_circle(scene: Scene) -> None:
    tensor = scene.tensor(*[2] * 39, 3)
    narrow = scene.tensor(3)
    assert scene.sizes(scene.apply(Pointwise(), narrow, tensor)) == scene.sizes(tensor)


def test_composition_pairs_outputs_with_inputs(scene: Scene) -> None:
    fresh = scene.environment.fresh_shape
    w = fresh(batch=[], input=[3, 4], output=[2])
    x = fresh(batch=[10], input=[], output=[3, 4])
    result = scene.environment.view(scene.apply(Compose(), w, x))
    assert (str(result.batch)[-2:], result.output.trailing) == ("10", (Size(2),))
    wrong = fresh(batch=[], input=[], output=[4, 4])
    with pytest.raises(ShapeError):
        scene.apply(Compose(), w, wrong)


def test_composition_gives_the_first_operand_its_inputs(scene: Scene) -> None:
    w = scene.environment.fresh_shape(batch=[], output=[2])
    scene.apply(Compose(), w, scene.tensor(5))
    assert scene.environment.view(w).input.trailing == (Size(5),)


def test_an_addend_meets_the_composed_result_axis_by_axis(scene: Scene) -> None:
    fresh = scene.environment.fresh_shape
    w = fresh(batch=[], input=[3], output=[2])
    result = scene.apply(ComposeAccumulate(), w, scene.tensor(3), scene.tensor(6, 2))
    assert scene.sizes(result) == "6,2"


def test_transposition_swaps_inputs_and_outputs(scene: Scene) -> None:
    matrix = scene.environment.fresh_shape(batch=[7], input=[3], output=[2])
    result = scene.environment.view(scene.apply(Transpose(), matrix))
    assert (result.input.trailing, result.output.trailing) == ((Size(2),), (Size(3),))


def test_a_slice_drops_the_leading_batch_axes(scene: Scene) -> None:
    x = scene.environment.fresh_shape(batch=[10, 20, 30], input=[], output=[4])
    result = scene.apply(Slice((Position(VarIndex(StaticIndex("i", 10))), Position(3))), x)
    assert str(scene.environment.view(result)) == "30|4"


def test_the_range_of_an_index_is_the_size_of_the_sliced_axis(scene: Scene) -> None:
    x = scene.environment.fresh_shape()
    result = scene.apply(Slice((Position(VarIndex(StaticIndex("i", 10))),)), x)
    scene.environment.close([result])
    assert scene.environment.view(x).batch == Row(trailing=(Size(10),))


@pytest.mark.parametrize("index", [StaticIndex("i", 11), 10])
def test_an_index_beyond_the_sliced_axis_is_an_error(
    scene: Scene, index: StaticIndex | int
) -> None:
    x = scene.environment.fresh_shape(batch=[10], input=[], output=[4])
    key = VarIndex(index) if isinstance(index, StaticIndex) else index
    with pytest.raises(ShapeError):
        scene.apply(Slice((Position(key),)), x)


def test_an_index_may_range_over_a_part_of_the_axis(scene: Scene) -> None:
    x = scene.environment.fresh_shape(batch=[10], input=[], output=[4])
    result = scene.apply(Slice((Position(VarIndex(StaticIndex("i", 9))),)), x)
    assert str(scene.environment.view(result)) == "4"


def test_an_index_without_a_range_takes_any_axis(scene: Scene) -> None:
    x = scene.environment.fresh_shape(batch=[10], input=[], output=[4])
    assert (
        str(scene.environment.view(scene.apply(Slice((Position(VarIndex(StaticIndex("i"))),)), x)))
        == "4"
    )


@pytest.mark.parametrize(
    ("spec", "operands", "result"),
    [
        ("ij;jk=>ik", [(2, 3), (3, 4)], "2,4"),
        ("ij=>ji", [(2, 3)], "3,2"),
        ("ijk => ki", [(2, 3, 4)], "4,2"),
        ("ii=>i", [(3, 3)], "3"),
        ("i=>ii", [(3,)], "3,3"),
        ("i;j=>ij", [(2,), (3,)], "2,3"),
        ("i;i=>i", [(1,), (3,)], "3"),
        ("i1=>i", [(3, 2)], "3"),
        ("ik=>i", [(5, 2, 3)], "2"),
    ],
)
def test_einsum_names_tie_sizes(
    scene: Scene, spec: str, operands: list[tuple[int, ...]], result: str
) -> None:
    shape = scene.apply(spec, *(scene.tensor(*sizes) for sizes in operands))
    assert scene.sizes(shape) == result


@pytest.mark.parametrize(
    ("spec", "operands"),
    [("ij;jk=>ik", [(2, 3), (5, 4)]), ("ii=>i", [(3, 4)]), ("i2=>i", [(3, 2)])],
)
def test_einsum_names_with_different_sizes_are_an_error(
    scene: Scene, spec: str, operands: list[tuple[int, ...]]
) -> None:
    with pytest.raises(ShapeError):
        scene.apply(spec, *(scene.tensor(*sizes) for sizes in operands))


def test_placeholders_are_unrelated(scene: Scene) -> None:
    scene.apply("__=>0", scene.tensor(2, 3))
    scene.apply("_; _ => _", scene.tensor(2), scene.tensor(3))


def test_a_failed_operation_leaves_no_trace(scene: Scene) -> None:
    v = scene.environment.fresh_shape(batch=[], input=[], name="v")
    before = str(scene.environment.view(v))
    with pytest.raises(ShapeError):
        scene.apply(Pointwise(), scene.tensor(3), scene.tensor(4), v)
    result = scene.environment.fresh_shape(batch=[], input=[], output=[3])
    with pytest.raises(ShapeError):
        scene.environment.relate(Pointwise(), v, [scene.tensor(5), result, scene.tensor(6)], ORIGIN)
    assert str(scene.environment.view(v)) == before
    scene.environment.relate(Pointwise(), v, [scene.tensor(7)], ORIGIN)
    scene.environment.close([v])
    assert str(scene.environment.view(v)) == "7"


def test_a_failed_closing_leaves_no_trace(scene: Scene) -> None:
    environment = scene.environment
    w = environment.fresh_shape(batch=[], name="w")
    environment.leaf(w, Origin("parameter w"), parameter=True)
    y = scene.apply(Compose(), w, scene.tensor(3))
    before = str(environment.view(y)), str(environment.view(w))
    with pytest.raises(ShapeError):
        environment.close([y])
    assert (str(environment.view(y)), str(environment.view(w))) == before
    environment.relate(
        Pointwise(), environment.fresh_shape(batch=[], input=[], output=[2]), [y], ORIGIN
    )
    environment.close([y])
    assert str(environment.view(w)) == "3->2"


def test_looking_changes_nothing(scene: Scene) -> None:
    a = scene.environment.fresh_shape()
    scene.apply(Pointwise(), a)
    assert scene.environment.view(a) == scene.environment.view(a) == a


def test_the_reason_names_the_operation_that_decided(scene: Scene) -> None:
    result = scene.environment.fresh_shape(batch=[], input=[])
    scene.environment.relate(Pointwise(), result, [scene.tensor(3)], Origin("first"))
    scene.environment.relate(Pointwise(), result, [scene.tensor(3)], Origin("second"))
    tail = result.output.tail
    assert tail is not None
    reason = scene.environment.reason(tail)
    assert reason is not None
    assert reason.operation == "first"


def test_a_row_that_contains_another_is_compared_with_it_from_the_right(scene: Scene) -> None:
    one, other, size = scene.dims(3)
    whole, part = scene.rows(2)
    contained = RowEqual(Row(tail=whole), Row((), part, (size, Size(1))), ORIGIN)
    compared = RowBelow(Row((), whole, (one,)), Row((), part, (other,)), ORIGIN)
    scene.tell(contained, compared, DimEqual(other, Size(3), ORIGIN))
    assert str(scene.environment.view(Shape(output=Row(trailing=(one,))))) == "3"


def test_a_size_that_is_not_one_gives_rows_their_axis_in_any_order(scene: Scene) -> None:
    size = scene.dims(1)[0]
    result, middle = scene.rows(2)
    scene.tell(
        RowBelow(Row(tail=middle), Row(trailing=(size,)), ORIGIN),
        RowBelow(Row(tail=result), Row(tail=middle), ORIGIN),
        AtLeast(size, 3, ORIGIN),
    )
    assert len(scene.environment.view(Shape(output=Row(tail=result))).output.trailing) == 1


def test_a_negative_size_is_refused(scene: Scene) -> None:
    with pytest.raises(UsageError):
        scene.environment.fresh_shape(output=[-1])


def test_long_chains_do_not_recurse(scene: Scene) -> None:
    shape = start = scene.environment.fresh_shape(batch=[], input=[])
    for _ in range(3000):
        shape = scene.apply(Pointwise(), shape)
    scene.environment.relate(Pointwise(), start, [scene.tensor(2, 3)], ORIGIN)
    assert scene.sizes(shape) == "2,3"
    scene.environment.close([shape])
    assert str(scene.environment.view(shape)) == "2,3"


@pytest.mark.parametrize(
    ("text", "operands", "logic"),
    [
        (".", 3, Pointwise()),
        ("@", 2, Compose()),
        ("@", 3, ComposeAccumulate()),
        ("T", 1, Transpose()),
        ("ij=>ji", 1, Einsum(parse_spec("ij=>ji"))),
    ],
)
def test_a_text_denotes_a_logic(text: str, operands: int, logic: Logic) -> None:
    assert logic_from_text(text, operands) == logic
