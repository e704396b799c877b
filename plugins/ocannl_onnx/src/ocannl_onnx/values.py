"""The values of a graph: numbers known when the graph is read, and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any, NamedTuple

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.errors import EXTENT, StepName
from ocannl_onnx.file_names import note_file_name
from ocannl_onnx.formats import Format, format_named, format_of

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]

_at_end: ContextVar[list[Callable[[], object]] | None] = ContextVar("at_end", default=None)
"""Functions to call after the innermost step of a loop that is being traced; None outside."""


@contextmanager
def made_in_step() -> Iterator[None]:
    """Forget, at the end, tensors that values from outside of a step of a loop have got inside: the
    tensors belong to the step, and are gone if its loop is unrolled after all.
    """
    forget: list[Callable[[], object]] = []
    outer = _at_end.set(forget)
    try:
        yield
    finally:
        _at_end.reset(outer)
        for each in forget:
            each()


def at_end_of_step(forget: Callable[[], object]) -> None:
    """Call a function after the innermost step that is being traced; never outside of steps."""
    if (functions := _at_end.get()) is not None:
        functions.append(forget)


def sizes_of(tensor: Tensor) -> Sizes:
    """Return the sizes of a tensor's axes, in buffer order.

    They are stated for the tensor, whose later uses then decide no part of its shape: a graph has
    hundreds of nodes, and inferring the shapes of all before each one takes time.
    """
    shape = tensor.shape
    dims, extents = tuple(shape.dims), shape.extents
    sizes = [
        extent or size for size, extent in zip(dims, extents or (None,) * len(dims), strict=True)
    ]
    oc.require_shape(tensor, sizes)
    return dims


class Value:
    """A tensor of a graph.

    Attributes:
        format: Its element type.
        shape: Its sizes.
        array: Its cells, where they are known when the graph is read.
        inputs: The names of the model's inputs on which the cells depend.
        is_weight: True if the cells are a parameter, which is not folded into constants.
        name: The name of an initializer in the file; None for other values.
        extents: For each cell that follows from extents: the extent that it is, the `Multiple`, or
            True, and `array` holds its maximum. None for others, and if there is no such cell.
        computed: A function that computes such cells as a tensor; None if all are extents.
    """

    __slots__ = (
        "_tensor", "array", "computed", "extents", "format", "inputs", "is_weight", "name", "shape"
    )  # fmt: skip

    def __init__(
        self,
        format: Format,
        shape: Sizes,
        *,
        array: Array | None = None,
        tensor: Tensor | None = None,
        inputs: frozenset[str] = frozenset(),
        is_weight: bool = False,
        name: str | None = None,
    ) -> None:
        self.format = format
        self.shape = shape
        self.array = array
        self._tensor = tensor
        self.inputs = inputs
        self.is_weight = is_weight
        self.name = name
        self.extents: Array | None = None
        self.computed: Callable[[], Tensor] | None = None

    @classmethod
    def of_array(cls, array: Any, format: Format | None = None, name: str | None = None) -> Value:
        """Return a value known when the graph is read."""
        cells = np.asanyarray(array)  # a map of a file stays one
        found = format or format_of(cells)
        if found is None:
            raise TypeError(f"an array of {cells.dtype}")
        return cls(found, tuple(map(int, cells.shape)), array=cells, name=name)

    @classmethod
    def of_tensor(
        cls,
        tensor: Tensor,
        format: Format | None = None,
        inputs: frozenset[str] = frozenset(),
        shape: Sizes | None = None,
    ) -> Value:
        found = format or format_named(str(tensor.dtype))
        return cls(
            found, sizes_of(tensor) if shape is None else shape, tensor=tensor, inputs=inputs
        )

    @property
    def tensor(self) -> Tensor:
        """The value as a tensor of the format's carrier."""
        if self._tensor is None:
            assert self.array is not None
            if self.extents is not None:
                self._tensor = (self.computed or self._counted)()
                at_end_of_step(self._forget_tensor)
                return self._tensor
            cells = self.array
            is_filled = cells.size > 1 and not any(cells.strides)
            if is_filled:  # one number for all cells
                cells = cells[(0,) * cells.ndim]
            if self.format.is_carried:
                cells = cells.astype(self.format.carrier)
            tensor = oc.tensor(np.asarray(cells, order="C"), dtype=self.format.carrier)
            if self.name is not None and not is_filled:
                note_file_name(tensor, self.name)
            self._tensor = oc.broadcast_to(tensor, *self.shape) if is_filled else tensor
            at_end_of_step(self._forget_tensor)
        return self._tensor

    def _counted(self) -> Tensor:
        """Return cells some of which are extents at run time, as numbers of a call."""
        assert self.array is not None
        assert self.extents is not None
        carrier = self.format.carrier
        cells = [
            oc.tensor(number, dtype=carrier)
            if extent is None
            else oc.sum(oc.ones(extent, dtype=carrier), dtype=carrier)
            for number, extent in zip(self.array.flat, self.extents.flat, strict=True)
        ]
        result: Tensor = oc.reshape(oc.stack(cells), *self.shape) if self.shape else cells[0]
        return result

    def _forget_tensor(self) -> None:
        self._tensor = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_known(self) -> bool:
        return self.array is not None

    @property
    def has_gradient(self) -> bool:
        """True if a gradient may flow to the cells."""
        return self._tensor is not None and self._tensor.requires_grad and self.format.is_float

    def with_tensor(self, function: Callable[[Tensor], Tensor]) -> Value:
        """Return a value with a function of the tensor in place of it, which has equal cells."""
        assert self._tensor is not None
        made = copy(self)
        made._tensor = function(self._tensor)
        return made

    @property
    def follows_from_data(self) -> bool:
        """True if the cells depend on an input of the model, which is read at run time."""
        return not self.is_known and any(not isinstance(each, StepName) for each in self.inputs)

    def extent(self, axis: int) -> oc.StaticExtent | None:
        """Return the extent at run time that is the size of an axis; None for a constant size."""
        extents = () if self.is_known else self.tensor.shape.extents
        return extents[axis] if extents else None

    def __repr__(self) -> str:
        return f"<{self.format}{list(self.shape)}{' known' if self.is_known else ''}>"


