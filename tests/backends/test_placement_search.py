"""Search over placements: arms are compared, the fastest is used, remembered and reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.base.files.digests import add_json_digest
from ocannl_core.compile import driver
from ocannl_core.compile.driver import generate_arm
from ocannl_core.compile.lowered_code import LoweredCode
from ocannl_core.compile.placements.placement_cache import placement_cache, program_text
from ocannl_core.compile.placements.placement_candidates import ObserveModes
from ocannl_core.compile.placements.search import search_placements
from ocannl_core.compile.stages import CompileRequest, GeneratedCode
from ocannl_core.compile.trial_memory import Trial, TrialMemory
from ocannl_core.compile.tuned_placements import Flip, PlacementResult
from ocannl_core.ir.loops.nodes import Const, Expr
from ocannl_core.ir.loops.traverse import rewrite
from ocannl_core.ir.node import MemoryMode, Placement, Reason
from ocannl_core.passes.loops.recompute_in_budget import needed_bytes
from ocannl_core.runtime.routine import Routine


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with settings.overrides(cache_dir=str(tmp_path)):
        yield tmp_path


@pytest.fixture
def every_arm_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report half the time for the second of two variants, whatever it is."""
    pretend(monkeypatch, lambda trials: [1.0, 0.5][: len(trials)])


@pytest.fixture
def every_arm_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda trials: [1.0, 2.0][: len(trials)])


def pretend(
    monkeypatch: pytest.MonkeyPatch, times: Callable[[Sequence[Trial]], list[float]]
) -> None:
    def samples(self: TrialMemory, trials: Sequence[Trial], rounds: int) -> list[list[float]]:
        return [[each] for each in times(trials)]

    monkeypatch.setattr(TrialMemory, "samples", samples)
    monkeypatch.setattr(TrialMemory, "run", lambda self, trial: _run(self, trial))


_real_run = TrialMemory.run


def _run(memory: TrialMemory, trial: Trial) -> float:
    _real_run(memory, trial)
    return 1e-6


def twice(
    target: str, label: str = "x", *, value: bool = True
) -> tuple[oc.Context, oc.Tensor, Routine]:
    """Return a routine with one tensor that is read twice, and virtual ones."""
    with oc.Session():
        x = oc.placeholder(label, output=[6])
        middle = oc.sqrt(oc.exp(x))
        result = middle * 2.0 + middle * x
        context = oc.Context(target)
        step = context.compile(oc.train.forward(result))
        if value:
            context[x] = np.arange(6)
    return context, result, step


def request_of(step: Routine) -> CompileRequest:
    return replace(step._build.request, tuned=None)


def test_a_search_changes_neither_tensors_nor_results(target: str) -> None:
    context, result, step = twice(target)
    step()
    before = context[result]
    found = step.tune(0.4, placements=True)
    np.testing.assert_array_equal(context[result], before)
    step()
    np.testing.assert_allclose(context[result], before, rtol=1e-6)
    assert found.placements is not None
    assert found.placements.candidates > 1
    assert found.placements.spent > 0
    assert found.placements.budget == 0.2
    assert "placements of forward" in str(found)


@pytest.mark.usefixtures("every_arm_is_faster")
def test_the_fastest_placements_are_used_remembered_and_explained(target: str) -> None:
    context, result, step = twice(target)
    step()
    before, default = context[result], step.placements
    found = step.tune(20.0, placements=True).placements
    assert found is not None
    assert found.is_faster
    flipped = {n for n, p in step.placements.items() if p.mode is not default[n].mode}
    assert len(flipped) == len(found.kept) > 0
    assert {p.reason for n, p in step.placements.items() if n in flipped} == {
        Reason.MEASURED_FASTEST
    }
    step()
    np.testing.assert_allclose(context[result], before, rtol=1e-6)
    assert "cached placements: 500 ms" in str(oc.explain(step))
    context, result, again = twice(target)
    assert modes(again.placements) == modes(step.placements)
    again()
    np.testing.assert_allclose(context[result], before, rtol=1e-6)


def modes(placements: Mapping[Any, Placement]) -> list[MemoryMode]:
    return [each.mode for each in placements.values()]


@pytest.mark.usefixtures("every_arm_is_slower")
def test_the_default_stays_where_nothing_is_faster(target: str) -> None:
    _, _, step = twice(target)
    before = step.placements
    found = step.tune(20.0, placements=True).placements
    assert found is not None
    assert not found.is_faster
    assert found.left == 0
    assert all(arm.seconds == 2.0 for arm in found.arms if not arm.problem)
    assert modes(step.placements) == modes(before)
    assert "tuning chose the default placements" in str(oc.explain(step))
    assert "none faster" in str(found)


