"""Gradients within a memory budget: those without, in the memory of the plan."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.passes.loops.recompute_in_budget import recompute_within_budget

rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(2, 6, 6, 2)).astype(np.float32)
X = rng.normal(size=(8, 16)).astype(np.float32)
IDS = rng.integers(0, 5, (2, 8))
Build = Callable[[], oc.Tensor]


def deep_perceptron() -> oc.Tensor:
    x = oc.tensor(X, batch_axes=1)
    for _ in range(8):
        x = oc.tanh(nn.dense(x, output=[16]))
    return oc.mean(x * x)


def residual_layers() -> oc.Tensor:
    x = oc.tensor(X, batch_axes=1)
    for _ in range(4):
        x = x + oc.tanh(nn.dense(nn.layer_norm(x), output=[16]))
    return oc.mean(x * x)


def convolutions() -> oc.Tensor:
    x = oc.tensor(IMAGES, batch_axes=1)
    for _ in range(4):
        y = nn.conv(x, axes=2, channels=2)
        x = x + oc.tanh(nn.batch_norm(y, shape="...|h, w, ..c..", features="..c.."))
    return oc.mean(x * x)


def layers() -> oc.Tensor:
    ids = oc.tensor(IDS, batch_axes=2, dtype="int32")
    model = nn.gpt(vocabulary=5, layers=4, heads=2, width=4, length=8, dropout=0.1)
    return nn.cross_entropy(model(ids), ids)


def recurrent() -> oc.Tensor:
    outputs, _ = nn.gru(oc.tensor(X[:, None], batch_axes=2), width=32)
    return oc.mean(outputs * outputs)


def wide_steps() -> oc.Tensor:
    """Return the loss of a loop whose steps need more memory than their results."""
    into, out = (oc.param(n, output=[m], input=[k]) for n, m, k in (("u", 64, 4), ("v", 4, 64)))

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        for _ in range(3):
            h = oc.tanh(out @ oc.tanh(into @ (h + x)))
        return h, h

    xs = oc.tensor(X.reshape(4, 8, 4)[:3], batch_axes=2)
    outputs, _ = oc.scan(step, 0.0, xs)
    return oc.mean(outputs * outputs)


def gradients(build: Build, backend: str, budget: int | str | None) -> tuple[int, list[Any]]:
    """Return the bytes of the routine's own memory, the loss, and the gradients."""
    with oc.Session(seed=3), oc.settings.overrides(memory_budget=budget):
        loss = build()
        ctx = oc.Context(backend)
        step = ctx.compile(oc.train.grad_update(loss))
        ctx.init_params(loss)
        step()
        cells = [ctx[loss], *(ctx[p.grad] for p in loss.params)]
        return step.memory_plan.nbytes, cells


