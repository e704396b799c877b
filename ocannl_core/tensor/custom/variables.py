"""Inputs and outputs of user-written operations, and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import exact_key
from ocannl_core.ir.numbers.dtypes import DType, dtype_of, promote
from ocannl_core.shape.language.shape_terms import Shape, closed_shape
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.literals import tensor as literal
from ocannl_core.tensor.primitives.operands import constant
from ocannl_core.tensor.primitives.pointwise_operations import cast

Array = np.ndarray[Any, Any]

Storage = list[Any]
"""A list of one element: the value of an output, or None."""

Aliases = Mapping[int | None, Sequence[int]]
"""For an output, the positions of the inputs with which it shares memory."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of an output: a number format and a shape, as far as it is stated.

    Attributes:
        dtype: The number format.
        shape: The shape; None leaves it to the constraints of the operation.
        label: A name for printed code; the operation's name if empty.
    """

    dtype: DType
    shape: Shape | None = None
    label: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_of(self.dtype))  # "float32" and np.float32 will do

    @classmethod
    def of(cls, variable: Tensor) -> TensorType:
        """Return the type of a tensor: an output of this type has its format and its shape."""
        return cls(variable.dtype, variable.terms)

    @classmethod
    def sized(
        cls,
        dtype: DType | str,
        *,
        batch: Sequence[int] = (),
        input: Sequence[int] = (),
        output: Sequence[int] = (),
    ) -> TensorType:
        """Return a type of known extents."""
        return cls(dtype_of(dtype), closed_shape(tuple(batch), tuple(input), tuple(output)))


@dataclass(frozen=True, slots=True)
class ObjectType:
    """The type of a hidden output that is any Python object, kept for the next call of `perform`.

    A plan, a buffer that grows, a file handle: state of one application of an operation. Routines
    that may run at the same time have an object each.
    """

    label: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ObjectResult:
    """A hidden output that is a Python object."""

    type: ObjectType


def as_variable(value: Any, dtype: DType | str | None = None) -> Tensor:
    """Return a tensor for an input of an operation.

    Tensors are returned as they are. A Python number becomes a constant, the same for equal
    numbers; arrays and nested lists become literals.

    Args:
        dtype: The number format of a number or an array; the session's default float, or the
            array's format, when not given. Tensors are not converted, but from packed formats.

    Raises:
        UsageError: for anything else.
    """
    if isinstance(value, Tensor):
        unpacked: Tensor = cast(value, value.dtype.unpacked) if value.dtype.is_packed else value
        return unpacked
    if isinstance(value, Real) and not isinstance(value, np.generic):
        session = sessions.current()
        return _constant(value, session.default_dtype if dtype is None else dtype_of(dtype))
    if isinstance(value, np.ndarray | np.generic | list | tuple) or hasattr(value, "__dlpack__"):
        return literal(value, dtype=dtype)
    raise UsageError.at_caller(
        "The inputs of an operation are tensors, numbers and arrays.",
        found=f"{type(value).__name__}: {value!r}",
    )


def as_variables(values: Sequence[Any]) -> list[Tensor]:
    """Return tensors for inputs; a number takes the format of the others where it has its value."""
    formats = [value.dtype for value in values if isinstance(value, Tensor)]
    beside = promote(*formats) if formats else None

    def fits(value: Any) -> bool:
        if beside is None or not isinstance(value, Real):
            return False
        return beside.is_float or (beside.is_integer and isinstance(value, Integral))

    return [as_variable(value, beside if fits(value) else None) for value in values]


def _constant(value: Real, dtype: DType) -> Tensor:
    """Return the session's constant of this value and format."""
    session: Session = sessions.current()
    number = value if isinstance(value, int) else float(value)

    def make() -> Tensor:
        with session.outside_of_code(session.loop):
            return constant(number, session, dtype=dtype)

    return sessions.shared(session, ("constant", dtype, exact_key(number)), make)
