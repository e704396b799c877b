"""The number formats of results."""

from __future__ import annotations

from collections.abc import Sequence

from ..notation import PartsAxis, Unrelated, axes_of, names_of, parse
from ..reference import Call
from .bounds import FORMATS, NumberFormat, promoted

SHORT = {"int8": "int32", "int16": "int32", "uint8": "uint32"}
"""The formats of sums along axes of formats shorter than 32 bits."""

WIDER = {
    "bfloat16": ("float32", "float64"),
    "float16": ("float32",),
    "float8_e5m2": ("float16", "bfloat16", "float32"),
    "float8_e4m3fn": ("float16", "bfloat16", "float32"),
    "int16": ("int32",),
    "int8": ("int16", "int32"),
    "uint8": ("int16", "uint32"),
}
"""Formats that hold all numbers of a format."""


def result_format(call: Call, operands: Sequence[NumberFormat]) -> NumberFormat:
    """Return the format of a result."""
    if call.format:
        return FORMATS[call.format]
    if call.operation == "cast":
        return FORMATS[call.spec]
    form = promoted(*operands[call.operation == "where" :])
    return FORMATS[SHORT.get(form.name, form.name)] if _adds_along_axes(call) else form


def _adds_along_axes(call: Call) -> bool:
    if call.operation == "matmul":
        return True
    if call.operation not in ("einsum", "outer_sum"):
        return False
    operands, result = parse(call.spec, call.context)
    read = [axis for each in operands for axis in axes_of(each) if not isinstance(axis, PartsAxis)]
    kept = {name for axis in axes_of(result) for name in names_of(axis)}
    rows = {row.variable for each in operands for row in each if row.variable is not None}
    return (
        any(isinstance(axis, Unrelated) for axis in read)
        or any(name not in kept for axis in read for name in names_of(axis))
        or not rows <= {row.variable for row in result}
    )
