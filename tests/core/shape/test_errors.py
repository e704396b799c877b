"""Messages of shape errors."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import OcannlError
from ocannl_core.base.origin import Location, Origin
from ocannl_core.ir.indexing import StaticIndex, VarIndex
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.language.constraints import AtLeast, DimEqual, RowBelow, RowEqual
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import Row, Shape, Size, closed_shape
from ocannl_core.shape.language.subscripts import Position
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.translation.logic import (
    Compose,
    Einsum,
    Logic,
    Pointwise,
    Slice,
    Transpose,
    logic_from_text,
)


class TracedModel:
    """An expression with a source line for every operation."""

    def __init__(self) -> None:
        self.environment = Environment()
        self._line = 0

    def origin(self, operation: str) -> Origin:
        self._line += 1
        return Origin(operation, Location("their_model.py", self._line))

    def given(
        self, *output: int | Size, batch: tuple[int, ...] = (), input: tuple[int, ...] = ()
    ) -> Shape:
        return self.environment.fresh_shape(batch=batch, input=input, output=output)

    def param(self, name: str) -> Shape:
        shape = self.environment.fresh_shape(batch=[], name=name)
        self.environment.leaf(shape, self.origin(f"parameter {name}"), parameter=True)
        return shape

    def apply(
        self, name: str, logic: Logic, *operands: Shape, result: Shape | None = None
    ) -> Shape:
        result = result or self.environment.fresh_shape()
        self.environment.relate(logic, result, operands, self.origin(name))
        return result


@pytest.fixture
def model() -> TracedModel:
    return TracedModel()


def complaint(caught: pytest.ExceptionInfo[OcannlError]) -> str:
    return str(caught.value)


def test_sizes_of_two_operands(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.apply("a + b", Pointwise(), model.given(2, 3), model.given(2, 4))
    assert complaint(caught) == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 4
  where  output axis -1 of the first operand of a + b, at their_model.py:1
         output axis -1 of the second operand of a + b, at their_model.py:1
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_sizes_from_two_operations_name_both_lines(model: TracedModel) -> None:
    hidden = model.apply("a + b", Pointwise(), model.given(2, 3), model.given(3))
    weight = model.given(4, input=(2, 5))
    with pytest.raises(OcannlError) as caught:
        model.apply("w @ h", Compose(), weight, hidden)
    assert complaint(caught) == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 5
  where  output axis -1 of the first operand of a + b, at their_model.py:1
         input axis -1 of the first operand, against the output axis -1 of the second operand of w @ h, at their_model.py:2
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_sizes_of_an_einsum_axis(model: TracedModel) -> None:
    spec = "ij;jk=>ik"
    with pytest.raises(OcannlError) as caught:
        model.apply(
            f'einsum "{spec}"', Einsum(parse_spec(spec)), model.given(2, 3), model.given(5, 4)
        )
    assert complaint(caught) == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 5 of `j`
  where  output axis -1 of the first operand of einsum "ij;jk=>ik", at their_model.py:1
         output axis -2 of the second operand of einsum "ij;jk=>ik", at their_model.py:1
  try    change one of the sizes, or give the axes different names; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_two_bases(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.apply("a * b", Pointwise(), model.given(Size(3, "rgb")), model.given(Size(3, "hsv")))
    assert complaint(caught) == snapshot("""\
Axes that meet must have the same basis.
  found  basis 'rgb' (size 3) and basis 'hsv' (size 3)
  where  output axis -1 of the first operand of a * b, at their_model.py:1
         output axis -1 of the second operand of a * b, at their_model.py:1
  try    convert one of the tensors, or leave the basis of one of them out\
""")


def test_an_operand_with_more_axes_than_a_fixed_result(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.apply(
            "c[:] = a * b", Pointwise(), model.given(3), model.given(2, 3), result=model.given(3)
        )
    assert complaint(caught) == snapshot("""\
