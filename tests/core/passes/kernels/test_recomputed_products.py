"""Products that recompute their factors: gradients through a matrix that no kernel stores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Barrier, For, LoopProgram
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.testing.compare import Array
from ocannl_core.testing.subject import subject_named
from tests.core.passes.kernels.test_flash_attention import DEVICES, SMALL, device, planned
from tests.support.attention import Sizes, expected_gradients, gradient_program
from tests.support.verify_plans import verify


def matrices(plan: Plan, rows: int, columns: int) -> list[TensorNode]:
    """Return the nodes of a routine with axes of rows and of columns."""
    return [n for n in plan.scratch if {rows, columns} <= set(plan.nodes[n].dims)]


def tile_loops(plan: Plan) -> list[For]:
    """Return the loops over tiles of columns: those with barriers in them."""
    return [
        each
        for step in plan.steps
        if isinstance(step, Kernel) and not any("partial" in n.label for n in step.arguments)
        for each in walk(step.body)
        if isinstance(each, For) and sum(isinstance(s, Barrier) for s in each.body.stmts) == 3
    ]


def run(program: LoopProgram, arrays: dict[TensorNode, Array], name: str) -> dict:
    """Return the cells of parameters after the kernels for a device, run by the interpreter."""

    def schedule(plan: Plan, runs_on: Target) -> Plan:
        found = planned(program, DEVICES[name])
        verify(found)
        return found

    return subject_named("interp").run(program, arrays, (), schedule)


def check(sizes: Sizes, name: str, *, causal: bool, seed: int = 0) -> None:
    """Assert that gradients by the kernels for a device are within their bounds."""
    program, nodes = gradient_program(sizes, causal=causal)
    random = np.random.default_rng(seed)
    cells = {
        each: (2 * random.normal(size=program.nodes[nodes[each]].dims)).astype(np.float32)
        for each in "qkvg"
    }
    found = run(program, {nodes[each]: cells[each] for each in "qkvg"}, name)
    for each, (exact, bound) in expected_gradients(cells, causal=causal, tiles=sizes.keys).items():
        assert (abs(found[nodes[each]].astype(np.float64) - exact) <= bound).all(), each


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_store_no_matrix_of_queries_and_keys(causal: bool) -> None:
    program, _ = gradient_program(Sizes(2, 12, 20, 3, 8, 8), causal=causal)
    plan = planned(program)
    assert len(tile_loops(plan)) == 4  # forward, and three gradients
    assert not matrices(plan, 12, 20)
    verify(plan)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_by_tiles_are_gradients(name: str, causal: bool) -> None:
    check(Sizes(1, 9, 11, 2, 3, 4), name, causal=causal)


@settings(
    max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    sizes=st.builds(
        Sizes,
        st.sampled_from([1, 2]),
        st.sampled_from([1, 2, 7, 17]),
        st.sampled_from([1, 2, 5, 17]),
        st.sampled_from([1, 2]),
        st.sampled_from([1, 3, 4, 8]),
        st.sampled_from([1, 4, 5]),
    ),
    causal=st.booleans(),
    name=st.sampled_from(sorted(DEVICES)),
)
def test_gradients_of_any_extents_are_right(sizes: Sizes, causal: bool, name: str) -> None:
    check(sizes, name, causal=causal)


def test_tiles_behind_the_diagonal_are_left_out_of_gradients() -> None:
    for causal in (False, True):
        program, _ = gradient_program(Sizes(1, 64, 64, 1, 4, 4), causal=causal)
        loops = tile_loops(planned(program))
        assert len(loops) == 4
        assert all((loop.bound is not None) == causal for loop in loops)


def test_matrices_that_a_cache_holds_are_stored() -> None:
    program, _ = gradient_program(Sizes(1, 16, 24, 2, 4, 4))
    nbytes = 5 * 4 * 2 * 16 * 24  # scores, exponentials, weights, and two gradients
    for size, is_stored in ((nbytes - 1, False), (nbytes, True)):
        target = replace(device(SMALL), cache_bytes=(size,))
        assert bool(matrices(plan_kernels(program, target).plan(), 16, 24)) == is_stored


@pytest.mark.parametrize(
    ("length", "width", "is_stored"),
    [(16, 8, False), (16, 16, True), (400, 64, False), (400, 320, True)],
)
def test_matrices_of_long_products_are_stored(length: int, width: int, is_stored: bool) -> None:
    """They are no larger than their factors, or recomputing them takes longer than loading them."""
    large = replace(SMALL, local_bytes=1 << 22, registers=1 << 12)
    program, _ = gradient_program(Sizes(1, length, 2 * length, 1, width, 4))
    plan = plan_kernels(program, device(large)).plan()
    assert bool(matrices(plan, length, 2 * length)) == is_stored


def test_weights_that_are_kept_are_stored() -> None:
    with oc.Session():
        x = oc.param("x", output=[8], input=[6])
        y = oc.placeholder("y", batch=[12], output=[8])
        z = oc.placeholder("z", batch=[9], output=[6])
        weights = oc.softmax(oc.einsum("s|d; t|d => s|t", x @ z, y), logic="...|... => ...|0")
        result = oc.einsum("s|t; t|d => s|d", weights, y)
        loss = oc.einsum("...|... => 0", result * result)
        code = oc.train.grad_update(loss)
        for kept in ([], [weights]):
            step = oc.Context("interp").compile(code, keep=[loss, x.grad, *kept])
            plan = planned(step._build.program.loops)
            assert bool(matrices(plan, 9, 12)) == bool(kept)


LENGTH, WIDTH = 11, 4


def sequence(name: str) -> oc.Tensor:
    """Return a sequence that depends on a parameter."""
    x = oc.placeholder(name, batch=[2, LENGTH], output=[WIDTH])
    return oc.param("w_" + name, output=[1, WIDTH], input=[WIDTH]) @ x


def to_itself() -> oc.Tensor:
    x = sequence("x")
    return oc.nn.attention(x, x, x, causal=True)


def shared_values() -> oc.Tensor:
    q, k = sequence("q"), sequence("k")
    return oc.nn.attention(q, k, k)


def applied_twice() -> oc.Tensor:
    q, k, v = (sequence(name) for name in "qkv")
    return oc.nn.attention(oc.nn.attention(q, k, v), k, v, causal=True)


def same_queries() -> oc.Tensor:
    q, k, v = (sequence(name) for name in "qkv")
    return oc.nn.attention(q, k, v) * oc.nn.attention(q, v, k)


def two_uses() -> oc.Tensor:
    q, k, v = (sequence(name) for name in "qkv")
    y = oc.nn.attention(q, k, v)
    first, second = (oc.param(name, output=[3], input=[1, WIDTH]) for name in ("w_a", "w_b"))
    return (first @ y) * oc.tanh(second @ y)


def function_of_result() -> oc.Tensor:
    """The result itself is not stored, so that sums over columns are not sums over cells."""
    q, k, v = (sequence(name) for name in "qkv")
    return oc.tanh(oc.nn.attention(q, k, v))


def with_residual() -> oc.Tensor:
    """One kernel adds to the gradient of `y`, and stores a function of it."""
    x, z = sequence("x"), sequence("q")
    y = oc.nn.attention(x, z, x, causal=True) + x
    return oc.nn.attention(y, oc.tanh(y), z)


def without_statistics() -> oc.Tensor:
    q, k, v = (sequence(name) for name in "qkv")
    scores = oc.einsum("... s | h d; ... t | h d => ... s | t -> h", q, k)
    return oc.einsum("... s | t -> h; ... t | h e => ... s | h e", oc.tanh(scores), v)


def gradients_of_queries() -> oc.Tensor:
    """Nothing but the recomputed products reads the scaled queries."""
    k, v = (oc.placeholder(name, batch=[2, LENGTH], output=[1, WIDTH]) for name in "kv")
    return oc.nn.attention(oc.tanh(sequence("q")) * 0.5, k, v)


def masked() -> oc.Tensor:
    q, k, v = (sequence(name) for name in "qkv")
    return oc.nn.attention(q, k, v, oc.nn.causal_mask(LENGTH))


def with_dropout() -> oc.Tensor:
    q, k, v = (sequence(name) for name in "qkv")
    return oc.nn.attention(q, k, v, dropout=0.3)


def grouped() -> oc.Tensor:
    x = oc.placeholder("q", batch=[2, LENGTH], output=[WIDTH])
    q = oc.param("w_q", output=[1, 3, WIDTH], input=[WIDTH]) @ x
    return oc.nn.attention(q, sequence("k"), sequence("v"), grouped=True)


RECOMPUTED = {
    "to itself": (to_itself, True),
    "shared values": (shared_values, True),
    "applied twice": (applied_twice, True),
    "same queries": (same_queries, False),
    "two uses": (two_uses, True),
    "function of the result": (function_of_result, False),
    "with residual": (with_residual, False),
    "without statistics": (without_statistics, True),
    "gradients of queries": (gradients_of_queries, True),
    "masked": (masked, True),
    "with dropout": (with_dropout, False),
    "grouped": (grouped, False),
}


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("name", RECOMPUTED)
def test_gradients_of_structures_are_those_of_separate_kernels(name: str, updates: bool) -> None:
    make: Callable[[], oc.Tensor]
    make, is_recomputed = RECOMPUTED[name]
    with oc.Session():
        y = make()
        loss = oc.einsum("...|...->... => 0", y * y)
        code = oc.train.grad_update(loss)
        if updates:
            code += oc.train.sgd_update(loss, learning_rate=0.1)
        gradients = [each.grad for each in loss.params if each.grad is not None]
        program = oc.Context("interp").compile(code, keep=[loss, *gradients])._build.program.loops
    plan = planned(program)
    verify(plan)
    stored = [n for n in plan.scratch if plan.nodes[n].dims.count(LENGTH) > 1]
    assert bool(stored) != is_recomputed
    random = np.random.default_rng(1)
    arrays: dict[TensorNode, Array] = {
        node: random.normal(size=program.nodes[node].dims).astype(np.float32)
        for node in program.params
        if node.label[0][0] in "qkvxw" and node.label[-1] != "grad"
        if program.nodes[node].dtype.is_float
    }
    assert arrays
    before = subject_named("interp").run(program, arrays)
    after = run(program, arrays, "shuffles")
    for node in program.params:
        if program.nodes[node].dtype.is_float:
            np.testing.assert_allclose(
                after[node], before[node], rtol=1e-4, atol=1e-4, err_msg=str(node.label)
            )


@pytest.mark.parametrize("name", RECOMPUTED)
def test_results_of_structures_are_those_of_separate_kernels(name: str) -> None:
    with oc.Session():
        y = RECOMPUTED[name][0]()
        program = oc.Context("interp").compile(oc.train.forward(y))._build.program.loops
    random = np.random.default_rng(1)
    arrays: dict[TensorNode, Array] = {
        node: random.normal(size=program.nodes[node].dims).astype(np.float32)
        for node in program.params
        if node.label[0][0] in "qkvxw" and program.nodes[node].dtype is float32
    }
    before = subject_named("interp").run(program, arrays)
    after = run(program, arrays, "shuffles")
    for node in arrays.keys() | {y.node}:
        np.testing.assert_allclose(after[node], before[node], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("function", ["tanh", "relu"])
def test_operands_that_an_update_changes_are_read_before_it(function: str, updates: bool) -> None:
    """Each gradient's kernel updates its parameter, so later ones cannot recompute products of it."""
    extents = {"q": 12, "k": 20, "v": 20}
    with oc.Session():
        q, k, v = parameters = [oc.param(name, output=[n, 4]) for name, n in extents.items()]
        weights = getattr(oc, function)(oc.einsum("|s,d; |t,d => |s,t", q, k))
        y = oc.einsum("|s,t; |t,e => |s,e", weights, v)
        loss = oc.einsum("|s,e => 0", y * y)
        code = oc.train.grad_update(loss)
        if updates:
            code += oc.train.sgd_update(loss, learning_rate=0.01)
        kept = [loss, *(each.grad for each in parameters)]
        program = oc.Context("interp").compile(code, keep=kept)._build.program.loops
    plan = planned(program)
    verify(plan)
    assert bool(matrices(plan, 12, 20)) == updates
    random = np.random.default_rng(0)
    arrays: dict[TensorNode, Array] = {
        node: random.normal(size=program.nodes[node].dims).astype(np.float32)
        for node in program.params
        if node.label[-1] in extents
    }
    before = subject_named("interp").run(program, arrays)
    after = run(program, arrays, "shuffles")
    for node in program.params:
        np.testing.assert_allclose(after[node], before[node], rtol=1e-4, atol=1e-3)
