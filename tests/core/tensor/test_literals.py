"""Literals: which container is which kind of axis, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([1, 2, 3], "3"),
        ((1, 2, 3), "3->"),
        ([(1, 2, 3), (4, 5, 6)], "3->2"),
        (oc.batch([1, 2], [3, 4], [5, 6]), "3|2"),
        (oc.batch([(1,), (2,)]), "1|1->2"),
        ([[1, 2], [3, 4], [5, 6]], "3,2"),
        (2.5, "()"),
    ],
)
def test_lists_are_output_axes_tuples_input_axes_and_batches_batch_axes(
    value: object, shape: str
) -> None:
    assert str(oc.tensor(value).shape) == shape


def test_cells_are_stored_batch_first_then_output_then_input() -> None:
    literal = oc.tensor((oc.batch(1, 2, 3), oc.batch(4, 5, 6))).literal
    assert literal is not None
    np.testing.assert_array_equal(literal, [[1, 4], [2, 5], [3, 6]])


def test_axes_of_an_array_are_output_axes_but_for_those_named() -> None:
    array = np.zeros((2, 3, 4, 5))
    assert str(oc.tensor(array).shape) == "2,3,4,5"
    assert str(oc.tensor(array, batch_axes=1, input_axes=2).shape) == "2|4,5->3"


def test_float64_arrays_become_the_default_float_and_other_formats_stay() -> None:
    assert oc.tensor(np.zeros(2)).dtype is oc.float32
    assert oc.tensor(np.zeros(2), dtype=oc.float64).dtype is oc.float64
    assert oc.tensor(np.zeros(2, np.int64)).dtype is oc.int64
    assert oc.tensor([1, 2]).dtype is oc.float32


def test_a_literal_is_a_copy_of_the_array() -> None:
    array = np.zeros(2, np.float32)
    literal = oc.tensor(array)
    array[0] = 7
    assert literal.literal is not None
    assert literal.literal[0] == 0


@pytest.mark.parametrize("value", [[1, [2]], [[1, 2], [3]], [[1, 2], (3, 4)], ["a"], [None]])
def test_ragged_literals_and_other_values_are_refused(value: object) -> None:
    with pytest.raises(oc.UsageError):
        oc.tensor(value)


def test_more_named_axes_than_there_are_is_an_error() -> None:
    with pytest.raises(oc.UsageError, match="batch_axes=2"):
        oc.tensor(np.zeros(3), batch_axes=2)


def test_not_a_number_is_refused_with_its_place() -> None:
    with pytest.raises(oc.TransferError, match=r"1 of 4 cells, the first at \[1, 0\]"):
        oc.tensor(np.array([[0.0, 1.0], [np.nan, 2.0]]))
