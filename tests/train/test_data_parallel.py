"""Data parallel steps: equal bits on any number of devices and processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from tests.support.ranks import Rank, Ranks

SLOTS, ROWS = 8, 3
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with settings.overrides(host_devices=8):
        yield


class Model:
    """A small network with dropout and batch normalization, in a session of its own."""

    def __init__(self, optimizer: Callable[[], oc.train.Optimizer]) -> None:
        self.session = oc.Session(seed=3)
        with self.session:
            self.x = oc.placeholder("x", batch=[ROWS], output=[5])
            self.y = oc.placeholder("y", batch=[ROWS], output=[2])
            hidden = oc.relu(oc.nn.batch_norm()(oc.nn.dense(output=[4])(self.x)))
            found = oc.nn.dense(output=[2])(oc.nn.dropout(hidden, rate=0.25))
            self.loss = oc.nn.mean_squared_error(found, self.y)
            self.optimizer = optimizer()

    def step(self, backend: str, count: int, **options: Any) -> oc.train.DataParallel:
        names = [f"{backend}:{k}" for k in range(count)]
        options = {"devices": names, "slots": SLOTS, **options}
        return oc.train.data_parallel(self.loss, self.optimizer, [self.x, self.y], **options)

    def state(self, ctx: oc.Context) -> list[bytes]:
        """Return the bits of parameters, statistics and the optimizer's state."""
        tensors = [*self.loss.params, *self.loss.statistics, *self.optimizer.state.values()]
        return [ctx[each].tobytes() for each in tensors]


def batches(count: int) -> list[tuple[Array, Array]]:
    random = np.random.default_rng(0)
    rows = SLOTS * ROWS
    return [
        (
            random.normal(size=(rows, 5)).astype(np.float32),
            random.normal(size=(rows, 2)).astype(np.float32),
        )
        for _ in range(count)
    ]


def adamw() -> oc.train.Optimizer:
    return oc.train.AdamW(learning_rate=0.05, weight_decay=0.1, clip_norm=1.0)


def sgd() -> oc.train.Optimizer:
    return oc.train.SGD(learning_rate=0.1, momentum=0.9)


@cache
def trained(backend: str, count: int, optimizer: Callable[[], oc.train.Optimizer]) -> list[bytes]:
    """Return the state after three steps, which is equal on all devices."""
    model = Model(optimizer)
    step = model.step(backend, count)
    step.context.init_params(model.loss)
    for x, y in batches(3):
        step(x, y)
    found = model.state(step.context)
    for context in step.contexts:
        assert model.state(context) == found
    return [*found, np.float64(step.loss).tobytes()]


@pytest.mark.parametrize(("optimizer", "counts"), [(adamw, (3, 8)), (sgd, (2, 6))])
def test_the_bits_do_not_depend_on_the_number_of_devices(
    optimizer: Callable[[], oc.train.Optimizer], counts: tuple[int, ...]
) -> None:
    one = trained("cpu_c", 1, optimizer)
    for count in counts:
        assert trained("cpu_c", count, optimizer) == one


def test_the_interpreter_has_several_devices_too() -> None:
    assert trained("interp", 3, sgd) == trained("interp", 1, sgd)


def test_asynchronous_contexts_give_the_same_bits() -> None:
    with settings.overrides(asynchronous=True):
        several = trained.__wrapped__("cpu_c", 3, adamw)
    assert several == trained("cpu_c", 1, adamw)


