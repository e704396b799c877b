"""Products: matrices, einsum, convolutions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.movement import moved, padded, reshaped, section
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Sizes, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


def labels(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{k}" for k in range(count)]


def spec_of(*axes: list[str]) -> str:
    """Return a specification from the axes of operands and result, which have output axes only."""
    *operands, result = ("".join(f"{each}, " for each in row) for row in axes)
    return f"{'; '.join(operands)} => {result}"


def summed(spec: str, *operands: Tensor, dtype: str | None, **named: Any) -> Tensor:
    """Return sums of products, of narrow floats accumulated in `float32` and rounded once."""
    if dtype in ("float16", "bfloat16"):
        return oc.cast(oc.einsum(spec, *operands, dtype="float32", **named), dtype)
    return oc.einsum(spec, *operands, dtype=dtype, **named)


def matmul_shape(a: Sizes, b: Sizes) -> Sizes:
    return np.broadcast_shapes(a[:-2], b[:-2])


def product(
    node: Node, a: Tensor, left: Sizes, b: Tensor, right: Sizes, dtype: str | None = None
) -> Tensor:
    """Return the product of stacks of matrices, as `numpy.matmul` does."""
    if not left or not right or left[-1] != right[0 if len(right) == 1 else -2]:
        node.invalid(
            "The last axis of the left operand fits the right one.", f"{list(left)} @ {list(right)}"
        )
    if len(left) == 1:
        a, left = reshaped(a, [1, *left]), (1, *left)
        squeeze_left = True
    else:
        squeeze_left = False
    squeeze_right = len(right) == 1
    if squeeze_right:
        b, right = reshaped(b, [*right, 1]), (*right, 1)
    outer = matmul_shape(left, right)
    rank = len(outer)
    batch = labels("b", rank)

    def own(sizes: Sizes) -> list[str]:
        """Name the stack's axes; axes of size 1 that broadcast are left out."""
        count = len(sizes) - 2
        return [
            batch[rank - count + k] if sizes[k] == outer[rank - count + k] else "0"
            for k in range(count)
        ]

    spec = spec_of([*own(left), "i", "k"], [*own(right), "k", "j"], [*batch, "i", "j"])
    shape = [*outer, left[-2], right[-1]]
    result = node.sized(summed(spec, a, b, dtype=dtype), shape)
    if squeeze_left:
        del shape[-2]
    if squeeze_right:
        del shape[-1]
    return reshaped(result, shape) if squeeze_left or squeeze_right else result


@operator("MatMul")
def matmul(node: Node, a: Value, b: Value) -> Value:
    return moved(a, product(node, a.tensor, a.shape, b.tensor, b.shape, a.format.carrier))


@operator("Gemm", since=6)
def gemm(node: Node, a: Value, b: Value, c: Value | None = None) -> Value:
    left = ["k", "i"] if node.attr("transA", 0) else ["i", "k"]
    right = ["j", "k"] if node.attr("transB", 0) else ["k", "j"]
    result: Any = summed(
        spec_of(left, right, ["i", "j"]), a.tensor, b.tensor, dtype=a.format.carrier
    )
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if alpha != 1.0:
        result = oc.cast(result * _scalar(a, alpha), a.format.carrier)
    if c is not None and beta != 0.0:
        result = result + (
            c.tensor if beta == 1.0 else oc.cast(c.tensor * _scalar(a, beta), a.format.carrier)
        )
    return moved(a, result)


def _scalar(like: Value, number: float) -> Any:
    return int(number) if like.format.is_integer and number == int(number) else number


