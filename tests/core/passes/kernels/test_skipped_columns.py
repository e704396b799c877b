"""Row fusion without the columns behind the diagonal of a mask: bounds of loops, and results."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import For, LoopProgram
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.testing.compare import Array
from ocannl_core.testing.subject import subject_named
from tests.support.attention import (
    Sizes,
    attention_program,
    expected,
    expected_gradients,
    gradient_program,
    random_operands,
)
from tests.support.slow import long
from tests.support.survey import CASES, plans_of
from tests.support.verify_plans import verify

SMALL_CACHES = Target(
    "small",
    vector_bytes=16,
    vector_registers=16,
    has_fma=True,
    cache_bytes=(1 << 12, 1 << 13, 1 << 15),
)
"""A processor for which short sequences are divided into blocks of rows."""


def planned(program: LoopProgram, target: Target = SMALL_CACHES) -> Plan:
    plan = plan_kernels(program, target).plan()
    verify(plan)
    return plan


def ends(plan: Plan) -> int:
    """Return the number of loops that may end early."""
    kernels = (step for step in plan.steps if isinstance(step, Kernel))
    loops = (each for kernel in kernels for each in walk(kernel.body) if isinstance(each, For))
    return sum(each.bound is not None for each in loops)


def run(program: LoopProgram, plan: Plan, arrays: dict[TensorNode, Array]) -> dict[TensorNode, Any]:
    """Return the results of a plan by the interpreter, which fills new memory with NaN."""
    return subject_named("interp").run(program, arrays, (), lambda *_: plan)


def test_columns_that_a_causal_mask_hides_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [ends(plan) for plan in plans_of(CASES["attention"], monkeypatch)] == [0, 0]
    assert all(ends(plan) for plan in plans_of(CASES["attention, causal"], monkeypatch))


@pytest.mark.parametrize("keys", [40, 48, 49])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_blocks_of_rows_is_attention(keys: int, causal: bool) -> None:
    sizes = Sizes(1, 48, keys, 2, 8, 8)
    program = attention_program(sizes, causal=causal)
    plan = planned(program)
    assert bool(ends(plan)) == causal
    arrays, result = random_operands(program, sizes)
    found = run(program, plan, arrays)[result]
    by_name = {node.label[-1]: cells.astype(np.float32) for node, cells in arrays.items()}
    exact, bound = expected([by_name[each] for each in "qkv"], causal=causal, tiles=1)
    assert (abs(found - exact) <= bound).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [94, 100])
def test_gradients_by_blocks_of_rows_are_gradients(keys: int, causal: bool) -> None:
    sizes = Sizes(4, 100, keys, 2, 4, 4)  # several blocks of rows, and of columns
    program, names = gradient_program(sizes, causal=causal)
    target = replace(SMALL_CACHES, cache_bytes=(1 << 12, 1 << 14, 1 << 17))
    plan = planned(program, target)
    group = max((step.title for step in plan.steps if isinstance(step, Kernel)), key=len)
    assert {"k_grad", "v_grad"} <= set(re.findall("[kv]_grad", group))
    assert bool(ends(plan)) == causal
    random = np.random.default_rng(0)
    dims = {**sizes.dims, "g": (4, 100, 2, 4)}
    cells = {each: random.normal(size=dims[each]).astype(np.float32) for each in dims}
    found = run(program, plan, {names[each]: cells[each] for each in dims})
    for each, (exact, bound) in expected_gradients(cells, causal=causal, tiles=1).items():
        assert (abs(found[names[each]] - exact) <= bound).all(), each


Compare = Callable[[oc.Tensor, oc.Tensor], oc.Tensor]

MASKS: dict[str, tuple[Compare, Callable[[Any, Any], Any], bool]] = {
    "up to the row": (lambda t, s: oc.less_equal(t, s), lambda t, s: t <= s, True),
    "from the row on": (lambda t, s: oc.less_equal(s, t), lambda t, s: s <= t, False),
    "twice the row": (lambda t, s: oc.less_equal(t, 2 * s), lambda t, s: t <= 2 * s, False),
    "the row itself": (lambda t, s: oc.equal(t, s), lambda t, s: t == s, False),
}
"""Comparisons of a column and a row, their meaning, and whether they hide the last columns."""


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("is_kept", [False, True])
def test_products_with_masked_weights_are_right(name: str, is_kept: bool) -> None:
    compare, meaning, hides_last = MASKS[name]
    with oc.Session():
        q, k, v = (oc.placeholder(each, batch=[48], output=[2, 8]) for each in "qkv")
        columns = oc.require_shape(oc.primitives.offsets(dtype="int32"), "|_->")
        rows = oc.require_shape(oc.primitives.offsets(dtype="int32"), "_|->")
        scores = oc.einsum("s | h d; t | h d => s | t -> h", q, k)
        scores = oc.where(compare(columns, rows), scores, -np.inf)
        weights = oc.softmax(scores, logic="... | t -> ... => ... | 0 -> ...")
        result = oc.einsum("s | t -> h; t | h e => s | h e", weights, v)
        keep = [result, weights] if is_kept else [result]
        routine = oc.Context("interp").compile(oc.train.forward(result), keep=keep)
        program = routine._build.program.loops
    plan = planned(program)
    assert bool(ends(plan)) == (hides_last and not is_kept)
    random = np.random.default_rng(0)
    operands = {node: node.label[-1] for node in program.params if node.label[-1] in [*"qkv"]}
    arrays: dict[TensorNode, Array] = {
        node: random.normal(size=(48, 2, 8)).astype(np.float32) for node in operands
    }
    by_name = {operands[node]: cells for node, cells in arrays.items()}
    visible = meaning(np.arange(48), np.arange(48)[:, None])[:, None]
    exact = np.where(visible, np.einsum("shd,thd->sht", by_name["q"], by_name["k"]), -np.inf)
    exact = np.exp(exact - exact.max(-1, keepdims=True))
    exact /= exact.sum(-1, keepdims=True)
    for node, cells in run(program, plan, arrays).items():
        if node not in operands:
            is_result = cells.size == 48 * 2 * 8
            wanted = np.einsum("sht,the->she", exact, by_name["v"]) if is_result else exact
            np.testing.assert_allclose(cells.reshape(wanted.shape), wanted, rtol=0, atol=1e-5)


def test_products_of_zero_and_infinity_are_not_left_out() -> None:
    with oc.Session():
        q, k, v = (oc.placeholder(each, batch=[48], output=[2, 8]) for each in "qkv")
        columns = oc.require_shape(oc.primitives.offsets(dtype="int32"), "|_->")
        rows = oc.require_shape(oc.primitives.offsets(dtype="int32"), "_|->")
        scores = oc.einsum("s | h d; t | h d => s | t -> h", q, k)
        scores = oc.where(oc.less_equal(columns, rows), scores, -np.inf)
        weights = oc.softmax(scores, logic="... | t -> ... => ... | 0 -> ...")
        result = oc.einsum("s | t -> h; t | h e => s | h e", weights * scores, v)
        routine = oc.Context("interp").compile(oc.train.forward(result), keep=[result])
        program = routine._build.program.loops
    random = np.random.default_rng(0)
    arrays: dict[TensorNode, Array] = {
        node: random.normal(size=(48, 2, 8)).astype(np.float32)
        for node in program.params
        if node.label[-1] in [*"qkv"]
    }
    target = replace(SMALL_CACHES, cache_bytes=(1 << 12, 1 << 13, 1 << 16))
    plan = planned(program, target)
    assert len(plan.kernels) == 1
    found = run(program, plan, arrays)
    (cells,) = (each for node, each in found.items() if node not in arrays)
    assert np.isnan(cells).reshape(48, 16).all(axis=1).tolist() == [True] * 47 + [False]


@pytest.mark.parametrize("length", [512, *long([1024])])  # scores of 1024 positions are recomputed
def test_gradients_of_long_sequences_are_within_their_bounds(length: int) -> None:
    pytest.importorskip("ocannl_cpu_c")
    random = np.random.default_rng(0)
    cells = {each: random.normal(size=(1, length, 8, 64)).astype(np.float32) for each in "qkvg"}
    with oc.Session():
        q, k, v = (
            oc.tensor(cells[each], batch_axes=2, label=each, requires_grad=True) for each in "qkv"
        )
        y = oc.nn.attention(q * 0.125, k, v, causal=True)
        loss = oc.einsum("...|... => 0", y * oc.tensor(cells["g"], batch_axes=2))
        context = oc.Context("cpu_c")
        gradients = [each.grad for each in (q, k, v) if each.grad is not None]
        step = context.compile(oc.train.grad_update(loss), keep=[loss, *gradients])
        for _ in range(2):  # the second run finds the cells of the first one in memory
            step()
        found = [context[each] for each in gradients]
    exact = expected_gradients(cells, causal=True, tiles=1)
    for each, gradient in zip(("dq", "dk", "dv"), found, strict=True):
        wanted, bound = exact[each]
        assert (abs(gradient - wanted) <= bound).all(), each
