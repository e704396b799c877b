"""Sizes that are known, or stated, when blocks are applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.origin import caller_location
from ocannl_core.shape.language.shape_terms import Size
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import require_shape, require_shapes


def last_size(x: Tensor, name: str) -> int:
    """Return the size of the last output axis."""
    inferred = x.session.environment.view(x.terms).output.trailing
    # a size that is inferred already stays, and a preview of the others takes longer
    if inferred and isinstance(inferred[-1], Size):
        return inferred[-1].n
    known = x.shape.output.trailing or x.shape.output.leading * (x.shape.output.tail is None)
    if known and isinstance(known[-1], Size):
        return known[-1].n
    raise ShapeError(
        f"{name} divides the last output axis, so its size is known when the block is applied.",
        found=f"a tensor of shape {x.shape}",
        where=f"{x.describe()}, at {caller_location()}",
        fix="state the size where the axis is made, as in oc.nn.dense(x, output=[64])",
    )


def channel_count(channels: int | Sequence[int]) -> int:
    """Return the number of channels, which is stated as a number or as the size of one axis."""
    given = channels if isinstance(channels, Sequence) else [channels]
    rule = "Blocks of images, and convolutions in groups, have one axis of channels."
    if len(given) != 1:
        raise UsageError.at_caller(rule, found=f"channels={channels!r}", fix="channels=8")
    return positive_integers(given, rule, f"channels={channels!r}", "channels=8")[0]


def positive_integers(values: Iterable[object], rule: str, found: str, fix: str) -> tuple[int, ...]:
    """Return sizes and counts that are stated as positive integers of Python or NumPy."""
    given = tuple(values)
    numbers = tuple(int(n) for n in given if isinstance(n, Integral) and not isinstance(n, bool))
    if len(numbers) < len(given) or min(numbers, default=1) < 1:
        raise UsageError.at_caller(rule, found=found, fix=fix)
    return numbers


_MOST_AXES = 64


def count_of_axes(axes: int) -> int:
    """Return a stated number of axes of positions."""
    if not 0 <= axes <= _MOST_AXES:
        raise UsageError.at_caller(
            f"Features have from 0 to {_MOST_AXES} axes of positions.", found=f"axes={axes}"
        )
    return axes


def with_shape_of(x: Tensor, result: Tensor) -> Tensor:
    """Return a result, stated to have the shape of `x`; known axes of `x` are then known of it."""
    require_shapes("..b..|..n..; ..b..|..n..", x, result)
    return result


def require_axes(tensor: Tensor, shape: str, rule: str, fix: str) -> None:
    """Require axes of a tensor that broadcasting, or a product over all axes, would not."""
    try:
        require_shape(tensor, shape)
    except ShapeError:
        found = f"{tensor.describe()}, of shape {tensor.shape}"
        raise ShapeError.at_caller(rule, found=found, fix=fix) from None
