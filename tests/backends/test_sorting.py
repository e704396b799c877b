"""Sorting and selection of every format, with ties, NaN, infinities and zeros of both signs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
FORMATS = ("float32", "float64", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SHAPES = {(3, 130): 1, (2, 24): 1, (7, 3): 0, (2, 1): 1, (2, 30, 2): 1, (1, 700): 1}
"""Shapes and the axis to sort along: lines that are sorted by insertion, and by digits."""


def cells_of(dtype: str, shape: tuple[int, ...]) -> Array:
    """Return cells with ties; of integers, over the whole range."""
    random = np.random.default_rng(len(shape) + shape[-1])
    if dtype.startswith("float"):
        cells = (random.integers(-9, 9, shape) / 4).astype(dtype)
        cells[cells == 1] = -0.0
        if cells.size > 20:
            cells.flat[3:8] = [np.nan, -np.inf, np.inf, -np.nan, 0.0]
        return cells
    limits = np.iinfo(dtype)
    cells = random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    cells.flat[::2] = random.integers(0, 3, cells.flat[::2].shape)
    return cells


def positions_in_order(cells: Array, axis: int, descending: bool) -> Array:
    """Return the positions in stable order; NaN is the greatest."""
    if not descending:
        return np.argsort(cells, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(cells, axis), axis=axis, kind="stable")
    return cells.shape[axis] - 1 - np.flip(backwards, axis)


@pytest.mark.parametrize("dtype", FORMATS)
def test_order_is_stable_and_that_of_numpy(target: str, dtype: str) -> None:
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        expected: list[tuple[oc.Tensor, Array]] = []
        for shape, axis in SHAPES.items():
            cells = cells_of(dtype, shape)
            x = oc.tensor(cells, batch_axes=len(shape) - 1)
            for descending in (False, True):
                order = positions_in_order(cells, axis, descending)
                few = np.take(order, np.arange(min(5, shape[axis])), axis)
                expected += [
                    (oc.argsort(x, axis, descending=descending), order),
                    (
                        oc.sort(x, axis, descending=descending),
                        np.take_along_axis(cells, order, axis),
                    ),
                ]
                top = oc.topk(x, few.shape[axis], axis, largest=descending)
                expected += zip(top, (np.take_along_axis(cells, few, axis), few), strict=True)
        context = oc.Context(target)
        program = oc.train.forward(expected[0][0])
        for tensor, _ in expected[1:]:
            program += oc.train.forward(tensor)
        context.compile(program, keep=[tensor for tensor, _ in expected])()
        for tensor, wanted in expected:
            np.testing.assert_array_equal(context[tensor], wanted)


@pytest.mark.parametrize("count", [7, 70])
@pytest.mark.parametrize(
    "cells",
    [
        np.arange(700),
        -np.arange(700),
        np.zeros(700),
        np.random.default_rng(0).integers(9, size=700),
    ],
    ids=["rising", "falling", "equal", "random"],
)
def test_the_first_few_of_long_lines_are_selected(target: str, cells: Array, count: int) -> None:
    """Lines of several blocks: every cell displaces another one, none does, or some do."""
    with oc.Session():
        x = oc.tensor(cells.astype(np.float32))
        largest, least = oc.topk(x, count), oc.topk(x, count, largest=False)
        context = oc.Context(target)
        kept = [*largest, *least]
        context.compile(oc.train.forward(sum(kept[1:], kept[0])), keep=kept)()
        for descending, (values, positions) in ((True, largest), (False, least)):
            wanted = positions_in_order(cells, 0, descending)[:count]
            np.testing.assert_array_equal(context[positions], wanted)
            np.testing.assert_array_equal(context[values], cells[wanted])
