"""Data parallel steps over processes: what travels and when, memory, and the training loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.train import process_sums
from ocannl_core.train.process_sums import buckets_of
from ocannl_core.train.slot_tree import share
from tests.support.ranks import Rank, Ranks, on_all
from tests.support.slow import long

SLOTS, ROWS = 6, 2
Array = np.ndarray[Any, Any]


class Trained:
    """A model of one process with its step."""

    def __init__(
        self, optimizer: oc.train.Optimizer, communicator: Any, backend: str, **options: Any
    ) -> None:
        self.session = oc.Session(seed=2)
        self.optimizer = optimizer
        with self.session:
            self.x = oc.placeholder("x", batch=[ROWS], output=[5])
            self.w = [oc.param(f"w{k}", output=[size]) for k, size in enumerate((64, 32, 2))]
            hidden = oc.relu(self.w[1] @ oc.relu(self.w[0] @ self.x))
            fixed = oc.stop_gradient(oc.param("frozen", output=[2]))
            error = self.w[2] @ hidden + oc.param("b", output=[2]) + fixed
            self.loss = oc.einsum("...|... => 0", error * error) / float(ROWS)
            self.step = oc.train.data_parallel(
                self.loss,
                optimizer,
                [self.x],
                slots=SLOTS,
                devices=[f"{backend}:0"],
                communicator=communicator,
                **options,
            )
            self.step.context.init_params(self.loss)

    def bits(self) -> list[bytes]:
        return [self.step.context[each].tobytes() for each in self.loss.params]

    def state_bytes(self) -> int:
        """Return the size of the optimizer's state by the report of the device's memory."""
        names = {each.node.name for each in self.optimizer.state.values()}
        entries = self.step.context.memory.entries
        return sum(each.nbytes for each in entries if each.label in names)


def group(
    size: int,
    optimizer: Callable[[], oc.train.Optimizer],
    backend: str = "cpu_c",
    bucket_bytes: int = 1,
    **options: Any,
) -> tuple[Ranks, list[Trained]]:
    """Return the models of a group; of one, without a communicator."""
    ranks = Ranks(size)
    if size == 1:
        return ranks, [Trained(optimizer(), None, backend, **options)]
    communicators = [Rank(ranks, k, bucket_bytes) for k in range(size)]
    return ranks, [Trained(optimizer(), each, backend, **options) for each in communicators]


def batches(count: int) -> Array:
    random = np.random.default_rng(0)
    return random.normal(size=(count, SLOTS * ROWS, 5)).astype(np.float32)


def train(ranks: Ranks, models: list[Trained], count: int = 4) -> list[bytes]:
    """Return the bits after some steps, which all processes have."""
    for batch in batches(count):
        on_all(ranks, lambda k, x=batch: models[k].step(x))
    found = [model.bits() for model in models]
    assert all(each == found[0] for each in found)
    return found[0]


@cache
def trained_alone(optimizer: Callable[[], oc.train.Optimizer]) -> list[bytes]:
    """Return the bits of one process."""
    return train(*group(1, optimizer))


def adam() -> oc.train.Optimizer:
    return oc.train.AdamW(learning_rate=0.05, weight_decay=0.1, average=0.9, accumulate=2)


def clipped() -> oc.train.Optimizer:
    return oc.train.AdamW(learning_rate=0.05, clip_norm=0.3)


@pytest.mark.parametrize("size", [*long([2]), 3])
def test_the_state_of_each_process_is_its_share(size: int) -> None:
    ranks, (whole,) = group(1, adam)
    expected = train(ranks, [whole])
    ranks, models = group(size, adam, shard_state=True)
    assert train(ranks, models) == expected
    total = whole.state_bytes()
    for model in models:
        assert model.state_bytes() <= total / size * 1.05


def test_clipping_by_the_global_norm_reads_the_whole_gradient() -> None:
    assert train(*group(3, clipped, shard_state=True)) == trained_alone(clipped)


def test_rows_of_gradients_alone_travel_if_the_state_is_sharded() -> None:
    def sent(**options: Any) -> int:
        _, models = group(2, lambda: oc.train.SGD(learning_rate=0.1, momentum=0.9), **options)
        model = models[0]
        train(_, models, 1)
        exchanges = model.step.communicator.exchanges  # type: ignore[attr-defined]
        return sum(
            cells.nbytes for each in exchanges for parcel in each.parcels for cells in parcel.sent
        )

    gradients = 4 * (64 * 5 + 32 * 64 + 2 * 32 + 2)
    assert sent() == sent(shard_state=True)
    assert sent() - 1.5 * gradients in range(100)  # slots 0 to 2 are two spans of the tree


def test_queued_work_is_over_before_its_results_travel() -> None:
    with settings.overrides(asynchronous=True):
        ranks, models = group(2, adam, shard_state=True)
        assert train(ranks, models) == trained_alone(adam)


def test_gradients_travel_while_earlier_layers_are_computed() -> None:
    ranks, models = group(2, clipped)
    train(ranks, models, 1)
    with models[0].step.traced() as phases:
        train(ranks, models, 1)
    last = models[0].step.slots[-1]
    starts = {each.name: each.start for each in phases}
    (slot,) = [each for each in phases if each.name == f"slot {last}"]
    assert slot.start < starts["bucket 0: rows"] < slot.end < starts["update"]
    assert starts["bucket 0: rows"] <= starts["bucket 1: rows"]
    with models[0].step.traced() as later:
        pass
    assert not later


@given(
    st.lists(st.integers(0, 50), max_size=12).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.permutations(range(len(sizes))))
    ),
    st.integers(1, 100),
)
def test_buckets_have_every_tensor_once_in_order(
    given: tuple[list[int], list[int]], least: int
) -> None:
    sizes, order = given
    found = buckets_of(sizes, order, least)
    assert [k for bucket in found for k in bucket] == order
    for bucket in found[:-1]:
        assert 2 * sum(sizes[k] for k in bucket) >= least
    for bucket in found:
        assert sum(sizes[k] for k in bucket[:-1]) < least


def hidden_memory(buffer: Any, *, passes_device_memory: bool) -> Any:
    """Return a buffer for a communicator that can address it, as if this process could not."""
    return buffer if passes_device_memory else None


@pytest.mark.parametrize(("is_passed", "is_sharded"), [(False, False), (False, True), (True, True)])
def test_memory_that_the_process_cannot_address_is_staged_or_passed(
    is_passed: bool, is_sharded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained_alone(adam)
    monkeypatch.setattr(process_sums, "_addressable", hidden_memory)
    monkeypatch.setattr(Rank, "passes_device_memory", is_passed)
    ranks, models = group(2, adam, shard_state=is_sharded)
    assert train(ranks, models) == expected
    exchanges = models[0].step.communicator.exchanges  # type: ignore[attr-defined]
    cells = [c for each in exchanges for p in each.parcels for c in (*p.sent, *p.received)]
    assert cells
    assert all(isinstance(each.memory, np.ndarray) is not is_passed for each in cells)


def test_the_training_loop_decides_the_same_in_all_processes(tmp_path: Path) -> None:
    """With early stopping, and a checkpoint that resumes in another number of processes."""

    def fit(ranks: Ranks, models: list[Trained], **options: Any) -> list[oc.train.Run]:
        def run(k: int) -> oc.train.Run:
            model = models[k]
            rows = batches(4).reshape(-1, 5)
            loader = oc.data.Loader(
                rows, batch=SLOTS * ROWS, shuffle=True, slot=model.step.slots, slots=SLOTS
            )
            checkpoint = oc.train.Checkpoint(
                tmp_path / f"{ranks.size}.safetensors", model.loss, model.optimizer, every=3
            )
            with model.session:
                return oc.train.fit(
                    model.step,
                    loader,
                    [model.x],
                    loss=model.loss,
                    checkpoint=checkpoint,
                    progress=False,
                    **options,
                )

        return on_all(ranks, run)

    def large() -> oc.train.Optimizer:
        return oc.train.AdamW(learning_rate=0.5)

    found, saved = {}, {}
    for size in (1, 2, 3):
        ranks, models = group(size, large, shard_state=size > 1)
        runs = fit(ranks, models, epochs=30, patience=1)
        for run in runs:
            assert run.ended_by == "patience"
            found[run.step, run.losses.tobytes()] = size
        saved[size] = (tmp_path / f"{size}.safetensors").read_bytes()
    assert len(found) == 1
    assert saved[1] == saved[2] == saved[3]


def test_values_that_are_not_finite_travel_as_they_are() -> None:
    def guarded() -> oc.train.Optimizer:
        return oc.train.SGD(learning_rate=0.1, skip_nonfinite=True)

    found = set()
    for size in (1, 2):
        ranks, models = group(size, guarded)
        good, bad = batches(2)
        bad[-1] = np.inf
        for batch in (good, bad, good):
            on_all(ranks, lambda k, x=batch, models=models: models[k].step(x))
        found.add(b"".join(models[0].bits()))
        assert all(
            np.isfinite(models[0].step.context[each]).all() for each in models[0].loss.params
        )
    assert len(found) == 1


def test_each_process_of_a_group_has_a_slot() -> None:
    with pytest.raises(oc.UsageError, match="7 processes and 6 slots") as raised:
        Trained(adam(), Rank(Ranks(7), 3), "interp")
    assert raised.value.is_common


def test_facts_differ_with_hyperparameters() -> None:
    facts = []
    for rate in (0.1, 0.2):
        for is_sharded in (False, True):
            ranks = Ranks(2)
            Trained(
                oc.train.AdamW(learning_rate=rate), Rank(ranks, 0), "interp", shard_state=is_sharded
            )
            facts.append(ranks.facts[0]["code of the update"])
    assert len(set(facts)) == 4


def test_slots_are_consecutive() -> None:
    assert [share(6, 4, k) for k in range(4)] == [range(1), range(1, 3), range(3, 4), range(4, 6)]
