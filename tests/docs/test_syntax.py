"""Every row of the tables that compare OCANNL's notation with ours runs, and gives the stated
result.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "syntax.md"

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    name: np.asarray(cells, np.float32)
    for name, cells in {
        "x": [0.5, -2.0, 3.0],
        "y": [4.0, 5.0, 0.5],
        "q": [1.0, 0.0, 1.0],
        "w": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        "m": [[1, -2, 3], [-4, 5, 6], [7, 8, -9]],
        "batch": np.arange(12).reshape(4, 3),
        "cube": np.arange(24).reshape(2, 3, 4),
        "cubes": np.arange(48).reshape(2, 2, 3, 4),
        "short": [7.0, 8.0],
        "c": [2.0, 0.25, -1.0],
        "p": [1.0, -1.0, 2.0],
        "g": [10.0, 20.0, 30.0],
    }.items()
}
LEADING = {"batch": 1, "cubes": 1}
INPUT = {"w": 1}


def sections() -> dict[str, list[list[str]]]:
    """Return the rows of the page's tables, by the heading above them."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        elif line.startswith("| ") and not line.startswith(("| OCANNL", "|--")):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.setdefault(heading, []).append([cell.replace("\\|", "|") for cell in cells])
    return found


ROWS = [
    pytest.param(heading, *row, id=f"{heading}: {row[1]}")
    for heading, rows in sections().items()
    for row in rows
]
_numbers = count()


@pytest.fixture
def program() -> Iterator[dict[str, Any]]:
    """The names that the rows use, in a session of their own; parameters follow their uses."""
    with oc.Session(seed=1), oc.settings.overrides(missing_axes="allow"):
        yield given_names()


def given_names() -> dict[str, Any]:
    tensors: dict[str, Any] = {
        name: oc.tensor(
            cells, batch_axes=LEADING.get(name, 0), input_axes=INPUT.get(name, 0), label=name
        )
        for name, cells in ARRAYS.items()
        if name not in {"c", "p", "g"}
    }
    p = oc.param("p", output=[3], init=0.0)
    tensors |= {
        "oc": oc,
        "p": p,
        "c": oc.declare("c", batch=[], input=[], output=[3]),
        "i": oc.static_index("i", range=4),
        "n": 4,
        "lr": 0.1,
        "config": {"hid_dim": 5},
        "loss": oc.einsum("i => 0", p * p),
    }
    text = "\n".join(blocks_of("def mlp_layer"))
    exec(text, tensors)
    return tensors


def blocks_of(start: str) -> list[str]:
    """Return the lines of the row that defines a function, without the last one."""
    for rows in sections().values():
        for _, here, _ in rows:
            if any(line.startswith(start) for line in lines_of(here)):
                return lines_of(here)[:-1]
    raise AssertionError(start)


def lines_of(cell: str) -> list[str]:
    return [line.strip().strip("`") for line in cell.split("<br>")]


def executed(text: str, names: dict[str, Any]) -> None:
    """Run Python of the page so that messages and printed code can show its lines."""
    name = f"row{next(_numbers)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)


def value_of(here: str, names: dict[str, Any]) -> oc.Tensor:
    """Return the tensor of a row's last line."""
    *before, last = lines_of(here)
    executed("\n".join([*before, f"result = {last}"]), names)
    result: oc.Tensor = names["result"]
    return result


def code_of(here: str, names: dict[str, Any]) -> oc.Computation:
    """Return the computation that a row of recorded code is."""
    lines = lines_of(here)
    arguments = "c, p, x, y"
    body = "".join(f"    {line}\n" for line in lines)
    executed(f"@oc.cd\ndef code({arguments}):\n{body}\nresult = code({arguments})\n", names)
    computation: oc.Computation = names["result"]
    return computation


def context_for(tensor: oc.Tensor | None, names: dict[str, Any]) -> oc.Context:
    ctx = oc.Context("interp")
    for name in ("c", "p"):
        ctx[names[name]] = ARRAYS[name]
    ctx[names["p"].grad] = ARRAYS["g"]
    if tensor is not None:
        ctx.init_params(tensor)
    return ctx


@pytest.mark.parametrize(("heading", "ocannl", "here", "gives"), ROWS)
def test_a_row_gives_the_documented_result(
    heading: str, ocannl: str, here: str, gives: str, program: dict[str, Any]
) -> None:
    gives = gives.strip("`")
    if heading == "Code: `%cd`":
        code = code_of(here, program)
        if gives.startswith("text "):
            assert gives.removeprefix("text ") in map(str.strip, str(code).splitlines())
            return
        target, expected = gives.split(" = ", 1)
        written = eval(target, program)
        ctx = context_for(None, program)
        ctx.compile(code, keep=[written])()
        found = ctx[written]
    else:
        result = value_of(here, program)
        if gives.startswith("name "):
            assert result.node.name == gives.removeprefix("name ")
            return
        if gives in {"a gradient", "no gradient"}:
            assert (result.grad is not None) == (gives == "a gradient")
            return
        if gives.startswith("shape "):
            _ = result.info  # closes the shape
            assert str(result.shape) == gives.removeprefix("shape ")
            return
        expected = gives
        if result.literal is not None:
            found = result.literal
        else:
            ctx = context_for(result, program)
            ctx.compile(oc.train.forward(result), bindings=[program["i"]])(i=2)
            found = ctx[result]
    reference = np.asarray(eval(expected, {"np": np, **ARRAYS}))
    np.testing.assert_allclose(found, reference.reshape(found.shape), rtol=2e-6, atol=1e-6)


def test_every_section_has_rows() -> None:
    counts = {heading: len(rows) for heading, rows in sections().items()}
    assert counts["Primitive operations"] >= 33
    assert sum(counts.values()) >= 160


def test_every_accumulating_primitive_has_its_two_forms() -> None:
    code = sections()["Code: `%cd`"]
    ours = " ".join(here for _, here, _ in code)
    for name in ("oc.primitives.relu_gate", "oc.primitives.sat01_gate", "oc.maximum", "oc.minimum"):
        assert f"c[{name}]" in ours
        assert f"c[oc.neutral, {name}]" in ours
    for symbol in ("+", "-", "*", "/", "**", "|", "&"):
        assert f"c {symbol}= " in ours
        assert f"c[oc.neutral] {symbol}= " in ours
