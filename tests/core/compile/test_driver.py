"""The driver takes a program through all stages, and again with other schedules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings
from ocannl_core.compile import driver
from ocannl_core.compile.context_state import ContextState
from ocannl_core.compile.driver import compile_again, compile_computation
from ocannl_core.compile.dump_folder import open_dump
from ocannl_core.compile.stages import CompileOptions, Linkable
from ocannl_core.ir.node import NodeInfo, Reason, TensorNode


def test_stages_follow_each_other() -> None:
    with oc.Session():
        x = oc.tensor([1.0, 2.0, 3.0])
        y = oc.exp(x) + 1.0
        context = oc.Context("interp")
        routine = context.compile(oc.train.forward(y))
        build = routine._build
        assert build.assignments.name == build.program.loops.name == build.plan.name
        assert build.source.text
        again = compile_again(build)
        assert again.plan == build.plan
        assert again.source.text == build.source.text
        routine()
        np.testing.assert_allclose(context[y], np.exp([1, 2, 3]) + 1, rtol=1e-6)


def test_without_a_folder_nothing_is_dumped(tmp_path: Path) -> None:
    closed = open_dump("routine")
    assert not closed.is_open
    closed.text("stage", "text")
    with settings.overrides(dump_dir=str(tmp_path)):
        dump = open_dump("a routine")
    assert dump.is_open
    dump.text("stage 1", "text")
    assert [path.name for path in (tmp_path / "a_routine").iterdir()] == ["00_stage_1.txt"]


def state(
    stored: dict[TensorNode, NodeInfo] | None = None, merged: tuple[TensorNode, str] | None = None
) -> ContextState:
    backend, target = manager.select("interp")
    return ContextState(backend, target, stored or {}, {}, merged)


def compiled(computation: Any, context: ContextState) -> Linkable:
    return compile_computation(computation, CompileOptions(), context, lambda found: found)


def test_the_driver_compiles_from_facts_without_a_context() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
        y = oc.exp(x) + 1.0
        code = oc.train.forward(y)
        found = compiled(code, state())
        again = compiled(code, state({x.node: x.info, y.node: y.info}))
    assert {node.name: place.reason for node, place in found.kept.items()} == {
        "x": Reason.HOST_DATA,
        "add": Reason.KEPT,
    }
    assert found.usage.reads_first == {x.node}
    assert again.built.source.text == found.built.source.text


def test_nodes_that_the_context_stores_stay_stored() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
        y = oc.exp(x)
        code = oc.train.forward(y + 1.0)
        assert y.node not in compiled(code, state()).kept
        kept = compiled(code, state({y.node: y.info})).kept
    assert kept[y.node].reason is Reason.USED_ELSEWHERE


def test_a_merge_buffer_with_another_node_is_refused() -> None:
    with oc.Session():
        p, q = oc.param("p", output=[3]), oc.param("q", output=[3])

        @oc.cd
        def average() -> None:
            p[:] = p.merge

        with pytest.raises(oc.LinkError, match="it holds parameter q, and the code reads"):
            compiled(average(), state(merged=(q.node, "parameter q")))


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    """Count the calls of functions of the driver."""
    calls: Counter[str] = Counter()

    def watch(name: str) -> None:
        real = getattr(driver, name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **keywords)

        monkeypatch.setattr(driver, name, counted)

    for name in names:
        watch(name)
    return calls


def recurrent() -> oc.Computation:
    """Return a training step with a loop that can keep fewer values."""
    w = oc.param("w", output=[8], input=[8])
    xs = oc.tensor(np.ones((6, 8), np.float32), batch_axes=1)

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        h = oc.tanh(w @ (h + x))
        return h, h

    outputs, _ = oc.scan(step, 0.0, xs)
    return oc.train.grad_update(oc.mean(outputs * outputs))


@pytest.mark.filterwarnings("ignore:A routine fits")
def test_the_passes_run_once_for_each_attempt_to_fit_the_memory_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = count_calls(monkeypatch, "resolve", "find_lowered", "optimize", "generate")
    chosen = settings.overrides(memory_budget=0, dump_dir=str(tmp_path))
    with oc.Session(), chosen:
        oc.Context("interp").compile(recurrent(), name="step")
    assert calls["resolve"] > 1
    assert calls["optimize"] == calls["find_lowered"] == calls["resolve"]
    assert calls["generate"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step"]  # of the last attempt
    stages = sorted(path.name for path in (tmp_path / "step").glob("??_*.txt"))
    assert stages[0] == "00_assignments.txt"
    assert [int(name[:2]) for name in stages] == list(range(len(stages)))


def test_several_computations_are_lowered_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, "find_lowered")
    with oc.Session():
        x = oc.tensor(np.ones((4, 3), np.float32), batch_axes=1)
        row = oc.static_index("row", range=4)
        y = x[row] * 2.0
        routines = oc.Context("interp").compile_all(
            [oc.train.forward(y), oc.train.forward(oc.exp(x))], [row], [y]
        )
    assert calls["find_lowered"] == len(routines) == 2
    assert [routine.bindings for routine in routines] == [(row,), ()]


@pytest.mark.parametrize("given", [{"bindings": ["row"]}, {"keep": [None]}])
def test_several_computations_take_lists_of_the_right_kind(given: Any) -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="is a list of"):
        oc.Context("interp").compile_all([oc.train.forward(oc.tensor(1.0) * 2.0)], **given)
