"""The code of data parallel training: one slot, the sums over slots, the update.

A device keeps *registers*, each of which has one tensor for every summand: the gradients of the
parameters, the loss, the metrics, and the running statistics. Statistics are those before the step
for every slot, and become the mean of what the slots make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, assert_never

from ocannl_core.dtypes import DType, float32, int64, promote
from ocannl_core.indexing import StaticIndex
from ocannl_core.tensor.computation import Computation, forward, gradient_update
from ocannl_core.tensor.literals import number
from ocannl_core.tensor.parameters import declare, is_shared_by_models
from ocannl_core.tensor.pointwise_operations import cast
from ocannl_core.tensor.recording import cd
from ocannl_core.tensor.tensor import Tensor
from ocannl_core.train.communication import Summand
from ocannl_core.train.slot_tree import Accumulate, Add, Store

SLOT = StaticIndex("slot")


class SlotCode:
    """The code that all devices run.

    Args:
        loss: The loss of a slot.
        metrics: Other tensors to average.
        slots: The number of slots.
        is_mean: True to divide the sums of gradients by the number of slots.

    Attributes:
        parameters: The parameters with a gradient, by name.
        statistics: The statistics, by name.
        means: The tensors that hold the mean of the loss and of each metric after a step.
    """

    def __init__(
        self, loss: Tensor, metrics: Sequence[Tensor], slots: int, *, is_mean: bool
    ) -> None:
        self.loss = loss
        self.metrics = tuple(metrics)
        self.slots = slots
        self._is_mean = is_mean
        self.parameters = {name: p for name, p in loss.params.items() if p.grad is not None}
        self.statistics = dict(loss.statistics.items())
        # declared here: what recorded code declares lasts for one call
        self.means = {each: like(each, "mean", each.dtype) for each in (loss, *self.metrics)}
        self._before = {
            name: like(each, "before", each.dtype) for name, each in self.statistics.items()
        }
        self._registers: list[list[Tensor]] = []

    # ----- tensors --------------------------------------------------------------------------------

    @cached_property
    def _summed(self) -> dict[str, Tensor]:
        """The tensors to add up over the slots, by name."""
        found = {f"{name}.grad": p.grad for name, p in self.parameters.items()}
        found["loss"] = self.loss
        found |= {f"metric {k}": metric for k, metric in enumerate(self.metrics)}
        found |= dict(self._averaged_statistics.items())
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @cached_property
    def _averaged_statistics(self) -> dict[str, Tensor]:
        return {name: each for name, each in self.statistics.items() if each.dtype.is_float}

    @property
    def summands(self) -> tuple[Summand, ...]:
        """The summands in the order of registers."""
        return tuple(
            Summand(name, _sum_format(tensor), tensor.info.dims)
            for name, tensor in self._summed.items()
        )

    def register(self, place: int) -> list[Tensor]:
        """Return the tensors of a register, in the order of the summands."""
        while len(self._registers) <= place:
            name = f"sum{len(self._registers)}"
            self._registers.append(
                [like(each, name, _sum_format(each)) for each in self._summed.values()]
            )
        return self._registers[place]

    # ----- code -----------------------------------------------------------------------------------

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
        """Set the statistics to their values before the step; counts that select random numbers
        differ between slots.
        """

        def restore_statistics() -> None:
            for name, each in self.statistics.items():
                before = self._before[name]
                if self._is_counter(each):
                    each[:] = before * self.slots + number(SLOT, dtype=each.dtype)
                else:
                    each[:] = before

        return cd(restore_statistics)()

    def sums(self, action: Store | Accumulate | Add) -> Computation:
        """Return the code of an action on registers."""
        match action:
            case Store(register):
                return self._store(register)
            case Accumulate(register):
                return self._accumulate(register)
            case Add(left, right):
                return self._add(left, right)
            case _:
                assert_never(action)

    def _store(self, register: int) -> Computation:
        """Copy the values of a slot to a register."""
        return self._for_each(
            f"store_{register}",
            self.register(register),
            lambda place, value: place.assign(cast(value, place.dtype)),
        )

    def _accumulate(self, register: int) -> Computation:
        """Add the values of a slot to a register."""
        return self._for_each(
            f"accumulate_{register}",
            self.register(register),
            lambda place, value: place.assign(place + cast(value, place.dtype)),
        )

    def _add(self, left: int, right: int) -> Computation:
        """Add a register to another one."""
        pairs = list(zip(self.register(left), self.register(right), strict=True))

        def add() -> None:
            for one, other in pairs:
                one.assign(one + other)

        add.__name__ = f"add_{right}_to_{left}"
        return cd(add)()

    def _for_each(
        self, name: str, places: Sequence[Tensor], record: Callable[[Tensor, Tensor], object]
    ) -> Computation:
        def code() -> None:
            for place, value in zip(places, self._summed.values(), strict=True):
                record(place, value)

        code.__name__ = name
        return cd(code)()

    @cached_property
    def means_of_sums(self) -> Computation:
        """Set gradients, means and statistics from the sums in the first register."""
        sums = dict(zip(self._summed, self.register(0), strict=True))
        count = float(self.slots)

        def mean_of(name: str, like: Tensor) -> Tensor:
            mean: Tensor = cast(sums[name] / count, like.dtype)
            return mean

        def means_of_sums() -> None:
            for name, p in self.parameters.items():
                total = sums[f"{name}.grad"]
                mean = mean_of(f"{name}.grad", p) if self._is_mean else cast(total, p.dtype)
                assert p.grad is not None
                p.grad[:] = mean
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


def _sum_format(tensor: Tensor) -> DType:
    """Return the format of sums: at least float32."""
    return promote(tensor.dtype, float32)


def like(tensor: Tensor, name: str, dtype: DType) -> Tensor:
    """Return a declared tensor with the axes of another one."""
    assert tensor.info is not None  # closes the shape
    rows: dict[str, Any] = {kind.value: list(row.dims) for kind, row in tensor.shape.rows()}
    return declare(f"{name}_{tensor.node.name}", **rows, dtype=dtype)
