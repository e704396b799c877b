"""The contract of user-written operations: `Op`, and `Apply`, an op applied to inputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from numbers import Real
from typing import Any

from ocannl_core.base.context_variables import scoped
from ocannl_core.base.errors import MissingGradientError, OpError, ShapeError, SpecError
from ocannl_core.base.identity import exact_key
from ocannl_core.base.origin import Location, Origin, caller_location
from ocannl_core.ir.assignments.nodes import ExternalCall
from ocannl_core.ir.external import NativeCode
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, promote
from ocannl_core.shape.language.constraints import Constraint, RowEqual
from ocannl_core.shape.language.shape_terms import FreshVariables, Shape
from ocannl_core.shape.language.statement import Statement, parse_statement, statement_constraints
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.custom.op_call import OpCall
from ocannl_core.tensor.custom.variables import (
    Aliases,
    Array,
    ObjectResult,
    ObjectType,
    Storage,
    TensorType,
    as_variables,
)
from ocannl_core.tensor.derivatives.gradient_terms import GradientTerm
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Declared, Parameter, ResultOf
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.shape_previews import implied_ranks
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operands import session_of
from ocannl_core.tensor.primitives.specifications import composite_name, describe_operands

_caller: ContextVar[Location | None] = ContextVar("ocannl_op_caller", default=None)


class NoNativeCode(Exception):
    """Absence of native code, raised by `c_code` and `cuda_code`: `perform` runs instead."""


class Op:
    """A user-written operation. An instance stands for one function of tensors.

    A subclass defines `perform`, states shapes with `spec`, and may define everything else. Static
    parameters, such as an axis or a mode, are attributes.

    Attributes:
        spec: The shapes of inputs and outputs, as in `"...|n => ...|n, 2"`: rows are equal to the
            written ones, `;` separates inputs and outputs, numbers are sizes. See `constraints`.
        default_output: The position of the output that a call returns; the others are hidden then.
        destroy_map: For an output, the input that it overwrites and whose memory it takes over; for
            None, inputs that are lost as scratch memory.
        view_map: For an output, the input of which it may be a view.
        broadcasts: Inputs are broadcast along axes that they lack; their gradients may have these
            axes, and are summed over them.
        line_axis: The axis, in buffer order, whose lines are computed each by itself, if all inputs
            and outputs have it: other axes may then have extents at run time.
        input_names: The names of inputs in native code: `in0`, `in1`, ... if empty.
        output_names: The names of outputs in native code: `out0`, `out1`, ... if empty.
        c_headers: Header files for `c_code`.
        c_support: C declarations and functions for `c_code`.
        cuda_support: CUDA declarations and functions for `cuda_code`.
    """

    __props__: tuple[str, ...] | None = None
    """Names of the attributes that make two ops of one class equal; None compares identities."""

    spec: str | None = None
    default_output: int | None = None
    destroy_map: Aliases = {}  # noqa: RUF012 (read only)
    view_map: Aliases = {}  # noqa: RUF012
    broadcasts: bool = False
    line_axis: int | None = None
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    c_headers: tuple[str, ...] = ()
    c_support: str = ""
    cuda_support: str = ""

    def make_node(self, *inputs: Any) -> Apply:
        """Return the op applied to inputs.

        It checks them, converts numbers and arrays to tensors, and states the types of the outputs.
        It may depend on types of tensors, not on their definitions. By default `spec` states the
        outputs, with the formats of `output_dtypes`.

        Raises:
            OpError: if the op has no `spec`.
        """
        if self.spec is None:
            raise OpError.at_caller(
                "An op states its shapes with `spec`, or defines `make_node`.",
                found=repr(self),
                fix='spec = "... => ..." for an output of the shape of the only input',
            )
        variables = as_variables(inputs)
        count = len(self.statement().outputs)
        dtypes = self.output_dtypes(*(variable.dtype for variable in variables))
        if not isinstance(dtypes, list | tuple) or len(dtypes) != count:
            is_list = isinstance(dtypes, list | tuple)
            raise OpError(
                "`output_dtypes` returns a list of a number format for each output.",
                found=f"{len(dtypes) if is_list else repr(dtypes)} for the {count} outputs of "
                f"{self.spec!r}",
                where=f"{self!r}, at {caller_location()}",
            )
        return Apply(self, variables, [TensorType(dtype) for dtype in dtypes])

    def output_dtypes(self, *dtypes: DType) -> Sequence[DType]:
        """Return the number formats of the outputs for inputs of these formats.

        The default is the promotion of the input formats, for all outputs.
        """
        common = promote(*dtypes) if dtypes else sessions.current().default_dtype
        return [common] * len(self.statement().outputs)

    def constraints(
        self,
        inputs: Sequence[Shape],
        outputs: Sequence[Shape],
        origin: Origin,
        fresh: FreshVariables,
    ) -> Sequence[Constraint]:
        """Return the constraints between shapes, of which some may be unknown; by default from
        `spec`.

        Args:
            outputs: The shapes of the outputs that are tensors.
            origin: The cause named by errors about the constraints.
            fresh: A source of new variables for sizes and rows.
        """
        if self.spec is None:
            return ()
        return statement_constraints(self.statement(), inputs, outputs, origin, fresh)

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        """Compute the outputs and put each into element 0 of its storage.

        The storage holds None or an array of the right type with arbitrary cells, which may be
        overwritten or replaced. Inputs are changed only as `destroy_map` allows, and references to
        arrays are not kept.
        """
        raise OpError(
            "An op defines `perform`.", found=repr(self), fix="def perform(self, node, inputs, ...)"
        )

    def c_code(self, node: Apply) -> str:
        """Return C statements with the effect of `perform`; see `NativeCode` for their names.

        Raises:
            NoNativeCode: to run `perform` instead.
        """
        raise NoNativeCode

    def c_workspace(self, node: Apply, extents: Sequence[tuple[int, ...]]) -> int:
        """Return the bytes of memory that `c_code` finds under the name `workspace`.

        Args:
            extents: The extents of each input.
        """
        return 0

    def c_iterations(
        self, node: Apply, extents: Sequence[tuple[int, ...]]
    ) -> tuple[int, float] | None:
        """Return the number of iterations of `c_code` that threads may share, and the cycles of
        each; None to run on one thread.

        Code with iterations runs those from `begin` to `end` at a time. None of them accesses a
        cell that another one writes, and each thread has a workspace of its own.

        Args:
            extents: The extents of each input.
        """
        return None

    def cuda_code(self, node: Apply) -> str:
        """Return the statements of a CUDA kernel with the effect of `perform`.

        Raises:
            NoNativeCode: to run `perform` instead.
        """
        raise NoNativeCode

    def cuda_launch(self, node: Apply) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the extents of the grid and of its blocks: one thread by default."""
        return (1,), (1,)

    def __call__(self, *inputs: Any) -> Any:
        """Return the output of the op applied to inputs, or the list of its outputs."""
        session = next((x.session for x in inputs if isinstance(x, Tensor)), sessions.current())
        with scoped(_caller, caller_location()), session, session.atomic():
            node = self.make_node(*inputs)
        if not isinstance(node, Apply) or node.op != self:
            raise OpError(
                "`make_node` returns an Apply of the op.",
                found=f"{node!r}",
                where=f"{self!r}.make_node, at {caller_location()}",
                fix="return Apply(self, inputs, outputs)",
            )
        if self.default_output is not None:
            return node.outputs[self.default_output]
        return node.outputs[0] if len(node.outputs) == 1 else list(node.outputs)

    def statement(self) -> Statement:
        """Return the parsed `spec`."""
        if not isinstance(self.spec, str | None):
            raise SpecError("A spec is a text.", found=repr(self.spec), where=f"spec of {self!r}")
        try:
            return parse_statement(self.spec or "=>")
        except SpecError as error:
            where = f"spec of {self!r}"
            raise SpecError(error.rule, found=error.found, where=where, fix=error.fix) from None

    @property
    def name(self) -> str:
        """The name in printed code."""
        return type(self).__name__

    def native(self, language: str, node: Apply) -> NativeCode | None:
        """Return the code of an application in the language of a backend, or None."""
        if any(isinstance(output, ObjectResult) for output in node.outputs):
            return None  # Python objects live in Python
        inputs = self.input_names or tuple(f"in{i}" for i in range(len(node.inputs)))
        outputs = self.output_names or tuple(f"out{i}" for i in range(len(node.outputs)))
        try:
            match language:
                case "c":
                    body = self.c_code(node)
                    return NativeCode(
                        body,
                        inputs,
                        outputs,
                        self.c_support,
                        self.c_headers,
                        workspace=partial(self.c_workspace, node),
                        iterations=partial(self.c_iterations, node),
                    )
                case "cuda":
                    body, (grid, block) = self.cuda_code(node), self.cuda_launch(node)
                    return NativeCode(body, inputs, outputs, self.cuda_support, (), grid, block)
                case _:
                    return None
        except NoNativeCode:
            return None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if isinstance(cls.__props__, str):
            raise OpError(
                "__props__ is a tuple of names.",
                found=repr(cls.__props__),
                where=cls.__qualname__,
                fix=f"__props__ = ({cls.__props__!r},)",
            )

    def _parameters(self) -> tuple[Hashable, ...]:
        missing = [name for name in self.__props__ or () if not hasattr(self, name)]
        if missing:
            raise OpError(
                "An op has the attributes that __props__ names.",
                found=f"no {', '.join(missing)}",
                where=type(self).__qualname__,
                fix="set them in __init__",
            )
        return tuple(exact_key(getattr(self, name)) for name in self.__props__ or ())

    def __eq__(self, other: object) -> bool:
        if self.__props__ is None or not isinstance(other, Op):
            return self is other
        return type(self) is type(other) and self._parameters() == other._parameters()

    def __hash__(self) -> int:
        if self.__props__ is None:
            return object.__hash__(self)
        return hash((type(self), self._parameters()))

    def __repr__(self) -> str:
        names = [name for name in self.__props__ or () if hasattr(self, name)]
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({shown})"


