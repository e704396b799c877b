"""Every kernel of the conformance suite compiles for three generations of devices, without one.

The results that the suite compares are those of the interpreter here; emulated devices have a run of
their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from ocannl_core.backend.protocols import Executable, Source
from ocannl_core.codegen.text.routine_source import RoutineSource
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.subject import Scheduler, Subject, keep_plan, subject_named
from ocannl_cuda import compilers
from ocannl_cuda.compilers import Missing
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.source import generate

ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")
"""Ampere, Hopper and Blackwell."""
TARGET = Target(
    "cuda", thread_blocks=ThreadBlocks(1024, 256, 227 << 10, 128, 32, 132, 16, has_shuffles=True)
)
COMPILER = compilers.search()

pytestmark = pytest.mark.skipif(
    isinstance(COMPILER, Missing) or "CUDA_COMPILE_ALL" not in os.environ,
    reason="minutes, and a compiler of CUDA C++: run by `make cuda-emulated`",
)


@dataclass(frozen=True, slots=True)
class CompiledAsWell(Subject):
    """The interpreter, which compiles each program as CUDA C++ first."""

    def generate(self, program: LoopProgram, schedule: Scheduler = keep_plan) -> Source:
        return generate(KernelStream.of(schedule(split_kernels(program), TARGET)))

    def compile(self, program: LoopProgram, schedule: Scheduler = keep_plan) -> Executable:
        plain = self.generate(program, schedule)
        assert isinstance(plain, RoutineSource)
        assert not isinstance(COMPILER, Missing)
        planned = generate(plan_kernels(program, TARGET))
        # without a schedule, kernels have no instructions of one generation
        for source, architectures in ((plain, ARCHITECTURES[:1]), (planned, ARCHITECTURES)):
            if source.kernels:
                for architecture in architectures:
                    COMPILER.compile(DIALECT.unit(source.kernels), architecture, "kernels.cu")
        # the method of the base class would generate the code of this one
        interpreter = subject_named("interp")
        return interpreter.compile(program, schedule)


class TestCompiles(BackendConformance):
    oracle_name = "interp"

    @pytest.fixture
    def target(self) -> str:
        return "interp"

    @pytest.fixture
    def subject(self) -> Subject:
        interpreter = subject_named("interp")
        return CompiledAsWell(interpreter.backend, interpreter.target)
