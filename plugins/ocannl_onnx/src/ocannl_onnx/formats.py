"""The element types of ONNX, and the number formats that carry them.

A format without a counterpart in the core is *carried* by one that holds all of its numbers:
`float4_e2m1fn` by `float32`, `int2` by `int8`. Conversions round to the format of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Format:
    """An element type of ONNX.

    Attributes:
        name: The name of NumPy or `ml_dtypes`.
        number: The value of `TensorProto.DataType`.
        carrier: The number format of the core in which operations take its numbers; empty for
            strings and complex numbers, which only exist as known values.
        bits: Bits per element in a file.
    """

    name: str
    number: int
    carrier: str
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        if self.name == "string":
            return np.dtype(object)
        return np.dtype(getattr(ml_dtypes, self.name, None) or self.name)

    @property
    def is_carried(self) -> bool:
        """True if the core computes with another format in place of this one."""
        return bool(self.carrier) and self.carrier != self.name

    @property
    def is_float(self) -> bool:
        return "float" in self.name

    @property
    def is_unsigned(self) -> bool:
        return self.name.startswith("uint")

    @property
    def is_integer(self) -> bool:
        return "int" in self.name

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        if self.is_unsigned:
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1


_ALL = (
    Format("float32", 1, "float32", 32),
    Format("uint8", 2, "uint8", 8),
    Format("int8", 3, "int8", 8),
    Format("uint16", 4, "uint16", 16),
    Format("int16", 5, "int16", 16),
    Format("int32", 6, "int32", 32),
    Format("int64", 7, "int64", 64),
    Format("string", 8, "", 0),
    Format("bool", 9, "bool", 8),
    Format("float16", 10, "float16", 16),
    Format("float64", 11, "float64", 64),
    Format("uint32", 12, "uint32", 32),
    Format("uint64", 13, "uint64", 64),
    Format("complex64", 14, "", 64),
    Format("complex128", 15, "", 128),
    Format("bfloat16", 16, "bfloat16", 16),
    Format("float8_e4m3fn", 17, "float8_e4m3fn", 8),
    Format("float8_e4m3fnuz", 18, "float32", 8),
    Format("float8_e5m2", 19, "float8_e5m2", 8),
    Format("float8_e5m2fnuz", 20, "float32", 8),
    Format("uint4", 21, "uint8", 4),
    Format("int4", 22, "int8", 4),
    Format("float4_e2m1fn", 23, "float32", 4),
    Format("float8_e8m0fnu", 24, "float32", 8),
    Format("uint2", 25, "uint8", 2),
    Format("int2", 26, "int8", 2),
)
_BY_NUMBER = {each.number: each for each in _ALL}
_BY_NAME = {each.name: each for each in _ALL}


def format_numbered(number: int) -> Format | None:
    """Return the format of a `TensorProto.DataType`; None if it is not known."""
    return _BY_NUMBER.get(number)


def format_named(name: str) -> Format:
    return _BY_NAME[name]


def format_of(array: np.ndarray[Any, Any]) -> Format | None:
    """Return the format of an array's cells; None if ONNX has none."""
    if array.dtype.kind in "OUST":
        return _BY_NAME["string"]
    return _BY_NAME.get(array.dtype.name)
