"""Batches of examples, in an order that is a function of a seed, the epoch and the position; a
thread may make them while earlier ones are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from ocannl_core.base.errors import DataError, UsageError
from ocannl_core.data.permutation import Positions, permutation
from ocannl_core.ir.host_arrays import Array
from ocannl_core.tensor.graph.tensor import Tensor

Last = Literal["drop", "short", "pad"]

_AT_ONCE = 1 << 14
"""About the number of positions whose examples are found at a time."""


class LoaderState(NamedTuple):
    """The place of a loader: all that resuming needs.

    Attributes:
        epoch: The number of complete passes over the examples.
        position: The number of batches taken in this one.
    """

    epoch: int
    position: int


class Batch(tuple[Array, ...]):
    """The arrays of a batch, one for each input.

    Attributes:
        valid: The number of leading rows that are examples; the others fill up a last batch.
    """

    valid: int

    def __new__(cls, arrays: tuple[Array, ...], valid: int) -> Batch:
        """Return a batch with its number of examples."""
        made = super().__new__(cls, arrays)
        made.valid = valid
        return made

    @property
    def mask(self) -> Array:
        """The number 1 for each row that is an example of this batch, 0 for the others."""
        return (np.arange(len(self[0])) < self.valid).astype(np.float32)


class Loader:
    """An iterable of batches; one iteration takes the rest of an epoch.

        loader = oc.data.Loader(images, labels, batch=64, shuffle=True, seed=0)
        for epoch in range(10):
            for x, y in loader: ...

    A loop that is left with `break` continues at the next batch in the next loop, and so does one
    in another process after `restore`.

    Args:
        inputs: Arrays whose leading axis counts examples: NumPy arrays, mapped files, sequences of
            arrays of one shape, or objects with `shape`, `dtype` and `__getitem__`.
        batch: The number of examples in a batch of all slots together.
        shuffle: True for another order in each epoch.
        seed: Selects the orders.
        last: The treatment of the last batch if examples do not fill it: `drop` leaves it out,
            `short` makes it shorter, `pad` fills it with the first examples of the epoch's order,
            which a training step then counts once more, unless its loss weighs rows by the mask.
        classes: The number of classes; the last input then has labels from 0 to `classes - 1`.
        slot: The ordinal of this process among the processes that share each batch; or a range of
            slots, as `step.slots` of data parallel training, if it works on several. No other rows
            are read.
        slots: The number of slots that share a batch, `batch / slots` examples each, so that
            together they train on the batches of one process.
        prefetch: The number of batches that a thread makes in advance; 0 for none.

    Raises:
        DataError: if inputs are empty, ragged, of different lengths, or a label is no class.
        UsageError: if an argument is of the wrong kind.
    """

    def __init__(
        self,
        *inputs: Any,
        batch: int,
        shuffle: bool = False,
        seed: int = 0,
        last: Last = "drop",
        classes: int | None = None,
        slot: int | range = 0,
        slots: int = 1,
        prefetch: int = 0,
    ) -> None:
        if not inputs:
            raise UsageError.at_caller(
                "A loader has inputs.", "none", "oc.data.Loader(images, batch=64)"
            )
        self._inputs = tuple(examples_of(value, i) for i, value in enumerate(inputs))
        self.count = check_lengths(self._inputs)
        self.batch = _counted("batch", batch, 1)
        self.shuffle = bool(shuffle)
        self.seed = _counted("seed", seed, -(1 << 63))
        self.slots = _counted("slots", slots, 1)
        self.slot = slot if isinstance(slot, range) else _counted("slot", slot, 0)
        own = self.slot if isinstance(self.slot, range) else range(self.slot, self.slot + 1)
        self._own = own
        self.prefetch = _counted("prefetch", prefetch, 0)
        self.last = last
        self._check_choices()
        if classes is not None:
            check_labels(self._inputs[-1], classes)
        self._state = LoaderState(0, 0)
        self._iterations = 0

    def _check_choices(self) -> None:
        if self.last not in get_args(Last):
            choices = ", ".join(map(repr, get_args(Last)))
            raise UsageError.at_caller(f"last= is one of {choices}.", repr(self.last))
        own = self._own
        if not own or own.step != 1 or own.start < 0 or own.stop > self.slots:
            raise UsageError.at_caller(
                "A slot is one of those that share a batch: slot < slots; or several in a row.",
                f"slot={self.slot}, slots={self.slots}",
                "slot=step.slots, with the slots= of oc.train.data_parallel",
            )
        if self.batch % self.slots:
            raise UsageError.at_caller(
                "Each slot gets the same number of examples of a batch.",
                f"batch={self.batch} for slots={self.slots}",
            )
        if self.last == "short" and self.slots > 1:
            raise UsageError.at_caller(
                "Each slot gets the same number of examples of a batch.",
                'last="short" for several slots',
                'last="drop" or last="pad"',
            )
        if len(self) == 0:
            raise UsageError.at_caller(
                "A loader has at least one batch.",
                f"{self.count:,} examples for batch={self.batch:,}",
                'a smaller batch, or last="short" or last="pad"',
            )

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        whole, rest = divmod(self.count, self.batch)
        return whole + (rest > 0 and self.last != "drop")

    @property
    def is_partial(self) -> bool:
        """True for some of the slots that share a batch."""
        return len(self._own) < self.slots

    @property
    def state(self) -> LoaderState:
        """The epoch, and the number of batches taken in it, the one in the loop's body included."""
        return self._state

    @property
    def order(self) -> dict[str, int | None]:
        """The arguments that decide the examples of each batch: a position is one in this order."""
        seed = self.seed if self.shuffle else None
        return {"examples": self.count, "batch": self.batch, "seed": seed}

    def restore(self, state: tuple[int, int]) -> None:
        """Continue at a state: after as many batches of that epoch.

        Raises:
            UsageError: if no loader of this length has the state.
        """
        try:
            epoch, position = state
        except (TypeError, ValueError):
            raise UsageError.at_caller("A state is an epoch and a position.", repr(state)) from None
        found = LoaderState(_counted("epoch", epoch, 0), _counted("position", position, 0))
        if found.position >= len(self):
            raise UsageError.at_caller(
                f"The position of a state is less than the number of batches, {len(self):,}.",
                f"position={found.position:,}",
                "restore the state in a loader of the same data and batch=",
            )
        self._state = found
        self._iterations += 1

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the epoch from the current position on.

        Raises:
            UsageError: if the loader was restored, or another iteration began, meanwhile.
        """
        self._iterations += 1
        iteration = self._iterations
        epoch, start = self._state
        count = len(self)
        batches = self._batches(epoch, start)
        if self.prefetch:
            batches = prefetched(batches, self.prefetch)
        for position, batch in enumerate(batches, start + 1):
            if iteration != self._iterations:
                raise UsageError.at_caller(
                    "A loader has one iteration at a time.",
                    "it was restored, or another iteration began",
                    "leave the first loop with break",
                )
            is_last = position == count
            self._state = LoaderState(epoch + 1, 0) if is_last else LoaderState(epoch, position)
            yield batch

    def _batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from a position on; a pure function."""
        at_once = max(1, _AT_ONCE // self.batch)
        each_slot = self.batch // self.slots
        low, share = self._own.start * each_slot, len(self._own) * each_slot
        for first in range(start, len(self), at_once):
            numbers = range(first, min(first + at_once, len(self)))
            order = self._order(epoch, numbers) if self.shuffle else None
            for number in numbers:
                begin = number * self.batch
                size = min(self.batch, self.count - begin)
                valid = min(max(size - low, 0), share)
                taken = valid if self.last == "short" else share
                if order is not None:
                    offset = begin - first * self.batch + low
                    positions = order[offset : offset + taken]
                    arrays = tuple(each.rows(positions) for each in self._inputs)
                elif valid == taken:
                    begin += low
                    arrays = tuple(each.slice(begin, begin + taken) for each in self._inputs)
                else:
                    positions = np.arange(begin + low, begin + low + taken) % self.count
                    arrays = tuple(each.rows(positions) for each in self._inputs)
                yield Batch(arrays, valid)

    def _order(self, epoch: int, numbers: range) -> Positions:
        """Return the examples of consecutive batches; positions beyond the last wrap around."""
        stop = numbers.stop * self.batch
        if self.last == "short":
            stop = min(stop, self.count)
        positions = np.arange(numbers.start * self.batch, stop) % self.count
        return permutation(self.count, positions, seed=self.seed, epoch=epoch)

    def __repr__(self) -> str:
        return (
            f"<loader of {self.count:,} examples: {len(self):,} batches of {self.batch:,}, "
            f"epoch {self._state.epoch}, position {self._state.position}>"
        )


def _counted(name: str, value: object, least: int) -> int:
    """Return an integer argument."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if is_integer and least <= int(value) < 1 << 64:  # type: ignore[call-overload]
        return int(value)  # type: ignore[call-overload, no-any-return]
    bound = f", at least {least}" if least >= 0 else " of 64 bits"
    raise UsageError.at_caller(f"{name}= of a loader is an integer{bound}.", repr(value))


_Item = TypeVar("_Item")


def prefetched(items: Iterator[_Item], ahead: int) -> Iterator[_Item]:
    """Yield items that one thread takes from an iterator, up to `ahead` of them in advance.

    An exception of the iterator is raised here, after the items before it. The thread ends with
    the items, or when this generator is closed; it does not keep the process from ending.
    """
    room = Semaphore(ahead)
    made: SimpleQueue[tuple[_Item] | BaseException] = SimpleQueue()
    is_closed = False

    def work() -> None:
        try:
            while room.acquire() and not is_closed:
                made.put((next(items),))
        except BaseException as raised:  # StopIteration at the end
            made.put(raised)

    Thread(target=work, name="ocannl prefetch", daemon=True).start()
    try:
        while True:
            item = made.get()
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item[0]
    finally:
        is_closed = True
        room.release()


_RANGE_CHECKED = 1 << 22
"""The number of labels that are compared at a time, so that mapped files stay on disk."""


class Examples:
    """Examples of one kind: the rows of an array, which may be mapped from a file, or the entries
    of a sequence, which are arrays of one shape.
    """

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def rows(self, positions: Array) -> Array:
        """Return the examples at positions, along a new leading axis."""
        if isinstance(self._entries, np.ndarray):
            return np.asarray(self._entries[positions])
        return np.stack([np.asarray(self._entries[int(position)]) for position in positions])

    def slice(self, start: int, stop: int) -> Array:
        """Return consecutive examples, where possible without a copy, which is read-only then."""
        if isinstance(self._entries, np.ndarray):
            part = self._entries[start:stop]
            part.flags.writeable = False  # a batch that is changed in place is not the examples
            return part
        return self.rows(np.arange(start, stop))


def examples_of(value: object, number: int) -> Examples:
    """Return the examples of an input of a loader.

    Args:
        value: An array, a sequence, or any object with `shape`, `dtype` and `__getitem__`.

    Raises:
        DataError: if there are none, or shapes differ.
        UsageError: if it is neither an array nor a sequence.
    """
    if isinstance(value, np.ndarray | memoryview):
        array = np.asarray(value)
        _check_kind(array.dtype, number)
        if array.ndim == 0:
            raise _refusal(value, number)
        found = Examples(array)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        found = _sequence(value, number)
    elif isinstance(value, Tensor):
        raise _refusal(value, number)
    elif hasattr(value, "shape") and hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        found = Examples(value)
    else:
        raise _refusal(value, number)
    if len(found) == 0:
        raise DataError.at_caller(
            "An input of a loader has examples.", found=f"input {number} is empty"
        )
    return found


def _sequence(entries: Sequence[object], number: int) -> Examples:
    shapes: dict[tuple[int, ...], int] = {}
    for position, entry in enumerate(entries):
        try:
            array = np.asarray(entry)
        except ValueError as error:
            raise _ragged(number, position, str(error)) from error
        _check_kind(array.dtype, number)
        shapes.setdefault(array.shape, position)
        if len(shapes) > 1:
            first = next(iter(shapes))
            found = f"{list(array.shape)} in place of {list(first)}"
            raise _ragged(number, position, found)
    return Examples(np.asarray(entries) if shapes.keys() <= {()} else entries)


def check_lengths(inputs: Sequence[Examples]) -> int:
    """Return the number of examples, which all inputs have in common."""
    lengths = [len(each) for each in inputs]
    if len(set(lengths)) > 1:
        raise DataError.at_caller(
            "The inputs of a loader have the same number of examples.",
            found=", ".join(f"{n:,} in input {i}" for i, n in enumerate(lengths)),
            fix="the leading axis counts examples",
        )
    return lengths[0]


def check_labels(labels: Examples, classes: object) -> None:
    """Check that labels are class numbers."""
    if not isinstance(classes, Integral) or isinstance(classes, bool) or int(classes) < 1:
        raise UsageError.at_caller("classes= is the number of classes.", found=repr(classes))
    count = int(classes)
    for start in range(0, len(labels), _RANGE_CHECKED):
        part = np.asarray(labels.slice(start, min(start + _RANGE_CHECKED, len(labels))))
        is_wrong = (part < 0) | (part >= count)
        if part.dtype.kind not in "iu":
            raise DataError.at_caller(
                "Labels are class numbers, which are integers.",
                found=f"labels of {part.dtype}",
                fix="labels.astype(np.int32); without classes=, labels may be any numbers",
            )
        if is_wrong.any():
            first = tuple(int(i) for i in np.argwhere(is_wrong)[0])
            raise DataError.at_caller(
                f"Labels are class numbers, 0 to {count - 1}.",
                found=f"{part[first]} at example {start + first[0]:,}",
                fix="classes= is the number of classes; the last input has the labels",
            )


def _check_kind(dtype: np.dtype[Any], number: int) -> None:
    if dtype.kind in "OSUMm" or dtype.type is np.void:  # narrow floats have the kind V, too
        raise DataError.at_caller(
            "Examples are numbers.",
            found=f"an array of dtype {dtype} in input {number}",
            fix="convert it: np.asarray(rows, dtype=np.float32)",
        )


def _ragged(number: int, position: int, found: str) -> DataError:
    return DataError.at_caller(
        "The examples of an input have one shape.",
        found=f"example {position:,} of input {number}: {found}",
        fix="pad examples to one shape, or cut them",
    )


def _refusal(value: object, number: int) -> UsageError:
    return UsageError.at_caller(
        "An input of a loader is an array whose leading axis counts examples, or a sequence of "
        "arrays.",
        found=f"input {number}: a {type(value).__name__}",
        fix="oc.data.Loader(images, labels, batch=64)",
    )
