"""Operations on tensors: a name, a logic that lines up axes, and two functions that say what is
computed.

`define_operation` is how the operations of this package are defined, and how users define theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from ocannl_core.dtypes import DType, promote
from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.host_arrays import check_number, plain_number
from ocannl_core.ops import LOGICAL, BinaryOp, Op, TernaryOp, arity
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.capture import DimRef
from ocannl_core.shape.logic import Compose, Logic, Pointwise
from ocannl_core.shape.terms import Shape
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.capture import Capture, captured_names
from ocannl_core.tensor.definitions import Applied, Recording
from ocannl_core.tensor.expression import Expression
from ocannl_core.tensor.index_maps import IndexMaps, index_maps
from ocannl_core.tensor.labels import check_label
from ocannl_core.tensor.leaves import constant
from ocannl_core.tensor.margins import window_accesses
from ocannl_core.tensor.precision import Precision, among, format_beside, of_result
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.slots import (
    Slot,
    SlotApplication,
    logic_of_parts,
    slot_application,
    slot_names,
    slot_of,
)
from ocannl_core.tensor.specifications import composed_name, naming, stated_logic
from ocannl_core.tensor.tensor import MergeBuffer, Tensor

Code = Callable[..., None]
"""A function whose parameter names are slots."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """An operation on tensors; calling it applies it.

    Attributes:
        name: The name that printed code, labels and messages use.
        operands: How many tensors it takes.
        logic: How axes line up: `"."`, `"@"`, `"T"`, or an einsum specification; None where each
            assignment of the functions says that.
        forward: Assigns the result slot `v` from the operand slots `v1`, `v2`, `v3`.
        gradient: Accumulates into the gradient slots `g1`, `g2`, `g3`; None when no gradient flows.
        primitive: The scalar primitive it lifts, if it does; used bare inside the code of other
            operations.
        combine: The accumulation with which `forward` writes the result; None for plain assignment.
    """

    name: str
    operands: int
    logic: str | None
    forward: Code
    gradient: Code | None = None
    primitive: Op | None = None
    combine: BinaryOp | None = None

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
        """Returns the operation applied to expressions and numbers.

        Args:
            args: As many operands as the operation takes.
            logic: Replaces the operation's own logic.
            projections: In recorded code, for a primitive: the index maps and the domain of the
                assignment, `"2*o + k; k => o over o<3, k<2"`.
            padded: Whether windows of a specification that are marked neither `=` nor `<` may leave
                the axes that they slide over.
            values: Numbers for names in a specification: for coefficients, and sizes of axes.
            capture: Names in a specification whose sizes `oc.dim` is to stand for.
            label: A name for the result.
            dtype: The number format of the result; it follows from the operands when not given.
            requires_grad: False keeps gradients from flowing, True gives the result a gradient even
                if no operand has one; by default it has one where an operand has.
        """
        self._check_operands(args)
        if any(isinstance(arg, Slot | SlotApplication) for arg in args):
            self._refuse_format(dtype)
            self._refuse_beside_slots(
                projections=projections,
                capture=capture or None,
                label=label,
                requires_grad=requires_grad,
            )
            return self._apply_to_slots(args, logic, padded, values)
        session = self._session(args)
        if session.recorder is not None and (folded := self._fold(args)) is not None:
            return folded
        if projections is not None:
            self._refuse_format(dtype)
            return self._with_stated_maps(session, args, projections)
        stated = self._stated_logic(logic, padded, values, capture)
        if self.primitive in (BinaryOp.DIV, BinaryOp.POW) and isinstance(stated, Compose):
            raise UsageError(
                "Composition is for products and sums: quotients and powers do not compose.",
                found=f'{self.name} with logic="@"',
                where=str(caller_location() or ""),
                fix="multiply by oc.recip(b), or write a specification",
            )
        captured = captured_names(capture, session, self.describe(stated)) if capture else {}
        is_bare = self.primitive is not None and self.combine is None and not captured
        if session.recorder is not None and is_bare:
            if any(isinstance(arg, MergeBuffer) for arg in args):
                self._refuse_format(dtype)
                return session.recorder.unreduced(self, settled(args, session), stated)
            if logic is not None and stated != Pointwise():
                self._refuse_format(dtype)
                return session.recorder.unreduced(
                    self, as_tensors(args, session, self.primitive), stated
                )
        return self.tensor(
            as_tensors(args, session, self.primitive),
            stated,
            label=label,
            dtype=dtype,
            requires_grad=requires_grad,
            capture=captured,
        )

    def _refuse_format(self, dtype: DType | str | None) -> None:
        """Raises an error about a format for a primitive that makes no tensor.

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

    def _with_stated_maps(self, session: Session, args: tuple[Any, ...], text: str) -> Any:
        """Returns a primitive for an assignment whose index maps the user states."""
        where = str(Origin(self.name, caller_location()))
        if session.recorder is None or self.primitive is None or self.combine is not None:
            raise UsageError(
                "Projections are stated for a primitive that an assignment applies.",
                found=f"{self.name} with projections={text!r}",
                where=where,
                fix="inside a function decorated with @oc.cd, write c[oc.neutral] += "
                'oc.mul(a, b, projections="...")',
            )
        operands = settled(args, session)
        count = sum(not isinstance(each, float) for each in operands)
        return session.recorder.unreduced(self, operands, index_maps(text, count, where))

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
        """Returns a new tensor that holds the result, with its constraints added to the session's
        environment.

        Raises:
            ShapeError: if the operands' shapes do not fit the logic; nothing changes then.
        """
        check_label(label)
        session = operands[0].session
        recorder = session.recorder
        check_recorded_here(operands, None if recorder is None else recorder.recording)
        origin = origin or Origin(composed_name() or self.describe(logic), caller_location())
        terms = session.environment.fresh_shape(name=self.name) if shape is None else shape
        with naming(operands):
            session.environment.relate(
                logic, terms, [each.terms for each in operands], origin, capture
            )
        decided = self.precision(operands, session, origin)
        precision = decided if dtype is None else Precision.stated(dtype)
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
            session.recorder.made(result, is_named=label is not None)
        return result

    def _fold(self, args: tuple[Any, ...]) -> Any:
        """Returns what an operator with a Python 0 is, or None.

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

    def precision(
        self,
        operands: Sequence[Tensor],
        session: Session,
        origin: Origin,
    ) -> Precision:
        """Returns the number format that the operands decide, and gives it to those that follow."""
        beside = format_beside(self.primitive, operands)
        for operand in operands:
            if beside is not None and operand.free_number is not None:
                self._check_number(operand.free_number, beside, str(origin))
        given = among(self.primitive, operands)
        found = of_result(self.primitive, given, session.default_dtype)
        for position, operand in enumerate(operands):
            is_condition = self.primitive is TernaryOp.WHERE and position == 0
            follows = found.positions and not is_condition
            operand.note_use(origin, found.dtype if follows else None)
        return found

    def _check_number(self, number: float, beside: DType, where: str) -> None:
        """Raise TransferError for a whole number beyond the integers that it stands beside, but in
        comparisons.
        """
        if beside.is_integer and number % 1 == 0 and self.primitive not in LOGICAL:
            check_number(number, beside, where)

    def describe(self, logic: Logic | IndexMaps) -> str:
        """Returns the operation as messages name it."""
        if isinstance(logic, IndexMaps):
            return f'{self.name} "{logic.text}"'
        spec = getattr(logic, "spec", None)
        return f'{self.name} "{spec}"' if spec is not None else self.name

    def _check_operands(self, args: tuple[Any, ...]) -> None:
        if len(args) != self.operands:
            raise UsageError(
                f"The operation {self.name} takes {self.operands} "
                f"operand{'s' if self.operands != 1 else ''}.",
                found=str(len(args)),
                where=str(caller_location() or ""),
            )
        for arg in args:
            if not isinstance(arg, Expression | Real):
                raise UsageError(
                    "Operands are tensors and numbers.",
                    found=f"{type(arg).__name__} as an operand of {composed_name() or self.name}",
                    where=str(caller_location() or ""),
                    fix=_instead_of(arg),
                )

    def _stated_logic(
        self,
        text: str | None,
        padded: bool | None,
        values: Mapping[str, int] | None,
        capture: Capture,
    ) -> Logic:
        """Returns the logic of an application."""
        if self.logic is not None:
            text = self.logic if text is None else text
            return stated_logic(self.name, text, self.operands, padded, values)
        if text is not None or padded is not None or values or capture:
            raise UsageError(
                "The assignments of this operation state how axes line up, each for itself.",
                found=f"{self.name} with logic=, padded=, values= or capture=",
                where=str(caller_location() or ""),
                fix="leave them out",
            )
        return logic_of_parts(self.forward, self.operands)

    def _refuse_beside_slots(self, **stated: object) -> None:
        """Raises an error about arguments that are for tensors.

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

    def _apply_to_slots(
        self,
        args: tuple[Any, ...],
        text: str | None,
        padded: bool | None,
        values: Mapping[str, int] | None,
    ) -> SlotApplication:
        if self.primitive is None or self.combine is not None:
            raise UsageError(
                "Inside the code of an operation, operators are bare primitives.",
                found=self.name,
                where=str(caller_location() or ""),
                fix="accumulate a primitive: v[oc.neutral] += v1 * v2",
            )
        if text is None:
            self._refuse_beside_slots(padded=padded, values=values or None)
            return slot_application(self.primitive, args)
        logic = stated_logic(self.name, text, self.operands, padded, values)
        return slot_application(self.primitive, args, logic)

    def _session(self, args: tuple[Any, ...]) -> Session:
        found: Session | None = None
        for arg in args:
            tensor = arg.tensor if isinstance(arg, MergeBuffer) else arg
            if isinstance(tensor, Tensor):
                if found is not None and tensor.session is not found:
                    raise UsageError(
                        "Tensors of different sessions do not mix.",
                        found=f"{tensor!r} as an operand of {self.name}",
                        where=str(caller_location() or ""),
                        fix="build both inside one `with oc.Session():`, or without any",
                    )
                found = tensor.session
        return found or sessions.current()

    def __repr__(self) -> str:
        return f"oc.{self.name}"


