"""Functions of NumPy whose arguments differ from the arguments of operations here.

`np.take(x, ids)` flattens without an axis, `np.einsum("ij,jk->ik", x, y)` has its own notation.
Other functions are in `foreign_names.FUNCTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.graph.session import make_atomic
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations import (
    activations,
    contractions,
    filled,
    rearrangement,
    reductions,
    repetition,
)
from ocannl_core.tensor.operations.axes import (
    AxisArgument,
    apply,
    axes_of,
    operand,
    sized_axes_of,
    write_shape,
)
from ocannl_core.tensor.operations.positions import take as take_rows
from ocannl_core.tensor.operations.positions import take_along
from ocannl_core.tensor.operations.rearrangement import concat
from ocannl_core.tensor.operations.rearrangement import stack as stack_along
from ocannl_core.tensor.primitives import pointwise_operations as pointwise

_counterparts: dict[str, Callable[..., Any]] = {}
"""The functions by name."""


def numpy_counterpart(name: str) -> Callable[..., Any] | None:
    """Return the function in the place of one of NumPy; None without one."""
    return _counterparts.get(name)


def _counterpart(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _counterparts.update(dict.fromkeys(names or (function.__name__,), function))
        return function

    return register


@_counterpart()
def take(a: Any, indices: Any, axis: int | None = None) -> Any:
    """Return the cells at positions; of all cells in row-major order without an axis."""
    x = operand(a, "take")
    return take_rows(rearrangement.flatten(x) if axis is None else x, indices, axis or 0)


@_counterpart("concatenate", "concat")
def concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Any:
    """Return tensors one after the other; flattened ones if the axis is None."""
    if axis is None:
        return concat([rearrangement.flatten(each) for each in arrays], axis=0)
    return concat(list(arrays), axis=axis)


@_counterpart()
def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Return tensors along a new axis."""
    return stack_along(*arrays, axis=axis)


@_counterpart()
def vstack(tup: Sequence[Any]) -> Any:
    """Return tensors below each other; a tensor of one axis is a row."""
    rows = [rearrangement.expand_dims(x, 0) if _rank(x) == 1 else x for x in tup]
    return concat(rows, axis=0)


@_counterpart()
def hstack(tup: Sequence[Any]) -> Any:
    """Return tensors beside each other."""
    return concat(list(tup), axis=0 if _rank(tup[0]) == 1 else 1)


@_counterpart()
def unstack(x: Any, axis: int = 0) -> Any:
    """Return the slices along an axis."""
    return tuple(rearrangement.moveaxis(x, axis, 0))


@_counterpart("split", "array_split")
def split(ary: Any, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Any]:
    """Return parts of a tensor along an axis: a number of them, as equal as possible, or those
    that end at positions.
    """
    x = operand(ary, "split")
    own = sized_axes_of(x, "split")
    position = own.position(axis)
    size = own.known_size(position)
    if isinstance(indices_or_sections, int) and indices_or_sections < 1:
        raise UsageError.at_caller(
            "An axis is split into one part or more.", found=f"{indices_or_sections} parts"
        )
    parts = np.array_split(np.arange(size), indices_or_sections)
    keys = (slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0, 0) for part in parts)
    return [repetition.part(x, position, key) for key in keys]


@_counterpart()
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Return cells moved along axes; along all of them in row-major order without an axis."""
    x = operand(a, "roll")
    if axis is not None:
        return repetition.roll(x, shift, axis)
    own = sized_axes_of(x, "roll")
    moved = repetition.roll(rearrangement.flatten(x), shift, 0)
    return rearrangement.unflatten(moved, own, own.known_sizes)


@_counterpart()
def repeat(a: Any, repeats: int, axis: int | None = None) -> Any:
    """Return every cell repeated; of all cells in row-major order without an axis."""
    x = operand(a, "repeat")
    return repetition.repeat(rearrangement.flatten(x) if axis is None else x, repeats, axis or 0)


@_counterpart()
def clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    """Return cells limited to a range."""
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    return activations.clip(a, low, high)


@_counterpart()
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return cells of one of two tensors, by a condition."""
    if x is None or y is None:
        raise UsageError.at_caller(
            "np.where chooses between two tensors: the number of positions of a condition depends "
            "on cells, and shapes do not.",
            found="np.where(condition)",
            fix="np.where(condition, x, y); on the host, np.where(ctx[condition])",
        )
    return contractions.where(condition, x, y)


@_counterpart()
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    """Return 1 where cells differ by little, or are the same infinity."""
    x, y = (activations.as_float(operand(each, "isclose")) for each in (a, b))
    near = pointwise.abs(x - y) <= atol + rtol * pointwise.abs(y)
    is_near = pointwise.logical_and(near, activations.isfinite(y))
    return pointwise.logical_or(is_near, pointwise.equal(x, y))


