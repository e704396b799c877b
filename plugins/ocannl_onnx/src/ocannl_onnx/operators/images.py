"""Operators that resample: images made larger or smaller, grids, regions."""

from __future__ import annotations

import io
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.bounded import along, chosen
from ocannl_onnx.operators.movement import axis_of, moved, reshaped
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Array, Sizes, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


def _keys_of_cubic(ratio: Any, a: float) -> list[Any]:
    """Return the weights of Keys' cubic convolution for four neighbors."""
    far, near = ratio + 1, 1 - ratio
    return [
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
        ((a + 2) * ratio - (a + 3)) * ratio * ratio + 1,
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a * (near + 1) - 5 * a) * (near + 1) + 8 * a) * (near + 1) - 4 * a,
    ]


def _smooth_cubic(ratio: Array, scale: float, a: float) -> Array:
    """Return the weights of a cubic filter that is stretched by the scale."""
    scale = min(scale, 1.0)
    start = math.floor(-2 / scale) + 1
    distance = np.abs(scale * (np.arange(start, 2 - start) - ratio[:, None]))
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
    weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    return weights / weights.sum(-1, keepdims=True)


def _smooth_linear(ratio: Array, scale: float) -> Array:
    scale = min(scale, 1.0)
    start = math.floor(-1 / scale) + 1
    cells = np.arange(start, start + 2 - 2 * start)
    weights = np.clip(1 - np.abs((cells - ratio[:, None]) * scale), 0, 1)
    return weights / weights.sum(-1, keepdims=True)


