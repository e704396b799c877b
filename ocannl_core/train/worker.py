"""One device in a data parallel step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import SupportsIndex

from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.runtime.context import Context
from ocannl_core.runtime.pauses import completion
from ocannl_core.runtime.routine import Routine
from ocannl_core.tensor.computations.computation import Computation
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.parallel_code import SLOT, ParallelCode
from ocannl_core.train.phases import Phases
from ocannl_core.train.process_sums import ProcessSums
from ocannl_core.train.slot_tree import Action, Compute, Join, Receive, Sum, Work

Slices = Sequence[Callable[[int], Array]]
"""A function from the number of a slot to its rows, for each input."""


@dataclass(eq=False, repr=False)
class Worker:
    """One device; code that one of the others before it has compiled is linked."""

    context: Context
    _work: Work
    _others: tuple[Worker, ...]
    _inputs: tuple[Tensor, ...]
    _slot: StaticIndex | None
    _phases: Phases
    _routines: dict[object, Routine] = field(default_factory=dict)
    _sender: ProcessSums | None = None
    _buckets: list[Routine] = field(default_factory=list)
    _unsent: list[int] = field(default_factory=list)
    _sends_now: bool = False
    _is_warm: bool = False

    def __post_init__(self) -> None:
        self._first: Sequence[Action] = self._work.actions

    def compile(
        self,
        code: ParallelCode,
        finish: Computation,
        joins: Sequence[Join],
        indices: Sequence[StaticIndex],
    ) -> None:
        """Compile the code of the device."""
        context = self.context
        indices = (*indices, *([self._slot] if self._slot is not None else []))
        self.gradients = self.linked("slot", lambda: code.gradients, indices)
        self._has_statistics = bool(code.statistics)
        if self._has_statistics:
            unset = [each for each in code.statistics.values() if not self.has_value(each)]
            context.assign(dict.fromkeys(unset, 0))
            self._keep = self.linked("keep", lambda: code.keep_statistics)
            self._restore = self.linked("restore", lambda: code.restore_statistics, [SLOT])
        received = {each.target for each in joins if isinstance(each, Receive)}
        for number in sorted({0, *received}):
            context.assign(dict.fromkeys(code.register(number), 0))
        for action in dict.fromkeys((*self._work.actions, *joins)):
            if not isinstance(action, Compute | Receive):
                self.linked(action, partial(code.sums, [action]))
        self._finish = self.linked("update", lambda: finish)

    def linked(
        self, key: object, make: Callable[[], Computation], indices: Sequence[StaticIndex] = ()
    ) -> Routine:
        """Return code in this context: as another device compiled it, else compiled."""
        found = next((w._routines[key] for w in self._others if key in w._routines), None)
        if found is not None:
            self._routines[key] = self.context.link(found)
        else:
            code = make()
            name = key if isinstance(key, str) else code.name
            self._routines[key] = self.context.compile(code, bindings=indices, name=name)
        return self._routines[key]

    def order(self, summed: Sequence[Tensor]) -> list[int]:
        """Return the numbers of tensors in the order in which a slot completes them."""
        at = completion(self.gradients.plan, [{each.node} for each in summed])
        return sorted(range(len(at)), key=at.__getitem__)

    def send_early(
        self, code: ParallelCode, buckets: Sequence[tuple[int, ...]], sender: ProcessSums
    ) -> None:
        """Let the last slot send each bucket as soon as it is complete.

        The actions on registers that follow the last slot are compiled for each bucket by itself.
        """
        first = [*self._first]
        last: list[Sum] = []
        while not isinstance(action := first.pop(), Compute):
            last.insert(0, action)
        self._last_slot = action.slot
        for number, bucket in enumerate(buckets):
            sums = partial(code.sums, last, bucket)
            self._buckets.append(self.linked(f"last_sums_{number}", sums))
        self._first, self._sender = first, sender
        results = [{code.summed[k].node for k in bucket} for bucket in buckets]
        self.gradients.pause(results, self._between_steps)

    def begin(self) -> None:
        """Keep the statistics before the step."""
        if self._has_statistics:
            self._keep()

    def compute(self, slices: Slices, indices: Mapping[str, SupportsIndex]) -> None:
        """Compute the slots of the device, and the sums of its spans."""
        for action in self._first:
            if isinstance(action, Compute):
                self._compute(action.slot, slices, indices)
            else:
                self.run(action)
        if self._sender is not None:
            self._compute_and_send(self._sender, slices, indices)
        self.context.synchronize()

    def _compute(self, slot: int, slices: Slices, indices: Mapping[str, SupportsIndex]) -> None:
        start = perf_counter()
        for tensor, rows in zip(self._inputs, slices, strict=True):
            self.context[tensor] = rows(slot)
        begin = perf_counter()
        self._phases.record(f"slot {slot}: inputs", start, begin)
        if self._has_statistics:
            self._restore(slot=slot)
        given = {} if self._slot is None else {self._slot.name: slot}
        self.gradients(**indices, **given)
        self._phases.record(f"slot {slot}", begin, perf_counter())

    def _compute_and_send(
        self, sender: ProcessSums, slices: Slices, indices: Mapping[str, SupportsIndex]
    ) -> None:
        """Compute the last slot, and send each bucket when it is complete.

        In the first step buckets are sent after the slot: their sums have no values before it ends.
        """
        self._unsent = list(range(len(self._buckets)))
        self._sends_now = self._is_warm
        self._compute(self._last_slot, slices, indices)
        self._sends_now, self._is_warm = False, True
        for number in list(self._unsent):
            self._send(sender, number)

    def _between_steps(self, complete: Sequence[int]) -> None:
        """Send complete buckets, if the slot is the last one."""
        if self._sends_now and self._sender is not None:
            for number in complete:
                self._send(self._sender, number)
            self._sender.progress()

    def _send(self, sender: ProcessSums, number: int) -> None:
        self._buckets[number]()
        self._unsent.remove(number)
        sender.start(number)

    def run(self, action: Sum) -> None:
        """Run an action on registers."""
        self._routines[action]()

    def finish(self) -> None:
        """Set gradients, means and statistics, and update the parameters."""
        self._finish()
        self.context.synchronize()

    def has_value(self, tensor: Tensor) -> bool:
        """Return True if a tensor has a value on the device."""
        stored = self.context.store.find(tensor.node)
        return stored is not None and stored.has_value
