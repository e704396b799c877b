"""Optimizers as recorded code: one update of every parameter that a loss depends on.

    opt = oc.train.AdamW(learning_rate=oc.train.cosine(3e-4, steps=1000), clip_norm=1.0)
    step = ctx.compile(oc.train.grad_update(loss) + opt.update(loss))

An optimizer is a class with hyperparameters and one method, `direction`, the formula for one
parameter. Everything else is common to all, in this order:

    unscale the gradient, clip its values, accumulate micro-batches, clip the norm,
    add weight decay, find the direction, move the parameter, move its average

An update that is left out, because a gradient is not finite, is an outlier, or belongs to a
micro-batch before the last one, changes neither parameters nor state: old values are selected, not
multiplied by zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, ClassVar, NoReturn

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import ById
from ocannl_core.base.renamed import old_method
from ocannl_core.ir.numbers.dtypes import DType, float32, float64, int32
from ocannl_core.tensor.computations.computation import (
    Computation,
    statistics_update,
    trained_by_name,
)
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.messages.call_errors import check_fields
from ocannl_core.tensor.messages.foreign_names import missing_attribute
from ocannl_core.tensor.operations.contractions import einsum, where
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.train.guards import SUM, DynamicScale, OptimizerState, ZScore, gated, state_format
from ocannl_core.train.schedules import Schedule
from ocannl_core.train.slot_tree import share
from ocannl_core.train.update_formulas import (
    GATE,
    GRADIENT,
    PARAMETER,
    RATE,
    TIME,
    WEIGHT_DECAY,
    Symbol,
    TracedUpdate,
    UpdateFormula,
    is_pointwise_formula,
    moved_average,
    pointwise_formula,
)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one worker: consecutive rows along the first axis of each parameter."""

    worker: int
    workers: int

    def rows(self, p: Tensor) -> slice | None:
        """Return the rows of the worker; None for a parameter without axes, which all update."""
        if not p.info.dims:
            return None
        rows = share(p.info.dims[0], self.workers, self.worker)
        return slice(rows.start, rows.stop)


Rate = float | Tensor | Schedule | Callable[[Any], Any]
"""A number, a tensor of one cell that the host may change between calls, a schedule, or another
function of the number of updates so far, which is a tensor.
"""