class _Axis:
    """The positions and weights that a new axis reads of an old one."""

    def __init__(
        self, node: Node, size: int, new: int, scale: float, roi: tuple[float, float] | None
    ) -> None:
        self.node, self.size, self.new, self.scale, self.roi = node, size, new, scale, roi
        self.outside: Array | None = None
        at = self._origin(np.arange(new, dtype=np.float64))
        whole = np.floor(at)
        # a position that is a cell has the ratio 1 to the cell before
        ratio = np.where(at == whole, 1.0, at - whole)
        weights = self._weights(ratio)
        count = weights.shape[1]
        first = self._first(at, count)
        cells = first[:, None] + np.arange(count)
        if node.attr("exclude_outside", 0):
            weights = np.where((cells < 0) | (cells >= size), 0.0, weights)
            total = weights.sum(-1, keepdims=True)
            weights = weights / np.where(total == 0, 1.0, total)
        self.positions: Array = np.clip(cells, 0, max(size - 1, 0)).astype(np.int64)
        self.weights: Array = weights

    def _origin(self, y: Array) -> Array:
        mode = self.node.attr("coordinate_transformation_mode", "half_pixel")
        if self.node.proto.op_type == "Upsample" or self.node.version < 11:
            mode = "asymmetric"
        match mode:
            case "align_corners":
                return np.zeros_like(y) if self.new == 1 else y * (self.size - 1) / (self.new - 1)
            case "asymmetric":
                return y / self.scale
            case "half_pixel":
                return (y + 0.5) / self.scale - 0.5
            case "pytorch_half_pixel":
                return np.zeros_like(y) if self.new == 1 else (y + 0.5) / self.scale - 0.5
            case "half_pixel_symmetric":
                offset = self.size / 2 * (1 - self.new / (self.scale * self.size))
                return offset + (y + 0.5) / self.scale - 0.5
            case "tf_crop_and_resize":
                start, end = self.roi or (0.0, 1.0)
                if self.new == 1:
                    at = np.full_like(y, (end - start) * (self.size - 1) / 2)
                else:
                    at = y * (end - start) * (self.size - 1) / (self.new - 1)
                at = at + start * (self.size - 1)
                self.outside = (at < 0) | (at > self.size - 1)
                return at
        self.node.invalid("A coordinate transformation is of the standard.", mode)

    def _weights(self, ratio: Array) -> Array:
        smooth = bool(self.node.attr("antialias", 0))
        match self.node.attr("mode", "nearest"):
            case "nearest":
                return self._nearest(ratio)
            case "linear" | "bilinear":
                if smooth:
                    return _smooth_linear(ratio, self.scale)
                return np.stack([1 - ratio, ratio], -1)
            case "cubic":
                a = self.node.attr("cubic_coeff_a", -0.75)
                if smooth:
                    return _smooth_cubic(ratio, self.scale, a)
                return np.stack(_keys_of_cubic(ratio, a), axis=-1)
            case other:
                self.node.invalid("A mode is of the standard.", other)

    def _nearest(self, ratio: Array) -> Array:
        rounding = self.node.attr("nearest_mode", "round_prefer_floor")
        if self.node.proto.op_type == "Upsample" or self.node.version < 11:
            rounding = "floor"
        upper = {
            "round_prefer_floor": ratio > 0.5,
            "round_prefer_ceil": ratio >= 0.5,
            "floor": np.zeros(ratio.shape, bool),
            "ceil": np.ones(ratio.shape, bool),
        }
        if rounding not in upper:
            self.node.invalid("A rounding is of the standard.", rounding)
        chosen = upper[rounding] | (ratio == 1.0)
        return np.stack([~chosen, chosen], -1).astype(np.float64)

    @staticmethod
    def _first(at: Array, count: int) -> Array:
        """Return the first of the nearest cells, the lower one of two at equal distance."""
        whole = np.floor(at).astype(np.int64)
        rest = at - whole
        if count % 2 == 0:
            return whole + np.where(rest == 0, -(count // 2), 1 - count // 2)
        base = -((count - 1) // 2)
        return whole + np.where(rest <= 0.5, base, base + 1)


def _resized(node: Node, x: Tensor, axis: int, plan: _Axis, rank: int, outside: float) -> Tensor:
    """Apply the weights along one axis."""
    form = [plan.new if at == axis else 1 for at in range(rank)]
    one_hot = (plan.weights != 0).sum(-1).max(initial=0) <= 1 and np.all(
        plan.weights.max(-1, initial=0) == 1
    )
    if one_hot:
        chosen = np.take_along_axis(plan.positions, plan.weights.argmax(-1)[:, None], 1)[:, 0]
        result = oc.take(x, oc.tensor(chosen), axis=axis)
    else:
        result = None
        for k in range(plan.weights.shape[1]):
            weights = plan.weights[:, k].astype(np.float32).reshape(form)
            if not weights.any():
                continue
            part = oc.take(x, oc.tensor(plan.positions[:, k].copy()), axis=axis) * oc.tensor(
                weights
            )
            result = part if result is None else result + part
        if result is None:
            result = oc.take(x, oc.tensor(plan.positions[:, 0].copy()), axis=axis) * 0.0
    if plan.outside is not None and plan.outside.any():
        result = oc.where(oc.tensor(plan.outside.reshape(form)), outside, result)
    return result


@operator("Resize", since=10)
@operator("Upsample", since=7)
def resize(
    node: Node,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
) -> Value:
    if node.proto.op_type == "Upsample" or node.version == 10:
        roi, scales = None, roi  # the only other input
    axes = tuple(axis_of(node, each, x.rank) for each in node.attr("axes", range(x.rank)))
    old = [x.shape[each] for each in axes]
    if sizes is not None and sizes.shape != (0,):
        policy = node.attr("keep_aspect_ratio_policy", "stretch")
        marks = [None] * len(axes) if sizes.extents is None else list(sizes.extents)
        is_kept = policy == "stretch" and all(
            mark is None or mark is x.extent(axis) for mark, axis in zip(marks, axes, strict=True)
        )
        new = list(node.known_sizes(sizes, "sizes", or_extents=is_kept))
        factors = [n / o for n, o in zip(new, old, strict=True)]
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(axes)
            new = [int(factor * each + 0.5) for each in old]
    else:
        given = node.attr("scales") if scales is None else node.known(scales, "scales").reshape(-1)
        if given is None or len(given) != len(axes):
            node.invalid("Each resized axis has a scale.", f"{given} for {len(axes)} axes")
        factors = [float(each) for each in given]
        new = [int(np.float32(f) * o) for f, o in zip(given, old, strict=True)]
    region = None
    if (
        roi is not None
        and roi.shape not in ((), (0,))
        and node.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
    ):
        region = node.known(roi, "region").reshape(-1)
    wide = x.format.name in ("float32", "float64") or node.attr("mode", "nearest") == "nearest"
    tensor = x.tensor if wide else oc.cast(x.tensor, "float32")
    outside = node.attr("extrapolation_value", 0.0)
    for k, axis in enumerate(axes):
        own = None if region is None else (float(region[k]), float(region[len(axes) + k]))
        if math.isclose(factors[k], 1.0) and new[k] == old[k] and own in (None, (0.0, 1.0)):
            continue
        plan = _Axis(node, old[k], new[k], factors[k], own)
        tensor = _resized(node, tensor, axis, plan, x.rank, outside)
    if not wide:
        if x.format.is_integer:
            low, high = x.format.range
            tensor = oc.clip(oc.round(tensor), float(low), float(high))
        tensor = oc.cast(tensor, x.format.carrier)
    return moved(x, oc.primitives.identity(tensor) if tensor is x.tensor else tensor)


# positions computed at run time


def _inside(at: Tensor, size: int) -> Tensor:
    return oc.less_equal(0.0, at, dtype="bool") & oc.less_equal(at, float(size - 1), dtype="bool")


def gathered(image: Tensor, shape: Sizes, places: Tensor, count: int) -> Tensor:
    """Return cells `[n, c, p]` of an image `[n, c, ...]` at row-major positions `[n, p]`."""
    flat = reshaped(image, [shape[0], shape[1], math.prod(shape[2:])])
    index = oc.broadcast_to(reshaped(places, [shape[0], 1, count]), shape[0], shape[1], count)
    return oc.take_along(flat, index, axis=2)


def _row_major(cells: list[Tensor], sizes: Sizes) -> Tensor:
    total: Any = 0
    for cell, size in zip(cells, sizes, strict=True):
        total = cell if isinstance(total, int) else total * size + cell
    return oc.cast(total, "int64")


def sampled_bilinear(image: Tensor, shape: Sizes, ys: Tensor, xs: Tensor, count: int) -> Tensor:
    """Return bilinear interpolations `[n, c, p]`, zero outside of the image."""
    return _sampled(image, shape, [ys, xs], count, "zeros", "linear", None)


def _reflected(at: Tensor, low: float, high: float) -> Tensor:
    length = high - low
    if length == 0:
        return at * 0.0 + low
    rest = oc.remainder(oc.abs(at - low), 2 * length)
    return low + oc.where(oc.less_equal(rest, length, dtype="bool"), rest, 2 * length - rest)


def _sampled(
    image: Tensor, shape: Sizes, at: list[Tensor], count: int, border: str, mode: str,
    bounds: list[tuple[float, float]] | None,
) -> Tensor:  # fmt: skip
    """Return interpolations `[n, c, p]` at coordinates `[n, p]` along each axis."""
    sizes = shape[2:]
    offsets = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}[mode]
    choices: list[list[tuple[Tensor, Any, Any]]] = []
    for k, (position, size) in enumerate(zip(at, sizes, strict=True)):
        base = position if mode == "nearest" else oc.floor(position)
        ratio = position - base
        own = []
        for offset, weight in zip(offsets, _weights_at(ratio, mode), strict=True):
            cell = base + float(offset) if offset else base
            mask: Any = None
            if border == "zeros":
                mask = _inside(cell, size)
            elif border == "reflection":
                assert bounds is not None
                cell = oc.trunc(_reflected(cell, *bounds[k]))
            own.append((oc.clip(cell, 0.0, float(size - 1)), weight, mask))
        choices.append(own)
    result: Any = None
    for corner in itertools.product(*choices):
        places = _row_major([each[0] for each in corner], sizes)
        cells = gathered(image, shape, places, count)
        factor: Any = None
        for _, weight, mask in corner:
            own_factor = (
                weight if mask is None else oc.where(mask, 1.0 if weight is None else weight, 0.0)
            )
            if own_factor is not None:
                factor = own_factor if factor is None else factor * own_factor
        if factor is not None:
            cells = cells * reshaped(factor, [shape[0], 1, count])
        result = cells if result is None else result + cells
    return result


def _weights_at(ratio: Tensor, mode: str) -> list[Any]:
    if mode == "nearest":
        return [None]
    if mode == "linear":
        return [1.0 - ratio, ratio]
    return _keys_of_cubic(ratio, -0.75)


@operator("GridSample", since=16)
def grid_sample(node: Node, x: Value, grid: Value) -> Value:
    sizes, out = x.shape[2:], grid.shape[1:-1]
    mode = node.attr("mode", "linear").removeprefix("bi").replace("cubic", "cubic")
    border, corners = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    count = math.prod(out)
    if 0 in (*x.shape, count):
        return Value.of_array(np.zeros((*x.shape[:2], *out), x.format.numpy), x.format)
    flat = reshaped(oc.cast(grid.tensor, "float32"), [x.shape[0], count, len(sizes)])
    at, bounds = [], []
    for k, size in enumerate(sizes):
        unit = flat[:, :, len(sizes) - 1 - k]
        place = (
            (unit + 1.0) * (0.5 * (size - 1))
            if corners
            else ((unit + 1.0) * float(size) - 1.0) * 0.5
        )
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if mode == "nearest":
            place = oc.round(place)
        if border == "border":
            outside = oc.less(place, low, dtype="bool") | oc.less(high, place, dtype="bool")
            place = oc.where(outside, oc.clip(place, 0.0, size - 1.0), place)
        elif border == "reflection":
            place = _reflected(place, low, high)
            if mode == "nearest":
                place = oc.trunc(place)
        at.append(place)
        bounds.append((low, high))
    result = _sampled(x.tensor, x.shape, at, count, border, mode, bounds)
    return moved(x, reshaped(result, [*x.shape[:2], *out]))


@operator("AffineGrid", since=20)
def affine_grid(node: Node, theta: Value, size: Value) -> Tensor:
    sizes = node.known_sizes(size, "size")[2:]
    axes = []
    for each in sizes:
        if node.attr("align_corners", 0):
            axes.append(np.linspace(-1.0, 1.0, each) if each > 1 else np.array([-1.0]))
        else:
            axes.append((2 * np.arange(each) + 1) / each - 1)
    planes = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*reversed(planes), np.ones(sizes)], axis=-1).astype(np.float32)
    names = "".join(f"p{k}, " for k in range(len(sizes)))
    return oc.einsum(f"n, r, h; {names} h => n, {names} r", theta.tensor, oc.tensor(points))


