"""The training loop: the same training as by hand, its history, its events and its ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.ir.target import Target

ROWS = np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)
TARGETS = (ROWS @ np.array([[1.0], [-2.0], [0.5]], np.float32)).astype(np.float32)


class Model:
    """A linear regression."""

    def __init__(self, backend: str = "interp", rate: float = 0.05) -> None:
        self.x = oc.placeholder("x", batch=[4], output=[3])
        self.y = oc.placeholder("y", batch=[4], output=[1])
        error = oc.param("w", output=[1], init=0.1) @ self.x - self.y
        self.loss = oc.einsum("...|...->... => 0", error * error) / 4.0
        self.opt = oc.train.Adam(learning_rate=rate)
        self.ctx = oc.Context(backend)
        self.ctx.init_params(self.loss)
        self.step = self.ctx.compile(oc.train.grad_update(self.loss) + self.opt.update(self.loss))
        self.loader = oc.data.Loader(ROWS, TARGETS, batch=4, shuffle=True, seed=1)

    @property
    def w(self) -> list[float]:
        return self.ctx[self.loss.params["w"]].ravel().tolist()

    def fit(self, **options: Any) -> oc.train.Run:
        given = {"loader": self.loader, "inputs": [self.x, self.y], "loss": self.loss, **options}
        return oc.train.fit(self.step, **given)


def by_hand(model: Model, epochs: int) -> list[float]:
    losses = []
    for _ in range(epochs):
        for x, y in model.loader:
            model.ctx.assign({model.x: x, model.y: y})
            model.step()
            losses.append(model.ctx.item(model.loss))
    return losses


@pytest.mark.parametrize("read_every", [1, 2, 4, 128])
def test_a_loop_trains_and_records_as_one_by_hand(target: Target, read_every: int) -> None:
    with oc.Session():
        hand = Model(str(target))
        losses = by_hand(hand, 3)
    with oc.Session():
        model = Model(str(target))
        run = model.fit(epochs=3, read_every=read_every)
    assert run.losses.tolist() == losses
    assert model.w == hand.w
    assert run.epoch_losses == [float(np.mean(losses[i : i + 3])) for i in (0, 3, 6)]
    assert (run.step, run.epoch, run.ended_by, run.loss) == (9, 3, "epochs", losses[-1])


def test_placeholders_are_filled_by_position_key_or_attribute() -> None:
    model = Model()
    x, y = ROWS[:4], TARGETS[:4]
    first = model.fit(loader=[(y, x)], inputs={model.x: 1, model.y: 0}).loss
    model.ctx[model.loss.params["w"]] = 0.1
    assert model.fit(loader=[{"a": x, "b": y}], inputs={model.x: "a", model.y: "b"}).loss == first


def test_the_mask_of_a_padded_batch_is_an_input() -> None:
    x = oc.placeholder("x", batch=[4], output=[3])
    mask = oc.placeholder("mask", batch=[4])
    total = oc.einsum("...|...->... => 0", mask * x)
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.forward(total))
    loader = oc.data.Loader(ROWS[:6], batch=4, last="pad")
    run = oc.train.fit(step, loader, {x: 0, mask: "mask"}, loss=total)
    assert run.losses.sum() == pytest.approx(ROWS[:6].sum(), rel=1e-5)


@pytest.mark.parametrize("batch", [(ROWS[:4],), (1, 2, 3), 3, {"a": 1}])
def test_batches_that_do_not_fit_the_placeholders_are_errors(batch: Any) -> None:
    with pytest.raises(oc.UsageError, match="an array for each placeholder"):
        Model().fit(loader=[batch])


def test_wrong_arguments_are_errors() -> None:
    model = Model()
    for options, message in (
        ({"inputs": []}, "inputs= are placeholders"),
        ({"inputs": 3}, "inputs= are placeholders"),
        ({"inputs": {model.x: 1.5}}, "inputs= are placeholders"),
        ({"epochs": -1}, "epochs= of a training loop"),
        ({"epochs": 1.0}, "epochs= of a training loop"),
        ({"steps": -1}, "steps= of a training loop"),
        ({"patience": True}, "patience= of a training loop"),
        ({"nonfinite": "pass"}, "'raise', 'stop', 'ignore'"),
        ({"first_step": -1}, "first_step="),
        ({"loader": []}, "yields batches in every epoch"),
        ({"loss": model.x}, "one number"),
    ):
        with pytest.raises(oc.UsageError, match=message):
            model.fit(**options)
    with pytest.raises(oc.UsageError, match="a generator is exhausted"):
        model.fit(loader=iter([(ROWS[:4], TARGETS[:4])]), epochs=2)


class Events(oc.train.Callback):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_epoch(self, run: oc.train.Run) -> None:
        self.seen.append(f"epoch {run.epoch} at {run.step}")

    def on_end(self, run: oc.train.Run) -> None:
        self.seen.append(f"end by {run.ended_by}")


def test_callbacks_see_every_event() -> None:
    model, events, steps = Model(), Events(), []
    model.fit(
        epochs=2,
        callbacks=[events],
        on_step=lambda run: steps.append((run.step, run.loss)),
        on_epoch=lambda run: events.seen.append("function"),
    )
    assert events.seen == [
        "epoch 1 at 3", "function", "epoch 2 at 6", "function", "end by epochs"
    ]  # fmt: skip
    assert [step for step, _ in steps] == [1, 2, 3, 4, 5, 6]
    assert [loss for _, loss in steps] == model_losses(2)


def model_losses(epochs: int) -> list[float]:
    with oc.Session():
        return by_hand(Model(), epochs)


def test_a_loop_ends_after_steps_or_when_a_callback_stops_it() -> None:
    run = Model().fit(epochs=5, steps=4)
    assert (run.step, run.ended_by, len(run.losses)) == (4, "steps", 4)
    run = Model().fit(epochs=5, on_step=lambda run: run.stop() if run.step == 2 else None)
    assert (run.step, run.ended_by) == (2, "callback")
    run = Model().fit(epochs=5, on_epoch=lambda run: run.stop())
    assert (run.epoch, run.ended_by) == (1, "callback")


@pytest.mark.parametrize("options", [{"epochs": 0}, {"epochs": 2, "steps": 0}])
def test_a_training_that_is_complete_trains_nothing(
    tmp_path: Path, options: dict[str, int]
) -> None:
    model = Model()
    before = model.w
    file = oc.train.Checkpoint(tmp_path / "m.safetensors", model.loss, model.opt)
    run = model.fit(first_step=6, checkpoint=file, **options)
    assert (run.step, run.epoch, len(run.losses), run.epoch_losses) == (6, 0, 0, [])
    assert run.ended_by == ("steps" if "steps" in options else "epochs")
    assert model.w == before
    assert model.loader.state == (0, 0)


@pytest.mark.parametrize("is_list", [False, True])
def test_an_epoch_that_ends_with_the_last_step_counts(is_list: bool) -> None:
    model = Model()
    loader = list(model.loader) if is_list else model.loader
    seen: list[int] = []
    run = model.fit(loader=loader, epochs=3, steps=6, on_epoch=lambda run: seen.append(run.step))
    assert (run.epoch, run.ended_by, seen, len(run.epoch_losses)) == (2, "steps", [3, 6], 2)
    run = Model().fit(epochs=3, steps=4)
    assert (run.epoch, len(run.epoch_losses)) == (1, 1)


def test_numbers_that_a_routine_does_not_compute_are_refused() -> None:
    model = Model()
    model.fit(epochs=1)
    other = oc.mean(model.x)
    forward = model.ctx.compile(oc.train.forward(other))
    with pytest.raises(oc.UsageError, match="loss= is a number that the routine of each batch"):
        model.fit(loss=other)
    with pytest.raises(oc.UsageError, match="value= is a number that the routine of each batch"):
        oc.train.evaluate(forward, model.loader, [model.x, model.y], model.loss)


def test_an_evaluation_by_a_training_step_is_refused() -> None:
    model = Model()
    with pytest.raises(oc.UsageError, match="An evaluation leaves parameters as they are"):
        oc.train.evaluate(model.step, model.loader, [model.x, model.y], model.loss)


def mean_of_rows(batch: int) -> tuple[Any, Any, Any]:
    """Return a routine for the mean over a batch, its placeholder and its value."""
    x = oc.placeholder("x", batch=[batch], output=[3])
    value = oc.mean(x)
    return oc.Context("interp").compile(oc.train.forward(value)), x, value


@pytest.mark.parametrize("last", ["drop", "pad"])
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_an_evaluation_is_the_mean_over_examples_with_any_last_batch(
    last: Any, share: int, count: int, slots: int, shuffle: bool
) -> None:
    rows = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)
    batch = share * slots
    assume(last == "pad" or count >= batch)
    total = weight = 0.0
    order: list[int] = []
    for slot in range(slots):
        options: Any = {"batch": batch, "last": last, "slot": slot, "slots": slots}
        loader = oc.data.Loader(rows, np.arange(count), shuffle=shuffle, **options)
        own = [int(n) for each in loader for n in each[1][: each.valid]]
        loader.restore((0, 0))
        order += own
        run, x, value = mean_of_rows(share)
        if own:
            found = oc.train.evaluate(run, loader, {x: 0}, value)
            assert found == pytest.approx(rows[own].mean(), abs=1e-5)
            total, weight = total + found * len(own), weight + len(own)
        else:
            with pytest.raises(oc.UsageError, match="An evaluation has batches"):
                oc.train.evaluate(run, loader, {x: 0}, value)
    assert sorted(order) == list(range(count)) or last == "drop"
    assert total / weight == pytest.approx(rows[order].mean(), abs=1e-5)


def test_padding_is_left_out_of_evaluations_of_every_kind_of_batch() -> None:
    cells = np.array([10, 0, 0, 0, 1], np.float32)[:, None].repeat(3, 1)
    run, x, value = mean_of_rows(4)
    padded = oc.data.Loader(cells, batch=4, last="pad")
    assert oc.train.evaluate(run, padded, [x], value) == pytest.approx(2.2)
    parts = [{"x": each[0], "y": 0, "z": 1} for each in oc.data.Loader(cells, batch=4)]
    assert oc.train.evaluate(run, [*parts, *parts], {x: "x"}, value) == pytest.approx(2.5)
    mask = oc.placeholder("mask", batch=[4])
    weighed = oc.sum(mask * x) / (3.0 * oc.sum(mask))
    masked = oc.Context("interp").compile(oc.train.forward(weighed))
    inputs: Any = {x: 0, mask: "mask"}
    assert oc.train.evaluate(masked, padded, inputs, weighed) == pytest.approx(2.2)
    lone = oc.data.Loader(cells, batch=8, last="pad", slot=1, slots=2)
    assert oc.train.evaluate(masked, lone, inputs, weighed) == pytest.approx(1.0)


def test_the_mean_loss_of_an_epoch_counts_rows() -> None:
    n = oc.static_extent("n", max=4)
    x = oc.placeholder("x", batch=[n], output=[3])
    value = oc.mean(x)
    step = oc.Context("interp").compile(oc.train.forward(value))
    loader = oc.data.Loader(ROWS[:6], batch=4, last="short")
    run = oc.train.fit(
        step, loader, [x], loss=value, indices=lambda number, batch: {"n": batch.valid}
    )
    assert run.epoch_losses == pytest.approx([ROWS[:6].mean()], rel=1e-5)


@pytest.mark.parametrize(("mode", "epochs"), [("min", 2), ("max", 4)])
def test_patience_waits_for_less_or_for_more(mode: Any, epochs: int) -> None:
    x = oc.placeholder("x", batch=[1])
    value = oc.mean(x)
    step = oc.Context("interp").compile(oc.train.forward(value))
    numbers = iter([1.0, 2.0, 3.0, 3.0])

    class Rising:
        def __iter__(self) -> Any:
            yield (np.full(1, next(numbers), np.float32),)

    evaluation = oc.train.Evaluation(step, Rising(), [x], value)
    run = oc.train.fit(
        step,
        [(np.ones(1),)],
        [x],
        loss=value,
        epochs=4,
        evaluation=evaluation,
        patience=1,
        mode=mode,
    )
    assert (run.epoch, run.ended_by) == (epochs, "patience")


def test_evaluation_follows_each_epoch_and_patience_ends_the_loop() -> None:
    model = Model(rate=1e-9)
    forward = model.ctx.compile(oc.train.forward(model.loss))
    data = oc.data.Loader(ROWS[:6], TARGETS[:6], batch=4, last="pad")
    evaluation = oc.train.Evaluation(forward, data, [model.x, model.y], model.loss)
    expected = evaluation.result()
    run = model.fit(epochs=9, evaluation=evaluation, patience=2, on_epoch=lambda run: None)
    assert run.evaluations[0] == pytest.approx(expected, rel=1e-5)
    assert run.ended_by in ("patience", "epochs")
    rising = Model(rate=1e-2)
    target = -TARGETS
    worse = oc.train.Evaluation(
        rising.ctx.compile(oc.train.forward(rising.loss)),
        [(ROWS[:4], target[:4])],
        [rising.x, rising.y],
        rising.loss,
    )
    run = rising.fit(epochs=9, evaluation=worse, patience=2)
    assert (run.epoch, run.ended_by) == (3, "patience")


def poisoned() -> tuple[Model, list[Any]]:
    """Return a model, and batches of which the fourth makes the loss infinite."""
    model = Model()
    batches: list[Any] = [(ROWS[:4], TARGETS[:4])] * 3
    return model, [*batches, (ROWS[:4], np.full((4, 1), 1e30, np.float32))]


@pytest.mark.parametrize("read_every", [1, 3, 128])
def test_a_loss_that_is_not_finite_is_an_error_with_the_step(
    tmp_path: Path, read_every: int
) -> None:
    model, batches = poisoned()
    file = oc.train.Checkpoint(tmp_path / "m.safetensors", model.loss, model.opt, every=2)
    with pytest.raises(oc.DivergenceError, match="inf at step 14") as error:
        model.fit(loader=batches, first_step=10, read_every=read_every, checkpoint=file)
    assert "test_fit.py" in error.value.where
    assert oc.load(file.path, model.ctx, model.loss, optimizer=model.opt).step == 12


def test_a_loss_that_is_not_finite_may_stop_the_loop_or_be_ignored() -> None:
    model, batches = poisoned()
    run = model.fit(loader=batches, nonfinite="stop", epochs=3)
    assert (run.step, run.ended_by) == (4, "nonfinite")
    model, batches = poisoned()
    run = model.fit(loader=batches, nonfinite="ignore")
    assert (run.step, run.ended_by) == (4, "epochs")
    assert np.isinf(run.losses[-1])


def test_a_loop_that_resumes_from_its_checkpoint_has_the_bits_of_one_loop(
    target: Target, tmp_path: Path
) -> None:
    with oc.Session():
        whole = Model(str(target))
        losses = whole.fit(epochs=3).losses
    path = tmp_path / "m.safetensors"
    with oc.Session():
        first = Model(str(target))
        file = oc.train.Checkpoint(path, first.loss, first.opt, every=100)
        first.fit(epochs=3, steps=4, checkpoint=file)
    with oc.Session():
        second = Model(str(target))
        found = oc.load(path, second.ctx, second.loss, optimizer=second.opt, loader=second.loader)
        assert (found.step, second.loader.state) == (4, (1, 1))
        left = 3 - second.loader.state.epoch
        run = second.fit(epochs=left, first_step=found.step)
    assert run.step == 9
    assert run.losses.tolist() == losses[4:].tolist()
    assert second.w == whole.w


class Follower(oc.train.Callback):
    """Keeps the number of epochs and the last numbers at each end of an epoch."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, float]] = []

    def on_epoch(self, run: oc.train.Run) -> None:
        last = (run.evaluations or run.epoch_losses)[-1]
        self.seen.append((run.epoch, run.step, last))


