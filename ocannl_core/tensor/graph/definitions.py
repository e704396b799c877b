"""Definitions: the sources of the cells of tensors, and the graph that definitions form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, Protocol, Self, TypeVar, assert_never

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Location, Origin, caller_location
from ocannl_core.ir.assignments.nodes import ExternalCall, FetchSource
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, UnaryOp
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.shape_terms import Dim, Shape
from ocannl_core.shape.translation.logic import Logic, NumbersOfWords
from ocannl_core.tensor.graph.parameter_set import ParameterScope

T = TypeVar("T")
"""The type of tensors. It is defined on top of definitions, which are generic."""


class Differentiable(Protocol):
    """The operation of a definition: its code, as functions of slots."""

    @property
    def name(self) -> str: ...

    @property
    def primitive(self) -> Op | None: ...

    @property
    def combine(self) -> BinaryOp | None: ...

    @property
    def positions(self) -> int:
        """The number of operands, the last ones, whose cells are positions and not values."""
        ...

    @property
    def moves_cells(self) -> bool:
        """True if the result consists of cells of operands, though no primitive states it."""
        ...

    @property
    def forward(self) -> Callable[..., None]: ...

    @property
    def gradient(self) -> Callable[..., None] | None: ...

    @property
    def gradient_expression(self) -> Callable[..., Sequence[Any]] | None:
        """Return the function that states the gradient as expressions, if there is one."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Applied(Generic[T]):
    """The result of an operation on other tensors."""

    operation: Differentiable
    operands: tuple[T, ...]
    logic: Logic
    capture: Mapping[str, DimRef] = field(default_factory=dict)
    """Names of the logic's specification, and the references to their sizes."""
    like: T | None = None
    """The tensor whose number format the result has; None where it follows from the operands."""


