"""The tensor: an identity, a shape that inference completes, and how its cells come about."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsIndex, TypeGuard

import numpy as np

from ocannl_core.assign.nodes import ExternalCall, FetchSource
from ocannl_core.dtypes import DType
from ocannl_core.errors import ShapeError, UsageError
from ocannl_core.indexing import StaticIndex
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, Op
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.capture import DimRef
from ocannl_core.shape.logic import Logic
from ocannl_core.shape.terms import Shape
from ocannl_core.tensor.assignment import Assignable, accumulator
from ocannl_core.tensor.expression import Expression
from ocannl_core.tensor.margins import Layout, Margins, WindowAccess, widest
from ocannl_core.tensor.parameter_set import Parameters, Scope
from ocannl_core.tensor.registry import operations
from ocannl_core.tensor.session import Session

# ----- how the cells of a tensor come about -------------------------------------------------------


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


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """From an array of the host, copied when the tensor was made, or mapped from a file.

    Attributes:
        array: The cells in row-major order; of the tensor's number format, or a file's that is
            converted on the way to a device.
    """

    array: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """By a fetch that reads no other tensor; it may depend on shapes, so it is made once they are
    closed.
    """

    source: Callable[[], FetchSource]


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """By its initialiser, once, in a routine of its own; then by updates. The initialiser may be an
    expression.
    """

    initializer: Tensor
    code: Callable[[Tensor], Any]
    """Gives the computation of the first value of a parameter defined so."""
    scopes: tuple[Scope, ...] = ()
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


class Named(Protocol):
    """An operation, as far as people see it."""

    @property
    def name(self) -> str: ...


class Application(Protocol):
    """What tensors know of the application of a user-written operation."""

    @property
    def op(self) -> Named: ...

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

    application: Application
    updated: Tensor | None = None


Definition = Applied | Literal | Filled | Parameter | Placeholder | Declared | GradientOf | ResultOf


class Tensor(Assignable):
    """A multi-dimensional array in a program of tensors.

    Its cells live in the contexts that run the program. Make tensors with `tensor`, `param`,
    `placeholder`, `number` and operators.

    Attributes:
        session: The program it belongs to.
        id: The creation ordinal within the session.
        label: Name parts, most significant first.
        origin: The operation and the user's line that made it.
        definition: How its cells come about.
        dtype: The number format of its cells.
        grad: The gradient of whatever is being backpropagated with respect to this tensor; None
            when it needs none.
    """

    __slots__ = (
        "_accesses",
        "_grad",
        "_layout",
        "_node",
        "_terms",
        "definition",
        "dtype",
        "id",
        "label",
        "origin",
        "session",
    )

    def __init__(
        self,
        session: Session,
        definition: Definition,
        terms: Shape,
        dtype: DType,
        label: tuple[str, ...],
        origin: Origin,
        *,
        requires_grad: bool = False,
    ) -> None:
        self.session = session
        self.id = session.next_id()
        self.definition = definition
        self._terms = terms
        self.dtype = dtype
        self.label = label
        self.origin = origin
        self._node: TensorNode | None = None
        self._grad: Tensor | None = None
        self._accesses: tuple[WindowAccess, ...] = ()
        self._layout: Layout | None = None
        if requires_grad:
            self._grad = Tensor(session, GradientOf(self), terms, dtype, (*label, "grad"), origin)

    # ----- identity and shape ---------------------------------------------------------------------

    @property
    def terms(self) -> Shape:
        """The shape as it was stated, in the solver's variables."""
        return self._terms

    @property
    def shape(self) -> Shape:
        """The shape as far as it is known; printing it never influences inference."""
        return self.session.environment.view(self._terms)

    @property
    def logic(self) -> Logic:
        """How the axes of the operation that makes the tensor correspond, with the captured sizes
        that are known.
        """
        assert isinstance(self.definition, Applied)
        return self.session.environment.settled(self.definition.logic, self.definition.capture)

    @property
    def node(self) -> TensorNode:
        """The identity of the tensor's memory; the label is final once this has been asked for."""
        if self.memory is not self:
            return self.memory.node
        if self._node is None:
            label = (
                (*self.definition.tensor.label, "grad")
                if isinstance(self.definition, GradientOf)
                else self.label
            )
            self._node = TensorNode(self.id, label)
        return self._node

    @property
    def memory(self) -> Tensor:
        """The tensor in whose memory the cells are: another one if this is an update of that."""
        tensor = self
        while isinstance(tensor.definition, ResultOf) and tensor.definition.updated is not None:
            tensor = tensor.definition.updated
        return tensor

    @property
    def has_node(self) -> bool:
        """True once the node has been asked for; before that no context can store the tensor."""
        return self.memory._node is not None

    def relabel(self, label: tuple[str, ...]) -> None:
        """Replaces the label, as long as nothing has asked for the node."""
        if self._node is None and not (self._grad is not None and self._grad._node is not None):
            self.label = label

    @property
    def info(self) -> NodeInfo:
        """Format, extents, and margins as far as they are known; closes the shape.

        Raises:
            ShapeError: if nothing is known of the axes of a declared tensor or a placeholder.
        """
        is_told_by_uses = isinstance(self.definition, Declared | Placeholder)
        shape = self.shape
        if is_told_by_uses and not (shape.is_closed or any(row.dims for _, row in shape.rows())):
            raise ShapeError(
                "A tensor has its shape before the host fills it.",
                found=f"shape {shape}, which uses decide",
                where=f"{self.describe()}, at {caller_location()}",
                fix=f'state its sizes, as in oc.declare("{self.label[0]}", output=[...]), or '
                "compile the code that uses it first",
            )
        self.session.environment.close([self._terms])
        return NodeInfo(self.dtype, self.shape.dims, self._needed_margins())

    # ----- margins --------------------------------------------------------------------------------

    def add_access(self, access: WindowAccess) -> None:
        """Notes an operation that accesses the tensor through padded windows."""
        memory = self.memory
        memory._accesses = (*memory._accesses, access)

    @property
    def layout(self) -> Layout:
        """The margins around the tensor's cells, final once this has been asked for."""
        if self.memory is not self:
            return self.memory.layout
        if self._layout is None:
            if isinstance(self.definition, GradientOf):
                _ = self.definition.tensor.layout  # so that it cannot grow past its gradient
            self._layout = Layout(self._needed_margins(), caller_location())
        return self._layout

    def _needed_margins(self) -> Margins:
        """Returns the margins if they are final, else the maximum over the accesses so far.

        A gradient is written through the same windows that the tensor is read through.
        """
        if self.memory is not self:
            return self.memory._needed_margins()
        if self._layout is not None:
            return self._layout.margins
        environment = self.session.environment
        needed = [access.margins(environment) for access in self._accesses]
        if isinstance(self.definition, GradientOf):
            needed.append(self.definition.tensor._needed_margins())
        return widest(needed)

    @property
    def requires_grad(self) -> bool:
        return self._grad is not None

    @property
    def grad(self) -> Tensor | None:
        return self._grad

    @grad.setter
    def grad(self, value: object) -> None:
        # `p.grad += e` stores back what the in-place operator returned; anything else would be lost
        # silently
        if value is not self._grad:
            raise UsageError(
                "A gradient cannot be replaced, only assigned to inside recorded code.",
                found=f"an assignment to the attribute grad of {self!r}",
                where=str(caller_location() or ""),
                fix="inside a function decorated with @oc.cd, write p.grad[:] = e or p.grad += e",
            )

    @property
    def merge(self) -> MergeBuffer:
        """The tensor's merge buffer: another device's copy, as an operand of recorded code."""
        return MergeBuffer(self)

    @property
    def T(self) -> Tensor:
        """The tensor with input and output axes exchanged."""
        transposed: Tensor = operations["transpose"](self)
        return transposed

    # ----- the graph ------------------------------------------------------------------------------

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors it is computed from, in the code of which it is a part."""
        match self.definition:
            case Applied(operands=operands):
                return operands
            case ResultOf(application):
                return tuple(application.inputs)
            case _:
                return ()

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.definition, Parameter)

    @property
    def is_placeholder(self) -> bool:
        return isinstance(self.definition, Placeholder)

    @property
    def literal(self) -> np.ndarray[Any, Any] | None:
        """The host's array behind a literal; without axes as long as its shape is open."""
        if not isinstance(self.definition, Literal):
            return None
        array = self.definition.array
        shape = self.shape
        return array.reshape(shape.dims) if shape.is_closed else array

    @property
    def params(self) -> Parameters:
        """The parameters that the tensor depends on, oldest first, with their names: what is
        initialised apart, and what is trained.
        """
        return Parameters(t for t in ancestors([self]) if t.is_parameter)

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The blocks that a parameter was made in, outermost first."""
        return self.definition.scopes if isinstance(self.definition, Parameter) else ()

    def parameters(self) -> tuple[Tensor, ...]:
        """Returns the parameters that the tensor depends on, and those that their initialisers
        need, oldest first.
        """
        found: set[Tensor] = set()
        pending: list[Tensor] = [self]
        while pending:
            for tensor in ancestors([pending.pop()]):
                if isinstance(tensor.definition, Parameter) and tensor not in found:
                    found.add(tensor)
                    pending.append(tensor.definition.initializer)
        return tuple(sorted(found, key=lambda t: t.id))

    def initialization(self) -> Any:
        """Returns the computation of a parameter's first value."""
        assert isinstance(self.definition, Parameter)
        return self.definition.code(self)

    def describe(self) -> str:
        """Returns what and where the tensor is, for messages."""
        match self.definition:
            case Parameter():
                kind = "parameter"
            case Placeholder():
                kind = "placeholder"
            case GradientOf():
                kind = "gradient"
            case Literal():
                kind = "literal"
            case _:
                kind = "tensor"
        where = f" ({self.origin.location})" if self.origin.location else ""
        return f"{kind} {self.node.name}{where}"

    # ----- assignment and indexing ----------------------------------------------------------------

    def __getitem__(self, key: object) -> Any:
        if (target := self.target(key)) is not None:
            return target
        keys = key if isinstance(key, tuple) else (key,)
        if keys and all(map(_is_position, keys)):
            indices = tuple(k if isinstance(k, StaticIndex) else operator.index(k) for k in keys)
            return operations["slice"](self, indices=indices)
        raise UsageError(
            "Indexing takes static indices or integers, for the leading batch axes.",
            found=f"{self.label[0] if self.label else 'x'}[{key!r}]",
            where=str(caller_location() or ""),
            fix="select and rearrange axes with a specification: "
            'oc.einsum("...|2,... => ...|...", x) takes position 2 of the leftmost output axis',
        )

    def assign(self, value: object) -> None:
        """Records `self[:] = value`."""
        self.assign_with(value, BinaryOp.SECOND, reset=False)

    def accumulate(self, value: object, with_: object = None, *, reset: bool = False) -> None:
        """Records the accumulation of a value.

        Args:
            value: What is accumulated.
            with_: The accumulating operation; addition when not given.
            reset: Starts from the neutral element.
        """
        combine = BinaryOp.ADD if with_ is None else accumulator(with_)
        self.assign_with(value, combine, reset=reset)

    def assign_with(self, value: Any, combine: BinaryOp, *, reset: bool) -> None:
        """Records an assignment to this tensor.

        Raises:
            UsageError: outside a function decorated with `@oc.cd`, or when the tensor cannot be
                assigned to.
        """
        recorder = self.session.recorder
        if recorder is None:
            raise UsageError(
                "Assignments are recorded inside functions decorated with @oc.cd.",
                found=f"an assignment to {self!r} outside of one",
                where=str(caller_location() or ""),
                fix="put the assignment into a function decorated with @oc.cd and compile what "
                "it returns",
            )
        recorder.assign(self, value, combine, reset=reset)

    @property
    def is_assignable(self) -> bool:
        """True for tensors whose cells recorded code may write."""
        return isinstance(self.definition, Declared | Parameter | Placeholder | GradientOf)

    def __repr__(self) -> str:
        name = "_".join(self.label) or f"#{self.id}"
        return f"<{type(self.definition).__name__.lower()} {name}: {self.shape}>"


class MergeBuffer(Expression):
    """Another device's copy of a tensor, as an operand of recorded code."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"{self.tensor!r}.merge"


def _is_position(key: object) -> TypeGuard[StaticIndex | SupportsIndex]:
    if isinstance(key, StaticIndex):
        return True
    return isinstance(key, SupportsIndex) and not isinstance(key, bool | Tensor)


def ancestors(tensors: list[Tensor]) -> list[Tensor]:
    """Returns the tensors and everything they are computed from, oldest first. Parameters are not
    looked into.
    """
    seen = set(tensors)
    pending = list(tensors)
    while pending:
        for operand in pending.pop().operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return sorted(seen, key=lambda tensor: tensor.id)


def with_siblings(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors and what user-written operations compute together with them."""
    found = dict.fromkeys(tensors)
    for tensor in tensors:
        if isinstance(tensor.definition, ResultOf):
            found.update(dict.fromkeys(tensor.definition.application.results))
    return list(found)