def with_extents(value: Value, extents: Array) -> Value:
    """Mark the cells that follow from extents at run time: by the extent that they are, or True."""
    if any(extents.flat):
        value.extents = extents
    return value


class Multiple(NamedTuple):
    """The mark of a cell that is a number times extents at run time."""

    factor: int
    extents: tuple[oc.StaticExtent, ...]


def product_of_extents(numbers: Iterable[Any], marks: Iterable[Any], *, divides: bool) -> Any:
    """Return the mark of a number times another, or divided by it; of extents, their maxima are
    given as numbers.
    """
    factors: list[Multiple] = []
    for number, mark in zip(numbers, marks, strict=True):
        if mark is True or (mark is None and number <= 0):
            return True
        one = Multiple(int(number), ()) if mark is None else Multiple(1, (mark,))
        factors.append(mark if isinstance(mark, Multiple) else one)
    first, second = factors
    if not divides:
        factor, extents = first.factor * second.factor, [*first.extents, *second.extents]
    else:
        factor, rest = divmod(first.factor, second.factor)
        extents = list(first.extents)
        for each in second.extents:
            if each not in extents:
                return True
            extents.remove(each)
        if rest:
            return True
    if factor == 1 and len(extents) == 1:
        return extents[0]
    return Multiple(factor, tuple(extents)) if extents else None


class Sequence:
    """A sequence of values; its length is known when the graph is read."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = tuple(items)


class Optional:
    """A value or nothing; which of both is known when the graph is read."""

    __slots__ = ("item",)

    def __init__(self, item: Any) -> None:
        self.item = item


Item = Value | Sequence | Optional


def inputs_of(items: Iterable[Any]) -> frozenset[str]:
    """Return the names of the model's inputs on which values depend."""
    found: frozenset[str] = frozenset()
    for item in items:
        match item:
            case Value():
                found |= item.inputs if item.extents is None else item.inputs | {EXTENT}
            case Sequence():
                found |= inputs_of(item.items)
            case Optional():
                found |= inputs_of((item.item,))
    return found
