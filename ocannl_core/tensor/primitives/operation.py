"""Operations on tensors, and the three roads of a call.

An operation has a name, a logic that lines up axes, and code: the forward and the gradient
assignments to slots. `Operation.__call__` chooses the road by the operands and by the session:

    operands          session    result
    ----------------  ---------  -------------------------------------------------------------------
    slots, numbers    any        SlotApplication, recorded when it is assigned to a slot
    tensors, numbers  recording  RecordedPrimitive, reduced by the assignment of recorded code, or a
                                 Tensor made there
    tensors, numbers  else       Tensor

`define_operation` defines the operations, of this package and of users.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from textwrap import fill, indent
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.base.renamed import public_title, value_of
from ocannl_core.ir.host_arrays import check_number
from ocannl_core.ir.numbers.dtypes import DType, promote
from ocannl_core.ir.numbers.primitives import LOGICAL, BinaryOp, Op, Result, TernaryOp, arity
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.translation.logic import Compose, Logic, Pointwise, Several
from ocannl_core.tensor.graph.definitions import Applied, check_label
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.graph.index_maps import IndexMaps, index_maps
from ocannl_core.tensor.graph.precision import (
    Precision,
    check_truths,
    format_for_numbers,
    is_reduction,
    number_format,
    operand_precisions,
    result_precision,
)
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.slots import (
    SELECTION,
    Code,
    SlotApplication,
    parameter_slots,
    slot_application,
)
from ocannl_core.tensor.graph.tensor import MergeBuffer, Tensor
from ocannl_core.tensor.primitives.dimension import Capture, captured_names
from ocannl_core.tensor.primitives.operands import (
    as_tensors,
    assignment_operands,
    check_operands,
    check_recorded_here,
    note_accesses,
    offsets_of,
    session_of,
)
from ocannl_core.tensor.primitives.specifications import (
    composite_name,
    describe_operands,
    stated_logic,
)


class _Signature:
    """The signature of an operation, which shows its operands."""

    def __get__(self, operation: Operation | None, owner: type) -> inspect.Signature:
        if operation is None:
            raise AttributeError("__signature__")  # the signature of a class is its own
        of_all = inspect.signature(operation.__call__)
        operands, *options = of_all.parameters.values()
        kind = inspect.Parameter.POSITIONAL_ONLY
        named = [operands.replace(name=name, kind=kind) for name in "abc"[: operation.operands]]
        return of_all.replace(parameters=[*named, *options])


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """An operation on tensors. A call applies it.

    Attributes:
        name: The name in printed code, labels and messages.
        operands: The number of tensors it takes.
        logic: The correspondence of axes: `"."`, `"@"`, `"T"`, or an einsum specification; None
            where it follows from the assignments of `forward`.
        forward: The assignments of the result slot `v` from the operand slots `v1`, `v2`, `v3`.
        gradient: The accumulations into the gradient slots `g1`, `g2`, `g3`, if any.
        primitive: The scalar primitive it lifts, or None; bare in the code of other operations.
        combine: The accumulation with which `forward` writes the result; None for plain assignment.
        positions: The number of operands, the last ones, whose cells are positions and not values;
            their formats do not influence the result's format.
        moves_cells: True if the result is cells of operands, though no primitive states it.
        gradient_expression: Returns the terms of the operands' gradients for the operands and the
            gradient of the result, as expressions, where there is no `gradient` or its assignments
            have no derivative; else None.
    """

    name: str
    operands: int
    logic: str | None
    forward: Code
    gradient: Code | None = None
    primitive: Op | None = None
    combine: BinaryOp | None = None
    positions: int = 0
    moves_cells: bool = False
    gradient_expression: Callable[..., Sequence[Any]] | None = None
    __signature__ = _Signature()

    @property
    def has_gradient(self) -> bool:
        """Return True if gradients flow through the operation."""
        return self.gradient is not None or self.gradient_expression is not None

    def __call__(
        self,
        *args: Any,
        logic: str | None = None,
        padded: bool | None = None,
        values: Mapping[str, int] | None = None,
        projections: str | None = None,
        capture: Capture = (),
        label: str | None = None,
        dtype: DType | str | None = None,
        requires_grad: bool | None = None,
    ) -> Any:
        """Return the operation applied to expressions and numbers.

        Args:
            logic: A logic in place of the operation's own one.
            projections: In recorded code, for a primitive: the index maps and the domain of the
                assignment, `"2*o + k; k => o over o<3, k<2"`.
            padded: True to pad the windows of a specification that are marked neither `=` nor `<`.
            values: Numbers for names in a specification: for coefficients, and sizes of axes.
            capture: Dimensions made by `oc.dim`, to stand for sizes in a specification.
            label: A name for the result.
            dtype: The number format of the result; it follows from the operands when not given.
            requires_grad: False to stop gradients, True for a gradient even if no operand has one;
                by default the result has one where an operand has.

        Raises:
            UsageError: for another number of operands, or for operands that are neither tensors
                nor numbers.
            ShapeError: if the operands' shapes do not fit the logic.
        """
        if check_operands(args, self.operands, self.name):
            self._refuse_format(dtype)
            return self._apply_to_slots(
                args,
                logic,
                padded,
                values,
                projections=projections,
                capture=capture or None,
                label=label,
                requires_grad=requires_grad,
            )
        session = session_of(args, self.name)
        recorder = session.recorder
        if recorder is not None and (folded := self._fold(args)) is not None:
            return folded
        is_bare = self.primitive is not None and self.combine is None
        if projections is not None:
            self._refuse_format(dtype)
            where = str(Origin(self.name, caller_location()))
            if recorder is None or not is_bare:
                raise UsageError(
                    "Projections are stated for a primitive that an assignment applies.",
                    found=f"{self.name} with projections={projections!r}",
                    where=where,
                    fix="inside a function decorated with @oc.cd, write c[oc.neutral] += "
                    'oc.multiply(a, b, projections="...")',
                )
            given = assignment_operands(args, session)
            count = sum(not isinstance(each, int | float) for each in given)
            return recorder.record_primitive(self, given, index_maps(projections, count, where))
        stated = self._stated_logic(logic, padded, values, capture)
        captured = captured_names(capture, session, self.describe(stated)) if capture else {}
        if recorder is not None and is_bare and not captured:
            has_merge_buffer = any(isinstance(arg, MergeBuffer) for arg in args)
            if has_merge_buffer or (logic is not None and stated != Pointwise()):
                self._refuse_format(dtype)
                if has_merge_buffer:
                    given = assignment_operands(args, session)
                else:
                    given = as_tensors(args, session, self.primitive)
                return recorder.record_primitive(self, given, stated)
        if label is not None:
            check_label(label)
        return self._make_tensor(session, args, stated, label, dtype, requires_grad, captured)

    def _apply_to_slots(
        self,
        args: tuple[Any, ...],
        logic: str | None,
        padded: bool | None,
        values: Mapping[str, int] | None,
        **of_tensors: object,
    ) -> SlotApplication:
        """Return the bare primitive applied to slots, for an assignment to a slot."""
        self._refuse_beside_slots(**of_tensors)
        if self.primitive is None or self.combine is not None:
            raise UsageError.at_caller(
                "Inside the code of an operation, operators are bare primitives.",
                found=self.name,
                fix="accumulate a primitive: v[oc.neutral] += v1 * v2"
                if self.combine is not None
                else "write its formula with primitives: 1 / (1 + oc.exp(-v1)), not oc.sigmoid(v1)",
            )
        if logic is None:
            self._refuse_beside_slots(padded=padded, values=values or None)
            return slot_application(self.primitive, args)
        stated = stated_logic(self.name, logic, self.operands, padded, values)
        return slot_application(self.primitive, args, stated)

    def _refuse_beside_slots(self, **stated: object) -> None:
        """Raise UsageError if an argument for tensors is given."""
        given = [name for name, value in stated.items() if value is not None]
        if given:
            raise UsageError.at_caller(
                "Inside the code of an operation, operators are primitives of slots.",
                found=f"{self.name} with {', '.join(f'{name}=' for name in given)}",
                fix="leave that out; to state how axes line up in one assignment, "
                'write oc.multiply(v1, v2, logic="...")',
            )

    def _fold(self, args: tuple[Any, ...]) -> Any:
        """Fold an operator with a Python 0; return None where nothing folds.

        0 * x  -->  0        x + 0  -->  x        x - 0  -->  x
        """
        if len(args) != 2 or self.combine is not None:
            return None
        left, right = (isinstance(arg, Real) and float(arg) == 0.0 for arg in args)
        match self.primitive:
            case BinaryOp.MUL if left or right:
                zero = args[0] if left else args[1]
                return abs(zero)  # of its class: a sum of integers does not become a float
            case BinaryOp.ADD if left:
                return args[1]
            case BinaryOp.ADD | BinaryOp.SUB if right:
                return args[0]
            case _:
                return None

    def _refuse_format(self, dtype: DType | str | None) -> None:
        """Raise UsageError if a format is given for a primitive that creates no tensor."""
        if dtype is not None:
            raise UsageError(
                "A primitive that an assignment applies makes no tensor that could have a format.",
                found=f"{self.name} with dtype={str(dtype)!r}",
                where=str(Origin(self.name, caller_location())),
                fix="convert an operand with oc.cast, or state the format of the assigned tensor",
            )

    def tensor(
        self,
        operands: tuple[Tensor, ...],
        logic: Logic,
        *,
        label: str | None = None,
        dtype: DType | str | None = None,
        requires_grad: bool | None = None,
        shape: Shape | None = None,
        origin: Origin | None = None,
        capture: Mapping[str, DimRef] | None = None,
    ) -> Tensor:
        """Return a new tensor that holds the result, and add its constraints to the environment.

        Raises:
            ShapeError: if the operands' shapes do not fit the logic; nothing changes then.
        """
        check_label(label)
        session = operands[0].session
        return self._make_tensor(
            session, operands, logic, label, dtype, requires_grad, capture, shape, origin
        )

    def _make_tensor(
        self, session: Session, args: tuple[Any, ...], logic: Logic, *stated: Any
    ) -> Tensor:
        """Return a new tensor; change nothing if that fails."""
        # as `with session.atomic():`, at a third of its cost: this runs for every operation
        environment = session.environment
        log = environment.undo_log
        depth, position = log.depth, None
        try:
            position = log.begin()
            operands = as_tensors(args, session, self.primitive)
            if self.primitive is None and not self.moves_cells:
                operands = self._real_operands(operands, session)
            return self._make_related(session, operands, logic, *stated)
        except BaseException:
            if position is not None:  # else an interrupt came earlier
                environment.rollback(position)
            raise
        finally:
            log.end(depth)

    def _real_operands(self, operands: tuple[Tensor, ...], session: Session) -> tuple[Tensor, ...]:
        """Return the operands of code with fractional results, integers among them as floats: the
        format of the result decides about its last primitive alone.
        """
        formats = [each.dtype for each in operands]
        if not any(each.holds_integers for each in formats) or not self.forward.makes_floats:
            return operands
        promoted = promote(*formats)
        wanted = promoted if promoted.is_float else session.default_dtype
        return tuple(
            functions["cast"](each, wanted) if each.dtype.holds_integers else each
            for each in operands
        )

    def _make_related(
        self,
        session: Session,
        operands: tuple[Tensor, ...],
        logic: Logic,
        label: str | None,
        dtype: DType | str | None,
        requires_grad: bool | None,
        capture: Mapping[str, DimRef] | None,
        shape: Shape | None = None,
        origin: Origin | None = None,
    ) -> Tensor:
        recorder = session.recorder
        check_recorded_here(operands, None if recorder is None else recorder.recording)
        origin = origin or Origin(composite_name() or self.describe(logic), caller_location())
        if self.primitive in (BinaryOp.EQ, BinaryOp.NE):
            operands = tuple(offsets_of(operand, origin) for operand in operands)
        terms = session.environment.fresh_shape(name=self.name) if shape is None else shape
        with describe_operands(operands, is_pointwise=isinstance(logic, Pointwise)):
            session.environment.relate(
                logic, terms, [each.terms for each in operands], origin, capture
            )
        decided = self.precision(operands, session, origin, logic)
        if dtype is None:
            check_truths(self.primitive, operands, origin)
        precision = decided if dtype is None else Precision.stated(dtype)
        precision.check_computable(origin)
        can_flow = self.has_gradient and precision.dtype.is_float and session.recorder is None
        if requires_grad and not can_flow:
            raise UsageError(
                "A result has a gradient where the operation has one, in floats, outside of "
                "recorded code.",
                found=f"{self.name} with requires_grad=True"
                + (f", in {precision.dtype}" if not precision.dtype.is_float else ""),
                where=str(origin),
                fix="leave requires_grad out, or give it to a tensor that the loss depends on",
            )
        if requires_grad is None:
            requires_grad = can_flow and any(operand.requires_grad for operand in operands)
        result = Tensor(
            session,
            Applied(self, operands, logic, capture or {}),
            terms,
            precision,
            (label,) if label else (self.name,),
            origin,
            requires_grad=requires_grad,
        )
        note_accesses(logic, result, operands, origin, capture)
        if decided.rests_on_default:
            for operand in operands:
                operand.add_dependent(result)
        if session.recorder is not None:
            session.recorder.add_tensor(result, is_named=label is not None)
        return result

    def precision(
        self, operands: Sequence[Tensor], session: Session, origin: Origin, logic: Logic
    ) -> Precision:
        """Return the format that follows from the operands, and pass it on to those without one."""
        positions = operands[len(operands) - self.positions :]
        operands = operands[: len(operands) - self.positions]
        for operand in positions:
            operand.note_use(origin)
        beside = format_for_numbers(self.primitive, operands)
        if beside is not None and beside.holds_integers:
            for operand in operands:
                if operand.free_number is not None:
                    self._check_number(operand.free_number, beside, str(origin))
        found = result_precision(
            self.primitive,
            operand_precisions(self.primitive, operands, beside),
            session.default_dtype,
            is_reduction=is_reduction(self.combine, logic),
            moves_cells=self.moves_cells,
        )
        for position, operand in enumerate(operands):
            is_condition = self.primitive is TernaryOp.WHERE and position == 0
            follows = found.positions and not is_condition
            operand.note_use(origin, found.dtype if follows else None)
        return found

    def _check_number(self, number: float, beside: DType, where: str) -> None:
        """Refuse a whole number beyond the other operand's integers, except in comparisons."""
        dtype = number_format(self.primitive, number, beside)
        if dtype is not None and self.primitive not in LOGICAL:
            check_number(number, dtype, where)

    def describe(self, logic: Logic | IndexMaps) -> str:
        """Return the name of the operation in messages, with its specification."""
        if isinstance(logic, IndexMaps):
            return f'{self.name} "{logic.text}"'
        spec = getattr(logic, "spec", None)
        return f'{self.name} "{spec}"' if spec is not None else self.name

    def _stated_logic(
        self,
        text: str | None,
        padded: bool | None,
        values: Mapping[str, int] | None,
        capture: Capture,
    ) -> Logic:
        parts = None if self.logic is not None else self._logic_of_parts()
        if parts is not None:
            if text is not None or padded is not None or values or capture:
                raise UsageError.at_caller(
                    "The assignments of this operation state how axes line up, each for itself.",
                    found=f"{self.name} with logic=, padded=, values= or capture=",
                    fix="leave them out",
                )
            return parts
        text = self.logic or "." if text is None else text
        stated = stated_logic(self.name, text, self.operands, padded, values)
        if self.primitive in (BinaryOp.DIV, BinaryOp.POW) and isinstance(stated, Compose):
            raise UsageError.at_caller(
                "Composition is for products and sums: quotients and powers do not compose.",
                found=f'{self.name} with logic="@"',
                fix="multiply by oc.reciprocal(b), or write a specification",
            )
        return stated

    def _logic_of_parts(self) -> Several | None:
        """Return the logics of the assignments; None if none of them states its own."""
        if self.primitive is not None or self.combine is not None:
            return None
        if all(each.logic in (None, Pointwise()) for each in self.forward.assignments):
            return None
        if self.gradient is not None and SELECTION in self.gradient.slots:
            raise UsageError.at_caller(
                "The slot `selected` is for an operation with one logic, along which the maximum "
                "is taken.",
                found=f"assignments of {self.name} with a logic each",
                fix='state one: define_operation(..., logic="ij => i")',
            )
        return self.forward.parts

    def __copy__(self) -> Operation:
        return self

    def __deepcopy__(self, memo: object) -> Operation:
        return self

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        title = repr(self)
        found = None
        with suppress(AttributeError):
            found = value_of(title)
        if found is not self:
            raise UsageError.at_caller(
                "An operation is pickled by its name in `oc`; others have no place to be found.",
                found=f"pickle of {self!r}",
                fix="pickle the name of the operation, and look it up where it is defined",
            )
        return value_of, (title,)

    def __repr__(self) -> str:
        return public_title(f"oc.{self.name}")