@pytest.mark.parametrize(
    ("build", "share"),
    [
        (deep_perceptron, 0.4),
        (convolutions, 0.8),
        (layers, 0.85),
        (recurrent, 0.8),
        (wide_steps, 0.7),
    ],
)
def test_gradients_fit_a_budget(build: Build, share: float) -> None:
    whole, expected = gradients(build, "cpu_c", None)
    needed, found = gradients(build, "cpu_c", int(whole * share))
    assert needed <= 1.05 * whole * share  # kernels are fused and aligned after the decision
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_gradients_on_the_interpreter_have_the_same_bits() -> None:
    whole, expected = gradients(deep_perceptron, "interp", None)
    needed, found = gradients(deep_perceptron, "interp", whole // 2)
    assert needed <= whole // 2
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_budget_with_room_for_all_changes_nothing() -> None:
    codes = []
    for budget in (None, "1G"):
        with oc.Session(seed=3), oc.settings.overrides(memory_budget=budget):
            step = oc.Context("interp").compile(oc.train.grad_update(deep_perceptron()))
            codes.append(str(step.loop_ir))
    assert codes[0] == codes[1]


def test_a_budget_that_row_groups_meet_leaves_them() -> None:
    """Passes over loops do not know that the scores of attention are never stored whole."""
    needed = []
    for budget in (None, "30M"):
        with oc.Session(), oc.settings.overrides(memory_budget=budget):
            x = oc.placeholder("x", batch=[1, 1024], output=[512])
            y = x + oc.nn.multi_head_attention(x, heads=8, width=64, causal=True)
            step = oc.Context("cpu_c").compile(oc.train.grad_update(oc.sum(y * y)))
            needed.append(step.memory_plan.nbytes)
    assert needed[0] == needed[1] < 30 << 20


@pytest.mark.filterwarnings("ignore:A routine fits its memory budget")
def test_the_least_memory_is_no_more_than_any_budget_takes() -> None:
    whole, _ = gradients(residual_layers, "interp", None)
    least, _ = gradients(residual_layers, "interp", 0)
    assert least <= min(gradients(residual_layers, "interp", whole // k)[0] for k in (2, 3, 4, 5))


def test_two_compilations_within_a_budget_have_the_same_text() -> None:
    """Nodes are hashed by their addresses: no choice follows the order of a set."""
    texts = set()
    for _ in range(4):
        with oc.Session(seed=3), oc.settings.overrides(memory_budget=0):
            step = oc.Context("interp").compile(oc.train.grad_update(deep_perceptron()))
            texts.add(str(step.loop_ir))
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("2K", 2048), ("1.5M", None), ("4mb", 4 << 20)]
)
def test_a_budget_is_a_number_of_bytes(text: str, number: int | None) -> None:
    if number is None:
        with pytest.raises(oc.SettingsError, match="a number of bytes"):
            oc.settings.overrides(memory_budget=text).__enter__()
        return
    with oc.settings.overrides(memory_budget=text):
        assert oc.settings.current().memory_budget == number


@pytest.mark.parametrize("wrong", [-1, "much", True, 1.5])
def test_a_budget_that_is_no_number_of_bytes_is_refused(wrong: object) -> None:
    with pytest.raises(oc.SettingsError, match="a number of bytes"):
        oc.settings.overrides(memory_budget=wrong).__enter__()


def test_variables_of_values_that_are_computed_again_end_at_external_calls(target: str) -> None:
    found = []
    for budget, visits in ((None, 1), (0, 3)):
        with oc.Session(), oc.settings.overrides(memory_budget=budget, max_visits=visits):
            x = oc.param("x", output=[1, 2], input=[], init=oc.tensor([[0.5, 2.0]]))
            first, second = (x - oc.mean(x, axis=1, keepdims=True) for _ in range(2))
            square = first * first
            shares = oc.softmax(second, axis=1)
            loss = oc.sum(shares) + oc.sum(oc.cumsum(square, axis=1))
            ctx = oc.Context(target)
            step = ctx.compile(oc.train.grad_update(loss))
            ctx.init_params(loss)
            step()
            found.append([ctx.item(loss), *ctx[x.grad].ravel()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_a_search_for_recomputations_leaves_no_cycles_to_the_collector() -> None:
    """Compilation does not wait for the collector, which would free candidates much later."""
    with oc.Session(), oc.settings.overrides(backend="interp"):
        loss = deep_perceptron()
        ctx = oc.Context()
        ctx.init_params(loss)
        optimized = ctx.compile(oc.train.grad_update(loss))._build.program.loops
        gc.collect()
        gc.disable()
        try:
            smaller = recompute_within_budget(optimized, 0)
            found = gc.collect()
        finally:
            gc.enable()
        assert smaller is not optimized
        assert found == 0


def test_a_budget_that_cannot_be_met_is_a_warning_with_both_numbers() -> None:
    with oc.Session(), oc.settings.overrides(backend="interp"):
        loss = deep_perceptron()
        ctx = oc.Context()
        ctx.init_params(loss)
        with (
            oc.settings.overrides(memory_budget=64),
            pytest.warns(RuntimeWarning, match=r"needs [\d,]+ bytes .* memory_budget allows 64"),
        ):
            ctx.compile(oc.train.grad_update(loss))


@pytest.mark.parametrize("budget", [0, "1G", None])
def test_a_budget_that_is_met_or_means_the_least_gives_no_warning(budget: Any) -> None:
    with oc.Session(), oc.settings.overrides(backend="interp", memory_budget=budget):
        loss = deep_perceptron()
        ctx = oc.Context()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            ctx.init_params(loss)
            ctx.compile(oc.train.grad_update(loss))