@operator("RoiAlign", since=10)
def roi_align(node: Node, x: Value, rois: Value, batch: Value) -> Value:
    ph, pw = node.attr("output_height", 1), node.attr("output_width", 1)
    ratio, scale = node.attr("sampling_ratio", 0), node.attr("spatial_scale", 1.0)
    default = "half_pixel" if node.version >= 16 else "output_half_pixel"
    half = node.attr("coordinate_transformation_mode", default) == "half_pixel"
    number = rois.shape[0]
    if ratio > 0:
        return moved(
            x,
            _regions(
                node, x, rois.tensor, batch.tensor, number, (ph, pw), (ratio, ratio), scale, half
            ),
        )
    # the number of samples follows from each region
    boxes = node.known(rois, "regions").astype(np.float64) * scale
    rows = []
    for k in range(number):
        width, height = boxes[k, 2] - boxes[k, 0], boxes[k, 3] - boxes[k, 1]
        if not half:
            width, height = max(width, 1.0), max(height, 1.0)
        samples = (max(math.ceil(height / ph), 1), max(math.ceil(width / pw), 1))
        rows.append(
            _regions(
                node,
                x,
                rois.tensor[k : k + 1],
                batch.tensor[k : k + 1],
                1,
                (ph, pw),
                samples,
                scale,
                half,
            )
        )
    return moved(x, oc.concat(rows, axis=0) if len(rows) > 1 else rows[0])