@pytest.mark.usefixtures("every_arm_is_slower")
def test_a_finished_search_is_repeated_only_with_again(target: str) -> None:
    _, _, step = twice(target)
    first = step.tune(20.0, placements=True).placements
    known = step.tune(20.0, placements=True).placements
    again = step.tune(20.0, placements=True, again=True).placements
    assert first is not None
    assert known is not None
    assert again is not None
    assert (first.is_known, known.is_known, again.is_known) == (False, True, False)
    assert known.arms == ()
    assert len(again.arms) == len(first.arms)


@pytest.mark.usefixtures("every_arm_is_faster")
def test_a_search_without_time_reports_the_flips_left(target: str) -> None:
    _, _, step = twice(target)
    found = step.tune(0.0, placements=True).placements
    assert found is not None
    assert found.left == found.candidates
    assert f"{found.left} flips left for the next time" in str(found)
    _, _, again = twice(target)
    repeated = again.tune(20.0, placements=True).placements
    assert repeated is not None
    assert not repeated.is_known


def test_routines_without_values_are_searched_with_made_up_numbers(target: str) -> None:
    _, _, step = twice(target, value=False)
    found = step.tune(0.2, placements=True).placements
    assert found is not None
    assert found.problem == ""
    assert found.arms


def test_training_continues_from_the_same_parameters_after_a_search(target: str) -> None:
    with oc.Session(seed=1):
        x = oc.tensor([1.0, 2.0, 3.0])
        w = oc.param("w", output=[3], init=oc.uniform())
        loss = oc.einsum("... => 0", oc.sqrt(oc.exp(w * x)))
        context = oc.Context(target)
        update = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
        step = context.compile(update)
        context.init_params(loss)
        step()
        before = context[w]
        step.tune(0.2, placements=True)
        np.testing.assert_array_equal(context[w], before)


def test_a_routine_with_a_static_index_is_searched(target: str) -> None:
    with oc.Session():
        i = oc.static_index("i", range=3)
        x = oc.tensor(np.ones((3, 4), np.float32), batch_axes=1)[i]
        step = oc.Context(target).compile(oc.train.forward(oc.sqrt(oc.exp(x))), bindings=[i])
    found = step.tune(0.2, placements=True).placements
    assert found is not None
    assert found.arms
    step(i=2)


def test_a_routine_that_reads_a_merge_buffer_is_searched_before_its_first_call(target: str) -> None:
    @oc.cd
    def merged(total: oc.Tensor, value: oc.Tensor) -> None:
        total[:] = value.merge

    with oc.Session():
        x = oc.tensor([0.0, 1.0])
        value, total = x * 2.0, oc.declare("total")
        root = oc.sqrt(oc.exp(total))
        result = root * root + root
        context, source = oc.Context(target), oc.Context(target)
        source.compile(oc.train.forward(value))()
        step = context.compile(merged(total, value) + oc.train.forward(result))
        found = step.tune(0.2, placements=True).placements
        assert found is not None
        assert found.arms
        context.fill_merge(value, source=source)
        step()
        expected = np.exp([0.0, 2.0]) + np.sqrt(np.exp([0.0, 2.0]))
        np.testing.assert_allclose(context[result], expected, rtol=1e-6)


def test_a_routine_whose_axes_have_extents_of_calls_is_searched(target: str) -> None:
    with oc.Session():
        n = oc.static_extent("n", max=6)
        x = oc.placeholder("x", batch=[n], output=[2])
        root = oc.sqrt(oc.exp(x))
        result = root * root + root
        context = oc.Context(target)
        step = context.compile(oc.train.forward(result))
        context[x] = np.zeros((6, 2))
        found = step.tune(0.2, placements=True).placements
        assert found is not None
        assert found.arms
        step(n=4)
        np.testing.assert_allclose(context[result][:4], 2.0, rtol=1e-6)


def failing(flipped: Callable[[CompileRequest], GeneratedCode]) -> Any:
    """Return a generator of code in which arms with flips are made by another function."""

    def generate(request: CompileRequest, observe: ObserveModes | None = None) -> GeneratedCode:
        return flipped(request) if request.tuned_places else generate_arm(request, observe)

    return generate


def test_an_arm_that_fails_to_compile_loses_and_is_reported(target: str) -> None:
    def refused(request: CompileRequest) -> GeneratedCode:
        raise oc.CompileError("The compiler rejects this.", found="an arm")

    _, _, step = twice(target)
    winner, found = search_placements(request_of(step), failing(refused), 10.0)
    assert winner is not None
    assert not found.is_faster
    assert {arm.problem for arm in found.failed} == {"The compiler rejects this. an arm"}
    assert len(found.failed) == len(found.arms) > 0
    assert "The compiler rejects this. an arm" in str(found)


