"""Logs, guards, checks of bounds and timelines of runs, switched on by settings."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.backend.protocols import Launcher
from ocannl_core.base import settings, timeline
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import affine, as_affine
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import Block, Expr, Load, LoopProgram
from ocannl_core.ir.loops.traverse import map_exprs
from ocannl_core.passes.loops.pipeline import NamedPass
from ocannl_core.runtime.observers.observers import LinkedRoutine, RunObserver, observing
from ocannl_core.runtime.observers.run_checks import BoundsCheck
from tests.support.faulty_backend import faulty

pytest.importorskip("ocannl_interp")


@pytest.fixture(autouse=True)
def _fresh(fresh_plugins: None) -> Iterator[None]:
    with oc.Session(seed=1):
        yield
    timeline.clear()


def logs(level: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log of a run of a small program."""
    caplog.set_level(logging.INFO, "ocannl.runs")
    x = oc.tensor([1.0, 2.0], label="x")
    y = oc.exp(x * 2.0) + 1.0
    with settings.overrides(log_runs=level):
        ctx = oc.Context("interp")
        step = ctx.compile(oc.train.forward(y), name="step")
    step()
    assert np.allclose(ctx[y], np.exp([2.0, 4.0]) + 1.0)
    return [record.getMessage() for record in caplog.records]


def test_level_1_logs_the_range_of_every_result(caplog: pytest.LogCaptureFixture) -> None:
    lines = logs(1, caplog)
    assert lines[0] == "run step on interp:0"
    assert [line.split(" (")[0] for line in lines[1:]] == snapshot(
        [
            "   1 mul: float32 2, min 2, mean 3, max 4",
            "   2 exp: float32 2, min 7.38906, mean 30.9936, max 54.5981",
            "   3 add: float32 2, min 8.38906, mean 31.9936, max 55.5981",
        ]
    )
    assert "test_observed_runs.py:" in lines[1]


def test_level_2_adds_assignments_and_operands(caplog: pytest.LogCaptureFixture) -> None:
    lines = logs(2, caplog)
    assert lines[2:4] == snapshot(
        ["       mul[o] = x[o] * 2.0", "       with x: float32 2, min 1, mean 1.5, max 2"]
    )


def test_level_3_adds_all_cells(caplog: pytest.LogCaptureFixture) -> None:
    assert "       [2. 4.]" in logs(3, caplog)


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    assert logs(0, caplog) == []


def test_iterations_of_loops_are_logged_with_their_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ocannl.runs")
    xs = oc.tensor([[1.0], [2.0], [3.0]], batch_axes=1)
    sums, _ = oc.scan(lambda h, x: (h + x, h + x), oc.tensor([0.0]), xs)
    with settings.overrides(log_runs=1):
        oc.Context("interp").compile(oc.train.forward(sums), name="step")()
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert all(f"[{iteration}]" in text for iteration in range(3))


def guarded(backend: str, guard: str) -> tuple[Any, oc.Context, oc.Tensor]:
    x = oc.placeholder("x", output=[3])
    y = oc.exp(oc.log(x) * 0.5) + 1.0
    with settings.overrides(guard_values=guard):
        ctx = oc.Context(backend)
        return ctx.compile(oc.train.forward(y), name="step"), ctx, x


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_the_guard_names_the_first_assignment_that_computes_nan(backend: str) -> None:
    step, ctx, x = guarded(backend, "nan")
    ctx[x] = [1.0, 2.0, 4.0]
    step()
    ctx[x] = [1.0, -2.0, 4.0]
    with pytest.raises(oc.ValueGuardError) as caught:
        step()
    assert caught.value.found == snapshot("""\
log[1]: nan, one of 1 such cells
computed by log[o] = log(x[o])
with x: float32 3, min -2, mean 1, max 4\
""")
    assert "test_observed_runs.py:" in caught.value.where
    assert "y = oc.exp(oc.log(x) * 0.5) + 1.0" in caught.value.where
    assert caught.value.fix == snapshot(
        "keep the operands in the domain of the operation, as with oc.clip"
    )
    ctx[x] = [1.0, 2.0, 4.0]
    step()  # the routine stays usable


def test_infinities_are_errors_on_request_only() -> None:
    step, ctx, x = guarded("interp", "nan")
    ctx[x] = [np.inf, 1.0, 1.0]
    step()
    step, ctx, x = guarded("interp", "infinite")
    ctx[x] = [np.inf, 1.0, 1.0]
    with pytest.raises(oc.ValueGuardError) as caught:
        step()
    assert caught.value.found.startswith("log[0]: inf, one of 1 such cells")
    assert caught.value.fix.startswith("an operand has such values already")