@operator("Einsum", since=12)
def einsum(node: Node, *values: Value) -> Value:
    equation = node.attr("equation", "").replace(" ", "")
    operands, arrow, result = equation.partition("->")
    terms = operands.split(",")
    if len(terms) != len(values):
        node.invalid("The equation has a term for each operand.", equation)
    widest = 0
    for term, value in zip(terms, values, strict=True):
        if "..." in term:
            widest = max(widest, value.rank - len(term.replace("...", "")))
    if not arrow:
        letters = "".join(terms).replace(".", "")
        result = ("..." if "..." in operands else "") + "".join(
            sorted(each for each in set(letters) if letters.count(each) == 1)
        )

    def axes(term: str, value: Value | None) -> list[str]:
        before, dots, after = term.partition("...")
        count = 0
        if dots:
            count = widest if value is None else value.rank - len(before) - len(after)
        middle = [f"e{k}" for k in range(widest - count, widest)]
        named = [*(f"x{ord(c)}" for c in before), *middle, *(f"x{ord(c)}" for c in after)]
        if value is not None:
            if len(named) != value.rank:
                node.invalid("A term names each axis.", f"{term!r} for {list(value.shape)}")
            named = [
                "0" if name.startswith("e") and size == 1 and wide.get(name, 1) > 1 else name
                for name, size in zip(named, value.shape, strict=True)
            ]
        return named

    wide: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        for name, size in zip(axes(term, value), value.shape, strict=True):
            wide[name] = max(wide.get(name, 1), size)
    spec = spec_of(*(axes(t, v) for t, v in zip(terms, values, strict=True)), axes(result, None))
    tensors = [each.tensor for each in values]
    with oc.settings.overrides(warn_summed_once=False):  # the equation states the sum
        return moved(values[0], summed(spec, *tensors, dtype=values[0].format.carrier))


# convolutions


