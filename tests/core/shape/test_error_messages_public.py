"""Shape errors of the public interface: operation, axis, both sizes, the lines concerned, and a
fix.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from tests.support.messages import complaint


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=42) as session:
        yield session


def test_sizes_that_differ_in_a_pointwise_operation() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[2, 4])
c = a + b
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 4
  where  output axis -1 of the first operand of add, at program.py:4: c = a + b
         output axis -1 of the second operand of add, at program.py:4: c = a + b
         the first operand is a of shape 2,3, made by placeholder a, at program.py:2: a = oc.placeholder("a", output=[2, 3])
         the second operand is b of shape 2,4, made by placeholder b, at program.py:3: b = oc.placeholder("b", output=[2, 4])
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_sizes_of_results_that_differ() -> None:
    message = complaint("""\
a = oc.relu(oc.placeholder("a", output=[3]))
b = oc.exp(oc.placeholder("b", output=[4]))
c = a + b
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 4 and size 3
  where  output axis -1 of the second operand of add, at program.py:4: c = a + b
         output axis -1 of the first operand of exp, at program.py:3: b = oc.exp(oc.placeholder("b", output=[4]))
         output axis -1 of the first operand of relu, at program.py:2: a = oc.relu(oc.placeholder("a", output=[3]))
         the first operand is relu of shape 3, at program.py:2: a = oc.relu(oc.placeholder("a", output=[3]))
         the second operand is exp of shape 4, at program.py:3: b = oc.exp(oc.placeholder("b", output=[4]))
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_sizes_that_differ_between_two_operations() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[3])
w = oc.param("w")
b = w @ a
c = w @ oc.placeholder("d", output=[4])
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 4
  where  input axis -1 of the first operand, against the output axis -1 of the second operand of matmul, at program.py:4: b = w @ a
         input axis -1 of the first operand, against the output axis -1 of the second operand of matmul, at program.py:5: c = w @ oc.placeholder("d", output=[4])
         the first operand is w of shape ..w.input..,3->..w.output.., made by parameter w, at program.py:3: w = oc.param("w")
         the second operand is d of shape 4, made by placeholder d, at program.py:5: c = w @ oc.placeholder("d", output=[4])
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_sizes_that_differ_in_a_composition() -> None:
    message = complaint("""\
w = oc.placeholder("w", input=[5], output=[4])
x = oc.placeholder("x", output=[3])
y = w @ x
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 5 and size 3
  where  input axis -1 of the first operand, against the output axis -1 of the second operand of matmul, at program.py:4: y = w @ x
         the first operand is w of shape 5->4, made by placeholder w, at program.py:2: w = oc.placeholder("w", input=[5], output=[4])
         the second operand is x of shape 3, made by placeholder x, at program.py:3: x = oc.placeholder("x", output=[3])
  try    change one of the sizes, or exchange inputs and outputs, as in `w.T @ x`; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_sizes_that_differ_in_a_specification() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[5, 4])
c = oc.einsum("ij;jk=>ik", a, b)
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 5 of `j`
  where  output axis -1 of the first operand of einsum "ij; jk => ik", at program.py:4: c = oc.einsum("ij;jk=>ik", a, b)
         output axis -2 of the second operand of einsum "ij; jk => ik", at program.py:4: c = oc.einsum("ij;jk=>ik", a, b)
         the first operand is a of shape 2,3, made by placeholder a, at program.py:2: a = oc.placeholder("a", output=[2, 3])
         the second operand is b of shape 5,4, made by placeholder b, at program.py:3: b = oc.placeholder("b", output=[5, 4])
  try    change one of the sizes, or give the axes different names; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_bases_that_differ() -> None:
    message = complaint("""\
from ocannl_core.shape.language.shape_terms import Size
a = oc.placeholder("a", output=[Size(3, "rgb")])
b = oc.placeholder("b", output=[Size(3, "hsv")])
c = a * b
""")
    assert message == snapshot("""\
Axes that meet must have the same basis.
  found  basis 'rgb' (size 3) and basis 'hsv' (size 3)
  where  output axis -1 of the first operand of mul, at program.py:5: c = a * b
         output axis -1 of the second operand of mul, at program.py:5: c = a * b
         the first operand is a of shape 3:rgb, made by placeholder a, at program.py:3: a = oc.placeholder("a", output=[Size(3, "rgb")])
         the second operand is b of shape 3:hsv, made by placeholder b, at program.py:4: b = oc.placeholder("b", output=[Size(3, "hsv")])
  try    convert one of the tensors, or leave the basis of one of them out\
""")


def test_a_target_of_another_size() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[3])
c = oc.declare("c", output=[4])
@oc.cd
def code():
    c[:] = a * 2
code()
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 4
  where  output axis -1 of the first operand of mul, at program.py:6: c[:] = a * 2
         output axis -1 of the first operand of assignment to c, at program.py:6: c[:] = a * 2
         the target is c_a of shape ..c.batch..|..c.input..->4, made by declaration c, at program.py:3: c = oc.declare("c", output=[4])
         the operand is mul of shape 3, at program.py:6: c[:] = a * 2
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_an_initial_array_of_another_size() -> None:
    message = complaint("""\
w = oc.param("w", init=[1.0, 2.0, 3.0])
y = w * oc.placeholder("x", output=[4])
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 3 and size 4
  where  output axis -1 of the first operand of mul, at program.py:3: y = w * oc.placeholder("x", output=[4])
         output axis -1 of the second operand of mul, at program.py:3: y = w * oc.placeholder("x", output=[4])
         the first operand is w of shape 3, made by parameter w, at program.py:2: w = oc.param("w", init=[1.0, 2.0, 3.0])
         the second operand is x of shape 4, made by placeholder x, at program.py:3: y = w * oc.placeholder("x", output=[4])
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_too_many_axes_for_the_inputs_of_a_matrix() -> None:
    message = complaint("""\
w = oc.placeholder("w", input=[3], output=[4])
x = oc.placeholder("x", output=[2, 3])
y = w @ x
""")
    assert message == snapshot("""\
The outputs of an operand must not have more axes than the inputs that they meet.
  found  2 axes (2,3) against 1 axis (3)
  where  input row of the first operand, against the output row of the second operand of matmul, at program.py:4: y = w @ x
         the first operand is w of shape 3->4, made by placeholder w, at program.py:2: w = oc.placeholder("w", input=[3], output=[4])
         the second operand is x of shape 2,3, made by placeholder x, at program.py:3: x = oc.placeholder("x", output=[2, 3])
  try    turn surplus output axes of the second operand into batch axes, as
         oc.tensor(array, batch_axes=1) and batch=[...] do, merge them with oc.reshape,
         or give the first operand as many input axes\
""")


def test_too_many_axes_for_a_target() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
c = oc.declare("c", output=[3])
@oc.cd
def code():
    c[:] = a * 2
code()
""")
    assert message == snapshot("""\
An operand must not have more axes than the result that it is repeated to.
  found  at least 2 axes (..mul.output..,2,3) against 1 axis (3)
  where  output row of the first operand of assignment to c, at program.py:6: c[:] = a * 2
         output row of the first operand of mul, at program.py:6: c[:] = a * 2
         the target is c_a of shape ..c.batch..|..c.input..->3, made by declaration c, at program.py:3: c = oc.declare("c", output=[3])
         the operand is mul of shape 2,3, at program.py:6: c[:] = a * 2
  try    reduce the surplus axes with einsum, or give the result more axes;
         if the operand's outputs should meet inputs, use `@` rather than `*`\
""")


def test_more_keys_than_axes() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
b = a[0, ..., 1, None, 2]
""")
    assert message == snapshot("""\
Every key addresses an axis of its own.
  found  3 keys for the 2 axes of shape 2,3
  where  a[0, ..., 1, None, 2], at program.py:3: b = a[0, ..., 1, None, 2]
         the operand is a of shape 2,3, made by placeholder a, at program.py:2: a = oc.placeholder("a", output=[2, 3])
  try    leave out a key; None inserts an axis\
""")


def test_an_error_names_the_default_that_closed_a_row() -> None:
    message = complaint("""\
c = oc.declare("c")
@oc.cd
def code():
    c[:] = oc.placeholder("x", output=[2]) * 2
oc.Context("interp").compile(code())
@oc.cd
def more():
    c[:] = oc.placeholder("y", output=[2, 2]) * 2
more()
""")
    assert message == snapshot("""\
An operand must not have more axes than the result that it is repeated to.
  found  at least 2 axes (..mul.output..,2,2) against 1 axis (2)
         the number of further axes, 0, was guessed, because nothing determined it,
         when the code code was closed at program.py:6: oc.Context("interp").compile(code())
  where  output row of the first operand of assignment to c, at program.py:9: c[:] = oc.placeholder("y", output=[2, 2]) * 2
         output row of the first operand of assignment to c, at program.py:5: c[:] = oc.placeholder("x", output=[2]) * 2
         closing rows, at program.py:6: oc.Context("interp").compile(code())
         output row of the first operand of mul, at program.py:9: c[:] = oc.placeholder("y", output=[2, 2]) * 2
         the target is c_x of shape 2, made by declaration c, at program.py:2: c = oc.declare("c")
         the operand is mul of shape 2,2, at program.py:9: c[:] = oc.placeholder("y", output=[2, 2]) * 2
  try    reduce the surplus axes with einsum, or give the result more axes;
         if the operand's outputs should meet inputs, use `@` rather than `*`;
         or decide it before the code code is closed: state the sizes,
         or apply the operation earlier\
""")


def test_a_row_that_would_contain_itself() -> None:
    message = complaint("""\
a = oc.declare("a")
@oc.cd
def code():
    a[:] = oc.einsum("... => ...0", a)
code().resolve()
""")
    assert message == snapshot("""\
Rows that each need more axes than the next, in a circle, would have infinitely many.
  found  a circle of operations in which a row gains axes
  where  output row of the result of einsum "... => ...0", at program.py:5: a[:] = oc.einsum("... => ...0", a)
         output row of the first operand of assignment to a, at program.py:5: a[:] = oc.einsum("... => ...0", a)
         output row of the first operand of einsum "... => ...0", at program.py:5: a[:] = oc.einsum("... => ...0", a)
  try    give the shape of one of the tensors involved explicitly\
""")


def test_a_circle_of_rows_that_each_need_more_axes() -> None:
    message = complaint("""\
a = oc.declare("a")
b = oc.declare("b")
@oc.cd
def code():
    b[:] = oc.einsum("... => ...0", a)
    a[:] = oc.einsum("... => ...0", b)
code().resolve()
""")
    assert message == snapshot("""\
Rows that each need more axes than the next, in a circle, would have infinitely many.
  found  a circle of operations in which a row gains axes
  where  output row of the result of einsum "... => ...0", at program.py:6: b[:] = oc.einsum("... => ...0", a)
         output row of the first operand of assignment to b, at program.py:6: b[:] = oc.einsum("... => ...0", a)
         output row of the first operand of einsum "... => ...0", at program.py:7: a[:] = oc.einsum("... => ...0", b)
         output row of the result of einsum "... => ...0", at program.py:7: a[:] = oc.einsum("... => ...0", b)
         output row of the first operand of assignment to a, at program.py:7: a[:] = oc.einsum("... => ...0", b)
         output row of the first operand of einsum "... => ...0", at program.py:6: b[:] = oc.einsum("... => ...0", a)
  try    give the shape of one of the tensors involved explicitly\
""")


def test_a_stack_of_tensors_that_do_not_broadcast() -> None:
    message = complaint("""\
m = oc.tensor([[1.0, 2.0], [3.0, 4.0]])
oc.stack(m, oc.tensor([1.0, 2.0, 3.0]))
""")
    assert message == snapshot("""\
Axes that meet must have the same size, unless the operand's size is 1.
  found  size 2 and size 3
  where  output axis -1 of the second operand of stack, at program.py:3: oc.stack(m, oc.tensor([1.0, 2.0, 3.0]))
         output axis -1 of the first operand of the first operand of stack, at program.py:3: oc.stack(m, oc.tensor([1.0, 2.0, 3.0]))
         output axis -1 of the first operand of the second operand of stack, at program.py:3: oc.stack(m, oc.tensor([1.0, 2.0, 3.0]))
         the first operand is literal of shape 2,2, at program.py:2: m = oc.tensor([[1.0, 2.0], [3.0, 4.0]])
         the second operand is literal of shape 3, at program.py:3: oc.stack(m, oc.tensor([1.0, 2.0, 3.0]))
  try    change one of the sizes; an operand's axis that is 1 or missing is repeated as needed\
""")


def test_rows_of_unknown_length_put_together_with_longer_ones() -> None:
    message = complaint("""\
w = oc.param("w", output=[2, ...])
oc.concat("..., a; ..., b => ..., a^b", oc.stack(w, w), w)
""")
    assert message.startswith("Rows that each need more axes than the next, in a circle")


def test_a_gradient_that_would_need_more_axes_than_its_tensor() -> None:
    message = complaint("""\
p = oc.param("p")
@oc.cd
def code():
    p.grad[:] = oc.einsum("... => ...0", p)
code().resolve()
""")
    assert message == snapshot("""\
Rows that each need more axes than the next, in a circle, would have infinitely many.
  found  a circle of operations in which a row gains axes
  where  output row of the result of einsum "... => ...0", at program.py:5: p.grad[:] = oc.einsum("... => ...0", p)
         output row of the first operand of assignment to p, at program.py:5: p.grad[:] = oc.einsum("... => ...0", p)
         output row of the first operand of einsum "... => ...0", at program.py:5: p.grad[:] = oc.einsum("... => ...0", p)
  try    give the shape of one of the tensors involved explicitly\
""")


def test_a_slice_beyond_the_axis() -> None:
    message = complaint("""\
x = oc.placeholder("x", batch=[10], output=[3])
y = x[10]
""")
    assert message == snapshot("""\
Position 10 is accessed, so the axis needs at least 11 positions.
  found  size 10
  where  batch axis 0 of the operand of x[10], at program.py:3: y = x[10]
         the operand is x of shape 10|3, made by placeholder x, at program.py:2: x = oc.placeholder("x", batch=[10], output=[3])
  try    use a smaller index, or make the axis longer\
""")


def test_an_index_of_a_range_beyond_the_axis() -> None:
    message = complaint("""\
x = oc.placeholder("x", batch=[7], output=[3])
i = oc.static_index("i", range=8)
y = x[i]
""")
    assert message == snapshot("""\
Position 7 is accessed, so the axis needs at least 8 positions.
  found  size 7
  where  the range of index i of x[i], at program.py:4: y = x[i]
         the operand is x of shape 7|3, made by placeholder x, at program.py:2: x = oc.placeholder("x", batch=[7], output=[3])
  try    use a smaller index, or make the axis longer\
""")


def test_a_position_of_a_specification_beyond_the_axis() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[2, 3])
y = oc.einsum("i3 => i", x)
""")
    assert message == snapshot("""\