An operand must not have more axes than the result that it is repeated to.
  found  2 axes (2,3) against 1 axis (3)
  where  output row of the second operand of c[:] = a * b, at their_model.py:1
  try    reduce the surplus axes with einsum, or give the result more axes;
         if the operand's outputs should meet inputs, use `@` rather than `*`\
""")


def test_a_position_beyond_an_axis(model: TracedModel) -> None:
    spec = Einsum(parse_spec("i3=>i"))
    with pytest.raises(OcannlError) as caught:
        model.apply("einsum", spec, model.given(2, 3))
    assert complaint(caught) == snapshot("""\
Position 3 is accessed, so the axis needs at least 4 positions.
  found  size 3
  where  output axis -1 of the first operand of einsum, at their_model.py:1
  try    use a smaller index, or make the axis longer\
""")


def test_a_slice_beyond_an_axis(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.apply("x[10]", Slice((Position(10),)), model.given(2, batch=(10,)))
    assert complaint(caught) == snapshot("""\
Position 10 is accessed, so the axis needs at least 11 positions.
  found  size 10
  where  batch axis 0 of the operand of x[10], at their_model.py:1
  try    use a smaller index, or make the axis longer\
""")


def test_a_slice_with_an_index_of_a_range_beyond_the_axis(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.apply(
            "x[i]", Slice((Position(VarIndex(StaticIndex("i", 8))),)), model.given(2, batch=(7,))
        )
    assert complaint(caught) == snapshot("""\
Position 7 is accessed, so the axis needs at least 8 positions.
  found  size 7
  where  the range of index i of x[i], at their_model.py:1
  try    use a smaller index, or make the axis longer\
""")


def test_a_slice_of_nothing(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.apply("x[0, 0]", Slice((Position(0), Position(0))), model.given(2))
    assert complaint(caught) == snapshot("""\
Every key addresses an axis of its own.
  found  2 keys for the 1 axis of shape 2
  where  x[0, 0], at their_model.py:1
  try    leave out a key; None inserts an axis\
""")


def test_hidden_dimensions(model: TracedModel) -> None:
    w1, b1 = model.param("w1"), model.param("b1")
    product = model.apply("w1 @ x", Compose(), w1, model.given(3, batch=(32,)))
    hidden = model.apply("relu", Pointwise(), model.apply("w1 @ x + b1", Pointwise(), product, b1))
    y = model.apply("w2 @ h", Compose(), model.param("w2"), hidden)
    with pytest.raises(OcannlError) as caught:
        model.environment.close([y])
    assert complaint(caught) == snapshot("""\
You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.
  found  parameter w1: its output axes can be anything
         parameter w2: its output axes can be anything
  where  parameter w1, at their_model.py:1
         parameter w2, at their_model.py:6
  try    give it where the parameter is made: oc.param("w1", output=[...])\
""")


def test_a_hidden_size_of_a_known_axis(model: TracedModel) -> None:
    spec = Einsum(parse_spec("i;ij=>j"))
    y = model.apply("einsum", spec, model.given(4), model.param("p"))
    with pytest.raises(OcannlError) as caught:
        model.environment.close([y])
    assert complaint(caught) == snapshot("""\
You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.
  found  parameter p: the size of its output axis -1 can be anything
  where  parameter p, at their_model.py:1
  try    give it where the parameter is made: oc.param("p", output=[...])\
""")


def test_a_hidden_input_row(model: TracedModel) -> None:
    p = model.environment.fresh_shape(batch=[], output=[2])
    model.environment.leaf(p, model.origin("parameter p"), parameter=True)
    y = model.apply("p.T", Transpose(), p)
    with pytest.raises(OcannlError) as caught:
        model.environment.close([y])
    assert complaint(caught) == snapshot("""\
You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.
  found  parameter p: its input axes can be anything
  where  parameter p, at their_model.py:1
  try    give it where the parameter is made: oc.param("p", input=[...])\
""")


def test_a_row_that_contains_itself(model: TracedModel) -> None:
    v = model.environment.fresh_shape().output
    longer = Row(tail=v.tail, trailing=(Size(3),))
    with pytest.raises(OcannlError) as caught:
        model.environment.constrain([RowEqual(v, longer, model.origin("custom"))])
    assert complaint(caught) == snapshot("""\
A row cannot contain itself and further axes: it would have infinitely many.
  found  ..$2.. = ..$2..,3
  where  custom, at their_model.py:1
  try    give the rows of this operation explicitly, or write an einsum that names its axes\
""")


def test_a_circle_of_rows(model: TracedModel) -> None:
    fresh = model.environment.fresh_shape
    v, w = fresh().output, fresh().output
    circle = [
        RowBelow(v, w, model.origin("there")),
        RowBelow(w, Row(tail=v.tail, trailing=(Size(3),)), model.origin("and back")),
    ]
    with pytest.raises(OcannlError) as caught:
        model.environment.constrain(circle)
    assert complaint(caught) == snapshot("""\
Rows that each need more axes than the next, in a circle, would have infinitely many.
  found  a circle of operations in which a row gains axes
  where  and back, at their_model.py:2
         there, at their_model.py:1
  try    give the shape of one of the tensors involved explicitly\
""")


def test_rows_of_different_lengths(model: TracedModel) -> None:
    two, one = Row(trailing=(Size(2), Size(3))), Row(trailing=(Size(3),))
    with pytest.raises(OcannlError) as caught:
        model.environment.constrain([RowEqual(two, one, model.origin("custom"))])
    assert complaint(caught) == snapshot("""\
Rows that must be equal have different numbers of axes.
  found  2 axes (2,3) and 1 axis (3)
  where  custom, at their_model.py:1
  try    give both rows the same number of axes\
""")


def test_bare_sizes(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.environment.constrain([DimEqual(Size(2), Size(3), model.origin("custom"))])
    assert complaint(caught) == snapshot("""\
Axes that are the same must have the same size.
  found  size 2 and size 3
  where  custom, at their_model.py:1
  try    change one of the sizes\
""")
    with pytest.raises(OcannlError) as caught:
        model.environment.constrain([AtLeast(Size(2), 3, model.origin("custom"))])
    assert complaint(caught) == snapshot("""\
Position 2 is accessed, so the axis needs at least 3 positions.
  found  size 2
  where  custom, at their_model.py:2
  try    use a smaller index, or make the axis longer\
""")


def test_a_negative_size(model: TracedModel) -> None:
    with pytest.raises(OcannlError) as caught:
        model.environment.fresh_shape(output=[2, -1], name="x")
    assert complaint(caught) == snapshot("""\
The size of an axis cannot be negative.
  found  output axes 2, -1 of x
  where  test_errors.py:288: model.environment.fresh_shape(output=[2, -1], name="x")
  try    output=[...] for axes that are inferred\
""")


@pytest.mark.parametrize(
    ("spec", "operands", "message"),
    [
        (
            "2*o<+k, ; k, => o",
            [10, 3],
            snapshot("""\
Incompatible stride: the last position of a window must end where its axis ends.
  found  size 10 and 2*o<+k = 2*o<+3
  where  output axis -1 of the first operand of 2*o<+k, ; k, => o, at their_model.py:1
         output axis -1 of the second operand of 2*o<+k, ; k, => o, at their_model.py:1
  try    crop or extend the axis, or let the window reach into margins (`=`);
         blocks of oc.nn take floor=True, which leaves out the cells behind the last window\
"""),
        ),
        (
            "o<+2*k, ; k, => o",
            [4, 3],
            snapshot("""\
A window must fit into its axis: the span of the kernel exceeds the size.
  found  size 4 and o<+2*k = o<+2*3
  where  output axis -1 of the first operand of o<+2*k, ; k, => o, at their_model.py:1
         output axis -1 of the second operand of o<+2*k, ; k, => o, at their_model.py:1
  try    crop or extend the axis, or let the window reach into margins (`=`);
         blocks of oc.nn take floor=True, which leaves out the cells behind the last window\
"""),
        ),
        (
            "2*i+1, => i",
            [5],
            snapshot("""\
Incompatible stride: the size of a strided axis must be a multiple of the stride.
  found  size 5 and 2*i+1
  where  output axis -1 of the first operand of 2*i+1, => i, at their_model.py:1
  try    crop or extend the axis to a multiple of the stride\
"""),
        ),
        (
            "i+k, ; k, => i",
            [5, 3],
            snapshot("""\
padded= must be stated for a window that is marked neither `<` nor `=`.
  found  i+k in i+k, ; k, => i
  where  i+k, ; k, => i, at their_model.py:1
  try    write `<` for windows that stay inside, `=` for windows that reach into margins,
         or give padded=False or padded=True\
"""),
        ),
        (
            "gap*i, => i",
            [4],
            snapshot("""\
Invalid stride value (expected integer): gap.
  found  gap*i, => i
         ^
  where  gap*i, => i, at their_model.py:1
  try    write the number, or give values={"gap": ...}\
"""),
        ),
        (
            "2*i+2, => i",
            [4],
            snapshot("""\
An offset lies between two positions of its axis: it is less than the stride, or equal to it for windows that may exceed the axis.
  found  2*i+2, => i
         ^
  where  2*i+2, => i, at their_model.py:1\
"""),
        ),
        (
            "3^a => a",
            [2],
            snapshot("""\
The parts of a concatenated axis must not exceed its size.
  found  size 2 and 3^a
  where  output axis -1 of the first operand of 3^a => a, at their_model.py:1
  try    change the size of one of the parts, or of the whole\
"""),
        ),
    ],
)
def test_axes_that_do_not_fit_their_formula(
    model: TracedModel, spec: str, operands: list[int], message: str
) -> None:
    shapes = [model.given(n) for n in operands]
    with pytest.raises(OcannlError) as caught:
        model.apply(spec, Einsum(parse_spec(spec)), *shapes)
    assert complaint(caught) == message


def test_the_kernel_of_a_window_that_does_not_fit(model: TracedModel) -> None:
    result = model.given(4)
    with pytest.raises(OcannlError) as caught:
        model.apply("windows", Einsum(parse_spec("2*o<+k, => o")), model.given(5), result=result)
    assert complaint(caught) == snapshot("""\
The kernel dimension cannot be inferred: the span of the window would not be positive.
  found  size 5 and 2*o<+k = 2*4<+k
  where  output axis -1 of the first operand of windows, at their_model.py:1
         output axis -1 of the result of windows, at their_model.py:1
  try    crop or extend the axis, or let the window reach into margins (`=`);
         blocks of oc.nn take floor=True, which leaves out the cells behind the last window\
""")


@pytest.mark.parametrize(
    ("text", "operands", "message"),
    [
        (
            "ij;jk=>ik",
            1,
            snapshot("""\
The spec ij;jk=>ik is for 2 operands.
  found  1 operand
  try    separate the operands of a spec by `;`\
"""),
        ),
        (
            "@",
            1,
            snapshot("""\
Matrix product is for 2 operands.
  found  1 operand\
"""),
        ),
        (
            "T",
            2,
            snapshot("""\
Transposition is for 1 operand.
  found  2 operands\
"""),
        ),
    ],
)
def test_a_logic_for_another_number_of_operands(text: str, operands: int, message: str) -> None:
    with pytest.raises(OcannlError) as caught:
        logic_from_text(text, operands)
    assert complaint(caught) == message


def test_projections_of_contradicting_shapes(model: TracedModel) -> None:
    shapes = [closed_shape(output=(2, 3)), closed_shape(output=(2, 4))]
    with pytest.raises(OcannlError) as caught:
        project(Pointwise(), closed_shape(output=(2, 3)), shapes, model.origin("a + b"))
    assert complaint(caught) == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 4
  where  output axis -1 of the second operand of a + b, at their_model.py:1
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")
