"""Logical reductions in every format, of enough cells for vectors."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  # names of formats
import numpy as np
import pytest

import ocannl_core as oc

FORMATS = ["float32", "float64", "bfloat16", "float16", "int8", "uint8", "int32", "int64", "bool"]


@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize("format", FORMATS)
def test_any_and_all_are_numpys(target: str, format: str, axis: int | None) -> None:
    random = np.random.default_rng(0)
    cells = random.integers(0, 2, (37, 41)) * random.integers(0, 5, (37, 41))
    cells[3], cells[:, 5] = 0, 0
    cells[7], cells[:, 9] = 2, 1
    x = cells.astype(format)
    if "float" in format:
        x[3, ::2], x[7, 5], x[:, 5] = -0.0, np.nan, np.nan
    with oc.base.settings.overrides(allow_nan=True):
        tensor = oc.tensor(x, batch_axes=1)
        found = [oc.any(tensor, axis=axis), oc.all(tensor, axis=axis)]
        context = oc.Context(target)
        context.compile(oc.train.forward(found[0]) + oc.train.forward(found[1]), keep=found)()
    truths = x != 0
    expected = [truths.any(axis=axis), truths.all(axis=axis)]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(context[ours]).astype(float), theirs.astype(float))


def test_no_cells_are_all_true_and_none_is(target: str) -> None:
    tensor = oc.tensor(np.zeros((3, 0), np.float32), batch_axes=1)
    found = [oc.any(tensor, axis=-1), oc.all(tensor, axis=-1)]
    context = oc.Context(target)
    context.compile(oc.train.forward(found[0]) + oc.train.forward(found[1]), keep=found)()
    assert [np.array(context[each]).tolist() for each in found] == [[0] * 3, [1] * 3]