Position 3 is accessed, so the axis needs at least 4 positions.
  found  size 3
  where  output axis -1 of the first operand of einsum "i3 => i", at program.py:3: y = oc.einsum("i3 => i", x)
         the operand is x of shape 2,3, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[2, 3])
  try    use a smaller index, or make the axis longer\
""")


def test_a_position_beyond_a_size_that_another_line_fixed() -> None:
    message = complaint("""\
w = oc.param("w")
y = w @ oc.placeholder("x", output=[3])
z = oc.einsum("5->... => ...", w)
""")
    assert message == snapshot("""\
Position 5 is accessed, so the axis needs at least 6 positions.
  found  size 3
  where  input axis -1 of the first operand, against the output axis -1 of the second operand of matmul, at program.py:3: y = w @ oc.placeholder("x", output=[3])
         input axis -1 of the first operand of einsum "5->... => ...", at program.py:4: z = oc.einsum("5->... => ...", w)
         the operand is w of shape ..w.input..,3->..w.output.., made by parameter w, at program.py:2: w = oc.param("w")
  try    use a smaller index, or make the axis longer\
""")


def test_an_axis_that_is_no_multiple_of_the_stride() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[7])
y = oc.einsum("2*i => i", x)
""")
    assert message == snapshot("""\
Incompatible stride: the size of a strided axis must be a multiple of the stride.
  found  size 7 and 2*i
  where  output axis -1 of the first operand of einsum "2*i => i", at program.py:3: y = oc.einsum("2*i => i", x)
         the operand is x of shape 7, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[7])
  try    crop or extend the axis to a multiple of the stride\
""")