def plain_model() -> tuple[oc.Tensor, oc.Tensor, Callable[[int], tuple[oc.Tensor, oc.Tensor]]]:
    """Return a weight, a bias, and the input and the mean loss of a number of rows."""
    w, b = oc.param("w", output=[1]), oc.param("b", output=[1], init=0.5)

    def loss(rows: int) -> tuple[oc.Tensor, oc.Tensor]:
        x = oc.placeholder(f"x{rows}", batch=[rows], output=[4])
        y = w @ x + b
        return x, oc.einsum("...|... => 0", y * y) / float(rows)

    return w, b, loss


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_step_is_that_of_the_whole_batch(reduction: Any) -> None:
    with oc.Session():
        w, b, loss_of = plain_model()
        x, loss = loss_of(2)
        ctx = oc.Context("cpu_c")
        step = oc.train.data_parallel(
            loss,
            oc.train.SGD(learning_rate=0.1),
            [x],
            slots=6,
            devices=["cpu_c:0", "cpu_c:1"],
            reduction=reduction,
            metrics=[loss],
        )
        step.context.init_params(loss)
        ctx.copy_from(step.context, [w, b])
        cells = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)
        values = ctx[w], ctx[b]
        step(cells)
        scale = 1.0 if reduction == "mean" else 6.0
        y = cells @ values[0].T + values[1]
        for tensor, before, gradient in (
            (w, values[0], 2 * y.T @ cells / 12),
            (b, values[1], 2 * y.sum(axis=0) / 12),
        ):
            assert np.allclose(step.context[tensor.grad], scale * gradient, rtol=1e-4, atol=1e-5)
            expected = before - 0.1 * scale * gradient
            assert np.allclose(step.context[tensor], expected, rtol=1e-4, atol=1e-5)
        assert np.isclose(step.loss, (y * y).sum() / 12, rtol=1e-5)
        assert np.isclose(float(step.mean(loss).item()), step.loss)


def test_slots_have_random_numbers_of_their_own() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[64], output=[1])
        p = oc.param("p", output=[1], init=1.0)
        kept = oc.nn.dropout(p * x, rate=0.5)
        loss = oc.einsum("...|... => 0", kept)
        step = oc.train.data_parallel(
            loss, oc.train.SGD(learning_rate=0.0), [x], slots=2, devices=1
        )
        step.context.init_params(loss)
        seen = set()
        for slot in (0, 1):
            cells = np.zeros((128, 1), np.float32)
            cells[64 * slot : 64 * slot + 64, 0] = 2.0 ** np.arange(64) / 2.0**40
            step(cells)
            seen.add(float(step.context[p.grad].item()))
        assert len(seen) == 2


def test_statistics_are_the_mean_of_those_of_the_slots() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[1])
        loss = oc.nn.mean_squared_error(oc.nn.batch_norm()(oc.nn.dense(output=[1])(x)), x)
        dense = next(p for p in loss.params if len(p.info.dims) == 2)
        step = oc.train.data_parallel(
            loss, oc.train.SGD(learning_rate=0.0), [x], slots=3, devices=2
        )
        step.context.init_params(loss)
        step.context[dense] = 1.0
        step(np.array([[0], [2], [4], [6], [8], [10]], np.float32))
        statistics = dict(loss.statistics.items())
        mean = next(t for name, t in statistics.items() if "running_mean" in name)
        count = next(t for name, t in statistics.items() if "batches" in name)
        assert np.isclose(step.context.item(mean), 0.1 * 5.0, rtol=1e-5)
        assert step.context.item(count) == 1


def test_values_written_to_the_first_context_reach_the_others(tmp_path: Path) -> None:
    model = Model(adamw)
    step = model.step("cpu_c", 3)
    step.context.init_params(model.loss)
    first, second, third = batches(3)
    step(*first)
    oc.save(tmp_path / "a.safetensors", step.context, model.loss, optimizer=model.optimizer)
    step(*second)
    expected = model.state(step.context)
    step(*third)
    oc.load(tmp_path / "a.safetensors", step.context, model.loss, optimizer=model.optimizer)
    step(*second)
    for context in step.contexts:
        assert model.state(context) == expected


