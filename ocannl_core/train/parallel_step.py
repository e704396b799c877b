"""Data parallel training: one step over several devices, with the bits of one device.

    step = oc.train.data_parallel(loss, opt, [x, y], slots=16, devices=4)
    step.context.init_params(loss)
    step(images, labels)                 # 16 times as many examples as x and y have

A batch is cut into slots. Every slot is computed by the same code, on whichever device; gradients,
losses, metrics and running statistics are added up in one fixed tree; every device makes the same
update. `slot_tree` has the order of additions, `parallel_code` the code, `communication` the
interface to other processes.
"""

from __future__ import annotations

import contextvars
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from numbers import Integral
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np

from ocannl_core.backend import manager
from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.files.digests import text_digest
from ocannl_core.base.version import __version__
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.runtime.context import Context
from ocannl_core.tensor.computations.computation import Computation, require_tensor
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.communication import Communicator, OneProcess
from ocannl_core.train.optimizer import Optimizer, Shard
from ocannl_core.train.parallel_code import ParallelCode
from ocannl_core.train.phases import Phase, Phases
from ocannl_core.train.process_sums import ProcessSums, buckets_of
from ocannl_core.train.sharded_state import ShardedState, WholeState
from ocannl_core.train.slot_tree import Receive, plan_joins, share, work_of
from ocannl_core.train.worker import Worker

Reduction = Literal["mean", "sum"]


def data_parallel(
    loss: Tensor,
    optimizer: Optimizer | Computation,
    inputs: Sequence[Tensor],
    *,
    devices: int | Sequence[str | Context] | None = None,
    slots: int = 16,
    reduction: Reduction = "mean",
    metrics: Sequence[Tensor] = (),
    bindings: Sequence[StaticIndex] = (),
    slot: StaticIndex | None = None,
    shard_state: bool = False,
    communicator: Communicator | None = None,
) -> DataParallel:
    """Return a training step that runs on several devices. Its results have the same bits for every
    number of devices and processes.

    The loss belongs to one slot; a batch of the step has `slots` times as many examples.
    Normalization over the batch is over a slot. Parameters and state of the optimizer are on all
    devices; values that the program writes to `step.context`, such as a checkpoint, reach the
    others by themselves.

    Args:
        loss: The loss of a slot, a tensor of one cell; a mean over its examples, or a sum.
        optimizer: The optimizer, or code that updates the parameters against their gradients.
        inputs: The placeholders that a batch fills, in the order of its arrays.
        devices: The names of devices of one backend, or contexts on them; or a number of devices of
            the default backend, taken in turn. By default all its devices, one per slot at most.
        slots: The number of parts of a batch. Other numbers give other roundings.
        reduction: `mean` if the loss is a mean over examples, `sum` if it is a sum.
        metrics: Other tensors whose mean over the slots `step.mean` returns.
        bindings: The static indices of the loss, which calls of the step take.
        slot: A static index of the loss that gets the number of the slot, for random numbers with a
            counter. Dropout needs none: its numbers differ between slots.
        shard_state: True to divide the state of the optimizer, and the update, among the processes;
            `step.whole_state()` is for checkpoints. The optimizer must update cell by cell.
        communicator: The group of processes that this one belongs to.

    Raises:
        UsageError: if an argument is of the wrong kind, there are more devices than slots, or the
            optimizer has a loss scale.
        BackendNotFoundError: if there is no such device.
    """
    return DataParallel(
        loss,
        optimizer,
        inputs,
        devices,
        _checked_slots(slots),
        reduction,
        metrics,
        bindings,
        slot,
        shard_state,
        communicator if communicator is not None else OneProcess(),
    )


