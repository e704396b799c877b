"""Powers: by a number, into which no gradient flows, and by a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import Any

from ocannl_core.base.origin import caller_location
from ocannl_core.ir.host_arrays import plain_number
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.slots import Slot, SlotApplication
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.dimension import Capture
from ocannl_core.tensor.primitives.operation import Operation, define_operation
from ocannl_core.tensor.primitives.pointwise_operations import identity, power_primitive


@cache
def _power_by(exponent: float) -> Operation:
    """Return the operation that raises to a fixed power; no gradient flows into the exponent."""

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

    return define_operation("power", forward=forward, gradient=gradient)


def power(
    base: Any,
    exponent: Any,
    *,
    logic: str | None = None,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
    projections: str | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return `base ** exponent` cell by cell; an integral exponent means repeated multiplication.

    Args:
        exponent: A number without a gradient, or a tensor. A fraction makes floats of integers.
        logic: The correspondence of axes, with one operand for each tensor; the other arguments are
            as for all operations on cells, such as `add`.
    """
    if isinstance(base, Slot | SlotApplication) or isinstance(exponent, Slot | SlotApplication):
        return power_primitive(base, exponent)
    is_recorded = sessions.current().recorder is not None  # where no gradient flows anyway
    is_by_number = isinstance(exponent, Real) and projections is None
    keywords: dict[str, Any] = {
        "logic": logic,
        "padded": padded,
        "values": values,
        "capture": capture,
        "label": label,
        "dtype": dtype,
        "requires_grad": requires_grad,
    }
    if is_by_number and is_recorded and logic is not None:
        return identity(power_primitive(base, exponent), **keywords)  # one tensor has the logic
    is_whole = isinstance(base, Tensor) and base.dtype.is_integer  # a fraction makes floats of it
    if is_by_number and not is_recorded and not (is_whole and not float(exponent).is_integer()):
        number = plain_number(exponent, caller_location() or "")
        return _power_by(float(number))(base, **keywords)
    return power_primitive(base, exponent, projections=projections, **keywords)