@pytest.mark.usefixtures("every_arm_is_faster")
def test_an_arm_with_other_results_loses(target: str) -> None:
    def wrong(request: CompileRequest) -> GeneratedCode:
        def other(expr: Expr) -> Expr:
            return Const(2.5, expr.dtype) if isinstance(expr, Const) and expr.value == 2 else expr

        code, lowered = request.code, request.lowered
        changed = replace(lowered, body=rewrite(lowered.body, lambda stmt: stmt, other))
        other_code = LoweredCode(code.facts, lambda: changed, code.nodes, code.indices)
        return generate_arm(replace(request, code=other_code))

    _, _, step = twice(target)
    _, found = search_placements(request_of(step), failing(wrong), 10.0)
    assert not found.is_faster
    assert {arm.problem for arm in found.failed} == {
        "its results differ by more than reordered sums may"
    }


@pytest.mark.usefixtures("every_arm_is_faster")
def test_arms_beyond_limits_on_memory_lose(target: str) -> None:
    with oc.Session():  # the sum of a row is read by all its cells, and no row needs the others
        x = oc.placeholder("x", batch=[4], output=[6])
        powers = oc.exp(x)
        shares = powers / oc.einsum("...|... => ...|0", oc.exp(powers * 2.0))
        context = oc.Context(target)
        with settings.overrides(memory_budget=0):
            request = request_of(context.compile(oc.train.forward(shares)))
            winner, found = search_placements(request, generate_arm, 10.0)
            default = needed_bytes(generate_arm(request).program.loops)
    assert winner is not None
    assert needed_bytes(winner.code.program.loops) <= default
    assert any("memory_budget allows 0" in arm.problem for arm in found.failed)
    with settings.overrides(device_memory=1):
        _, _, step = twice(target)
        _, found = search_placements(request_of(step), generate_arm, 10.0, in_use=1 << 20)
    assert "device_memory leaves 0" in found.problem


def test_an_arm_with_far_more_work_is_not_run(target: str) -> None:
    with oc.Session():
        a, b, c = (oc.placeholder(name, input=[20], output=[20]) for name in "abc")
        step = oc.Context(target).compile(oc.train.forward(a @ (b @ c)))
        _, found = search_placements(request_of(step), generate_arm, 10.0)
    (arm,) = found.failed
    assert "times the work" in arm.problem


def test_a_default_that_does_not_run_is_reported(target: str) -> None:
    with oc.Session():
        table = oc.tensor(np.ones((1, 3), np.float32), batch_axes=1)
        ids = oc.placeholder("ids", output=[50], dtype="int32")
        step = oc.Context(target).compile(oc.train.forward(oc.exp(oc.take(table, ids))))
        found = step.tune(0.2, placements=True).placements
    assert found is not None
    assert "the default does not run" in found.problem
    assert "nothing was tried" in str(found)


def remember(step: Routine, *flips: Flip) -> None:
    cache = placement_cache(step._build.target)
    cache.keep(request_of(step), PlacementResult(flips, 1e-6, 2e-6, 3))


def stored(step: Routine) -> tuple[Flip, ...]:
    """Return a flip that stores the first virtual node of a routine."""
    names = [node.name for node in request_of(step).lowered.nodes]
    return (Flip(names.index("exp"), "exp", MemoryMode.LOCAL),)


def mode_of_exp(step: Routine) -> MemoryMode:
    return next(p.mode for node, p in step.placements.items() if node.name == "exp")


def test_alpha_equivalent_routines_share_placements(target: str) -> None:
    _, _, step = twice(target)
    assert mode_of_exp(step) is MemoryMode.VIRTUAL
    remember(step, *stored(step))
    assert mode_of_exp(twice(target)[2]) is MemoryMode.LOCAL
    assert mode_of_exp(twice(target, label="input")[2]) is MemoryMode.LOCAL


@pytest.mark.parametrize(
    "change",
    [
        {"contract": False},
        {"accumulation": "exact"},
        {"schedule": "none"},
        {"max_visits": 2},
        {"memory_budget": 0},
        {"tune": "off"},
    ],
    ids=str,
)
def test_placements_are_not_used_with_other_numerics_or_other_rules(change: dict[str, Any]) -> None:
    _, _, step = twice("interp")
    remember(step, *stored(step))
    with settings.overrides(**change):
        assert mode_of_exp(twice("interp")[2]) is MemoryMode.VIRTUAL
    assert mode_of_exp(twice("interp")[2]) is MemoryMode.LOCAL