@_counterpart()
def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """Return cells with numbers in place of NaN and of infinities, by default the greatest and the
    least one of the format.
    """
    given = operand(x, "nan_to_num")
    dtype = given.dtype
    if not dtype.is_float:
        return given
    # constants at the end of the range are for wider formats
    wide = pointwise.cast(given, float32) if dtype.is_narrow else given
    found = contractions.where(activations.isnan(wide), nan, wide)
    ends = {-math.inf: (-dtype.greatest, neginf), math.inf: (dtype.greatest, posinf)}
    for infinity, (end, stated) in ends.items():
        is_there = pointwise.equal(wide, infinity)
        found = contractions.where(is_there, end if stated is None else stated, found)
    return found if wide is given else pointwise.cast(found, dtype)


_LONGEST_DIFFERENCE = 127
"""The greatest order along an axis of unknown size: beyond, coefficients overflow float32."""


@_counterpart()
def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    """Return the differences of neighbors along an axis."""
    x = operand(a, "diff")
    axes = axes_of(x, "diff")
    place = axes.position(axis)
    size = axes.size(place)
    if not 0 <= n <= (_LONGEST_DIFFERENCE if size is None else size):
        raise UsageError.at_caller(
            "diff takes differences at most as often as the axis has cells.",
            found=f"n={n}, axis={axis} of size {'unknown' if size is None else size}",
        )
    for _ in range(n):
        later, earlier = slice(1, None), slice(None, -1)
        x = repetition.part(x, place, later) - repetition.part(x, place, earlier)
    return x


