"""Shapes stated as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_core as oc

_sizes = st.lists(st.integers(0, 12), max_size=3)


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session():
        yield


@given(_sizes, _sizes, _sizes)
def test_printed_shapes_are_parsed(batch: list[int], input: list[int], output: list[int]) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=batch, input=input, output=output)
        y = oc.require_shape(oc.declare("y"), str(x.shape))
        assert (y.shape.batch, y.shape.input, y.shape.output) == (
            x.shape.batch,
            x.shape.input,
            x.shape.output,
        )


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("2->3", "2->3"),
        ("28 28->10", "28,28->10"),
        ("5|(2, 3)->4", "5|2,3->4"),
        ("()", "()"),
        ("7|", "7|"),
    ],
)
def test_entries_are_numbers_apart(text: str, shape: str) -> None:
    assert str(oc.require_shape(oc.declare("x"), text).shape) == shape


def test_inputs_can_be_required_to_equal_outputs() -> None:
    w = oc.require_shape(oc.param("w"), "..v..->..v..")
    y = w @ oc.placeholder("x", output=[2, 3])
    oc.train.forward(y).resolve()
    assert (str(w.shape), str(y.shape)) == ("2,3->2,3", "2,3")


def test_sizes_of_one_name_are_equal_and_others_follow_from_uses() -> None:
    w = oc.require_shape(oc.param("w"), "n->n,_,2")
    y = w @ oc.placeholder("x", output=[4]) + oc.placeholder("b", output=[4, 5, 2])
    oc.train.forward(y).resolve()
    assert str(w.shape) == "4->4,5,2"


def test_a_contradiction_is_refused_and_changes_nothing() -> None:
    w = oc.param("w", output=[3])
    with pytest.raises(oc.ShapeError) as caught:
        oc.require_shape(w, "2->4")
    assert "output axis -1 of the shape 2->4 required of w" in caught.value.where
    assert str(oc.require_shape(w, "2->3").shape) == "2->3"


def test_a_row_of_one_tensor_can_be_required_of_others() -> None:
    x, scale, shift = oc.placeholder("x", batch=[5], output=[2, 1]), oc.param("s"), oc.param("t")
    oc.require_shapes("...|..n..; ..n..; ..n..", x, scale, shift)
    assert [str(p.shape) for p in (scale, shift)] == ["2,1", "2,1"]


def test_tensors_whose_shapes_do_not_fit_together_are_refused_and_nothing_changes() -> None:
    x, w = oc.placeholder("x", output=[2]), oc.param("w", output=[3])
    with pytest.raises(oc.ShapeError) as caught:
        oc.require_shapes("n; n->n", x, w)
    assert "of the shapes n; n->n required of x, w" in caught.value.where
    oc.require_shapes("n; n->3", x, w)
    assert str(w.shape) == "2->3"


@pytest.mark.parametrize(("text", "number"), [("n", 2), ("n; n", 1), ("n => n", 2), ("n", 0)])
def test_there_is_one_shape_for_each_tensor(text: str, number: int) -> None:
    tensors = [oc.declare(f"x{position}") for position in range(number)]
    with pytest.raises(oc.SpecError if number else oc.UsageError):
        oc.require_shapes(text, *tensors)


@pytest.mark.parametrize("text", ["2=>3", "2;3", "2->->3"])
def test_a_text_that_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(oc.SpecError):
        oc.require_shape(oc.declare("x"), text)


def test_sizes_leave_the_kinds_of_axes_as_they_are() -> None:
    x = oc.placeholder("x", batch=[...], output=[5])
    assert str(oc.require_shape(x, (3, 5)).shape) == "3|5"
    rows = oc.require_shape(oc.param("b", output=[...], input=[]), [2, np.int64(3)])
    assert str(rows.shape) == "2,3"
    length = oc.static_extent("length", max=16)
    ragged = oc.placeholder("ragged", batch=[...], output=[5])
    assert str(oc.require_shape(ragged, (length, 5)).shape) == "length<=16|5"


def test_sizes_of_axes_whose_kinds_nothing_states_are_those_of_output_axes() -> None:
    p = oc.require_shape(oc.param("p"), [4, 2])
    oc.Context("interp").compile(oc.train.forward(p * 2.0))
    assert str(p.shape) == "4,2"


@pytest.mark.parametrize("sizes", [(3, 6), (3,), (3, 5, 1)])
def test_other_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    x = oc.placeholder("x", batch=[3], output=[5])
    with pytest.raises(oc.ShapeError):
        oc.require_shape(x, sizes)


@pytest.mark.parametrize("sizes", [(3, -1), (3, True), (3, 5.0), 15, None])
def test_a_shape_is_a_text_or_sizes(sizes: Any) -> None:
    x = oc.placeholder("x", batch=[3], output=[5])
    with pytest.raises(oc.UsageError, match="text or the sizes"):
        oc.require_shape(x, sizes)
