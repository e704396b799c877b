"""Random choices by scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

SHARES = np.array([0.1, 0.2, 0.7])


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session(seed=3), oc.base.settings.overrides(backend="cpu_c"):
        yield


def drawn(count: int, **more: Any) -> np.ndarray:
    scores = oc.tensor(np.tile(np.log(SHARES) + 5.0, (count, 1)), batch_axes=1)
    chosen, ctx = oc.categorical(scores, **more), oc.Context()
    ctx.compile(oc.train.forward(chosen))()
    return np.asarray(ctx[chosen])


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_positions_are_drawn_with_the_probabilities_of_softmax(temperature: float) -> None:
    found = np.bincount(drawn(20_000, temperature=temperature), minlength=3) / 20_000
    expected = SHARES ** (1 / temperature)
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.015)


def test_the_greatest_score_is_chosen_at_temperature_0() -> None:
    assert (drawn(100, temperature=0) == 2).all()


def test_an_impossible_position_is_never_drawn() -> None:
    scores = oc.tensor(np.tile([-np.inf, 0.0, 0.0], (500, 1)), batch_axes=1)
    chosen, ctx = oc.categorical(scores), oc.Context()
    ctx.compile(oc.train.forward(chosen))()
    assert set(ctx[chosen].tolist()) == {1, 2}


def test_each_counter_draws_other_positions_and_the_same_one_the_same() -> None:
    call = oc.static_index("call")
    scores = oc.tensor(np.zeros((64, 5)), batch_axes=1)
    chosen, ctx = oc.categorical(scores, counter=call), oc.Context()
    step = ctx.compile(oc.train.forward(chosen), bindings=[call])
    found = []
    for number in (0, 1, 0):
        step(call=number)
        found.append(np.array(ctx[chosen]))
    assert (found[0] == found[2]).all()
    assert (found[0] != found[1]).any()


def test_positions_are_drawn_along_any_axis_in_any_float_format() -> None:
    scores = oc.tensor(np.log(SHARES)[:, None] * [[100.0, 100.0]], batch_axes=1, dtype="bfloat16")
    chosen, ctx = oc.categorical(scores, axis=0), oc.Context()
    ctx.compile(oc.train.forward(chosen))()
    assert ctx[chosen].tolist() == [2, 2]
    assert chosen.dtype is oc.int32


@pytest.mark.parametrize("more", [{"temperature": -1.0}, {"temperature": float("nan")}])
def test_a_negative_temperature_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(oc.UsageError, match="temperature of 0 or more"):
        oc.categorical(oc.tensor([1.0, 2.0]), **more)


def test_scores_are_floats() -> None:
    with pytest.raises(oc.UsageError, match="scores of int32"):
        oc.categorical(oc.tensor(np.array([1, 2], np.int32)))
