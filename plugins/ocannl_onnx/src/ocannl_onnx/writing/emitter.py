"""Nodes of the graph that is written, with names, constants and conversions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ocannl_core import StaticExtent
from ocannl_core.assignments import StaticIndex
from ocannl_onnx.formats import Format, format_named
from ocannl_onnx.writing.functions import Library, OwnedNode

Size = int | StaticExtent
Array = np.ndarray[Any, Any]

FLOAT32, INT32, INT64, BOOL = map(format_named, ("float32", "int32", "int64", "bool"))

_COMPUTED_IN = {
    **dict.fromkeys(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), "float32"),
    **dict.fromkeys(("int4", "uint4", "int8", "uint8", "int16", "uint16", "bool"), "int32"),
    "uint32": "int64",
}


def computed_in(format: Format) -> Format:
    """Return the format in which operators compute numbers of a format: narrow floats in float32
    and narrow integers in int32, as the core does, since operators lack implementations for most.
    """
    return format_named(_COMPUTED_IN.get(format.name, format.name))


def raw_bytes(array: Array, format: Format | None) -> memoryview:
    """Return cells as files hold them: little-endian, of 4 bits two in a byte, the first low."""
    array = np.ascontiguousarray(array)
    if format is not None and format.bits == 4:
        cells = array.astype(np.int8).view(np.uint8).reshape(-1) & 15
        pairs = np.pad(cells, (0, cells.size % 2)).reshape(-1, 2)
        array = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8)
    if sys.byteorder == "big":
        array = array.byteswap()
    return array.reshape(-1).view(np.uint8).data


@dataclass(frozen=True)
class WrittenValue:
    """A value of the written graph.

    Attributes:
        name: Its name in the file.
        format: The number format of its cells.
        sizes: The sizes of its axes.
        is_spread: True if the file has one number in place of equal cells.
        number: That number, where it is known.
        row_axis: In a loop, the axis along which the file has the row of the iteration alone.
    """

    name: str
    format: Format
    sizes: tuple[Size, ...]
    is_spread: bool = False
    number: float | None = None
    row_axis: int | None = None


@dataclass(frozen=True)
class Bytes:
    """An integer value that is a number of 8 bits minus a zero point.

    Attributes:
        zero: The zero point: a number, or the name of one in the same format.
    """

    name: str
    format: Format
    zero: int | str = 0


@dataclass(frozen=True)
class _Source:
    """A value that is read without some of its axes of size 1, or with others.

    Attributes:
        rank: The number of its own axes.
        axes: The axes as it is read: own ones, and None for others of size 1.
    """

    name: str
    rank: int
    axes: tuple[int | None, ...]

    @property
    def removed(self) -> tuple[int, ...]:
        """The own axes without which it is read."""
        return tuple(axis for axis in range(self.rank) if axis not in self.axes)

    @property
    def added(self) -> tuple[int, ...]:
        """The positions of other axes."""
        return tuple(k for k, axis in enumerate(self.axes) if axis is None)

    def with_own_axes(self) -> _Source:
        """Return an equal source, with own axes in place of other ones where their order allows."""
        axes = list(self.axes)
        for axis in self.removed:
            after = [k for k, each in enumerate(axes) if each is not None and each > axis]
            before = [k for k, each in enumerate(axes) if each is not None and each < axis]
            places = range(max(before, default=-1) + 1, min(after, default=len(axes)))
            if len(places):
                axes[places[0]] = axis
        return replace(self, axes=tuple(axes))


@dataclass
class UniqueNames:
    """Unique names of one file."""

    taken: dict[str, int] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        """Return a name that no other value has."""
        name = name or "value"
        count = self.taken.get(name)
        if count is None:
            self.taken[name] = 1
            return name
        while f"{name}_{count}" in self.taken:
            count += 1
        self.taken[name] = count + 1
        self.taken[f"{name}_{count}"] = 1
        return f"{name}_{count}"


class Emitter:
    """The nodes of one graph: of a model, or of the body of a loop.

    Attributes:
        owners: The applications of blocks around the nodes that follow.
        opset: The version of the operator set.
        origin: Returns for an index a function that emits its value as one int64 number; for an
            extent, as an array of one.
        library: The functions of the file.
        hint: The name from which names of values are made.
    """

    def __init__(
        self,
        names: UniqueNames,
        opset: int,
        origin: Callable[[StaticIndex], Callable[[Emitter], str]],
        library: Library,
    ) -> None:
        self.names = names
        self.opset = opset
        self.origin = origin
        self.library = library
        self.hint = ""
        self.nodes: list[OwnedNode] = []
        self.owners: tuple[Any, ...] = ()
        self._computed: dict[tuple[Any, ...], str] = {}
        self._sources: dict[tuple[tuple[int, ...], str], _Source] = {}
        self._reductions: dict[tuple[tuple[int, ...], str], tuple[str, str, tuple[int, ...]]] = {}
        self._truths: dict[tuple[tuple[int, ...], str], str] = {}
        self._bytes: dict[tuple[tuple[int, ...], str], Bytes] = {}

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Emit a node with one output, named after the current assignment; return its name."""
        (name,) = self.several(operator, inputs, [self.hint or operator.lower()], **attributes)
        return name

    def several(
        self, operator: str, inputs: Sequence[str], hints: Sequence[str], **attributes: Any
    ) -> list[str]:
        """Emit a node; return the names of its outputs."""
        outputs = [self.names.unique(hint) for hint in hints]
        proto = helper.make_node(operator, list(inputs), outputs, **attributes)
        self.nodes.append(OwnedNode(proto, self.owners))
        return outputs

    @property
    def _place(self) -> tuple[Any, ...]:
        """The applications of blocks around, as a key: inside of others, a value is another one."""
        return self.owners

    def once(self, key: tuple[Any, ...], emit: Callable[[], str]) -> str:
        """Return a value that is emitted once in each application of a block."""
        key = (self._place, key)
        if key not in self._computed:
            self._computed[key] = emit()
        return self._computed[key]

    def constant(self, value: Any, format: Format = INT64) -> str:
        """Return the name of a constant."""
        array = np.asarray(value).astype(format.numpy)

        def emit() -> str:
            cells = bytes(raw_bytes(array, format))
            tensor = onnx.TensorProto(data_type=format.number, raw_data=cells)
            tensor.dims.extend(array.shape)
            return self.several("Constant", [], ["constant"], value=tensor)[0]

        return self.once(("constant", format.name, array.shape, array.tobytes()), emit)

    def cast(self, name: str, source: Format, target: Format) -> str:
        """Return a value in another format."""
        if source == target:
            return name
        place = self._place
        if target == BOOL and (place, name) in self._truths:
            return self._truths[place, name]

        known = self._sources.get((self._place, name))
        if known is not None:
            return self._read(replace(known, name=self.cast(known.name, source, target)))

        # beyond the range of 8 bits are infinities or NaN, as here
        options = {"saturate": 0} if target.is_float and target.bits == 8 else {}

        def emit() -> str:
            hint = f"{name}_{target}"
            (found,) = self.several("Cast", [name], [hint], to=target.number, **options)
            if source == BOOL:
                self._truths[place, found] = name
            if source.name in ("int8", "uint8") and target == INT32:
                self._bytes[place, found] = Bytes(name, source)
            return found

        return self.once(("cast", name, target.name), emit)

    def bytes_of(self, name: str) -> Bytes | None:
        """Return the numbers of 8 bits, and the zero point, of which a value is the difference."""
        return self._bytes.get((self._place, name))

    def note_zero_point(self, name: str, cells: str, zero: int | str) -> None:
        """Note that a value is another one minus a zero point, in int32; a zero point that is no
        number is the name of a value.
        """
        found = self.bytes_of(cells)
        if found is None or found.zero != 0:
            return
        if isinstance(zero, str):
            shift = self.bytes_of(zero)
            if shift is None or shift.format != found.format or shift.zero != 0:
                return
            zero = shift.name
        else:
            low, high = found.format.range
            if not low <= zero <= high:
                return
        self._bytes[self._place, name] = replace(found, zero=zero)

    def size(self, size: Size) -> str:
        """Return a size as an array of one int64 number."""
        if isinstance(size, int):
            return self.constant([size])
        return self.once(("size", size), lambda: self.origin(size)(self))

    def shape(self, sizes: Sequence[Size]) -> str:
        """Return sizes as an array of int64 numbers."""
        if all(isinstance(each, int) for each in sizes):
            return self.constant(list(sizes))
        parts = [self.size(each) for each in sizes]
        key = ("shape", *sizes)
        return self.once(key, lambda: self("Concat", *parts, axis=0))

    def index(self, index: StaticIndex) -> str:
        """Return the value of an index as one int64 number without axes."""
        if isinstance(index, StaticExtent):
            return self("Squeeze", self.size(index))
        return self.origin(index)(self)

    def reshape(self, name: str, sizes: Sequence[Size]) -> str:
        """Return a value with other axes, of which one size may follow from the others."""
        shape: list[Any] = list(sizes)
        open_sizes = [k for k, each in enumerate(shape) if not isinstance(each, int)]
        if len(open_sizes) == 1:
            shape[open_sizes[0]] = -1
        if 0 in shape:
            return self("Reshape", name, self.shape(sizes), allowzero=1)
        return self("Reshape", name, self.shape(shape))

    def transpose(self, name: str, order: Sequence[int]) -> str:
        """Return a value with its axes in another order."""
        if list(order) == sorted(order):
            return name
        return self("Transpose", name, perm=list(order))

    def squeeze(self, name: str, axes: Sequence[int], rank: int) -> str:
        """Return a value without axes of size 1."""
        source = self._source(name, rank)
        return self._read(
            replace(source, axes=tuple(a for k, a in enumerate(source.axes) if k not in axes))
        )

    def unsqueeze(self, name: str, axes: Sequence[int], rank: int) -> str:
        """Return a value with axes of size 1 at positions of the result."""
        source = self._source(name, rank)
        own = iter(source.axes)
        count = rank + len(axes)
        return self._read(
            replace(source, axes=tuple(None if k in axes else next(own) for k in range(count)))
        )

    def reduce(self, operator: str, name: str, axes: Sequence[int], rank: int) -> str:
        """Return a value accumulated along axes, without these."""
        if not axes:
            return name
        kept = self(operator, name, self.constant(list(axes)), keepdims=1)
        self._reductions[self._place, kept] = (operator, name, tuple(axes))
        return self.squeeze(kept, axes, rank)

    def _source(self, name: str, rank: int) -> _Source:
        """Return the value that differs in axes of size 1 alone."""
        return self._sources.get((self._place, name), _Source(name, rank, tuple(range(rank))))

    def _read(self, found: _Source) -> str:
        """Return a source with its axes, by the fewest nodes."""
        found = found.with_own_axes()
        name, removed, added = found.name, found.removed, found.added
        if not removed and not added:
            return name

        def emit() -> str:
            operator, operand, axes = self._reductions.get((self._place, name), ("", "", ()))
            if operator and axes == removed and not added:
                return self(operator, operand, self.constant(list(axes)), keepdims=0)
            result = self("Squeeze", name, self.constant(list(removed))) if removed else name
            return self("Unsqueeze", result, self.constant(list(added))) if added else result

        result = self.once(("axes", found), emit)
        self._sources[self._place, result] = found
        return result

    def slice(self, name: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        """Return a section along an axis; a stop of -1 counts as before the first cell."""
        end = stop if stop >= 0 else -(2**31)
        bounds = (self.constant([each]) for each in (start, end, axis, step))
        return self("Slice", name, *bounds)

    def pad(
        self, name: str, before: Sequence[int], after: Sequence[int], value: float, format: Format
    ) -> str:
        """Return a value with cells of one number around it."""
        if not any((*before, *after)):
            return name
        pads = self.constant([*before, *after])
        return self("Pad", name, pads, self.constant(value, format))

    def materialized(self, value: WrittenValue) -> str:
        """Return the name of a value with all of its cells."""
        if not value.is_spread or not value.sizes:
            return value.name
        return self("Expand", value.name, self.shape(value.sizes))
