"""The axes of positions along an axis, and masks between brackets, which are no positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc


def test_positions_along_an_axis_have_the_axes_of_the_tensor_one_by_one(target: str) -> None:
    ctx = oc.Context(target)
    cells = np.arange(12, dtype=np.float32).reshape(4, 3)
    scores = oc.placeholder("scores", batch=[4], output=[3])
    actions = oc.placeholder("actions", batch=[4], dtype="int32")
    rewards = oc.placeholder("rewards", batch=[4])
    chosen = oc.take_along(scores, actions[:, None], axis=-1)  # whose positions have batch axes
    replaced = oc.put_along(scores, actions[:, None], rewards[:, None], axis=-1)
    both = oc.train.forward(chosen) + oc.train.forward(replaced)
    step = ctx.compile(both, keep=[chosen, replaced])
    places = np.array([2, 0, 1, 2])
    ctx[scores], ctx[actions], ctx[rewards] = cells, places, [10, 20, 30, 40]
    step()
    assert np.array_equal(ctx[chosen], np.take_along_axis(cells, places[:, None], -1))
    np.put_along_axis(cells, places[:, None], np.array([[10], [20], [30], [40]]), -1)
    assert np.array_equal(ctx[replaced], cells)
    assert str(chosen.shape) == "4|1"


@pytest.mark.parametrize(
    "mask",
    [
        lambda x, ids: x > 1.0,
        lambda x, ids: ids == 1,
        lambda x, ids: ~(ids == 1),
        lambda x, ids: oc.tensor([True, False, True, False], dtype="bool"),
    ],
)
def test_a_mask_between_brackets_is_refused(mask: Any) -> None:
    x = oc.placeholder("x", batch=[4], output=[3])
    ids = oc.placeholder("ids", batch=[4], dtype="int32")
    with pytest.raises(oc.UsageError, match="number of cells that a mask selects") as caught:
        x[mask(x, ids)]
    assert "oc.where(mask, x, 0.0)" in caught.value.fix


def test_a_mask_between_brackets_of_an_assignment_is_refused() -> None:
    c = oc.declare("c", batch=[4])

    @oc.cd
    def clear() -> None:
        c[c < 0.0] = 0.0

    with pytest.raises(oc.UsageError, match="number of cells that a mask selects"):
        clear()


@pytest.mark.parametrize("kind", ["batch", "output", "input"])
def test_positions_with_fewer_axes_than_the_tensor_are_refused(kind: str) -> None:
    x = oc.placeholder("x", batch=[4], output=[2, 3])
    sizes: Any = {kind: [4]}
    ids = oc.placeholder("ids", dtype="int32", **sizes)
    with pytest.raises(
        oc.ShapeError, match="the axes of the tensor, at least those of its kind"
    ) as caught:
        oc.take_along(x, ids, axis=-1)
    assert "ids[..., None]" in caught.value.fix


def test_positions_may_lack_axes_of_other_kinds() -> None:
    x = oc.placeholder("x", batch=[4], output=[2, 3])
    ids = oc.placeholder("ids", output=[2, 5], dtype="int32")
    assert str(oc.take_along(x, ids, axis=-1).shape) == "4|2,5"
