"""A training loop: fills placeholders, calls a routine, and reports.

history = oc.train.fit(step, loader, inputs=[x, y], loss=loss, epochs=10)
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import field
from functools import partial
from math import prod
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ocannl_core.base.errors import DivergenceError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.data.checkpoints.load import Loaded
from ocannl_core.data.checkpoints.save import save
from ocannl_core.data.checkpoints.sources import OWN, json_object
from ocannl_core.data.checkpoints.subjects import HasState, Subject
from ocannl_core.data.loader import Loader
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.numbers.dtypes import float32, float64, int32
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.messages.call_errors import check_fields
from ocannl_core.tensor.models.parameters import declare
from ocannl_core.tensor.operations.contractions import where
from ocannl_core.tensor.operations.literals import arange
from ocannl_core.tensor.primitives.pointwise_operations import cast, equal, less
from ocannl_core.train.batch_inputs import Inputs, count_rows, counted_batches, filler, reads_mask
from ocannl_core.train.communication import Communicator, OneProcess
from ocannl_core.train.parallel_step import DataParallel

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context
    from ocannl_core.runtime.routine import Routine

Indices = Callable[[int, Any], Mapping[str, int]]
"""The static indices and extents of a call, from the number of steps before it and the batch."""

Nonfinite = Literal["raise", "stop", "ignore"]

Mode = Literal["min", "max"]
"""The better one of two numbers: the lesser or the greater."""

_HISTORY = "history"
"""The key of a checkpoint's metadata with the epochs of a training loop."""

_NO_HISTORY = {"epoch_losses": [], "evaluations": [], "begun": [0.0, 0]}
"""The history of a loop that begins; `begun` has the sum of losses and of rows in an epoch that is
not complete.
"""

_REDRAWN = 0.1
"""The least time between two progress lines in seconds."""


