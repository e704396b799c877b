"""Matrices of row groups that later groups compute again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import LoopAxis, Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, with_steps
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Binary, Load, LoopProgram, Store
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import nest_plans, plan_kernels
from ocannl_core.passes.kernels.rows.choose import group_rows
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.compare import Array
from ocannl_core.testing.subject import subject_named
from tests.core.passes.kernels.test_skipped_columns import SMALL_CACHES, ends
from tests.support.attention import Sizes, expected_gradients, gradient_program
from tests.support.verify_plans import verify

CACHES = replace(SMALL_CACHES, cache_bytes=(1 << 12, 1 << 14, 1 << 18))
"""A processor for which matrices of 100 rows and columns, 8 times, are beyond all caches."""
SIZES = Sizes(4, 100, 100, 2, 8, 8)


def planned(program: LoopProgram, target: Target = CACHES) -> Plan:
    plan = plan_kernels(program, target).plan()
    verify(plan)
    return plan


def matrices(plan: Plan, rows: int = 100, columns: int = 100) -> list[TensorNode]:
    """Return the nodes of a routine with axes of all rows and all columns."""
    dims = sorted((rows, columns))
    return [n for n in plan.scratch if [d for d in sorted(plan.nodes[n].dims) if d > 8] == dims]


def run(program: LoopProgram, plan: Plan, arrays: dict[TensorNode, Array]) -> dict[TensorNode, Any]:
    """Return the results of a plan by the interpreter, which fills new memory with NaN."""
    return subject_named("interp").run(program, arrays, (), lambda *_: plan)


def repeated(plan: Plan) -> int:
    """Return the number of nests that run again."""
    return sum(each.title.count("again ") for each in plan.kernels)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_store_no_matrix(causal: bool) -> None:
    sizes = Sizes(4, 60, 60, 2, 4, 4)
    program, names = gradient_program(sizes, causal=causal)
    plan = planned(program, replace(CACHES, cache_bytes=(1 << 12, 1 << 14, 1 << 17)))
    assert not matrices(plan, 60, 60)
    assert repeated(plan) == 3  # scores, exponentials and weights
    random = np.random.default_rng(0)
    cells = {each: random.normal(size=(4, 60, 2, 4)).astype(np.float32) for each in "qkvg"}
    found = run(program, plan, {names[each]: cells[each] for each in "qkvg"})
    for each, (exact, bound) in expected_gradients(cells, causal=causal, tiles=1).items():
        assert (abs(found[names[each]] - exact) <= bound).all(), each


def test_matrices_that_a_cache_holds_are_stored() -> None:
    program, _ = gradient_program(SIZES)
    plan = planned(program, replace(CACHES, cache_bytes=(1 << 12, 1 << 14, 1 << 21)))
    assert repeated(plan) == 0


def test_a_mask_hides_columns_of_recomputed_matrices() -> None:
    hidden, visible = (
        planned(gradient_program(SIZES, causal=causal)[0]) for causal in (True, False)
    )
    assert ends(visible) == 0
    # forward: scores, exponentials, weights, product; gradients: those but one, four products and
    # a function
    assert ends(hidden) >= 8


def test_matrices_of_long_products_are_stored() -> None:
    for width, is_stored in ((8, False), (256, True)):
        program, _ = gradient_program(Sizes(4, 100, 100, 2, width, 8))
        assert bool(matrices(planned(program))) == is_stored


def attention(x: oc.Tensor, **options: Any) -> oc.Tensor:
    return x + oc.nn.multi_head_attention(x, heads=2, width=4, causal=True, **options)


MODELS: dict[str, Callable[[oc.Tensor], oc.Tensor]] = {
    "dropout": lambda x: attention(x, dropout=0.25),
    "groups of heads": lambda x: oc.nn.multi_head_attention(x, heads=4, kv_heads=2, width=4) + x,
    "rotary positions": lambda x: attention(x, rotary_base=100.0),
    "two layers": lambda x: attention(attention(x)),
    "repeated layers": lambda x: oc.nn.repeat_layers(attention, x, layers=2, keep="carry"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_with_recomputed_matrices_have_the_gradients_of_plain_loops(name: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[4, 100], output=[8])
        loss = oc.einsum("...|... => 0", oc.tanh(MODELS[name](x)))
        gradients = [each.grad for each in loss.params if each.grad is not None]
        step = oc.Context("interp").compile(oc.train.grad_update(loss), keep=[loss, *gradients])
        program = step._build.program.loops
    plan = planned(program)
    assert repeated(plan) >= 1
    random = np.random.default_rng(0)
    arrays: dict[TensorNode, Array] = {
        node: 0.3 * random.normal(size=info.buffer_dims).astype(np.float32)
        if info.dtype.is_float
        else np.zeros(info.buffer_dims, info.dtype.numpy)
        for node, info in program.nodes.items()
        if node in program.params
    }
    found = run(program, plan, dict(arrays))
    expected = subject_named("interp").run(program, dict(arrays), ())
    assert found.keys() == expected.keys()
    for node, cells in found.items():
        if program.nodes[node].dtype.is_float:
            np.testing.assert_allclose(
                cells, expected[node], rtol=1e-4, atol=1e-4, err_msg=str(node)
            )


def before_groups(program: LoopProgram) -> NestPlan:
    """Return the plan of a program before its rows are grouped."""
    plans = dict(nest_plans(split_kernels(program), CACHES))
    return plans["rematerialize"]


def change(plan: NestPlan, node: TensorNode, since: str) -> NestPlan:
    """Return a plan in which the numbers of a node change before the first step with a title."""
    at = next(at for at, step in enumerate(plan.steps) if since in step.title)
    axes = [
        LoopAxis(name, fresh_var(), 0, extent)
        for name, extent in zip("ijkl", plan.nodes[node].dims, strict=True)
    ]
    cell = Load(node, tuple(VarIndex(axis.var) for axis in axes), float32)
    store = Store(node, cell.indices, Binary(BinaryOp.ADD, cell, cell, float32))
    step = NestKernel(Nest(tuple(axes), None, (store,)), "change")
    return with_steps(plan, [*plan.steps[:at], step, *plan.steps[at:]])


def again(plan: NestPlan) -> int:
    """Return the number of nests that run again after rows are grouped."""
    return sum(step.title.count("again ") for step in group_rows(plan, CACHES).steps)


@pytest.mark.parametrize(("name", "count"), [("g", 3), ("k", 0), ("q", 3)])
def test_a_matrix_whose_operands_change_is_stored(name: str, count: int) -> None:
    """Scores are products of `k` and of a multiple of `q`, which is stored."""
    program, names = gradient_program(SIZES)
    plan = before_groups(program)
    assert again(plan) == 3
    assert again(change(plan, names[name], "div_grad")) == count


def test_steps_stay_behind_the_check_of_their_positions() -> None:
    """They are small, and attention is beyond the caches: the others would move to the front."""
    with oc.Session():
        q, k, v = (
            oc.tensor(np.zeros((4, 100, 2, 8)), batch_axes=2, label=name, requires_grad=True)
            for name in "qkv"
        )
        rows = oc.take(oc.tensor(np.ones((8, 4))), oc.placeholder("ids", batch=[8], dtype="int32"))
        shares = oc.softmax(oc.tanh(rows), logic="b | c => b | 0") * rows
        y = oc.nn.attention(q, k, v)
        loss = oc.einsum("...|... => 0", y * y) + oc.einsum("...|... => 0", shares)
        gradients = [each.grad for each in (q, k, v) if each.grad is not None]
        step = oc.Context("interp").compile(oc.train.grad_update(loss), keep=[loss, *gradients])
        plan = before_groups(step._build.program.loops)
    steps = group_rows(plan, CACHES).steps
    checks = [isinstance(each, Kernel) and "CheckPositions" in repr(each.body) for each in steps]
    reads = ["take" in each.title and not check for each, check in zip(steps, checks, strict=True)]
    assert checks.count(True) == 1
    assert checks.index(True) < reads.index(True)


def test_weights_that_are_kept_are_stored() -> None:
    with oc.Session():
        q, k, v = (
            oc.tensor(np.zeros((4, 100, 2, 8)), batch_axes=2, label=name, requires_grad=True)
            for name in "qkv"
        )
        scores = oc.einsum("b s | h d; b t | h d => b s | h t", q, k)
        weights = oc.softmax(scores, logic="... | ... t => ... | ... 0")
        result = oc.einsum("b s | h t; b t | h d => b s | h d", weights, v)
        loss = oc.einsum(
            "...|... => 0", result * oc.placeholder("g", batch=[4, 100], output=[2, 8])
        )
        code = oc.train.grad_update(loss)
        gradients = [each.grad for each in (q, k, v) if each.grad is not None]
        for kept in ([], [weights]):
            step = oc.Context("interp").compile(code, keep=[loss, *gradients, *kept])
            assert repeated(planned(step._build.program.loops)) == (2 if kept else 3)
