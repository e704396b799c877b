"""Operations on tensors, and the three roads of a call.

An operation has a name, a logic that lines up axes, and two functions of slots: the forward and the
gradient code. `Operation.__call__` chooses the road by the operands and by the session:

    operands          session    method                 result
    ----------------  ---------  ---------------------  --------------------------------------------
    slots, numbers    any        _apply_to_slots        SlotApplication, emitted when it is assigned
                                                        to a slot
    tensors, numbers  recording  _apply_in_recording    RecordedPrimitive, reduced by the assignment
                                                        of recorded code, or a Tensor made there
    tensors, numbers  else       _apply_to_tensors      Tensor

`define_operation` defines the operations, of this package and of users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NoReturn

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.host_arrays import check_number
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import LOGICAL, BinaryOp, Op, TernaryOp, arity
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.translation.logic import Compose, Logic, Pointwise, Several
from ocannl_core.tensor.graph.definitions import Applied, check_label
from ocannl_core.tensor.graph.index_maps import IndexMaps, index_maps
from ocannl_core.tensor.graph.precision import (
    Precision,
    check_truths,
    format_for_numbers,
    is_reduction,
    operand_precisions,
    result_precision,
    whole_number_format,
)
from ocannl_core.tensor.graph.session import Recorder, Session
from ocannl_core.tensor.graph.slots import (
    Slot,
    SlotApplication,
    logic_of_parts,
    slot_application,
    slot_names,
    slot_of,
)
from ocannl_core.tensor.graph.tensor import MergeBuffer, Tensor
from ocannl_core.tensor.primitives.dimension import Capture, captured_names
from ocannl_core.tensor.primitives.operands import (
    as_tensors,
    assignment_operands,
    check_operands,
    check_recorded_here,
    note_accesses,
    session_of,
    with_computed_offsets,
)
from ocannl_core.tensor.primitives.specifications import (
    composite_name,
    describe_operands,
    stated_logic,
)

Code = Callable[..., None]
"""A function whose parameter names are slots."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The keyword arguments of a call; see `Operation.__call__`."""

    logic: str | None
    padded: bool | None
    values: Mapping[str, int] | None
    projections: str | None
    capture: Capture
    label: str | None
    dtype: DType | str | None
    requires_grad: bool | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """An operation on tensors. A call applies it.

    Attributes:
        name: The name in printed code, labels and messages.
        operands: The number of tensors it takes.
        logic: The correspondence of axes: `"."`, `"@"`, `"T"`, or an einsum specification; None
            where it follows from the assignments of `forward`.
        forward: A function that assigns the result slot `v` from the operand slots `v1`, `v2`,
            `v3`.
        gradient: A function that accumulates into the gradient slots `g1`, `g2`, `g3`; None when no
            gradient flows.
        primitive: The scalar primitive it lifts, or None; used bare inside the code of other
            operations.
        combine: The accumulation with which `forward` writes the result; None for plain assignment.
        positions: The number of operands, the last ones, whose cells are positions and not values;
            their formats do not influence the result's format.
        moves_cells: True if the result consists of cells of operands, though no primitive states
            it.
        gradient_expression: Returns the terms of the operands' gradients for the operands and the
            gradient of the result, as expressions, where the assignments of `gradient` have no
            derivative; else None.
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
            args: The operands.
            logic: A logic in place of the operation's own one.
            projections: In recorded code, for a primitive: the index maps and the domain of the
                assignment, `"2*o + k; k => o over o<3, k<2"`.
            padded: True to pad the windows of a specification that are marked neither `=` nor `<`.
            values: Numbers for names in a specification: for coefficients, and sizes of axes.
            capture: Dimensions made by `oc.dim`, to stand for the sizes of names in a
                specification.
            label: A name for the result.
            dtype: The number format of the result; it follows from the operands when not given.
            requires_grad: False to stop gradients, True for a gradient even if no operand has one;
                by default the result has one where an operand has.
        """
        options = CallOptions(
            logic, padded, values, projections, capture, label, dtype, requires_grad
        )
        return self.apply(args, options)

    def apply(self, args: tuple[Any, ...], options: CallOptions) -> Any:
        """Return the operation applied to expressions and numbers, as a call does."""
        check_operands(args, self.operands, self.name)
        if any(isinstance(arg, Slot | SlotApplication) for arg in args):
            return self._apply_to_slots(args, options)
        session = session_of(args, self.name)
        if session.recorder is not None:
            return self._apply_in_recording(session, session.recorder, args, options)
        return self._apply_to_tensors(session, args, options)

    def _apply_to_slots(self, args: tuple[Any, ...], options: CallOptions) -> SlotApplication:
        """Return the bare primitive applied to slots, for an assignment to a slot."""
        self._refuse_format(options.dtype)
        self._refuse_beside_slots(
            projections=options.projections,
            capture=options.capture or None,
            label=options.label,
            requires_grad=options.requires_grad,
        )
        if self.primitive is None or self.combine is not None:
            raise UsageError(
                "Inside the code of an operation, operators are bare primitives.",
                found=self.name,
                where=str(caller_location() or ""),
                fix="accumulate a primitive: v[oc.neutral] += v1 * v2",
            )
        if options.logic is None:
            self._refuse_beside_slots(padded=options.padded, values=options.values or None)
            return slot_application(self.primitive, args)
        logic = stated_logic(
            self.name, options.logic, self.operands, options.padded, options.values
        )
        return slot_application(self.primitive, args, logic)

    def _refuse_beside_slots(self, **stated: object) -> None:
        """Raise an error about arguments that are for tensors.

        Raises:
            UsageError: if one is given.
        """
        given = [name for name, value in stated.items() if value is not None]
        if given:
            raise UsageError(
                "Inside the code of an operation, operators are primitives of slots.",
                found=f"{self.name} with {', '.join(f'{name}=' for name in given)}",
                where=str(caller_location() or ""),
                fix="leave that out; to state how axes line up in one assignment, "
                'write oc.mul(v1, v2, logic="...")',
            )

    def _apply_in_recording(
        self, session: Session, recorder: Recorder, args: tuple[Any, ...], options: CallOptions
    ) -> Any:
        """Return a primitive for an assignment to reduce, or a tensor computed at this place of the
        recorded code.
        """
        if (folded := self._fold(args)) is not None:
            return folded
        if options.projections is not None:
            self._refuse_format(options.dtype)
            return self._apply_with_maps(session, recorder, args, options.projections)
        logic = self._stated_logic(options)
        captured = self._captured(session, logic, options)
        if self._is_bare and not captured:
            if any(isinstance(arg, MergeBuffer) for arg in args):
                self._refuse_format(options.dtype)
                return recorder.record_primitive(self, assignment_operands(args, session), logic)
            if options.logic is not None and logic != Pointwise():
                self._refuse_format(options.dtype)
                return recorder.record_primitive(
                    self, as_tensors(args, session, self.primitive), logic
                )
        return self._new_tensor(session, args, logic, captured, options)

    def _fold(self, args: tuple[Any, ...]) -> Any:
        """Fold an operator with a Python 0; return None where nothing folds.

        0 * x  -->  0        x + 0  -->  x        x - 0  -->  x
        """
        if len(args) != 2 or self.combine is not None:
            return None
        left, right = (isinstance(arg, Real) and float(arg) == 0.0 for arg in args)
        match self.primitive:
            case BinaryOp.MUL if left or right:
                return 0.0
            case BinaryOp.ADD if left:
                return args[1]
            case BinaryOp.ADD | BinaryOp.SUB if right:
                return args[0]
            case _:
                return None

    def _apply_with_maps(
        self, session: Session, recorder: Recorder, args: tuple[Any, ...], text: str
    ) -> Any:
        """Return a primitive for an assignment with index maps stated by the user."""
        if not self._is_bare:
            self._refuse_maps(text)
        operands = assignment_operands(args, session)
        count = sum(not isinstance(each, float) for each in operands)
        where = str(Origin(self.name, caller_location()))
        return recorder.record_primitive(self, operands, index_maps(text, count, where))

    def _refuse_maps(self, text: str) -> NoReturn:
        raise UsageError(
            "Projections are stated for a primitive that an assignment applies.",
            found=f"{self.name} with projections={text!r}",
            where=str(Origin(self.name, caller_location())),
            fix="inside a function decorated with @oc.cd, write c[oc.neutral] += "
            'oc.mul(a, b, projections="...")',
        )

    def _refuse_format(self, dtype: DType | str | None) -> None:
        """Raise an error about a format for a primitive that creates no tensor.

        Raises:
            UsageError: if a format is given.
        """
        if dtype is not None:
            raise UsageError(
                "A primitive that an assignment applies makes no tensor that could have a format.",
                found=f"{self.name} with dtype={str(dtype)!r}",
                where=str(Origin(self.name, caller_location())),
                fix="convert an operand with oc.cast, or state the format of the assigned tensor",
            )

    def _apply_to_tensors(
        self, session: Session, args: tuple[Any, ...], options: CallOptions
    ) -> Tensor:
        """Return a new tensor that holds the result."""
        if options.projections is not None:
            self._refuse_format(options.dtype)
            self._refuse_maps(options.projections)
        logic = self._stated_logic(options)
        captured = self._captured(session, logic, options)
        return self._new_tensor(session, args, logic, captured, options)

    def _new_tensor(
        self,
        session: Session,
        args: tuple[Any, ...],
        logic: Logic,
        captured: Mapping[str, DimRef],
        options: CallOptions,
    ) -> Tensor:
        return self.tensor(
            as_tensors(args, session, self.primitive),
            logic,
            label=options.label,
            dtype=options.dtype,
            requires_grad=options.requires_grad,
            capture=captured,
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
        """Return a new tensor that holds the result, with its constraints added to the session's
        environment.

        Raises:
            ShapeError: if the operands' shapes do not fit the logic; nothing changes then.
        """
        check_label(label)
        session = operands[0].session
        recorder = session.recorder
        check_recorded_here(operands, None if recorder is None else recorder.recording)
        origin = origin or Origin(composite_name() or self.describe(logic), caller_location())
        if self.primitive in (BinaryOp.EQ, BinaryOp.NE):
            operands = with_computed_offsets(operands, origin)
        terms = session.environment.fresh_shape(name=self.name) if shape is None else shape
        with describe_operands(operands):
            session.environment.relate(
                logic, terms, [each.terms for each in operands], origin, capture
            )
        decided = self.precision(operands, session, origin, logic)
        if dtype is None:
            check_truths(self.primitive, operands, origin)
        precision = decided if dtype is None else Precision.stated(dtype)
        precision.check_computable(origin)
        can_flow = (
            self.gradient is not None and precision.dtype.is_float and session.recorder is None
        )
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
        self,
        operands: Sequence[Tensor],
        session: Session,
        origin: Origin,
        logic: Logic,
    ) -> Precision:
        """Return the format that follows from the operands' formats, and pass it on to the operands
        without a stated format.
        """
        positions = operands[len(operands) - self.positions :]
        operands = operands[: len(operands) - self.positions]
        for operand in positions:
            operand.note_use(origin)
        beside = format_for_numbers(self.primitive, operands)
        for operand in operands:
            if beside is not None and operand.free_number is not None:
                self._check_number(operand.free_number, beside, str(origin))
        given = operand_precisions(self.primitive, operands)
        found = result_precision(
            self.primitive,
            given,
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
        """Raise TransferError for a whole number beyond the range of the other operand's integers,
        except in comparisons.
        """
        if beside.holds_integers and number % 1 == 0 and self.primitive not in LOGICAL:
            check_number(number, whole_number_format(number, beside), where)

    def describe(self, logic: Logic | IndexMaps) -> str:
        """Return the name of the operation in messages, with its specification."""
        if isinstance(logic, IndexMaps):
            return f'{self.name} "{logic.text}"'
        spec = getattr(logic, "spec", None)
        return f'{self.name} "{spec}"' if spec is not None else self.name

    @property
    def _is_bare(self) -> bool:
        """Return True if the operation is one primitive without an accumulation."""
        return self.primitive is not None and self.combine is None

    def _stated_logic(self, options: CallOptions) -> Logic:
        """Return the logic of a call.

        Raises:
            UsageError: for a logic of an operation that has several, or for a quotient or a power
                that would compose.
        """
        stated = self._own_logic(options)
        if self.primitive in (BinaryOp.DIV, BinaryOp.POW) and isinstance(stated, Compose):
            raise UsageError(
                "Composition is for products and sums: quotients and powers do not compose.",
                found=f'{self.name} with logic="@"',
                where=str(caller_location() or ""),
                fix="multiply by oc.recip(b), or write a specification",
            )
        return stated

    def _own_logic(self, options: CallOptions) -> Logic:
        text, padded, values = options.logic, options.padded, options.values
        parts = None if self.logic is not None else self._logic_of_parts()
        if parts is None:
            text = self.logic or "." if text is None else text
            return stated_logic(self.name, text, self.operands, padded, values)
        if text is not None or padded is not None or values or options.capture:
            raise UsageError(
                "The assignments of this operation state how axes line up, each for itself.",
                found=f"{self.name} with logic=, padded=, values= or capture=",
                where=str(caller_location() or ""),
                fix="leave them out",
            )
        return parts

    def _logic_of_parts(self) -> Several | None:
        """Return the logics of the assignments; None if none of them states its own."""
        if self.primitive is not None or self.combine is not None:
            return None
        parts = logic_of_parts(self.forward, self.operands)
        if all(part.logic == Pointwise() for part in parts.parts):
            return None
        names = () if self.gradient is None else slot_names(self.gradient)
        if any(slot_of(each).role == "selection" for each in names):
            raise UsageError(
                "The slot `selected` is for an operation with one logic, along which the maximum "
                "is taken.",
                found=f"assignments of {self.name} with a logic each",
                where=str(caller_location() or ""),
                fix='state one: define_operation(..., logic="ij => i")',
            )
        return parts

    def _captured(
        self, session: Session, logic: Logic, options: CallOptions
    ) -> Mapping[str, DimRef]:
        """Return the references to the captured sizes, by names of the specification."""
        if not options.capture:
            return {}
        return captured_names(options.capture, session, self.describe(logic))

    def __repr__(self) -> str:
        return f"oc.{self.name}"


def define_operation(
    name: str,
    *,
    forward: Code,
    gradient: Code | None = None,
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
        gradient: A function that accumulates into the gradient slots; left out when no gradient
            flows.
        logic: The correspondence of axes: `"."` pointwise, `"@"` compose, `"T"` transpose, or an
            einsum specification. When not given, each assignment may state its own, `v.assign(v1,
            logic="i => 2*i")`, or `v[oc.neutral] += oc.mul(v1, v2, logic="i; j => ij")`, and is
            pointwise otherwise.
        primitive: The primitive that `forward` applies once, or None: recorded assignments compute
            such an operation in place.
        combine: The accumulation with which `forward` writes the result, or None; only beside
            `primitive`.
        operands: The number of operands, where the slots `vs` and `gs` stand for all of them.

    Raises:
        UsageError: if a parameter of the functions is not the name of a slot.
        SpecError: if the logic is no specification.
    """
    if not (logic is None or isinstance(logic, str)):
        raise UsageError(
            'The logic of an operation is ".", "@", "T", a specification, or None where it '
            "follows from the assignments.",
            found=f"logic={logic!r} for {name}",
            where=str(caller_location() or ""),
            fix='logic="ij;j=>i"',
        )
    if not callable(forward) or not (gradient is None or callable(gradient)):
        raise UsageError(
            "An operation is defined by a function that computes it, and one for its gradient.",
            found=f"forward={forward!r}, gradient={gradient!r} for {name}",
            where=str(caller_location() or ""),
            fix="def forward(v, v1): v[:] = oc.exp(v1)",
        )
    given = [n for n in slot_names(forward) if slot_of(n).role in ("gradient", "selection")]
    if given:
        raise UsageError(
            "The forward function computes the result: gradients and the slot `selected` exist in "
            "the gradient function only.",
            found=f"{', '.join(given)} in {name}",
            where=str(caller_location() or ""),
            fix="move the code that reads or writes them to gradient=",
        )
    names = [*slot_names(forward), *(slot_names(gradient) if gradient is not None else ())]
    if operands is None:
        operands = (
            arity(primitive)
            if primitive is not None
            else max((slot_of(each).position for each in names), default=0)
        )
    if operands < 1:
        raise UsageError(
            "An operation has operands.",
            found=f"{name} with the slots {', '.join(names)}",
            fix="name the parameters v and v1, v2, v3; an operation on any number of tensors has "
            "the slot vs, and operands= is their number",
        )
    return Operation(
        name=name,
        operands=operands,
        logic=logic,
        forward=forward,
        gradient=gradient,
        primitive=primitive,
        combine=combine,
    )
