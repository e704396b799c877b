"""Operators that move cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import StaticExtent, Tensor
from ocannl_onnx.registry import folded, operator
from ocannl_onnx.values import Array, Sequence, Sizes, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


def moved(x: Value, tensor: Tensor) -> Value:
    """Return a result that keeps the format of an operand."""
    return Value.of_tensor(tensor, x.format)


def axis_of(node: Node, axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        node.invalid(f"An axis is from {-rank} to {rank - 1}.", str(axis))
    return axis + rank if axis < 0 else axis


def axes_argument(
    node: Node, given: Value | None, rank: int, since: int = 13
) -> tuple[int, ...] | None:
    """Return axes, which were an attribute before they were an input."""
    axes = node.attr("axes") if given is None else node.known_sizes(given, "axes")
    return None if axes is None else tuple(axis_of(node, int(each), rank) for each in axes)


# shapes


def _new_shape(node: Node, old: Sizes, wanted: tuple[int, ...]) -> list[int]:
    keep_zero = bool(node.attr("allowzero", 0))
    sizes = [
        old[at] if size == 0 and not keep_zero and at < len(old) else size
        for at, size in enumerate(wanted)
    ]
    if sizes.count(-1) > 1 or any(each < -1 for each in sizes):
        node.invalid(
            "A new shape has one -1 at most, and no other negative size.", str(list(wanted))
        )
    count = math.prod(old)
    if -1 in sizes:
        rest = math.prod(each for each in sizes if each != -1)
        if rest == 0 or count % rest:
            node.invalid("A new shape has as many cells.", f"{list(old)} and {list(wanted)}")
        sizes[sizes.index(-1)] = count // rest
    if math.prod(sizes) != count:
        node.invalid("A new shape has as many cells.", f"{list(old)} and {list(wanted)}")
    return sizes


def reshaped(tensor: Tensor, sizes: Any) -> Tensor:
    """Return the same cells in another shape, in which extents at run time keep their places."""
    wanted, shape = list(sizes), tensor.shape
    dims = tuple(shape.dims) if shape.extents else ()
    for at, extent in enumerate(shape.extents):
        if extent is None:
            continue
        before = math.prod(dims[:at])
        for place, size in enumerate(wanted):
            if size == dims[at] and math.prod(wanted[:place]) == before:
                wanted[place] = extent
                break
    result = oc.reshape(tensor, output=wanted)
    if not shape.extents and -1 not in wanted:
        oc.require_shape(result, wanted)
    return result


@operator("Reshape")
def reshape(node: Node, x: Value, shape: Value | None = None) -> Value:
    if shape is None:
        wanted, marks = node.attr("shape", ()), None
    else:
        wanted, marks = node.known_sizes(shape, "shape", or_extents=True), shape.extents
    result = reshaped(x.tensor, _new_shape(node, x.shape, tuple(wanted)))
    own = result.shape.extents or (None,) * len(wanted)
    stated = () if marks is None else zip(marks.flat, own, strict=True)
    if any(isinstance(mark, StaticExtent) and mark is not found for mark, found in stated):
        node.refuse("its shape has an extent at run time in another place")
    return moved(x, result)


@folded("Reshape")
def fold_reshape(node: Node, x: Array, shape: Array | None = None) -> Array:
    wanted = node.attr("shape", ()) if shape is None else tuple(map(int, shape))
    return x.reshape(_new_shape(node, x.shape, tuple(wanted)))


@operator("Flatten")
def flatten(node: Node, x: Value) -> Value:
    axis = node.attr("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    if not 0 <= axis <= x.rank:
        node.invalid(f"The axis is from {-x.rank} to {x.rank}.", str(axis))
    return moved(x, reshaped(x.tensor, [math.prod(x.shape[:axis]), math.prod(x.shape[axis:])]))


@operator("Squeeze")
def squeeze(node: Node, x: Value, axes: Value | None = None) -> Value:
    where = axes_argument(node, axes, x.rank)
    return moved(x, reshaped(x.tensor, _squeezed(node, x.shape, where)))


def _squeezed(node: Node, shape: Sizes, where: tuple[int, ...] | None) -> list[int]:
    if where is None:
        where = tuple(at for at, size in enumerate(shape) if size == 1)
    if any(shape[each] != 1 for each in where):
        node.invalid("Squeezed axes have the size 1.", f"axes {list(where)} of {list(shape)}")
    return [size for at, size in enumerate(shape) if at not in where]


@folded("Squeeze")
def fold_squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    given = node.attr("axes") if axes is None else tuple(map(int, axes.reshape(-1)))
    where = None if given is None else tuple(axis_of(node, each, x.ndim) for each in given)
    return x.reshape(_squeezed(node, x.shape, where))


def _unsqueezed(node: Node, shape: Sizes, axes: tuple[int, ...]) -> list[int]:
    rank = len(shape) + len(axes)
    where = {axis_of(node, each, rank) for each in axes}
    if len(where) != len(axes):
        node.invalid("New axes differ.", str(list(axes)))
    rest = iter(shape)
    return [1 if at in where else next(rest) for at in range(rank)]


@operator("Unsqueeze")
def unsqueeze(node: Node, x: Value, axes: Value | None = None) -> Value:
    where = node.attr("axes", ()) if axes is None else node.known_sizes(axes, "axes")
    return moved(x, reshaped(x.tensor, _unsqueezed(node, x.shape, tuple(where))))


@folded("Unsqueeze")
def fold_unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    where = node.attr("axes", ()) if axes is None else tuple(map(int, axes.reshape(-1)))
    return x.reshape(_unsqueezed(node, x.shape, tuple(where)))


@operator("Transpose")
def transpose(node: Node, x: Value) -> Value:
    order = node.attr("perm", tuple(reversed(range(x.rank))))
    if sorted(order) != list(range(x.rank)):
        node.invalid("`perm` names each axis once.", f"{list(order)} for {list(x.shape)}")
    if x.rank < 2:
        return x
    return permuted(node, x, order)


def permuted(node: Node, x: Value, order: tuple[int, ...]) -> Value:
    """Return a value with its axes in another order; a known one stays known."""
    if x.array is not None:
        return Value.of_array(np.transpose(x.array, order), x.format)
    return moved(x, node.sized(oc.permute(x.tensor, *order), [x.shape[at] for at in order]))


@folded("Transpose")
def fold_transpose(node: Node, x: Array) -> Array:
    return np.transpose(x, node.attr("perm"))


@operator("Expand", since=8)
def expand(node: Node, x: Value, shape: Value) -> Value:
    wanted = node.known_sizes(shape, "shape", or_extents=True)
    sizes: list[Any] = list(np.broadcast_shapes(x.shape, wanted))
    own = () if x.is_known else x.tensor.shape.extents
    for at, extent in enumerate(own, len(sizes) - len(own)):
        if extent is not None and sizes[at] == x.shape[at - len(sizes)]:
            sizes[at] = extent
    marks = () if shape.extents is None else shape.extents.flat
    for at, mark in enumerate(marks, len(sizes) - len(wanted)):
        if not mark or not isinstance(sizes[at], int):
            continue
        if not isinstance(mark, StaticExtent):
            node.refuse("its shape is computed from an extent at run time")
        sizes[at] = mark
    return moved(x, oc.broadcast_to(x.tensor, *sizes) if sizes else x.tensor)


@folded("Expand")
def fold_expand(node: Node, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(map(int, shape))))


@operator("Tile", since=6)
def tile(node: Node, x: Value, repeats: Value) -> Value:
    counts = node.known_sizes(repeats, "repeats")
    if len(counts) != x.rank or any(each < 0 for each in counts):
        node.invalid("Each axis has a number of repeats.", f"{list(counts)} for {list(x.shape)}")
    return moved(x, oc.tile(x.tensor, list(counts)))


@folded("Tile")
def fold_tile(node: Node, x: Array, repeats: Array) -> Array:
    return np.tile(x, repeats)


# parts


@operator("Concat")
def concat(node: Node, *values: Value) -> Value:
    axis = axis_of(node, node.attr("axis", 1), values[0].rank)
    parts = [each for each in values if each.shape[axis] != 0] or [values[0]]
    if any(each.format != values[0].format for each in values):
        node.invalid(
            "Parts have one number format.", ", ".join(str(each.format) for each in values)
        )
    if len(parts) == 1:
        return moved(values[0], oc.primitives.identity(parts[0].tensor))
    return moved(values[0], oc.concat([each.tensor for each in parts], axis=axis))


@folded("Concat")
def fold_concat(node: Node, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=node.attr("axis", 1))


def section(tensor: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Return the positions of a slice along one axis."""
    keys: list[Any] = [slice(None)] * axis
    return tensor[(*keys, slice(start, stop, step))]


