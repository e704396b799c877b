"""Kernels that a backend does not support run on others, with the results of one backend."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
import ocannl_interp
from ocannl_core.backend import manager
from ocannl_core.backend.protocols import TargetReport
from ocannl_core.backend.specs import hookimpl
from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.compile import driver
from ocannl_core.compile.stages import CompileRequest, GeneratedCode
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.ir.target import Capability
from tests.support.limited_backend import all_but, capabilities_but, limited

pytestmark = pytest.mark.usefixtures("fresh_plugins")


def no_sharing(buffer: object) -> None:
    return None


def refuse_some(seed: int) -> Callable[..., str | None]:
    """Return a hook that refuses about a half of all kernels."""

    def refuse(step: Any) -> str | None:
        return "a lot" if zlib.crc32(f"{seed} {step.title}".encode()) % 2 else None

    return refuse


def train_step() -> tuple[oc.Tensor, oc.Computation]:
    x = oc.tensor(np.linspace(-1, 1, 12).reshape(4, 3), batch_axes=1)
    w, v = oc.param("w", output=[5]), oc.param("v", output=[3])
    y = oc.sort(v @ oc.tanh(w @ x))
    loss = oc.einsum("...|...->... => 0", y * y)
    return loss, oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)


def loop_over_time() -> tuple[oc.Tensor, oc.Computation]:
    x = oc.tensor(np.linspace(-1, 1, 12).reshape(4, 3), batch_axes=1)
    w, u = oc.param("w", output=[6]), oc.param("u", output=[6], input=[6])

    def step(h: oc.Tensor, entry: oc.Tensor) -> Any:
        h = oc.tanh(w @ entry + u @ oc.softmax(h))
        return h, oc.exp(h)

    values, last = oc.scan(step, oc.tensor(np.zeros(6)), x)
    total = oc.einsum("...|...->... => 0", values * values)
    loss = total + oc.einsum("...|...->... => 0", last * last)
    return loss, oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)


def positions() -> tuple[oc.Tensor, oc.Computation]:
    table = oc.param("table", output=[6])
    rows = oc.take(table, oc.tensor([1, 5, 1], dtype="int32"))
    loss = oc.einsum("...|...->... => 0", oc.exp(rows))
    return loss, oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)


def trained(make: Any, context: oc.Context) -> tuple[dict[str, Any], oc.Routine]:
    """Return parameters and losses after some steps."""
    with oc.Session():
        loss, code = make()
        context.init_params(loss)
        step = context.compile(code)
        losses = []
        for _ in range(3):
            step()
            losses.append(context.item(loss))
        cells = {each.node.name: context[each] for each in loss.parameters()}
        return {**cells, "losses": losses}, step


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, cells in expected.items():
        np.testing.assert_array_equal(found[name], cells, name)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [train_step, loop_over_time, positions], ids=lambda m: m.__name__)
@pytest.mark.parametrize("shares", [True, False], ids=["shared", "apart"])
def test_any_kernels_may_run_elsewhere(make: Any, seed: int, shares: bool) -> None:
    """The bits are equal on all devices, since both interpret the same kernels."""
    limited("tiny", hooks={"ocannl_refuse": refuse_some(seed)})
    limited("other", hooks={} if shares else {"ocannl_share": no_sharing})
    expected, _ = trained(make, oc.Context("interp"))
    found, step = trained(make, oc.Context("tiny", fallback="other"))
    assert_equal(found, expected)
    described = "\n".join(step.devices)
    assert "on tiny:0" in described
    assert "on other:0" in described
    assert ("transfer of" in described) is not shares


def test_kernels_run_in_c_where_the_backend_has_no_primitive() -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH), capabilities=capabilities_but())
    expected, _ = trained(train_step, oc.Context("interp"))
    found, step = trained(train_step, oc.Context("tiny", fallback="cpu_c"))
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-6)
    text = str(oc.explain(step))
    assert "  kernel 1 on cpu_c:0\n" in text
    assert "transfer" not in text  # both are in the memory of this process
    assert "// part 1, on cpu_c:0" in step.source
    assert "tanh" in step.source


def test_a_repetition_is_opened_for_one_kernel_inside() -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH))
    limited("other", hooks={"ocannl_share": no_sharing})
    expected, _ = trained(loop_over_time, oc.Context("interp"))
    found, step = trained(loop_over_time, oc.Context("tiny", fallback="other"))
    assert_equal(found, expected)
    lines = step.devices
    assert "4 times" in lines
    inside = [each for each in lines if each.startswith("  ")]
    assert any("on tiny:0" in each for each in inside)
    assert any("on other:0" in each for each in inside)
    assert any("transfer of" in each for each in inside)


def test_a_backend_without_repetitions_runs_iterations_of_the_host() -> None:
    limited("tiny", capabilities=capabilities_but(Capability.REPETITIONS))
    expected, _ = trained(loop_over_time, oc.Context("interp"))
    found, step = trained(loop_over_time, oc.Context("tiny", fallback="interp"))
    assert_equal(found, expected)
    assert not any("interp" in each for each in step.devices)


def test_static_indices_and_extents_reach_all_parts() -> None:
    limited("tiny", primitives=all_but(UnaryOp.EXP))
    limited("other", hooks={"ocannl_share": no_sharing})
    with oc.Session():
        row = oc.static_index("row", range=4)
        size = oc.static_extent("size", max=5)
        table = oc.tensor(np.arange(12.0).reshape(4, 3), batch_axes=1)
        x = oc.placeholder("x", batch=[size], output=[3])
        y = oc.exp(table[row]) * x + 1.0
        context = oc.Context("tiny", fallback="other")
        step = context.compile(oc.train.forward(y), bindings=[row])
        for index, count in ((2, 5), (0, 3), (3, 1)):
            cells = np.linspace(0, 1, 3 * count).reshape(count, 3).astype(np.float32)
            context[x] = cells
            step(row=index, size=count)
            expected = np.exp(np.arange(12.0).reshape(4, 3)[index]) * cells + 1.0
            np.testing.assert_allclose(context[y], expected, rtol=1e-6)


def test_a_check_on_another_device_ends_the_routine() -> None:
    limited("tiny", capabilities=capabilities_but(Capability.POSITION_CHECKS))
    with oc.Session():
        ids = oc.placeholder("ids", output=[2], dtype="int32")
        y = oc.take(oc.tensor([1.0, 2.0, 3.0]), ids)
        context = oc.Context("tiny", fallback="interp")
        step = context.compile(oc.train.forward(y))
        context[ids] = [0, 2]
        step()
        assert context[y].tolist() == [1, 3]
        context[ids] = [0, 3]
        with pytest.raises(oc.UsageError, match=r"ids\[1\] = 3"):
            step()


def test_merge_buffers_are_copied() -> None:
    limited("tiny", capabilities=capabilities_but(Capability.MERGE_BUFFERS))
    limited("other", hooks={"ocannl_share": no_sharing})
    with oc.Session():
        w = oc.param("w", output=[3])
        context, sender = oc.Context("tiny", fallback="other"), oc.Context("tiny")
        context[w], sender[w] = [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]

        @oc.cd
        def add() -> None:
            w.__iadd__(w.merge)

        context.fill_merge(w, source=sender)
        step = context.compile(add())
        step()
        assert context[w].tolist() == [11, 22, 33]


def test_a_kernel_that_is_refused_as_scheduled_moves_too() -> None:
    def refuse(step: Any) -> str | None:
        return "schedules" if getattr(step, "schedule", ()) else None

    limited("tiny", hooks={"ocannl_refuse": refuse}, vector_bytes=32, vector_registers=16)
    with oc.Session():
        random = np.random.default_rng(0)
        a, b = (random.integers(-3, 4, (16, 16)).astype(np.float32) for _ in range(2))
        y = oc.tensor(a, input_axes=1) @ oc.tensor(b, batch_axes=1)
        context = oc.Context("tiny", fallback="interp")
        step = context.compile(oc.train.forward(y))
        step()
        np.testing.assert_array_equal(context[y], b @ a.T)
        assert "on interp:0" in step.devices[-1]
        with pytest.raises(oc.UnsupportedError, match="cannot compile the kernel: schedules"):
            oc.Context("tiny").compile(oc.train.forward(y))


def test_a_backend_that_raises_about_a_kernel_is_tried_kernel_by_kernel() -> None:
    def generate(kernels: Any) -> Any:
        plan = kernels.plan()
        for step in plan.kernels:
            if "tanh" in step.title:
                raise oc.CodegenError("This backend has no such function.", found=step.title)
        return ocannl_interp.ocannl_generate(kernels, None)

    limited("tiny", hooks={"ocannl_generate": generate})
    expected, _ = trained(loop_over_time, oc.Context("interp"))
    found, step = trained(loop_over_time, oc.Context("tiny", fallback="interp"))
    assert_equal(found, expected)
    described = "\n".join(step.devices)
    assert "on tiny:0" in described
    assert "on interp:0" in described
    with oc.Session(), pytest.raises(oc.CodegenError, match="no such function"):
        oc.Context("tiny").compile(oc.train.forward(oc.tanh(oc.tensor([1.0]))))


def test_children_and_links_keep_the_fallback() -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH))
    with oc.Session():
        y = oc.tanh(oc.tensor([0.5, 1.0]))
        context = oc.Context("tiny", fallback="interp")
        step = context.child().compile(oc.train.forward(y))
        step()
        other = oc.Context("tiny")
        again = other.link(step)
        again()
        np.testing.assert_allclose(other[y], np.tanh([0.5, 1.0]), rtol=1e-6)
        with pytest.raises(oc.UnsupportedError):
            other.compile(oc.train.forward(y))


def test_the_setting_names_fallbacks_in_order() -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH))
    limited("second", primitives=all_but(UnaryOp.TANH, UnaryOp.EXP))
    with oc.Session(), settings.overrides(fallback=("second", "interp")):
        y = oc.exp(oc.tanh(oc.tensor([0.5, 1.0])))
        context = oc.Context("tiny")
        step = context.compile(oc.train.forward(y))
        step()
        assert step.devices == ("kernel 1 on interp:0",)


def test_without_a_device_for_a_kernel_the_error_names_all() -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH))
    limited("second", hooks={"ocannl_refuse": lambda step: "it never does"})
    with oc.Session():
        y = oc.tanh(oc.tensor([0.5, 1.0]))
        with pytest.raises(oc.UnsupportedError) as caught:
            oc.Context("tiny", fallback="second").compile(oc.train.forward(y))
    assert "the primitive tanh, which tiny:0 lacks" in caught.value.found
    assert "second:0: it never does" in caught.value.found
    assert "y = oc.tanh" in caught.value.where


def test_a_program_that_the_backend_supports_is_as_without_fallback(saved_routines: None) -> None:
    limited("tiny")
    expected, plain = trained(train_step, oc.Context("tiny"))
    found, step = trained(train_step, oc.Context("tiny", fallback="interp"))
    assert_equal(found, expected)
    assert step.devices == ()
    assert step.source == plain.source


def test_code_on_disk_is_of_one_backend(saved_routines: None) -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH))
    for _ in range(2):
        expected, _ = trained(train_step, oc.Context("interp"))
        found, step = trained(train_step, oc.Context("tiny", fallback="interp"))
        assert_equal(found, expected)
        assert step.devices
        with oc.Session(), pytest.raises(oc.UnsupportedError):
            oc.Context("tiny").compile(train_step()[1])


def test_profiles_show_devices_and_schedules_stay() -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH))
    limited("other", hooks={"ocannl_share": no_sharing})
    context = oc.Context("tiny", fallback="other")
    before, step = trained(loop_over_time, context)
    shown = str(step.profile(0.0))
    assert " from tiny:0 to other:0" in shown
    assert "transfer of " in shown
    after, _ = trained(loop_over_time, oc.Context("tiny", fallback="other"))
    assert_equal(after, before)
    for refused in (step.tune, lambda: step.use_schedules({1: ""})):
        with pytest.raises(oc.UsageError, match="runs on one device"):
            refused()


@pytest.mark.parametrize("given", [3, [None], {"cpu_c": 1}.values()], ids=str)
def test_fallbacks_are_names(given: Any) -> None:
    with pytest.raises(oc.UsageError):
        oc.Context("interp", fallback=given)


def test_a_fallback_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(oc.BackendNotFoundError, match="nowhere"):
        oc.Context("interp", fallback="nowhere")


def test_contexts_with_a_queue_run_parts_on_its_thread() -> None:
    limited("tiny", primitives=all_but(UnaryOp.TANH))
    expected, _ = trained(train_step, oc.Context("interp"))
    found, _ = trained(train_step, oc.Context("tiny", fallback="interp", asynchronous=True))
    assert_equal(found, expected)


def limited_c(**facts: Any) -> None:
    """Register the C backend under another name, on a device without some primitives."""
    ocannl_cpu_c = pytest.importorskip("ocannl_cpu_c")
    _, own = manager.select("cpu_c")
    target = replace(own, backend="tiny_c", **facts)
    module = ModuleType("tiny_c")
    vars(module).update(vars(ocannl_cpu_c))
    vars(module)["ocannl_targets"] = hookimpl(lambda: TargetReport((target,)))
    manager.register("tiny_c", module)


@pytest.mark.usefixtures("saved_routines")
@pytest.mark.parametrize("make", [positions, loop_over_time], ids=lambda m: m.__name__)
def test_a_split_routine_starts_from_disk(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    generate = driver.generate

    def noted(request: CompileRequest, *others: Any) -> GeneratedCode:
        made.append(request.lowered.name)
        return generate(request, *others)

    monkeypatch.setattr(driver, "generate", noted)
    with settings.overrides(cache_dir=str(tmp_path)):
        runs = []
        for _ in range(2):
            manager.refresh()
            limited_c(primitives=all_but(UnaryOp.EXP))
            runs.append(trained(make, oc.Context("tiny_c", fallback="cpu_c")))
    (first, step), (second, again) = runs
    assert len(made) == len(set(made)) == 2  # initial values, and the step
    assert_equal(second, first)
    assert again.devices == step.devices
    assert "on cpu_c:0" in "\n".join(again.devices)
    assert again.source == step.source
