"""Products of two tensors by their index maps: `MatMul`, `MatMulInteger`, `Conv`, `ConvTranspose`,
and `Einsum` for all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters
from typing import Any

from ocannl_core.assignments import (
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    IndexMap,
    LoopVar,
    SubAxis,
    VarIndex,
)
from ocannl_onnx.writing.emitter import Size
from ocannl_onnx.writing.views import AffinePosition, View, Views, digits


def product(views: Views, left: View, right: View, kept: Sequence[LoopVar]) -> View:
    """Return the sums of products over all variables that are not kept."""

    def multiplied(one: str, other: str) -> str:
        return views.emit("MatMul", one, other)

    found = matrix_product(views, left, right, kept, multiplied)
    found = found or matrix_product(views, right, left, kept, multiplied)
    if found is not None:
        return found
    every = dict.fromkeys((*left.axes, *right.axes))
    if len(every) > len(ascii_letters):
        raise views.refuse(f"a product over more than {len(ascii_letters)} axes")
    letters = dict(zip(every, ascii_letters, strict=False))
    axes = tuple(var for var in kept if var in every)
    operands = ",".join("".join(letters[v] for v in view.axes) for view in (left, right))
    equation = f"{operands}->{''.join(letters[v] for v in axes)}"
    return View(views.emit("Einsum", left.name, right.name, equation=equation), axes)


def matrix_product(
    views: Views,
    left: View,
    right: View,
    kept: Sequence[LoopVar],
    multiplied: Callable[[str, str], str],
) -> View | None:
    """Return a product of matrices or stacks of them, whose result has its axes in order; None for
    other products.

    Args:
        multiplied: A function that emits the operator.
    """
    inner = [v for v in left.axes if v in right.axes and v not in kept]
    batch = [v for v in kept if v in left.axes and v in right.axes]
    rows = [v for v in kept if v in left.axes and v not in right.axes]
    columns = [v for v in kept if v in right.axes and v not in left.axes]
    is_whole = len(left.axes) == len(batch) + len(rows) + 1
    is_whole &= len(right.axes) == len(batch) + len(columns) + 1
    if not is_whole or len(inner) != 1 or len(columns) != 1 or not rows:
        return None
    if batch and len(rows) != 1:
        return None
    axes = (*batch, *rows, *columns)
    if axes != tuple(v for v in kept if v in axes):
        return None
    orders = (*batch, *rows, *inner), (*batch, *inner, *columns)
    one, other = (
        views.emit.transpose(view.name, [view.axes.index(v) for v in order])
        for view, order in zip((left, right), orders, strict=True)
    )
    return View(multiplied(one, other), axes)


@dataclass(frozen=True)
class MovingWindow:
    """An axis over which a window moves.

    Attributes:
        place: The variable of the places of the window.
        cell: The variable of the cells of the window; None for windows of one cell.
    """

    place: LoopVar
    cell: LoopVar | None
    stride: int
    dilation: int
    before: int
    after: int


def _window(
    views: Views, index: AxisIndex, size: Size, kept: Sequence[LoopVar]
) -> MovingWindow | None:
    """Return the window along an axis; None if there is none, or if operators have no such one."""
    if isinstance(index, SubAxis | ComputedIndex) or not isinstance(size, int):
        return None
    affine = AffinePosition.of(index)
    places = [(c, v) for c, v in affine.terms if v in kept]
    cells = [(c, v) for c, v in affine.terms if v not in kept]
    if affine.indices or len(places) != 1 or len(cells) > 1 or views.size(places[0][1]) is None:
        return None
    ((stride, place),) = places
    dilation, cell = cells[0] if cells else (1, None)
    if stride < 1 or dilation < 1 or place.size is not None or affine.offset > 0:
        return None
    extent = 1 if cell is None else views.extents[cell]
    before = -affine.offset
    reach = dilation * (extent - 1) + 1
    after = max(0, stride * (views.extents[place] - 1) + reach - before - size)
    if (size + before + after - reach) // stride + 1 != views.extents[place]:
        return None
    return MovingWindow(place, cell, stride, dilation, before, after)


@dataclass(frozen=True)
class Windows:
    """An operand that is read through windows.

    Attributes:
        windows: The windows, in the order of their axes.
        axes: For each axis a window, a variable, or None for an axis of size 1.
    """

    windows: tuple[MovingWindow, ...]
    axes: tuple[MovingWindow | LoopVar | None, ...]

    @property
    def plain(self) -> tuple[LoopVar, ...]:
        """The variables of the axes without windows."""
        return tuple(axis for axis in self.axes if isinstance(axis, LoopVar))

    def attributes(self, extents: Mapping[LoopVar, int]) -> dict[str, Any]:
        """Return the attributes of operators with windows."""
        return {
            "kernel_shape": [1 if w.cell is None else extents[w.cell] for w in self.windows],
            "strides": [w.stride for w in self.windows],
            "dilations": [w.dilation for w in self.windows],
            "pads": [w.before for w in self.windows] + [w.after for w in self.windows],
        }


def windows_of(
    views: Views, index_map: IndexMap, sizes: Sequence[Size], kept: Sequence[LoopVar]
) -> Windows | None:
    """Return the windows through which an operand is read; None if there are none, or others than
    operators have.
    """
    axes: list[MovingWindow | LoopVar | None] = []
    for index, size in zip(index_map, sizes, strict=True):
        match index:
            case VarIndex(LoopVar() as var) if views.size(var) == size:
                axes.append(var)
            case FixedIndex(0) if size == 1:
                axes.append(None)
            case _:
                window = _window(views, index, size, kept)
                if window is None:
                    return None
                axes.append(window)
    windows = tuple(axis for axis in axes if isinstance(axis, MovingWindow))
    used = [v for w in windows for v in (w.place, w.cell) if v is not None]
    used += [axis for axis in axes if isinstance(axis, LoopVar)]
    is_simple = len(set(used)) == len(used) and 1 <= len(windows) <= 3
    is_window = any(w.cell is not None for w in windows)
    return Windows(windows, tuple(axes)) if is_simple and is_window else None


def _arranged(views: Views, name: str, found: Windows, groups: Sequence[Sequence[LoopVar]]) -> str:
    """Return an operand with windows as operators take it: groups of plain axes, then windows."""
    ones = [k for k, axis in enumerate(found.axes) if axis is None]
    name = views.emit.squeeze(name, ones, len(found.axes))
    axes = [axis for axis in found.axes if axis is not None]
    order = [axes.index(var) for group in groups for var in group]
    order += [axes.index(window) for window in found.windows]
    name = views.emit.transpose(name, order)
    if all(len(group) == 1 for group in groups):
        return name
    shape = [
        -1 if any(v.size for v in group) else prod(views.extents[v] for v in group)
        for group in groups
    ]
    if sum(v.size is not None for group in groups for v in group) > 1:
        raise views.refuse("windows beside two axes whose sizes are extents")
    rest = views.emit("Shape", name, start=sum(map(len, groups)))
    return views.emit(
        "Reshape", name, views.emit("Concat", views.emit.constant(shape), rest, axis=0)
    )


def _result(views: Views, name: str, groups: Sequence[Sequence[LoopVar]], found: Windows) -> View:
    """Return the result of an operator with windows as a view."""
    axes = tuple(v for group in groups for v in group)
    places = tuple(window.place for window in found.windows)
    if not all(len(group) == 1 for group in groups):
        sizes = [views.size(v) for v in (*axes, *places)]
        name = views.emit.reshape(name, sizes)
    return View(name, (*axes, *places))


def convolution(
    views: Views, name: str, found: Windows, weights: View, kept: Sequence[LoopVar]
) -> View | None:
    """Return the sums of products of windows with weights as `Conv`; None for other products."""
    cells = [window.cell for window in found.windows]
    others = [v for v in weights.axes if v not in cells]
    batch = [v for v in found.plain if v in kept and v not in others]
    group = [v for v in found.plain if v in kept and v in others]
    channels = [v for v in found.plain if v not in kept]
    features = [v for v in others if v in kept and v not in group]
    places = [window.place for window in found.windows]
    is_convolution = all(v in weights.axes for v in cells if v is not None)
    is_convolution &= Counter(channels) == Counter(v for v in others if v not in kept)
    is_convolution &= not any(v in weights.axes for v in places)
    if not is_convolution:
        return None
    x = _arranged(views, name, found, [batch, [*group, *channels]])
    own = [v for v in cells if v is not None]
    order = [weights.axes.index(v) for v in (*group, *features, *channels, *own)]
    w = views.emit.transpose(weights.name, order)
    attributes = found.attributes(views.extents)
    w_sizes = [
        prod(views.extents[v] for v in (*group, *features)),
        prod(views.extents[v] for v in channels),
        *attributes["kernel_shape"],
    ]
    if len(group) + len(features) != 1 or len(channels) != 1 or len(own) < len(cells):
        w = views.emit("Reshape", w, views.emit.constant(w_sizes))
    groups = prod(views.extents[v] for v in group)
    result = views.emit("Conv", x, w, group=groups, **attributes)
    return _result(views, result, [batch, [*group, *features]], found)


def maxima(views: Views, name: str, found: Windows, kept: Sequence[LoopVar]) -> View | None:
    """Return the maxima of windows as `MaxPool`; None for other maxima."""
    if any(v not in kept for v in found.plain):
        return None
    attributes = found.attributes(views.extents)
    sizes = attributes["kernel_shape"] * 2
    if any(pad >= size for pad, size in zip(attributes["pads"], sizes, strict=True)):
        return None
    plain = list(found.plain)
    groups = [plain[:-1], plain[-1:]]
    x = _arranged(views, name, found, groups)
    return _result(views, views.emit("MaxPool", x, **attributes), groups, found)


@dataclass(frozen=True)
class OverlappingWindow:
    """An axis of a result to which the windows of all places are added.

    Attributes:
        place: The variable of the places of the window, an axis of the first factor.
        cell: The variable of the cells of the window, an axis of the other factor; None for windows
            of one cell.
        before: The cells that the windows have before the first cell of the axis.
        after: The cells that they have behind the last one; negative where the axis is longer.
        is_disjoint: True if each cell of the axis is in one window.
    """

    place: LoopVar
    cell: LoopVar | None
    stride: int
    dilation: int
    before: int
    after: int
    size: int
    is_disjoint: bool


def _overlapping_window(
    views: Views, index: AxisIndex, size: Size, x: View, w: View
) -> OverlappingWindow | None:
    """Return the windows along an axis of a result; None for others than `ConvTranspose` has."""
    if isinstance(index, SubAxis | ComputedIndex | ConcatIndex) or not isinstance(size, int):
        return None
    affine = AffinePosition.of(index)
    places = [(c, v) for c, v in affine.terms if v in x.axes and v not in w.axes]
    cells = [(c, v) for c, v in affine.terms if v in w.axes and v not in x.axes]
    if affine.indices or len(places) != 1 or len(cells) > 1:
        return None
    if len(places) + len(cells) != len(affine.terms):
        return None
    ((stride, place),) = places
    dilation, cell = cells[0] if cells else (1, None)
    if stride < 1 or dilation < 1 or place.size is not None or affine.offset > 0:
        return None
    extent = 1 if cell is None else views.extents[cell]
    reach = stride * (views.extents[place] - 1) + dilation * (extent - 1) + 1
    before = -affine.offset
    after = reach - before - size
    if -after >= stride or 0 in (extent, views.extents[place]):
        return None
    is_disjoint = digits(affine, views.extents, size) is not None
    return OverlappingWindow(place, cell, stride, dilation, before, after, size, is_disjoint)


def transposed_convolution(
    views: Views, x: View, w: View, lhs: IndexMap, sizes: Sequence[Size]
) -> tuple[View, list[LoopVar | OverlappingWindow]] | None:
    """Return the sums of overlapping windows as `ConvTranspose`, with the axes of the result; None
    for other products. The view has the variables of places in place of the windows.

    Args:
        lhs: The positions in the result to which the products of `x` and `w` are added.
        sizes: The sizes of the axes of the result.
    """
    axes: list[LoopVar | OverlappingWindow] = []
    for index, size in zip(lhs, sizes, strict=True):
        match index:
            case VarIndex(LoopVar() as var) if views.size(var) == size:
                axes.append(var)
            case _:
                window = _overlapping_window(views, index, size, x, w)
                if window is None:
                    return None
                axes.append(window)
    windows = [axis for axis in axes if isinstance(axis, OverlappingWindow)]
    plain = [axis for axis in axes if isinstance(axis, LoopVar)]
    places = [window.place for window in windows]
    cells = [window.cell for window in windows if window.cell is not None]
    batch = [v for v in plain if v in x.axes and v not in w.axes]
    group = [v for v in plain if v in x.axes and v in w.axes]
    features = [v for v in plain if v in w.axes and v not in x.axes]
    channels = [v for v in x.axes if v in w.axes and v not in group]
    is_convolution = Counter(x.axes) == Counter([*batch, *group, *channels, *places])
    is_convolution &= Counter(w.axes) == Counter([*group, *channels, *features, *cells])
    is_convolution &= all(v.size is None for v in (*group, *channels, *features))
    is_product = len(windows) == 1 and windows[0].is_disjoint  # `Einsum` and `Reshape`
    if not is_convolution or not cells or len(windows) > 3 or is_product:
        return None

    def count(variables: Sequence[LoopVar]) -> int:
        return prod(views.extents[v] for v in variables)

    emit = views.emit
    image = emit.transpose(x.name, [x.axes.index(v) for v in (*batch, *group, *channels, *places)])
    if len(batch) != 1 or len(group) + len(channels) != 1:
        rows: Size = -1 if any(v.size for v in batch) else count(batch)
        image = emit.reshape(image, [rows, count([*group, *channels]), *map(views.size, places)])
    weights = emit.transpose(
        w.name, [w.axes.index(v) for v in (*group, *channels, *features, *cells)]
    )
    kernel = [1 if window.cell is None else views.extents[window.cell] for window in windows]
    if len(group) + len(channels) != 1 or len(features) != 1 or len(cells) < len(windows):
        weights = emit.reshape(weights, [count([*group, *channels]), count(features), *kernel])
    result = emit(
        "ConvTranspose",
        image,
        weights,
        group=count(group),
        kernel_shape=kernel,
        strides=[window.stride for window in windows],
        dilations=[window.dilation for window in windows],
        pads=[window.before for window in windows] + [max(window.after, 0) for window in windows],
        output_padding=[max(-window.after, 0) for window in windows],
    )
    if len(batch) != 1 or len(group) + len(features) != 1:
        own = map(views.size, (*batch, *group, *features))
        result = emit.reshape(result, [*own, *(window.size for window in windows)])
    return View(result, (*batch, *group, *features, *places)), axes