class Callback:
    """Actions at events of a training loop; a subclass overrides the methods that it needs.

        class Log(oc.train.Callback):
            def on_epoch(self, run):
                writer.add_scalar("loss", run.epoch_losses[-1], run.step)

    Each method gets the `oc.train.Run`.
    """

    def on_step(self, run: Run) -> None:
        """Run after each step."""

    def on_epoch(self, run: Run) -> None:
        """Run after each epoch, and after its evaluation."""

    def on_end(self, run: Run) -> None:
        """Run when the loop ends without an exception."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A number that is computed over a second set of data after each epoch.

    Attributes:
        step: The routine that computes it for a batch.
        inputs: The placeholders to fill, as for `fit`.
        value: A tensor of one cell, the mean over a batch. Batches count by their number of
            examples, without the rows that fill up a last batch.
        indices: The static indices and extents of a call, as for `fit`.
    """

    step: Routine
    loader: Iterable[Any]
    inputs: Inputs
    value: Tensor
    indices: Indices | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def result(self) -> float:
        """Compute the number."""
        return evaluate(self.step, self.loader, self.inputs, self.value, indices=self.indices)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file that a training loop replaces regularly, and at its end.

    Attributes:
        subject: The tensors, as for `oc.save`.
        optimizer: The optimizer, or None.
        every: The number of steps between two saves.
    """

    path: str | os.PathLike[str]
    subject: Subject
    optimizer: HasState | None = None
    every: int = 1000

    def __post_init__(self) -> None:
        check_fields(self)


class Run:
    """The progress and the history of a training loop.

    Attributes:
        step: The number of steps so far, `first_step` included.
        first_epoch: The number of epochs completed before this loop, which a checkpoint states.
        epoch_losses: The mean loss of each epoch, those of before included; a step counts by the
            rows of its batch.
        evaluations: The result of the evaluation after each epoch, those of before included.
        ended_by: The reason for the end: `epochs`, `steps`, `patience`, `callback` or `nonfinite`;
            empty before.
    """

    def __init__(
        self,
        log: LossLog,
        first_step: int,
        nonfinite: Nonfinite,
        history: Mapping[str, list[Any]],
        *,
        is_parallel: bool,
    ) -> None:
        self.step = first_step
        self.epoch_losses: list[float] = history["epoch_losses"]
        self.evaluations: list[float] = history["evaluations"]
        self.first_epoch = self.epoch
        self.ended_by = ""
        self._total, self._rows = history["begun"]
        self._log = log
        self._first = first_step
        self._read_to = first_step
        self._nonfinite = nonfinite
        self._is_parallel = is_parallel
        self._last = float("nan")

    @property
    def epoch(self) -> int:
        """The number of epochs completed, those of before included."""
        return len(self.epoch_losses)

    @property
    def losses(self) -> Array:
        """The loss of each step of this loop; reading them waits for the device."""
        self._update()
        return self._log.all()

    @property
    def loss(self) -> float:
        """The loss of the last step; reading it waits for the device."""
        self._update()
        return self._last

    def stop(self) -> None:
        """End the loop after the current step."""
        self.ended_by = self.ended_by or "callback"

    def _update(self) -> None:
        """Read the losses since the last read."""
        if self._read_to == self.step:
            return
        found = self._log.read(self.step - self._first)
        first, self._read_to = self._read_to, self.step
        self._last = float(found[-1])
        wrong = np.flatnonzero(~np.isfinite(found))
        if not wrong.size or self._nonfinite == "ignore":
            return
        if self._nonfinite == "stop":
            self.ended_by = "nonfinite"
            return
        error = DivergenceError.at_caller(
            "The loss of each step is finite.",
            found=f"{found[wrong[0]]} at step {first + int(wrong[0]) + 1:,}",
            fix="a smaller learning rate, clip_norm=1.0, or skip_nonfinite=True in the optimizer; "
            'nonfinite="stop" ends the loop without an error',
        )
        raise error.on_all_processes() if self._is_parallel else error

    def _add(self, rows: Sequence[int]) -> None:
        """Add the losses of the last steps to those of the epoch, from the left, so that the sum
        has the same bits in a loop that resumes inside of the epoch.

        Args:
            rows: The number of rows of each step.
        """
        losses = self.losses[self.losses.size - len(rows) :] * rows
        self._total = float(np.cumsum([self._total, *losses])[-1])
        self._rows += sum(rows)

    def _end_epoch(self) -> None:
        """Append the mean loss of the epoch, and begin the next one."""
        self.epoch_losses.append(self._total / self._rows)
        self._total, self._rows = 0.0, 0

    def _history(self) -> str:
        """Return what a loop that resumes needs, in the form of `_NO_HISTORY`."""
        lists = self.epoch_losses, self.evaluations, [self._total, self._rows]
        return json.dumps(dict(zip(_NO_HISTORY, lists, strict=True)))


def fit(
    step: Routine | DataParallel,
    loader: Iterable[Any],
    inputs: Inputs,
    *,
    loss: Tensor,
    epochs: int = 1,
    steps: int | None = None,
    first_step: int = 0,
    resume: Loaded | None = None,
    indices: Indices | None = None,
    evaluation: Evaluation | None = None,
    patience: int | None = None,
    mode: Mode = "min",
    checkpoint: Checkpoint | None = None,
    callbacks: Sequence[Callback] = (),
    on_step: Callable[[Run], None] | None = None,
    on_epoch: Callable[[Run], None] | None = None,
    nonfinite: Nonfinite = "raise",
    read_every: int = 128,
    progress: bool | None = None,
) -> Run:
    """Call a routine for every batch of some epochs; return the history.

    Losses stay on the device and are read every `read_every` steps, so that the loop does not wait
    for each step.

    Args:
        step: The routine of one training step, or a step over several devices.
        loader: The batches; it is iterated once for each epoch.
        inputs: The placeholders to fill from each batch.
        loss: The tensor of one cell that `step` computes; over several devices, the loss of a slot,
            whose mean over the slots is recorded.
        epochs: The number of epochs, with `resume=` those of before included; else the rest of the
            epoch of a resumed loader counts as one.
        steps: The largest number of steps, with `resume=` those of before included; None for no
            limit.
        first_step: The number of earlier steps.
        resume: The result of `oc.load` of the checkpoint of a training loop, with its loader: the
            loop goes on, and ends, as if it had not been interrupted.
        indices: The static indices and extents of a call as a function of the number of steps
            before it and the batch.
        evaluation: Numbers over other data after each epoch.
        patience: The number of epochs without a new best evaluation, or mean loss without one,
            after which the loop ends; None for no limit.
        mode: `max` if greater evaluations are better, such as an accuracy.
        checkpoint: The file to save to. A state whose loss is not finite is not saved.
        callbacks: Actions at events.
        on_step: A function to call after each step.
        on_epoch: A function to call after each epoch.
        nonfinite: The reaction to a loss that is not finite, found when losses are read: `raise`,
            `stop` or `ignore`.
        read_every: The number of losses that are read at a time.
        progress: True for a progress line on standard error; by default if it is a terminal.

    Raises:
        DivergenceError: if a loss is not finite.
        UsageError: if an argument is of the wrong kind, the step does not compute the loss, or the
            loader has no batches.
    """
    every = None if checkpoint is None else checkpoint.every
    _check_counts(0, epochs=epochs, steps=steps)
    _check_counts(1, patience=patience, read_every=read_every, every=every)
    for name, given, kinds in (("nonfinite", nonfinite, Nonfinite), ("mode", mode, Mode)):
        if given not in get_args(kinds):
            choices = ", ".join(map(repr, get_args(kinds)))
            raise UsageError.at_caller(f"{name}= is one of {choices}.", repr(given))
    for each in callbacks:
        if not isinstance(each, Callback):
            raise UsageError.at_caller(
                "callbacks= holds objects of subclasses of oc.train.Callback.",
                repr(each),
                "class Log(oc.train.Callback): def on_epoch(self, run): ...; for one function, "
                "on_epoch= or on_step=",
            )
    if not isinstance(first_step, Integral) or int(first_step) < 0:
        raise UsageError.at_caller("first_step= is a number of steps.", repr(first_step))
    history = {name: [*numbers] for name, numbers in _NO_HISTORY.items()}
    if resume is not None:
        history = _resumed(resume, loader, first_step)
        first_step = resume.step or 0
    is_parallel = isinstance(step, DataParallel)
    communicator: Communicator = step.communicator if is_parallel else OneProcess()
    if evaluation is not None:
        _check_is_whole(communicator, evaluation.loader)
        _check_evaluation(evaluation.step, evaluation.value)
    log = LossLog(step.context, step.means.get(loss, loss) if is_parallel else loss, read_every)
    _check_is_computed(step, loss, "loss=")
    run = Run(log, first_step, nonfinite, history, is_parallel=is_parallel)
    is_shown = sys.stderr.isatty() if progress is None else progress
    line = _Line(is_shown and communicator.rank == 0, epochs)
    loop = _Loop(
        step=step,
        loader=loader,
        fill=filler(step if is_parallel else step.context, inputs),
        inputs=inputs,
        indices=indices,
        actions=_actions("on_step", callbacks, on_step),
        run=run,
        checkpoint=checkpoint,
        communicator=communicator,
        saved=first_step,
        line=line,
        limit=None if steps is None else steps if resume is not None else first_step + steps,
        read_every=read_every,
    )
    actions = _actions("on_epoch", callbacks, on_epoch)

    def reason() -> str:
        """Return the reason for which no other epoch begins; empty for none."""
        followed = run.evaluations if evaluation is not None else run.epoch_losses
        if patience is not None and _waited(followed, mode) >= patience:
            return "patience"
        return "epochs" if run.epoch >= epochs else ""

    run.ended_by = "steps" if loop.limit is not None and run.step >= loop.limit else reason()
    with line:
        while not run.ended_by:
            is_whole = loop.run_batches()
            if run.ended_by == "nonfinite" or (run.ended_by and not is_whole):
                break
            run._end_epoch()
            if evaluation is not None:
                found = evaluation.result()  # of process 0, so that all go on, or none
                run.evaluations.append(float(communicator.broadcast([np.array([found])])[0][0]))
            for action in actions:
                action(run)
            if checkpoint is not None and run.step % checkpoint.every == 0:
                loop.save()
            run.ended_by = run.ended_by or reason()
        loop.save()
        line.show(run, is_last=True)
    for action in _actions("on_end", callbacks, None):
        action(run)
    return run


@dataclass(slots=True, eq=False)
class _Loop:
    """The batches of a loader, and what happens between them."""

    step: Routine | DataParallel
    loader: Iterable[Any]
    fill: Callable[[Any], None]
    inputs: Inputs
    indices: Indices | None
    actions: Sequence[Callable[[Run], None]]
    run: Run
    checkpoint: Checkpoint | None
    communicator: Communicator
    saved: int
    """The number of steps at the last save."""
    line: _Line
    limit: int | None
    """The number of steps at which the loop ends, or None."""
    read_every: int
    rows: list[int] = field(default_factory=list)
    """The number of rows of each batch whose loss is not counted yet."""

    def run_batches(self) -> bool:
        """Call the routine for every batch until an event; return True at the epoch's end."""
        run, step, fill = self.run, self.step, self.fill
        indices, actions, rows = self.indices, self.actions, self.rows
        is_masked = reads_mask(self.inputs)
        record = run._log.record
        begin = done = run.step
        event = self._next_event()
        for batch in self.loader:
            fill(batch)
            if indices is None:
                step()
            else:
                step(**indices(done, batch))
            record()
            rows.append(count_rows(batch, is_masked=is_masked))
            done += 1
            if actions:
                run.step = done
                for action in actions:
                    action(run)
                if run.ended_by:
                    break
            if done == event:
                run.step = done
                self._handle_event(done - begin)
                if run.ended_by:
                    break
                record = run._log.record  # after the first call there is a quicker one
                event = self._next_event()
        run.step = done
        if done == begin:
            raise UsageError.at_caller(
                "A loader yields batches in every epoch.",
                "none",
                "pass a list or an oc.data.Loader; a generator is exhausted after one epoch",
            )
        self._count()
        return not run.ended_by or self._has_no_more(done - begin)

    def _count(self) -> None:
        """Add the losses of the batches since the last call to those of the epoch."""
        self.run._add(self.rows)
        self.rows.clear()

    def _has_no_more(self, taken: int) -> bool:
        """Return True if the epoch has no batch left; False if its number of batches is unknown."""
        state = getattr(self.loader, "state", None)
        if isinstance(state, tuple):
            return bool(state[-1] == 0)
        return isinstance(self.loader, Sized) and taken == len(self.loader)

    def _next_event(self) -> int:
        """Return the number of steps at which more is to do than the next step."""
        run = self.run
        after = run.step + self.read_every - (run.step - run._first) % self.read_every
        if self.checkpoint is not None:
            after = min(after, run.step + self.checkpoint.every - run.step % self.checkpoint.every)
        return after if self.limit is None else min(after, self.limit)

    def _handle_event(self, taken: int) -> None:
        run = self.run
        run._update()
        self.line.show(run)
        is_due = self.checkpoint is not None and run.step % self.checkpoint.every == 0
        if is_due and not self._has_no_more(taken):  # at the end of an epoch, after its evaluation
            self.save()
        if run.step == self.limit:
            run.ended_by = run.ended_by or "steps"

    def save(self) -> None:
        """Save the state after the current step, unless it is saved or its loss is not finite."""
        checkpoint, run, step = self.checkpoint, self.run, self.step
        self._count()
        if checkpoint is None or self.saved == run.step or run.ended_by == "nonfinite":
            return
        memory, optimizer = step.context, checkpoint.optimizer
        if isinstance(step, DataParallel) and step.is_sharded and optimizer is not None:
            whole = step.whole_state()
            memory, optimizer = whole.context, whole
        loader = self.loader if isinstance(getattr(self.loader, "state", None), tuple) else None
        write = partial(save, checkpoint.path, memory, checkpoint.subject)
        write = partial(write, optimizer=optimizer, loader=loader, step=run.step)
        write = partial(write, metadata={_HISTORY: run._history()})
        self.communicator.first(write, "the checkpoint")
        self.saved = run.step