class DataParallel:
    """A training step over several devices, made by `data_parallel`.

    Attributes:
        contexts: The contexts of the devices of this process.
        inputs: The placeholders of a slot.
        slots: The slots of this process.
        communicator: The group of processes.
        phases: The record of the parts of a step, as `traced` returns it.
    """

    def __init__(
        self,
        loss: Tensor,
        optimizer: Optimizer | Computation,
        inputs: Sequence[Tensor],
        devices: int | Sequence[str | Context] | None,
        slots: int,
        reduction: Reduction,
        metrics: Sequence[Tensor],
        bindings: Sequence[StaticIndex],
        slot: StaticIndex | None,
        shard_state: bool,
        communicator: Communicator,
    ) -> None:
        _check_arguments(loss, optimizer, inputs, reduction, metrics)
        self.inputs = tuple(inputs)
        self.communicator = communicator
        self.slots = share(slots, communicator.size, communicator.rank)
        if communicator.size > slots:
            raise UsageError.at_caller(
                "Every process has a slot.",
                f"{communicator.size} processes and {slots} slots",
                f"slots={communicator.size}, or fewer processes",
            ).on_all_processes()
        self.phases = Phases()
        self.contexts = _contexts(devices, len(self.slots))
        self._loss = loss
        self._total = slots
        self._bindings = tuple(bindings)
        self._slot = slot
        self._failed = False
        self._pending: dict[Tensor, Array] = {}
        self._rows = {each: each.info.dims[0] for each in self.inputs}
        self._sharded: ShardedState | None = None
        with loss.session, loss.session.apart():
            is_mean = reduction == "mean"
            self._code = ParallelCode(loss, metrics, slots, is_mean=is_mean)
            means = self._code.means_of_sums()
            is_gathered = True
            if not isinstance(optimizer, Optimizer):
                update = optimizer
            else:
                shard = Shard(communicator.rank, communicator.size) if shard_state else None
                update = optimizer.update(loss, shard=shard)
                if shard is not None:
                    self._sharded = ShardedState(optimizer, self.context, communicator, shard)
                    is_gathered = optimizer.reads_whole_gradients
                if not is_gathered:
                    means = self._code.means_of_sums(shard)
            self._build(means + update)
            communicator.agree(self._facts(optimizer, means + update))
            self._sums = self._connect(is_gathered)
        self._optimizer = optimizer
        self._state = self._state_of(optimizer, update)
        self._noted = 0
        self._last_update: object = None
        self._pool = ThreadPoolExecutor(len(self.contexts), "device")

    def _build(self, finish: Computation) -> None:
        """Compile the code of every device; `finish` is the code of the update."""
        code, count = self._code, len(self.contexts)
        parts = [share(len(self.slots), count, k) for k in range(count)]
        first = self.slots.start
        works = [
            work_of(self._total, range(first + part.start, first + part.stop)) for part in parts
        ]
        self._joins, self._own = plan_joins(self._total, works)
        self._workers: list[Worker] = []
        for context, work in zip(self.contexts, works, strict=True):
            others = tuple(self._workers)
            worker = Worker(context, work, others, self.inputs, self._slot, self.phases)
            self._workers.append(worker)
            joins = () if others else self._joins
            worker.compile(code, finish, joins, self._bindings)

    def _connect(self, gathers_gradients: bool) -> ProcessSums | None:
        """Return the sums of all processes; None for a single process."""
        code, first, communicator = self._code, self._workers[0], self.communicator
        if communicator.size == 1:
            return None
        sizes = [each.info.nbytes for each in code.register(0)]
        order = first.order(code.summed)
        buckets = buckets_of(sizes, order, communicator.bucket_bytes)
        communicator.agree({"buckets of sums": repr(buckets)})
        is_gathered = [gathers_gradients or k >= len(code.parameters) for k in range(len(sizes))]
        sums = ProcessSums(
            communicator,
            code,
            first.context,
            self._own,
            buckets,
            is_gathered,
            first.linked,
            self.phases,
        )
        if len(self._workers) == 1:
            first.send_early(code, buckets, sums)
        return sums

    def _state_of(self, optimizer: object, update: Computation) -> tuple[Tensor, ...]:
        """Return the tensors that are equal on all devices between steps."""
        state = [*self._loss.parameters(), *self._code.statistics.values()]
        if isinstance(optimizer, Optimizer):
            state += optimizer.state.values()
        else:
            state += [t for t in update.tensors().values() if t in self.context]
        gradients = {p.grad for p in self._code.parameters.values()}
        found = dict.fromkeys(t for t in state if t not in gradients and t.literal is None)
        return tuple(t for t in found if t in self.context)

    def _facts(self, optimizer: object, finish: Computation) -> dict[str, str]:
        """Return what all processes agree on, each as a short text."""
        from ocannl_core.base import settings

        chosen = settings.current()
        numerics = (chosen.contract, chosen.accumulation, chosen.schedule, chosen.threefry_rounds)
        routine = self._workers[0].gradients
        return {
            "code of a slot": text_digest(routine.assignments)[:16],
            "kernels of a slot": text_digest(routine.loop_ir)[:16],
            "code of the update": text_digest(
                str(finish) if self._sharded is None else repr(optimizer)
            )[:16],
            "summands": text_digest(repr(self._code.facts))[:16],
            "slots": str(self._total),
            "seed": str(self._loss.session.seed),
            "settings of numerics": repr(numerics),
            "backend": self.context.backend.name,
            "version of ocannl": __version__,
            "version of NumPy": np.__version__,
            "processor": platform.machine(),
        }

    @property
    def context(self) -> Context:
        """The context of the first device: what it has after a step, the others have."""
        return self.contexts[0]

    @property
    def is_sharded(self) -> bool:
        """True if each process has a part of the optimizer's state."""
        return self._sharded is not None

    @property
    def loss(self) -> float:
        """The mean loss of the slots in the last step."""
        return self.context.item(self.means[self._loss])

    @property
    def means(self) -> Mapping[Tensor, Tensor]:
        """The mean of the loss and of each metric in the last step, in every context."""
        return self._code.means

    def mean(self, metric: Tensor) -> Array:
        """Return the mean over the slots of the loss or of a metric in the last step."""
        found = self.means.get(metric)
        if found is None:
            raise UsageError.at_caller(
                "A step averages the loss and the metrics that it was made with.",
                f"{metric!r}",
                "data_parallel(..., metrics=[...])",
            )
        return self.context[found]

    def __repr__(self) -> str:
        devices = ", ".join(str(context.target) for context in self.contexts)
        return f"<data parallel step: {self._total} slots on {devices}>"

    @contextmanager
    def traced(self) -> Iterator[list[Phase]]:
        """Record the phases of the steps in a `with` statement, in a list.

        A phase has a name, as `slot 3`, `bucket 0: rows` or `update`, and its start and end. The
        phases of buckets are the times of messages: they overlap with slots.
        """
        found: list[Phase] = []
        self.phases.found = found
        try:
            yield found
        finally:
            self.phases.found = None

    def __setitem__(self, tensor: Tensor, batch: Any) -> None:
        """State the array of one input for the next call without arrays."""
        if all(tensor is not each for each in self.inputs):
            raise UsageError.at_caller(
                "A step takes arrays for its inputs.", repr(tensor), f"{self.inputs}"
            )
        self._pending[tensor] = batch

    def __call__(self, /, *batch: Any, **indices: SupportsIndex) -> None:
        """Run one step on a batch.

        Args:
            batch: An array for each input: the rows of all slots, one after the other. A process of
                several may also give the rows of its own slots alone. Without arrays, the arrays
                that `step[x] = array` has stated are used.
            indices: The static indices of the loss.

        Raises:
            ShapeError: if an array has another number of rows.
            LinkError: if a parameter has no value yet: `step.context.init_params(loss)`.
        """
        arrays = self._slices(batch)
        self._distribute_state()
        if not self._failed:
            self._each(Worker.begin)
        self._failed = True
        if self._sums is not None:
            self._sums.begin()
        self._each(lambda worker: worker.compute(arrays, indices))
        self._join()
        with self.phases.span("update"):
            self._each(Worker.finish)
        if self._sharded is not None:
            with self.phases.span("rows of parameters"):
                parameters = tuple(self._code.parameters.values())
                self._sharded.gather_parameters(parameters, self.contexts)
        self._failed = False
        self._last_update = self.context.store.history.last
        self._noted = next(self.context.store.history.ordinals)

    def _slices(self, batch: Sequence[Any]) -> list[Callable[[int], Array]]:
        """Return a function from the number of a slot to its rows, for each input."""
        if not batch:
            batch = [self._pending[each] for each in self.inputs if each in self._pending]
            self._pending = {}
        if len(batch) != len(self.inputs):
            raise UsageError.at_caller(
                "A step takes one array for each input.",
                f"{len(batch)} arrays for {len(self.inputs)} inputs",
                "step(images, labels)",
            )
        return [
            self._slicer(tensor, np.asarray(array))
            for tensor, array in zip(self.inputs, batch, strict=True)
        ]

    def _slicer(self, tensor: Tensor, array: Array) -> Callable[[int], Array]:
        rows = self._rows[tensor]
        found = array.shape[0] if array.ndim else 0
        if found == rows * self._total:
            first = 0
        elif found == rows * len(self.slots):
            first = self.slots.start
        else:
            raise ShapeError(
                "A batch has the rows of all slots, one after the other.",
                found=f"{found} rows; {self._total} slots of {rows} have {rows * self._total}",
                where=tensor.describe(),
                fix=f"give {rows * self._total} rows; oc.data.Loader(..., last='drop') leaves out "
                "a shorter last batch",
            )
        return lambda slot: array[(slot - first) * rows : (slot - first + 1) * rows]

    def _each(self, action: Callable[[Worker], None]) -> None:
        """Run an action on all devices at the same time; raise the first error, in their order."""
        if len(self._workers) == 1:
            action(self._workers[0])
            return
        futures: list[Future[None]] = [
            self._pool.submit(contextvars.copy_context().run, action, worker)
            for worker in self._workers
        ]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _join(self) -> None:
        """Join the sums of all devices in the tree, then the sums of all processes; every device
        gets the sum of all slots in its first register.
        """
        owner, register = self._workers[0], self._code.register
        for action in self._joins:
            if isinstance(action, Receive):
                pairs = dict(zip(register(action.target), register(action.source), strict=True))
                owner.context.copy_from(self.contexts[action.worker], pairs)
            else:
                owner.run(action)
        if self._sums is not None:
            with self.phases.span("waiting for sums"):
                self._sums.finish()
        for worker in self._workers[1:]:
            worker.context.copy_from(owner.context, register(0)).wait()

    def _distribute_state(self) -> None:
        """Copy parameters, statistics and the optimizer's state to all devices, if anything but a
        step has written them in the first context since the last step.
        """
        store = self.context.store
        if self._last_update is not None and store.history.last is self._last_update:
            return
        found = (store.find(tensor.node) for tensor in self._state)
        if all(each is None or each.written_at() < self._noted for each in found):
            return
        state = [tensor for tensor in self._state if self._workers[0].has_value(tensor)]
        if self.communicator.size > 1:
            own = self._sharded.tensors() if self._sharded is not None else frozenset()
            common = [each for each in state if each not in own]
            arrays = self.communicator.broadcast([self.context[each] for each in common])
            self.context.assign(dict(zip(common, arrays, strict=True)))
        for worker in self._workers[1:]:
            worker.context.copy_from(self.context, state).wait()

    def whole_state(self) -> WholeState:
        """Return the state of the optimizer for a checkpoint; called by all processes.

        Raises:
            UsageError: if the step was made with code in place of an optimizer.
        """
        if not isinstance(self._optimizer, Optimizer):
            raise UsageError.at_caller("An optimizer has state.", f"{self._optimizer!r}")
        if self._sharded is not None:
            return self._sharded.whole()
        return WholeState(self.context, self._optimizer.state, self._optimizer)