class Clock:
    """The numbers of one update that all parameters share, each computed once.

    Args:
        count: The number of updates before this one, as a float.
    """

    def __init__(self, count: Tensor) -> None:
        self._count = count
        self._found: dict[tuple[object, ...], Tensor] = {}

    def _once(self, key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
        if key not in self._found:
            self._found[key] = make()
        return self._found[key]

    def time(self, dtype: DType) -> Tensor:
        """Return the number of this update, from 1."""
        return self._once((dtype,), lambda: pointwise.cast(self._count + 1.0, dtype, label="time"))

    def rate(self, rate: Rate, dtype: DType) -> float | Tensor:
        """Return the learning rate."""
        if isinstance(rate, Tensor) or not callable(rate):
            return rate
        return self._once(
            (ById(rate), dtype),
            lambda: pointwise.cast(rate(self._count), dtype, label="learning_rate"),
        )

    def correction(self, decay: float, power: float, dtype: DType) -> Tensor:
        """Return a power of `1 - decay**t`, the weights' sum in a moving average from 0."""

        def weight() -> Any:
            # of digits that cancel in `1 - decay**t`, short formats lose most
            found: Any = 1.0 if decay == 0 else -pointwise.expm1(math.log(decay) * self.time(dtype))
            return found if power == 1 else found**power

        return self._once((decay, power, dtype), weight)


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """The update of one parameter while it is recorded.

    Attributes:
        p: The cells of the parameter; if its update is sharded, the cells of the shard. Those of
            less than 32 bits are converted to float32, in which the update is computed.
        g: The gradient of these cells, clipped and with L2 decay.
        t: The number of this update, from 1, as a tensor of one cell.
        rate: The learning rate.
        decay: The decoupled weight decay, a multiple of the cells; None without any.
    """

    p: Tensor
    g: Any
    t: Tensor
    rate: Any
    decay: Any
    _owner: Tensor
    _rows: slice | None
    _state: OptimizerState
    _gate: Tensor | None
    _clock: Clock

    def state(self, name: str) -> Tensor:
        """Return a tensor that is kept between updates, 0 at first."""
        return self._state.slot(self._owner, name, is_sharded=self._rows is not None)

    def keep(self, name: str, value: Any) -> Tensor:
        """Assign a tensor that is kept between updates, and return it."""
        stored = self.state(name)
        stored[:] = gated(self._gate, value, stored)
        return stored

    def average(self, name: str, value: Any, decay: Any) -> Tensor:
        """Move a moving average that starts at 0 towards a value, and return it."""
        return self.keep(name, moved_average(self.state(name), value, decay))

    def publish_average(self, name: str) -> None:
        """Make a tensor that is kept between updates the parameter's average."""
        owner = self._state.names[self._owner]
        averages = self._state.averages
        self._owner.session.undo_log.put(averages, owner, f"{owner}.{name}")

    def correction(self, decay: float, *, power: float = 1.0) -> Any:
        """Return a power of `1 - decay**t`, the weights' sum in a moving average from 0."""
        return self._clock.correction(decay, power, self.p.dtype)


Group = Mapping[str, Any] | None

_ATTRIBUTES = {
    "step": "step = ctx.compile(oc.train.grad_update(loss) + opt.update(loss)), then step()",
    "zero_grad": "oc.train.grad_update(loss) begins with gradients of 0",
    **dict.fromkeys(["param_groups", "add_param_group"], "groups={'*.bias': {'weight_decay': 0}}"),
    "state_dict": "oc.save(path, ctx, loss, optimizer=opt), or {n: ctx[t] for n, t in "
    "opt.state.items()}",
    "load_state_dict": "oc.load(path, ctx, loss, optimizer=opt)",
}
"""Attributes of optimizers in other libraries, and their counterparts."""

_OF_ALL = "clip_norm", "accumulate", "skip_nonfinite", "skip_outliers", "loss_scale", "groups"
"""The hyperparameters that all parameters have in common, so that no group has its own."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Optimizer(ABC):
    """A rule that updates parameters against their gradients.

        opt = oc.train.AdamW(learning_rate=1e-3, groups={"*.bias": {"weight_decay": 0.0}})
        step = ctx.compile(opt.minimize(loss))

    `minimize` is `oc.train.grad_update(loss) + opt.update(loss)`, with the loss scale if there is
    one. A subclass defines `direction`.

    Attributes:
        learning_rate: The step size: a number, a tensor of one cell, a schedule, or a function of
            the number of updates so far, as a tensor.
        weight_decay: The multiple of a parameter that is added to its gradient (L2), or, where the
            decay is decoupled, to the direction.
        maximize: True to ascend.
        clip_value: The largest magnitude of a cell of a gradient; None for no limit.
        clip_norm: The largest norm of all gradients together; longer ones are scaled down to it.
            None for no limit. Where the norm is not a number nothing is scaled.
        accumulate: The number of calls whose gradients are averaged for one update: k calls on
            micro-batches equal one call on a batch k times larger, for a mean loss.
        average: The decay of a moving average of the parameters, which `averages` holds; None
            without an average.
        skip_nonfinite: True to leave an update out when a gradient is infinite or NaN.
        skip_outliers: The guard that leaves an update out when the norm of its gradients is far
            larger than recent ones; None for none.
        loss_scale: The scale of the loss against underflow of gradients in float16; `minimize` puts
            it into the gradients. None for 1.
        groups: Hyperparameters for some of the parameters, by patterns of their names (as in
            `loss.params`; `*` and `?` as in file names): `{"*.bias": {"weight_decay": 0.0}}`. The
            first pattern that fits applies; None in place of hyperparameters freezes. Limits of the
            norm, accumulation, guards and the loss scale concern all parameters together.
    """

    learning_rate: Rate
    weight_decay: Any = 0.0
    maximize: bool = False
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    average: float | None = None
    skip_nonfinite: bool = False
    skip_outliers: ZScore | None = None
    loss_scale: DynamicScale | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)
    _state: OptimizerState = field(default_factory=OptimizerState, init=False, repr=False)

    is_decoupled: ClassVar[bool] = False
    """True if weight decay is no part of the gradient that `direction` gets."""

    is_elementwise: ClassVar[bool] = False
    """True if the direction of a cell depends on that cell, its gradient and its state alone."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check(self)

    @abstractmethod
    def direction(self, update: Update) -> Any:
        """Return the direction in which a parameter moves, by the learning rate, downwards."""

    @pointwise_formula
    def moved(self, update: Update) -> Any:
        """Return the cells of a parameter after the update; an optimizer whose steps are not the
        learning rate times a direction overrides it.
        """
        direction = self.direction(update)
        if update.decay is not None:
            direction = direction + update.decay
        return update.p - update.rate * direction

    def __getattr__(self, name: str) -> NoReturn:
        rule = "An optimizer makes code from a loss, and has no attribute"
        raise missing_attribute(self, name, rule, f"{type(self).__name__}(...)", _ATTRIBUTES)

    def update(
        self, loss: Tensor, *, params: Iterable[Tensor] | None = None, shard: Shard | None = None
    ) -> Computation:
        """Return the code that updates every parameter that gradients of a loss flow into.

        Code compiled twice, for two sizes of batches, shares the state, and its count of updates:
        both update the same parameters. Parameters behind `oc.stop_gradient` are frozen: neither
        steps nor decay move them, and they have no state.

        Args:
            params: The parameters to update instead, such as `net.params`; frozen ones among them
                decay.
            shard: The rows of each parameter to update, with state for them alone; None for all.

        Raises:
            UsageError: if there is no such parameter, or a group matches none; if other code of the
                optimizer updates other parameters; if there is a loss scale, for which `minimize`
                is the code; or if the shard is a part, and the optimizer does not update cell by
                cell.
        """
        if self.loss_scale is not None:
            raise UsageError.at_caller(
                "With a loss scale, the gradients and the update are one code.",
                found=f"{type(self).__name__}(loss_scale=...).update(loss)",
                fix="compile opt.minimize(loss) in place of oc.train.grad_update(loss) + "
                "opt.update(loss)",
            )
        if shard is not None and not self.is_elementwise:
            raise UsageError.at_caller(
                "The state of an optimizer that updates cell by cell can be sharded.",
                found=f"{type(self).__name__} computes with whole parameters",
                fix="shard_state=False, or an optimizer such as AdamW",
            )
        return self._recorded("update", loss, params, has_gradients=True, shard=shard)

    minimise = old_method("oc.train.Optimizer", "minimise")

    def minimize(self, loss: Tensor, *, params: Iterable[Tensor] | None = None) -> Computation:
        """Return the code of a whole step: the loss, its gradients and the update.

        Args:
            params: As for `update`.

        Raises:
            UsageError: as `update`.
        """
        return self._recorded("minimize", loss, params, has_gradients=False)

    def _recorded(
        self,
        name: str,
        loss: Tensor,
        params: Iterable[Tensor] | None,
        *,
        has_gradients: bool,
        shard: Shard | None = None,
    ) -> Computation:
        trained = trained_by_name(loss, params, f"{type(self).__name__}.{name}")
        groups, names = self._groups(loss, trained)

        def record(loss: Tensor) -> None:
            loss.session.undo_log.set(self._state, "names", names)
            if not has_gradients:
                loss.forward()
                loss.zero_grads()
                assert loss.grad is not None
                scale = self.loss_scale
                loss.grad[:] = 1.0 if scale is None else scale.value(self._state, float32)
                loss.backprop()
                statistics_update(loss)
            self._record(groups, shard)

        record.__name__ = f"{type(self).__name__.lower()}_{name}"
        code = cd(record)(loss)
        return replace(code, results=code.results.union(self._state.diagnostics.values()))

    @property
    def state(self) -> Mapping[str, Tensor]:
        """The tensors that updates keep, by the parameter's name and their own, as
        `mlp.w.first_moment`; empty before `update`.
        """
        return self._state.tensors

    @property
    def reads_whole_gradients(self) -> bool:
        """True if the update of a cell depends on gradients of other cells, as by their norm."""
        is_guarded = self.skip_nonfinite or self.skip_outliers is not None
        return self.clip_norm is not None or is_guarded or not self.is_elementwise

    @property
    def diagnostics(self) -> Mapping[str, Tensor]:
        """Numbers of the last update that a context can read: `gradient_norm` with `clip_norm` or
        `skip_outliers`; `is_applied`, 0 after an update that was left out.
        """
        return self._state.diagnostics

    @property
    def averages(self) -> Mapping[str, Tensor]:
        """The averaged parameters by name; empty for an optimizer that averages none."""
        tensors = self._state.tensors
        return {name: tensors[path] for name, path in self._state.averages.items()}

    def _groups(
        self, loss: Tensor, trained: Mapping[str, Tensor]
    ) -> tuple[dict[Tensor, Optimizer], dict[Tensor, str]]:
        """Return the hyperparameters of each parameter to train, and its name."""
        found: dict[Tensor, Optimizer] = {}
        names: dict[Tensor, str] = {}
        made: dict[str | None, Optimizer] = {}
        unused = set(self.groups)
        for name, p in loss.params.items():
            pattern = next((each for each in self.groups if fnmatchcase(name, each)), None)
            unused.discard(pattern or "")
            if name not in trained:
                continue
            group: Group = self.groups[pattern] if pattern is not None else {}
            if group is not None:
                names[p] = name
                if pattern not in made:
                    made[pattern] = replace(self, **group, groups={}) if group else self
                found[p] = made[pattern]
        if unused:
            every = list(loss.params.keys())
            taken = [each for each in unused if any(fnmatchcase(name, each) for name in every)]
            raise UsageError.at_caller(
                "A group has parameters: names that match its pattern, and no earlier one.",
                found=f"no parameter for {', '.join(sorted(unused))}",
                fix=f"state {min(taken)} before the patterns that match the same names"
                if taken
                else "the names are " + ", ".join(every),
            )
        if not found:
            raise UsageError.at_caller(
                "Updates are for parameters that gradients flow into.",
                found=f"groups= freezes every parameter of {loss!r}",
                fix='leave some out of patterns with None, as in groups={"body.*": None}',
            )
        known = self._state.names
        if known and known.keys() != names.keys():
            raise UsageError.at_caller(
                "All code of an optimizer updates the same parameters, with one count of updates.",
                found=f"{', '.join(names.values())} after {', '.join(known.values())}, of which "
                f"{len(known.keys() & names.keys())} are the same",
                fix="an optimizer of its own for each set of parameters and for each model",
            )
        return found, known or names

    def _record(self, groups: Mapping[Tensor, Optimizer], shard: Shard | None) -> None:
        state = self._state
        dtype = float64 if any(p.dtype is float64 for p in groups) else float32
        count = state.numbers("updates", int32)
        parts = {p: None if shard is None else shard.rows(p) for p in groups}
        cut = dict.fromkeys(groups) if self.reads_whole_gradients else parts
        gradients = {p: self._gradient(p, group, cut[p]) for p, group in groups.items()}
        is_last = self._accumulated(gradients, cut)
        gate, raw = is_last, gradients
        if self.clip_norm is not None or self.skip_outliers is not None:
            norm = state.diagnostic("gradient_norm", dtype)
            # squares leave the range of float16 far earlier than the norm
            wide = [pointwise.cast(g, dtype) for g in gradients.values()]
            norm[:] = pointwise.sqrt(sum(einsum(SUM, g * g) for g in wide))
            if self.skip_outliers is not None:
                gate = _both(gate, self.skip_outliers.accepts(norm, state, is_last))
            if self.clip_norm is not None:
                scale = where(norm > self.clip_norm, self.clip_norm / norm, 1.0)
                gradients = {
                    p: in_format(g, state_format(p)) * in_format(scale, state_format(p))
                    for p, g in raw.items()
                }
        if self.skip_nonfinite or self.loss_scale is not None:
            bad = sum(
                pointwise.cast(einsum(SUM, where(pointwise.equal(g - g, 0.0), 0.0, 1.0)), float32)
                for g in raw.values()  # clipped gradients would be stored for this test
            )
            is_finite = state.diagnostic("is_finite", float32)
            is_finite[:] = pointwise.equal(bad, 0.0)
            gate = _both(gate, is_finite)
            if self.loss_scale is not None:
                self.loss_scale.record(state, is_finite, is_last)
        decided = state.diagnostic("is_applied", float32) if gate is not None else None
        if decided is not None:
            decided[:] = gate
        clock = Clock(pointwise.cast(count, dtype))
        traces: dict[ById, _Trace | None] = {}
        for p, group in groups.items():
            rows = parts[p]
            gradient = gradients[p] if rows is cut[p] else gradients[p][rows]
            if ById(group) not in traces:
                traces[ById(group)] = group._traced(is_gated=decided is not None)
            group._record_one(p, rows, gradient, clock, decided, state, traces[ById(group)])
        count += 1 if decided is None else pointwise.cast(decided, int32)

    def _gradient(self, p: Tensor, group: Optimizer, rows: slice | None) -> Any:
        assert p.grad is not None
        g: Any = p.grad if rows is None else p.grad[rows]
        if self.loss_scale is not None:
            g = g * (1.0 / self.loss_scale.value(self._state, float32))
        if group.clip_value is not None:
            g = pointwise.minimum(pointwise.maximum(g, -group.clip_value), group.clip_value)
        return -g if group.maximize else g

    def _accumulated(
        self, gradients: dict[Tensor, Any], parts: Mapping[Tensor, slice | None]
    ) -> Tensor | None:
        """Replace gradients by their means over micro-batches; return 1 after the last one.

        Args:
            gradients: The gradients of this micro-batch.
            parts: The rows of each that are there; None for all.
        """
        if self.accumulate == 1:
            return None
        state = self._state
        place = state.numbers("micro_batch", int32)
        for p, g in gradients.items():
            total = state.slot(p, "gradient_sum", is_sharded=parts[p] is not None)
            total[:] = where(pointwise.equal(place, 0), g, total + g)
            gradients[p] = total * (1.0 / self.accumulate)
        is_last = state.diagnostic("is_last_micro_batch", float32)
        is_last[:] = pointwise.equal(place, self.accumulate - 1)
        place[:] = where(is_last, 0, place + 1)
        return is_last

    def _record_one(
        self,
        owner: Tensor,
        rows: slice | None,
        gradient: Any,
        clock: Clock,
        gate: Tensor | None,
        state: OptimizerState,
        trace: _Trace | None,
    ) -> None:
        """Record the update of one parameter, or of some of its rows; by formulas, if it has been
        traced.
        """
        dtype = state_format(owner)
        p = in_format(owner if rows is None else owner[rows], dtype)
        gradient = in_format(gradient, dtype)
        rate, t = clock.rate(self.learning_rate, dtype), clock.time(dtype)
        every = slice(None) if rows is None else rows
        if trace is None:
            gradient, decay = self._decayed(p, gradient, self.weight_decay)
            update = Update(p, gradient, t, rate, decay, owner, rows, state, gate, clock)
            owner[every] = gated(gate, self.moved(update), p)
        else:
            update = Update(p, gradient, t, rate, None, owner, rows, state, gate, clock)
            operands = {
                PARAMETER: p,
                GRADIENT: gradient,
                TIME: t,
                RATE: rate,
                WEIGHT_DECAY: self.weight_decay,
                GATE: gate,
            }

            def operand(symbol: Symbol) -> Any:
                match symbol:
                    case "state", name, _:
                        return update.state(name)
                    case "correction", decay, power:
                        return update.correction(decay, power=power)
                    case _:
                        return operands[symbol]

            for each in trace.formulas:
                target = update.state(each.target) if each.target else owner
                target[every if target is owner else slice(None)] = each.value(operand)
            for name in trace.averages:
                update.publish_average(name)
        if self.average is not None:
            p = in_format(owner if rows is None else owner[rows], dtype)
            mean = update.state("average")
            towards = self.average * mean + (1.0 - self.average) * p
            update.keep("average", where(pointwise.equal(t, 1.0), p, towards))
            update.publish_average("average")

    def _decayed(self, p: Any, gradient: Any, factor: Any) -> tuple[Any, Any]:
        """Return the gradient with L2 decay, and the decoupled decay, or None."""
        if isinstance(self.weight_decay, Real) and self.weight_decay == 0:
            return gradient, None
        decay = factor * p
        return (gradient, decay) if self.is_decoupled else (gradient + decay, None)

    def _traced(self, *, is_gated: bool) -> _Trace | None:
        """Return the formulas of the update; None if it computes with more than cells and numbers
        of their own, or reads values from before an assignment after it.
        """
        methods = type(self).direction, type(self).moved
        if not all(map(is_pointwise_formula, methods)):
            return None
        update: Any = TracedUpdate(is_gated=is_gated)
        is_number = not callable(self.learning_rate) and not isinstance(self.learning_rate, Tensor)
        update.rate = self.learning_rate if is_number else update.slot(*RATE)
        factor = self.weight_decay
        factor = update.slot(*WEIGHT_DECAY) if isinstance(factor, Tensor) else factor
        update.g, update.decay = self._decayed(update.p, update.g, factor)
        try:
            update.move(self.moved(update))
        except UsageError:
            return None
        return _Trace(tuple(update.formulas(type(self).__name__.lower())), tuple(update.averages))


@dataclass(frozen=True, slots=True, eq=False)
class _Trace:
    """The formulas of an update, and the names of the averages of the parameter among them."""

    formulas: tuple[UpdateFormula, ...]
    averages: tuple[str, ...]


def in_format(value: Any, dtype: DType) -> Any:
    """Return a value in a number format."""
    return value if value.dtype is dtype else pointwise.cast(value, dtype)


def _both(first: Tensor | None, second: Tensor) -> Tensor:
    both: Tensor = second if first is None else pointwise.logical_and(first, second)
    return both


def _check(optimizer: Optimizer) -> None:
    """Raise UsageError for hyperparameters that no update can have."""
    values = {name: getattr(optimizer, name, None) for name in _RANGES}
    check_ranges(type(optimizer).__name__, **values)
    for pattern, group in optimizer.groups.items():
        if common := [name for name in _OF_ALL if name in (group or ())]:
            raise UsageError.at_caller(
                f"{', '.join(common)} of an optimizer concerns all parameters together.",
                found=f"groups={{{pattern!r}: {group!r}}}",
                fix=f"{type(optimizer).__name__}({common[0]}=...), beside groups=",
            )


def check_ranges(owner: str, **hyperparameters: Any) -> None:
    """Raise UsageError for a hyperparameter that is out of range, which None never is."""
    for name, value in hyperparameters.items():
        is_right, rule = _RANGES[name]
        if value is not None and not is_right(value):
            raise UsageError.at_caller(
                f"{name}= of an optimizer is {rule}.", found=f"{owner}({name}={value!r})"
            )


def _each(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a condition of a number, or of each number of a tuple."""
    return lambda value: all(map(is_right, value if isinstance(value, tuple) else (value,)))


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number = float(value)
    return math.isfinite(number) and number >= 0


_NOT_NEGATIVE = _each(_is_number), "a finite number that is not negative"
_DECAY = _each(lambda value: 0 <= value < 1), "a decay, at least 0 and less than 1"
_SHARE = _each(lambda value: 0 <= value <= 1), "a decay, from 0 to 1"

_RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "learning_rate": (
        lambda value: callable(value) or isinstance(value, Tensor) or _is_number(value),
        "a number, a tensor of one cell, a schedule or a function",
    ),
    "weight_decay": (
        lambda value: isinstance(value, Tensor) or _is_number(value),
        "a number, not negative",
    ),
    "accumulate": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
        "a number of micro-batches, at least 1",
    ),
    "average": (
        lambda value: _is_number(value) and value < 1,
        "a decay between 0 and 1, such as 0.999",
    ),
    "etas": (lambda value: 0 < value[0] < 1 < value[1], "a factor below 1 and a factor above 1"),
    "step_sizes": (lambda value: 0 < value[0] <= value[1], "a least and a greatest step"),
    "beta2_decay": (lambda value: value <= 0, "an exponent that is not positive"),
    "d": (lambda value: value > 0, "a positive number"),
    "ns_steps": (lambda value: value >= 1, "a number of iterations, at least 1"),
    "betas": _DECAY,
    "alpha": _SHARE,
    "rho": _SHARE,
    **dict.fromkeys(("clip_value", "clip_norm", "momentum", "eps", "lr_decay"), _NOT_NEGATIVE),
    **dict.fromkeys(("initial_accumulator_value", "momentum_decay", "trust"), _NOT_NEGATIVE),
}
"""The conditions of hyperparameters by name, and their rules in words; None is always allowed."""