@pytest.mark.parametrize("is_evaluated", [False, True])
def test_a_resumed_loop_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, is_evaluated: bool
) -> None:
    """Means over epochs and the count of patience have the same bits."""
    path = tmp_path / "m.safetensors"

    def run(stop: int | None = None, every: int = 1, *, is_resumed: bool = False) -> Any:
        with oc.Session(seed=3):
            model = Model(rate=0.8)  # too large: losses rise and fall
            options: dict[str, Any] = {"epochs": 7, "patience": 2, "callbacks": [Follower()]}
            if is_evaluated:
                forward = model.ctx.compile(oc.train.forward(model.loss))
                place = [model.x, model.y]
                data = [(ROWS[:4], TARGETS[:4])]
                options["evaluation"] = oc.train.Evaluation(forward, data, place, model.loss)
            if is_resumed:
                options["resume"] = oc.load(
                    path, model.ctx, model.loss, optimizer=model.opt, loader=model.loader
                )
            options["checkpoint"] = oc.train.Checkpoint(path, model.loss, model.opt, every=every)
            if stop is not None:
                options["on_step"] = lambda run: run.stop() if run.step == stop else None
            found = model.fit(**options)
            return found, options["callbacks"][0].seen, model.w

    whole, seen, w = run()
    assert (whole.ended_by, whole.epoch) == ("patience", whole.epoch)
    assert 3 <= whole.epoch < 7
    for stop in (1, 3, 5, whole.step - 1):  # begun, and complete epochs
        first, begun, _ = run(stop, every=4)
        assert first.step == stop
        rest, ended, same = run(is_resumed=True)
        assert (rest.step, rest.ended_by, rest.epoch) == (whole.step, "patience", whole.epoch)
        assert rest.first_epoch == first.epoch
        assert rest.epoch_losses == whole.epoch_losses
        assert rest.evaluations == whole.evaluations
        assert [*begun, *ended] == seen
        assert same == w
    again, ended, same = run(is_resumed=True)
    assert (again.step, again.ended_by, ended, same) == (whole.step, "patience", [], w)


