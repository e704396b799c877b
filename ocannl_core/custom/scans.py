"""Scans and sorting along an axis: ops of linear time, and of n log n, on every backend.

Formats narrower than float32 accumulate in float32 and are rounded cell by cell; on compiled
backends they are computed by NumPy, the others by C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ocannl_core import dtypes
from ocannl_core.custom.op import Apply, NoNativeCode, Op
from ocannl_core.custom.protocols import Array, Storage
from ocannl_core.dtypes import DType, int32
from ocannl_core.errors import ShapeError, UsageError
from ocannl_core.origin import caller_location
from ocannl_core.tensor import pointwise_operations as pointwise
from ocannl_core.tensor.activations import isnan
from ocannl_core.tensor.axes import Axes, axes_of, operand, write_shape
from ocannl_core.tensor.operator_bindings import functions
from ocannl_core.tensor.precision import reduced_format
from ocannl_core.tensor.rearrangement import flatten, move, sized_axes_of
from ocannl_core.tensor.tensor import Tensor

_TYPES = {
    dtypes.float32: "float",
    dtypes.float64: "double",
    dtypes.int8: "int8_t",
    dtypes.int16: "int16_t",
    dtypes.int32: "int32_t",
    dtypes.int64: "int64_t",
    dtypes.bool_: "uint8_t",
    dtypes.uint8: "uint8_t",
    dtypes.uint16: "uint16_t",
    dtypes.uint32: "uint32_t",
    dtypes.uint64: "uint64_t",
}
"""Formats that C code computes in, and their types."""


_BLOCK = 64
"""The cells that `topk` compares with the last of the first cells before it looks at each."""

_FEW_CELLS = 64
"""The greatest number of cells that `topk` keeps in order in place of sorting all of them."""


def _type(dtype: DType) -> str:
    if dtype not in _TYPES:
        raise NoNativeCode
    return _TYPES[dtype]


def _wide(x: Array) -> Array:
    """Return an array of narrow floats in float32, others as they are."""
    is_wide = x.dtype.kind in "iu" or x.dtype in (np.float32, np.float64)
    return x if is_wide else x.astype(np.float32)


class _AlongAxis(Op):
    """The base of ops along one axis, for tensors of known numbers of axes.

    Attributes:
        axis: The axis, in buffer order.
        ranks: The numbers of batch, output and input axes.
    """

    __props__: tuple[str, ...] | None = ("axis", "ranks")

    def __init__(self, axis: int, ranks: tuple[int, int, int]) -> None:
        self.axis = axis
        self.ranks = ranks

    def _shape(self, label: str = "n") -> str:
        names = [f"a{position}" for position in range(sum(self.ranks))]
        names[self.axis] = label
        return write_shape(names, self.ranks)

    def _loops(self, body: str, **counts: str) -> str:
        """Return C code for every line along the axis, of the cells `first + k * inner`."""
        before = " * ".join(["1", *(f"in0_shape[{k}]" for k in range(self.axis))])
        after = [f"in0_shape[{k}]" for k in range(self.axis + 1, sum(self.ranks))]
        more = "".join(f"const int64_t {name} = {text};\n" for name, text in counts.items())
        return (
            f"const int64_t outer = {before}, n = in0_shape[{self.axis}];\n"
            f"const int64_t inner = {' * '.join(['1', *after])};\n{more}"
            "for (int64_t line = 0; line < outer * inner; ++line) {\n"
            "const int64_t first = line / inner * n * inner + line % inner;\n"
            f"{body}\n}}"
        )


# ----- scans --------------------------------------------------------------------------------------


class Scan(_AlongAxis):
    """A running sum, product, maximum or minimum.

    Attributes:
        kind: "sum", "prod", "max" or "min".
        is_reversed: True to run from the last cell to the first.
    """

    __props__ = ("kind", "axis", "ranks", "is_reversed")

    def __init__(
        self, kind: str, axis: int, ranks: tuple[int, int, int], is_reversed: bool = False
    ) -> None:
        super().__init__(axis, ranks)
        self.kind = kind
        self.is_reversed = is_reversed
        self.spec = f"{self._shape()} => {self._shape()}"

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        scans = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
        x = np.flip(inputs[0], self.axis) if self.is_reversed else inputs[0]
        wide = _wide(x)
        with np.errstate(all="ignore"):
            found = scans[self.kind].accumulate(wide, axis=self.axis, dtype=wide.dtype)
            found = found.astype(inputs[0].dtype)
        output_storage[0][0] = np.flip(found, self.axis) if self.is_reversed else found

    def c_code(self, node: Apply) -> str:
        dtype = node.inputs[0].dtype
        kind = _type(dtype)
        step = {
            "sum": f"({kind})(last + x)",
            "prod": f"({kind})(last * x)",
            "max": "last != last || last >= x ? last : x",
            "min": "last != last || last <= x ? last : x",
        }[self.kind]
        wraps = dtype.is_integer and self.kind in ("sum", "prod")
        symbol = {"sum": "+", "prod": "*"}.get(self.kind, "")
        if wraps:  # signed integers wrap around, as unsigned ones do in C
            step = f"({kind})((uint64_t)last {symbol} (uint64_t)x)"
        at = "first + (n - 1 - k) * inner" if self.is_reversed else "first + k * inner"
        return self._loops(
            f"{kind} last = 0;\n"
            "for (int64_t k = 0; k < n; ++k) {\n"
            f"const {kind} x = in0[{at}];\n"
            f"last = k == 0 ? x : {step};\n"
            f"out0[{at}] = last;\n}}"
        )

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        (x,), (g,) = inputs, output_gradients
        if self.kind == "sum":
            return [Scan("sum", self.axis, self.ranks, not self.is_reversed)(g)]
        return [ScanGradient(self.kind, self.axis, self.ranks)(x, g)]


class ScanGradient(_AlongAxis):
    """The gradient of a running product, or of a running maximum or minimum.

    For products, `dx[i] = (x[0] * ... * x[i-1]) * s[i]` with `s[i] = g[i] + x[i+1] * s[i+1]`:
    nothing is divided, so that zeros have their gradient, too. A maximum passes its gradient to the
    first cell that has it.
    """

    __props__ = ("kind", "axis", "ranks")

    def __init__(self, kind: str, axis: int, ranks: tuple[int, int, int]) -> None:
        super().__init__(axis, ranks)
        self.kind = kind
        self.spec = f"{self._shape()}; {self._shape()} => {self._shape()}"

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        x, g = (np.moveaxis(_wide(each), self.axis, 0) for each in inputs)
        found = np.zeros_like(x)
        with np.errstate(all="ignore"):
            if self.kind == "prod":
                self._of_products(x, g, found)
            else:
                self._of_extremes(x, g, found)
            output_storage[0][0] = np.moveaxis(found, 0, self.axis).astype(inputs[0].dtype)

    def _of_products(self, x: Array, g: Array, found: Array) -> None:
        rest = np.zeros_like(x[:1].sum(axis=0))
        for k in range(len(x))[::-1]:
            rest = g[k] + (x[k + 1] * rest if k + 1 < len(x) else 0)
            found[k] = rest
        before = np.ones_like(rest)
        for k in range(len(x)):
            found[k] *= before
            before = before * x[k]

    def _of_extremes(self, x: Array, g: Array, found: Array) -> None:
        place = np.zeros(x.shape[1:], np.int64)
        for k in range(len(x)):
            last = np.take_along_axis(x, place[None], axis=0)[0]
            stays = last >= x[k] if self.kind == "max" else last <= x[k]
            place = np.where(np.isnan(last) | stays, place, k)
            chosen = np.take_along_axis(found, place[None], axis=0) + g[k]
            np.put_along_axis(found, place[None], chosen, axis=0)

    def c_code(self, node: Apply) -> str:
        kind = _type(node.inputs[0].dtype)
        if self.kind == "prod":
            return self._loops(
                f"{kind} rest = 0, before = 1;\n"
                "for (int64_t k = n - 1; k >= 0; --k) {\n"
                "const int64_t at = first + k * inner;\n"
                "rest = in1[at] + (k + 1 < n ? in0[at + inner] * rest : 0);\n"
                "out0[at] = rest;\n}\n"
                "for (int64_t k = 0; k < n; ++k) {\n"
                "const int64_t at = first + k * inner;\n"
                "out0[at] *= before;\nbefore *= in0[at];\n}"
            )
        symbol = ">=" if self.kind == "max" else "<="
        return self._loops(
            "int64_t place = first;\n"
            "for (int64_t k = 0; k < n; ++k) out0[first + k * inner] = 0;\n"
            "for (int64_t k = 0; k < n; ++k) {\n"
            f"const {kind} last = in0[place], x = in0[first + k * inner];\n"
            f"if (last == last && !(last {symbol} x)) place = first + k * inner;\n"
            "out0[place] += in1[first + k * inner];\n}"
        )


# ----- order --------------------------------------------------------------------------------------


class ArgSort(_AlongAxis):
    """The positions of the cells in ascending or descending order, stable; NaN is the greatest.

    Attributes:
        descending: True for the greatest cell first.
    """

    __props__ = ("axis", "ranks", "descending")

    def __init__(self, axis: int, ranks: tuple[int, int, int], descending: bool) -> None:
        super().__init__(axis, ranks)
        self.descending = descending
        self.spec = f"{self._shape()} => {self._shape()}"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [int32]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        x = _wide(inputs[0])
        if self.descending:
            backwards = np.argsort(np.flip(x, self.axis), axis=self.axis, kind="stable")
            order = x.shape[self.axis] - 1 - np.flip(backwards, self.axis)
        else:
            order = np.argsort(x, axis=self.axis, kind="stable")
        output_storage[0][0] = order.astype(np.int32)

    c_headers = ("<stdlib.h>", "<string.h>")

    def c_code(self, node: Apply) -> str:
        """Return a radix sort of the keys, digit by digit of 8 bits; of few cells, by insertion."""
        dtype = node.inputs[0].dtype
        word = _word(dtype)
        loops = self._loops(
            f"struct pair {{ {word} key; int32_t at; }} *from = memory, *into = from + n;\n"
            "memset(counts, 0, sizeof counts);\n"
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
            f"for (int digit = 0; n > few && digit < {dtype.nbytes}; ++digit) {{\n"
            "int32_t *const count = counts[digit];\n"
            "if (count[from[0].key >> 8 * digit & 255] == n) continue;\n"
            "int32_t start = 0;\n"
            "for (int value = 0; value < 256; ++value) {\n"
            "const int32_t equal = count[value];\n"
            "count[value] = start;\n"
            "start += equal;\n}\n"
            "for (int64_t k = 0; k < n; ++k)\n"
            "into[count[from[k].key >> 8 * digit & 255]++] = from[k];\n"
            "struct pair *const other = from;\nfrom = into;\ninto = other;\n}\n"
            "for (int64_t k = 0; k < n; ++k) out0[first + k * inner] = from[k].at;"
        )
        count = f"in0_shape[{self.axis}]"
        return (
            "enum { few = 24 };\n"
            f"int32_t counts[{dtype.nbytes}][256];\n"
            f"void *const memory = malloc(4 * sizeof({word}) * (size_t)({count} + 1));\n"
            f"if (memory == NULL) abort();\n{loops}\nfree(memory);"
        )


def _word(dtype: DType) -> str:
    """Return the unsigned type of the keys of a format."""
    _type(dtype)
    return "uint64_t" if dtype.nbytes == 8 else "uint32_t"


def _key(dtype: DType, cell: str, is_reversed: bool) -> str:
    """Return C code that declares `key`, unsigned and in the order of the cells.

    Equal cells have equal keys, zeros of both signs and all NaN included.
    """
    word = _word(dtype)
    kind, sign = _type(dtype), f"({word})1 << {8 * dtype.nbytes - 1}"
    bits = f"(u{kind})" if kind.startswith("int") else ""
    lines = [f"const {kind} cell = {cell};", f"{word} key = ({word}){bits}cell;"]
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


class TopPositions(_AlongAxis):
    """The positions of the first few cells in ascending or descending order, as `ArgSort` has them.

    One pass that keeps the first cells so far in order: of random cells, few displace another one.

    Attributes:
        count: The number of cells.
        descending: True for the greatest cells.
    """

    __props__ = ("axis", "ranks", "count", "descending")

    def __init__(
        self, axis: int, ranks: tuple[int, int, int], count: int, descending: bool
    ) -> None:
        super().__init__(axis, ranks)
        self.count = count
        self.descending = descending
        self.spec = f"{self._shape()} => {self._shape(str(count))}"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [int32]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        order: list[Storage] = [[None]]
        ArgSort(self.axis, self.ranks, self.descending).perform(node, inputs, order)
        output_storage[0][0] = np.take(order[0][0], np.arange(self.count), axis=self.axis)

    c_headers = ("<string.h>",)

    def c_code(self, node: Apply) -> str:
        dtype = node.inputs[0].dtype
        return self._loops(
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
            f"for (int64_t k = 0; k < {self.count}; ++k)\n"
            f"out0[line / inner * {self.count} * inner + line % inner + k * inner] = found[k];"
        )


class TakeAlong(_AlongAxis):
    """The cells at positions along an axis, position by position."""

    def __init__(self, axis: int, ranks: tuple[int, int, int]) -> None:
        super().__init__(axis, ranks)
        self.spec = f"{self._shape()}; {self._shape('m')} => {self._shape('m')}"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [given[0]]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        output_storage[0][0] = np.take_along_axis(inputs[0], inputs[1], axis=self.axis)

    def c_code(self, node: Apply) -> str:
        return self._loops(
            "const int64_t start = line / inner * m * inner + line % inner;\n"
            "for (int64_t k = 0; k < m; ++k)\n"
            "out0[start + k * inner] = in0[first + in1[start + k * inner] * inner];",
            m=f"in1_shape[{self.axis}]",
        )

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        x, positions = inputs
        return [PutAlong(self.axis, self.ranks)(x, positions, output_gradients[0]), None]


class PutAlong(_AlongAxis):
    """Zeros of the shape of the first operand, to which cells are added at positions."""

    def __init__(self, axis: int, ranks: tuple[int, int, int]) -> None:
        super().__init__(axis, ranks)
        taken = self._shape("m")
        self.spec = f"{self._shape()}; {taken}; {taken} => {self._shape()}"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [given[0]]

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        return [None, None, TakeAlong(self.axis, self.ranks)(output_gradients[0], inputs[1])]

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        x, positions, cells = inputs
        found = np.zeros(x.shape, _wide(x).dtype)
        places: list[Array] = list(np.indices(positions.shape))
        places[self.axis] = positions
        np.add.at(found, tuple(places), _wide(cells))
        output_storage[0][0] = found.astype(x.dtype)

    def c_code(self, node: Apply) -> str:
        _type(node.inputs[0].dtype)
        return self._loops(
            "const int64_t start = line / inner * m * inner + line % inner;\n"
            "for (int64_t k = 0; k < n; ++k) out0[first + k * inner] = 0;\n"
            "for (int64_t k = 0; k < m; ++k)\n"
            "out0[first + in1[start + k * inner] * inner] += in2[start + k * inner];",
            m=f"in1_shape[{self.axis}]",
        )


# ----- functions ----------------------------------------------------------------------------------


def _line(name: str, x: Any, axis: int | None) -> tuple[Tensor, Axes, int]:
    """Return a tensor, its axes, and the position of one; all cells in one row for None."""
    given: Tensor = operand(x, name) if axis is not None else flatten(operand(x, name))
    own = axes_of(given, name)
    return given, own, own.position(0 if axis is None else axis)


def _scan(kind: str, x: Any, axis: int | None) -> Any:
    given, own, position = _line(f"cum{kind}", x, axis)
    if kind in ("sum", "prod") and reduced_format(given.dtype) is not given.dtype:
        given = pointwise.cast(given, reduced_format(given.dtype))
    return Scan(kind, position, own.ranks)(given)


def cumsum(x: Any, axis: int | None = None) -> Any:
    """Return the sums of each cell and those before it along an axis; of all cells in row-major
    order when none is given.
    """
    return _scan("sum", x, axis)


def cumprod(x: Any, axis: int | None = None) -> Any:
    """Return the products of each cell and those before it along an axis."""
    return _scan("prod", x, axis)


def cummax(x: Any, axis: int | None = None) -> Any:
    """Return the greatest of each cell and those before it along an axis; NaN after the first."""
    return _scan("max", x, axis)


def cummin(x: Any, axis: int | None = None) -> Any:
    """Return the least of each cell and those before it along an axis; NaN after the first."""
    return _scan("min", x, axis)


def argsort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Any:
    """Return the positions of the cells in order along an axis, as integers of 32 bits.

    Equal cells keep their order, and NaN counts as the greatest.
    """
    given, own, position = _line("argsort", x, axis)
    return ArgSort(position, own.ranks, bool(descending))(given)


def sort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Any:
    """Return the cells in order along an axis; NaN counts as the greatest number."""
    given, own, position = _line("sort", x, axis)
    order = ArgSort(position, own.ranks, bool(descending))(given)
    return TakeAlong(position, own.ranks)(given, order)


def topk(x: Any, k: int, axis: int = -1, *, largest: bool = True) -> Any:
    """Return the `k` greatest cells along an axis, the greatest first, and their positions.

    Args:
        x: The tensor.
        k: The number of cells, at most the size of the axis.
        axis: The axis.
        largest: False for the least cells, the least first.
    """
    given, own, position = _line("topk", x, axis)
    size = own.size(position)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 or k > (size or k):
        raise UsageError(
            "topk takes a number of cells from 1 to the size of the axis.",
            found=f"k={k!r} of {size}",
            where=str(caller_location() or ""),
        )
    if size is not None and k <= _FEW_CELLS:
        order = TopPositions(position, own.ranks, int(k), bool(largest))(given)
        return TakeAlong(position, own.ranks)(given, order), order
    order = ArgSort(position, own.ranks, bool(largest))(given)
    if k != size:
        parts = f"{own.replaced({position: 'taken^rest'})} => {own.replaced({position: 'taken'})}"
        order = move("topk", order, parts, {"taken": int(k)})
    return TakeAlong(position, own.ranks)(given, order), order


def median(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the middle cell along an axis, or the mean of the two in the middle; NaN if one is.

    The size of the axis must be known.
    """
    given, own, position = _line("median", x, axis)
    own = sized_axes_of(given, "median")
    size = own.known_size(position)
    if size == 0:
        raise ShapeError(
            "A median is one of the cells.", found="none", where=str(caller_location() or "")
        )
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


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    cumsum,
    cumprod,
    cummax,
    cummin,
    argsort,
    sort,
    topk,
    median,
)

functions.update({function.__name__: function for function in _FUNCTIONS})
