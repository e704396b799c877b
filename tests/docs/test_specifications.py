"""Every row of the tables of the reference of specifications is computed and compared with NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "einsum.md"


def rows(title: str) -> list[list[str]]:
    """Return the cells of the rows of the table whose first column has a title."""
    _, found = PAGE.read_text("utf-8").split(f"| {title} |", maxsplit=1)
    lines = found.splitlines()[2:]
    last = next(position for position, line in enumerate(lines) if not line.startswith("|"))
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[:last]]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in cells]


SPECIFICATIONS, EXPRESSIONS = rows("specification"), rows("expression")


def axes(shape: str, kind: str) -> list[int]:
    """Return the sizes of one row of a shape written `batch|input->output`."""
    match = re.fullmatch(r"(?:(?P<batch>.*)\|)?(?:(?P<input>.*)->)?(?P<output>.*)", shape)
    assert match is not None
    return [int(size) for size in (match[kind] or "").split(",") if size]


def array(shape: str, start: int) -> Any:
    dims = axes(shape, "batch") + axes(shape, "output") + axes(shape, "input")
    return (np.arange(start, start + int(np.prod(dims)), dtype=np.float32)).reshape(dims)


def check(expression: str, shapes: list[str], result: str, numpy: str) -> None:
    """Compare a tensor expression of `a`, `b`, `c` with one of arrays."""
    stated = {name: shape for name, shape in zip("abc", shapes, strict=False) if shape}
    arrays = {name: array(shape, 1 + 100 * k) for k, (name, shape) in enumerate(stated.items())}
    with oc.Session():
        tensors = {
            name: oc.placeholder(
                name,
                batch=axes(shape, "batch"),
                input=axes(shape, "input"),
                output=axes(shape, "output"),
            )
            for name, shape in stated.items()
        }
        value = eval(expression, {"oc": oc, **tensors})
        ctx = oc.Context("interp")
        run = ctx.compile(oc.train.forward(value))
        for name, cells in arrays.items():
            ctx[tensors[name]] = cells
        run()
        found = ctx[value]
    assert str(value.shape) == result
    np.testing.assert_allclose(found, eval(numpy, {"np": np, **arrays}), rtol=1e-5)


def test_there_are_examples() -> None:
    assert len(SPECIFICATIONS) >= 50
    assert len(EXPRESSIONS) >= 13


@pytest.mark.parametrize("row", SPECIFICATIONS, ids=lambda row: row[0])
def test_a_specification_computes_the_documented_result(row: list[str]) -> None:
    spec, options, first, second, result, _, numpy = row
    operands = "a, b" if second else "a"
    more = f", {options}" if options else ""
    check(f"oc.einsum({spec!r}, {operands}{more})", [first, second], result, numpy)


@pytest.mark.parametrize("row", EXPRESSIONS, ids=lambda row: row[0])
def test_an_expression_computes_the_documented_result(row: list[str]) -> None:
    expression, *shapes, result, numpy = row
    check(expression, shapes, result, numpy)
