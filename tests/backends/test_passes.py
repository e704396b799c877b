"""Programs after all passes give the same bits on every backend as before any on the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import ocannl_core.base.settings
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.loops.cse import eliminate_common_subexpressions
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.licm import hoist_invariants
from ocannl_core.passes.loops.pipeline import core_passes, run_passes
from ocannl_core.testing.compare import Array, assert_same
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.loop_programs import loop_programs


def optimized(program: LoopProgram) -> LoopProgram:
    """Return a program after all exact passes, with sharing and code motion."""
    stored = dict.fromkeys(program.params)
    with ocannl_core.base.settings.overrides(contract=False):
        found = run_passes(program, core_passes(Decisions(stored)))
    return eliminate_common_subexpressions(hoist_invariants(found, least_cost=1), least_saved=1)


def cells(target: str, program: LoopProgram, example: Example) -> dict[TensorNode, Array]:
    by_name = dict(zip((i.name for i in example.program.indices), example.indices, strict=True))
    indices = [by_name[index.name] for index in program.indices]
    return subject_named(target).run(program, example.arrays, indices)


def test_optimized_random_programs_give_the_bits_of_the_original(target: str) -> None:
    pytest.importorskip("ocannl_interp")

    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(loop_programs())
    def check(example: Example) -> None:
        program = optimized(example.program)
        verify(program)
        after = cells(target, program, example)
        for node, before in cells("interp", example.program, example).items():
            info = example.program.nodes[node]
            unwritten = np.zeros(info.buffer_dims, info.dtype.numpy)
            unwritten[...] = example.arrays.get(node, 0)
            assert_same(after.get(node, unwritten), before, info.dtype, what=node.name)

    check()
