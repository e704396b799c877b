"""The tensor: an identity, a shape that inference completes, and how its cells come about."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, TypeGuard

import numpy as np

from ocannl_core.dtypes import DType, dtype_of, float16, float32, promote
from ocannl_core.errors import ShapeError, UsageError
from ocannl_core.fast_dataclass import replace
from ocannl_core.host_arrays import converted
from ocannl_core.indexing import StaticIndex
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, TernaryOp
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.logic import Logic
from ocannl_core.shape.terms import Shape
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.assignment import Assignable, key_text
from ocannl_core.tensor.definitions import (
    Applied,
    Declared,
    Definition,
    Filled,
    GradientOf,
    Literal,
    Parameter,
    Placeholder,
    Recording,
    ResultOf,
    kind_of,
)
from ocannl_core.tensor.expression import Expression
from ocannl_core.tensor.graph import ancestors
from ocannl_core.tensor.labels import check_label
from ocannl_core.tensor.margins import Layout, Margins, WindowAccess, node_info, widest
from ocannl_core.tensor.packing import count_words, stands_for_words
from ocannl_core.tensor.parameter_set import Parameters, ParameterScope
from ocannl_core.tensor.precision import Precision, Why, among, of_result, roomy
from ocannl_core.tensor.registry import code_of, operations
from ocannl_core.tensor.session import Session


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
        grad: The gradient of whatever is being backpropagated with respect to this tensor; None
            when it needs none.
        recording: The recorded code that it is a part of, if it is.
    """

    __slots__ = (
        "__weakref__",
        "_accesses",
        "_applications",
        "_dependents",
        "_first_use",
        "_grad",
        "_is_settled",
        "_layout",
        "_node",
        "_precision",
        "_terms",
        "definition",
        "id",
        "label",
        "origin",
        "recording",
        "session",
    )

    def __init__(
        self,
        session: Session,
        definition: Definition,
        terms: Shape,
        dtype: DType | Precision,
        label: tuple[str, ...],
        origin: Origin,
        *,
        requires_grad: bool = False,
    ) -> None:
        precision = Precision.stated(dtype) if isinstance(dtype, DType) else dtype
        check_label(*label)
        if requires_grad:
            precision.check_differentiable(origin)
        self.session = session
        self.id = session.next_id()
        self.definition = definition
        self._terms = terms
        self._precision = precision
        self._first_use: Origin | None = None
        self._is_settled = False
        self._dependents: list[Tensor] = []
        self.label = label
        self.origin = origin
        self._node: TensorNode | None = None
        self._grad: Tensor | None = None
        self._accesses: tuple[WindowAccess, ...] = ()
        self._layout: Layout | None = None
        self.recording: Recording | None = None
        self._applications: dict[Any, Any] | None = None
        if requires_grad:
            self._grad = Tensor(
                session, GradientOf(self), terms, self._precision, (*label, "grad"), origin
            )

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
        return self.session.environment.with_known_sizes(
            self.definition.logic, self.definition.capture
        )

    @property
    def node(self) -> TensorNode:
        """The identity of the tensor's memory; the label is final once this has been asked for."""
        if self.memory is not self:
            return self.memory.node
        if self._node is None:
            if isinstance(self.definition, GradientOf):
                value = self.definition.tensor
                self._node = TensorNode(self.id, (*value.label, "grad"), value.node)
            else:
                self._node = TensorNode(self.id, self.label)
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
            ShapeError: if nothing is known of the axes of a declared tensor or a placeholder, or
                if the cells are more than indices can address.
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
        count_words(self)
        self.session.environment.close([self._terms], subject=f"the shape of {self.node.name}")
        self.settle()
        return node_info(self.dtype, self.shape, self._needed_margins(), self.describe)

    # ----- number format --------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """The number format of the cells, as far as the program decides it up to here.

        It can be stated until something uses the tensor.

        Raises:
            UsageError: when it is stated later, or for a gradient, which has that of its tensor.
        """
        return self.precision.dtype

    @dtype.setter
    def dtype(self, value: DType | str) -> None:
        wanted = dtype_of(value)
        if wanted is self.dtype:
            return
        if isinstance(self.definition, Applied | GradientOf) or self._first_use is not None:
            raise UsageError(
                "The number format of a tensor is stated before anything uses it, and that of a "
                "result with dtype= where it is made.",
                found=f"{wanted} for {self!r}, which is {self.dtype}",
                where=str(self._first_use or self.origin),
                fix=f'convert it: oc.cast(x, "{wanted}")',
            )
        self._precision = Precision.stated(wanted)

    @property
    def precision(self) -> Precision:
        """The number format and what decided it. A gradient has that of its tensor."""
        if not isinstance(self.definition, GradientOf):
            return self._precision
        found = self.definition.tensor.precision
        rests = found.rests_on_default or found.why is Why.DEFAULT
        return replace(found, why=Why.OPERANDS, rests_on_default=rests)

    def applications(self) -> dict[Any, Any]:
        """Return the applications of user-written operations that live as long as the tensor."""
        if self._applications is None:
            self._applications = {}
        return self._applications

    @property
    def free_number(self) -> float | None:
        """The number that the tensor stands for, if it is one that states no format."""
        match self.definition:
            case Filled(_, number) if self._precision.follows:
                return number
            case _:
                return None

    def note_use(self, origin: Origin, dtype: DType | None = None) -> None:
        """Notes an operation that uses the tensor.

        Args:
            origin: The operation.
            dtype: The format in which it computes, if the tensor follows that.
        """
        self._first_use = self._first_use or origin
        if dtype is not None and self._follow(dtype, origin):
            self._reconsider_dependents()

    def _follow(self, dtype: DType, origin: Origin) -> bool:
        """Takes the format of a use, if nothing else decides; returns whether that changed it."""
        if self._is_settled:
            return False
        match self.definition:
            case Literal(array):
                dtype = roomy(dtype, array)
            case _ if stands_for_words(self):
                dtype = promote(dtype, float16)  # shorter floats are random patterns, NaN included
        before, self._precision = self._precision, self._precision.used(dtype, origin)
        return self._precision.dtype is not before.dtype

    def add_dependent(self, result: Tensor) -> None:
        """Notes a result whose format rests on default formats, this tensor's among them."""
        if not self._is_settled and (self.precision.follows or self.precision.rests_on_default):
            self._dependents.append(result)

    def _reconsider_dependents(self) -> None:
        """Decides formats anew that rested on the default, now that this tensor's has changed."""
        pending: list[Tensor] = [self]
        while pending:
            changed = pending.pop()
            if changed._grad is not None:
                pending.append(changed._grad)
            for result in changed._dependents:
                if not result._is_settled:
                    pending += result._decide_anew()

    def _decide_anew(self) -> list[Tensor]:
        """Derives the format of a result from its operands again, and gives it to those that follow
        it; returns the tensors whose formats have changed.
        """
        assert isinstance(self.definition, Applied)
        primitive = self.definition.operation.primitive
        found = of_result(primitive, among(primitive, self.operands), self.session.default_dtype)
        before = self._precision
        if before.why is not Why.STATED:
            self._precision = found
        changed = [self] if self._precision.dtype is not before.dtype else []
        for operand in self.operands[primitive is TernaryOp.WHERE :]:
            if found.positions and operand._follow(found.dtype, self.origin):
                changed.append(operand)
        return changed

    def adopt(self, dtype: DType) -> None:
        """Gives the tensor the format of what it is made for, unless something else decided its
        own; likewise what it is computed from.

        Arithmetic on the way happens in float32 at least, so that a narrow format rounds once.
        """
        if self.operands and not stands_for_words(self):
            dtype = promote(dtype, float32)
        pending = [self]
        while pending:
            tensor = pending.pop()
            if tensor.precision.is_free and tensor.dtype.is_float and not tensor._is_settled:
                tensor._precision = Precision.by_default(tensor.dtype)
                tensor.note_use(self.origin, dtype)
                pending += tensor.operands

    def settle(self) -> None:
        """Makes the number format final: code has been made for it."""
        if self._is_settled:
            return
        self._is_settled = True
        self._dependents.clear()
        self._first_use = self._first_use or self.origin
        if isinstance(self.definition, Literal):
            self.definition = Literal(self._converted(self.definition.array))

    def _converted(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the array behind a literal in the tensor's format; that of a file stays there."""
        if array.dtype == self.dtype.numpy or isinstance(array, np.memmap):
            return array
        cells = converted(array, self.dtype, str(self.origin))
        cells.flags.writeable = False
        return cells

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
    def is_gradient(self) -> bool:
        return isinstance(self.definition, GradientOf)

    @property
    def literal(self) -> np.ndarray[Any, Any] | None:
        """The host's array behind a literal, in the tensor's number format unless it is a file's;
        without axes as long as its shape is open.
        """
        if not isinstance(self.definition, Literal):
            return None
        array = self._converted(self.definition.array)
        shape = self.shape
        return array.reshape(shape.dims) if shape.is_closed else array

    @property
    def params(self) -> Parameters:
        """The parameters that the tensor depends on, oldest first, with their names: what is
        initialised apart, and what is trained.
        """
        return Parameters(t for t in ancestors([self]) if t.is_parameter)

    @property
    def scopes(self) -> tuple[ParameterScope, ...]:
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
        kind = kind_of(self.definition)
        where = f" ({self.origin.location})" if self.origin.location else ""
        return f"{kind} {self.node.name}{where}"

    # ----- code -----------------------------------------------------------------------------------

    def forward(self) -> Any:
        """Returns the code that computes the tensor, each part once.

        It contains the code of everything that the tensor is computed from, up to parameters,
        placeholders and literals. While code is being recorded, it becomes a part of that code,
        like that of the other pieces here.
        """
        return code_of["forward"](self)

    def zero_grads(self) -> Any:
        """Returns the code that sets the gradients of the tensor, and of everything that it is
        computed from, to zero.
        """
        return code_of["zero_grads"](self)

    def backprop(self) -> Any:
        """Returns the code that adds to the gradients of everything the tensor is computed from.

        The tensor's own gradient must be set: `loss.grad[:] = 1.0`.
        """
        return code_of["backprop"](self)

    def consume_forward(self) -> Any:
        """Returns the tensor's forward code, which from then on is known to be contained there:
        code recorded later reads the tensor instead of computing it.

        Raises:
            UsageError: if the code, or a part of it, was consumed before.
        """
        return code_of["consume_forward"](self)

    def consume_backprop(self) -> Any:
        """Returns the tensor's code for backpropagation, once.

        Raises:
            UsageError: if it was consumed before.
        """
        return code_of["consume_backprop"](self)

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
            found=f"{self.label[0] if self.label else 'x'}[{key_text(key)}]",
            where=str(caller_location() or ""),
            fix="select and rearrange axes with a specification: "
            'oc.einsum("...|2,... => ...|...", x) takes position 2 of the leftmost output axis',
        )

    def assign_with(self, value: Any, combine: BinaryOp, *, reset: bool) -> None:
        """Records an assignment to this tensor.

        Raises:
            UsageError: outside a function decorated with `@oc.cd`, or when the tensor cannot be
                assigned to.
        """
        recorder = sessions.current().recorder or self.session.recorder
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