def _contexts(devices: int | Sequence[str | Context] | None, most: int) -> tuple[Context, ...]:
    if isinstance(devices, str) or not isinstance(devices, int | Sequence | None):
        raise UsageError.at_caller(
            "devices= is a list of devices of one backend, or their number.",
            repr(devices),
            'devices=["cpu_c:0", "cpu_c:1"], or devices=2',
        )
    found: list[Context] = []
    if devices is None or isinstance(devices, int):
        backend, _ = manager.select(None)
        names = [str(target) for target in backend.targets().targets]
        count = min(len(names), most) if devices is None else devices
        found = [Context(names[k % len(names)]) for k in range(max(count, 0))]
    else:
        found = [each if isinstance(each, Context) else Context(each) for each in devices]
    if not 1 <= len(found) <= most:
        raise UsageError.at_caller(
            "Every device has a slot.",
            f"{len(found)} devices and {most} slots",
            f"devices from 1 to {most}, or more slots",
        )
    names = list(dict.fromkeys(each.backend.name for each in found))
    if len(names) > 1:
        raise UsageError.at_caller(
            "The devices of a data parallel step are of one backend: others round in other places.",
            f"devices of {', '.join(names)}",
            f'devices=["{names[0]}:0", "{names[0]}:1"]',
        )
    return tuple(found)