def test_a_window_that_does_not_end_with_the_axis() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[8])
k = oc.placeholder("k", output=[3])
y = oc.einsum("2*i<+k; k => i", x, k)
""")
    assert message == snapshot("""\
Incompatible stride: the last position of a window must end where its axis ends.
  found  size 8 and 2*i<+k = 2*i<+3
  where  output axis -1 of the first operand of einsum "2*i<+k; k => i", at program.py:4: y = oc.einsum("2*i<+k; k => i", x, k)
         output axis -1 of the second operand of einsum "2*i<+k; k => i", at program.py:4: y = oc.einsum("2*i<+k; k => i", x, k)
         the first operand is x of shape 8, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[8])
         the second operand is k of shape 3, made by placeholder k, at program.py:3: k = oc.placeholder("k", output=[3])
  try    crop or extend the axis, or let the window reach into margins (`=`);
         blocks of oc.nn take floor=True, which leaves out the cells behind the last window\
""")


def test_a_window_that_is_longer_than_the_axis() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[2])
k = oc.placeholder("k", output=[5])
y = oc.einsum("i<+k; k => i", x, k)
""")
    assert message == snapshot("""\
A window must fit into its axis: the span of the kernel exceeds the size.
  found  size 2 and i<+k = i<+5
  where  output axis -1 of the first operand of einsum "i<+k; k => i", at program.py:4: y = oc.einsum("i<+k; k => i", x, k)
         output axis -1 of the second operand of einsum "i<+k; k => i", at program.py:4: y = oc.einsum("i<+k; k => i", x, k)
         the first operand is x of shape 2, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[2])
         the second operand is k of shape 5, made by placeholder k, at program.py:3: k = oc.placeholder("k", output=[5])
  try    crop or extend the axis, or let the window reach into margins (`=`);
         blocks of oc.nn take floor=True, which leaves out the cells behind the last window\
""")