def evaluate(
    step: Routine,
    loader: Iterable[Any],
    inputs: Inputs,
    value: Tensor,
    *,
    indices: Indices | None = None,
) -> float:
    """Return the mean of a number over all batches, by their number of examples.

        with oc.evaluation():
            accuracy = oc.nn.accuracy(net(x), y)
        judge = ctx.compile(oc.train.forward(accuracy))
        oc.train.evaluate(judge, loader, [x, y], accuracy)

    For the arguments see `Evaluation`. A loader with `last="drop"`, the default, leaves out the
    examples that do not fill a batch. With `last="pad"`, the last batch is computed in parts whose
    sizes divide the batch, each repeated to fill it, so that the mean of the batch equals the mean
    of the part. Beside an input `"mask"`, which weighs the rows, the last batch is computed as it
    is. A loader of one slot gives the mean over its rows.

    Raises:
        UsageError: if there are no batches, or the routine does not compute the number, or changes
            parameters.
    """
    ctx = step.context
    _check_evaluation(step, value)
    fill = filler(ctx, inputs)
    total = weight = 0.0
    for number, batch in enumerate(loader):
        for part, count in counted_batches(batch, inputs):
            fill(part)
            step(**(indices(number, part) if indices else {}))
            total += ctx.item(value) * count
            weight += count
    if weight == 0:
        raise UsageError.at_caller("An evaluation has batches.", "none")
    return total / weight