@_counterpart()
def ptp(a: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the greatest cell less the least one."""
    greatest = reductions.max(a, axis, keepdims=keepdims)
    return greatest - reductions.min(a, axis, keepdims=keepdims)


@_counterpart()
def count_nonzero(a: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the number of cells that are not 0."""
    return reductions.sum(pointwise.not_equal(a, 0), axis, keepdims=keepdims, dtype=int32)


@_counterpart()
def average(
    a: Any, axis: AxisArgument = None, weights: Any = None, *, keepdims: bool = False
) -> Any:
    """Return the mean, which weights may weight: of the shape of the tensor, or with the axes
    alone along which it is taken.
    """
    if weights is None:
        return reductions.mean(a, axis, keepdims=keepdims)
    x, given = (activations.as_float(operand(each, "average")) for each in (a, weights))
    own, other = axes_of(x, "average"), axes_of(given, "average")
    positions = own.positions(None if len(other) == len(own) else axis)
    if len(positions) != len(other):
        raise UsageError.at_caller(
            "Weights have the shape of the tensor, or the axes along which the mean is taken.",
            found=f"weights of {len(other)} axes for axis={axis!r} of {len(own)}",
        )
    weighted = write_shape([own.names[position] for position in positions], other.ranks)
    spec = f"{own.spec}; {weighted} => {own.spec}"
    spread = apply(pointwise.second, (x, given), spec, name="average")
    total = reductions.sum(x * spread, axis, keepdims=keepdims)
    return total / reductions.sum(spread, axis, keepdims=keepdims)


@_counterpart()
def nansum(a: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the sum of the cells that are numbers."""
    numbers = contractions.where(activations.isnan(a), 0, a)
    return reductions.sum(numbers, axis, keepdims=keepdims)


@_counterpart()
def nanmean(a: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the mean of the cells that are numbers."""
    count = reductions.sum(pointwise.equal(a, a), axis, keepdims=keepdims)
    return nansum(a, axis, keepdims=keepdims) / count


@_counterpart("linalg.norm", "linalg.vector_norm")
def norm(x: Any, ord: Any = None, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the norm of cells as a vector; of a matrix, the root of the sum of squares."""
    is_matrix = _rank(x) == 2 if axis is None else isinstance(axis, tuple) and len(axis) == 2
    if ord == "fro":
        ord = None
    if ord is not None and is_matrix:
        raise UsageError.at_caller(
            "The norm of a matrix is the root of the sum of squares; others take its singular "
            "values or sums.",
            found=f"ord={ord!r}",
            fix="oc.norm(x, ord) takes all cells as one vector",
        )
    return reductions.norm(x, 2 if ord is None else ord, axis, keepdims=keepdims)


@_counterpart()
def einsum(subscripts: Any, *operands: Any, optimize: Any = False) -> Any:
    """Return the sum of products that a specification of NumPy states; letters of any alphabet are
    labels.

    Leading axes of the result that are batch axes of an operand are batch axes, others output axes.
    The order of products is a matter of the compiler, whatever `optimize` is.
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _as_text((subscripts, *operands))
    given = [operand(each, "einsum") for each in operands]
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(given) or any(_is_invalid(each) for each in (*parts, right)):
        raise UsageError.at_caller(
            "A specification of NumPy has letters for axes, and as many parts as operands.",
            found=f"{subscripts!r} for {len(given)} operands",
            fix='np.einsum("ij,jk->ik", x, y); oc.einsum has a notation with words and kinds',
        )
    rows = [axes_of(each, "einsum") for each in given]
    wide = max(
        (
            len(own) - len(p.replace("...", ""))
            for p, own in zip(parts, rows, strict=True)
            if "..." in p
        ),
        default=0,
    )
    names = [_axis_names(part, len(own), wide) for part, own in zip(parts, rows, strict=True)]
    if arrow:
        result = _axis_names(right, len(right.replace("...", "")) + wide, wide)
    else:
        every = [name for each in names for name in each]
        once = sorted({name for name in every if len(name) == 1 and every.count(name) == 1})
        result = [*(f"e{k}" for k in range(wide)), *once]
    known = {name for each in names for name in each}
    if len(set(result)) < len(result) or not known.issuperset(result):
        raise UsageError.at_caller(
            "Every axis of the result of einsum is an axis of an operand, once.",
            found=f"{subscripts!r}",
        )
    while len(given) > 3:  # one pair after the other
        others = {name for each in names[2:] for name in each} | set(result)
        left = [name for name in dict.fromkeys((*names[0], *names[1])) if name in others]
        given = [_product(names[:2], given[:2], left), *given[2:]]
        names = [left, *names[2:]]
    return _product(names, given, result)


def _product(names: Sequence[Sequence[str]], given: Sequence[Tensor], result: Sequence[str]) -> Any:
    """Return the sum of products of tensors with labels of their axes."""
    rows = [axes_of(each, "einsum") for each in given]
    batch = {n for each, own in zip(names, rows, strict=True) for n in each[: own.ranks[0]]}
    count = next((k for k, name in enumerate(result) if name not in batch), len(result))
    texts = [write_shape(each, own.ranks) for each, own in zip(names, rows, strict=True)]
    target = write_shape(result, (count, len(result) - count, 0))
    return contractions.einsum(f"{'; '.join(texts)} => {target}", *given)


def _as_text(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Return the specification, as text, of operands followed by lists of numbers or names."""
    operands, lists = arguments[: len(arguments) // 2 * 2 : 2], arguments[1::2]
    result = arguments[-1:] if len(arguments) % 2 else ()
    try:
        letters = _letters_of({each for axes in lists for each in axes} - {Ellipsis})
        texts = [
            "".join("..." if each is Ellipsis else letters[each] for each in axes)
            for axes in (*lists, *result)
        ]
    except (TypeError, LookupError):
        raise UsageError.at_caller(
            "The specification of einsum is a text, or a list of numbers or of names after each "
            "operand.",
            found=f"{lists!r}",
            fix='np.einsum("ij,jk->ik", x, y)',
        ) from None
    joined = ",".join(texts[: len(lists)])
    return (f"{joined}->{texts[-1]}" if result else joined), operands


def _letters_of(labels: Collection[Any]) -> Mapping[Any, str]:
    """Return a letter for each label, in their order."""
    ordered = sorted(labels)
    if any(isinstance(each, int) and each < 0 for each in ordered):
        raise LookupError
    return {label: _LETTERS[number] for number, label in enumerate(ordered)}


_LETTERS = "".join(filter(str.isalpha, map(chr, range(0x24F))))
"""Letters in their order; a result that is not stated has its axes in this order."""


def _is_invalid(part: str) -> bool:
    letters = part.replace("...", "", 1)
    return bool(letters) and not letters.isalpha()


def _axis_names(part: str, rank: int, wide: int) -> list[str]:
    """Return labels for the letters of a part, and for the axes of its ellipsis."""
    before, dots, after = part.partition("...")
    inner = rank - len(before) - len(after)
    if inner < 0 or (inner and not dots):
        raise UsageError.at_caller(
            "A part of a specification has a letter for every axis.",
            found=f"{part!r} for {rank} axes",
        )
    return [*before, *(f"e{wide - inner + k}" for k in range(inner)), *after]


@_counterpart()
def dot(a: Any, b: Any) -> Any:
    """Return the sum of products over the last axis of `a` and the last but one of `b`."""
    return tensordot(a, b, (-1, max(_rank(b) - 2, 0))) if _rank(a) and _rank(b) else a * b


@_counterpart()
def inner(a: Any, b: Any) -> Any:
    """Return the sum of products over the last axes."""
    return tensordot(a, b, (-1, -1)) if _rank(a) and _rank(b) else a * b


@_counterpart("tensordot", "linalg.tensordot")
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the sum of products over pairs of axes."""
    one, other = list(_letters(a, 0)), list(_letters(b, 12))
    if isinstance(axes, int):
        pairs = list(zip(range(len(one) - axes, len(one)), range(axes), strict=True))
    else:
        first, second = (x if isinstance(x, Sequence) else [x] for x in axes)
        if len(first) != len(second):
            raise UsageError.at_caller(
                "Axes are summed in pairs, one of each operand.",
                found=f"axes={axes!r}",
                fix="np.tensordot(x, y, ([0, 1], [1, 0]))",
            )
        pairs = [(i % len(one), j % len(other)) for i, j in zip(first, second, strict=True)]
    for i, j in pairs:
        other[j] = one[i]
    shared = {one[i] for i, _ in pairs}
    left = "".join(n for n in (*one, *other) if n not in shared)
    return einsum(f"{''.join(one)},{''.join(other)}->{left}", a, b)


@_counterpart()
def matmul(x1: Any, x2: Any) -> Any:
    """Return the product of matrices: the sum over the last axis of `x1` and the last but one of
    `x2`; leading axes are broadcast.
    """
    left = "ij"[-_rank(x1) :] if _rank(x1) else ""
    right = "jk"[: _rank(x2)]
    if not (left and right):
        raise UsageError.at_caller("Matrices have axes.", found="a number", fix="x * y")
    rows, columns = left.replace("j", ""), right.replace("j", "")
    dots = ["..." if _rank(each) > 2 else "" for each in (x1, x2)]
    return einsum(f"{dots[0]}{left},{dots[1]}{right}->{max(dots)}{rows}{columns}", x1, x2)


@_counterpart()
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return the sum of a diagonal of two axes."""
    return reductions.sum(diagonal(a, offset, axis1, axis2), -1)


@_counterpart()
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return a diagonal of two axes as the last axis; a positive offset counts to the right."""
    x = operand(a, "diagonal")
    own = sized_axes_of(x, "diagonal")
    first, second = own.positions((axis1, axis2))
    starts = {first: max(0, -offset), second: max(0, offset)}
    length = max(0, min(own.known_size(axis) - start for axis, start in starts.items()))
    x = x[
        tuple(
            slice(starts[k], starts[k] + length) if k in starts else slice(None)
            for k in range(len(own))
        )
    ]
    letters = list(_letters(x, 0))
    letters[second] = letters[first]
    rest = "".join(each for each in letters if each != letters[first])
    return einsum(f"{''.join(letters)}->{rest}{letters[first]}", x)


def _letters(x: Any, start: int) -> str:
    return ascii_letters[start : start + _rank(x)]


def _rank(x: Any) -> int:
    return len(axes_of(operand(x, "numpy"), "a function of NumPy"))


@_counterpart()
def size(a: Any, axis: int | None = None) -> Any:
    """Return the number of cells, or the size of an axis."""
    return a.size if axis is None else tuple(a.shape)[axis]


_counterparts |= {
    "around": lambda a, decimals=0: a.__round__(decimals),
    "astype": lambda x, dtype: pointwise.cast(x, dtype),
    "copy": lambda a: operand(a, "copy"),  # tensors are values
    "full_like": filled.full_like,
    "cumulative_prod": lambda x, axis=None: functions["cumprod"](x, axis),
    "cumulative_sum": lambda x, axis=None: functions["cumsum"](x, axis),
    "fliplr": lambda m: repetition.flip(m, 1),
    "flipud": lambda m: repetition.flip(m, 0),
    "matrix_transpose": lambda x: rearrangement.swapaxes(x, -1, -2),
    "ndim": lambda a: _rank(a),
    "ones_like": filled.ones_like,
    "outer": lambda a, b: einsum("a,b->ab", rearrangement.flatten(a), rearrangement.flatten(b)),
    "pad": lambda array, pad_width, mode="constant", constant_values=0.0: repetition.pad(
        array, pad_width, mode=mode, value=constant_values
    ),
    "searchsorted": lambda a, v, side="left": functions["searchsorted"](a, v, side=side),
    "shape": lambda a: tuple(a.shape),
    "take_along_axis": lambda arr, indices, axis=-1: take_along(arr, indices, axis),
    "vdot": lambda a, b: einsum("a,a->", rearrangement.flatten(a), rearrangement.flatten(b)),
    "zeros_like": filled.zeros_like,
}
_counterparts["round"] = _counterparts["around"]
for _name in ("matrix_transpose", "outer"):
    _counterparts[f"linalg.{_name}"] = _counterparts[_name]
make_atomic(_counterparts, _counterparts)