def test_tensors_made_later_have_the_random_numbers_of_any_number_of_devices() -> None:
    found = set()
    for count in (1, 3):
        model = Model(sgd)
        model.step("interp", count)
        with model.session:
            p = oc.param("late", output=[3], init=oc.uniform())
            ctx = oc.Context("interp")
            ctx.init_params(p)
            found.add(ctx[p].tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(("processes", "devices_each", "bucket_bytes"), [(2, 1, 1), (3, 2, 1000)])
def test_the_bits_do_not_depend_on_the_number_of_processes(
    processes: int, devices_each: int, bucket_bytes: int
) -> None:
    one = trained("cpu_c", 1, adamw)
    ranks = Ranks(processes)
    models = [Model(adamw) for _ in range(processes)]
    communicators = [Rank(ranks, k, bucket_bytes) for k in range(processes)]
    steps = [
        model.step("cpu_c", devices_each, communicator=each)
        for model, each in zip(models, communicators, strict=True)
    ]
    kinds = {tuple(facts) for facts in ranks.facts}
    for kind in kinds:
        stated = [facts for facts in ranks.facts if tuple(facts) == kind]
        assert stated == [stated[0]] * processes
    for model, step in zip(models, steps, strict=True):
        step.context.init_params(model.loss)
    with ThreadPoolExecutor(processes) as pool:
        for x, y in batches(3):
            list(pool.map(lambda step, a=x, b=y: step(a, b), steps))
    for model, step in zip(models, steps, strict=True):
        for context in step.contexts:
            assert [*model.state(context), np.float64(step.loss).tobytes()] == one


def test_a_process_may_give_the_rows_of_its_own_slots() -> None:
    with oc.Session():
        _, _, loss_of = plain_model()
        x, loss = loss_of(2)
        cells = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
        ranks = Ranks(2)
        steps = [
            oc.train.data_parallel(
                loss,
                oc.train.SGD(learning_rate=0.1),
                [x],
                slots=4,
                devices=1,
                communicator=Rank(ranks, k),
            )
            for k in range(2)
        ]
        for step in steps:
            step.context.init_params(loss)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda k: steps[k](cells[4 * k : 4 * k + 4]), range(2)))
        assert steps[0].loss == steps[1].loss


def small_step(**options: Any) -> oc.train.DataParallel:
    _, _, loss_of = plain_model()
    x, loss = loss_of(2)
    options = {"slots": 4, "devices": 1, "optimizer": oc.train.SGD(learning_rate=0.1), **options}
    return oc.train.data_parallel(loss, options.pop("optimizer"), [x], **options)


def test_a_batch_has_the_rows_of_all_slots() -> None:
    with oc.Session():
        step = small_step()
        step.context.init_params(step._loss)
        with pytest.raises(oc.ShapeError, match="7 rows; 4 slots of 2 have 8"):
            step(np.zeros((7, 4), np.float32))
        with pytest.raises(oc.UsageError, match="0 arrays for 1 inputs"):
            step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots= is the number of parts"),
        ({"devices": 5}, "5 devices and 4 slots"),
        ({"devices": 0}, "0 devices"),
        ({"devices": "cpu_c:0"}, "devices= is a list"),
        ({"devices": ["cpu_c:0", "interp:0"]}, "devices of cpu_c, interp"),
        ({"reduction": "max"}, 'reduction= is "mean" or "sum"'),
        ({"optimizer": 0.1}, "an optimizer, or code"),
        ({"metrics": [3]}, "metrics= is a list of tensors"),
        (
            {"optimizer": oc.train.SGD(learning_rate=0.1, loss_scale=oc.train.DynamicScale())},
            "have no loss scale",
        ),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(options: dict[str, Any], message: str) -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match=message):
        small_step(**options)


def test_a_step_without_parameters_names_the_call_that_initializes_them() -> None:
    with oc.Session():
        step = small_step(devices=2)
        with pytest.raises(oc.LinkError, match=r"ctx\.init_params\(loss\)"):
            step(np.zeros((8, 4), np.float32))


