"""How the cells of a tensor come about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, assert_never

import numpy as np

from ocannl_core.assign.nodes import ExternalCall, FetchSource
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp, Op
from ocannl_core.origin import Location
from ocannl_core.shape.capture import DimRef
from ocannl_core.shape.logic import Logic
from ocannl_core.tensor.parameter_set import ParameterScope

if TYPE_CHECKING:
    from ocannl_core.tensor.tensor import Tensor


class Differentiable(Protocol):
    """What a tensor knows of the operation that made it: its code, as functions of slots."""

    @property
    def name(self) -> str: ...

    @property
    def primitive(self) -> Op | None: ...

    @property
    def combine(self) -> BinaryOp | None: ...

    @property
    def forward(self) -> Callable[..., None]: ...

    @property
    def gradient(self) -> Callable[..., None] | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """By an operation on other tensors."""

    operation: Differentiable
    operands: tuple[Tensor, ...]
    logic: Logic
    capture: Mapping[str, DimRef] = field(default_factory=dict)
    """Names of the logic's specification, and the references to what they stand for."""


LITERAL = "literal"
"""What a tensor of given cells is called that nobody names."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """From an array of the host, copied when the tensor was made, or mapped from a file.

    Attributes:
        array: The cells in row-major order; converted to the tensor's number format when that is
            settled, or, if it is a file's, on the way to a device.
    """

    array: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """By a fetch that reads no other tensor; it may depend on shapes, so it is made once they are
    closed.

    Attributes:
        source: Makes the fetch.
        number: The number in every cell, where the program states it.
    """

    source: Callable[[], FetchSource]
    number: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """By its initialiser, once, in a routine of its own; then by updates. The initialiser may be an
    expression.
    """

    initializer: Tensor
    code: Callable[[Tensor], Any]
    """Gives the computation of the first value of a parameter defined so."""
    scopes: tuple[ParameterScope, ...] = ()
    """The blocks that it was made in, outermost first."""


@dataclass(frozen=True, slots=True, eq=False)
class Placeholder:
    """From the host, between calls: `ctx[x] = array`."""


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """By assignments that users record; zero at first."""


@dataclass(frozen=True, slots=True, eq=False)
class GradientOf:
    """By backpropagation through another tensor."""

    tensor: Tensor


class NamedOperand(Protocol):
    """An operation, as far as people see it."""

    @property
    def name(self) -> str: ...


class OpApplication(Protocol):
    """What tensors know of the application of a user-written operation."""

    @property
    def op(self) -> NamedOperand: ...

    @property
    def inputs(self) -> Sequence[Tensor]: ...

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The outputs, hidden ones included."""
        ...

    @property
    def changes_state(self) -> bool:
        """True if it changes a parameter or a declared tensor, so that it matters by itself."""
        ...

    def call(self, node_of: Callable[[Tensor], TensorNode]) -> ExternalCall:
        """Returns the assignment that computes all outputs; shapes are closed."""
        ...

    def backward(self) -> Backward:
        """Returns what the gradients of the outputs contribute to those of the inputs.

        Raises:
            MissingGradientError: if the operation does not say.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """Gradients of a user-written operation, as tensor expressions.

    Attributes:
        code: The tensors that they consist of, oldest first.
        renewed: Those of them that depend on gradients of outputs, so that they are computed anew
            in every backpropagation.
        contributions: What is added to the gradients of inputs.
    """

    code: tuple[Tensor, ...] = ()
    renewed: frozenset[Tensor] = frozenset()
    contributions: tuple[tuple[Tensor, Tensor | float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ResultOf:
    """By a user-written operation, together with its other outputs.

    Attributes:
        application: The application of the operation.
        updated: The parameter or declared tensor whose memory this output takes over.
    """

    application: OpApplication
    updated: Tensor | None = None


Definition = Applied | Literal | Filled | Parameter | Placeholder | Declared | GradientOf | ResultOf


def kind_of(definition: Definition) -> str:
    """Returns what messages call a tensor of that definition."""
    match definition:
        case Parameter():
            return "parameter"
        case Placeholder():
            return "placeholder"
        case GradientOf():
            return "gradient"
        case Literal():
            return "literal"
        case Applied() | Filled() | Declared() | ResultOf():
            return "tensor"
        case _:
            assert_never(definition)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One run of a function decorated with `@cd`; compared by identity.

    Attributes:
        name: The function's name.
        location: The line that called it.
    """

    name: str
    location: Location | None

    def __str__(self) -> str:
        return f"{self.name}, at {self.location}" if self.location else self.name
