"""The survey and the workloads of `benchmarks`, and the plans of their kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import ocannl_core as oc
from ocannl_core.compile import driver
from ocannl_core.compile.saved_code import SavedCode
from ocannl_core.compile.stages import CompileRequest, OptimizedProgram
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from survey_cases import Case, all_cases  # noqa: E402
from survey_cases.compiled import arguments_of, compile_case  # noqa: E402, F401
from workloads import (  # noqa: E402
    block,
    convolutions,
    orderings,
    own,
    positions,
    products,
    recurrent,
    rows,
    training,
)
from workloads.functions import Function, TrainingStep  # noqa: E402

TARGET = Target(
    "wide",
    vector_bytes=64,
    vector_registers=32,
    has_fma=True,
    cache_bytes=(1 << 15, 1 << 20, 1 << 25),
)
CASES: dict[str, Case] = {case.name: case for case in all_cases()}
WORKLOADS: dict[str, Function | TrainingStep] = {
    work.name: work
    for module in (rows, positions, convolutions, training, block, products, orderings, recurrent)
    for work in module.workloads()
}


class _PlannedError(Exception):
    """A plan has been made, and no code is needed."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan


def _plan_alone(_request: CompileRequest, program: OptimizedProgram, *_rest: object) -> None:
    raise _PlannedError(plan_kernels(program.loops, TARGET).plan())


def plans_of(case: Case, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    """Yield the plans of a case at its first shape: forward, and with gradients."""
    for gradients in (False, True) if case.gradients else (False,):
        with oc.Session():
            compiles = partial(compile_case, case, case.arrays[0](), gradients, "cpu_c")
            yield plan_of(compiles, monkeypatch)


def plan_of_workload(work: Function | TrainingStep, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the plan of a workload, without code for it."""
    return plan_of(own.contenders(work, "cpu_c")[own.OWN], monkeypatch)


def plan_of(compiles: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the plan of the first routine that a function compiles, without code for it."""
    monkeypatch.setattr(driver, "find_saved", lambda *_: SavedCode())
    monkeypatch.setattr(driver, "generate", _plan_alone)
    with pytest.raises(_PlannedError) as planned:
        compiles()
    return planned.value.plan