def split_sizes(node: Node, size: int, given: Value | None) -> list[int]:
    stated = node.attr("split") if given is None else node.known_sizes(given, "split")
    if stated is not None:
        if sum(stated) != size or any(each < 0 for each in stated):
            node.invalid("The parts make up the axis.", f"{list(stated)} of {size}")
        return list(stated)
    count = node.attr("num_outputs", node.outputs_wanted())
    if count < 1:
        node.invalid("There is at least one part.", str(count))
    part = -(-size // count) if node.version >= 18 else size // count
    if node.version < 18 and part * count != size:
        node.invalid("The parts are equal.", f"{size} in {count} parts")
    sizes = [max(min(part, size - k * part), 0) for k in range(count)]
    return sizes


@operator("Split", since=2)
def split(node: Node, x: Value, given: Value | None = None) -> list[Value]:
    axis = axis_of(node, node.attr("axis", 0), x.rank)
    parts, start = [], 0
    for part in split_sizes(node, x.shape[axis], given):
        parts.append(moved(x, section(x.tensor, axis, start, start + part)))
        start += part
    return parts


@folded("Split")
def fold_split(node: Node, x: Array, given: Array | None = None) -> list[Array]:
    axis = axis_of(node, node.attr("axis", 0), x.ndim)
    sizes = split_sizes(node, x.shape[axis], None if given is None else Value.of_array(given))
    return np.split(x, np.cumsum(sizes)[:-1], axis=axis)


def _slices(node: Node, shape: Sizes, starts: Any, ends: Any, axes: Any, steps: Any) -> list[slice]:
    rank = len(shape)
    where = range(len(starts)) if axes is None else [axis_of(node, int(a), rank) for a in axes]
    by = [1] * len(starts) if steps is None else steps
    keys = [slice(None)] * rank
    for axis, start, end, step in zip(where, starts, ends, by, strict=True):
        step, size = int(step), shape[axis]
        if step == 0:
            node.invalid("A step is not 0.", "0")
        first, last = int(start), int(end)
        first = first + size if first < 0 else first
        last = last + size if last < 0 else last
        if step > 0:
            keys[axis] = slice(min(max(first, 0), size), min(max(last, 0), size), step)
        else:
            first, last = min(max(first, 0), size - 1), min(max(last, -1), size)
            keys[axis] = slice(first, last if last >= 0 else None, step)
            if size == 0 or first <= last:
                keys[axis] = slice(0, 0, 1)
    return keys


def _part_of_extent(most: int, start: int, end: int, step: int) -> range | None:
    """Return the positions of a slice along an axis whose size a call gives, negative ones from its
    end; None where their number depends on the call.

    Args:
        most: The greatest size.
    """
    if step > 0:
        if start >= most or end <= -most:
            return range(0)
        start = 0 if start <= -most else start
        if end >= most:  # the end of the axis
            return range(start, 0, step) if start < 0 else None
    else:
        start = -1 if start >= most - 1 else start
        if end < -most:  # in front of the axis
            return range(start, -1, step) if start >= 0 else None
        if end == -most:
            return None
    return range(start, end, step) if (start < 0) == (end < 0) else None


def _parts_of_extents(
    node: Node, x: Value, starts: Sizes, stops: Sizes, steps: Sizes, axes: Sizes, ends: Value | None
) -> dict[int, Tensor | None]:
    """Return positions that a slice takes along axes with an extent at run time, or up to one;
    None for an axis that it takes as a whole.

    Args:
        ends: The value of the ends, whose cells may be extents, for which `stops` has the maximum.
    """
    marks: Any = [None] * len(stops)
    if ends is not None and ends.extents is not None:
        marks = ends.extents.reshape(-1)
    found: dict[int, Tensor | None] = {}
    for axis, start, stop, step, mark in zip(axes, starts, stops, steps, marks, strict=True):
        size, is_from_first = x.shape[axis], step == 1 and (start == 0 or start <= -x.shape[axis])
        own = x.extent(axis)
        if own is None and not mark:
            continue
        if own is not None and is_from_first and (mark is own or (not mark and stop >= size)):
            found[axis] = None
            continue
        is_extent = own is None and isinstance(mark, StaticExtent)
        if is_extent and is_from_first and mark.maximum <= size:
            found[axis] = node.valid_positions(positions_up_to(mark, "int64"))
            continue
        if mark:
            node.known(ends, "ends")  # refuses parts up to an extent
        part = _part_of_extent(size, start, stop, step)
        if part is None:
            node.refuse(
                "the size of a part of an axis follows from an extent at run time",
                "state a constant size for this axis: extents={...}",
            )
        places = oc.tensor(np.array(part, np.int64), dtype="int64")
        if own is not None and part and part[0] < 0:
            places = places + oc.number(own, dtype="int64")
        found[axis] = node.valid_positions(places)
    return found


def positions_up_to(extent: StaticExtent, dtype: str) -> Tensor:
    """Return the positions of an axis whose size a call gives."""
    result: Tensor = oc.primitives.offsets(dtype=dtype) + oc.zeros(extent, dtype=dtype)
    return result


def positions_along(x: Value, axis: int, dtype: str) -> Tensor:
    """Return the positions of an axis of a value, aligned with that axis."""
    extent = x.extent(axis)
    found = (
        oc.arange(x.shape[axis], dtype=dtype) if extent is None else positions_up_to(extent, dtype)
    )
    return found[tuple(slice(None) if at == axis else None for at in range(x.rank))]


@operator("Slice")
def slice_of(
    node: Node,
    x: Value,
    starts: Value | None = None,
    ends: Value | None = None,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Value:
    if node.version < 10:
        first, stops, where, by = node.attr("starts"), node.attr("ends"), node.attr("axes"), None
    else:
        first = node.known_sizes(starts, "starts")
        stops = node.known_sizes(ends, "ends", or_extents=True)
        where = None if axes is None else node.known_sizes(axes, "axes")
        by = None if steps is None else node.known_sizes(steps, "steps")
    keys = _slices(node, x.shape, first, stops, where, by)
    where = tuple(axis_of(node, axis, x.rank) for axis in where or range(len(first)))
    parts = _parts_of_extents(node, x, first, stops, by or (1,) * len(first), where, ends)
    for axis in parts:
        keys[axis] = slice(None)
    result = x.tensor[tuple(keys)] if keys else x.tensor
    for axis, places in parts.items():
        result = result if places is None else oc.take(result, places, axis=axis)
    return moved(x, result)


@folded("Slice")
def fold_slice(node: Node, x: Array, *arrays: Array | None) -> Array:
    if node.version < 10:
        given: list[Any] = [node.attr("starts"), node.attr("ends"), node.attr("axes"), None]
    else:
        given = [*arrays, *[None] * (4 - len(arrays))]
    return x[tuple(_slices(node, x.shape, *given))]


# borders


def pad_widths(
    node: Node, x: Value, pads: tuple[int, ...], axes: tuple[int, ...]
) -> list[tuple[int, int]]:
    count = len(axes)
    if len(pads) != 2 * count:
        node.invalid("Each axis has two widths.", f"{list(pads)} for {count} axes")
    widths = [(0, 0)] * x.rank
    for at, axis in enumerate(axes):
        widths[axis] = (pads[at], pads[at + count])
    return widths


def cropped(tensor: Tensor, shape: Sizes, widths: list[tuple[int, int]]) -> Tensor:
    """Remove the cells of negative widths."""
    if all(before >= 0 and after >= 0 for before, after in widths):
        return tensor
    keys = tuple(
        slice(max(-before, 0), size - max(-after, 0))
        for size, (before, after) in zip(shape, widths, strict=True)
    )
    return tensor[keys]


@operator("Pad")
def pad(
    node: Node,
    x: Value,
    pads: Value | None = None,
    value: Value | None = None,
    axes: Value | None = None,
) -> Value:
    where = tuple(range(x.rank)) if axes is None else axes_argument(node, axes, x.rank)
    assert where is not None
    stated = (
        node.attr("pads", node.attr("paddings", ()))
        if pads is None
        else node.known_sizes(pads, "pads")
    )
    mode = node.attr("mode", "constant")
    widths = pad_widths(node, x, tuple(stated), where)
    tensor = cropped(x.tensor, x.shape, widths)
    outer = [(max(before, 0), max(after, 0)) for before, after in widths]
    if mode == "constant":
        cell: Any = node.attr("value", 0.0) if value is None else value
        if isinstance(cell, Value):
            if cell.array is None:
                return moved(x, padded(tensor, outer, cell.tensor))
            cell = cell.array.reshape(-1)[0].item() if cell.array.size else 0
        return moved(x, padded(tensor, outer, cell if x.format.is_float else int(cell)))
    names = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    if mode not in names:
        node.invalid("A mode of padding is of the standard.", mode)
    return moved(x, oc.pad(tensor, outer, mode=names[mode]))


def padded(tensor: Tensor, widths: list[tuple[int, int]], value: Any = 0.0) -> Tensor:
    if not any(before or after for before, after in widths):
        return tensor
    if isinstance(value, Tensor):
        inside = oc.pad(oc.tensor(np.ones(tuple(tensor.shape.dims), bool)), widths, value=0)
        return oc.where(inside, oc.pad(tensor, widths), reshaped(value, []))
    return oc.pad(tensor, widths, value=value)


@operator("CenterCropPad", since=18)
def center_crop_pad(node: Node, x: Value, shape: Value) -> Value:
    sizes = node.known_sizes(shape, "shape")
    axes = axes_argument(node, None, x.rank)
    where = tuple(range(x.rank)) if axes is None else axes
    tensor, widths = x.tensor, [(0, 0)] * x.rank
    for axis, wanted in zip(where, sizes, strict=True):
        have = x.shape[axis]
        if wanted < have:
            start = (have - wanted) // 2
            tensor = section(tensor, axis, start, start + wanted)
        else:
            before = (wanted - have) // 2
            widths[axis] = (before, wanted - have - before)
    return moved(x, padded(tensor, widths, 0.0 if x.format.is_float else 0))


@operator("Trilu", since=14)
def trilu(node: Node, x: Value, k: Value | None = None) -> Value:
    offset = 0 if k is None else int(node.known(k, "k").reshape(()))
    rows, columns = x.shape[-2:]
    triangle = oc.triu if node.attr("upper", 1) else oc.tril
    return moved(x, triangle(x.tensor, max(-rows - 1, min(offset, columns + 1))))


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Value) -> Value:
    n, c, h, w = x.shape
    b = node.attr("blocksize", 1)
    if node.attr("mode", "DCR") == "DCR":
        cells = oc.permute(reshaped(x.tensor, [n, b, b, c // (b * b), h, w]), 0, 3, 4, 1, 5, 2)
    else:
        cells = oc.permute(reshaped(x.tensor, [n, c // (b * b), b, b, h, w]), 0, 1, 4, 2, 5, 3)
    return moved(x, reshaped(cells, [n, c // (b * b), h * b, w * b]))


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Value) -> Value:
    n, c, h, w = x.shape
    b = node.attr("blocksize", 1)
    split_up = reshaped(x.tensor, [n, c, h // b, b, w // b, b])
    if node.attr("mode", "DCR") == "DCR":
        cells = oc.permute(split_up, 0, 3, 5, 1, 2, 4)
    else:
        cells = oc.permute(split_up, 0, 1, 3, 5, 2, 4)
    return moved(x, reshaped(cells, [n, c * b * b, h // b, w // b]))


@operator("ReverseSequence", since=10)
def reverse_sequence(node: Node, x: Value, lengths: Value) -> Value:
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    steps, rows = x.shape[time], x.shape[batch]
    at = oc.tensor(np.arange(steps), dtype="int64")
    length = oc.reshape(lengths.tensor, output=[rows, 1])
    places = oc.where(oc.less(at, length, dtype="bool"), length - 1 - at, at)  # [batch, time]
    places = node.valid_positions(places)
    moved_in = oc.moveaxis(x.tensor, (batch, time), (0, 1))
    rest = len(x.shape) - 2
    index = oc.broadcast_to(
        oc.reshape(places, output=[rows, steps, *[1] * rest]),
        rows, steps, *[s for a, s in enumerate(x.shape) if a not in (time, batch)],
    )  # fmt: skip
    taken = oc.take_along(moved_in, index, axis=1)
    return moved(x, oc.moveaxis(taken, (0, 1), (batch, time)))


__all__ = ["Sequence"]
