"""Operations that reduce or rearrange axes: composition, einsum, maxima, slices, powers by a
number.
"""

from __future__ import annotations

from functools import cache
from numbers import Real
from typing import Any

from ocannl_core.errors import UsageError
from ocannl_core.indexing import StaticIndex
from ocannl_core.ops import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.origin import caller_location
from ocannl_core.shape.logic import BatchSlice
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.assignment import neutral
from ocannl_core.tensor.operation import Operation, as_tensor, define_operation
from ocannl_core.tensor.pointwise import add, maximum, power_primitive, where
from ocannl_core.tensor.registry import operations
from ocannl_core.tensor.slots import Slot, SlotApplication, slot_application


def _sum_of_products(v: Any, v1: Any, v2: Any) -> None:
    v[neutral] += v1 * v2


def _sum(v: Any, v1: Any) -> None:
    v[neutral] += v1


def _products(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += g * v2
    g2 += g * v1


def _spread(g: Any, g1: Any) -> None:
    g1 += g


def _copy(v: Any, v1: Any) -> None:
    v[:] = v1


def _greatest(v: Any, v1: Any) -> None:
    v[neutral, maximum] = v1


def _greatest_gradient(g: Any, g1: Any, v: Any, v1: Any) -> None:
    g1 += where(v1 == v, g, 0.0)


matmul = define_operation(
    "matmul",
    logic="@",
    forward=_sum_of_products,
    gradient=_products,
    primitive=BinaryOp.MUL,
    combine=BinaryOp.ADD,
)
transpose = define_operation(
    "transpose", logic="T", forward=_copy, gradient=_spread, primitive=UnaryOp.IDENTITY
)
_einsum_of_one = define_operation(
    "einsum",
    forward=_sum,
    gradient=_spread,
    primitive=UnaryOp.IDENTITY,
    combine=BinaryOp.ADD,
    register=False,
)
_einsum_of_two = define_operation(
    "einsum",
    forward=_sum_of_products,
    gradient=_products,
    primitive=BinaryOp.MUL,
    combine=BinaryOp.ADD,
    register=False,
)
_einmax = define_operation(
    "einmax",
    forward=_greatest,
    gradient=_greatest_gradient,
    primitive=UnaryOp.IDENTITY,
    combine=BinaryOp.MAX,
)
_slice = define_operation("slice", forward=_copy, gradient=_spread, primitive=UnaryOp.IDENTITY)


def fma(a: Any, b: Any, c: Any, *, label: str | None = None) -> Any:
    """Returns `a @ b + c`; inside the code of an operation, the fused primitive `a * b + c`."""
    if any(isinstance(each, Slot | SlotApplication) for each in (a, b, c)):
        return slot_application(TernaryOp.FMA, (a, b, c))
    return add(matmul(a, b), c, label=label)


def einsum(spec: str, *operands: Any, label: str | None = None) -> Any:
    """Returns the sum of the products of the operands' cells, lined up by a specification.

        oc.einsum("ij;jk=>ik", a, b)         # a product of matrices written as rows of output axes
        oc.einsum("...|... => 0", a)         # the sum of all cells
        oc.einsum("...|c => ...|0", a)       # the sum over the last output axis

    Operands come first, the result last. A row is written `batch|input->output`; `...` stands for
    all further axes of its kind, `..name..` for axes shared across kinds, an integer for a
    position, `_` for an axis that lines up with nothing. Axes that the result does not mention are
    summed.

    Args:
        spec: The specification, with as many operands as are given.
        operands: One or two tensors.

    Raises:
        SpecError: if the specification does not follow the notation or has another number of
            operands.
        ShapeError: if the operands' shapes do not fit it.
    """
    match len(operands):
        case 1:
            return _einsum_of_one(*operands, logic=spec, label=label)
        case 2:
            return _einsum_of_two(*operands, logic=spec, label=label)
        case count:
            raise UsageError(
                "einsum takes one or two tensors after the specification.",
                found=f"{count} tensors with {spec!r}",
                where=str(caller_location() or ""),
                fix="contract step by step, two tensors at a time",
            )


def einmax(spec: str, operand: Any, *, label: str | None = None) -> Any:
    """Returns the greatest cells of the operand over the axes that the specification's result does
    not mention.

    The gradient goes to every cell that equals the maximum.
    """
    return _einmax(operand, logic=spec, label=label)


@cache
def _power_by(exponent: float) -> Operation:
    """Returns the operation that raises to a fixed power; no gradient flows into the exponent."""

    def forward(v: Any, v1: Any) -> None:
        v[:] = power_primitive(v1, exponent)

    def gradient(g: Any, g1: Any, v1: Any) -> None:
        if exponent == 0:
            return
        if exponent == 1:
            g1 += g
        elif exponent == 2:
            g1 += g * (2.0 * v1)
        else:
            g1 += g * (exponent * power_primitive(v1, exponent - 1))

    return define_operation("power", forward=forward, gradient=gradient, register=False)


def power(base: Any, exponent: Any, *, label: str | None = None) -> Any:
    """Returns `base ** exponent` cell by cell; an integral exponent means repeated
    multiplication.
    """
    if isinstance(base, Slot | SlotApplication) or isinstance(exponent, Slot | SlotApplication):
        return power_primitive(base, exponent)
    if isinstance(exponent, Real):
        return _power_by(float(exponent))(base, label=label)
    return power_primitive(base, exponent, label=label)


def slice_batch(source: Any, *, indices: tuple[StaticIndex | int, ...]) -> Any:
    """Returns the part of a tensor at given positions of its leftmost batch axes.

    A static index is read when the routine runs; an integer is fixed.

    Raises:
        ShapeError: if there are fewer batch axes, or a position lies outside its axis.
    """
    for index in indices:
        if not isinstance(index, StaticIndex) and index < 0:
            raise UsageError(
                "Positions count from 0; sizes may not be known yet, so they cannot count from "
                "the end.",
                found=f"x[{index}]",
                where=str(caller_location() or ""),
            )
    tensor = as_tensor(source, sessions.current())
    return _slice.tensor((tensor,), BatchSlice(indices))


operations["power"] = power
operations["slice"] = slice_batch