def _resumed(resume: Loaded, loader: object, first_step: int) -> dict[str, list[Any]]:
    """Return the history of a training loop that a checkpoint states."""
    rule = "resume= is the result of oc.load, of the checkpoint of a training loop and its loader."
    fix = "first_step=found.step, and epochs= without the completed epochs, for other files"
    texts = resume.metadata if isinstance(resume, Loaded) else {}
    found = json_object(texts.get(_HISTORY, "")) or {}
    are_numbers = all(
        isinstance(each, list) and all(isinstance(n, int | float) for n in each)
        for each in found.values()
    )
    if found.keys() != _NO_HISTORY.keys() or not are_numbers or len(found["begun"]) != 2:
        raise UsageError.at_caller(rule, f"no history in {resume!r}"[:200], fix)
    if first_step != 0:
        raise UsageError.at_caller(rule, f"first_step={first_step!r} beside it", "leave it out")
    place, state = json_object(texts.get(OWN + "loader", "")), getattr(loader, "state", None)
    saved = tuple((place or {}).get(name) for name in ("epoch", "position"))
    if place and isinstance(state, tuple) and state != saved:
        raise UsageError.at_caller(
            rule,
            f"{loader!r}, in the file epoch {saved[0]}, position {saved[1]}",
            "oc.load(..., loader=loader)",
        )
    return found if place else {**found, "begun": [*_NO_HISTORY["begun"]]}  # the epoch begins anew


