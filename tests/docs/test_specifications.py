"""Every row of the table of specifications in the reference is computed and compared with NumPy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "einsum.md"


def rows() -> list[list[str]]:
    """Returns the cells of the rows of the table of examples."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in cells]


def axes(shape: str, kind: str) -> list[int]:
    """Returns the sizes of one row of a shape written `batch|input->output`."""
    match = re.fullmatch(r"(?:(?P<batch>.*)\|)?(?:(?P<input>.*)->)?(?P<output>.*)", shape)
    assert match is not None
    return [int(size) for size in (match[kind] or "").split(",") if size]


def array(shape: str, start: int) -> np.ndarray:  # type: ignore[type-arg]
    dims = axes(shape, "batch") + axes(shape, "output") + axes(shape, "input")
    return (np.arange(start, start + int(np.prod(dims)), dtype=np.float32)).reshape(dims)


def test_there_are_examples() -> None:
    assert len(rows()) >= 17


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_specification_computes_what_the_table_says(row: list[str]) -> None:
    spec, first, second, result, _, numpy = row
    shapes = [shape for shape in (first, second) if shape]
    arrays = [array(shape, 1 + 100 * k) for k, shape in enumerate(shapes)]
    with oc.Session():
        tensors = [
            oc.placeholder(
                f"t{k}",
                batch=axes(shape, "batch"),
                input=axes(shape, "input"),
                output=axes(shape, "output"),
            )
            for k, shape in enumerate(shapes)
        ]
        value = oc.einsum(spec, *tensors)
        ctx = oc.Context("interp")
        run = ctx.compile(oc.train.forward(value))
        for tensor, cells in zip(tensors, arrays, strict=True):
            ctx[tensor] = cells
        run()
        found = ctx[value]
    names = {"np": np, "a": arrays[0], "b": arrays[-1]}
    assert str(value.shape) == result
    np.testing.assert_allclose(found, eval(numpy, names), rtol=1e-6)
