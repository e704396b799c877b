"""Errors about sizes that were guessed when earlier code was closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from tests.support.messages import complaint


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=42) as session:
        yield session


def test_an_error_about_a_window_names_the_default_of_the_size() -> None:
    message = complaint("""\
u = oc.uniform()
oc.train.forward(oc.einsum("i => ", u)).resolve()
oc.einsum("i<+k; k => i", u, oc.tensor([1.0, 2.0, 3.0]))
""")
    assert message == snapshot("""\
A window must fit into its axis: the span of the kernel exceeds the size.
  found  size 1 and i<+k = i<+3
         size 1 was guessed, because nothing determined it,
         when the code forward was closed at program.py:3: oc.train.forward(oc.einsum("i => ", u)).resolve()
  where  output axis -1 of the first operand of einsum "i<+k; k => i", at program.py:4: oc.einsum("i<+k; k => i", u, oc.tensor([1.0, 2.0, 3.0]))
         closing remaining sizes, at program.py:3: oc.train.forward(oc.einsum("i => ", u)).resolve()
         output axis -1 of the second operand of einsum "i<+k; k => i", at program.py:4: oc.einsum("i<+k; k => i", u, oc.tensor([1.0, 2.0, 3.0]))
         the first operand is uniform of shape 1, at program.py:2: u = oc.uniform()
         the second operand is literal of shape 3, at program.py:4: oc.einsum("i<+k; k => i", u, oc.tensor([1.0, 2.0, 3.0]))
  try    crop or extend the axis, or let the window reach into margins (`=`);
         blocks of oc.nn take floor=True, which leaves out the cells behind the last window;
         or decide it before the code forward is closed: state the sizes,
         or apply the operation earlier\
""")


def test_an_error_names_the_default_of_a_parameters_axes_and_the_fix() -> None:
    message = complaint("""\
p = oc.param("p")
ctx = oc.Context("interp")
ctx.compile((p + 1.0).forward())
p @ oc.tensor([1.0, 2.0, 3.0])
""")
    assert message == snapshot("""\
The outputs of an operand must not have more axes than the inputs that they meet.
  found  1 axis (3) against no axes
         the number of input axes of parameter p, 0, was guessed, because nothing determined it,
         when the code forward was closed at program.py:4: ctx.compile((p + 1.0).forward())
  where  input row of the first operand, against the output row of the second operand of matmul, at program.py:5: p @ oc.tensor([1.0, 2.0, 3.0])
         closing rows of leaves, at program.py:4: ctx.compile((p + 1.0).forward())
         the first operand is p of shape (), made by parameter p, at program.py:2: p = oc.param("p")
         the second operand is literal of shape 3, at program.py:5: p @ oc.tensor([1.0, 2.0, 3.0])
  try    write the operand with input axes first, as in `w @ x`; the axes of an array or of a nested
         list are outputs, except those of input_axes=: oc.tensor([[1, 2], [3, 4]], input_axes=1)
         is a matrix; use `*` if cells should meet one by one;
         or give it where the parameter is made: oc.param("p", input=[...])\
""")


def test_the_source_of_a_size_includes_the_default_it_follows_from() -> None:
    message = complaint("""\
p = oc.param("p", output=[...])
q = oc.param("q", input=[], output=[1])
y = oc.relu(oc.einsum("i => i,", p + q))
y.info
oc.einsum("i<+k; k => i", y, oc.tensor([1.0, 2.0, 3.0]))
""")
    assert message == snapshot("""\
A window must fit into its axis: the span of the kernel exceeds the size.
  found  size 1 and i<+k = i<+3
         size 1 was guessed, because nothing determined it,
         when the shape of relu was closed at program.py:5: y.info
  where  output axis -1 of the first operand of einsum "i<+k; k => i", at program.py:6: oc.einsum("i<+k; k => i", y, oc.tensor([1.0, 2.0, 3.0]))
         closing sizes, at program.py:5: y.info
         output axis -1 of the second operand of einsum "i<+k; k => i", at program.py:6: oc.einsum("i<+k; k => i", y, oc.tensor([1.0, 2.0, 3.0]))
         the first operand is relu of shape 1, at program.py:4: y = oc.relu(oc.einsum("i => i,", p + q))
         the second operand is literal of shape 3, at program.py:6: oc.einsum("i<+k; k => i", y, oc.tensor([1.0, 2.0, 3.0]))
  try    crop or extend the axis, or let the window reach into margins (`=`);
         blocks of oc.nn take floor=True, which leaves out the cells behind the last window;
         or decide it before the shape of relu is closed: state the sizes,
         or apply the operation earlier\
""")


def test_stated_and_inferred_sizes_are_not_reported_as_guessed() -> None:
    message = complaint("""\
x = oc.tensor([1.0, 2.0])
y = oc.relu(x)
oc.train.forward(y).resolve()
oc.einsum("i<+k; k => i", y, oc.tensor([1.0, 2.0, 3.0]))
""")
    assert "guessed" not in message
