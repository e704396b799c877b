"""Sorting along an axis: ops of time n log n on every backend, stable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ocannl_core.custom.along_axis import AlongAxis, c_type, line_of, widened
from ocannl_core.custom.op import Apply
from ocannl_core.custom.protocols import Array, Storage
from ocannl_core.dtypes import DType, int32
from ocannl_core.errors import ShapeError, UsageError
from ocannl_core.origin import caller_location
from ocannl_core.tensor import pointwise_operations as pointwise
from ocannl_core.tensor.activations import isnan
from ocannl_core.tensor.axes import axes_of, operand
from ocannl_core.tensor.operator_bindings import functions
from ocannl_core.tensor.rearrangement import move, sized_axes_of
from ocannl_core.tensor.tensor import Tensor


class ArgSort(AlongAxis):
    """The positions of the cells in ascending or descending order, stable; NaN is the greatest.

    Attributes:
        descending: True for the greatest cell first.
    """

    __props__ = ("axis", "ranks", "descending")

    def __init__(self, axis: int, ranks: tuple[int, int, int], descending: bool) -> None:
        super().__init__(axis, ranks)
        self.descending = descending
        self.spec = f"{self.shape_text()} => {self.shape_text()}"

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

    c_headers = ("<stdlib.h>",)

    def c_code(self, node: Apply) -> str:
        kind = c_type(node.inputs[0].dtype)
        first = "b < a || (a != a && b == b)" if self.descending else "a < b || (b != b && a == a)"
        # of two runs, the right one is ahead only where its cell is strictly before the left one
        ahead = first.replace("a", "_").replace("b", "a").replace("_", "b")
        sort = (
            "for (int64_t k = 0; k < n; ++k) from[k] = (int32_t)k;\n"
            "for (int64_t run = 1; run < n; run *= 2) {\n"
            "for (int64_t start = 0; start < n; start += 2 * run) {\n"
            "const int64_t middle = start + run < n ? start + run : n;\n"
            "const int64_t stop = start + 2 * run < n ? start + 2 * run : n;\n"
            "int64_t left = start, right = middle;\n"
            "for (int64_t k = start; k < stop; ++k) {\n"
            "int takes_right = left == middle;\n"
            "if (left < middle && right < stop) {\n"
            f"const {kind} a = in0[first + from[left] * inner];\n"
            f"const {kind} b = in0[first + from[right] * inner];\n"
            f"takes_right = {ahead};\n}}\n"
            "into[k] = from[takes_right ? right++ : left++];\n}\n}\n"
            "int32_t *const other = from;\nfrom = into;\ninto = other;\n}\n"
            "for (int64_t k = 0; k < n; ++k) out0[first + k * inner] = from[k];"
        )
        loops = self.lines(sort)
        count = f"in0_shape[{self.axis}]"
        return (
            f"int32_t *const memory = malloc(sizeof(int32_t) * 2 * (size_t)({count} + 1));\n"
            "if (memory == NULL) abort();\n"
            f"int32_t *from = memory, *into = memory + {count};\n{loops}\nfree(memory);"
        )


class TakeAlong(AlongAxis):
    """The cells at positions along an axis, position by position."""

    def __init__(self, axis: int, ranks: tuple[int, int, int]) -> None:
        super().__init__(axis, ranks)
        self.spec = f"{self.shape_text()}; {self.shape_text('m')} => {self.shape_text('m')}"

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

    def __init__(self, axis: int, ranks: tuple[int, int, int]) -> None:
        super().__init__(axis, ranks)
        taken = self.shape_text("m")
        self.spec = f"{self.shape_text()}; {taken}; {taken} => {self.shape_text()}"

    def output_dtypes(self, *given: DType) -> Sequence[DType]:
        return [given[0]]

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        return [None, None, TakeAlong(self.axis, self.ranks)(output_gradients[0], inputs[1])]

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


def argsort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Any:
    """Return the positions of the cells in order along an axis, as integers of 32 bits.

    Equal cells keep their order, and NaN counts as the greatest.
    """
    given, own, position = line_of("argsort", x, axis)
    return ArgSort(position, own.ranks, bool(descending))(given)


def sort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Any:
    """Return the cells in order along an axis; NaN counts as the greatest number."""
    given, own, position = line_of("sort", x, axis)
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
    given, own, position = line_of("topk", x, axis)
    size = own.size(position)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 or k > (size or k):
        raise UsageError(
            "topk takes a number of cells from 1 to the size of the axis.",
            found=f"k={k!r} of {size}",
            where=str(caller_location() or ""),
        )
    order = ArgSort(position, own.ranks, bool(largest))(given)
    if k != size:
        parts = f"{own.replaced({position: 'taken^rest'})} => {own.replaced({position: 'taken'})}"
        order = move("topk", order, parts, {"taken": int(k)})
    return TakeAlong(position, own.ranks)(given, order), order


def median(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the middle cell along an axis, or the mean of the two in the middle; NaN if one is.

    The size of the axis must be known.
    """
    given, own, position = line_of("median", x, axis)
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
        return _of_rank((low + high) / 2.0, rank)
    middle = low if size % 2 else 0.5 * low + 0.5 * high
    return _of_rank(pointwise.where(isnan(last), last, middle), rank)


def _of_rank(x: Any, rank: int) -> Any:
    return functions["reshape"](x, *[1] * rank) if rank else x


_FUNCTIONS: tuple[Callable[..., Any], ...] = (argsort, sort, topk, median)

functions.update({function.__name__: function for function in _FUNCTIONS})
