"""The tensor: an identity, a shape, a number format (see `precision`), and a definition."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.graphs import reachable
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.host_arrays import convert
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, dtype_of, float16, float32, promote
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.ir.text import accumulation_symbol
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.language.subscripts import Keys, StaticSlice
from ocannl_core.shape.translation.logic import Logic, NumbersOfWords, Slice, Take
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.assignment import Assignable, of_two_readings, recorder_for
from ocannl_core.tensor.graph.definitions import (
    Applied,
    Declared,
    Definition,
    Effect,
    Filled,
    GradientOf,
    Literal,
    Loop,
    Parameter,
    Placeholder,
    Recording,
    ResultOf,
    ResultOfLoop,
    ancestors,
    check_label,
    is_unpacked,
    kind_of,
)
from ocannl_core.tensor.graph.expression import Expression, functions
from ocannl_core.tensor.graph.margins import MarginLayout, Margins, WindowAccess, node_info, widest
from ocannl_core.tensor.graph.methods import TensorMethods
from ocannl_core.tensor.graph.parameter_set import Parameters
from ocannl_core.tensor.graph.precision import (
    Precision,
    Why,
    format_for_numbers,
    is_reduction,
    operand_precisions,
    result_precision,
    widen_for_range,
)
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.shape_previews import implied_ranks, preview
from ocannl_core.tensor.graph.subscript_keys import (
    is_everything,
    key_text,
    parse_keys,
    selected_rows,
)

if TYPE_CHECKING:
    from ocannl_core.tensor.models.network_blocks import BlockApplication, NetworkBlock


class Tensor(TensorMethods, Assignable):
    """A multi-dimensional array in a program of tensors.

    Its cells live in the contexts that run the program. Tensors are created by `tensor`, `param`,
    `placeholder`, `number` and operators.

    Attributes:
        session: The program it belongs to.
        terms: The shape as it was stated, in the solver's variables.
        id: The creation ordinal within the session.
        label: Name parts, most significant first.
        origin: The operation and the user's line that created it.
        definition: The source of its cells.
        grad: The gradient of the backpropagated loss in this tensor; None when it needs none.
        recording: The recorded code that it belongs to, or None.
        loop: The loop to whose step it belongs, or None.
        made_in: The application of a block whose body made it, or None.
        fixed_by: The operation that relies on a literal's cells, which the host must keep.
        is_overwritten: True once the host has overwritten a literal.
        effects: The code that follows each backpropagation through the tensor.
    """

    # fmt: off
    __slots__ = (
        "__weakref__", "_accesses", "_applications", "_closed", "_dependents", "_first_use",
        "_grad", "_is_settled", "_layout", "_model", "_node", "_precision", "definition", "effects",
        "fixed_by", "id", "is_overwritten", "label", "loop", "made_in", "origin", "recording",
        "session", "terms",
    )
    _of_the_core: ClassVar = frozenset({
        "add_access", "add_dependent", "add_effect", "adopt", "applications", "assign_with", "data",
        "definition", "effects", "fixed_by", "free_number", "has_node", "initial_cells",
        "initialization", "is_assignable", "is_determined", "is_overwritten", "layout",
        "literal", "loop", "made_in", "note_host_write", "note_memory", "note_stated_shape",
        "note_update", "note_use", "operands", "parameters", "precision", "recording", "relabel",
        "relate_words", "scopes", "settle", "sliced_from", "target", "terms",
    })
    """Members that other modules of the core use; `dir` and the public surface leave them out."""
    # fmt: on

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self._of_the_core]

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
        self._precision = precision
        self._first_use: Origin | None = None
        self._is_settled = False
        self._dependents: list[Tensor] = []
        self.session = session
        self.id = session.next_id()
        self.definition: Definition = definition
        self._model: Tensor | None = None
        """The tensor whose format a gradient has; None for other tensors."""
        if isinstance(definition, GradientOf):
            self._model = definition.tensor
        elif isinstance(definition, Applied):
            self._model = definition.like
        self.terms = terms
        self._closed: tuple[int, Shape] | None = None
        self.label = label
        self.origin = origin
        self._node: TensorNode | None = None
        self._grad: Tensor | None = None
        self._accesses: tuple[WindowAccess, ...] = ()
        self._layout: MarginLayout | None = None
        self.recording: Recording | None = None
        self.made_in: BlockApplication | None = session.block
        if session.block is not None and isinstance(definition, Applied):
            session.block.reads(session, definition.operands)
        is_computed = isinstance(definition, (Applied, Filled, ResultOf, ResultOfLoop))
        self.loop: Loop | None = session.loop if is_computed else None
        self.fixed_by: Origin | None = None
        self.is_overwritten = False
        self._applications: dict[Any, Any] | None = None
        self.effects: tuple[Effect, ...] = ()
        session.undo_log.on_rollback(self, "session", sessions.RETRACTED)
        if requires_grad:
            self._grad = Tensor(
                session, GradientOf(self), terms, self._precision, (*label, "grad"), origin
            )

    def _set(self, attribute: str, value: object) -> None:
        """Set an attribute that a failed application restores."""
        self.session.undo_log.set(self, attribute, value)

    @property
    def shape(self) -> Shape:
        """The shape as far as it is inferred; reading it never influences inference.

        Sizes that follow from known shapes alone are given as compiling would decide them now.
        """
        environment = self.session.environment
        if self._closed is not None and self._closed[0] == environment.revisions:
            return self._closed[1]
        found = environment.view(self.terms)
        if not found.is_closed:
            return preview(self) or found
        self._closed = environment.revisions, found
        return found

    @shape.setter
    def shape(self, value: object) -> None:
        raise UsageError.at_caller(
            "A tensor keeps its shape.",
            found=f"an assignment to the attribute shape of {self!r}",
            fix="oc.reshape(x, 6, -1) is a tensor with the same cells; oc.require_shape(x, '8|3') "
            "states the shape of one that is inferred",
        )

    @property
    def ndim(self) -> int:
        """The number of axes.

        Raises:
            ShapeError: if uses that follow may add some.
        """
        ranks = implied_ranks(self)
        if ranks is None:
            raise ShapeError(
                "The number of axes is counted where it is known.",
                found=f"the shape {self.shape}",
                where=f"{self.describe()}, at {caller_location()}",
                fix="state the axes of the parameters that it depends on",
            )
        return sum(ranks)

    @property
    def size(self) -> int:
        """The number of cells in memory, where an extent at run time has its maximum.

        Raises:
            ShapeError: if a size is not known.
        """
        sizes = tuple(self.shape)
        return math.prod(n.maximum if isinstance(n, StaticExtent) else n for n in sizes)

    @property
    def is_determined(self) -> bool:
        """Return True if the shape follows from known ones: uses that follow decide no part."""
        return self.shape.is_closed

    @property
    def logic(self) -> Logic:
        """The logic of the tensor's operation, with the captured sizes that are inferred."""
        assert isinstance(self.definition, Applied)
        return self.session.environment.with_known_sizes(
            self.definition.logic, self.definition.capture
        )

    @property
    def dtype(self) -> DType:
        """The number format of the cells, as decided by the program so far.

        It can be stated until something uses the tensor.

        Raises:
            UsageError: when it is stated later, or for a gradient, which has its tensor's format.
        """
        return self._precision.dtype if self._model is None else self.precision.dtype

    @dtype.setter
    def dtype(self, value: DType | str) -> None:
        wanted = dtype_of(value)
        if wanted is self.dtype:
            return
        if isinstance(self.definition, Applied | GradientOf) or self._first_use is not None:
            raise UsageError(
                "The number format of a tensor is stated before its first use; the format of a "
                "result, by dtype= where it is made.",
                found=f"{wanted} for {self!r}, which is {self.dtype}",
                where=str(self._first_use or self.origin),
                fix=f'convert it: oc.cast(x, "{wanted}")',
            )
        self._set("_precision", Precision.stated(wanted))

    @property
    def precision(self) -> Precision:
        """The number format and its source. A gradient has the format of its tensor."""
        if (model := self._model) is None:
            return self._precision
        found = model.precision
        rests = found.rests_on_default or found.why is Why.DEFAULT
        return replace(found, why=Why.OPERANDS, positions=(), rests_on_default=rests)

    @property
    def free_number(self) -> float | None:
        """The number of a constant without a stated format; None for other tensors."""
        match self.definition:
            case Filled(_, number) if self._precision.follows:
                return number
            case _:
                return None

    def note_use(self, origin: Origin, dtype: DType | None = None) -> None:
        """Record an operation that uses the tensor; with `dtype` the tensor follows its format."""
        if self._first_use is None:
            self._set("_first_use", origin)
        if dtype is not None and self._take_format(dtype, origin):
            self._propagate_format()

    def _take_format(self, dtype: DType, origin: Origin) -> bool:
        """Take the format of a use, if nothing else decides; return True if that changed it."""
        if self._is_settled:
            return False
        match self.definition:
            case Literal(array):
                dtype = widen_for_range(dtype, array)
            case _ if is_unpacked(self.definition):
                dtype = promote(dtype, float16)  # shorter floats are random patterns, NaN included
        before, after = self._precision, self._precision.after_use(dtype, origin)
        if after is not before:
            self._set("_precision", after)
        return after.dtype is not before.dtype

    def add_dependent(self, result: Tensor) -> None:
        """Record a result whose format rests on default formats, this tensor's among them."""
        if not self._is_settled and (self.precision.follows or self.precision.rests_on_default):
            self.session.undo_log.append(self._dependents, result)

    def _propagate_format(self) -> None:
        """Decide dependent formats anew that rested on the default of this one."""
        pending: list[Tensor] = [self]
        while pending:
            changed = pending.pop()
            if changed._grad is not None:
                pending.append(changed._grad)
            for result in changed._dependents:
                if not result._is_settled:
                    pending += result._update_format()

    def _update_format(self) -> list[Tensor]:
        """Derive the format of a result from its operands again, and pass it on to operands whose
        format follows from this use; return the tensors whose formats have changed.
        """
        assert isinstance(self.definition, Applied)
        if self.definition.like is not None:
            return [self]  # after a change of the tensor whose format it has
        operation = self.definition.operation
        primitive = operation.primitive
        values = self.operands[: len(self.operands) - operation.positions]
        found = result_precision(
            primitive,
            operand_precisions(primitive, values, format_for_numbers(primitive, values)),
            self.session.default_dtype,
            is_reduction=is_reduction(operation.combine, self.definition.logic),
            moves_cells=operation.moves_cells,
        )
        before = self._precision
        if before.why is not Why.STATED:
            self._set("_precision", found)
        changed: list[Tensor] = [self] if self._precision.dtype is not before.dtype else []
        for operand in values[primitive is TernaryOp.WHERE :]:
            if found.positions and operand._take_format(found.dtype, self.origin):
                changed.append(operand)
        return changed

    def adopt(self, dtype: DType) -> None:
        """Give the tensor and its dependencies the format of its purpose, where none is decided.

        Intermediate arithmetic happens in float32 at least, so that a narrow format rounds once.
        """
        if self.operands and not is_unpacked(self.definition):
            dtype = promote(dtype, float32)
        pending = [self]
        while pending:
            tensor = pending.pop()
            if tensor.precision.is_free and tensor.dtype.is_float and not tensor._is_settled:
                tensor._set("_precision", Precision.by_default(tensor.dtype))
                tensor.note_use(self.origin, dtype)
                pending += tensor.operands

    def settle(self) -> None:
        """Make the number format final: code has been made for it."""
        if self._is_settled:
            return
        self._set("_is_settled", True)
        if (model := self._model) is not None:
            model.settle()
        if self._dependents:
            self._set("_dependents", [])
        if self._first_use is None:
            self._set("_first_use", self.origin)
        if isinstance(self.definition, Literal):
            self._set("definition", Literal(self._converted(self.definition.array)))

    def _converted(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the array of a literal in the tensor's format; files are not converted."""
        if array.dtype == self.dtype.numpy or isinstance(array, np.memmap):
            return array
        cells = convert(array, self.dtype, str(self.origin))
        cells.flags.writeable = False
        return cells

    @property
    def node(self) -> TensorNode:
        """The identity of the tensor's memory; the label is final once the node exists."""
        if self._node is not None:
            return self._node
        if (memory := self.memory) is not self:
            return memory.node
        with self.session.undo_log.lock:
            if self._node is None:  # nor has another thread made it
                if isinstance(self.definition, GradientOf):
                    value = self.definition.tensor
                    self._set("_node", TensorNode(self.id, (*value.label, "grad"), value.node))
                else:
                    self._set("_node", TensorNode(self.id, self.label))
            assert self._node is not None
            return self._node

    @property
    def memory(self) -> Tensor:
        """The tensor that owns the memory: the updated tensor if this is an update."""
        tensor = self
        while isinstance(tensor.definition, ResultOf) and tensor.definition.updated is not None:
            tensor = tensor.definition.updated
        return tensor

    @property
    def has_node(self) -> bool:
        """Return True once the node exists; before that no context can store the tensor."""
        return self.memory._node is not None

    def relabel(self, label: tuple[str, ...]) -> None:
        """Replace the label, unless the node exists."""
        if self._node is None and not (self._grad is not None and self._grad._node is not None):
            self._set("label", label)

    @property
    def info(self) -> NodeInfo:
        """Format, extents, and margins of the operations so far; closes the shape.

        Raises:
            ShapeError: if no axis of a declared tensor or a placeholder is known, or if the cells
                are more than indices can address.
        """
        is_inferred_from_uses = isinstance(self.definition, Declared | Placeholder)
        shape = self.session.environment.view(self.terms)
        if is_inferred_from_uses and not (
            shape.is_closed or any(row.dims for _, row in shape.rows())
        ):
            maker = "placeholder" if isinstance(self.definition, Placeholder) else "declare"
            raise ShapeError(
                "A tensor has its shape before the host fills it.",
                found=f"shape {shape}, which uses decide",
                where=f"{self.describe()}, at {caller_location()}",
                fix=f'state its sizes, as in oc.{maker}("{self.label[0]}", output=[8]), or '
                "compile the code that uses it first",
            )
        with self.session.undo_log.lock:
            self.relate_words()
            self.session.environment.close([self.terms], subject=f"the shape of {self.node.name}")
            self.settle()
            margins = self._needed_margins()
            return node_info(
                self.dtype, self.shape, margins, self.describe, is_parameter=self.is_parameter
            )

    def relate_words(self) -> None:
        """Relate the shape of packed random numbers to the shape of their words; else do nothing.

        To be called before shapes are closed. It makes the format final: the number of words
        follows from the format, and the format from all uses.
        """
        definition = self.definition
        if isinstance(definition, Applied) and definition.logic == NumbersOfWords(0):
            self.settle()
            logic = NumbersOfWords(16 // self.dtype.nbytes)
            self._set("definition", replace(definition, logic=logic))
            words = [operand.terms for operand in definition.operands]
            self.session.environment.relate(logic, self.terms, words, self.origin)

    def note_stated_shape(self) -> None:
        """Note that the program states the shape of a parameter apart from its creation."""
        if isinstance(self.definition, Parameter):
            self._set("definition", replace(self.definition, is_unstated_number=False))

    def add_access(self, access: WindowAccess) -> None:
        """Record an operation that accesses the tensor through padded windows."""
        memory = self.memory
        memory._set("_accesses", (*memory._accesses, access))

    @property
    def layout(self) -> MarginLayout:
        """The margins around the tensor's cells, final once this property has been read."""
        if self._layout is None:
            if (memory := self.memory) is not self:
                return memory.layout
            if isinstance(self.definition, GradientOf):
                _ = self.definition.tensor.layout  # so that it cannot grow past its gradient
            self._set("_layout", MarginLayout(self._needed_margins(), caller_location()))
            assert self._layout is not None
        return self._layout

    def _needed_margins(self) -> Margins:
        """Return the margins if they are final, else the maximum over the accesses so far.

        A gradient is written through the same windows that the tensor is read through.
        """
        if self._layout is not None:
            return self._layout.margins
        if (memory := self.memory) is not self:
            return memory._needed_margins()
        environment = self.session.environment
        needed = [access.margins(environment) for access in self._accesses]
        if isinstance(self.definition, GradientOf):
            needed.append(self.definition.tensor._needed_margins())
        return widest(needed)

    @property
    def requires_grad(self) -> bool:
        return self._grad is not None

    @requires_grad.setter
    def requires_grad(self, value: object) -> None:
        raise UsageError.at_caller(
            "Where a tensor is made decides if it has a gradient.",
            found=f"an assignment to the attribute requires_grad of {self!r}",
            fix="state requires_grad= there; oc.stop_gradient(x) passes no gradient on",
        )

    def _assigned_data(self, value: object) -> None:
        raise UsageError.at_caller(
            "The cells of a tensor are in contexts.",
            found=f"an assignment to the attribute data of {self!r}",
            fix="ctx[w] = array writes them",
        )

    data = property(fset=_assigned_data)

    @property
    def grad(self) -> Tensor | None:
        return self._grad

    @grad.setter
    def grad(self, value: object) -> None:
        # `p.grad += e` stores the result of the in-place operator; anything else would be lost
        # silently
        if value is not self._grad:
            raise UsageError.at_caller(
                "A gradient cannot be replaced, only assigned to inside recorded code.",
                found=f"an assignment to the attribute grad of {self!r}",
                fix="inside a function decorated with @oc.cd, write p.grad[:] = e or p.grad += e",
            )

    @property
    def merge(self) -> MergeBuffer:
        """The tensor's merge buffer: another device's copy, as an operand of recorded code."""
        return MergeBuffer(self)

    @property
    def T(self) -> Tensor:
        """The tensor with input and output axes exchanged."""
        transposed: Tensor = functions["exchange_rows"](self)
        return transposed

    def note_memory(self) -> None:
        """Make the session's changes final: a later failure must not lose the tensor's memory."""
        with self.session.undo_log.lock:
            self.session.undo_log.commit()

    def note_host_write(self) -> None:
        """Record that the host writes the cells."""
        if not isinstance(self.definition, Literal):
            return
        if self.fixed_by is not None:
            raise UsageError.at_caller(
                "A literal that holds 0, 1, 2, ... and is compared is a part of the program, as "
                "oc.arange(n) is.",
                found=f"an assignment to {self.describe()}, compared by {self.fixed_by}",
                fix="compare with a placeholder, oc.placeholder(...), which the host fills",
            )
        self._set("is_overwritten", True)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors it is computed from."""
        return self.definition.operands

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.definition, Parameter)

    @property
    def is_placeholder(self) -> bool:
        return isinstance(self.definition, Placeholder)

    @property
    def is_statistic(self) -> bool:
        """Return True for state that training follows and evaluation reads."""
        definition = self.definition
        return isinstance(definition, Declared) and definition.is_statistic

    @property
    def is_gradient(self) -> bool:
        return isinstance(self.definition, GradientOf)

    @property
    def literal(self) -> np.ndarray[Any, Any] | None:
        """The host's array of a literal, in the tensor's format or a file's; flat while open."""
        if not isinstance(self.definition, Literal):
            return None
        array = self._converted(self.definition.array)
        shape = self.shape
        return array.reshape(shape.dims) if shape.is_closed else array

    @property
    def params(self) -> Parameters:
        """The parameters that the tensor depends on, oldest first, with their names."""
        return Parameters(t for t in ancestors([self]) if t.is_parameter)

    @property
    def statistics(self) -> Parameters:
        """The statistics that the tensor depends on, or that its gradient updates, by name."""
        graph = ancestors([self])
        updated = [t for tensor in graph for effect in tensor.effects for t in effect.targets]
        return Parameters(t for t in (*graph, *updated) if t.is_statistic)

    @property
    def scopes(self) -> tuple[NetworkBlock[Any], ...]:
        """The blocks around a parameter or a statistic, outermost first."""
        definition = self.definition
        return definition.scopes if isinstance(definition, Declared | Parameter) else ()

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters it depends on, also through initializers, oldest first."""

        def needed(tensor: Tensor) -> tuple[Tensor, ...]:
            definition = tensor.definition
            return (
                (definition.initializer,) if isinstance(definition, Parameter) else tensor.operands
            )

        found = (each for each in reachable([self], needed) if each.is_parameter)
        return tuple(sorted(found, key=attrgetter("id")))

    def initialization(self) -> Any:
        """Return the computation of the first value of a parameter or statistic."""
        with self.session.undo_log.lock:
            match self.definition:
                case Parameter(code=code):
                    return code(self)
                case Declared(initialization=start) if start is not None:
                    return start(self)
                case _:
                    raise UsageError("Parameters have an initial value.", found=self.describe())

    def initial_cells(self) -> np.ndarray[Any, Any] | None:
        """Return the cells of a parameter whose initial value is an array of its own shape and
        format, so that nothing need be computed; None for other tensors.

        Code may assign to a literal that it uses, so the value of such a literal is computed.
        """
        start = self.definition.initializer if isinstance(self.definition, Parameter) else None
        if start is None or not isinstance(start.definition, Literal) or start.has_node:
            return None
        with self.session.undo_log.lock:
            self.settle()
            start.adopt(self.dtype)
            shape, cells = self.shape, start.literal
        if start.dtype is not self.dtype or not shape.is_closed or any(shape.extents):
            return None
        return cells if cells is not None and cells.shape == shape.dims else None

    def describe(self) -> str:
        """Return the kind, the name and the line of the tensor, for messages."""
        kind = kind_of(self.definition)
        where = f" ({self.origin.location})" if self.origin.location else ""
        return f"{kind} {self.node.name}{where}"

    def applications(self) -> dict[Any, Any]:
        """Return the applications of user-written operations that live as long as the tensor."""
        if self._applications is None:
            self._applications = {}
        return self._applications

    def add_effect(self, effect: Effect) -> None:
        """Let code follow each backpropagation; an effect of several tensors follows once."""
        self._set("effects", (*self.effects, effect))

    def forward(self) -> Any:
        """Return the code that computes the tensor, each part once.

        It contains the code of all dependencies, up to parameters, placeholders and literals. While
        code is being recorded, it becomes a part of that code, as the other pieces of code here do.
        """
        return functions["forward"](self)

    def zero_grads(self) -> Any:
        """Return the code that zeroes the gradients of the tensor and of all its dependencies."""
        return functions["zero_gradients"](self)

    def backprop(self) -> Any:
        """Return the code that adds to the gradients of the tensor's dependencies.

        The tensor's own gradient must be set: `loss.grad[:] = 1.0`.
        """
        return functions["backpropagate"](self)

    def consume_forward(self) -> Any:
        """Return the tensor's forward code, and mark it as consumed: code recorded later reads the
        tensor instead of computing it.

        Raises:
            UsageError: if the code, or a part of it, was consumed before.
        """
        return functions["consume_forward"](self)

    def consume_backprop(self) -> Any:
        """Return the tensor's code for backpropagation, once.

        Raises:
            UsageError: if it was consumed before.
        """
        return functions["consume_backprop"](self)

    def __getitem__(self, key: object) -> Any:
        if not is_everything(key) and (target := self.target(key)) is not None:
            return target
        with self.session.atomic():
            if (selected := selected_rows(key)) is not None:
                return functions["take_at"](self, *selected)
            return functions["subscript"](self, key)

    def note_update(self, result: Any, combine: BinaryOp, value: Any) -> None:
        """Note an in-place operator on a part of a tensor that recorded code may write."""
        recorder = self.session.recorder
        match self.definition:
            case Applied(operands=(source, *_), logic=Slice(keys)):
                if keys == (StaticSlice(),) and recorder is not None and source.is_assignable:
                    raise of_two_readings(accumulation_symbol(combine))
            case Applied(logic=Take()):
                pass
            case _:
                return
        if recorder is not None and isinstance(result, Tensor):
            recorder.note_update(result, self, combine, value)

    @property
    def sliced_from(self) -> tuple[Tensor, Keys] | None:
        """The tensor of which this one is a slice, with the keys; None for other tensors."""
        match self.definition:
            case Applied(operands=(source,), logic=Slice(keys)):
                return source, keys
            case _:
                return None

    def assign_with(
        self, value: Any, combine: BinaryOp, *, reset: bool, at: tuple[object, ...] = ()
    ) -> None:
        """Record an assignment to this tensor, or to the cells at the keys `at`."""
        if (selected := selected_rows(at)) is not None:
            functions["store_at"](self, *selected, value, combine, reset)
            return
        recorder = recorder_for(self)
        keys = parse_keys(at, f"{self.label[0]}[{key_text(at)}]")
        recorder.assign(self, value, combine, reset=reset, keys=keys)

    @property
    def is_assignable(self) -> bool:
        """Return True for tensors whose cells recorded code may write."""
        return isinstance(self.definition, Declared | Parameter | Placeholder | GradientOf)

    def __repr__(self) -> str:
        name = "_".join(self.label) or f"#{self.id}"
        if self.session is sessions.RETRACTED:
            return f"<retracted {name}>"
        return f"<{type(self.definition).__name__.lower()} {name}: {self.shape}>"


class MergeBuffer(Expression):
    """Another device's copy of a tensor, as an operand of recorded code."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"{self.tensor!r}.merge"