def _waited(numbers: Sequence[float], mode: Mode) -> int:
    """Return the number of numbers since the best one."""
    best, waited = float("inf"), 0
    for each in numbers:
        number = each if mode == "min" else -each
        best, waited = (number, 0) if number < best else (best, waited + 1)
    return waited


def _check_is_whole(communicator: Communicator, loader: Iterable[Any]) -> None:
    """Refuse an evaluation over a part of the examples, which other processes do not share."""
    if communicator.size > 1 and isinstance(loader, Loader) and loader.is_partial:
        raise UsageError.at_caller(
            "Each of several processes evaluates over all examples.",
            f"{loader!r} for one slot",
            "oc.data.Loader(..., batch=n) without slot= and slots=",
        )


def _check_evaluation(step: Routine, value: Tensor) -> None:
    """Refuse a number that a routine does not compute, and a routine that trains."""
    if value in step.context:
        _check_is_computed(step, value, "value=")
    if moved := [name for name, p in value.params.items() if p.node in step.writes]:
        raise UsageError.at_caller(
            "An evaluation leaves parameters as they are.",
            found=f"{step.name} changes {', '.join(moved)}",
            fix="a routine of its own, ctx.compile(oc.train.forward(value)), with a value that is "
            "built inside `with oc.evaluation():`",
        )


def _check_is_computed(step: Routine | DataParallel, value: Tensor, argument: str) -> None:
    """Refuse a number of another routine, which keeps its value while this one runs."""
    computed = step.means if isinstance(step, DataParallel) else step.writes
    if (value if isinstance(step, DataParallel) else value.node) not in computed:
        name = "the step" if isinstance(step, DataParallel) else step.name
        raise UsageError.at_caller(
            f"{argument} is a number that the routine of each batch computes and stores.",
            found=f"{value.describe()}, which {name} does not",
            fix="pass the tensor that the routine was compiled for; beside keep= of ctx.compile, "
            "which replaces its results, name it there",
        )


