"""Layers that repeat each other are scheduled and written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.codegen.c_family import render_step
from ocannl_core.ir.kernels.nodes import Kernel, StepReplacement
from ocannl_core.ir.kernels.requirements import Requirements
from ocannl_core.ir.loops.nodes import For
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.templates import separate_forms
from ocannl_core.passes.kernels import deduplicate, schedule_kernels
from ocannl_core.passes.loops import once_per_form
from ocannl_cpu_c import code_generation
from tests.support.slow import slow

WIDTH, LAYERS = 48, 4


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path) -> Iterator[None]:
    with settings.overrides(cache_dir=str(tmp_path)):
        yield


def trained() -> tuple[list[Kernel], list[Any]]:
    """Return the kernels of a step over equal layers, and the gradients."""
    rng = np.random.default_rng(1)

    def cells(*dims: int) -> Any:
        return rng.normal(size=dims).astype(np.float32) / 7

    with oc.Session():
        x = oc.tensor(cells(32, WIDTH), batch_axes=1)
        weights = [
            oc.param(f"w{n}", init=oc.tensor(cells(WIDTH, WIDTH), input_axes=1))
            for n in range(LAYERS)
        ]
        for weight in weights:
            y = oc.tanh(weight @ x)
            x = y / (1 + oc.einsum("...|c => ...|0", y * y))
        loss = oc.einsum("...|... => 0", x * x)
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.grad_update(loss))
        context.init_params(loss)
        routine()
        grads = [np.array(context[weight.grad]) for weight in weights]
    return [step for step in routine._build.plan.steps if isinstance(step, Kernel)], grads


def test_deduplicated_kernels_equal_separately_scheduled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Apart(deduplicate.KernelMemo):
        def made(
            self, kernel: object, titles: Any, nodes: Any, make: Callable[[], StepReplacement]
        ) -> StepReplacement:
            return make()

    steps, grads = trained()
    with monkeypatch.context() as patch:
        patch.setattr(deduplicate, "KernelMemo", Apart)
        with settings.overrides(cache_dir=str(settings.cache_directory()) + "-apart"):
            expected_steps, expected_grads = trained()
    copies = [step for step in steps if step.like is not None]
    assert len(copies) >= 2 * (LAYERS - 2)
    assert not any(step.like for step in expected_steps)
    assert [each.title for each in steps] == [each.title for each in expected_steps]
    for step, other in zip(steps, expected_steps, strict=True):
        assert [each.name for each in step.arguments] == [each.name for each in other.arguments]
        assert step.schedule == other.schedule
    for found, wanted in zip(grads, expected_grads, strict=True):
        assert found.tobytes() == wanted.tobytes()


def test_code_of_copies_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def render(step: Any, *given: Any) -> Any:
        kernel = render_step(step, *given)
        assert kernel is not None
        written.append(kernel.symbol)
        return kernel

    monkeypatch.setattr(code_generation, "render_step", render)
    steps, _ = trained()
    copies = [step for step in steps if step.like is not None]
    assert len(copies) > len(steps) / 2
    assert len(written) == len(set(written))
    assert len(written) <= len(steps) - len(copies) + 1  # and the initial values of parameters


def test_copies_are_not_compared_with_the_device_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Requirements, "lack_of", lambda self, step, nodes: seen.append(step))
    kernels, _ = trained()
    assert any(each.like is not None for each in kernels)
    assert all(each.like is None for each in seen)


def test_copies_have_the_loop_variables_of_their_original() -> None:
    kernels, _ = trained()
    for each in kernels:
        if each.like is not None:
            loops, others = (
                [part.var for part in walk(one.body) if isinstance(part, For)]
                for one in (each, each.like)
            )
            assert loops == others


def test_a_copy_of_a_kernel_has_its_own_arguments() -> None:
    steps, _ = trained()
    copies = [step for step in steps if step.like is not None]
    for copy in copies:
        assert copy.like is not None
        assert copy.like.like is None
        assert copy.like in steps
        assert not set(copy.arguments) <= set(copy.like.arguments)


def stack(layer: Callable[[oc.Tensor], oc.Tensor], layers: int) -> oc.Tensor:
    """Return the loss of a network of equal layers, written as a loop of Python."""
    x = oc.placeholder("x", batch=[4, 6], output=[8])
    for _ in range(layers):
        x = layer(x)
    return oc.einsum("...|... => 0", x * x)


def attention_layer(x: oc.Tensor) -> oc.Tensor:
    attended = x + oc.nn.multi_head_attention(oc.nn.layer_norm(x), heads=2, width=4)
    return attended + oc.nn.mlp(oc.nn.layer_norm(attended), hidden=[16])


def dense_layer(x: oc.Tensor) -> oc.Tensor:
    return x + oc.relu(oc.nn.dense(oc.nn.layer_norm(x)))


def scanned_layer(x: oc.Tensor) -> oc.Tensor:
    return oc.nn.repeat_layers(lambda h: h + oc.tanh(oc.nn.dense(h)), x, layers=2)


LAYERS_OF = {each.__name__: each for each in (attention_layer, dense_layer, scanned_layer)}


def compiled(layer: str, layers: int) -> oc.TargetCode:
    """Return the code of a training step of a network of equal layers."""
    with oc.Session():
        loss = stack(LAYERS_OF[layer], layers)
        rate = oc.placeholder("rate")
        update = oc.train.sgd_update(loss, learning_rate=rate, momentum=0.9)
        return oc.compile_for(oc.train.grad_update(loss) + update, "cpu_c", "x86-64-v3")


@pytest.mark.parametrize("layer", [*slow(["attention_layer"]), "dense_layer", "scanned_layer"])
def test_networks_have_the_code_and_titles_of_separate_layers(layer: str, tmp_path: Path) -> None:
    shared = compiled(layer, 3)
    with separate_forms(), settings.overrides(cache_dir=str(tmp_path / "apart")):
        separate = compiled(layer, 3)
    assert shared.assignments == separate.assignments
    assert shared.loop_ir == separate.loop_ir
    assert shared.source == separate.source
    assert [*map(str, shared.placements.values())] == [*map(str, separate.placements.values())]


def test_passes_and_schedules_run_as_often_for_any_number_of_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def runs(layers: int) -> dict[str, int]:
        counts = dict.fromkeys(("groups", "kernels"), 0)

        def counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*given: Any, **named: Any) -> Any:
                counts[name] += 1
                return run(*given, **named)

            return counting

        with monkeypatch.context() as patch:
            patch.setattr(once_per_form, "_results", once_per_form._Results())
            patch.setattr(once_per_form, "_run_on", counted("groups", once_per_form._run_on))
            step = counted("kernels", schedule_kernels._schedule_step)
            patch.setattr(schedule_kernels, "_schedule_step", step)
            compiled("attention_layer", layers)
        return counts

    assert runs(3) == runs(5)


def test_a_second_routine_of_equal_layers_runs_no_local_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled("dense_layer", 3)
    monkeypatch.setattr(once_per_form, "_run_on", None)  # which nothing calls
    compiled("dense_layer", 6)
