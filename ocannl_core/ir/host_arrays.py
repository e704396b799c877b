"""Check and conversions of host data for tensors, without silent loss, overflow or NaN."""

from __future__ import annotations

import sys
from numbers import Integral, Real
from typing import Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import TransferError, UsageError
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers.dtypes import ALL, PACKED, DType, Kind, extremes

Array = np.ndarray[Any, Any]


def interior(array: Array, info: NodeInfo) -> Array:
    """Return the view of a stored array that leaves out its margins."""
    if not info.padding:
        return array
    axes = zip(info.dims, info.padding, strict=True)
    view: Array = array[tuple(slice(margin.left, margin.left + n) for n, margin in axes)]
    return view


def memory_of(cells: Array, info: NodeInfo) -> Array:
    """Return all cells of a node, margins included, as its memory has them. In a packed format two
    are in a byte, the first one in the low bits, in row-major order over all axes.
    """
    if not info.dtype.is_packed:
        return np.ascontiguousarray(cells).reshape(info.buffer_dims)
    flat = np.zeros(2 * info.nbytes, np.uint8)
    flat[: info.size] = np.ascontiguousarray(cells).reshape(-1).view(np.uint8) & 15
    packed: Array = flat[::2] | flat[1::2] << 4
    return packed


def cells_in(memory: Array, info: NodeInfo) -> Array:
    """Return the cells of a node, margins included, from its memory."""
    if not info.dtype.is_packed:
        return memory
    flat = np.empty(2 * info.nbytes, np.uint8)
    flat[::2], flat[1::2] = memory & 15, memory >> 4
    if info.dtype.kind is Kind.SIGNED:
        flat ^= 8
        flat -= 8
    cells: Array = flat[: info.size].view(info.dtype.numpy).reshape(info.buffer_dims)
    return cells


def refuse_nan(array: np.ndarray[Any, Any], where: str) -> None:
    """Check host data of a tensor for NaN. Infinities are accepted: masks contain them.

    Raises:
        TransferError: if a cell is NaN, unless the setting `allow_nan` is on.
    """
    if not (_is_real(array) and array.size):
        return
    with np.errstate(invalid="ignore"):
        if not np.isnan(array.min()) or settings.current().allow_nan:
            return  # the minimum is NaN if a cell is, and needs no memory: data may be large
        is_nan = np.isnan(array)
    is_native = array.dtype.kind == "f" and array.dtype.type.__module__ == "numpy"
    clean = "np.nan_to_num(array)" if is_native else "array[np.isnan(array)] = 0"
    raise TransferError(
        "Host data has no NaN: one of them makes every result that depends on it NaN.",
        found=f"{int(is_nan.sum())} of {array.size} cells{_first(is_nan)}",
        where=where,
        fix=f"clean the data, as with {clean}; "
        "where NaN is meant, OCANNL_ALLOW_NAN=1 or settings.overrides(allow_nan=True) lets it pass",
    )


def _first(is_wrong: Array) -> str:
    """Return the position of the first wrong cell, for a message."""
    if not is_wrong.ndim:
        return ""
    return f", the first at {[int(position) for position in np.argwhere(is_wrong)[0]]}"


def refuse_mask(value: object, where: str) -> None:
    """Check that no cell of host data is masked: NumPy drops masks, and masked values would be
    used.

    The data are an array, or lists of arrays and numbers.
    """
    if "numpy.ma" not in sys.modules:
        return  # no masked array exists yet, and the import is slow
    if isinstance(value, list | tuple):
        inner = (list, tuple, np.ma.MaskedArray)
        if any(issubclass(each, inner) for each in set(map(type, value))):
            for each in value:
                refuse_mask(each, where)
        return
    if not isinstance(value, np.ma.MaskedArray):
        return
    is_masked: Array = np.ma.getmaskarray(value)
    if is_masked.dtype.names:  # of records, field by field
        is_masked = np.array([any(cell) for cell in is_masked.ravel().tolist()])
    if is_masked.any():
        raise TransferError(
            "The cells of a tensor are numbers, and none is masked.",
            found=f"{int(is_masked.sum())} of {is_masked.size} cells masked{_first(is_masked)}",
            where=where,
            fix="give numbers for masked cells, as with array.filled(0); a mask is a tensor of its "
            "own, oc.tensor(np.ma.getmaskarray(array))",
        )


def packed_format(array: Array) -> DType | None:
    """Return the packed format of which an array of `ml_dtypes` has a cell in each byte."""
    return next((each for each in PACKED if each.name == array.dtype.name), None)


def numbers_of(array: Array, dtype: DType | None, where: str) -> Array:
    """Return an array with its number format, which NumPy's files do not keep for narrow floats:
    they load as bytes.

    Args:
        dtype: The format of the tensor, if it is known.

    Raises:
        TransferError: if the bytes may be numbers of several formats, or of none.
    """
    packed = packed_format(array)
    if packed is not None:
        values: Array = array.astype(packed.numpy)
        return values
    if array.dtype.type is not np.void or array.dtype.names is not None:
        return array
    formats = [each for each in ALL if each.is_foreign and each.nbytes == array.dtype.itemsize]
    found = dtype if dtype in formats else formats[0] if len(formats) == 1 else None
    takes_integers = dtype is not None and dtype.holds_integers
    if found is None or takes_integers:
        then = f".astype({dtype.source})" if dtype is not None and takes_integers else ""
        views = [f"array.view({each.source}){then}" for each in formats]
        raise TransferError(
            "Bytes have a number format, which NumPy's files lose if NumPy does not define it.",
            found=f"an array of dtype {array.dtype}, loaded from a file or made of bytes",
            where=where,
            fix=f"state it: {' or '.join(views)}" if views else "",
        )
    numbers: Array = array.view(found.numpy)
    return numbers