def test_the_save_at_the_end_of_an_epoch_has_its_evaluation(tmp_path: Path) -> None:
    """A process that is killed after it goes on with the next epoch."""
    model = Model()
    path = tmp_path / "m.safetensors"
    file = oc.train.Checkpoint(path, model.loss, model.opt, every=3)
    forward = model.ctx.compile(oc.train.forward(model.loss))
    evaluation = oc.train.Evaluation(
        forward, [(ROWS[:4], TARGETS[:4])], [model.x, model.y], model.loss
    )

    class Killed(BaseException):
        pass

    def kill(run: oc.train.Run) -> None:
        if run.step == 4:
            raise Killed

    with pytest.raises(Killed):
        model.fit(epochs=3, checkpoint=file, evaluation=evaluation, on_step=kill)
    found = oc.load(path, model.ctx, model.loss, optimizer=model.opt, loader=model.loader)
    run = model.fit(epochs=2, resume=found, evaluation=evaluation)
    assert (run.epoch, len(run.evaluations), run.step) == (2, 2, 6)
    assert "loss" in str(oc.curves(run))


def test_a_loop_resumes_from_files_of_loops_alone(tmp_path: Path) -> None:
    model = Model()
    path = tmp_path / "m.safetensors"
    oc.save(path, model.ctx, model.loss, optimizer=model.opt, step=3)
    found = oc.load(path, model.ctx, model.loss, optimizer=model.opt)
    with pytest.raises(oc.UsageError, match="no history in") as error:
        model.fit(resume=found)
    assert "first_step=found.step" in error.value.fix
    wrong: Any = path
    with pytest.raises(oc.UsageError, match="resume= is the result"):
        model.fit(resume=wrong)
    oc.save(path, model.ctx, model.loss, metadata={"history": '{"begun": 3}'})
    with pytest.raises(oc.UsageError, match="no history in"):
        model.fit(resume=oc.load(path, model.ctx, model.loss))
    file = oc.train.Checkpoint(path, model.loss, model.opt)
    model.fit(steps=4, epochs=2, checkpoint=file)
    fresh = Model()
    found = oc.load(path, fresh.ctx, fresh.loss, optimizer=fresh.opt)
    with pytest.raises(oc.UsageError, match="in the file epoch 1, position 1"):
        fresh.fit(resume=found)
    fresh.loader.restore((1, 1))
    with pytest.raises(oc.UsageError, match="first_step=4 beside it"):
        fresh.fit(resume=found, first_step=4)
    assert fresh.fit(epochs=3, steps=5, resume=found).step == 5


