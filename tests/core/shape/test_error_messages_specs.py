"""Errors of positions, formulas and bases in specifications."""

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


def test_bases_of_a_window_that_differ() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[oc.Size(7, "time")])
k = oc.placeholder("k", output=[oc.Size(3, "space")])
c = oc.einsum("i<+k; k => i", x, k)
""")
    assert message == snapshot("""\
Axes that meet must have the same basis.
  found  basis 'space' and basis 'time': size 7:time and i<+k = i<+3:space
  where  output axis -1 of the first operand of einsum "i<+k; k => i", at program.py:4: c = oc.einsum("i<+k; k => i", x, k)
         output axis -1 of the second operand of einsum "i<+k; k => i", at program.py:4: c = oc.einsum("i<+k; k => i", x, k)
         the first operand is x of shape 7:time, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[oc.Size(7, "time")])
         the second operand is k of shape 3:space, made by placeholder k, at program.py:3: k = oc.placeholder("k", output=[oc.Size(3, "space")])
  try    convert one of the tensors, or leave the basis of one of them out\
""")


def test_bases_of_parts_that_differ() -> None:
    message = complaint("""\
x = oc.placeholder("x", output=[oc.Size(3, "rgb")])
y = oc.placeholder("y", output=[oc.Size(1, "depth")])
c = oc.concat("a; b => a^b", x, y)
""")
    assert message == snapshot("""\
Axes that meet must have the same basis.
  found  basis 'depth' and basis 'rgb': a^b and a^b = 3:rgb^1:depth
  where  output axis -1 of the result of concat "a; b => a^b", at program.py:4: c = oc.concat("a; b => a^b", x, y)
         output axis -1 of the first operand of concat "a; b => a^b", at program.py:4: c = oc.concat("a; b => a^b", x, y)
         output axis -1 of the second operand of concat "a; b => a^b", at program.py:4: c = oc.concat("a; b => a^b", x, y)
         the first operand is x of shape 3:rgb, made by placeholder x, at program.py:2: x = oc.placeholder("x", output=[oc.Size(3, "rgb")])
         the second operand is y of shape 1:depth, made by placeholder y, at program.py:3: y = oc.placeholder("y", output=[oc.Size(1, "depth")])
  try    convert one of the tensors, or leave the basis of one of them out\
""")


def test_a_position_beyond_an_axis_of_size_1() -> None:
    message = complaint("""\
x = oc.tensor([[5.0], [6.0]])
c = oc.einsum("i3 => i", x)
""")
    assert message == snapshot("""\
Position 3 is accessed, so the axis needs at least 4 positions.
  found  size 1
  where  output axis -1 of the first operand of einsum "i3 => i", at program.py:3: c = oc.einsum("i3 => i", x)
         the operand is literal of shape 2,1, at program.py:2: x = oc.tensor([[5.0], [6.0]])
  try    use a smaller index, or make the axis longer\
""")


def test_a_position_of_an_axis_that_is_not_there() -> None:
    message = complaint("""\
x = oc.tensor([5.0, 6.0])
c = oc.einsum("3i => i", x)
""")
    assert message == snapshot("""\
An operand has the axis of which a position is read.
  found  1 axis (2) in place of 2
  where  output row of the first operand of einsum "3i => i", at program.py:3: c = oc.einsum("3i => i", x)
         the operand is literal of shape 2, at program.py:2: x = oc.tensor([5.0, 6.0])
  try    give the operand this axis, or leave the position out\
""")


def test_a_row_whose_first_and_last_axes_contradict() -> None:
    message = complaint("""\
w = oc.param("w")
y = w @ oc.placeholder("x", output=[3])
oc.require_shapes("... -> 2, ..v..; ... -> ..v.., 5", w, w)
oc.train.forward(y).resolve()
""")
    assert message == snapshot("""\
All demands on a row must agree for some number of axes.
  found  none up to 4 satisfies 2,..v.. = ..v..,5
  where  output row of output 1 of the shapes ... -> 2, ..v..; ... -> ..v.., 5 required of w, w, at program.py:4: oc.require_shapes("... -> 2, ..v..; ... -> ..v.., 5", w, w)
         output row of output 0 of the shapes ... -> 2, ..v..; ... -> ..v.., 5 required of w, w, at program.py:4: oc.require_shapes("... -> 2, ..v..; ... -> ..v.., 5", w, w)
  try    change one of the sizes, or give all axes of one of the tensors\
""")


def test_rows_of_two_parameters_that_contradict_each_other() -> None:
    message = complaint("""\
w, u = oc.param("w"), oc.param("u")
y = w.T + u.T
oc.require_shapes("... -> 3, 2, ..v..; ... -> ..v..", w, u)
oc.require_shapes("... -> ..v.., a, a; ... -> ..v..", w, u)
oc.train.forward(y).resolve()
""")
    assert message == snapshot("""\
Axes that are the same must have the same size.
  found  size 3 and size 2
  where  output axis -4 of output 0 of the shapes ... -> ..v.., a, a; ... -> ..v.. required of w, u, at program.py:5: oc.require_shapes("... -> ..v.., a, a; ... -> ..v..", w, u)
         output axis -3 of output 0 of the shapes ... -> ..v.., a, a; ... -> ..v.. required of w, u, at program.py:5: oc.require_shapes("... -> ..v.., a, a; ... -> ..v..", w, u)
         output row of output 0 of the shapes ... -> 3, 2, ..v..; ... -> ..v.. required of w, u, at program.py:4: oc.require_shapes("... -> 3, 2, ..v..; ... -> ..v..", w, u)
  try    change one of the sizes\
""")


def test_a_row_that_begins_with_two_sizes() -> None:
    message = complaint("""\
w = oc.param("w")
oc.require_shape(w, "... -> ..a.., 4")
oc.require_shape(w, "... -> 2, ..b..")
oc.require_shape(w, "... -> 3, ..c..")
""")
    assert message == snapshot("""\
Axes that are the same must have the same size.
  found  size 2 and size 3
  where  output row of the shape ... -> 2, ..b.. required of w, at program.py:4: oc.require_shape(w, "... -> 2, ..b..")
         output axis 0 of the shape ... -> 3, ..c.. required of w, at program.py:5: oc.require_shape(w, "... -> 3, ..c..")
  try    change one of the sizes\
""")