def test_a_failed_step_changes_no_statistic() -> None:
    with oc.Session(seed=0):
        x = oc.placeholder("x", batch=[2], output=[1])
        ids = oc.placeholder("ids", batch=[2], dtype="int32")
        table = oc.param("table", output=[3])
        found = oc.nn.batch_norm()(oc.take(table, ids, axis=0) * x)
        loss = oc.einsum("...|... => 0", found * found)
        step = oc.train.data_parallel(
            loss, oc.train.SGD(learning_rate=0.1), [x, ids], slots=2, devices=1
        )
        step.context.init_params(loss)
        cells = np.array([[1], [2], [3], [4]], np.float32)
        good, bad = np.array([0, 1, 2, 0], np.int32), np.array([0, 1, 2, 7], np.int32)
        step(cells, good)
        mean = next(t for name, t in loss.statistics.items() if "running_mean" in name)
        with pytest.raises(oc.UsageError):
            step(cells, bad)
        step(cells, good)
        after = step.context[mean].copy()
        again = oc.train.data_parallel(
            loss, oc.train.SGD(learning_rate=0.1), [x, ids], slots=2, devices=1
        )
        again.context.init_params(loss)
        again(cells, good)
        again(cells, good)
        assert np.array_equal(again.context[mean], after)


def test_recorded_code_updates_parameters_as_an_optimizer_does() -> None:
    found = []
    for count in (1, 3):
        with oc.Session(seed=4):
            _, _, loss_of = plain_model()
            x, loss = loss_of(2)
            update = oc.train.sgd_update(loss, learning_rate=0.05, momentum=0.9)
            names = [f"interp:{k}" for k in range(count)]
            step = oc.train.data_parallel(loss, update, [x], slots=4, devices=names)
            step.context.init_params(loss)
            cells = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
            for _ in range(2):
                step(cells)
            step.context.copy_from(step.contexts[-1], loss.params)  # written, so distributed again
            step(cells)
            found.append([step.contexts[-1][p].tobytes() for p in loss.params])
    assert found[0] == found[1]


def test_a_static_index_gets_the_number_of_the_slot() -> None:
    with oc.Session():
        i = oc.static_index("i", range=4)
        x = oc.placeholder("x", batch=[2], output=[1])
        p = oc.param("p", output=[1], init=1.0)
        loss = oc.einsum("...|... => 0", p * x * oc.number(i))
        step = oc.train.data_parallel(
            loss,
            oc.train.SGD(learning_rate=0.0),
            [x],
            slots=4,
            devices=["interp:0", "interp:1"],
            reduction="sum",
            slot=i,
        )
        step.context.init_params(loss)
        step(np.repeat([1.0, 10.0, 100.0, 1000.0], 2).reshape(8, 1))
        assert step.context[p.grad].item() == 2 * (10 + 200 + 3000)


@pytest.mark.parametrize("inputs_by_position", [False, True])
def test_the_training_loop_takes_a_step_over_several_devices(inputs_by_position: bool) -> None:
    with oc.Session(seed=1):
        _, _, loss_of = plain_model()
        x, loss = loss_of(2)
        step = oc.train.data_parallel(
            loss, oc.train.SGD(learning_rate=0.1), [x], slots=4, devices=2
        )
        step.context.init_params(loss)
        cells = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
        loader = oc.data.Loader(cells, batch=8, shuffle=False)
        inputs: Any = {x: 0} if inputs_by_position else [x]
        run = oc.train.fit(step, loader, inputs, loss=loss, epochs=3, progress=False)
        assert run.step == 6
        assert len(run.losses) == 6
        assert run.losses[-1] == step.loss
        assert run.losses[-1] < run.losses[0]


def test_frozen_parameters_neither_move_nor_are_added_up() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[ROWS], output=[5])
        body, head = oc.param("body", output=[4]), oc.param("head", output=[1])
        loss = oc.mean((head @ oc.stop_gradient(body @ x)) ** 2.0)
        step = oc.train.data_parallel(loss, adamw(), [x], slots=2, devices=["interp:0", "interp:1"])
        step.context.init_params(loss)
        before = [step.context[each] for each in (body, head)]
        step(np.ones((2 * ROWS, 5), np.float32))
        after = [step.context[each] for each in (body, head)]
        assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [True, False]
        assert list(step._code._summed) == ["head.grad", "loss"]
