"""Leaves: tensors filled by a fetch that reads no other tensor."""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.assign.nodes import Constant, ConstantBits, FetchSource
from ocannl_core.dtypes import DType, uint4x32
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.terms import Shape, closed_shape
from ocannl_core.tensor.definitions import Filled
from ocannl_core.tensor.precision import Precision
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.tensor import Tensor


def fill_tensor(
    session: Session,
    source: Callable[[], FetchSource],
    shape: Shape,
    dtype: DType | Precision,
    label: str,
    number: float | None = None,
) -> Tensor:
    """Returns a tensor filled by a fetch that is made once shapes are closed."""
    origin = Origin(label, caller_location())
    session.environment.leaf(shape, origin)
    return Tensor(session, Filled(source, number), shape, dtype, (label,), origin)


def word_constant(session: Session, source: Callable[[], int], label: str) -> Tensor:
    """Returns one 128-bit word whose low half is an integer known once shapes are closed."""
    return fill_tensor(session, lambda: ConstantBits(source()), closed_shape(), uint4x32, label)


def constant(
    value: int | float,
    session: Session,
    *,
    dtype: DType | Precision | None = None,
    label: str | None = None,
) -> Tensor:
    """Returns a constant of one cell; operands of this kind are printed as numbers and never
    stored.
    """
    return fill_tensor(
        session,
        lambda: Constant(value),
        closed_shape(),
        dtype or Precision.by_default(session.default_dtype),
        label or f"{value:g}",
        value,
    )