def test_a_window_without_a_mark() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[7])
k = oc.placeholder("k", output=[3])
y = oc.einsum("i+k; k => i", x, k)
""")
    assert message == snapshot("""\
padded= must be stated for a window that is marked neither `<` nor `=`.
  found  i+k in i+k; k => i
  where  einsum "i+k; k => i", at program.py:4: y = oc.einsum("i+k; k => i", x, k)
         the first operand is x of shape 7, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[7])
         the second operand is k of shape 3, made by placeholder k, at program.py:3: k = oc.placeholder("k", output=[3])
  try    write `<` for windows that stay inside, `=` for windows that reach into margins,
         or give padded=False or padded=True\
""")


def test_parts_that_exceed_their_axis() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[2])
y = oc.einsum("a^3 => a", x)
""")
    assert message == snapshot("""\
The parts of a concatenated axis must not exceed its size.
  found  size 2 and a^3
  where  output axis -1 of the first operand of einsum "a^3 => a", at program.py:3: y = oc.einsum("a^3 => a", x)
         the operand is x of shape 2, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[2])
  try    change the size of one of the parts, or of the whole\
""")


def test_the_size_of_a_reduced_axis_is_no_word_for_a_hidden_dimension() -> None:
    message = complaint("""\
x = oc.placeholder("x", batch=[32], output=[3])
y = oc.nn.layer_norm(oc.softmax(oc.param("w") @ x, logic="...|... => ...|0"))
oc.Context("interp").compile(oc.train.forward(y))
""")
    assert message == snapshot("""\
You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.
  found  parameter w: the size of its output axis -1 can be anything
  where  parameter w, at program.py:3: y = oc.nn.layer_norm(oc.softmax(oc.param("w") @ x, logic="...|... => ...|0"))
  try    give it where the parameter is made: oc.param("w", output=[...])\
""")


