"""The base of ops along one axis, such as scans and sorts.

Formats narrower than float32 accumulate in float32 and are rounded cell by cell; on compiled
backends they are computed by NumPy, the others by C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.tensor.custom.op import Apply, NoNativeCode, Op
from ocannl_core.tensor.custom.variables import Array
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import Axes, axes_of, operand, write_shape
from ocannl_core.tensor.operations.rearrangement import flatten

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


def c_type(dtype: DType) -> str:
    if dtype not in _TYPES:
        raise NoNativeCode
    return _TYPES[dtype]


def widened(x: Array) -> Array:
    """Return an array of narrow floats in float32, other arrays as they are."""
    is_wide = x.dtype.kind in "iu" or x.dtype in (np.float32, np.float64)
    return x if is_wide else x.astype(np.float32)


class AlongAxis(Op):
    """The base of ops along one axis, for tensors of known numbers of axes.

    Attributes:
        axis: The axis, in buffer order.
        ranks: The numbers of batch, output and input axes.
        sizes: The labels of the axis in inputs and outputs.
        cycles: The cycles of C code for each cell of a line.
    """

    __props__: tuple[str, ...] | None = ("axis", "ranks")
    sizes: str = "n => n"
    cycles: float = 4.0

    def __init__(self, axis: int, ranks: tuple[int, int, int]) -> None:
        self.axis = axis
        self.ranks = ranks
        self.line_axis = axis

    @cached_property
    def spec(self) -> str:  # type: ignore[override]
        """The shapes: `n; m => m` stands for `a0, n; a0, m => a0, m` along the second axis."""

        def shape(label: re.Match[str]) -> str:
            names = [f"a{position}" for position in range(sum(self.ranks))]
            names[self.axis] = label[0]
            return write_shape(names, self.ranks)

        return re.sub(r"\w+", shape, self.sizes)

    def counts(self, **more: str) -> str:
        """Return C declarations of the numbers of cells: `n` along the axis, of lines of the cells
        `first + k * inner`.
        """
        dims = [f"in0_shape[{k}]" for k in range(sum(self.ranks))]
        values = {"n": dims[self.axis], "inner": " * ".join(["1", *dims[self.axis + 1 :]])}
        texts = [f"const int64_t {name} = {text};\n" for name, text in (values | more).items()]
        return "".join(texts)

    def c_iterations(
        self, node: Apply, extents: Sequence[tuple[int, ...]]
    ) -> tuple[int, float] | None:
        """Return the number of lines, and the cycles of each."""
        outer, n, inner = self.split(extents[0])
        return outer * inner, self.cycles * max(n, 1)

    def split(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the numbers of cells of a shape before the axis, along it, and behind it."""
        return prod(shape[: self.axis]), shape[self.axis], prod(shape[self.axis + 1 :])

    def lines(self, body: str, **more: str) -> str:
        """Return C code for the lines along the axis from `begin` to `end`."""
        return (
            f"{self.counts(**more)}"
            "for (int64_t line = begin; line < end; ++line) {\n"
            "const int64_t first = line / inner * n * inner + line % inner;\n"
            f"{body}\n}}"
        )


def line_of(name: str, x: Any, axis: int | None) -> tuple[Tensor, Axes, int]:
    """Return a tensor, its axes, and the position of one; all cells in one row for None."""
    given: Tensor = operand(x, name) if axis is not None else flatten(operand(x, name))
    own = axes_of(given, name)
    return given, own, own.position(0 if axis is None else axis)