def _checked_slots(slots: object) -> int:
    if not isinstance(slots, Integral) or isinstance(slots, bool) or int(slots) < 1:
        raise UsageError.at_caller(
            "slots= is the number of parts of a batch.", repr(slots), "slots=16"
        )
    return int(slots)


def _check_arguments(
    loss: object, optimizer: object, inputs: object, reduction: object, metrics: object
) -> None:
    require_tensor(loss, "oc.train.data_parallel")
    if not isinstance(optimizer, Optimizer | Computation):
        raise UsageError.at_caller(
            "The second argument is an optimizer, or code that updates parameters.",
            repr(optimizer),
            "oc.train.AdamW(learning_rate=1e-3)",
        )
    if isinstance(optimizer, Optimizer) and optimizer.loss_scale is not None:
        raise UsageError.at_caller(
            "The gradients of slots are added up before the update, so they have no loss scale.",
            f"{type(optimizer).__name__}(loss_scale=...)",
            "leave it out, and keep sums and parameters in float32",
        )
    if reduction not in get_args(Reduction):
        raise UsageError.at_caller('reduction= is "mean" or "sum".', repr(reduction))
    for name, given in (("inputs", inputs), ("metrics", metrics)):
        if not isinstance(given, Sequence) or not all(isinstance(t, Tensor) for t in given):
            raise UsageError.at_caller(
                f"{name}= is a list of tensors.", repr(given), f"{name}=[x, y]"
            )
    for tensor in inputs:  # type: ignore[attr-defined]
        if not tensor.is_placeholder or not tensor.info.dims:
            raise UsageError.at_caller(
                "The inputs of a step are placeholders, whose first axis counts the examples.",
                tensor.describe(),
                'oc.placeholder("x", batch=[4], output=[8])',
            )