def test_a_hidden_dimension() -> None:
    message = complaint("""\
x = oc.placeholder("x", batch=[32], output=[3])
h = oc.relu(oc.param("w1") @ x + oc.param("b1"))
y = oc.param("w2") @ h
oc.Context("interp").compile(oc.train.forward(y))
""")
    assert message == snapshot("""\
You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.
  found  parameter w1: its output axes can be anything
         parameter w2: its output axes can be anything
  where  parameter w1, at program.py:3: h = oc.relu(oc.param("w1") @ x + oc.param("b1"))
         parameter w2, at program.py:4: y = oc.param("w2") @ h
  try    give it where the parameter is made: oc.param("w1", output=[...])\
""")


def test_a_hidden_dimension_of_a_block() -> None:
    message = complaint("""\
x = oc.placeholder("x", batch=[32], output=[3])
y = oc.nn.dense(x)
oc.Context("interp").compile(oc.train.forward(y))
""")
    assert message == snapshot("""\
You forgot to specify the hidden dimension(s): nothing fixes the shape of a parameter.
  found  parameter weight of dense: its output axes can be anything
  where  parameter weight of dense, at program.py:3: y = oc.nn.dense(x)
  try    give it where the parameter is made: an argument of dense\
""")


def test_a_name_for_an_axis_and_for_a_row() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
y = oc.einsum("i..i.. => i", a)
""")
    assert message == snapshot("""\
