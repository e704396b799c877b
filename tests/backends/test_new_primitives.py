"""A primitive is a row and an operation: two are added to a copy of the core, in two modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import ocannl_core

CORE = Path(ocannl_core.__file__).parent

ROWS = """
    CBRT = _function("cbrt", math.cbrt, "the cube root", has_vector_code=False)
    LOGISTIC = _real(
        "logistic",
        lambda v: 1.0 / (1.0 + math.exp(-v)),
        "`1 / (1 + exp(-a))`",
        ulps=4,
        cost=Cost.FUNCTION,
        expansion=("recip", ("add", 1.0, ("exp", ("neg", "a")))),
    )
    HUMP = _real(
        "hump",
        lambda v: v / (v * v + 1.0),
        "`a / (a * a + 1)`",
        ulps=4,
        expansion=("div", "a", ("add", ("mul", "a", "a"), 1.0)),
    )
"""
OPERATIONS = """
@lifted(UnaryOp.CBRT)
def cbrt(g: Any, g1: Any, v: Any) -> None:
    g1 += g / (3.0 * (v * v))


@lifted(UnaryOp.LOGISTIC)
def logistic(g: Any, g1: Any, v: Any) -> None:
    g1 += g * (v * (1.0 - v))


@lifted(UnaryOp.HUMP)
def hump(g: Any, g1: Any, v: Any, v1: Any) -> None:
    g1 += g * (v / v1 - 2.0 * (v * v))
"""
SCRIPT = """
import json
import sys

import ocannl_core as oc

results = []
for name, dtype, count in json.loads(sys.argv[2]):
    with oc.Session():
        x = oc.param("x", init=oc.cast(oc.arange(count), dtype) * 0.25 + 0.5, dtype=dtype)
        y = getattr(oc, name)(x)
        ctx, loss = oc.Context(sys.argv[1]), oc.sum(y)
        step = ctx.compile(oc.train.grad_update(loss), keep=[y, x.grad])
        ctx.init_params(loss)
        step()
        results.append([ctx[y].tolist(), ctx[x.grad].tolist()])
print(json.dumps(results))
"""
EXPECTED = {
    "cbrt": lambda x: (np.cbrt(x), 1 / (3 * np.cbrt(x) ** 2)),
    "logistic": lambda x: (1 / (1 + np.exp(-x)), np.exp(-x) / (1 + np.exp(-x)) ** 2),
    "hump": lambda x: (x / (x * x + 1), (1 - x * x) / (x * x + 1) ** 2),
}
TOLERANCES = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.05}


@pytest.fixture(scope="module")
def extended_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the core that has the new primitives."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(CORE, root / "ocannl_core")
    insert(root, "ir/numbers/primitives.py", before="    BIT_NOT = ", text=ROWS)
    operations = "tensor/primitives/pointwise_operations.py"
    insert(root, operations, before="\n@lifted(UnaryOp.TAN)", text=OPERATIONS)
    insert(root, operations, before='    "abs", ', text='    "cbrt", "hump", "logistic",\n')
    return root


def insert(root: Path, module: str, *, before: str, text: str) -> None:
    path = root / "ocannl_core" / module
    source = path.read_text(encoding="utf-8")
    assert source.count(before) == 1
    path.write_text(source.replace(before, text + before), encoding="utf-8")


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_row_and_an_operation_are_enough(extended_core: Path, backend: str) -> None:
    cases = list(product(EXPECTED, TOLERANCES, (3, 100)))
    path = os.pathsep.join([str(extended_core), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, backend, json.dumps(cases)],
        cwd=extended_core,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for (name, dtype, count), found in zip(cases, json.loads(run.stdout), strict=True):
        for part, wanted in zip(found, EXPECTED[name](np.arange(count) * 0.25 + 0.5), strict=True):
            tolerance = TOLERANCES[dtype]
            np.testing.assert_allclose(part, wanted, rtol=tolerance, atol=tolerance)