class Apply:
    """An op applied to inputs. Equal ops on equal inputs have the same outputs.

    Args:
        inputs: Its inputs: tensors, not necessarily the arguments of `make_node`.

    Attributes:
        outputs: The outputs: tensors, and an `ObjectResult` for each output that is an object.
        origin: The op and the user's line that applied it.

    Raises:
        OpError: if the arguments are no application, or an equal one has outputs of other types.
        ShapeError: if the inputs' shapes do not fit; nothing changes then.
    """

    # fmt: off
    __slots__ = (
        "__weakref__", "_backward", "_call", "_has_place", "inputs", "op", "origin", "outputs",
    )
    # fmt: on

    def __init__(
        self, op: Op, inputs: Sequence[Tensor], outputs: Sequence[TensorType | ObjectType]
    ) -> None:
        if not isinstance(op, Op):
            raise OpError(
                "An Apply has an op, which the inputs are given to.",
                found=f"{type(op).__name__}: {op!r}",
                where=str(_caller.get() or caller_location() or ""),
                fix="Apply(self, inputs, outputs)",
            )
        self.op = op
        name = composite_name() or repr(op)
        self.origin = Origin(name, _caller.get() or caller_location())
        self.outputs: list[Tensor | ObjectResult] = []
        self._call: OpCall | None = None
        self._backward: tuple[GradientTerm, ...] | None = None
        self._has_place = False
        for problem in _problems(op, inputs, outputs):
            raise self._error(*problem)
        self.inputs: list[Tensor] = list(inputs)
        types = list(outputs)
        session = session_of(tuple(inputs), repr(op))
        with session.atomic():
            if not self._join_equal(session, types):
                is_shared = not inputs and session.recorder is None
                with sessions.outside_of_blocks(session) if is_shared else nullcontext():
                    self._make(session, types)

    def _error(self, rule: str, found: str, fix: str = "") -> OpError:
        return OpError(rule, found=found, where=str(self.origin), fix=fix)

    def _join_equal(self, session: Session, types: list[TensorType | ObjectType]) -> bool:
        """Return True if there is an equal application, and share its outputs.

        Nothing is shared in recorded code, where the place of an application matters.
        """
        formats = [t.dtype if isinstance(t, TensorType) else None for t in types]
        try:
            hash(self.op)  # a mapping would add words of its own to the error
        except TypeError as error:
            raise self._error(
                "An op is hashable, so that equal ones can be found.",
                f"{type(self.op).__name__}: {error}",
                "define __hash__ beside __eq__, list attributes in __props__, or make the op a "
                "frozen dataclass",
            ) from error
        signature = ("types", *(variable.dtype for variable in self.inputs))
        known = session.signatures.setdefault(self.op, {}).setdefault(
            signature, (formats, self.origin)
        )
        if known[0] != formats:
            raise self._error(
                "Equal ops on inputs of equal types have outputs of equal types.",
                f"{_formats(formats)}; {_formats(known[0])} for {known[1]}",
                "let the op's equality depend on all that its outputs depend on",
            )
        if session.recorder is not None:
            return False
        known_applications = self._known(session)
        first = known_applications.get(self._key)
        if first is None:
            session.undo_log.put(known_applications, self._key, self)
            return False
        self.outputs = first.outputs
        return True

    def _known(self, session: Session) -> dict[Any, Any]:
        """Return the table of existing applications, which lives as long as the youngest input."""
        if not self.inputs:
            return session.applications
        return max(self.inputs, key=lambda each: each.id).applications()

    @property
    def _key(self) -> tuple[Any, ...]:
        return (self.op, *(variable.id for variable in self.inputs))

    def _make(self, session: Session, types: list[TensorType | ObjectType]) -> None:
        environment, op = session.environment, self.op
        shapes: list[Shape] = []
        for position, each in enumerate(types):
            if isinstance(each, TensorType):
                is_silent = op.spec is None and type(op).constraints is Op.constraints
                if each.shape is None and is_silent:
                    raise self._error(
                        "The shapes of an op's outputs follow from its inputs' or are given.",
                        "an output without a shape, of an op without `spec`",
                        'spec = "... => ...", or TensorType.of(x) in make_node',
                    )
                shape = each.shape or self._destroyed_shape(position, len(shapes))
                shapes.append(shape or environment.fresh_shape(name=each.label or op.name))
        terms = [variable.terms for variable in self.inputs]
        with describe_operands(self.inputs):
            environment.derive(shapes, terms, lambda fresh: self._constraints(terms, shapes, fresh))
        recorder = session.recorder
        self._has_place = recorder is not None
        flows = recorder is None and any(variable.requires_grad for variable in self.inputs)
        remaining = iter(shapes)
        for position, each in enumerate(types):
            if isinstance(each, ObjectType):
                self.outputs.append(ObjectResult(each))
                continue
            shape = next(remaining)
            result = Tensor(
                session,
                ResultOf(self, self._updated_tensor(position, each.dtype, shape)),
                shape,
                each.dtype,
                (each.label or op.name,),
                self.origin,
                requires_grad=flows and each.dtype.is_float,
            )
            self.outputs.append(result)
            if recorder is not None:
                recorder.add_tensor(result, is_named=False)

    def _constraints(
        self, terms: list[Shape], shapes: list[Shape], fresh: FreshVariables
    ) -> list[Constraint]:
        found: Any = self.op.constraints(terms, shapes, self.origin, fresh)
        listed = list(found) if isinstance(found, Iterable) else [found]
        for each in listed:
            if not isinstance(each, Constraint):
                raise self._error(
                    "`constraints` returns a sequence of constraints.",
                    f"{type(each).__name__}: {each!r}",
                )
        return listed

    def _destroyed_shape(self, position: int, among_tensors: int) -> Shape | None:
        """Return the shape of the input that an output overwrites, if `spec` makes both equal."""
        for source in self.op.destroy_map.get(position, ()):
            if self.op.spec is None:
                return self.inputs[source].terms
            statement = self.op.statement()
            written = statement.outputs[among_tensors : among_tensors + 1]
            if written == statement.inputs[source : source + 1]:
                return self.inputs[source].terms
        return None

    def _updated_tensor(self, position: int, dtype: DType, shape: Shape) -> Tensor | None:
        """Return the persistent tensor that an output updates in place, or None."""
        for source in self.op.destroy_map.get(position, ()):
            variable = self.inputs[source]
            fits = variable.dtype is dtype and variable.terms == shape
            if fits and _is_persistent(variable):
                return variable
        return None

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The outputs that are tensors."""
        return tuple(output for output in self.outputs if isinstance(output, Tensor))

    @property
    def destroyed(self) -> tuple[int, ...]:
        """The positions of the inputs that the op destroys."""
        sources = (source for each in self.op.destroy_map.values() for source in each)
        return tuple(dict.fromkeys(sources))

    @property
    def changes_state(self) -> bool:
        """Return True if it changes a parameter or a declared tensor: it has a side effect."""
        return any(_is_persistent(self.inputs[position]) for position in self.destroyed)

    def call(self, node_of: Callable[[Tensor], TensorNode]) -> ExternalCall:
        """Return the assignment that computes all outputs."""
        self._check_extents()
        if self._call is None:
            self._call = OpCall(self)
        inputs = tuple(map(node_of, self.inputs))
        destroy_map, view_map = self.op.destroy_map, self.op.view_map
        shared = [(k, i) for k, each in destroy_map.items() if k is not None for i in each]
        views = [(k, i) for k, each in view_map.items() if k is not None for i in each]

        def pairs(found: list[tuple[int, int]]) -> tuple[tuple[TensorNode, TensorNode], ...]:
            outputs = ((self.outputs[k], inputs[i]) for k, i in found)
            return tuple((node_of(o), node) for o, node in outputs if isinstance(o, Tensor))

        return ExternalCall(
            self._call,
            inputs,
            tuple(map(node_of, self.results)),
            tuple(inputs[i] for i in self.destroyed),
            pairs(shared),
            pairs(views),
            self._has_place,
            self.origin,
        )

    def backward(self) -> tuple[GradientTerm, ...]:
        """Return the terms of gradients in memory, which all backpropagations share."""
        if self._backward is None:
            result = self.results[0]
            wanted = [variable.requires_grad for variable in self.inputs]
            given = [each.grad for each in self.results]
            with result.session.outside_of_code(result.loop):
                self._backward = self.gradients(given, wanted) if any(wanted) else ()
        return self._backward

    def gradients(
        self,
        cotangents: Sequence[Tensor | None],
        wanted: Sequence[bool],
        values: Sequence[Tensor] | None = None,
    ) -> tuple[GradientTerm, ...]:
        """Return terms of the gradients of the inputs.

        Args:
            cotangents: The gradients of the outputs that are tensors.
            wanted: True for the inputs whose gradients are needed.
            values: The tensors that hold the cells of the inputs, if these are others.
        """
        remaining = iter(cotangents)
        given = [next(remaining) if isinstance(each, Tensor) else None for each in self.outputs]
        stated = self._stated_gradients(list(values or self.inputs), given)
        return tuple(self._terms(stated, wanted))

    def _stated_gradients(self, values: list[Tensor], given: list[Tensor | None]) -> Sequence[Any]:
        """Return the gradients that `grad` of the op states."""
        grad = getattr(self.op, "grad", None)
        if grad is None:
            raise MissingGradientError(
                "Gradients flow through an op that defines `grad`.",
                found=f"{self.op!r} defines none",
                where=str(self.origin),
                fix="def grad(self, inputs, output_gradients), which returns one entry for each "
                "input,\nor stop the gradient: oc.stop_gradient(x)",
            )
        with self.results[0].session:
            try:
                found: Any = grad(values, given)
            except Exception as error:
                error.add_note(f"while calling `grad` of {self.origin}")
                raise
        if not isinstance(found, list | tuple):
            raise self._grad_error(
                f"a {type(found).__name__}",
                "return gx, (with a comma) or [gx] where there is one input",
            )
        if len(found) != len(self.inputs):
            raise self._grad_error(f"{len(found)} entries for {len(self.inputs)} inputs")
        return found

    def _terms(self, found: Sequence[Any], wanted: Sequence[bool]) -> Iterator[GradientTerm]:
        for position, (variable, value) in enumerate(zip(self.inputs, found, strict=True)):
            if value is None or not wanted[position]:
                continue
            if isinstance(value, Real):
                yield GradientTerm(variable, float(value), variable.terms)
                continue
            if not isinstance(value, Tensor):
                raise self._grad_error(f"{type(value).__name__} {value!r} for input {position}")
            origin = Origin(f"gradient of {self.op!r} for input {position}", self.origin.location)
            with describe_operands([value], variable):
                environment = variable.session.environment
                if self.op.broadcasts:
                    common = environment.fresh_shape()
                    shapes = [variable.terms, value.terms]
                    environment.relate(Pointwise(), common, shapes, origin)
                else:
                    self._check_ranks(position, value)
                    common = variable.terms
                    rows = [RowEqual(row, value.terms.row(k), origin) for k, row in common.rows()]
                    environment.constrain(rows)
            yield GradientTerm(variable, value, common)

    def _check_ranks(self, position: int, value: Tensor) -> None:
        """Refuse a gradient with other axes than its input: fewer axes would be repeated."""
        variable = self.inputs[position]
        ranks = implied_ranks(variable), implied_ranks(value)
        if None not in ranks and ranks[0] != ranks[1]:
            raise ShapeError(
                "A tensor that `grad` returns has the axes of its input.",
                found=f"shape {value.shape} for input {position} of shape {variable.shape}",
                where=f"{self.op!r}.grad, for {self.origin}",
                fix="repeat a smaller one: oc.broadcast_to(g, 2, 3), or sum over the other axes: "
                "oc.sum(g, axis=0)",
            )

    def _grad_error(self, found: str, fix: str = "") -> OpError:
        return OpError(
            "`grad` returns a list or tuple with one entry for each input: a tensor expression, a "
            "number, or None.",
            found=found,
            where=f"{self.op!r}.grad, for {self.origin}",
            fix=fix,
        )

    def copy(self, inputs: Sequence[Tensor]) -> Apply:
        """Return the application of the op to other inputs of equal types."""
        types = [
            TensorType(output.dtype, output.terms, output.label[0])
            if isinstance(output, Tensor)
            else output.type
            for output in self.outputs
        ]
        with scoped(_caller, self.origin.location):
            return Apply(self.op, inputs, types)

    def is_equivalent(self, other: Apply) -> bool:
        """Return True for equal ops on inputs of equal types, with outputs of equal types."""
        return self.op == other.op and self._types() == other._types()

    def _types(self) -> tuple[Any, ...]:
        tensors = [(t.dtype, t.shape) for t in self.inputs]
        results = [(t.dtype, t.shape) if isinstance(t, Tensor) else None for t in self.outputs]
        return (tensors, results)

    def _check_extents(self) -> None:
        session = session_of(tuple(self.inputs), repr(self.op))
        signature = ("extents", *((t.dtype, t.shape) for t in self.inputs))
        extents = [t.shape for t in self.results]
        known = session.signatures.setdefault(self.op, {}).setdefault(
            signature, (extents, self.origin)
        )
        if known[0] != extents:
            raise self._error(
                "Equal ops on inputs of equal types have outputs of equal types.",
                f"{'; '.join(map(str, extents))} here, {'; '.join(map(str, known[0]))} "
                f"for {known[1]}",
                "state the sizes of outputs by those of inputs, or by parameters that enter the "
                "op's equality",
            )

    def __repr__(self) -> str:
        inputs = ", ".join("_".join(each.label) for each in self.inputs)
        return f"<{self.op!r} of {inputs or 'nothing'}>"


def _is_persistent(variable: Tensor) -> bool:
    return isinstance(variable.memory.definition, Parameter | Declared)


def _formats(formats: Sequence[DType | None]) -> str:
    return ", ".join("an object" if each is None else str(each) for each in formats)


def _problems(op: Op, inputs: Any, types: Any) -> Iterator[tuple[str, str, str]]:
    """Yield rule, violation and fix for each problem of the inputs, the output types and the maps.

    Later checks may presuppose that earlier ones found no problem.
    """
    for title, given in (("inputs", inputs), ("outputs", types)):
        if not isinstance(given, list | tuple):
            fix = f"Apply(self, [x, ...], [TensorType(dtype), ...]), with {title} in a list"
            yield f"The {title} of an Apply are a list.", f"{type(given).__name__}: {given!r}", fix
    for variable in inputs:
        if not isinstance(variable, Tensor):
            yield (
                "The inputs of an Apply are tensors.",
                f"{type(variable).__name__}: {variable!r}",
                "as_variable(x) makes a tensor of a number or an array",
            )
    for each in types:
        if not isinstance(each, TensorType | ObjectType):
            yield (
                "The outputs of an Apply are given by their types.",
                f"{type(each).__name__}: {each!r}",
                "TensorType.of(x), TensorType(dtype), or ObjectType()",
            )
    tensors = {k for k, each in enumerate(types) if isinstance(each, TensorType)}
    if not tensors:
        yield "An op has an output that is a tensor.", f"{len(types)} outputs", ""
    default = op.default_output
    if default is not None and default not in tensors:
        yield "default_output is the position of an output that is a tensor.", f"{default}", ""
    yield from _map_problems("destroy_map", op.destroy_map, len(inputs), tensors)
    yield from _map_problems("view_map", op.view_map, len(inputs), tensors)
    taken = [i for k, each in op.destroy_map.items() if k is not None for i in each]
    if len(set(taken)) < len(taken):
        yield (
            "One output at most takes over the memory of an input.",
            f"destroy_map = {dict(op.destroy_map)}",
            "",
        )


def _map_problems(
    title: str, aliases: Mapping[int | None, Sequence[int]], count: int, tensors: set[int]
) -> Iterator[tuple[str, str, str]]:
    is_map = isinstance(aliases, Mapping)
    if not is_map or not all(isinstance(each, list | tuple) for each in aliases.values()):
        fix = f"{title} = {{0: [0]}} for the first output and the first input"
        yield f"{title} maps positions of outputs to lists of inputs.", repr(aliases), fix
    for output, sources in aliases.items():
        is_scratch = title == "destroy_map" and output is None
        if not is_scratch and (output not in tensors or len(sources) > 1):
            yield (
                f"{title} gives for an output that is a tensor one input at most.",
                f"{output}: {list(sources)}",
                "",
            )
        if any(not isinstance(i, int) or not 0 <= i < count for i in sources):
            yield (
                f"{title} names inputs by their positions.",
                f"{output}: {list(sources)}, with {count} inputs",
                "",
            )
