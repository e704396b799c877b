"""Search for schedules on this machine: results are right, cached, reported and used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings as core_settings
from ocannl_core.cli import main
from ocannl_core.compile.kernel_benchmark import Bench
from ocannl_core.compile.placements.placement_cache import placement_cache
from ocannl_core.compile.trial_memory import index_values
from ocannl_core.compile.tuned_placements import Flip, PlacementResult
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import TuningResult
from ocannl_core.ir.kernels.transforms import parse_schedule, schedule_text
from ocannl_core.ir.loops.usage import IndexBound
from ocannl_core.ir.node import MemoryMode, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.passes.kernels.pipeline import nest_plan
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.runtime.routine import Routine
from ocannl_core.schedule.tuning.schedule_candidates import first_candidates, neighbors
from ocannl_core.schedule.tuning.tuning_cache import tuning_cache
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count
from tests.support.reductions import random_reductions
from tests.support.sample_ops import Product
from tests.support.schedules import schedule_by_rule

REMEMBERED = "split i 4; order i0 j k i1; accumulate over k"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def nothing_remembered(folder: Path) -> Iterator[None]:
    """Objects stay in the cache of this file, for speed; schedules are forgotten after each test."""
    with core_settings.overrides(cache_dir=str(folder)):
        yield
        _, target = manager.select("cpu_c")
        tuning_cache(target).forget()
        placement_cache(target).forget()


def layer(rows: int = 24) -> tuple[oc.Context, oc.Tensor, Routine]:
    """Return a small layer, compiled, with values for all that it reads."""
    with oc.Session():
        x = oc.placeholder("x", batch=[rows], output=[20])
        result = oc.relu(oc.param("w", output=[36]) @ x)
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(result))
        context.init_params(result)
        context[x] = np.random.default_rng(1).normal(size=(rows, 20)).astype(np.float32)
    return context, result, routine


def remember(routine: Routine, schedule: str) -> None:
    """Make a search appear to have found a schedule for the first kernel of a routine."""
    plan = split_kernels(routine._build.program.loops)
    kernel = next(each for each in nest_plan(plan, None).kernels if each.nest.reduction)
    found = TuningResult(parse_schedule(schedule), 1e-6, parse_schedule("unroll k"), 2e-6, 5)
    tuning_cache(routine._build.target).keep(kernel.nest, plan.nodes, found)


def test_kernels_run_row_by_row_also_where_something_is_remembered() -> None:
    remember(layer()[2], REMEMBERED)
    with oc.Session():
        shares = oc.softmax(
            oc.placeholder("x", batch=[2048], output=[1024]), logic="...|... => ...|0"
        )
        step = oc.Context("cpu_c").compile(oc.train.forward(shares))
    (kernel,) = oc.explain(step).kernels
    assert kernel.schedule.startswith("rows i; ")


@settings(
    max_examples=example_count(4),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    example=random_reductions(float32, (1, 2, 3, 5, 8, 16, 19, 33), 5000)
    | random_reductions(int32, (1, 2, 3, 5, 8, 16, 19, 33), 5000),
    data=st.data(),
)
def test_c_code_of_candidates_agrees_with_the_interpreter(
    example: Example, data: st.DataObject
) -> None:
    subject = subject_named("cpu_c")
    nest = kernel_nest(example.program.body)
    assert nest is not None
    nodes = dict(example.program.nodes)
    first = first_candidates(nest, nodes, subject.target)
    assume(first)
    near = list(neighbors(nest, nodes, subject.target, first[0]))
    assume(near)
    expected = subject_named("interp").run(example.program, example.arrays)
    for chosen in data.draw(st.lists(st.sampled_from(near), min_size=1, max_size=3)):
        found = subject.run(
            example.program,
            example.arrays,
            (),
            lambda plan, target, by=chosen.schedule: schedule_by_rule(plan, lambda *_: by),
        )
        for node in example.program.params:
            np.testing.assert_array_equal(found[node], expected[node])


def test_a_search_changes_neither_tensors_nor_results() -> None:
    context, result, routine = layer()
    routine()
    before = context[result]
    found = routine.tune(0.1)
    np.testing.assert_array_equal(context[result], before)
    routine()
    np.testing.assert_allclose(context[result], before, rtol=1e-5, atol=1e-6)
    assert len(found.kernels) == 1
    assert "relu" in str(found)
    (kernel,) = oc.explain(routine).kernels
    assert kernel.measured is not None
    assert kernel.measured.tried == found.kernels[0].measured.tried > 0
    assert kernel.schedule == schedule_text(kernel.measured.schedule)


def test_kernels_that_run_together_compile_where_others_are_remembered() -> None:
    _, _, routine = layer()
    remember(routine, REMEMBERED)
    cells = np.random.default_rng(2).normal(size=(400, 300)).astype(np.float32)
    with oc.Session():
        result = oc.softmax(oc.tensor(cells, batch_axes=1), logic="...|... => ...|0")
        context = oc.Context("cpu_c")
        together = context.compile(oc.train.forward(result))
        together()
    assert any(kernel.schedule.startswith("rows") for kernel in oc.explain(together).kernels)
    powers = np.exp(cells - cells.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(context[result], expected, rtol=1e-5)


def test_a_finished_search_is_repeated_only_with_again() -> None:
    _, _, routine = layer()
    remember(routine, REMEMBERED)
    assert routine.tune(0.1).known == 1
    assert len(routine.tune(0.1, again=True).kernels) == 1


def test_a_bench_distinguishes_right_from_wrong_results() -> None:
    _, _, routine = layer()
    build = routine._build
    plan = nest_plan(split_kernels(build.program.loops), None)
    (kernel,) = plan.kernels
    reduction = kernel.nest.reduction
    assert reduction is not None
    term = reduction.term
    halved = replace(reduction, term=type(term)(term.op, term.left, term.left, term.dtype))  # type: ignore[attr-defined, call-arg]
    wrong = kernel.with_nest(replace(kernel.nest, reduction=halved))
    right = Bench(plan, kernel, build.backend, build.target)
    other = Bench(plan, wrong, build.backend, build.target)
    assert right.memory is not None
    assert other.memory is not None
    expected = right.memory.results(right.compile([parse_schedule(REMEMBERED)])[0])
    assert right.memory.agree(expected, right.memory.results(right.compile([()])[0]))
    assert not right.memory.agree(expected, other.memory.results(other.compile([()])[0]))


def test_cached_schedules_are_used_and_explained() -> None:
    _, _, routine = layer()
    remember(routine, REMEMBERED)
    context, result, again = layer()
    (kernel,) = oc.explain(again).kernels
    assert kernel.schedule == REMEMBERED
    assert "cached schedule: 1 us, best of 5; the default's took 2 us" in str(oc.explain(again))
    again()
    with core_settings.overrides(tune="off"):
        other, expected, default = layer()
        default()
    assert oc.explain(default).kernels[0].schedule != REMEMBERED
    np.testing.assert_allclose(context[result], other[expected], rtol=1e-5, atol=1e-6)


def test_a_cached_schedule_that_does_not_apply_is_reported_and_not_used() -> None:
    _, _, routine = layer()
    default = oc.explain(routine).kernels[0].schedule
    remember(routine, "split i 4; order i0 i1 j")
    _, _, again = layer()
    assert oc.explain(again).kernels[0].schedule == default
    assert "the cached schedule is not used: An order has the axes" in str(oc.explain(again))


def test_compiling_searches_where_that_is_set() -> None:
    with core_settings.overrides(tune="search", tune_budget=0.1):
        _, _, routine = layer(rows=28)
    assert oc.explain(routine).kernels[0].measured is not None


def test_an_unwritable_cache_loses_found_schedules_only(tmp_path: Path) -> None:
    (tmp_path / "schedules").write_text("in the way")
    with core_settings.overrides(cache_dir=str(tmp_path)):
        context, result, routine = layer()
        with pytest.warns(RuntimeWarning, match="Tuned schedules are not kept"):
            routine.tune(0.1)
        routine()
        assert context[result].shape == (24, 36)
        assert oc.explain(routine).kernels[0].measured is None


def test_plain_loops_can_be_remembered() -> None:
    _, _, routine = layer()
    remember(routine, "")
    context, result, again = layer()
    again()
    (kernel,) = oc.explain(again).kernels
    assert kernel.schedule == ""
    assert kernel.measured is not None
    assert context[result].shape == (24, 36)


def test_kernels_with_static_indices_run_where_accesses_stay_inside() -> None:
    first, second = StaticIndex("first", 10), StaticIndex("second")
    node = TensorNode(0)
    inside = [IndexBound(((1, first),), 3, 20, node), IndexBound(((2, second),), 4, 9, node)]
    assert index_values([first, second], inside) == {first: 3, second: 2}
    jointly = IndexBound(((1, first), (1, second)), 8, 9, node)
    assert index_values([first, second], [*inside, jointly]) is None


def test_a_kernel_with_a_static_index_is_searched_for() -> None:
    with oc.Session():
        i = oc.static_index("i", range=3)
        x = oc.tensor(np.ones((3, 24, 20), np.float32), batch_axes=2)[i]
        result = oc.param("w", output=[36]) @ x
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(result), bindings=[i])
        context.init_params(result)
    assert len(routine.tune(0.1).kernels) == 1
    routine(i=2)


def test_a_profile_times_every_kernel_on_copies() -> None:
    context, result, routine = layer()
    routine()
    before = context[result]
    found = routine.profile(0.01)
    assert [kernel.title for kernel in found.kernels] == [
        kernel.title for kernel in oc.explain(routine).kernels
    ]
    assert found.seconds == sum(kernel.seconds for kernel in found.kernels) > 0
    assert f"least of {found.rounds} rounds" in str(found)
    np.testing.assert_array_equal(context[result], before)


def test_operations_in_python_are_profiled_too() -> None:
    with oc.Session(), core_settings.overrides(python_ops=True):
        x = oc.tensor(np.ones((4, 5), np.float32), requires_grad=True)
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(oc.exp(Product()(x, x))))
    found = routine.profile(0.01)
    assert [each.is_external for each in oc.explain(routine).kernels] == [True, False]
    assert all(kernel.seconds > 0 for kernel in found.kernels)


_PROGRAM = """
import sys
import ocannl_core as oc
x = oc.placeholder("x", batch=[24], output=[20])
oc.Context("cpu_c").compile(oc.train.forward(oc.relu(oc.param("w", output=[36]) @ x)))
print(sys.argv[1:])
sys.exit(3)
"""


def test_the_command_runs_a_program_shows_and_forgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCANNL_BACKEND", "cpu_c")
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    assert main(["tune", "--budget", "0.1", str(script), "--", "--epochs", "1"]) == 3
    printed = capsys.readouterr().out
    assert "['--epochs', '1']" in printed
    assert "relu" in printed
    assert "kernels searched for: 1" in printed
    assert main(["tune", "--show"]) == 0
    assert "reduce k as v2 in range(20)" in capsys.readouterr().out
    assert main(["doctor"]) in (0, 1)
    assert "remembered schedules: 1 in" in capsys.readouterr().out
    assert main(["tune", "--forget"]) == 0
    assert capsys.readouterr().out.startswith("1 kernels forgotten")


def test_the_command_searches_over_placements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCANNL_BACKEND", "cpu_c")
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    assert main(["tune", "--budget", "0.1", "--placements", str(script)]) == 3
    printed = capsys.readouterr().out
    assert "placements of forward: 1 nodes may be virtual or local, 1 arms tried" in printed
    assert "routines searched for placements: 1" in printed
    assert main(["tune", "--show"]) == 0
    assert "placements of 1 routines in" in capsys.readouterr().out
    (entry,) = placement_cache(manager.select("cpu_c")[1]).entries()
    entry.path.write_text("{")
    main(["doctor"])
    assert "these routines run by default" in capsys.readouterr().out
    assert main(["tune", "--show"]) == 0
    assert "not readable, so not used" in capsys.readouterr().out
    assert main(["tune", "--forget"]) == 0
    assert "placements of 1 routines forgotten" in capsys.readouterr().out


def test_the_command_shows_kept_flips(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCANNL_BACKEND", "cpu_c")
    request = layer()[2]._build.request
    flips = (Flip(2, "matmul", MemoryMode.LOCAL),)
    placement_cache(request.target).keep(request, PlacementResult(flips, 1e-6, 2e-6, 3))
    assert main(["tune", "--show"]) == 0
    printed = capsys.readouterr().out
    assert "forward, 1 us, best of 3\n  2 us by default\n" in printed
    assert "  matmul: local, virtual by default" in printed


def test_doctor_reports_unreadable_schedules(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCANNL_BACKEND", "cpu_c")
    _, _, routine = layer()
    remember(routine, REMEMBERED)
    (entry,) = tuning_cache(routine._build.target).entries()
    entry.path.write_text("{")
    main(["doctor"])
    assert "1 of 1 in" in capsys.readouterr().out
    assert layer()[2].plan.steps
