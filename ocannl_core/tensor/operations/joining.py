"""Tensors side by side, along an axis that `axis=` counts or that a specification names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations import contractions
from ocannl_core.tensor.operations.axes import axes_of, operand
from ocannl_core.tensor.operations.rearrangement import expand_dims
from ocannl_core.tensor.primitives.dimension import Capture
from ocannl_core.tensor.primitives.specifications import composite_operation


def concat(
    spec: str | Sequence[Any],
    *operands: Any,
    axis: int | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return the operands one after the other along axes of the result.

    `oc.concat([x, y], axis=-1)` concatenates along an axis counted in buffer order, 0 by default;
    the tensors have as many batch, output and input axes. `oc.concat("...,a; ...,b => ...,a^b", x,
    y)` does so along the last output axis, and `oc.concat("i,k; j,l => i^j,k^l", x, y)` makes a
    block matrix, with zeros where no operand is. `oc.einsum("...,a^b => ...,a", xy)` extracts a
    part of an axis. Further arguments are as for `einsum`.

    Args:
        spec: Tensors, or a specification whose result has an axis `a^b^...`.
        operands: After a specification, one tensor for each operand of it.
        axis: The axis, for tensors.

    Raises:
        SpecError: if an operand has an axis that the result lacks, or two have the same place.
    """
    if isinstance(spec, str) and axis is None:
        return contractions.concat(
            spec, *operands, capture=capture, label=label, dtype=dtype, requires_grad=requires_grad
        )
    if isinstance(spec, str | Tensor) or operands or capture:
        raise UsageError.at_caller(
            "concat takes a list of tensors and an axis, or a specification and tensors.",
            found=f"a {'specification' if isinstance(spec, str) else type(spec).__name__.lower()} "
            f"and {len(operands)} tensors, axis={axis!r}",
            fix='oc.concat([x, y], axis=0), or oc.concat("a; b => a^b", x, y)',
        )
    return _concat_along("concat", spec, axis or 0, label, dtype, requires_grad)


def _concat_along(
    name: str,
    operands: Sequence[Any],
    axis: int,
    label: str | None,
    dtype: DType | str | None,
    requires_grad: bool | None = None,
) -> Any:
    given = [operand(each, name) for each in operands]
    if not given:
        raise UsageError.at_caller(f"{name} takes a tensor or more.", found="none")
    axes = [axes_of(each, name) for each in given]
    first = axes[0]
    for position, own in enumerate(axes):
        if own.ranks != first.ranks:
            raise ShapeError.at_caller(
                f"{name} along axis {axis} takes tensors with equally many axes of each kind.",
                found=f"{given[position].shape} beside {given[0].shape}",
                fix="oc.expand_dims and oc.reshape add axes",
            )
    at = first.position(axis)
    parts = [f"p{position}" for position in range(len(given))]
    if len(parts) == 1:
        return given[0]
    shapes = "; ".join(first.replaced({at: part}) for part in parts)
    spec = f"{shapes} => {first.replaced({at: '^'.join(parts)})}"
    with composite_operation(name, tuple(given)):
        return contractions.concat(
            spec, *given, label=label, dtype=dtype, requires_grad=requires_grad
        )


def stack(
    *operands: Any,
    axis: str | int = "output",
    label: str | None = None,
    dtype: DType | str | None = None,
) -> Any:
    """Return the operands along a new axis, after broadcasting them to a common shape.

    Args:
        operands: One tensor or more, or numbers; also as a list.
        axis: The kind of the new axis, which becomes the leftmost of its kind: "batch", "input" or
            "output". Or its position in the result, in buffer order: it is then of the kind of the
            axis to its right, and the tensors have as many axes.
    """
    given = (
        operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    if isinstance(axis, str):
        return contractions.stack(*given, axis=axis, label=label, dtype=dtype)
    widened = [expand_dims(each, axis) for each in given]
    return _concat_along("stack", widened, axis, label, dtype)