def test_the_guard_names_the_iteration_of_a_loop() -> None:
    xs = oc.tensor([[1.0], [-2.0], [3.0]], batch_axes=1)
    ys, _ = oc.scan(lambda h, x: (h, oc.log(x) + h), oc.tensor([0.0]), xs)
    with settings.overrides(guard_values="nan"):
        step = oc.Context("interp").compile(oc.train.forward(ys), name="step")
    with pytest.raises(oc.ValueGuardError) as caught:
        step()
    assert "in iteration 1" in caught.value.found


def test_nan_of_the_device_alone_has_an_error_of_its_own() -> None:
    def nan_pass(program: LoopProgram) -> LoopProgram:
        from ocannl_core.ir.loops.nodes import Const

        def change(expr: Expr) -> Expr:
            return Const(float("nan"), expr.dtype) if isinstance(expr, Const) else expr

        return type(program)(
            program.name, program.params, program.indices, program.nodes,
            map_exprs(program.body, change),
        )  # fmt: skip

    faulty(ocannl_passes=lambda: [NamedPass("spoil", nan_pass)])
    step, ctx, x = guarded("faulty", "nan")
    ctx[x] = [1.0, 2.0, 4.0]
    with pytest.raises(oc.ValueGuardError) as caught:
        step()
    assert caught.value.found == "add: NaN on faulty:0, and none on interp:0"
    assert "ocannl verify" in caught.value.fix


def shifted(body: Block) -> Block:
    """Return code whose loads are one cell further along the last axis."""

    def change(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.indices:
            *rest, last = expr.indices
            terms, offset = as_affine(last)
            return Load(expr.node, (*rest, affine(terms, offset + 1)), expr.dtype)
        return expr

    return map_exprs(body, change)


def test_an_access_out_of_bounds_is_an_error_before_the_device_runs() -> None:
    runs: list[object] = []

    class Miscompiled(RunObserver):
        def launcher(self, routine: LinkedRoutine, launch: Launcher) -> Launcher:
            plan = routine.build.plan
            (kernel,) = plan.steps
            assert isinstance(kernel, Kernel)
            wrong = replace(plan, steps=(replace(kernel, body=shifted(kernel.body)),))
            build = replace(routine.build, plan=wrong)
            return BoundsCheck().launcher(replace(routine, build=build), runs.append)

    y = oc.tensor([1.0, 2.0]) * 2.0
    with observing(Miscompiled()):
        step = oc.Context("interp").compile(oc.train.forward(y), name="step")
    with pytest.raises(oc.VerifyError) as caught:
        step()
    assert caught.value.found == "position [2] of extents [2]"
    assert caught.value.where.endswith("running step on interp:0 in place of interp:0")
    assert runs == []


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_checks_of_bounds_do_not_change_results(backend: str) -> None:
    x = oc.tensor(np.arange(12.0).reshape(3, 4))
    y = oc.einsum("i,j; k,j => i,k", x, x)
    found = []
    for checks in (False, True):
        with settings.overrides(check_bounds=checks):
            ctx = oc.Context(backend)
            ctx.compile(oc.train.forward(y))()
        found.append(ctx[y].tolist())
    assert found[0] == found[1]


def test_a_timeline_has_stages_kernels_and_copies(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with settings.overrides(timeline=str(path)):
        x = oc.placeholder("x", output=[3])
        y = oc.exp(x) + 1.0
        xs = oc.tensor([[1.0], [2.0]], batch_axes=1)
        sums, _ = oc.scan(lambda h, x: (h + x, h + x), oc.tensor([0.0]), xs)
        ctx = oc.Context("interp")
        step = ctx.compile(oc.train.forward(y), name="step")
        loop = ctx.compile(oc.train.forward(sums), name="loop")
        ctx[x] = [0.0, 0.0, 0.0]
        step()
        loop()
        assert ctx[y].tolist() == [2.0, 2.0, 2.0]
        assert ctx[sums].tolist() == [[1.0], [3.0]]
    timeline.write()
    events = json.loads(path.read_text())["traceEvents"]
    by_category: dict[str, list[str]] = {}
    for event in events:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        by_category.setdefault(event["cat"], []).append(event["name"])
    assert by_category["routine"] == ["step", "loop"]
    assert "split and generate" in by_category["compile"]
    assert "12 bytes from host:0 to interp:0" in by_category["transfer"]
    assert len(by_category["kernel"]) >= 3  # one of the step, and at least one per iteration


def test_a_timeline_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    timeline.use(str(tmp_path / "missing" / "trace.json"))
    with pytest.raises(oc.SettingsError, match="timeline names a file") as caught:
        timeline.write()
    assert caught.value.found == "No such file or directory"
    assert caught.value.where.endswith("missing/trace.json'")


def test_nothing_is_recorded_by_default() -> None:
    timeline.clear()
    timeline.record("kernel", "k", 0.0, 1.0)
    assert timeline._events == []