def _instead_of(operand: object) -> str:
    """Returns what to write in place of something that is no operand."""
    if operand is None:
        return "a tensor that needs no gradient has None as its .grad"
    if isinstance(operand, str) and "=>" in operand:
        return 'a specification comes first, as in oc.einsum("ij => i", x)'
    if isinstance(operand, list | tuple) and any(isinstance(e, Expression) for e in operand):
        return "give tensors one by one: oc.stack(a, b), or oc.stack(*tensors)"
    return "wrap arrays and lists with oc.tensor(...)"


def check_recorded_here(tensors: Sequence[Tensor], recording: Recording | None) -> None:
    """Raises UsageError if a tensor is a part of other recorded code than the one given."""
    for tensor in tensors:
        if tensor.recording is not None and tensor.recording is not recording:
            raise UsageError(
                "A tensor made in recorded code has its value there: it is no part of other code.",
                found=f"{tensor!r}, recorded in {tensor.recording}",
                where=str(caller_location() or ""),
                fix='assign it to a tensor declared outside of that function, c = oc.declare("c"), '
                "or make the tensor outside",
            )


def settled(args: Sequence[Any], session: Session) -> tuple[Tensor | MergeBuffer | float, ...]:
    """Returns the operands of a primitive that an assignment applies: numbers stay numbers."""
    return tuple(
        float(arg)
        if isinstance(arg, Real)
        else arg
        if isinstance(arg, MergeBuffer)
        else as_tensor(arg, session)
        for arg in args
    )


