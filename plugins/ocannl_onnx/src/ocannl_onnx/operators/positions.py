"""Operators that read and write at positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.movement import axis_of, moved, reshaped
from ocannl_onnx.registry import folded, operator
from ocannl_onnx.values import Array, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


def wrapped_positions(node: Node, ids: Value, x: Value, axis: int) -> Tensor:
    """Return positions along an axis, with negative ones counted from the end."""
    size = x.shape[axis]
    if (extent := x.extent(axis)) is not None:
        places = node.valid_positions(ids.tensor)
        if ids.array is not None and np.all(ids.array >= 0):
            return places
        count = oc.number(extent, dtype=places.dtype)
        return oc.where(oc.less(places, 0, dtype="bool"), places + count, places)
    if ids.array is not None:
        cells = np.asarray(ids.array)
        if cells.size and (cells.min() < -size or cells.max() >= size):
            node.invalid(
                f"Positions are from {-size} to {size - 1}.", f"{cells.min()} to {cells.max()}"
            )
        return oc.tensor(np.where(cells < 0, cells + size, cells).astype(np.int64), dtype="int64")
    tensor = node.valid_positions(ids.tensor)
    return oc.where(oc.less(tensor, 0, dtype="bool"), tensor + size, tensor)


@operator("Gather")
def gather(node: Node, x: Value, ids: Value) -> Value:
    axis = axis_of(node, node.attr("axis", 0), x.rank)
    places = wrapped_positions(node, ids, x, axis)
    shape = (*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :])
    return moved(x, reshaped(oc.take(x.tensor, places, axis=axis), shape))


@folded("Gather")
def fold_gather(node: Node, x: Array, ids: Array) -> Array:
    return np.take(x, ids, axis=node.attr("axis", 0))


@operator("GatherElements", since=11)
def gather_elements(node: Node, x: Value, ids: Value) -> Value:
    axis = axis_of(node, node.attr("axis", 0), x.rank)
    places = wrapped_positions(node, ids, x, axis)
    keys = tuple(
        slice(None) if at == axis or ids.extent(at) else slice(0, size)
        for at, size in enumerate(ids.shape)
    )
    return moved(x, oc.take_along(x.tensor[keys], places, axis=axis))


def _flat_positions(node: Node, ids: Value, x: Value, first: int = 0) -> Tensor:
    """Return positions in row-major order from tuples of positions along the last axis, which are
    along axes of `x` from the first one on.
    """
    count = ids.shape[-1]
    if count == 1:
        return oc.sum(wrapped_positions(node, ids, x, first), axis=-1)
    sizes = x.shape[first : first + count]
    strides = [math.prod(sizes[k + 1 :]) for k in range(count)]
    if ids.array is not None:
        cells = ids.array.astype(np.int64)
        bounds = np.array(sizes, np.int64)
        if cells.size and ((cells < -bounds) | (cells >= bounds)).any():
            node.invalid(
                f"Positions are inside of {list(sizes)}.", f"{cells.min()} to {cells.max()}"
            )
        cells = np.where(cells < 0, cells + bounds, cells)
        return oc.tensor((cells * np.array(strides, np.int64)).sum(-1), dtype="int64")
    tensor = node.valid_positions(ids.tensor)
    wrapped = oc.where(
        oc.less(tensor, 0, dtype="bool"), tensor + oc.tensor(np.array(sizes, np.int64)), tensor
    )
    return oc.sum(wrapped * oc.tensor(np.array(strides, np.int64)), axis=-1)


def _gathered_by_axes(node: Node, x: Value, ids: Value) -> Tensor:
    """Return cells at tuples of positions, axis by axis: axes of extents cannot be joined."""
    places, depth = ids.rank - 1, ids.shape[-1]
    columns = [
        moved(ids, ids.tensor[..., k]) if ids.array is None else Value.of_array(ids.array[..., k])
        for k in range(depth)
    ]
    taken: Tensor = oc.take(x.tensor, wrapped_positions(node, columns[0], x, 0), axis=0)
    for axis in range(1, depth):
        at = wrapped_positions(node, columns[axis], x, axis)
        at = at[(..., *[None] * (x.rank - axis))]
        taken = oc.take_along(taken, at, axis=places)
        taken = taken[(*[slice(None)] * places, 0)]
    return taken


@operator("GatherND", since=11)
def gather_nd(node: Node, x: Value, ids: Value) -> Value:
    shared = node.attr("batch_dims", 0)
    depth = ids.shape[-1]
    is_open = any(x.extent(axis) for axis in range(depth))
    if shared == 0 and depth > 1 and (is_open or any(map(ids.extent, range(ids.rank - 1)))):
        return moved(x, _gathered_by_axes(node, x, ids))
    outer, inner = x.shape[:shared], x.shape[shared + depth :]
    flat = _flat_positions(node, ids, x, shared)
    addressed = math.prod(x.shape[shared : shared + depth])
    table = reshaped(x.tensor, [*outer, addressed, *inner])
    places = reshaped(flat, [*outer, math.prod(ids.shape[shared:-1]), *[1] * len(inner)])
    taken = oc.take_along(table, places, axis=shared)
    return moved(x, reshaped(taken, [*ids.shape[:-1], *inner]))


_COMBINE = {"add": oc.add, "mul": oc.multiply, "max": oc.maximum, "min": oc.minimum}


def _scattered(node: Node, table: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """Write rows into a table, or combine them with its rows, at positions along its first axis."""
    how = node.attr("reduction", "none")
    if how == "none":
        return oc.put(table, places, rows, axis=0)
    if how not in _COMBINE:
        node.invalid("A reduction is of the standard.", how)
    combine = _COMBINE[how]
    return combine(table, oc.scatter(places, rows, size=table.shape.dims[0], combine=combine))


@operator("ScatterND", since=11)
def scatter_nd(node: Node, x: Value, ids: Value, updates: Value) -> Value:
    depth = ids.shape[-1]
    addressed, inner = x.shape[:depth], x.shape[depth:]
    count, number = math.prod(addressed), math.prod(ids.shape[:-1])
    if number == 0:
        return x
    places = reshaped(_flat_positions(node, ids, x), [number])
    result = _scattered(
        node,
        reshaped(x.tensor, [count, math.prod(inner)]),
        places,
        reshaped(updates.tensor, [number, math.prod(inner)]),
    )
    return moved(x, reshaped(result, x.shape))


@operator("ScatterElements", since=11)
@operator("Scatter", since=9, until=10)
def scatter_elements(node: Node, x: Value, ids: Value, updates: Value) -> Value:
    axis = axis_of(node, node.attr("axis", 0), x.rank)
    if 0 in ids.shape:
        return x
    along = wrapped_positions(node, ids, x, axis)
    is_aligned = all(
        at == axis or (size == x.shape[at] and ids.extent(at) is x.extent(at))
        for at, size in enumerate(ids.shape)
    )
    if is_aligned and node.attr("reduction", "none") == "none":
        return moved(x, oc.put_along(x.tensor, along, updates.tensor, axis=axis))
    strides = [math.prod(x.shape[k + 1 :]) for k in range(x.rank)]
    rest = sum(
        np.arange(size, dtype=np.int64).reshape([-1 if k == at else 1 for k in range(x.rank)])
        * strides[at]
        for at, size in enumerate(ids.shape)
        if at != axis
    )
    number, count = math.prod(ids.shape), math.prod(x.shape)
    flat = along * strides[axis]
    if isinstance(rest, np.ndarray):
        flat = oc.cast(flat, "int64") + oc.tensor(np.broadcast_to(rest, ids.shape).copy())
    result = _scattered(
        node,
        reshaped(x.tensor, [count]),
        reshaped(flat, [number]),
        reshaped(updates.tensor, [number]),
    )
    return moved(x, reshaped(result, x.shape))


@operator("OneHot", since=9)
def one_hot(node: Node, ids: Value, depth: Value, values: Value) -> Value:
    size = int(node.known(depth, "depth").reshape(-1)[0])
    rank = ids.rank + 1
    axis = axis_of(node, node.attr("axis", -1), rank)
    places = ids.tensor if ids.format.is_integer else oc.cast(ids.tensor, "int64")
    wide = oc.cast(places, "int64")
    wide = oc.where(oc.less(wide, 0, dtype="bool"), wide + size, wide)
    # positions beyond the axis give no 1
    hot = oc.equal(
        reshaped(wide, [*ids.shape, 1]), oc.tensor(np.arange(size, dtype=np.int64)), dtype="bool"
    )
    off, on = values.tensor[0], values.tensor[1]
    return moved(values, oc.moveaxis(oc.where(hot, on, off), -1, axis))


@operator("TensorScatter", since=24)
def tensor_scatter(node: Node, past: Value, update: Value, write: Value | None = None) -> Value:
    """Write a part of the time axis for each row of the batch, as caches do."""
    axis = axis_of(node, node.attr("axis", -2), past.rank)
    size, length, rows = past.shape[axis], update.shape[axis], past.shape[0]
    start: Any = (
        oc.tensor(np.zeros(rows, np.int64)) if write is None else oc.cast(write.tensor, "int64")
    )
    at = oc.tensor(np.arange(size, dtype=np.int64))
    offset = at - reshaped(start, [rows, 1])  # [batch, time]
    if node.attr("mode", "linear") == "circular":
        offset = oc.remainder(offset, size)
    inside = oc.less_equal(0, offset, dtype="bool") & oc.less(offset, length, dtype="bool")
    place = oc.where(inside, offset, 0)
    shape = [1] * past.rank
    shape[0], shape[axis] = rows, size
    index = oc.broadcast_to(
        reshaped(place, shape), *[size if k == axis else n for k, n in enumerate(update.shape)]
    )
    new = oc.take_along(update.tensor, index, axis=axis)
    return moved(past, oc.where(reshaped(inside, shape), new, past.tensor))


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: Node, x: Value, ids: Value) -> Value:
    places = oc.reshape(wrapped_positions(node, ids, x, -1), output=[math.prod(ids.shape)])
    taken = oc.take(x.tensor, places, axis=x.rank - 1)
    return moved(x, taken if x.rank > 1 else reshaped(taken, [1, math.prod(ids.shape)]))


@operator("Binarizer", domain="ai.onnx.ml")
def binarizer(node: Node, x: Value) -> Value:
    above = oc.less(node.attr("threshold", 0.0), x.tensor, dtype="bool")
    return moved(x, oc.cast(above, x.format.carrier))