class _Docstring(str):
    """The docstring of `Operation`; of an operation, a text about its operands and its result."""

    __slots__ = ()

    def __get__(self, operation: Operation | None, owner: type) -> str:
        return self if operation is None else "\n\n".join(_help(operation))


Operation.__doc__ = _Docstring(Operation.__doc__ or "")


def _help(operation: Operation) -> Iterator[str]:
    """Yield the paragraphs of the docstring of an operation."""
    row = None if operation.primitive is None else operation.primitive.value
    names = {"v1": "a", "v2": "b", "v3": "c"}

    def shown(code: Code) -> str:
        return re.sub(r"\bv[123]\b", lambda slot: names[slot[0]], str(code))

    forward = shown(operation.forward)
    if operation.logic == "@":
        yield "Return the sums of products over the input axes of `a` and the output axes of `b`."
        yield "Shapes: `b|i->o` and `b|i` to `b|o`; any number of axes may stand for each letter."
    elif operation.logic == "T":
        yield "Return `a` with input and output axes exchanged."
    elif row is not None:
        text, semicolon, rest = row.text.partition(";")
        yield f"Return {text}, cell by cell{semicolon}{rest}."
    elif "\n" in forward:
        yield "Return `v` of these assignments, cell by cell."
        yield indent(forward, "    ")
    else:
        yield f"Return `{forward.partition('= ')[2]}`, cell by cell."
    is_real = operation.forward.makes_floats if row is None else row.result is Result.REAL
    yield fill(
        "Operands are tensors and numbers, which broadcast row by row. The number format of the "
        "result is the promotion of theirs"
        + ("; of integers, the default float of the session." if is_real else ".")
        + (
            f" Backends may differ by {row.ulps} units in the last place."
            if row and row.ulps
            else ""
        ),
        88,
    )
    if operation.gradient is None:
        yield "No gradient flows."
    else:
        yield "The gradients of the operands, from the gradient `g` of the result `v`:"
        yield indent(shown(operation.gradient), "    ")
    yield inspect.cleandoc(Operation.__call__.__doc__ or "").partition("\n\n")[2]


