"""The state of an optimizer; guards of its updates: a dynamic loss scale, a limit for outliers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers.dtypes import DType, float32, int32, promote
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.messages.call_errors import check_fields
from ocannl_core.tensor.models.parameters import kept_between_calls
from ocannl_core.tensor.operations.contractions import einsum, where
from ocannl_core.tensor.operations.literals import arange
from ocannl_core.tensor.primitives.pointwise_operations import (
    cast,
    equal,
    exp2,
    logical_and,
    logical_not,
    logical_or,
    sqrt,
)

SUM = "...|...->... => 0"
"""The sum of all cells."""


def gated(gate: Tensor | None, value: Any, stored: Any) -> Any:
    """Return the value, or the stored one where the gate is 0."""
    return value if gate is None else where(gate, value, stored)


def state_format(p: Tensor) -> DType:
    """Return the format of an optimizer's state for a parameter, at least 32 bits: a moving average
    in bfloat16 would stay where it is, since `1 - 0.999` is below the distance of its numbers.
    """
    return promote(p.dtype, float32)


class OptimizerState:
    """The tensors that an optimizer keeps between updates, by name; code that raises adds none."""

    def __init__(self) -> None:
        self.names: dict[Tensor, str] = {}
        """The name of each parameter."""
        self.tensors: dict[str, Tensor] = {}
        """The tensors by path, as `w.first_moment`."""
        self.averages: dict[str, str] = {}
        """The path of the average of each parameter, by its name."""
        self.sharded: dict[str, Tensor] = {}
        """The parameters of the tensors that have the rows of a shard alone, by path."""
        self.diagnostics: dict[str, Tensor] = {}
        """Numbers of the last update, by name."""

    def diagnostic(self, name: str, dtype: DType) -> Tensor:
        """Return a number that each update computes, and that stays readable after it."""
        return _declared(self.diagnostics, name, name, dtype, output=())

    def numbers(self, name: str, dtype: DType, axes: Sequence[int] = ()) -> Tensor:
        """Return a number of the optimizer, or several along axes; 0 before the first update."""
        return _declared(self.tensors, name, name, dtype, output=axes)

    def slot(self, p: Tensor, name: str, *, is_sharded: bool) -> Tensor:
        """Return a tensor that belongs to a parameter, 0 before the first update."""
        path = f"{self.names[p]}.{name}"
        if is_sharded:
            p.session.undo_log.put(self.sharded, path, p)
        return _declared(self.tensors, path, name, state_format(p), owner=p.label)


def _declared(
    tensors: dict[str, Tensor],
    path: str,
    name: str,
    dtype: DType,
    output: Any = None,
    owner: tuple[str, ...] = (),
) -> Tensor:
    """Return the tensor at a path, declared at first; with stated output axes, or inferred ones.

    Args:
        owner: The label of the parameter that it belongs to.
    """
    if path not in tensors:
        axes = {} if output is None else {"batch": (), "input": (), "output": output}
        made = kept_between_calls(name, **axes, dtype=dtype)  # also where a decay of 0 reads none
        made.relabel((name, *owner))
        made.session.undo_log.put(tensors, path, made)
    return tensors[path]


@dataclass(frozen=True, slots=True)
class DynamicScale:
    """A factor of the loss that keeps small gradients above the range of float16.

    A gradient that is not finite leaves the update out and divides the factor by two; after
    `interval` updates without one the factor doubles.

    Attributes:
        initial: The base-2 logarithm of the first factor.
        interval: The number of finite updates before the factor grows.
        largest: The base-2 logarithm of the largest factor.
    """

    initial: int = 16
    interval: int = 2000
    largest: int = 24

    def __post_init__(self) -> None:
        check_fields(self)

    def value(self, state: OptimizerState, dtype: DType) -> Any:
        """Return the factor."""
        change = cast(state.numbers("loss_scale_change", int32), dtype)
        return exp2(float(self.initial) + change)

    def record(self, state: OptimizerState, is_finite: Tensor, is_counted: Tensor | None) -> None:
        """Record the change of the factor after an update, or after its last micro-batch."""
        change = state.numbers("loss_scale_change", int32)
        good = state.numbers("finite_updates", int32)
        run = where(is_finite, good + 1, 0)
        has_room = change < self.largest - self.initial
        grows = logical_and(equal(run, self.interval), has_room)
        moved = where(is_finite, where(grows, change + 1, change), change - 1)
        left = where(equal(run, self.interval), 0, run)
        change[:] = gated(is_counted, moved, change)
        good[:] = gated(is_counted, left, good)


@dataclass(frozen=True, slots=True)
class ZScore:
    """A limit for the norm of all gradients, in standard deviations of the last accepted norms.

    Norms are not judged until the window is full. A norm that is not finite is refused at once, and
    is not stored.

    Attributes:
        limit: The largest distance from the mean, upwards, in standard deviations.
        window: The number of norms.
    """

    limit: float = 6.0
    window: int = 128

    def __post_init__(self) -> None:
        check_fields(self)

    def accepts(self, norm: Tensor, state: OptimizerState, is_counted: Tensor | None) -> Tensor:
        """Record the judgement of a norm; return 1 if it is accepted."""
        history = state.numbers("norms", norm.dtype, [self.window])
        seen = state.numbers("norms_seen", int32)
        mean = einsum(SUM, history) / self.window
        distance = history - mean
        deviation = sqrt(einsum(SUM, distance * distance) / self.window)
        is_full = cast(seen, float32) >= float(self.window)
        is_finite = equal(norm - norm, 0.0)
        is_usual = logical_or(logical_not(is_full), norm - mean <= self.limit * deviation)
        accepted = state.diagnostic("is_usual", float32)
        accepted[:] = logical_and(is_finite, is_usual)
        is_stored = accepted if is_counted is None else logical_and(accepted, is_counted)
        position = seen % self.window
        places = arange(self.window, dtype=int32)
        history[:] = where(logical_and(equal(places, position), is_stored), norm, history)
        seen += cast(is_stored, int32)
        return accepted
