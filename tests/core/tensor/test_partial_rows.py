"""Parameters of which some axes are stated and the others inferred."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc


def test_stated_axes_stand_on_their_side_of_the_inferred_ones() -> None:
    with oc.Session():
        assert str(oc.param("w", input=[2, 3, ...], output=[..., 4]).shape.input)[:3] == "2,3"
        w = oc.param("w", input=[2, 3, ...], output=[..., 4])
        x = oc.tensor(np.zeros((2, 3, 5)))
        y = w @ x + oc.tensor(np.zeros((6, 4)))
        assert y.info.dims == (6, 4)
        assert str(w.shape) == "2,3,5->6,4"


def test_stated_axes_that_disagree_with_a_use_are_an_error() -> None:
    with oc.Session():
        w = oc.param("w", input=[2, ...], output=[1])
        met = oc.einsum("a, b; a, b -> ... => ...", oc.tensor(np.zeros((3, 5))), w)
        with pytest.raises(oc.ShapeError, match="size 3 and size 2"):
            _ = met.info


def test_an_initial_array_agrees_with_the_stated_axes() -> None:
    with oc.Session():
        cells = oc.tensor(np.zeros((4, 2, 3)), input_axes=2)
        assert str(oc.param("w", init=cells, input=[2, ...]).shape) == "2,3->4"
        assert str(oc.param("w", init=cells, input=[..., 3]).shape) == "2,3->4"
        with pytest.raises(oc.UsageError, match="must agree"):
            oc.param("w", init=cells, input=[3, ...])


def test_a_row_has_one_stretch_of_inferred_axes() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="one stretch"):
        oc.param("w", input=[..., 3, ...])