def _regions(
    node: Node, x: Value, rois: Tensor, batch: Tensor, number: int,
    pooled: tuple[int, int], samples: tuple[int, int], scale: float, half: bool,
) -> Tensor:  # fmt: skip
    """Return the pooled samples `[r, c, ph, pw]` of regions."""
    _, channels, height, width = x.shape
    corners = oc.cast(rois, x.format.carrier) * scale - (0.5 if half else 0.0)
    coordinates = []
    for low, high, bins, per in ((1, 3, pooled[0], samples[0]), (0, 2, pooled[1], samples[1])):
        start, length = corners[:, low], corners[:, high] - corners[:, low]
        if not half:
            length = oc.maximum(length, 1.0)
        unit = (
            ((np.arange(bins)[:, None] + (np.arange(per) + 0.5) / per) / bins)
            .reshape(-1)
            .astype(np.float32)
        )
        coordinates.append(
            oc.expand_dims(start, 1) + oc.expand_dims(length, 1) * oc.tensor(unit)
        )  # [r, bins * per]
    rows, columns = pooled[0] * samples[0], pooled[1] * samples[1]
    ys = oc.broadcast_to(reshaped(coordinates[0], [number, rows, 1]), number, rows, columns)
    xs = oc.broadcast_to(reshaped(coordinates[1], [number, 1, columns]), number, rows, columns)
    valid = (
        oc.less_equal(-1.0, ys, dtype="bool") & oc.less_equal(ys, float(height), dtype="bool")
        & oc.less_equal(-1.0, xs, dtype="bool") & oc.less_equal(xs, float(width), dtype="bool")
    )  # fmt: skip
    y = oc.clip(ys, 0.0, height - 1.0)
    z = oc.clip(xs, 0.0, width - 1.0)
    count = rows * columns
    images = oc.take(x.tensor, node.valid_positions(oc.cast(batch, "int64")), axis=0)
    shape = (number, channels, height, width)
    y0, x0 = oc.floor(y), oc.floor(z)
    parts = []
    for dy, dx in itertools.product((0, 1), (0, 1)):
        cell_y, cell_x = (
            oc.minimum(y0 + float(dy), height - 1.0),
            oc.minimum(x0 + float(dx), width - 1.0),
        )
        weight = ((y - y0) if dy else 1.0 - (y - y0)) * ((z - x0) if dx else 1.0 - (z - x0))
        places = _row_major(
            [reshaped(cell_y, [number, count]), reshaped(cell_x, [number, count])], (height, width)
        )
        weight = reshaped(oc.where(valid, weight, 0.0), [number, 1, count])
        parts.append(gathered(images, shape, places, count) * weight)
    split = [number, channels, pooled[0], samples[0], pooled[1], samples[1]]
    if node.attr("mode", "avg") == "avg":
        total = parts[0] + parts[1] + parts[2] + parts[3]
        return oc.mean(reshaped(total, split), axis=(3, 5))
    most = oc.maximum(oc.maximum(parts[0], parts[1]), oc.maximum(parts[2], parts[3]))
    return oc.max(reshaped(most, split), axis=(3, 5))


