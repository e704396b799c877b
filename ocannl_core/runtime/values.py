"""The cells of one node between the host and a device: conversion, checks, margins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ocannl_core.backend.protocols import Buffer, Event, HostBuffer
from ocannl_core.base.errors import ShapeError, TransferError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir import host_arrays
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers.dtypes import extremes, float32, float64, uint4x32

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend


def read(
    backend: Backend, buffer: Buffer, sizes: Mapping[StaticExtent, int] | None = None
) -> host_arrays.Array:
    """Return a copy of a buffer's cells without margins; waits for the work that computes them.

    Args:
        sizes: The extents at run time up to which cells are defined; all cells without.
    """
    cells = host_arrays.interior(download(backend, buffer), buffer.info)
    if sizes and buffer.info.extents:
        cells = cells[tuple(map(slice, _dims(buffer.info, sizes)))]
    return np.array(cells, order="C")


def write(backend: Backend, buffer: Buffer, cells: host_arrays.Array) -> None:
    """Copy cells (of the node's dtype) to a device; margins keep their cells. An axis with an
    extent at run time may be shorter than in memory.

    Waits for the copy, unless the backend takes the cells at once: later work of the device comes
    after it.
    """
    info = buffer.info
    whole = cells
    if info.buffer_dims != info.dims:
        whole = download(backend, buffer)
        host_arrays.interior(whole, info)[tuple(map(slice, cells.shape))] = cells
    elif cells.shape != info.dims:
        whole = np.zeros(info.dims, cells.dtype)
        whole[tuple(map(slice, cells.shape))] = cells
    event = upload(backend, buffer, whole)
    if not backend.stages_uploads:
        event.wait()


def upload(backend: Backend, buffer: Buffer, cells: host_arrays.Array) -> Event:
    """Copy all cells of a node to a device, margins included; return the end of the copy."""
    return backend.transfer(
        buffer, HostBuffer(host_arrays.memory_of(cells, buffer.info), buffer.info)
    )


def download(backend: Backend, buffer: Buffer) -> host_arrays.Array:
    """Return a copy of all cells of a node, margins included."""
    info = buffer.info
    host = HostBuffer(np.empty(info.memory_dims, info.memory_numpy), info)
    backend.transfer(host, buffer).wait()
    return host_arrays.cells_in(host.array, info)


def _dims(info: NodeInfo, sizes: Mapping[StaticExtent, int]) -> tuple[int, ...]:
    """Return the extents of the defined cells of a node."""
    return tuple(
        dim if extent is None else sizes.get(extent, dim)
        for dim, extent in zip(info.dims, info.extents, strict=True)
    )


def given_sizes(value: object, info: NodeInfo, name: str) -> Mapping[StaticExtent, int]:
    """Return the extents at run time that host data states by its shape.

    Raises:
        ShapeError: if they exceed their maxima, or two axes of one extent differ.
    """
    array = _as_array(value, name)
    found: dict[StaticExtent, int] = {}
    if not info.extents or array.ndim != len(info.dims):
        return found
    for axis, (extent, size) in enumerate(zip(info.extents, array.shape, strict=True)):
        if extent is None:
            continue
        if size > extent.maximum or found.setdefault(extent, size) != size:
            known = "" if size > extent.maximum else f", and {found[extent]} along another"
            raise ShapeError(
                "The cells that the host gives have one size along all axes of an extent, at most "
                "its maximum.",
                found=f"{size} along axis {axis}, whose extent is {extent}{known}",
                where=name,
                fix=f"give at most {extent.maximum}, the same along each of these axes",
            )
    return found


def sized(info: NodeInfo, sizes: Mapping[StaticExtent, int]) -> NodeInfo:
    """Return a node's info with the extents of its defined cells."""
    return replace(info, dims=_dims(info, sizes)) if sizes else info


def cells_of(value: object, info: NodeInfo, name: str, shape: str) -> host_arrays.Array:
    """Return host data as an array of a node's dims and dtype.

    One number fills the whole node. Integers and wider floats are rounded to a float node's format;
    nothing else is converted silently.

    Args:
        value: An array, or anything that NumPy makes one of.
        shape: The tensor's shape as `batch|input->output`.

    Raises:
        ShapeError: if the extents differ.
        TransferError: if the numbers do not fit the node's format, or one is NaN.
    """
    array = _as_array(value, name)
    if info.dtype is uint4x32:
        array = _as_words(array, name)
    else:
        array = host_arrays.numbers_of(array, info.dtype, name)
        host_arrays.check_kind(array, info.dtype, name)
        host_arrays.refuse_nan(array, name)
    if array.ndim == 0:
        array = np.broadcast_to(array, info.dims)
    elif array.shape != info.dims:
        if not (array.size == 1 and array.ndim <= 1 and info.dims in ((), (1,))):
            raise ShapeError(
                "An array has the extents of its tensor: batch, then output, then input axes.",
                found=f"an array of {_extents(array.shape)} for {_extents(info.dims)}",
                where=f"{name}, of shape {shape}",
                fix=_shape_fix(array.shape, info.dims),
            )
        array = array.reshape(info.dims)
    return np.ascontiguousarray(host_arrays.convert(array, info.dtype, name)).reshape(info.dims)


def unconverted(value: object, info: NodeInfo) -> host_arrays.Array | None:
    """Return host data that are the cells of a node as they stand, or None."""
    if type(value) is not np.ndarray:
        return None if info.extents else _filled(value, info)
    if value.shape != info.dims or not value.flags.c_contiguous:
        return None
    if info.extents or value.dtype != info.dtype.numpy or info.dtype.is_packed:
        return None
    if value.dtype.kind in "biu":
        return value
    if value.dtype.kind != "f" or value.size == 0:
        return None
    with np.errstate(invalid="ignore"):
        lowest = value.min()
    return None if lowest != lowest else value


def _filled(value: object, info: NodeInfo) -> host_arrays.Array | None:
    """Return one number in every cell, or None where `cells_of` may refuse or convert it."""
    dtype = info.dtype
    if isinstance(value, np.generic):
        fits = value.dtype == dtype.numpy and value.dtype.kind in "biuf" and value == value
    elif type(value) is int and dtype.is_integer:
        least, greatest = extremes(dtype)
        fits = least <= value <= greatest
    elif isinstance(value, int | float) and type(value) is not bool:
        fits = dtype in (float32, float64) and abs(value) < 1e18  # no infinity in either format
    else:
        return None
    return np.full(info.dims, value, dtype.numpy) if fits and not dtype.is_packed else None


def taken_over(value: object, name: str) -> object:
    """Return an array of another library as one of NumPy, without a copy; other objects as they
    are.

    Raises:
        TransferError: if it is not in the host's memory, or in a format that NumPy lacks.
    """
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__dlpack__"):
        return value
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TransferError(
            "The value of a tensor is an array in memory of the host, or of the context's device.",
            found=f"{type(value).__name__}: {error}",
            where=name,
            fix="convert it to a NumPy array: for PyTorch, x.detach().cpu().float().numpy()",
        ) from error


def _as_array(value: object, name: str) -> host_arrays.Array:
    host_arrays.refuse_mask(value, name)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise TransferError(
            "The value of a tensor is an array of numbers.",
            found=f"{type(value).__name__}: {error}",
            where=name,
            fix="give every row the same length",
        ) from error


def _as_words(array: host_arrays.Array, name: str) -> host_arrays.Array:
    """Return an array of 128-bit words, also from four `uint32` along an extra last axis."""
    words = uint4x32.numpy
    if array.dtype == words:
        return array
    if array.dtype == np.uint32 and array.ndim and array.shape[-1] == 4:
        return np.ascontiguousarray(array).view(words).reshape(array.shape[:-1])
    raise TransferError(
        "A tensor of 128-bit words takes records of four uint32, or uint32 with a last axis of 4.",
        found=f"an array of dtype {array.dtype} and shape {array.shape}",
        where=name,
    )


def _extents(dims: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, dims)) + ("," if len(dims) == 1 else "") + ")"


def _shape_fix(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if sorted(found) == sorted(expected):
        return "order the axes with np.transpose: batch, then output, then input axes"
    if np.prod(found, dtype=np.int64) == np.prod(expected, dtype=np.int64):
        return f"array.reshape{_extents(expected)}, if the cells are in this order"
    if len(found) == len(expected) and found[1:] == expected[1:] and found[0] < expected[0]:
        return (
            f'oc.static_extent("n", max={expected[0]}) as the size of the first axis takes fewer '
            'entries; oc.data.Loader(..., last="pad") fills a last batch'
        )
    return "give one number for every cell, or a single number for all"
