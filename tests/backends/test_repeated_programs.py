"""Programs of equal parts: the code of parts that are compiled once is that of parts by themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.templates import separate_forms
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.pipeline import core_passes, join_local, run_passes
from ocannl_core.testing.compare import Array, assert_same
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count
from tests.support.repeated_programs import repeated_programs


def optimized(program: LoopProgram) -> LoopProgram:
    return run_passes(program, join_local(core_passes(Decisions(dict.fromkeys(program.params)))))


def code(target: str, program: LoopProgram) -> str:
    """Return the code of a program after all passes."""
    subject = subject_named(target)
    stream = plan_kernels(optimized(program), subject.target)
    return subject.backend.generate(stream, subject.target).text


def test_random_programs_of_equal_parts_have_the_code_of_separate_parts(target: str) -> None:
    @settings(
        max_examples=example_count(20),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(repeated_programs())
    def check(example: Example) -> None:
        shared = code(target, example.program)
        with separate_forms():
            assert shared == code(target, example.program)

    check()


def test_random_programs_of_equal_parts_have_the_bits_of_separate_parts(target: str) -> None:
    pytest.importorskip("ocannl_interp")

    @settings(
        max_examples=example_count(10),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(repeated_programs())
    def check(example: Example) -> None:
        with separate_forms():
            before = cells("interp", optimized(example.program), example)
        after = cells(target, optimized(example.program), example)
        for node, wanted in before.items():
            info = example.program.nodes[node]
            assert_same(after[node], wanted, info.dtype, what=node.name)

    check()


def cells(target: str, program: LoopProgram, example: Example) -> dict[TensorNode, Array]:
    by_name = dict(zip((i.name for i in example.program.indices), example.indices, strict=True))
    indices = [by_name[index.name] for index in program.indices]
    found = subject_named(target).run(program, example.arrays, indices)
    return {node: np.array(each) for node, each in found.items()}