def test_checkpoints_are_saved_at_multiples_of_every(tmp_path: Path) -> None:
    model = Model()
    path = tmp_path / "m.safetensors"
    steps: list[int | None] = []

    def look(run: oc.train.Run) -> None:
        if path.exists():
            fresh = oc.Context("interp")
            steps.append(oc.load(path, fresh, model.loss).step)

    file = oc.train.Checkpoint(path, model.loss, every=4)
    model.fit(epochs=3, checkpoint=file, on_step=look, first_step=2)
    assert steps == [4, 4, 4, 4, 8, 8, 8]
    assert oc.load(path, model.ctx, model.loss).step == 11


def test_static_indices_follow_the_number_of_steps() -> None:
    i = oc.static_index("i", range=8)
    x = oc.placeholder("x", batch=[4], output=[3])
    loss = oc.einsum("...|...->... => 0", x * 0.0) + oc.number(i)
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.forward(loss), bindings=[i])
    run = oc.train.fit(
        step,
        [ROWS[:4]] * 3,
        [x],
        loss=loss,
        first_step=2,
        indices=lambda number, batch: {"i": number},
    )
    assert run.losses.tolist() == [2.0, 3.0, 4.0]


def test_short_batches_run_at_their_size() -> None:
    n = oc.static_extent("n", max=4)
    x = oc.placeholder("x", batch=[n], output=[3])
    total = oc.einsum("...|...->... => 0", x)
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.forward(total))
    loader = oc.data.Loader(ROWS[:6], batch=4, last="short")
    run = oc.train.fit(
        step, loader, [x], loss=total, indices=lambda number, batch: {"n": batch.valid}
    )
    expected = [ROWS[:4].sum(), ROWS[4:6].sum()]
    assert run.losses.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_progress_line_is_shown_on_request_and_absent_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Model()
    model.fit()
    assert capsys.readouterr().err == ""
    model.fit(epochs=2, progress=True)
    shown = capsys.readouterr().err
    assert shown.startswith("\r")
    assert shown.endswith("\n")
    assert "epoch 2/2  step 6  loss " in shown


def test_a_data_parallel_step_takes_several_inputs_from_the_loader() -> None:
    with oc.Session():
        model = Model()
        step = oc.train.data_parallel(
            model.loss, model.opt, [model.x, model.y], slots=1, devices=["interp:0"]
        )
        step.context.init_params(model.loss)
        run = oc.train.fit(
            step, loader=model.loader, inputs=[model.x, model.y], loss=model.loss, epochs=2
        )
        assert len(run.losses) == 6
        with pytest.raises(oc.UsageError, match="A step takes arrays for its inputs"):
            step[model.loss] = TARGETS
