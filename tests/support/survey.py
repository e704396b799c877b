"""The cases of the survey in `benchmarks`, and the plans of their kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ocannl_core as oc
from ocannl_core.compile import driver
from ocannl_core.compile.dump_folder import Dump
from ocannl_core.compile.saved_code import SavedCode
from ocannl_core.compile.stages import CompileRequest, OptimisedProgram
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from survey_cases import Case, all_cases  # noqa: E402
from survey_cases.compiled import arguments_of, compile_case  # noqa: E402, F401

TARGET = Target(
    "wide",
    vector_bytes=64,
    vector_registers=32,
    has_fma=True,
    cache_bytes=(1 << 15, 1 << 20, 1 << 25),
)
CASES: dict[str, Case] = {case.name: case for case in all_cases()}


class _PlannedError(Exception):
    """A plan has been made, and no code is needed."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


def _plan_alone(_request: CompileRequest, found: OptimisedProgram, _dump: Dump) -> None:
    raise _PlannedError(plan_kernels(found.optimised, TARGET).plan())


def plans_of(case: Case, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    """Yield the plans of a case at its first shape: forward, and with gradients."""
    monkeypatch.setattr(driver, "find_saved", lambda _: SavedCode())
    monkeypatch.setattr(driver, "generate", _plan_alone)
    for gradients in (False, True) if case.gradients else (False,):
        with oc.Session(), pytest.raises(_PlannedError) as planned:
            compile_case(case, case.arrays[0](), gradients, "cpu_c")
        yield planned.value.plan