LITERAL = "literal"
"""The label of a literal without a name."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """An array of the host, copied when the tensor was made, or mapped from a file.

    Attributes:
        array: The cells in row-major order; converted to the tensor's number format when that is
            final, or, if it is a file's, on the way to a device.
    """

    array: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """A fetch that reads no other tensor, created once shapes are closed, as it may depend on them.

    Attributes:
        source: Creates the fetch.
        number: The number in every cell, where the program states it.
    """

    source: Callable[[], FetchSource]
    number: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Parameter(Generic[T]):
    """An initialiser, run once in a routine of its own, and updates after that. The initialiser may
    be an expression.
    """

    initializer: T
    code: Callable[[T], Any]
    """Return the computation of the first value of a parameter with this definition."""
    scopes: tuple[ParameterScope, ...] = ()
    """The blocks that it was made in, outermost first."""
    is_unstated_number: bool = False
    """True if it starts as one number, and no axes were stated."""


@dataclass(frozen=True, slots=True, eq=False)
class Placeholder:
    """Data of the host, stored between calls: `ctx[x] = array`."""


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """State written by recorded assignments; zero at first.

    Attributes:
        scopes: The blocks that a statistic was made in, outermost first.
        initialization: Returns the code that computes the first value of a statistic; None for
            other state.
    """

    scopes: tuple[ParameterScope, ...] = ()
    initialization: Callable[[Any], Any] | None = None

    @property
    def is_statistic(self) -> bool:
        """True for state of a model that training updates and evaluation reads: code that only
        reads it runs after other code has assigned it.
        """
        return self.initialization is not None


@dataclass(frozen=True, slots=True, eq=False)
class Effect(Generic[T]):
    """Code that follows each backpropagation through a tensor.

    Attributes:
        steps: The recorded code, of the type that `computation_steps` defines on top of tensors.
        targets: The statistics that it assigns.
    """

    steps: tuple[Any, ...]
    targets: tuple[T, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GradientOf(Generic[T]):
    """The gradient of another tensor, computed by backpropagation."""

    tensor: T


class NamedOperand(Protocol):
    """An operation with a name for messages."""

    @property
    def name(self) -> str: ...


class OpApplication(Protocol[T]):
    """An application of a user-written operation, as part of the graph of tensors."""

    @property
    def op(self) -> NamedOperand: ...

    @property
    def inputs(self) -> Sequence[T]: ...

    @property
    def results(self) -> tuple[T, ...]:
        """The outputs, hidden ones included."""
        ...

    @property
    def changes_state(self) -> bool:
        """Return True if it changes a parameter or a declared tensor: it has a side effect."""
        ...

    def call(self, node_of: Callable[[T], TensorNode]) -> ExternalCall:
        """Return the assignment that computes all outputs; shapes are closed."""
        ...

    def backward(self) -> Backward[T]:
        """Return the contributions of the outputs' gradients to the inputs' gradients.

        Raises:
            MissingGradientError: if the operation has no gradient.
        """
        ...

    def copy(self, inputs: Sequence[T]) -> OpApplication[T]:
        """Return the application of the same operation to other inputs of equal types."""
        ...

    def gradients(
        self, cotangents: Sequence[T], wanted: Sequence[bool], values: Sequence[T]
    ) -> Sequence[tuple[T, T | float, Shape]]:
        """Return the contributions of the results' gradients to the inputs' gradients.

        Each is an input, the term that is added to its gradient, and the common shape of both: the
        term is summed over axes that the input lacks.

        Args:
            cotangents: The gradients of the results.
            wanted: True for the inputs whose gradients are needed.
            values: The tensors that hold the cells of the inputs.

        Raises:
            MissingGradientError: if the operation has no gradient.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Backward(Generic[T]):
    """Gradients of a user-written operation, as tensor expressions.

    Attributes:
        code: The tensors that the gradients consist of, oldest first.
        renewed: The tensors that depend on gradients of outputs, and are computed anew in every
            backpropagation.
        contributions: The inputs, and the terms that are added to their gradients.
    """

    code: tuple[T, ...] = ()
    renewed: frozenset[T] = frozenset()
    contributions: tuple[tuple[T, T | float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ResultOf(Generic[T]):
    """A user-written operation, which computes all its outputs at once.

    Attributes:
        application: The application of the operation.
        updated: The parameter or declared tensor whose memory this output takes over.
    """

    application: OpApplication[T]
    updated: T | None = None


@dataclass(slots=True, eq=False)
class Loop(Generic[T]):
    """A loop over a time axis, of which one step was traced.

    Attributes:
        name: The name of the body, for labels and messages.
        index: The position of a step on the time axis.
        is_reversed: True if the steps run from the last position to the first.
        keep: The values of a step that its gradient reads from memory and does not recompute:
            `"carry"`, `"reductions"` or `"all"`.
        outer: The loop whose body contains this one; None outside of any.
        origin: The operation and the user's line.
        length: The stated number of steps, or None.
        time: The size of the time axis.
        over: The tensors with a time axis that the steps read.
        entries: The entries of `over` for a step.
        initial: The carry before the first step.
        before: The carry that a step receives.
        after: The carry that the step returns; as many tensors as `before`.
        final: The carry after the last step; its tensors are results.
        items: The values that a step returns beside the carry.
        stacked: The items of all steps along the time axis, also results.
        body: The tensors that a step computes, oldest first.
        inputs: Tensors from outside that the steps read.
        positions: Tensors that hold the position of the step.
        layers: The parameters with an entry for each step; None where all steps share parameters.
    """

    name: str
    index: StaticIndex
    is_reversed: bool
    keep: str
    outer: Loop[T] | None
    origin: Origin
    length: int | None = None
    time: Dim | None = None
    over: tuple[T, ...] = ()
    entries: tuple[T, ...] = ()
    initial: tuple[T, ...] = ()
    before: tuple[T, ...] = ()
    after: tuple[T, ...] = ()
    final: tuple[T, ...] = ()
    items: tuple[T, ...] = ()
    stacked: tuple[T, ...] = ()
    body: tuple[T, ...] = ()
    inputs: tuple[T, ...] = ()
    positions: set[T] = field(default_factory=set)
    layers: dict[T, T] | None = None

    @property
    def results(self) -> tuple[T, ...]:
        """The results of the loop."""
        return (*self.final, *self.stacked)

    def contains(self, other: Loop[T] | None) -> bool:
        """Return True if another loop is this one, or is inside its body."""
        while other is not None and other is not self:
            other = other.outer
        return other is self


@dataclass(frozen=True, slots=True, eq=False)
class CarriedValue(Generic[T]):
    """A value that a step of a loop receives from the step before."""

    loop: Loop[T]


@dataclass(frozen=True, slots=True, eq=False)
class ResultOfLoop(Generic[T]):
    """A result of a loop: a carry after the last step, or values of all steps."""

    loop: Loop[T]


Definition = (
    Applied[T]
    | Literal
    | Filled
    | Parameter[T]
    | Placeholder
    | Declared
    | GradientOf[T]
    | ResultOf[T]
    | CarriedValue[T]
    | ResultOfLoop[T]
)
"""The closed union of definitions."""


def kind_of(definition: Definition[T]) -> str:
    """Return the noun, in messages, for a tensor with a definition."""
    match definition:
        case Parameter():
            return "parameter"
        case Placeholder():
            return "placeholder"
        case GradientOf():
            return "gradient"
        case Literal():
            return "literal"
        case CarriedValue():
            return "carry"
        case Declared(is_statistic=True):
            return "statistic"
        case Applied() | Filled() | Declared() | ResultOf() | ResultOfLoop():
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


class GraphNode(Protocol):
    """A node of the graph that definitions form."""

    @property
    def id(self) -> int: ...

    @property
    def operands(self) -> Sequence[Self]: ...


class DefinedNode(GraphNode, Protocol):
    """A node of the graph, with the source of its cells."""

    @property
    def definition(self) -> Definition[Any]: ...


N = TypeVar("N", bound=GraphNode)
D = TypeVar("D", bound=DefinedNode)


def ancestors(tensors: list[N]) -> list[N]:
    """Return tensors and all their dependencies, oldest first; initialisers of parameters are left
    out.
    """
    seen = set(tensors)
    pending = list(tensors)
    while pending:
        for operand in pending.pop().operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return sorted(seen, key=lambda tensor: tensor.id)


def parameters_of(tensor: D) -> tuple[D, ...]:
    """Return the parameters that a tensor depends on, also through initialisers, oldest first."""
    found: set[D] = set()
    pending = [tensor]
    while pending:
        for each in ancestors([pending.pop()]):
            if isinstance(each.definition, Parameter) and each not in found:
                found.add(each)
                pending.append(each.definition.initializer)
    return tuple(sorted(found, key=lambda parameter: parameter.id))


def is_unpacked(definition: Definition[T]) -> bool:
    """Return True if a tensor holds numbers unpacked from random words."""
    return isinstance(definition, Applied) and (
        definition.operation.primitive is UnaryOp.UNIFORM
        or isinstance(definition.logic, NumbersOfWords)
    )


def check_label(*parts: object) -> None:
    """Raise UsageError unless every part of a label is a text, or is not given."""
    for part in parts:
        if part is not None and not isinstance(part, str):
            raise UsageError(
                "A label is a text: printed code and messages name tensors by it.",
                found=f"label={part!r}",
                where=str(caller_location() or ""),
                fix='label="x"',
            )


def has_name(definition: Definition[T], label: tuple[str, ...]) -> bool:
    """Return True if a label is a name, beyond the operation, the number or the literal itself."""
    match definition:
        case Applied(operation):
            return label != (operation.name,)
        case Literal():
            return label != (LITERAL,)
        case Filled():
            return label[0].isidentifier()
        case _:
            return True
