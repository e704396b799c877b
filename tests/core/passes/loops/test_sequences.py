"""Every pass, alone and in sequence, preserves the results of random programs, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.passes.loops.accesses import analyze_accesses
from ocannl_core.passes.loops.cse import eliminate_common_subexpressions
from ocannl_core.passes.loops.dead_stores import forward_fills, remove_dead_stores
from ocannl_core.passes.loops.decisions import allocate_scratch
from ocannl_core.passes.loops.fma_contraction import contract_to_fma
from ocannl_core.passes.loops.index_set_splitting import split_index_sets
from ocannl_core.passes.loops.licm import hoist_invariants
from ocannl_core.passes.loops.one_hot import gather_one_hot
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.testing.compare import assert_same
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import SOME_DTYPES
from tests.support.example_count import example_count
from tests.support.loop_programs import loop_programs

Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]
Pass = Callable[[LoopProgram], LoopProgram]

EXACT: dict[str, Pass] = {
    "simplify": simplify,
    "read one-hot": gather_one_hot,
    "forward fills": forward_fills,
    "hoist invariants": hoist_invariants,
    "hoist everything": partial(hoist_invariants, least_cost=1),
    "share subexpressions": eliminate_common_subexpressions,
    "share everything": partial(eliminate_common_subexpressions, least_saved=1),
    "split at guards": split_index_sets,
    "remove dead stores": remove_dead_stores,
}
FORMATS = {
    "common formats": SOME_DTYPES,
    "narrow floats": dtypes.NARROW,
    "all integers": (dtypes.uint8, dtypes.uint16, dtypes.int16, dtypes.int64, dtypes.uint64),
}


def assert_same_cells(interpret: Run, example: Example, found: LoopProgram) -> None:
    """Check a program against its original; only parameters may be unwritten."""
    before = interpret(example.program, example.arrays, example.indices)
    by_name = dict(zip((i.name for i in example.program.indices), example.indices, strict=True))
    after = interpret(found, example.arrays, [by_name[i.name] for i in found.indices])
    for node, cells in before.items():
        info = example.program.nodes[node]
        unwritten = np.zeros(info.buffer_dims, info.dtype.numpy)
        unwritten[...] = example.arrays.get(node, 0)
        assert_same(after.get(node, unwritten), cells, info.dtype, what=node.name)


@pytest.mark.parametrize("dtypes", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("run", EXACT.values(), ids=EXACT)
def test_a_pass_keeps_every_bit_and_every_invariant_and_has_nothing_left_to_do(
    interpret: Run, run: Pass, dtypes: tuple[dtypes.DType, ...]
) -> None:
    @settings(
        max_examples=example_count(13), deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(loop_programs(dtypes))
    def check(example: Example) -> None:
        found = run(example.program)
        verify(found)
        assert_same_cells(interpret, example, found)
        if run is simplify:
            assert simplify(found) is found

    check()


@settings(max_examples=example_count(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(loop_programs(max_nests=6))
def test_all_passes_in_sequence_keep_every_bit(interpret: Run, example: Example) -> None:
    found = example.program
    for run in (*EXACT.values(), *EXACT.values()):
        found = run(found)
        verify(found)
    facts = analyze_accesses(found).nodes.items()
    assigned = {node for node, each in facts if each.is_definitely_assigned}
    found = remove_dead_stores(allocate_scratch(found, found.params, assigned))
    verify(found)
    assert_same_cells(interpret, example, found)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(loop_programs(FORMATS["all integers"]))
def test_contraction_leaves_integers_alone(example: Example) -> None:
    assert contract_to_fma(example.program) is example.program


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(loop_programs((dtypes.float32, dtypes.float16)))
def test_contraction_keeps_every_invariant_and_has_nothing_left_to_do(example: Example) -> None:
    found = contract_to_fma(example.program)
    verify(found)
    assert contract_to_fma(found) is found
