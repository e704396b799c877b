"""Random programs of tensors, saved as models, have the results of the interpreter."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
import ocannl_onnx  # noqa: E402
from plugins.ocannl_onnx.tests.saved import code_of, run_elsewhere, run_reference  # noqa: E402
from tests.fuzz.author import ProgramLimits  # noqa: E402
from tests.fuzz.limits import Hang, limited  # noqa: E402
from tests.fuzz.programs import Program  # noqa: E402
from tests.fuzz.run import program_of  # noqa: E402
from tests.support.slow import slow  # noqa: E402

SCOPE = ProgramLimits(longest=30)
PROGRAMS = 30
SECONDS = 20


def _outcome(program: Program, path: Path) -> str:
    names: dict[str, Any] = {"oc": oc, "np": np}
    with warnings.catch_warnings(), oc.Session(seed=7, dtype="float64"):
        warnings.simplefilter("ignore")
        try:
            exec(compile(program.source(), "<program>", "exec"), names)
            results = {f"{name}_after": names[name] for name in program.roots}
            code = code_of([*results.values()])
            ctx = oc.Context("interp")
            routine = ctx.compile(code, keep=[names[step.name] for step in program.steps])
            nodes = code.resolve().nodes
            tensors = {leaf: names[leaf.name] for leaf in program.leaves}
            tensors = {leaf: t for leaf, t in tensors.items() if t.node in nodes}
            for leaf, tensor in tensors.items():
                ctx[tensor] = leaf.cells(tensor.info.dims)
            with limited(SECONDS):
                routine()
        except oc.OcannlError:
            return "refused by the core"
        except Hang:
            return "too large"
        if any(np.isnan(ctx[names[step.name]]).any() for step in program.steps):
            return "NaN"  # maxima elsewhere drop it
        here = [np.asarray(ctx[each]) for each in results.values()]
        inputs = {leaf.name: t for leaf, t in tensors.items() if t.is_placeholder}
        ocannl_onnx.save(path, results, inputs, ctx)
        cells = {name: np.asarray(ctx[tensor]) for name, tensor in inputs.items()}
    onnx.checker.check_model(str(path), full_check=True)
    is_empty = any(0 in info.dims for info in nodes.values())
    run = run_reference if is_empty else run_elsewhere  # onnxruntime crashes on some empty tensors
    return "agrees" if _agree(run(path, cells), here) else "differs"


def _agree(found: Any, expected: list[np.ndarray[Any, Any]]) -> bool:
    return all(
        np.shape(there) == here.shape and np.allclose(there, here, rtol=1e-9)
        for there, here in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("seed", [0, *slow(range(1, 8))])
def test_random_programs_have_the_same_results_elsewhere(seed: int, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for number in range(PROGRAMS):
        program = program_of(seed, number, SCOPE)
        outcome = _outcome(program, tmp_path / "model.onnx")
        assert outcome != "differs", program.source()
        outcomes[outcome] += 1
    assert outcomes["agrees"] > PROGRAMS / 2
