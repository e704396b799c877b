"""Learning-rate schedules: numbers as functions of the count of updates.

A schedule is applied to an integer on the host, where it returns a float, or to a tensor inside of
a step, where it is a part of the compiled code. Both evaluate the same formula:

    rate = cosine(3e-4, steps=1000, warmup=50)
    rate(0)                                    # 6e-06
    AdamW(learning_rate=rate)                  # evaluated in the compiled step

`step` is the number of updates before the current one: 0 at the first update. A schedule of `steps`
updates keeps its last value after them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives import pointwise_operations as tensors

Number = Any
"""A float on the host, or a tensor of one cell in a step."""


def _on_both(of_tensor: Callable[..., Tensor], of_float: Callable[..., float]) -> Any:
    """Return a function of numbers: of tensors in a step, of floats on the host."""

    def function(x: Number, *others: Number) -> Number:
        return of_tensor(x, *others) if isinstance(x, Tensor) else of_float(x, *others)

    return function


_minimum = _on_both(tensors.minimum, min)
_maximum = _on_both(tensors.maximum, max)
_cos = _on_both(tensors.cos, math.cos)
_sqrt = _on_both(tensors.sqrt, math.sqrt)
_exp2 = _on_both(tensors.exp2, lambda x: 2.0**x)
_where = _on_both(tensors.where, lambda condition, a, b: a if condition else b)


class Schedule(ABC):
    """A number as a function of the count of updates, such as a learning rate.

        rate = oc.train.cosine(1e-3, steps=1000, warmup=100)
        opt = oc.train.Adam(learning_rate=rate)     # evaluated in the training step
        rate(0), rate(500)                          # on the host: for the first update, and later

    A subclass defines `value`, for a number and for a tensor of one cell.
    """

    __slots__ = ()

    @abstractmethod
    def value(self, step: Number) -> Number:
        """Return the number for the update after `step` others."""

    def __call__(self, step: Number) -> Number:
        """Return the number for the update after `step` others.

        Raises:
            UsageError: if `step` is neither a tensor nor a count.
        """
        if isinstance(step, Tensor):
            return self.value(step)
        if not isinstance(step, Real) or isinstance(step, bool) or step < 0:
            raise UsageError.at_caller(
                "A schedule is a function of the number of updates so far.",
                found=f"step={step!r}",
                fix="schedule(0) is the value for the first update",
            )
        found = self.value(float(step))
        if isinstance(found, Tensor):
            raise UsageError.at_caller(
                "The value of a schedule for a number of updates is a number.",
                found=f"{found!r} of {type(self).__name__}.value({float(step)})",
                fix="compute with Python's functions, such as min and math.cos, where step is no "
                "oc.Tensor; an optimizer needs the tensor alone",
            )
        return float(found)


@dataclass(frozen=True, slots=True)
class _Formula(Schedule):
    """A function of the step and of other arguments."""

    function: Callable[..., Number]
    arguments: tuple[Any, ...]

    def value(self, step: Number) -> Number:
        return self.function(step, *self.arguments)

    def __repr__(self) -> str:  # the same in all processes, which compare it
        return f"{self.function.__name__[1:]}({', '.join(map(repr, self.arguments))})"


def _constant(step: Number, rate: float) -> Number:
    return rate + 0.0 * step


def _linear(step: Number, first: float, last: float, steps: int) -> Number:
    return first + (last - first) * _minimum(step / steps, 1.0)


def _half_wave(step: Number, first: float, last: float, length: float, start: float) -> Number:
    """Return half a wave of the cosine between two positions that need not be whole."""
    if length <= 0:
        return last + 0.0 * step
    progress = _minimum(_maximum((step - start) / length, 0.0), 1.0)
    return last + (first - last) * (0.5 * (1.0 + _cos(math.pi * progress)))


def _root_decay(step: Number, first: float, last: float, steps: int) -> Number:
    """Return the decay of a warm-up-stable-decay schedule: `1 - sqrt(progress)`."""
    return first - (first - last) * _sqrt(_minimum(step / steps, 1.0))


def _exponential(
    step: Number, rate: float, decay: float, steps: int, is_staircase: bool, last: float
) -> Number:
    count = step / steps
    if is_staircase:
        count = count - count % 1.0
    return _maximum(rate * _exp2(count * math.log2(decay)), last)


def _warmup(step: Number, after: Schedule, steps: int) -> Number:
    """Return a linear rise to the first value of another schedule, then that schedule."""
    rise = _minimum((step + 1.0) / steps, 1.0)
    return rise * after.value(_maximum(step - steps, 0.0))


def _joined(step: Number, parts: tuple[Schedule, ...], boundaries: tuple[int, ...]) -> Number:
    found = parts[0].value(step)
    for start, part in zip(boundaries, parts[1:], strict=True):
        found = _where(step < start, found, part.value(_maximum(step - start, 0.0)))
    return found


def _peak(step: Number, before: Schedule, after: Schedule, at: float) -> Number:
    """Return a schedule up to a position that need not be whole, and another one after it."""
    return _where(step <= at, before.value(step), after.value(step))


def constant(rate: float, *, warmup: int = 0) -> Schedule:
    """Return a schedule with one value, after a linear warm-up.

    Args:
        warmup: The number of updates of the linear rise; the first has `rate / warmup`.
    """
    _check_numbers(rate=rate)
    return _with_warmup(_Formula(_constant, (rate,)), warmup)


def linear(rate: float, *, steps: int, final: float = 0.0, warmup: int = 0) -> Schedule:
    """Return a schedule that decays linearly.

    Args:
        rate: The value after the warm-up.
        steps: The number of updates, the warm-up included.
        final: The value after all updates.
        warmup: The number of updates of the linear rise at the start.
    """
    _check_numbers(rate=rate, final=final)
    return _with_warmup(_Formula(_linear, (rate, final, _rest(steps, warmup))), warmup)


def cosine(rate: float, *, steps: int, final: float = 0.0, warmup: int = 0) -> Schedule:
    """Return a schedule that decays along half a wave of the cosine (Loshchilov and Hutter, 2017).

    For the arguments see `linear`.
    """
    _check_numbers(rate=rate, final=final)
    falling = _Formula(_half_wave, (rate, final, _rest(steps, warmup), 0.0))
    return _with_warmup(falling, warmup)


def wsd(rate: float, *, steps: int, decay: int, final: float = 0.0, warmup: int = 0) -> Schedule:
    """Return a warm-up-stable-decay schedule: a linear rise, a constant, and a decay by
    `1 - sqrt(progress)` (Hägele et al., 2024).

    Args:
        rate: The value between warm-up and decay.
        steps: The number of updates, warm-up and decay included.
        decay: The number of updates of the decay at the end.

    The other arguments are as for `linear`.
    """
    _check_numbers(rate=rate, final=final)
    _check_count("decay", decay)
    stable = _rest(steps, warmup) - decay
    if stable < 0:
        raise _overfull(f"warmup={warmup} and decay={decay} in steps={steps}")
    found = _Formula(_root_decay, (rate, final, decay))
    if stable:
        found = _Formula(_joined, ((_Formula(_constant, (rate,)), found), (stable,)))
    return _with_warmup(found, warmup)


def exponential(
    rate: float, *, decay: float, steps: int, staircase: bool = False, final: float = 0.0
) -> Schedule:
    """Return a schedule that is multiplied by `decay` every `steps` updates.

    Args:
        rate: The first value.
        decay: The factor, positive.
        steps: The number of updates to which the factor belongs.
        staircase: True to multiply at once at the end of them.
        final: The lower bound.
    """
    _check_numbers(rate=rate, final=final)
    _check_count("steps", steps)
    if not decay > 0 or not math.isfinite(decay):
        raise UsageError.at_caller(
            "The factor of an exponential decay is positive.",
            found=f"decay={decay!r}",
            fix="decay=0.5, steps=1000 halves the value every 1000 updates",
        )
    return _Formula(_exponential, (rate, decay, steps, staircase, final))


def one_cycle(
    rate: float,
    *,
    steps: int,
    rise: float = 0.3,
    first_divisor: float = 25.0,
    last_divisor: float = 1e4,
) -> Schedule:
    """Return the one-cycle schedule: half a wave of the cosine up to `rate`, and half a wave down
    (Smith and Topin, 2018), as in `torch.optim.lr_scheduler.OneCycleLR`.

    Args:
        rate: The highest value.
        steps: The number of updates.
        rise: The fraction of the updates before the highest value.
        first_divisor: The first value is `rate / first_divisor`.
        last_divisor: The last value is the first one divided by this number.
    """
    _check_numbers(rate=rate, first_divisor=first_divisor, last_divisor=last_divisor)
    _check_count("steps", steps)
    if not first_divisor or not last_divisor:
        raise UsageError.at_caller(
            "The divisors of a one-cycle schedule are positive.",
            found=f"first_divisor={first_divisor!r} and last_divisor={last_divisor!r}",
            fix="first_divisor=25.0, last_divisor=1e4",
        )
    if not 0 < rise < 1:
        raise UsageError.at_caller(
            "The rise of a one-cycle schedule is a fraction of its updates.",
            found=f"rise={rise!r}",
            fix="rise=0.3",
        )
    first = rate / first_divisor
    top = rise * steps - 1.0
    up = _Formula(_half_wave, (first, rate, top, 0.0))
    down = _Formula(_half_wave, (rate, first / last_divisor, steps - 1.0 - top, top))
    return _Formula(_peak, (up, down, top))


def joined(schedules: Sequence[Schedule], *, boundaries: Sequence[int]) -> Schedule:
    """Return schedules one after the other; each begins at its first value.

    Args:
        boundaries: The counts of updates at which the second, third and further ones begin.
    """
    parts, starts = tuple(schedules), tuple(boundaries)
    if not parts or not all(isinstance(each, Schedule) for each in parts):
        raise UsageError.at_caller(
            "Schedules are joined.",
            found=repr(schedules),
            fix="oc.train.joined([oc.train.constant(0.1), oc.train.cosine(0.1, steps=100)], "
            "boundaries=[50])",
        )
    is_ascending = all(a < b for a, b in zip((0, *starts), starts, strict=False))
    if len(starts) != len(parts) - 1 or not is_ascending:
        raise UsageError.at_caller(
            "Between schedules there is one boundary each, in ascending order.",
            found=f"{len(parts)} schedules, boundaries={list(starts)}",
        )
    return _Formula(_joined, (parts, starts))


def _with_warmup(schedule: Schedule, warmup: int) -> Schedule:
    if warmup == 0:
        return schedule
    _check_count("warmup", warmup)
    return _Formula(_warmup, (schedule, warmup))


def _rest(steps: int, warmup: int) -> int:
    """Return the number of updates after the warm-up."""
    _check_count("steps", steps)
    if warmup:
        _check_count("warmup", warmup)
    if warmup >= steps:
        raise _overfull(f"warmup={warmup} in steps={steps}")
    return steps - warmup


def _overfull(found: str) -> UsageError:
    return UsageError.at_caller(
        "The stages of a schedule fit into its number of updates.",
        found=found,
        fix="steps= counts all updates, those of warm-up and decay included",
    )


def _check_count(name: str, count: object) -> None:
    if isinstance(count, int) and not isinstance(count, bool) and count >= 1:
        return
    raise UsageError.at_caller(
        f"{name}= of a schedule is a number of updates.", found=repr(count), fix=f"{name}=100"
    )


def _check_numbers(**numbers: object) -> None:
    for name, number in numbers.items():
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if not is_number or not 0 <= float(number) < math.inf:  # type: ignore[arg-type]
            raise UsageError.at_caller(
                "The values of a schedule are finite numbers that are not negative.",
                found=f"{name}={number!r}",
                fix=f"{name}=1e-3",
            )