The name 'i' is used for an axis and for a row variable.
  found  i..i.. => i
         ^
  where  einsum, at program.py:3: y = oc.einsum("i..i.. => i", a)\
""")


def test_a_specification_without_a_result() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
y = oc.einsum("ij", a)
""")
    assert message == snapshot("""\
Expected `=>` and the axes of the result, or `;` and another operand.
  found  ij
           ^
  where  einsum, at program.py:3: y = oc.einsum("ij", a)
  try    in this notation: ij => ij
         (`;` separates operands, `=>` precedes the result, `->` follows input axes)\
""")


def test_a_specification_for_another_number_of_operands() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
y = oc.einsum("ij;jk=>ik", a)
""")
    assert message == snapshot("""\
The spec ij;jk=>ik is for 2 operands.
  found  1 operand
  where  einsum, at program.py:3: y = oc.einsum("ij;jk=>ik", a)
  try    separate the operands of a spec by `;`\
""")


def test_an_error_while_recording_names_the_line_too() -> None:
    message = complaint("""\
a = oc.placeholder("a", output=[2, 3])
c = oc.declare("c")
@oc.cd
def code():
    c[:] = oc.einsum("i&j => i", a)
code()
""")
    assert message == snapshot("""\
`&` has no meaning in a spec; it is reserved.
  found  i&j => i
          ^
  where  einsum, at program.py:6: c[:] = oc.einsum("i&j => i", a)\
""")


def test_a_nested_list_as_a_matrix_advises_input_axes() -> None:
    with oc.Session(), pytest.raises(oc.ShapeError) as caught:
        oc.tensor([[1.0, 2.0], [3.0, 4.0]]) @ oc.tensor([1.0, 2.0])
    assert "input_axes=1)\nis a matrix" in caught.value.fix


def test_letters_side_by_side_next_to_parts_advise_commas() -> None:
    with oc.Session(), pytest.raises(oc.SpecError) as caught:
        oc.concat("ik;jk=>i^j,k", oc.tensor([[1.0]]), oc.tensor([[1.0]]))
    assert caught.value.fix.endswith("separated by commas: i,k")


def test_a_shape_error_of_an_operation_is_printed_once() -> None:
    left, right = oc.placeholder("left", output=[3]), oc.placeholder("right", output=[5])
    with pytest.raises(oc.ShapeError) as caught:
        left + right
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("Axes that meet must have the same size") == 1
