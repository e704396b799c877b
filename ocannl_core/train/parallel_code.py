"""The code of data parallel training: one slot, the sums over slots, the update.

A device keeps *registers*, each of which has one tensor for every summand: the gradients of the
parameters, the loss, the metrics, and the running statistics. Every slot begins with the statistics
before the step, and the mean of the results of all slots replaces them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, assert_never

from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.numbers.dtypes import DType, float32, int64, promote
from ocannl_core.tensor.computations.computation import (
    Computation,
    forward,
    gradient_update,
    trainable_params,
)
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import declare, is_shared_by_models
from ocannl_core.tensor.operations.literals import number
from ocannl_core.tensor.primitives.pointwise_operations import cast
from ocannl_core.train.optimizer import Shard
from ocannl_core.train.slot_tree import Add, AddToRegister, CopyToRegister, Span, Sum, TreeSum

SLOT = StaticIndex("slot")

Term = tuple[Span, Tensor, range | None]
"""The sum of a span: a tensor, of which some rows count, or all."""


class ParallelCode:
    """The code that all devices run."""

    def __init__(
        self, loss: Tensor, metrics: Sequence[Tensor], slots: int, *, is_mean: bool
    ) -> None:
        self.loss = loss
        self.metrics = tuple(metrics)
        self.slots = slots
        self._is_mean = is_mean
        self.parameters = dict(trainable_params(loss).items())
        """The parameters that gradients flow into, by name."""
        self.statistics = dict(loss.statistics.items())
        """The statistics, by name."""
        # declared here: what recorded code declares lasts for one call
        self.means = {each: like(each, "mean", each.dtype) for each in (loss, *self.metrics)}
        """The tensors that hold the mean of the loss and of each metric after a step."""
        self._before = {
            name: like(each, "before", each.dtype) for name, each in self.statistics.items()
        }
        self._registers: list[list[Tensor]] = []

    @cached_property
    def _summed(self) -> dict[str, Tensor]:
        """The tensors to add up over the slots, by name; gradients first."""
        found = {f"{name}.grad": p.grad for name, p in self.parameters.items()}
        found["loss"] = self.loss
        found |= {f"metric {k}": metric for k, metric in enumerate(self.metrics)}
        found |= dict(self._averaged_statistics.items())
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @cached_property
    def _averaged_statistics(self) -> dict[str, Tensor]:
        return {name: each for name, each in self.statistics.items() if each.dtype.is_float}

    @property
    def summed(self) -> list[Tensor]:
        """The tensors of a slot that are added up, gradients first, in the order of registers."""
        return list(self._summed.values())

    @property
    def facts(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """The names, formats and extents of the sums, which all processes have in common."""
        sums = zip(self._summed, self.register(0), strict=True)
        return [(name, str(each.dtype), each.info.dims) for name, each in sums]

    def register(self, place: int) -> list[Tensor]:
        """Return the tensors of a register, in the order of the summands."""
        while len(self._registers) <= place:
            name = f"sum{len(self._registers)}"
            self._registers.append(
                [like(each, name, _sum_format(each)) for each in self._summed.values()]
            )
        return self._registers[place]

    @cached_property
    def gradients(self) -> Computation:
        """Compute the loss of a slot, its gradients, and the metrics."""
        code = gradient_update(self.loss)
        for metric in self.metrics:
            code = code + forward(metric)
        return code

    @cached_property
    def keep_statistics(self) -> Computation:
        """Copy the statistics, before the first slot of a step."""

        def keep_statistics() -> None:
            for name, each in self.statistics.items():
                self._before[name][:] = each

        return cd(keep_statistics)()

    @cached_property
    def restore_statistics(self) -> Computation:
        """Set the statistics back to before the step; counts that select random numbers differ."""

        def restore_statistics() -> None:
            for name, each in self.statistics.items():
                before = self._before[name]
                if self._is_counter(each):
                    each[:] = before * self.slots + number(SLOT, dtype=each.dtype)
                else:
                    each[:] = before

        return cd(restore_statistics)()

    def sums(self, actions: Sequence[Sum], summands: Sequence[int] | None = None) -> Computation:
        """Return the code of actions on registers, one after the other."""
        values = self.summed
        numbers = range(len(values)) if summands is None else summands

        def code() -> None:
            for action, k in itertools.product(actions, numbers):
                match action:
                    case CopyToRegister(register):
                        place = self.register(register)[k]
                        place.assign(cast(values[k], place.dtype))
                    case AddToRegister(register):
                        place = self.register(register)[k]
                        place.assign(place + cast(values[k], place.dtype))
                    case Add(left, right):
                        place = self.register(left)[k]
                        place.assign(place + self.register(right)[k])
                    case _:
                        assert_never(action)

        for action in actions:  # what recorded code declares lasts for one call
            self.register(max(_registers_of(action)))
        code.__name__ = "_then_".join(map(_name_of, actions))
        return cd(code)()

    def received(self, number: int, source: str, rows: int | None) -> Tensor:
        """Return a declared tensor for rows of a summand that another process sends."""
        tensor = self.summed[number]
        return like(tensor, f"received_{source}", _sum_format(tensor), rows)

    def add_spans(self, name: str, terms: Mapping[int, Sequence[Term]]) -> Computation:
        """Return the code that adds up spans of all slots in the tree, to the first register."""
        sums = self.register(0)

        def add_spans() -> None:
            for k, spans in terms.items():
                tree: TreeSum[Any] = TreeSum(self.slots, operator.add)
                for span, tensor, rows in spans:
                    tree.insert(span, tensor if rows is None else tensor[rows.start : rows.stop])
                assert tree.root is not None
                _, _, rows = spans[0]
                if rows is None:
                    sums[k].assign(tree.root)
                else:
                    sums[k][rows.start : rows.stop] = tree.root

        add_spans.__name__ = name
        return cd(add_spans)()

    def means_of_sums(self, shard: Shard | None = None) -> Computation:
        """Return the code that sets gradients, means and statistics from the first register."""
        sums = dict(zip(self._summed, self.register(0), strict=True))
        count = float(self.slots)

        def mean_of(name: str, like: Tensor) -> Tensor:
            mean: Tensor = cast(sums[name] / count, like.dtype)
            return mean

        def means_of_sums() -> None:
            for name, p in self.parameters.items():
                rows = None if shard is None else shard.rows(p)
                if rows is not None and rows.start == rows.stop:
                    continue
                total = sums[f"{name}.grad"]
                part: Any = total if rows is None else total[rows]
                mean = cast(part / count if self._is_mean else part, p.dtype)
                assert p.grad is not None
                p.grad[slice(None) if rows is None else rows] = mean
            self.means[self.loss][:] = mean_of("loss", self.loss)
            for k, metric in enumerate(self.metrics):
                self.means[metric][:] = mean_of(f"metric {k}", metric)
            for name, each in self._averaged_statistics.items():
                each[:] = mean_of(name, each)
            for name, each in self.statistics.items():
                if self._is_counter(each):
                    each[:] = self._before[name] + 1

        return cd(means_of_sums)()

    @staticmethod
    def _is_counter(statistic: Tensor) -> bool:
        return statistic.dtype is int64 and is_shared_by_models(statistic)


def _registers_of(action: Sum) -> tuple[int, ...]:
    match action:
        case CopyToRegister(register) | AddToRegister(register):
            return (register,)
        case Add(left, right):
            return left, right
        case _:
            assert_never(action)


def _name_of(action: Sum) -> str:
    registers = "_to_".join(map(str, reversed(_registers_of(action))))
    return f"{type(action).__name__.lower()}_{registers}"


def _sum_format(tensor: Tensor) -> DType:
    """Return the format of sums: at least float32."""
    return promote(tensor.dtype, float32)


def like(tensor: Tensor, name: str, dtype: DType, rows: int | None = None) -> Tensor:
    """Return a declared tensor with the axes of another one, or with `rows` along the first."""
    assert tensor.info is not None  # closes the shape
    axes: dict[str, Any] = {kind.value: list(row.dims) for kind, row in tensor.shape.rows()}
    if rows is not None:
        first = next(kind for kind in ("batch", "output", "input") if axes.get(kind))
        axes[first][0] = rows
    return declare(f"{name}_{tensor.node.name}", **axes, dtype=dtype)