@operator("NonMaxSuppression", since=10)
def non_max_suppression(
    node: Node,
    boxes: Value,
    scores: Value,
    most: Value | None = None,
    overlap: Value | None = None,
    least: Value | None = None,
) -> Any:
    """Select boxes, whose number follows from coordinates and scores."""

    def number(value: Value | None, name: str, default: float) -> float:
        return default if value is None else float(node.known(value, name).reshape(-1)[0])

    limit, most_shared = int(number(most, "greatest number", 0)), number(overlap, "overlap", 0.0)
    threshold = None if least is None else number(least, "least score", 0.0)
    limit = min(limit, boxes.shape[1])
    bound = node.bound(boxes, scores)
    if bound is not None and limit and 0 not in scores.shape:
        return _selected_at_run_time(node, boxes, scores, limit, most_shared, threshold, bound)
    corners, points = node.known(boxes, "boxes"), node.known(scores, "scores")
    chosen = []
    for batch, category in itertools.product(range(points.shape[0]), range(points.shape[1])):
        own = points[batch, category]
        order = np.argsort(-own, kind="stable")
        if threshold is not None:
            order = order[own[order] > threshold]
        kept: list[int] = []
        for at in order:
            if len(kept) >= limit:
                break
            if all(
                _overlap(corners[batch, at], corners[batch, k], node.attr("center_point_box", 0))
                <= most_shared
                for k in kept
            ):
                kept.append(int(at))
        chosen += [(batch, category, at) for at in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _selected_at_run_time(
    node: Node,
    boxes: Value,
    scores: Value,
    limit: int,
    most_shared: float,
    threshold: float | None,
    bound: int,
) -> Value:
    """Select the box of the best score that is left, step by step, and drop those that share too
    much with it.
    """
    batch, classes, count = scores.shape

    def row(tensor: Tensor) -> Tensor:
        return reshaped(tensor, [batch, 1, count])

    parts = [row(boxes.tensor[:, :, k]) for k in range(4)]
    if node.attr("center_point_box", 0):
        x, y, width, height = parts
        low_y, low_x, high_y, high_x = (
            y - height / 2.0, x - width / 2.0, y + height / 2.0, x + width / 2.0
        )  # fmt: skip
    else:
        low_y, low_x = oc.minimum(parts[0], parts[2]), oc.minimum(parts[1], parts[3])
        high_y, high_x = oc.maximum(parts[0], parts[2]), oc.maximum(parts[1], parts[3])
    corners = (low_y, low_x, high_y, high_x, (high_y - low_y) * (high_x - low_x))
    places = oc.tensor(np.arange(count, dtype=np.int32).reshape(1, 1, count))
    left = scores.tensor
    if threshold is not None:
        left = oc.where(oc.less(threshold, left, dtype="bool"), left, -math.inf)

    def step(left: Tensor, _: Any) -> tuple[Tensor, dict[str, Tensor]]:
        best = oc.argmax(left, axis=2, keepdims=True)
        is_found = oc.less(-math.inf, oc.max(left, axis=2), dtype="bool")
        own_low_y, own_low_x, own_high_y, own_high_x, own_area = (
            oc.take_along(oc.broadcast_to(each, batch, classes, count), best, axis=2)
            for each in corners
        )
        height = oc.minimum(own_high_y, high_y) - oc.maximum(own_low_y, low_y)
        width = oc.minimum(own_high_x, high_x) - oc.maximum(own_low_x, low_x)
        shared = oc.maximum(height, 0.0) * oc.maximum(width, 0.0)
        union = own_area + corners[4] - shared
        ratio = oc.where(oc.less(0.0, union, dtype="bool"), shared / union, 0.0)
        is_gone = oc.logical_or(oc.less(most_shared, ratio), oc.equal(places, best), dtype="bool")
        result = {"best": reshaped(best, [batch, classes]), "is_found": is_found}
        return oc.where(is_gone, -math.inf, left), result

    results, _ = oc.scan(step, left, length=limit)
    best, is_found = (
        reshaped(oc.einsum("t | b, c => b, c, t", results[name]), [batch * classes * limit])
        for name in ("best", "is_found")
    )
    found = chosen(node, oc.not_equal(is_found, 0, dtype="bool"), bound)
    of_batch, of_class, _ = along(found.positions, (batch, classes, limit))
    box = oc.cast(oc.take(best, found.positions), "int64")
    return found.value(node, oc.stack([of_batch, of_class, box], axis=1), 0)


def _overlap(a: Array, b: Array, is_centered: int) -> float:
    """Return the intersection of two boxes over their union."""

    def bounds(box: Array) -> tuple[float, float, float, float]:
        if is_centered:
            x, y, w, h = map(float, box)
            return y - h / 2, x - w / 2, y + h / 2, x + w / 2
        y0, x0, y1, x1 = map(float, box)
        return min(y0, y1), min(x0, x1), max(y0, y1), max(x0, x1)

    one, two = bounds(a), bounds(b)
    height = max(min(one[2], two[2]) - max(one[0], two[0]), 0.0)
    width = max(min(one[3], two[3]) - max(one[1], two[1]), 0.0)
    shared = height * width
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    union = areas[0] + areas[1] - shared
    return shared / union if union > 0 else 0.0


@operator("ImageDecoder", since=20)
def image_decoder(node: Node, data: Value) -> Array:
    """Decode a file of a picture, whose bytes are known."""
    content, colors = node.known(data, "file").tobytes(), node.attr("pixel_format", "RGB")
    if colors not in ("RGB", "BGR", "Grayscale"):
        node.invalid("`pixel_format` is RGB, BGR or Grayscale.", str(colors))
    try:
        from PIL import Image
    except ImportError:
        node.refuse(
            "files of pictures need the package pillow", "pip install ocannl-onnx[pictures]"
        )
    try:
        with Image.open(io.BytesIO(content)) as picture:
            cells = np.asarray(picture.convert("L" if colors == "Grayscale" else "RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        node.invalid("The file is a picture that Pillow reads.", str(error))
    if colors == "Grayscale":
        return cells[:, :, None]
    return cells[:, :, ::-1] if colors == "BGR" else cells
