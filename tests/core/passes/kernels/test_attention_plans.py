"""Plans of attention with any extents keep the invariants of the kernel language, and are right."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import finish_for, nest_plans, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count
from tests.support.verify_plans import verify


def blocks(threads: int, **others: int | bool) -> Target:
    own = ThreadBlocks(4 * threads, threads, 48 << 10, 128, vector_bytes=16, **others)
    return Target("blocks", has_fma=True, thread_blocks=own)


def processor(near: int) -> Target:
    return Target("cpu", vector_bytes=64, vector_registers=32, cache_bytes=(near, 1, 1))


TARGETS = {
    "warps": blocks(256, subgroup=32, processors=64, has_shuffles=True),
    "one processor": blocks(64, subgroup=32, has_shuffles=True),
    "single threads": blocks(4),
    "small cache": processor(256),
    "cache": processor(1 << 12),
}
EXTENTS = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 16, 31, 40, 41, 64))


def attention(queries: int, keys: int, cells: int, *, has_gradients: bool) -> LoopProgram:
    """Return the program of attention, or that of its gradients."""
    with oc.Session():
        make = oc.param if has_gradients else oc.placeholder
        q = make("q", output=[queries, cells])
        k, v = (make(name, output=[keys, cells]) for name in "kv")
        scores = oc.einsum("q,d; k,d => q,k", q, k)
        y = oc.einsum("q,k; k,d => q,d", oc.softmax(scores), v)
        loss = oc.einsum("... => 0", y * y)
        code = oc.train.grad_update(loss) if has_gradients else oc.train.forward(y)
        return oc.Context("interp").compile(code)._build.program.loops


def verified(plan: Plan, target: Target) -> Plan:
    """Return a plan scheduled for a target, after verifying the plan behind each pass."""
    for _, nests in nest_plans(plan, target):
        verify(nests)
    found = schedule_for(plan, target, finish_for(target)).plan()
    verify(found)
    return found


@settings(
    max_examples=example_count(6),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    queries=EXTENTS,
    keys=EXTENTS,
    cells=st.sampled_from((1, 2, 3, 8, 9)),
    has_gradients=st.booleans(),
    target=st.sampled_from(list(TARGETS)),
)
def test_plans_of_attention_are_verified_behind_every_pass(
    queries: int, keys: int, cells: int, has_gradients: bool, target: str
) -> None:
    program = attention(queries, keys, cells, has_gradients=has_gradients)
    verified(split_kernels(program), TARGETS[target])


def test_the_nests_of_a_row_group_have_variables_of_their_own() -> None:
    random = np.random.default_rng(0)
    for queries, keys, cells in ((7, 40, 1), (1, 40, 1), (3, 1, 5), (2, 41, 3)):
        program = attention(queries, keys, cells, has_gradients=False)
        arrays = {
            node: random.normal(size=program.nodes[node].dims).astype(np.float32)
            for node in program.params
        }
        expected = subject_named("interp").run(program, arrays)
        for target in TARGETS.values():
            found = subject_named("interp").run(
                program, arrays, (), lambda plan, _, target=target: verified(plan, target)
            )
            for node in program.params:
                np.testing.assert_allclose(found[node], expected[node], rtol=1e-5, atol=1e-6)