def check_kind(array: Array, dtype: DType, name: str) -> None:
    """Raise TransferError unless the array's kind of number can become the node's."""
    is_whole, is_real = array.dtype.kind in "iub", _is_real(array)
    if is_whole or (is_real and dtype.kind is Kind.FLOAT):
        return
    if is_real:
        raise TransferError(
            f"A tensor of {dtype} takes integers: fractions would be lost.",
            found=f"an array of dtype {array.dtype}",
            where=name,
            fix=f"convert it: array.astype({dtype.source}), or np.rint(array).astype("
            f"{dtype.source})",
        )
    # NumPy converts other kinds to its own formats only
    fix = f"convert it: array.astype({'np.float32' if dtype.is_foreign else dtype.source})"
    if array.dtype.names:
        fix = f"take one of its fields: array[{array.dtype.names[0]!r}]"
    elif array.dtype.kind == "c":
        fix = "take a part of it: array.real"
    raise TransferError(
        "The value of a tensor is an array of real numbers.",
        found=f"an array of dtype {array.dtype}",
        where=name,
        fix=fix,
    )


def _is_real(array: Array) -> bool:
    # some narrow floats of ml_dtypes report kind "V"; only theirs is a V dtype with a float's name
    return array.dtype.kind == "f" or str(array.dtype).startswith(("bfloat", "float"))


def plain_number(value: Real, where: object) -> int | float:
    """Return a number of any kind as a Python number: integers exactly, others rounded.

    Raises:
        UsageError: if no number format is large enough.
    """
    try:
        rounded = float(value)
    except OverflowError:
        raise UsageError(
            "The numbers of a program fit some number format.",
            found="a number beyond 1.8e308, the greatest of float64",
            where=str(where),
        ) from None
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, Integral) else rounded


def check_number(value: float, dtype: DType, name: object) -> None:
    """Raise TransferError unless a number fits an integer format; float formats round."""
    if not dtype.holds_integers:
        return
    if not (isinstance(value, Integral) or float(value).is_integer()):
        raise TransferError(
            f"A tensor of {dtype} takes integers: fractions would be lost.",
            found=f"{value}",
            where=str(name),
            fix="round it, or state a float format with dtype=",
        )
    least, greatest = extremes(dtype)
    if not least <= int(value) <= greatest:
        raise _beyond(dtype, f"{value}", str(name))


def convert(array: Array, dtype: DType, name: str) -> Array:
    numpy_dtype = dtype.numpy
    if array.dtype == numpy_dtype and not dtype.is_packed:
        return array
    if dtype.holds_integers:
        _check_range(array, dtype, name)
        return array.astype(numpy_dtype)
    try:
        with np.errstate(over="raise", invalid="ignore", under="ignore"):
            result = array.astype(numpy_dtype)
    except FloatingPointError:
        raise _overflow(array, dtype, name) from None
    if dtype.is_narrow and bool((~np.isfinite(result) & np.isfinite(array)).any()):
        # conversions to these formats do not report overflow by themselves
        raise _overflow(array, dtype, name)
    if dtype.is_narrow and not dtype.has_infinities:
        is_infinite = np.isinf(array)
        if is_infinite.any():
            raise TransferError(
                f"A tensor of {dtype} takes finite numbers: the format has no infinities, and NaN "
                "in their place.",
                found=f"{int(is_infinite.sum())} of {array.size} cells{_first(is_infinite)}",
                where=name,
                fix=f"clip the data to {dtype.greatest:g} in magnitude, or make the tensor with "
                "another dtype=",
            )
    return result


def _check_range(array: Array, dtype: DType, name: str) -> None:
    if array.size == 0 or array.dtype == np.bool_:
        return
    least, greatest = extremes(dtype)
    low, high = int(array.min()), int(array.max())
    if low < least or high > greatest:
        is_outside = (array < least) | (array > greatest)
        cells = f"{int(is_outside.sum())} of {array.size} cells do not fit{_first(is_outside)}"
        raise _beyond(dtype, f"numbers from {low} to {high}; {cells}", name)


def _beyond(dtype: DType, found: str, name: str) -> TransferError:
    least, greatest = extremes(dtype)
    return TransferError(
        f"Every number fits the tensor's format: {dtype} holds {least} to {greatest}.",
        found=found,
        where=name,
        fix="make the tensor with a wider dtype=",
    )


def _overflow(array: Array, dtype: DType, name: str) -> TransferError:
    finite: Any = array[np.isfinite(array)]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        overflows = ~np.isfinite(array.astype(dtype.numpy)) & np.isfinite(array)
    return TransferError(
        f"Every finite number stays finite in the tensor's format, {dtype}.",
        found=f"numbers up to {np.abs(finite.astype(np.float64)).max():.6g} in magnitude; "
        f"{int(overflows.sum())} of {array.size} cells do not fit{_first(overflows)}",
        where=name,
        fix="make the tensor with a wider dtype=, or scale or clip the data",
    )