def _actions(
    event: str, callbacks: Sequence[Callback], function: Callable[[Run], None] | None
) -> list[Callable[[Run], None]]:
    """Return the functions to call at an event; methods that are not overridden are left out."""
    found: list[Callable[[Run], None]] = []
    for each in callbacks:
        method = getattr(each, event, None)
        if method is not None and getattr(type(each), event, None) is not getattr(Callback, event):
            found.append(method)
    return [*found, function] if function is not None else found


class _Line:
    """The progress line, redrawn in place."""

    def __init__(self, is_on: bool, epochs: int) -> None:
        self._is_on = is_on
        self._epochs = epochs
        self._drawn = 0.0
        self._width = 0

    def __enter__(self) -> None:
        self._begin = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self._width:
            print(file=sys.stderr, flush=True)

    def show(self, run: Run, *, is_last: bool = False) -> None:
        """Draw the line, unless it was drawn just now."""
        now = time.monotonic()
        if not self._is_on or (now - self._drawn < _REDRAWN and not is_last):
            return
        rate = (run.step - run._first) / max(now - self._begin, 1e-9)
        epoch = min(run.epoch + 1, self._epochs)
        text = f"epoch {epoch}/{self._epochs}  step {run.step:,}  loss {run._last:.6g}"
        if run.evaluations:
            text += f"  evaluation {run.evaluations[-1]:.6g}"
        text += f"  {rate:,.0f} steps/s"
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._drawn, self._width = now, len(text)


def _check_counts(least: int, **counts: object) -> None:
    for name, count in counts.items():
        is_integer = isinstance(count, Integral) and not isinstance(count, bool)
        if count is not None and not (is_integer and int(count) >= least):  # type: ignore[call-overload]
            raise UsageError.at_caller(
                f"{name}= of a training loop is an integer, at least {least}.", repr(count)
            )


class LossLog:
    """A ring of losses on the device.

    Reading one number for each step would wait for the device and copy; a routine stores the loss
    in a ring instead, which the host reads when it is full.
    """

    def __init__(self, ctx: Context, loss: Tensor, length: int) -> None:
        if prod(loss.info.dims) != 1:
            raise UsageError.at_caller(
                "The loss of a training loop is one number.",
                found=f"shape {loss.shape}",
                fix='sum it up: oc.einsum("...|...->... => 0", loss)',
            )
        self._ctx = ctx
        self._length = length
        self._read = 0
        self._losses: list[Array] = []
        with loss.session:
            dtype = float64 if loss.dtype is float64 else float32
            one = {"batch": (), "input": ()}
            self._ring = declare("losses", **one, output=[length], dtype=dtype)
            self._place = declare("place", **one, output=(), dtype=int32)
            code = cd(self._append)(loss)
        ctx.assign({self._ring: 0.0, self._place: 0})
        self._routine = ctx.compile(code, name="record_loss")

    @property
    def record(self) -> Callable[[], object]:
        """The function that appends the current loss, to call after each step. After the first call
        there is a quicker one: nothing else writes the ring.
        """
        return self._routine.unchecked() or self._routine

    def _append(self, loss: Any) -> None:
        places = arange(self._length, dtype=int32)
        ring, place = self._ring, self._place
        ring[:] = where(equal(places, place), cast(loss, ring.dtype), ring)
        place[:] = where(less(place, self._length - 1), place + 1, 0)

    def read(self, steps: int) -> Array:
        """Return the losses that were recorded since the last read.

        Args:
            steps: The number of calls of `record` so far; at most `length` since the last read.
        """
        ring = self._ctx[self._ring]
        found: Array = ring[np.arange(self._read, steps) % self._length].astype(np.float64)
        self._read = steps
        self._losses.append(found)
        return found

    def all(self) -> Array:
        """Return every loss that was read."""
        return np.concatenate([np.zeros(0), *self._losses])