def window_geometry(
    node: Node, sizes: Sizes, kernel: Sizes, dilations: Sizes, strides: Sizes, ceil: bool = False
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the widths of padding before and after each axis, and the numbers of windows."""
    count = len(sizes)
    pads = node.attr("pads", (0,) * (2 * count))
    auto = node.attr("auto_pad", "NOTSET")
    widths, outputs = [], []
    for k in range(count):
        span = dilations[k] * (kernel[k] - 1) + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            output = -(-sizes[k] // strides[k])
            needed = max((output - 1) * strides[k] + span - sizes[k], 0)
            less, more = needed // 2, needed - needed // 2
            before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
        else:
            before, after = (0, 0) if auto == "VALID" else (pads[k], pads[count + k])
            room = sizes[k] + before + after - span
            if room < 0:
                node.invalid(
                    "A window fits into the padded axis.",
                    f"a window of {span} in {sizes[k] + before + after}",
                )
            output = room // strides[k] + 1
            if ceil and room % strides[k]:
                # windows that start behind the input are left out
                output += (output * strides[k]) < sizes[k] + before
        widths.append((before, after))
        outputs.append(output)
    return widths, outputs


def slid_axes(
    node: Node, tensor: Tensor, lead: int, sizes: Sizes, widths: list[tuple[int, int]],
    outputs: list[int], kernel: Sizes, dilations: Sizes, strides: Sizes,
    value: Any = 0.0, *, is_neutral: bool = True,
) -> tuple[Tensor, list[str]]:  # fmt: skip
    """Return a tensor, and its axes as windows slide over them.

    Windows of a computed tensor exceed an axis where as many strides as there are windows cover it:
    its margins are padding that takes no copy. Other axes are padded and cropped, so that windows
    cover them exactly; the cells of a model's input stay beside each other, as callers fill them.

    Args:
        lead: The axes in front.
        value: The number outside of the axes.
        is_neutral: True if cells outside of an axis change no result.
    """
    all_widths = [(0, 0)] * lead
    crops: list[int] = []
    axes: list[str] = []
    has_margins = is_neutral and bool(tensor.operands) and not node.importer.has_extents
    for k, (before, _) in enumerate(widths):
        span = dilations[k] * (kernel[k] - 1) + 1
        after = strides[k] * (outputs[k] - 1) + span - sizes[k] - before
        is_covered = strides[k] * outputs[k] == sizes[k]
        offset = span // 2 - before
        if has_margins and is_covered and 0 <= offset <= strides[k] and max(before, after) > 0:
            axes.append(f"{strides[k]}*o{k}=+{offset}+{dilations[k]}*k{k}")
            before = after = 0
        else:
            axes += windows(1, (strides[k],), (dilations[k],), first=k)
        crops.append(min(after, 0))
        all_widths.append((before, max(after, 0)))
    for k, crop in enumerate(crops):
        if crop < 0:
            tensor = section(tensor, lead + k, 0, sizes[k] + crop)
    if any(before or after for before, after in all_widths) and not node.importer.has_extents:
        outer = tuple(tensor.shape.dims)
        sizes = tuple(s + a + b for s, (a, b) in zip(outer, all_widths, strict=True))
        return node.sized(padded(tensor, all_widths, value), sizes), axes
    return padded(tensor, all_widths, value), axes


def windows(count: int, strides: Sizes, dilations: Sizes, first: int = 0) -> list[str]:
    """Return axes that windows cover exactly, numbered from a first one."""
    return [f"{strides[k]}*o{first + k}<+{dilations[k]}*k{first + k}" for k in range(count)]


def convolved(
    node: Node,
    x: Tensor,
    shape: Sizes,
    w: Tensor,
    weights: Sizes,
    dtype: str | None,
    value: Any = 0.0,
    *,
    channels_last: bool = False,
) -> Tensor:
    """Return a convolution without a bias.

    Args:
        weights: The sizes of the weight, in the order of the operator.
        value: The number outside of the image.
        channels_last: True if the tensor `w` has the channels after the axes of the window.
    """
    count = len(shape) - 2
    if len(weights) != len(shape):
        node.invalid(
            "The weight has as many axes as the input.", f"{list(weights)} and {list(shape)}"
        )
    kernel = weights[2:]
    groups = node.attr("group", 1)
    strides = node.attr("strides", (1,) * count)
    dilations = node.attr("dilations", (1,) * count)
    if groups < 1 or shape[1] != weights[1] * groups or weights[0] % groups:
        node.invalid(
            "The weight has the input's channels, divided by the groups.",
            f"{list(weights)} for {shape[1]} channels in {groups} groups",
        )
    if node.attr("kernel_shape", kernel) != kernel:
        node.invalid(
            "`kernel_shape` has the sizes of the weight.",
            f"{node.attr('kernel_shape')} and {kernel}",
        )
    widths, outputs = window_geometry(node, shape[2:], kernel, dilations, strides)
    is_zero = not isinstance(value, Tensor) and value == 0
    x, slid = slid_axes(
        node, x, 2, shape[2:], widths, outputs, kernel, dilations, strides, value,
        is_neutral=is_zero,
    )  # fmt: skip
    cells, places = labels("k", count), labels("o", count)
    if groups == 1:
        window = [*cells, "c"] if channels_last else ["c", *cells]
        spec = spec_of(["n", "c", *slid], ["m", *window], ["n", "m", *places])
        return node.sized(summed(spec, x, w, dtype=dtype), (shape[0], weights[0], *outputs))
    per = weights[0] // groups
    if weights[1] == per == 1:  # depthwise: the axes keep their places
        spec = spec_of(["n", "g", *slid], ["g", "0", *cells], ["n", "g", *places])
        return node.sized(summed(spec, x, w, dtype=dtype), (shape[0], groups, *outputs))
    sizes = tuple(x.shape.dims)[2:]
    x = reshaped(x, [shape[0], groups, weights[1], *sizes])
    axes = ["c", *cells]
    sizes = weights[1:]
    if channels_last:
        axes, sizes = [*cells, "c"], (*kernel, weights[1])
    w = reshaped(w, [groups, per, *sizes])
    result = summed(
        spec_of(["n", "g", "c", *slid], ["g", "m", *axes], ["n", "g", "m", *places]),
        x,
        w,
        dtype=dtype,
    )
    node.sized(result, (shape[0], groups, per, *outputs))
    return reshaped(result, [shape[0], weights[0], *outputs])


def add_channels(x: Tensor, bias: Value | None, rank: int) -> Tensor:
    if bias is None:
        return x
    return x + reshaped(bias.tensor, [*bias.shape, *[1] * (rank - 2)])


@operator("Conv")
def conv(node: Node, x: Value, w: Value, bias: Value | None = None) -> Value:
    result = convolved(node, x.tensor, x.shape, w.tensor, w.shape, x.format.carrier)
    sizes = tuple(result.shape.dims)
    return moved(x, node.sized(add_channels(result, bias, x.rank), sizes))


@operator("ConvTranspose")
def conv_transpose(node: Node, x: Value, w: Value, bias: Value | None = None) -> Value:
    count = x.rank - 2
    kernel = w.shape[2:]
    groups = node.attr("group", 1)
    strides = node.attr("strides", (1,) * count)
    dilations = node.attr("dilations", (1,) * count)
    extra = node.attr("output_padding", (0,) * count)
    wanted = node.attr("output_shape")
    auto = node.attr("auto_pad", "NOTSET")
    pads = node.attr("pads", (0,) * (2 * count))
    full = [
        strides[k] * (x.shape[2 + k] - 1) + dilations[k] * (kernel[k] - 1) + 1 for k in range(count)
    ]
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(x.shape[2 + k] * strides[k] for k in range(count))
    crops = []
    for k in range(count):
        if wanted is not None:
            total = full[k] + extra[k] - wanted[-count + k]
            less, more = total // 2, total - total // 2
            crops.append((less, more) if auto == "SAME_UPPER" else (more, less))
        else:
            crops.append((0, 0) if auto == "VALID" else (pads[k], pads[count + k]))
    per_in, per_out = x.shape[1] // groups, w.shape[1]
    tensor = reshaped(x.tensor, [x.shape[0], groups, per_in, *x.shape[2:]])
    weight = reshaped(w.tensor, [groups, per_in, per_out, *kernel])
    places, cells = labels("o", count), labels("k", count)
    result = summed(
        spec_of(
            ["n", "g", "c", *places],
            ["g", "c", "m", *cells],
            ["n", "g", "m", *windows(count, strides, dilations)],
        ),
        tensor, weight, dtype=x.format.carrier,
    )  # fmt: skip
    result = reshaped(result, [x.shape[0], groups * per_out, *full])
    after = [(0, 0), (0, 0)]
    for k, (before, behind) in enumerate(crops):
        stop = full[k] - behind + extra[k]
        result = section(result, 2 + k, before, min(stop, full[k]))
        after.append((0, max(stop - full[k], 0)))
    return moved(x, add_channels(padded(result, after), bias, x.rank))


@operator("DeformConv", since=19)
def deform_conv(
    node: Node,
    x: Value,
    w: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
) -> Value:
    """Read each cell of a window at a position of its own, by bilinear interpolation."""
    from ocannl_onnx.operators.images import sampled_bilinear

    if x.rank != 4:
        node.refuse(f"windows move along 2 axes here, not {x.rank - 2}")
    n, channels, height, width = x.shape
    out_channels, per_in, kh, kw = w.shape
    groups, offset_groups = node.attr("group", 1), node.attr("offset_group", 1)
    strides, dilations = node.attr("strides", (1, 1)), node.attr("dilations", (1, 1))
    widths, (oh, ow) = window_geometry(node, (height, width), (kh, kw), dilations, strides)
    base_y = (
        np.arange(oh)[None, None, :, None] * strides[0]
        - widths[0][0]
        + np.arange(kh)[:, None, None, None] * dilations[0]
    )
    base_x = (
        np.arange(ow)[None, None, None, :] * strides[1]
        - widths[1][0]
        + np.arange(kw)[None, :, None, None] * dilations[1]
    )
    shape = (kh, kw, oh, ow)
    moves = reshaped(offset.tensor, [n, offset_groups, kh, kw, 2, oh, ow])
    ys = moves[:, :, :, :, 0] + oc.tensor(np.broadcast_to(base_y, shape).astype(np.float32))
    xs = moves[:, :, :, :, 1] + oc.tensor(np.broadcast_to(base_x, shape).astype(np.float32))
    per_offset = channels // offset_groups
    count = kh * kw * oh * ow
    image = reshaped(x.tensor, [n * offset_groups, per_offset, height, width])
    flat = [n * offset_groups, count]
    cells = sampled_bilinear(
        image,
        (n * offset_groups, per_offset, height, width),
        reshaped(ys, flat),
        reshaped(xs, flat),
        count,
    )
    cells = reshaped(cells, [n, offset_groups, per_offset, kh, kw, oh, ow])
    if mask is not None:
        cells = cells * reshaped(mask.tensor, [n, offset_groups, 1, kh, kw, oh, ow])
    cells = reshaped(cells, [n, groups, per_in, kh, kw, oh, ow])
    weight = reshaped(w.tensor, [groups, out_channels // groups, per_in, kh, kw])
    result = summed("n,g,c,a,b,y,x; g,m,c,a,b => n,g,m,y,x", cells, weight, dtype=x.format.carrier)
    result = reshaped(result, [n, out_channels, oh, ow])
    return moved(x, add_channels(result, bias, 4))


__all__ = ["math"]
