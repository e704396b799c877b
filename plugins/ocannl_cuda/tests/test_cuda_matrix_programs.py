"""Programs whose products run on matrix instructions of emulated devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.ocannl_cuda.tests.emulated import needs_emulation, run

PROGRAM = """
import numpy as np
import ocannl_core as oc

def narrow(x):
    return x.astype(oc.bfloat16.numpy).astype(np.float64)

def report(name, routine, found, exact):
    tiles = sum("tile" in each.schedule for each in oc.explain(routine).kernels)
    error = np.abs(np.asarray(found, np.float64) - exact).max() / np.abs(exact).max()
    assert error < 2.0**-6, (name, error)
    print(name, tiles)

random = np.random.default_rng(0)
with oc.Session():
    values = [random.standard_normal((2, 40, 32)) for _ in range(3)]
    q, k, v = (oc.tensor(each, dtype="bfloat16") for each in values)
    weights = oc.softmax(
        oc.einsum("h,s,d; h,t,d => h,s,t", q, k) * 0.125, logic="...,t => ...,0"
    )
    y = oc.einsum("h,s,t; h,t,d => h,s,d", weights, v)
    context = oc.Context("cuda")
    routine = context.compile(oc.train.forward(y))
    routine()
    q, k, v = map(narrow, values)
    scores = np.exp(0.125 * np.einsum("hsd,htd->hst", q, k))
    scores /= scores.sum(-1, keepdims=True)
    report("attention", routine, context[y], np.einsum("hst,htd->hsd", scores, v))

with oc.Session():
    n = oc.static_extent("n", max=70)
    x = oc.placeholder("x", batch=[n], output=[48], dtype="bfloat16")
    w = random.standard_normal((32, 48))
    y = oc.tensor(w, input_axes=1, dtype="bfloat16") @ x
    g = oc.einsum("n|o; n|i => |o,i", y, x)
    context = oc.Context("cuda")
    routine = context.compile(oc.train.forward(y) + oc.train.forward(g))
    for rows in (70, 17, 1):
        cells = random.standard_normal((rows, 48))
        context[x] = cells
        routine(n=rows)
        exact = narrow(cells) @ narrow(w).T
        report(f"{rows} rows", routine, context[y], exact)
        report(f"{rows} terms", routine, context[g], exact.T @ narrow(cells))
"""


@needs_emulation
@pytest.mark.parametrize(("order", "sanitize"), [("forward", True), ("reverse", False)])
def test_attention_and_sizes_at_run_time_use_matrix_instructions(
    order: str, sanitize: bool, tmp_path: Path
) -> None:
    result = run(PROGRAM, tmp_path, sanitize=sanitize, CUDA_EMULATOR_ORDER=order)
    assert (result.code, result.errors) == (0, "")
    lines = ["attention 1", *(f"{n} {kind} 2" for n in (70, 17, 1) for kind in ("rows", "terms"))]
    assert result.output.splitlines() == lines