def test_the_key_has_formats_extents_and_stored_tensors() -> None:
    def key(size: int = 6, dtype: str = "float32", **options: Any) -> str:
        with oc.Session():
            x = oc.placeholder("x", output=[size], dtype=dtype)
            y = oc.exp(x)
            given: Any = {name: [y] for name in options}
            step = oc.Context("interp").compile(oc.train.forward(y * 2.0), **given)
            return program_text(request_of(step))

    keys = [key(), key(7), key(dtype="float64"), key(keep=True), key(inline=True)]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_entries_that_do_not_apply_are_ignored_and_explained(target: str) -> None:
    _, _, step = twice(target)
    names = [node.name for node in request_of(step).lowered.nodes]
    x = Flip(names.index("x"), "x", MemoryMode.VIRTUAL)
    remember(step, x, Flip(1000, "nowhere", MemoryMode.LOCAL))
    context, result, again = twice(target)
    assert modes(again.placements) == modes(step.placements)
    assert "a cached placement is not used: x is on device" in str(oc.explain(again))
    again()
    assert context[result].shape == (6,)


def test_placements_with_which_code_does_not_compile_are_not_used(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, step = twice(target)
    remember(step, *stored(step))
    real = driver.generate

    def generate(request: CompileRequest, *arguments: Any) -> GeneratedCode:
        if request.tuned_places:
            raise oc.CompileError("The compiler rejects this.", found="an arm")
        return real(request, *arguments)

    monkeypatch.setattr(driver, "generate", generate)
    context, result, again = twice(target)
    assert mode_of_exp(again) is MemoryMode.VIRTUAL
    text = str(oc.explain(again))
    assert "the cached placements are not used: The compiler rejects this. an arm" in text
    again()
    assert context[result].shape == (6,)


def test_placements_that_do_not_fit_into_the_device_are_not_used(target: str) -> None:
    def compiled() -> Routine:
        with oc.Session():
            x = oc.placeholder("x", output=[100_000])
            y = oc.sqrt(oc.exp(x)) + x
            with settings.overrides(schedule="none"):  # no kernel forwards a store to its loads
                return oc.Context(target).compile(oc.train.forward(y))

    step = compiled()
    with settings.overrides(schedule="none"):
        remember(step, *stored(step))
    del step  # with its memory
    assert mode_of_exp(compiled()) is MemoryMode.LOCAL
    with settings.overrides(device_memory=1):
        again = compiled()
    assert mode_of_exp(again) is MemoryMode.VIRTUAL
    assert "the cached placements are not used: The nodes that" in str(oc.explain(again))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flips", [[0, "x", "hosted"]]),
        ("flips", [[-1, "x", "local"]]),
        ("flips", [["0", "x", "local"]]),
        ("flips", [[0, "x\x1b[2J", "local"]]),
        ("flips", [[0, "x"]]),
        ("flips", 3),
        ("routine", "a b"),
        ("seconds", "soon"),
        ("version", 99),
    ],
)
def test_malformed_entries_are_no_entries(name: str, value: object) -> None:
    _, _, step = twice("interp")
    remember(step, *stored(step))
    cache = placement_cache(step._build.target)
    (entry,) = cache.entries()
    content = json.loads(entry.path.read_text())
    del content["sha256"]
    entry.path.write_bytes(add_json_digest(entry.path.name, {**content, name: value}))
    assert [each.measured for each in cache.entries()] == [None]
    assert mode_of_exp(twice("interp")[2]) is MemoryMode.VIRTUAL


def test_a_damaged_entry_is_not_used() -> None:
    _, _, step = twice("interp")
    remember(step, *stored(step))
    (entry,) = placement_cache(step._build.target).entries()
    entry.path.write_text(entry.path.read_text().replace("local", "virtual"))
    assert mode_of_exp(twice("interp")[2]) is MemoryMode.VIRTUAL


@pytest.mark.usefixtures("every_arm_is_faster")
def test_an_unwritable_cache_loses_placements_for_other_programs_only(
    target: str, cache: Path
) -> None:
    _, _, step = twice(target)
    (cache / "placements").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="Tuned placements are not kept"):
        found = step.tune(20.0, placements=True).placements
    assert found is not None
    assert found.is_faster
    assert Reason.MEASURED_FASTEST in {each.reason for each in step.placements.values()}


def test_compiling_searches_where_that_is_set(target: str) -> None:
    with settings.overrides(tune="search", tune_placements=True, tune_budget=0.1):
        _, _, step = twice(target)
    assert oc.explain(step).measured is not None
    assert len(list(placement_cache(step._build.target).entries())) == 1
