"""Sorting along an axis: ops of time n log n on every backend, stable."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.ir.numbers.dtypes import DType, int32
from ocannl_core.tensor.custom.along_axis import AlongAxis, c_type, line_of, widened
from ocannl_core.tensor.custom.op import Apply, NoNativeCode, Op
from ocannl_core.tensor.custom.variables import Array, Storage
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.graph.precision import reduced_format
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations import reductions
from ocannl_core.tensor.operations.activations import isnan
from ocannl_core.tensor.operations.axes import (
    Axes,
    apply,
    axes_of,
    operand,
    sized_axes_of,
    write_shape,
)
from ocannl_core.tensor.operations.rearrangement import expand_dims, move, squeeze
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.operands import as_tensor
from ocannl_core.tensor.primitives.specifications import composite_operation

_BLOCK = 64
"""The cells that `topk` compares with the last of the first cells before it looks at each."""

_STEP_CYCLES = 6.0
"""The cycles of one step of a binary search; steps of several searches overlap."""

_FEW_CELLS = 64
"""The greatest number of cells that `topk` keeps in order as it reads the others."""

_SORTED_BY_INSERTION = 24
"""The greatest number of cells that are sorted by insertion."""


class ArgSort(AlongAxis):
    """The positions of the cells in ascending or descending order, stable; NaN is the greatest."""

    __props__ = ("axis", "ranks", "descending")
    cycles = 40.0

    def __init__(self, axis: int, ranks: tuple[int, int, int], descending: bool) -> None:
        super().__init__(axis, ranks)
        self.descending = descending

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [int32]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        x = widened(inputs[0])
        if self.descending:
            backwards = np.argsort(np.flip(x, self.axis), axis=self.axis, kind="stable")
            order = x.shape[self.axis] - 1 - np.flip(backwards, self.axis)
        else:
            order = np.argsort(x, axis=self.axis, kind="stable")
        output_storage[0][0] = order.astype(np.int32)

    c_headers = ("<string.h>",)

    def c_workspace(self, node: Apply, extents: Sequence[tuple[int, ...]]) -> int:
        """Return the bytes of two arrays of pairs of a key and a position."""
        return 4 * max(4, node.inputs[0].dtype.nbytes) * (extents[0][self.axis] + 1)

    def c_code(self, node: Apply) -> str:
        """Return a radix sort of the keys, digit by digit of 8 bits; of few cells, by insertion."""
        dtype = node.inputs[0].dtype
        word = _word(dtype)
        loops = self.lines(
            f"struct pair {{ {word} key; int32_t at; }} *from = (void *)workspace;\n"
            "struct pair *into = from + n;\n"
            "const int64_t held = n;\n"
            "if (n > few) memset(counts, 0, sizeof counts);\n"
            "for (int64_t k = 0; k < n; ++k) {\n"
            f"{_key(dtype, 'in0[first + k * inner]', self.descending)}"
            "int64_t place = k;\n"
            "if (n <= few) {\n"
            "for (; place > 0 && from[place - 1].key > key; --place) from[place] = from[place - 1];"
            "\n}\n"
            f"else for (int digit = 0; digit < {dtype.nbytes}; ++digit)\n"
            "++counts[digit][key >> 8 * digit & 255];\n"
            "from[place].key = key;\n"
            "from[place].at = (int32_t)k;\n}\n"
            f"{_by_digits(dtype)}"
            "for (int64_t k = 0; k < n; ++k) out0[first + k * inner] = from[k].at;"
        )
        return f"{_counts(dtype)}{loops}"


def _counts(dtype: DType) -> str:
    """Return C declarations for `_by_digits`."""
    return f"enum {{ few = {_SORTED_BY_INSERTION} }};\nint32_t counts[{dtype.nbytes}][256];\n"


def _by_digits(dtype: DType) -> str:
    """Return C code that sorts the pairs of `from`, more than `few`, if `held` counts them and
    `counts` their digits; afterwards `from` and `into` may have exchanged their places.
    """
    return (
        f"for (int digit = 0; held > few && digit < {dtype.nbytes}; ++digit) {{\n"
        "int32_t *const count = counts[digit];\n"
        "if (count[from[0].key >> 8 * digit & 255] == held) continue;\n"
        "int32_t start = 0;\n"
        "for (int value = 0; value < 256; ++value) {\n"
        "const int32_t equal = count[value];\n"
        "count[value] = start;\n"
        "start += equal;\n}\n"
        "for (int64_t k = 0; k < held; ++k)\n"
        "into[count[from[k].key >> 8 * digit & 255]++] = from[k];\n"
        "struct pair *const other = from;\nfrom = into;\ninto = other;\n}\n"
    )


def _word(dtype: DType) -> str:
    """Return the unsigned type of the keys of a format."""
    c_type(dtype)
    return "uint64_t" if dtype.nbytes == 8 else "uint32_t"


def _key(dtype: DType, cell: str, is_reversed: bool) -> str:
    """Return C code that declares `key`, unsigned and in the order of the cells.

    Equal cells have equal keys, zeros of both signs and all NaN included.
    """
    word = _word(dtype)
    kind, sign = c_type(dtype), f"({word})1 << {8 * dtype.nbytes - 1}"
    bits = f"(u{kind})" if kind.startswith("int") else ""
    first = "0" if dtype.is_float else f"({word}){bits}cell"
    lines = [f"const {kind} cell = {cell};", f"{word} key = {first};"]
    if dtype.is_float:
        lines += [
            "memcpy(&key, &cell, sizeof key);",
            f"key ^= key >> {8 * dtype.nbytes - 1} ? ~({word})0 : {sign};",
            f"key = cell == 0 ? {sign} : cell != cell ? ~({word})0 : key;",
        ]
    elif kind.startswith("int"):
        lines += [f"key ^= {sign};"]
    if is_reversed:
        lines += ["key = ~key;"]
    return "\n".join([*lines, ""])


class TopPositions(AlongAxis):
    """The positions of the first few cells in ascending or descending order, as `ArgSort` has them.

    One pass keeps the first cells so far; few of random cells displace another one. Up to
    `_FEW_CELLS` are in order all the time. More are in order after each sort of twice as many: what
    follows the last one is left out, and others are added behind them.
    """

    __props__ = ("axis", "ranks", "count", "descending")

    def __init__(
        self, axis: int, ranks: tuple[int, int, int], count: int, descending: bool
    ) -> None:
        super().__init__(axis, ranks)
        self.count = count
        self.descending = descending
        self.sizes = f"n => {count}"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [int32]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        order: list[Storage] = [[None]]
        ArgSort(self.axis, self.ranks, self.descending).perform(node, inputs, order)
        output_storage[0][0] = np.take(order[0][0], np.arange(self.count), axis=self.axis)

    c_headers = ("<string.h>",)

    def c_workspace(self, node: Apply, extents: Sequence[tuple[int, ...]]) -> int:
        """Return the bytes of two arrays of pairs of a key and a position, if they are sorted."""
        pairs = 0 if self.count <= _FEW_CELLS else 2 * self.count
        return 4 * max(4, node.inputs[0].dtype.nbytes) * pairs

    def c_code(self, node: Apply) -> str:
        dtype = node.inputs[0].dtype
        return self._in_order(dtype) if self.count <= _FEW_CELLS else self._sorted(dtype)

    def _sorted(self, dtype: DType) -> str:
        key = _key(dtype, "in0[first + k * inner]", self.descending)
        loops = self.lines(
            f"struct pair {{ {_word(dtype)} key; int32_t at; }} *from = (void *)workspace;\n"
            f"struct pair *into = from + {2 * self.count};\n"
            "int64_t held = 0;\n"
            "int limited = 0;\n"
            f"{_word(dtype)} limit = 0;\n"
            "for (int64_t start = 0; start < n; ) {\n"
            f"int64_t stop = start + {_BLOCK} < n ? start + {_BLOCK} : n;\n"
            "int displaces = !limited;\n"
            f"for (int64_t k = start; k < stop; ++k) {{\n{key}displaces |= key < limit;\n}}\n"
            "for (int64_t k = start; displaces && k < stop; ++k) {\n"
            f"{key}if (limited && key >= limit) continue;\n"
            "from[held].key = key;\n"
            "from[held++].at = (int32_t)k;\n"
            f"if (held == {2 * self.count}) stop = k + 1;\n}}\n"
            "start = stop;\n"
            f"if (held < {2 * self.count} && start < n) continue;\n"
            "memset(counts, 0, sizeof counts);\n"
            "for (int64_t k = 0; k < held; ++k)\n"
            f"for (int digit = 0; digit < {dtype.nbytes}; ++digit)\n"
            "++counts[digit][from[k].key >> 8 * digit & 255];\n"
            f"{_by_digits(dtype)}"
            f"held = {self.count};\nlimited = 1;\nlimit = from[held - 1].key;\n}}\n"
            f"{self._written('from[k].at')}"
        )
        return f"{_counts(dtype)}{loops}"

    def _written(self, position: str) -> str:
        """Return C code that writes the positions of a line."""
        return (
            f"for (int64_t k = 0; k < {self.count}; ++k)\n"
            f"out0[line / inner * {self.count} * inner + line % inner + k * inner] = {position};"
        )

    def _in_order(self, dtype: DType) -> str:
        return self.lines(
            f"{_word(dtype)} keys[{self.count}];\n"
            f"int32_t found[{self.count}];\n"
            "for (int64_t k = 0; k < n; ++k) {\n"
            f"for (; k >= {self.count} && k + {_BLOCK} <= n; k += {_BLOCK}) {{\n"
            "int displaces = 0;\n"
            f"for (int64_t j = k; j < k + {_BLOCK}; ++j) {{\n"
            f"{_key(dtype, 'in0[first + j * inner]', self.descending)}"
            f"displaces |= key < keys[{self.count - 1}];\n}}\n"
            "if (displaces) break;\n}\n"
            "if (k == n) break;\n"
            f"const int64_t stop = k >= {self.count} && k + {_BLOCK} <= n ? k + {_BLOCK} : k + 1;\n"
            "for (; k < stop; ++k) {\n"
            f"{_key(dtype, 'in0[first + k * inner]', self.descending)}"
            f"int64_t place = k < {self.count} ? k : {self.count};\n"
            f"if (place == {self.count} && key >= keys[{self.count - 1}]) continue;\n"
            f"if (place == {self.count}) --place;\n"
            "for (; place > 0 && keys[place - 1] > key; --place) {\n"
            "keys[place] = keys[place - 1];\n"
            "found[place] = found[place - 1];\n}\n"
            "keys[place] = key;\n"
            "found[place] = (int32_t)k;\n}\n--k;\n}\n"
            f"{self._written('found[k]')}"
        )


class TakeAlongAxis(AlongAxis):
    """The cells at positions along an axis, position by position."""

    sizes = "n; m => m"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [given[0]]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        output_storage[0][0] = np.take_along_axis(inputs[0], inputs[1], axis=self.axis)

    def c_code(self, node: Apply) -> str:
        return self.lines(
            "const int64_t start = line / inner * m * inner + line % inner;\n"
            "for (int64_t k = 0; k < m; ++k)\n"
            "out0[start + k * inner] = in0[first + in1[start + k * inner] * inner];",
            m=f"in1_shape[{self.axis}]",
        )

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        x, positions = inputs
        return [PutAlong(self.axis, self.ranks)(x, positions, output_gradients[0]), None]


class PutAlong(AlongAxis):
    """Zeros of the shape of the first operand, to which cells are added at positions."""

    sizes = "n; m; m => n"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [given[0]]

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        return [None, None, TakeAlongAxis(self.axis, self.ranks)(output_gradients[0], inputs[1])]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        x, positions, cells = inputs
        found = np.zeros(x.shape, widened(x).dtype)
        places: list[Array] = list(np.indices(positions.shape))
        places[self.axis] = positions
        np.add.at(found, tuple(places), widened(cells))
        output_storage[0][0] = found.astype(x.dtype)

    def c_code(self, node: Apply) -> str:
        c_type(node.inputs[0].dtype)
        return self.lines(
            "const int64_t start = line / inner * m * inner + line % inner;\n"
            "for (int64_t k = 0; k < n; ++k) out0[first + k * inner] = 0;\n"
            "for (int64_t k = 0; k < m; ++k)\n"
            "out0[first + in1[start + k * inner] * inner] += in2[start + k * inner];",
            m=f"in1_shape[{self.axis}]",
        )


class SearchSorted(Op):
    """The positions at which cells keep an axis in ascending order; NaN is the greatest."""

    __props__ = ("kind", "ranks", "side")

    def __init__(self, kind: int, ranks: tuple[int, int, int], side: str) -> None:
        self.kind = kind
        """The kind of the axis: 0 for batch, 1 for output, 2 for input."""
        self.ranks = ranks
        """The numbers of batch, output and input axes of the cells."""
        self.side = side
        """The side: "left" for the position before equal cells, "right" for that after them."""
        axis = write_shape(["n"], [int(k == kind) for k in range(3)])
        cells = write_shape([f"a{k}" for k in range(sum(ranks))], ranks)
        self.spec = f"{axis}; {cells} => {cells}"
        self.line_axis = sum(ranks) - 1 if any(ranks) else None

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [int32]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        ordered, cells = map(widened, inputs)
        side: Any = self.side
        output_storage[0][0] = np.searchsorted(ordered, cells, side).astype(np.int32)

    def c_iterations(
        self, node: Apply, extents: Sequence[tuple[int, ...]]
    ) -> tuple[int, float] | None:
        """Return the number of cells, and the cycles of a search."""
        return prod(extents[1]), _STEP_CYCLES * (1 + extents[0][0].bit_length())

    def c_code(self, node: Apply) -> str:
        dtype, other = (each.dtype for each in node.inputs)
        if dtype is not other:
            raise NoNativeCode
        kind = c_type(dtype)
        if self.side == "left":
            is_before = "cell != cell ? at == at : at < cell"
        else:
            is_before = "at != at ? cell != cell : !(cell < at)"

        def compare(distance: str) -> str:
            # a product in place of a branch, which would be predicted wrongly half of the time
            at = f"const {kind} at = in0[low + {distance}];\n"
            return f"{at}const int64_t before = {is_before};\n"

        return (
            "for (int64_t k = begin; k < end; ++k) {\n"
            f"const {kind} cell = in1[k];\n"
            "int64_t low = 0, left = in0_shape[0];\n"
            f"while (left > 1) {{\nconst int64_t half = left / 2;\n{compare('half - 1')}"
            "low += before * half;\nleft -= half;\n}\n"
            f"if (left) {{\n{compare('0')}low += before;\n}}\n"
            "out0[k] = (int32_t)low;\n}"
        )


def argsort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Any:
    """Return the positions of the cells in order along an axis, as integers of 32 bits.

    Equal cells keep their order, and NaN counts as the greatest. Arguments are as for `sort`.
    """
    given, own, position = line_of("argsort", x, axis)
    with composite_operation("argsort", (given,)):
        return ArgSort(position, own.ranks, bool(descending))(given)


def sort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Any:
    """Return the cells in order along an axis; NaN counts as the greatest number.

    The gradient of a cell flows to its place in `x`.

    Args:
        axis: The axis, counted in buffer order, from the end if negative; None for all cells along
            one axis.
        descending: True for the greatest cell first; equal cells keep their order.
    """
    given, own, position = line_of("sort", x, axis)
    with composite_operation("sort", (given,)):
        order = ArgSort(position, own.ranks, bool(descending))(given)
        return TakeAlongAxis(position, own.ranks)(given, order)


def topk(x: Any, k: int, axis: int = -1, *, largest: bool = True) -> Any:
    """Return the `k` greatest cells along an axis, the greatest first, and their positions.

    Args:
        k: The number of cells, at most the size of the axis.
        largest: False for the least cells, the least first.
    """
    given, own, position = line_of("topk", x, axis)
    size = own.size(position)
    most = k if size is None else size
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 or k > most:
        raise UsageError.at_caller(
            "topk takes a number of cells from 1 to the size of the axis.",
            found=f"k={k!r} of {size}",
            fix="oc.argsort orders all cells" if size is None else f"k={size}, or axis= of another",
        )
    few = size is not None and (k <= _FEW_CELLS or 4 * k <= size)
    with composite_operation("topk", (given,)):
        order = (
            TopPositions(position, own.ranks, int(k), bool(largest))(given)
            if few
            else ArgSort(position, own.ranks, bool(largest))(given)
        )
        # positions that the op has written
        ordered = TakeAlongAxis(position, own.ranks)(given, order)
    if few:
        return ordered, order
    if k == size:
        return ordered, order
    parts = f"{own.replaced({position: 'taken^rest'})} => {own.replaced({position: 'taken'})}"
    taken = {"taken": int(k)}
    return move("topk", ordered, parts, taken), move("topk", order, parts, taken)


def searchsorted(a: Any, v: Any, *, side: str = "left") -> Any:
    """Return the positions at which cells would keep an axis in ascending order, as integers of 32
    bits; NaN counts as the greatest number.

    Args:
        a: A tensor of one axis, in ascending order.
        v: The cells, of any shape, in the number format of `a`.
        side: "left" for the position before cells of `a` that equal a cell of `v`, "right" for the
            position after them.

    Raises:
        UsageError: if `a` has another number of axes than one, or `side` is neither.
    """
    ordered = operand(a, "searchsorted")
    cells = as_tensor(operand(v, "searchsorted"), ordered.session)
    own, other = axes_of(ordered, "searchsorted"), axes_of(cells, "searchsorted")
    if len(own) != 1 or side not in ("left", "right"):
        raise UsageError.at_caller(
            'searchsorted takes one axis in order, and side="left" or side="right".',
            found=f"{len(own)} axes, side={side!r}",
            fix="count the cells below: oc.sum(a < oc.expand_dims(v, -1), -1) for rows in order",
        )
    if sized_axes_of(ordered, "searchsorted").extent(0) is not None:
        return _count_before(ordered, own, cells, other, side)
    if len(other) and sized_axes_of(cells, "searchsorted").extent(-1) is not None:
        return squeeze(searchsorted(ordered, expand_dims(cells, -1), side=side), -1)
    return SearchSorted(own.ranks.index(1), other.ranks, side)(ordered, cells)


def _count_before(ordered: Tensor, own: Axes, cells: Tensor, other: Axes, side: str) -> Tensor:
    """Return the number of cells before each cell along an axis of an extent at run time."""
    batch, output, inputs = other.ranks
    pairs = write_shape([*other.names, "before"], (batch, output, inputs + 1))
    spec = f"{own.replaced({0: 'before'})}; {other.spec} => {pairs}"
    at, cell = (
        apply(each, (ordered, cells), spec, name="searchsorted")
        for each in (pointwise.first, pointwise.second)
    )
    if side == "left":
        is_before = pointwise.where(isnan(cell), pointwise.equal(at, at), pointwise.less(at, cell))
    else:
        is_before = pointwise.where(
            isnan(at), isnan(cell), pointwise.logical_not(pointwise.less(cell, at))
        )
    result: Tensor = reductions.sum(pointwise.cast(is_before, int32), axis=-1)
    return result


def median(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the middle cell along an axis, or the mean of the two middle cells; NaN if any is NaN.

    Args:
        axis: The axis, whose size must be known; all cells when not given.
        keepdims: True to leave an axis of size 1.
    """
    given, own, position = line_of("median", x, axis)
    own = sized_axes_of(given, "median")
    size = own.known_size(position)
    if size == 0:
        raise ShapeError.at_caller("A median is one of the cells.", found="none")
    rank = len(axes_of(operand(x, "median"), "median")) if axis is None and keepdims else 0
    ordered = sort(given, position)
    kept = own.replaced({position: "0" if keepdims and axis is not None else None})

    def cell(place: int) -> Any:
        return move("median", ordered, f"{own.replaced({position: str(place)})} => {kept}")

    low, high, last = cell((size - 1) // 2), cell(size // 2), cell(size - 1)
    if not given.dtype.is_float:
        total = pointwise.add(low, high, dtype=reduced_format(given.dtype))
        return _of_rank(total / 2.0, rank)
    middle = low if size % 2 else 0.5 * low + 0.5 * high
    return _of_rank(pointwise.where(isnan(last), last, middle), rank)


def _of_rank(x: Any, rank: int) -> Any:
    return functions["reshape"](x, *[1] * rank) if rank else x