def define_operation(
    name: str,
    *,
    forward: Callable[..., None],
    gradient: Callable[..., None] | None = None,
    logic: str | None = None,
    primitive: Op | None = None,
    combine: BinaryOp | None = None,
    operands: int | None = None,
) -> Operation:
    """Return a new operation on tensors, defined by two functions whose parameter names are slots.

    Inside these functions an operator is the bare primitive, and the operation's logic lines up the
    cells:

        def forward(v, v1):
            v[:] = oc.log(1 + oc.exp(v1))

        def gradient(g, g1, v1):
            g1 += g / (1 + oc.exp(-v1))

        softplus = oc.define_operation("softplus", forward=forward, gradient=gradient)

    The slots are `v` for the result and `v1`, `v2`, `v3` for the operands (or `vs` for a tuple of
    all), and `g`, `g1`, `g2`, `g3`, `gs` for their gradients. `selected` is 1 at the position from
    which a maximum or minimum takes its result, the first of equal cells, and 0 elsewhere. A name
    that begins or ends with a slot, like `rhs1_mask` or `ratio_lhs`, is an intermediate tensor with
    the axes of that slot.

    Args:
        name: The name in printed code, labels and messages.
        forward: A function that assigns the result slot `v` from the operand slots.
        gradient: A function that accumulates into the gradient slots, if a gradient flows.
        logic: The correspondence of axes: `"."` pointwise, `"@"` compose, `"T"` transpose, or an
            einsum specification. When not given, each assignment may state its own, `v.assign(v1,
            logic="i => 2*i")`, or `v[oc.neutral] += oc.multiply(v1, v2, logic="i; j => ij")`, and
            is pointwise otherwise.
        primitive: The primitive that `forward` applies once, or None: recorded assignments compute
            such an operation in place.
        combine: The accumulation with which `forward` writes, or None; beside `primitive` only.
        operands: The number of operands, where the slots `vs` and `gs` stand for all of them.

    Raises:
        UsageError: if a parameter of the functions is not the name of a slot.
        SpecError: if the logic is no specification.
    """
    if not (logic is None or isinstance(logic, str)):
        raise UsageError.at_caller(
            'The logic of an operation is ".", "@", "T", a specification, or None where it '
            "follows from the assignments.",
            found=f"logic={logic!r} for {name}",
            fix='logic="ij;j=>i"',
        )
    if not callable(forward) or not (gradient is None or callable(gradient)):
        raise UsageError.at_caller(
            "An operation is defined by a function that computes it, and one for its gradient.",
            found=f"forward={forward!r}, gradient={gradient!r} for {name}",
            fix="def forward(v, v1): v[:] = oc.exp(v1)",
        )
    stated = parameter_slots(forward)
    given = [name for name, each in stated.items() if each.role in ("gradient", "selection")]
    if given:
        raise UsageError.at_caller(
            "The forward function computes the result: gradients and the slot `selected` exist in "
            "the gradient function only.",
            found=f"{', '.join(given)} in {name}",
            fix="move the code that reads or writes them to gradient=",
        )
    slots = {**stated, **({} if gradient is None else parameter_slots(gradient))}
    if operands is None and primitive is not None:
        operands = arity(primitive)
    elif operands is None:
        operands = max((each.position for each in slots.values()), default=0)
    if operands < 1:
        raise UsageError(
            "An operation has operands.",
            found=f"{name} with the slots {', '.join(slots)}",
            fix="name the parameters v and v1, v2, v3; an operation on any number of tensors has "
            "the slot vs, and operands= is their number",
        )
    return Operation(
        name=name,
        operands=operands,
        logic=logic,
        forward=Code.of_function(forward, operands),
        gradient=None if gradient is None else Code.of_function(gradient, operands),
        primitive=primitive,
        combine=combine,
    )