def result_dtype(op: Op | None, dtypes: Sequence[DType], default: DType) -> DType:
    """Returns the format of a primitive's result: the promotion of what it computes with, a float
    where it must be.
    """
    if op is TernaryOp.WHERE:
        dtypes = dtypes[1:]
    promoted = promote(*dtypes)
    if op is not None and op.value.is_real and not promoted.is_float:
        return default
    return promoted


def note_accesses(
    logic: Logic,
    result: Tensor,
    operands: Sequence[Tensor],
    origin: Origin,
    capture: Mapping[str, DimRef] | None = None,
) -> None:
    """Tells tensors of an operation that accesses them through padded windows."""
    shapes = [operand.terms for operand in operands]
    for access in window_accesses(logic, result.terms, shapes, origin, capture or {}):
        tensor = result if access.position is None else operands[access.position]
        tensor.add_access(access)


def as_tensor(value: Any, session: Session, dtype: DType | Precision | None = None) -> Tensor:
    """Returns a tensor for an operand; a number becomes a constant of the given format."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Real):
        number = plain_number(value, str(caller_location() or ""))
        return constant(number, session, dtype=dtype)
    raise UsageError(
        "A merge buffer, or an operation whose reduction an assignment states, is assigned as it "
        "is.",
        found=repr(value),
        where=str(caller_location() or ""),
        fix="inside a function decorated with @oc.cd, write p.grad += p.grad.merge or "
        "c[oc.neutral] += oc.mul(a, b, logic=...)",
    )


def as_tensors(values: Sequence[Any], session: Session, op: Op | None = None) -> tuple[Tensor, ...]:
    """Returns tensors for operands.

    A number takes the format of the tensors beside it, unless it has a fraction and they are
    integers.

    Raises:
        TransferError: for an integer that does not fit the format, but in comparisons.
    """
    tensors = [value if isinstance(value, Tensor) else None for value in values]
    beside = format_beside(op, tensors) or session.default_dtype

    def precision(value: Real) -> Precision:
        where = str(caller_location() or "")
        number = plain_number(value, where)
        fits = beside.is_float or (beside.is_integer and number % 1 == 0)
        if fits and op not in LOGICAL:
            check_number(number, beside, where)
        return Precision.by_default(beside if fits else session.default_dtype)

    return tuple(
        as_tensor(value, session, precision(value) if isinstance(value, Real) else None)
        for value in values
    )


def define_operation(
    name: str,
    *,
    forward: Code,
    gradient: Code | None = None,
    logic: str | None = ".",
    primitive: Op | None = None,
    combine: BinaryOp | None = None,
    operands: int | None = None,
) -> Operation:
    """Returns a new operation on tensors, defined by two functions whose parameter names are slots.

    Inside these functions an operator is the bare primitive, and the operation's logic says which
    cells meet:

        def forward(v, v1):
            v[:] = oc.log(1 + oc.exp(v1))

        def gradient(g, g1, v1):
            g1 += g / (1 + oc.exp(-v1))

        softplus = oc.define_operation("softplus", forward=forward, gradient=gradient)

    The slots are `v` for the result and `v1`, `v2`, `v3` for the operands (or `vs` for a tuple of
    all), and `g`, `g1`, `g2`, `g3`, `gs` for their gradients. `selected` is 1 at the position that
    a maximum or minimum takes its result from, the first one of equal cells, and 0 at the others. A
    name that says a slot at its beginning or end, like `rhs1_mask` or `ratio_lhs`, is an
    intermediate tensor with the axes of that slot.

    Args:
        name: The name that printed code, labels and messages use.
        forward: Assigns the result slot `v` from the operand slots.
        gradient: Accumulates into the gradient slots; leave out when no gradient flows.
        logic: How axes line up: `"."` pointwise, `"@"` compose, `"T"` transpose, or an einsum
            specification. With None each assignment says it, `v.assign(v1, logic="i => 2*i")`, or
            `v[oc.neutral] += oc.mul(v1, v2, logic="i; j => ij")`; without, it is pointwise.
        primitive: The primitive that `forward` applies once, if it does: recorded assignments then
            absorb the operation.
        combine: The accumulation with which `forward` writes the result, if it does; only beside
            `primitive`.
        operands: How many tensors it takes, where the slots `vs` and `gs` stand for all of them.

    Raises:
        UsageError: if a parameter of the functions is not the name of a slot.
        SpecError: if the logic is no specification.
    """
    if not (logic is None or isinstance(logic, str)):
        raise UsageError(
            'The logic of an operation is ".", "@", "T", a specification, or None where each '
            "assignment states its own.",
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
            "The forward function computes the result: gradients, and what a maximum selects, are "
            "there in the gradient function only.",
            found=f"{', '.join(given)} in {name}",
            where=str(caller_location() or ""),
            fix="move what reads or writes them to gradient=",
        )
    names = [*slot_names(forward), *(slot_names(gradient) if gradient is not None else ())]
    if operands is None:
        operands = (
            arity(primitive)
            if primitive is not None
            else max((slot_of(each).position for each in names), default=0)
        )
    if logic is None:
        _check_parts(name, names, is_lifted=primitive is not None or combine is not None)
    if operands < 1:
        raise UsageError(
            "An operation has operands.",
            found=f"{name} with the slots {', '.join(names)}",
            fix="name the parameters v and v1, v2, v3; an operation on any number of tensors has "
            "the slot vs, and operands= says how many",
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


def _check_parts(name: str, slots: Sequence[str], *, is_lifted: bool) -> None:
    """Raises UsageError for what an operation without one logic cannot have."""
    if is_lifted:
        raise UsageError(
            "An operation that lifts a primitive has one logic.",
            found=f"logic=None beside primitive= or combine= for {name}",
            where=str(caller_location() or ""),
            fix="leave out primitive= and combine=",
        )
    if any(slot_of(each).role == "selection" for each in slots):
        raise UsageError(
            "The slot `selected` is for an operation with one logic, along which the maximum is "
            "taken.",
            found=f"logic=None for {name}",
            where=str(caller_location() or ""),
            fix='state it: define_operation(..., logic="ij => i")',
        )
