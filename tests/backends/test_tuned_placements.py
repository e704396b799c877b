"""Placements that a search has chosen: any legal set of them gives the results of the default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.compile.driver import generate_arm
from ocannl_core.compile.placements.placement_cache import placement_cache
from ocannl_core.compile.placements.placement_candidates import find_candidates
from ocannl_core.compile.tuned_placements import FLIPPED, Flip, PlacementResult, placed
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.traverse import writes
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import MemoryMode, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.pipeline import core_passes, run_passes
from ocannl_core.runtime.routine import Routine
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.chains import chain_programs
from tests.support.example_count import example_count

KEPT = Placement(MemoryMode.ON_DEVICE, Reason.KEPT)
Cells = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with settings.overrides(cache_dir=str(folder)):
        yield folder


def open_nodes(program: LoopProgram, kept: TensorNode) -> dict[TensorNode, MemoryMode]:
    """Return the nodes that may be virtual and may be local, with their default."""
    found: dict[TensorNode, MemoryMode] = {}

    def observe(node: TensorNode, info: NodeInfo, modes: tuple[MemoryMode, ...]) -> None:
        if FLIPPED.keys() <= set(modes):
            found[node] = modes[0]

    run_passes(program, core_passes(Decisions({kept: KEPT}, observe)))
    return found


@given(chain_programs(max_steps=6), st.data())
@hypothesis_settings(
    max_examples=example_count(10),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
def test_any_legal_flips_of_random_programs_give_the_bits_of_the_interpreter(
    target: str, example: Example, data: st.DataObject
) -> None:
    kept = writes(example.program.body)[-1]
    with settings.overrides(contract=False):
        modes = open_nodes(example.program, kept)
        flipped = data.draw(st.sets(st.sampled_from(list(modes)))) if modes else set()
        tuned = {node: placed(FLIPPED[modes[node]]) for node in flipped}
        program = run_passes(example.program, core_passes(Decisions({kept: KEPT}, tuned=tuned)))
    verify(program)
    if kept not in program.params:
        return
    before = subject_named("interp").run(example.program, example.arrays)[kept]
    after = subject_named(target).run(program, example.arrays)[kept]
    assert before.tobytes() == after.tobytes()


def layer(target: str) -> tuple[oc.Context, dict[str, oc.Tensor], Routine]:
    """Return a training step with tensors read once, twice, and in sums, and its loss."""
    with oc.Session(seed=1):
        x = oc.placeholder("x", batch=[4], output=[6])
        hidden = oc.param("w", output=[5]) @ x
        centered = hidden - oc.einsum("...|i => ...|0", hidden) / 5.0
        shifted = centered * centered + oc.relu(centered)
        loss = oc.einsum("...|... => 0", shifted * shifted)
        context = oc.Context(target)
        update = oc.train.sgd_update(loss, learning_rate=0.01)
        step = context.compile(oc.train.grad_update(loss) + update)
        context.init_params(loss)
        context[x] = np.linspace(-1, 1, 24).reshape(4, 6)
        (w,) = loss.params
        return context, {"loss": loss, "w": w}, step


def cells(context: oc.Context, tensors: Mapping[str, oc.Tensor]) -> Cells:
    return {name: context[tensor] for name, tensor in tensors.items()}


def remember(step: Routine, flips: tuple[Flip, ...]) -> None:
    """Make a search appear to have found flips for a routine."""
    cache = placement_cache(step._build.target)
    cache.keep(step._build.request, PlacementResult(flips, 1e-6, 2e-6, 3))


def flips_of(step: Routine) -> tuple[Flip, ...]:
    _, candidates = find_candidates(replace(step._build.request, tuned=None), generate_arm)
    return tuple(each.flip for each in candidates)


@given(st.data())
@hypothesis_settings(
    max_examples=example_count(4),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
def test_any_legal_flips_of_a_training_step_give_the_bits_of_the_default(
    target: str, data: st.DataObject
) -> None:
    with settings.overrides(contract=False, schedule="none"):
        with settings.overrides(tune="off"):
            context, tensors, step = layer(target)
        step()
        expected = cells(context, tensors)
        flips = flips_of(step)
        assert {each.mode for each in flips} == {MemoryMode.VIRTUAL, MemoryMode.LOCAL}
        remember(step, tuple(data.draw(st.sets(st.sampled_from(flips)))))
        context, tensors, step = layer(target)
        step()
        found = cells(context, tensors)
    assert {name: each.tobytes() for name, each in found.items()} == {
        name: each.tobytes() for name, each in expected.items()
    }


def test_all_flips_with_schedules_give_the_results_of_the_default(target: str) -> None:
    context, tensors, step = layer(target)
    step()
    expected = cells(context, tensors)
    remember(step, flips_of(step))
    context, tensors, step = layer(target)
    step()
    for name, found in cells(context, tensors).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=1e-6)


def test_cached_placements_are_those_of_the_routine_and_explained(target: str) -> None:
    _, _, step = layer(target)
    flips = flips_of(step)
    first = next(each for each in flips if each.mode is MemoryMode.VIRTUAL)
    remember(step, (first,))
    _, _, again = layer(target)
    found = oc.explain(again)
    chosen = [each for each in found.nodes if each.reason == Reason.MEASURED_FASTEST.text]
    assert [each.mode for each in chosen] == [MemoryMode.VIRTUAL]
    assert found.unused == ()
    assert "cached placements: 1 us, best of 3; the default's took 2 us" in str(found)


def test_placements_of_the_steps_of_a_loop_can_be_flipped(target: str) -> None:
    def run() -> tuple[np.ndarray[Any, Any], Routine]:
        with oc.Session():
            xs = oc.tensor(np.linspace(0, 1, 12).reshape(4, 3), batch_axes=1)

            def body(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
                mixed = oc.exp(h * 0.5 + x)
                new = mixed * mixed - mixed
                return new, new

            _, last = oc.scan(body, oc.tensor([0.0, 0.1, 0.2]), xs)
            context = oc.Context(target)
            step = context.compile(oc.train.forward(last))
            step()
            return context[last], step

    with settings.overrides(contract=False, schedule="none"):
        expected, step = run()
        flips = flips_of(step)
        assert flips
        remember(step, flips)
        found, again = run()
    reasons = [each.reason for each in again.placements.values()]
    assert reasons.count(Reason.MEASURED_FASTEST) == len(flips)
    assert found.tobytes() == expected.tobytes()


def copying(target: str, *, twice: bool) -> tuple[oc.Context, oc.Tensor, Routine, oc.Tensor]:
    """Return a routine with an intermediate tensor: virtual, or local if it is read twice."""
    x = oc.tensor([0.0, 1.0, 2.0])
    middle = oc.exp(x) if twice else x + 1.0
    result = middle * 2.0 + middle * x / 3.0 if twice else middle * 2.0
    ctx = oc.Context(target)
    return ctx, result, ctx.compile(oc.train.forward(result)), middle


@oc.cd
def copy(to: oc.Tensor, source: oc.Tensor) -> None:
    to[:] = source


def test_later_code_computes_a_tensor_again_that_a_search_has_stored(target: str) -> None:
    with oc.Session():
        remember_only(copying(target, twice=False)[2], MemoryMode.LOCAL)
    with oc.Session():
        ctx, _, step, middle = copying(target, twice=False)
        assert step.placements[middle.node].mode is MemoryMode.LOCAL
        copied = oc.declare("copied")
        second = ctx.compile(copy(copied, middle))
        step()
        second()
        assert ctx[copied].tolist() == [1, 2, 3]


def test_later_code_cannot_read_a_tensor_because_a_search_has_made_it_virtual(target: str) -> None:
    with oc.Session():
        ctx, _, step, middle = copying(target, twice=True)
        assert step.placements[middle.node].mode is MemoryMode.LOCAL
        remember_only(step, MemoryMode.VIRTUAL)
    with oc.Session():
        ctx, _, step, middle = copying(target, twice=True)
        assert step.placements[middle.node].mode is MemoryMode.VIRTUAL
        with pytest.raises(oc.LinkError, match="computed by it or stored"):
            ctx.compile(copy(oc.declare("copied"), middle))


def remember_only(step: Routine, mode: MemoryMode) -> None:
    remember(step, tuple(each for each in flips_of(step) if each.mode is mode))
