"""Operators about sizes and constants, whose results are known when the graph is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.bounded import along, chosen
from ocannl_onnx.formats import format_numbered
from ocannl_onnx.operators.movement import (
    axis_of,
    expand,
    moved,
    positions_along,
    positions_up_to,
    reshaped,
)
from ocannl_onnx.operators.random import allow
from ocannl_onnx.reading import array_of, dense
from ocannl_onnx.registry import folded, operator
from ocannl_onnx.values import Array, Sequence, Value, with_extents

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

MOST_CELLS = 2**31


@operator("Shape")
def shape(node: Node, x: Value) -> Value:
    part = slice(node.attr("start", 0), node.attr("end"))
    result = Value.of_array(np.array(x.shape, np.int64)[part])
    open_axes = () if x.is_known else x.tensor.shape.extents
    return with_extents(result, np.array(open_axes, object)[part])


@operator("Size")
def size(node: Node, x: Value) -> Value:
    result = Value.of_array(np.array(math.prod(x.shape), np.int64))
    if x.is_known or not x.tensor.shape.extents:
        return result
    result.computed = lambda: oc.sum(oc.ones_like(x.tensor, dtype="int64"))
    return with_extents(result, np.array(True, object))


@operator("Constant")
def constant(node: Node) -> Value:
    name, proto = next(iter(node.attributes.items()))
    match name:
        case "value":
            return Value.of_array(array_of(proto.t, None), format_numbered(proto.t.data_type))
        case "value_float" | "value_floats":
            return Value.of_array(np.array(node.attr(name), np.float32))
        case "value_int" | "value_ints":
            return Value.of_array(np.array(node.attr(name), np.int64))
        case "value_string" | "value_strings":
            return Value.of_array(np.array(node.attr(name), object))
        case "sparse_value":
            return Value.of_array(dense(proto.sparse_tensor, None))
    node.invalid("A constant has a value.", name)


@operator("ConstantOfShape", since=9)
def constant_of_shape(node: Node, sizes: Value) -> Value | Tensor:
    cell = node.attr("value", np.zeros(1, np.float32)).reshape(())
    axes = node.known_sizes(sizes, "shape", or_extents=True)
    if any(each < 0 for each in axes):
        node.invalid("Sizes are not negative.", str(list(axes)))
    if int(np.prod(np.array(axes, dtype=object))) > MOST_CELLS:
        node.refuse(f"its result of sizes {list(axes)} has more than {MOST_CELLS} cells")
    if sizes.extents is not None:
        return expand(node, Value.of_array(cell), sizes)
    return Value.of_array(np.broadcast_to(cell, axes))


@operator("Range", since=11)
def arange(node: Node, start: Value, limit: Value, delta: Value) -> Array | Tensor:
    mark = None if limit.extents is None else limit.extents.reshape(-1)[0]
    if isinstance(mark, oc.StaticExtent):
        first, step = node.known(start, "start"), node.known(delta, "delta")
        if first.reshape(()) == 0 and step.reshape(()) == 1:  # positions of an axis
            return positions_up_to(mark, limit.format.carrier)
    first, last, step = (
        node.known(v, n).reshape(())
        for v, n in ((start, "start"), (limit, "limit"), (delta, "delta"))
    )
    if step == 0 or abs((float(last) - float(first)) / float(step)) > MOST_CELLS:
        node.invalid("A range has a step, and at most 2**31 cells.", f"{first} to {last} by {step}")
    count = max(int(np.ceil((float(last) - float(first)) / float(step))), 0)
    return (first + np.arange(count).astype(first.dtype) * step).astype(first.dtype)


@operator("EyeLike", since=9)
def eye_like(node: Node, x: Value) -> Value:
    number = node.attr("dtype")
    found = x.format if number is None else format_numbered(number)
    if found is None or x.rank != 2:
        node.invalid("`EyeLike` takes a matrix, and a known format.", f"{x!r}, dtype {number}")
    diagonal = node.attr("k", 0)
    if x.extent(0) or x.extent(1):
        rows, columns = (positions_along(x, axis, "int64") for axis in (0, 1))
        cells = oc.cast(oc.equal(rows + diagonal, columns, dtype="bool"), found.carrier)
        return Value.of_tensor(cells, found)
    return Value.of_array(np.eye(x.shape[0], x.shape[1], k=diagonal).astype(found.numpy), found)


@operator("Dropout")
def dropout(node: Node, x: Value, ratio: Value | None = None, training: Value | None = None) -> Any:
    is_training = training is not None and bool(node.known(training, "training mode").reshape(()))
    rate = (
        node.attr("ratio", 0.5) if ratio is None else float(node.known(ratio, "ratio").reshape(()))
    )
    if is_training and rate != 0:
        allow(node)
        if node.outputs_wanted() > 1 or rate >= 1:
            node.refuse("training with a mask as an output is `oc.nn.dropout` outside of the model")
        kept = oc.less(
            rate, oc.uniform(dtype="float32") + oc.cast(x.tensor, "float32") * 0.0, dtype="bool"
        )
        return oc.where(kept, x.tensor / (1.0 - rate), 0.0)
    kept = Value.of_array(np.ones((), bool if node.version >= 10 else x.format.numpy))
    return x, expand(node, kept, shape(node, x))


@operator("NonZero", since=9)
def non_zero(node: Node, x: Value) -> Any:
    bound, count = node.bound(x), math.prod(x.shape)
    if bound is None or not x.rank or not count:
        return np.array(np.nonzero(node.known(x, "input")), np.int64)
    flat = reshaped(x.tensor, [count])
    found = chosen(node, oc.not_equal(flat, 0, dtype="bool"), bound)
    return found.value(node, oc.stack(along(found.positions, x.shape), axis=0), 1)


@operator("Unique", since=11)
def unique(node: Node, x: Value) -> Any:
    axis, is_sorted = node.attr("axis"), node.attr("sorted", 1)
    bound = node.bound(x)
    if bound is not None and 0 not in x.shape:
        return _distinct(node, x, axis, bool(is_sorted), bound)
    cells = node.known(x, "input")
    found, first, back, counts = np.unique(cells, True, True, True, axis=axis)
    back = np.asarray(back).reshape(-1)
    if not is_sorted:
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        found = np.take(found, order, axis=axis or 0)
        first, counts, back = first[order], counts[order], rank[back]
    return found, first.astype(np.int64), back.astype(np.int64), counts.astype(np.int64)


def _distinct(node: Node, x: Value, axis: int | None, is_sorted: bool, bound: int) -> list[Value]:
    """Return the distinct parts along an axis, or cells, their first positions, the place of each
    part among them, and their numbers.
    """
    where = 0 if axis is None else axis_of(node, axis, x.rank)
    parts = reshaped(x.tensor, [math.prod(x.shape)]) if axis is None else x.tensor
    size = parts.shape.dims[where]
    rows = reshaped(oc.moveaxis(parts, where, 0), [size, math.prod(x.shape) // size])
    order = _lexicographic_order(rows)
    ordered = oc.take(rows, order, axis=0)
    last = oc.take(ordered, oc.tensor(np.maximum(np.arange(size) - 1, 0)), axis=0)
    differs = oc.not_equal(ordered, last, dtype="bool")
    if x.format.is_float:  # all NaN are one
        differs = differs & ~oc.logical_and(ordered != ordered, last != last, dtype="bool")
    is_new = oc.any(differs, axis=1) | oc.tensor(np.arange(size) == 0)
    is_new = oc.cast(is_new, "int64")
    group = oc.cumsum(is_new, axis=0) - 1
    if is_sorted:
        found = chosen(node, oc.cast(is_new, "bool"), bound)
        first = oc.take(order, found.positions)
    else:  # in the order of the first positions
        heads = oc.scatter(order, is_new, size=size)
        found = chosen(node, oc.cast(heads, "bool"), bound)
        first = found.positions
        starts = oc.cummax(is_new * oc.tensor(np.arange(size)), axis=0)
        group = oc.take(oc.cumsum(heads, axis=0) - 1, oc.take(order, starts))
    ones = oc.tensor(np.ones(size, np.int64))
    numbers = oc.scatter(oc.minimum(group, bound), ones, size=bound + 1)[:bound]
    return [
        found.value(node, oc.take(parts, first, axis=where), where, like=x),
        found.value(node, first, 0),
        Value.of_tensor(oc.scatter(order, group, size=size), inputs=node.dependencies),
        found.value(node, numbers, 0),
    ]


def _lexicographic_order(rows: Tensor) -> Tensor:
    """Return the positions of rows in lexicographic order: they are sorted by each column, from the
    last to the first, and equal cells keep their order.
    """
    size, columns = rows.shape.dims
    if columns == 1:
        return oc.cast(oc.argsort(rows[:, 0], axis=0), "int64")

    def sort(order: Tensor, column: Tensor) -> tuple[Tensor, None]:
        ranks = oc.argsort(oc.take(column, order), axis=0)
        return oc.take(order, oc.cast(ranks, "int64")), None

    positions = oc.tensor(np.arange(size))
    _, order = oc.scan(sort, positions, oc.einsum("nc => c | n", rows), reverse=True)
    return order


@operator("Compress", since=9)
def compress(node: Node, x: Value, condition: Value) -> Any:
    axis, bound = node.attr("axis"), node.bound(condition)
    flat = x.tensor if axis is not None else reshaped(x.tensor, [math.prod(x.shape)])
    along_axis = 0 if axis is None else axis % x.rank
    size = math.prod(condition.shape)
    if bound is not None and size and flat.shape.dims[along_axis]:
        found = chosen(node, oc.cast(reshaped(condition.tensor, [size]), "bool"), bound)
        return found.value(node, oc.take(flat, found.positions, axis=along_axis), along_axis, x)
    wanted = np.nonzero(node.known(condition, "condition").reshape(-1))[0]
    return moved(x, oc.take(flat, oc.tensor(wanted, dtype="int64"), axis=along_axis))


@folded("Size")
def fold_size(node: Node, x: Any) -> Any:
    return np.array(x.size, np.int64)


def _reduced(name: str, function: Any) -> None:
    @folded(name)
    def reduce(node: Node, x: Any, axes: Any = None) -> Any:
        where = node.attr("axes") if axes is None else tuple(map(int, axes.reshape(-1)))
        if not where:
            if node.attr("noop_with_empty_axes", 0):
                return x
            where = None
        return np.asarray(function(x, axis=where, keepdims=bool(node.attr("keepdims", 1)))).astype(
            x.dtype
        )


for _name, _function in {
    "ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min
}.items():  # fmt: skip
    _reduced(_name, _function)


__all__ = ["Sequence", "arange", "constant", "shape"]
