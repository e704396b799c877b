"""Operations on tensors: a name, a logic that lines up axes, and two functions that say what is
computed.

`define_operation` is how the operations of this package are defined, and how users define theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from ocannl_core.dtypes import DType, promote
from ocannl_core.errors import UsageError
from ocannl_core.ops import BinaryOp, Op, TernaryOp, arity
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.capture import DimRef
from ocannl_core.shape.logic import Logic, Pointwise
from ocannl_core.shape.terms import Shape
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.capture import Capture, captured_names
from ocannl_core.tensor.expression import Expression
from ocannl_core.tensor.leaves import constant
from ocannl_core.tensor.margins import window_accesses
from ocannl_core.tensor.registry import operations
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.slots import Slot, SlotApplication, slot_application, slot_names
from ocannl_core.tensor.specifications import naming, stated_logic
from ocannl_core.tensor.tensor import Applied, MergeBuffer, Tensor

Code = Callable[..., None]
"""A function whose parameter names are slots."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Operation:
    """An operation on tensors; calling it applies it.

    Attributes:
        name: The name that printed code, labels and messages use.
        operands: How many tensors it takes.
        logic: How axes line up: `"."`, `"@"`, `"T"`, or an einsum specification.
        forward: Assigns the result slot `v` from the operand slots `v1`, `v2`, `v3`.
        gradient: Accumulates into the gradient slots `g1`, `g2`, `g3`; None when no gradient flows.
        primitive: The scalar primitive it lifts, if it does; used bare inside the code of other
            operations.
        combine: The accumulation with which `forward` writes the result; None for plain assignment.
    """

    name: str
    operands: int
    logic: str
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
        capture: Capture = (),
        label: str | None = None,
        requires_grad: bool | None = None,
    ) -> Any:
        """Returns the operation applied to expressions and numbers.

        Args:
            args: As many operands as the operation takes.
            logic: Replaces the operation's own logic.
            padded: Whether windows of a specification that are marked neither `=` nor `<` may leave
                the axes that they slide over.
            values: Numbers for names in a specification: for coefficients, and sizes of axes.
            capture: Names in a specification whose sizes `oc.dim` is to stand for.
            label: A name for the result.
            requires_grad: False keeps gradients from flowing; by default they flow where an operand
                has one.
        """
        self._check_operands(args)
        if any(isinstance(arg, Slot | SlotApplication) for arg in args):
            return self._apply_to_slots(args, logic)
        session = self._session(args)
        if session.recorder is not None and (folded := self._fold(args)) is not None:
            return folded
        operands = as_tensors(args, session)
        text = self.logic if logic is None else logic
        stated = stated_logic(self.name, text, self.operands, padded, values)
        reduces_elsewhere = (
            logic is not None
            and self.primitive is not None
            and self.combine is None
            and stated != Pointwise()
        )
        captured = captured_names(capture, session, self.describe(stated)) if capture else {}
        if session.recorder is not None and reduces_elsewhere and not captured:
            return session.recorder.unreduced(self, operands, stated)
        return self.tensor(
            operands, stated, label=label, requires_grad=requires_grad, capture=captured
        )

    def tensor(
        self,
        operands: tuple[Tensor, ...],
        logic: Logic,
        *,
        label: str | None = None,
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
        session = operands[0].session
        origin = origin or Origin(self.describe(logic), caller_location())
        terms = session.environment.fresh_shape(name=self.name) if shape is None else shape
        with naming(operands):
            session.environment.relate(
                logic, terms, [each.terms for each in operands], origin, capture
            )
        flows = self.gradient is not None and any(operand.requires_grad for operand in operands)
        if session.recorder is not None and requires_grad is None:
            requires_grad = False
        if requires_grad and not flows:
            raise UsageError(
                "A result has a gradient only where the operation and an operand have one.",
                found=f"{self.name} with requires_grad=True",
                where=str(origin),
            )
        result = Tensor(
            session,
            Applied(self, operands, logic, capture or {}),
            terms,
            self.result_dtype([operand.dtype for operand in operands], session),
            (label,) if label else (self.name,),
            origin,
            requires_grad=flows if requires_grad is None else requires_grad,
        )
        note_accesses(logic, result, operands, origin, capture)
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

    def result_dtype(self, dtypes: Sequence[DType], session: Session) -> DType:
        """Returns the number format of the result for operands of these formats."""
        return result_dtype(self.primitive, dtypes, session.default_dtype)

    def describe(self, logic: Logic) -> str:
        """Returns the operation as messages name it."""
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
                    found=f"{type(arg).__name__} as an operand of {self.name}",
                    where=str(caller_location() or ""),
                    fix="wrap arrays and lists with oc.tensor(...)",
                )

    def _apply_to_slots(self, args: tuple[Any, ...], logic: str | None) -> SlotApplication:
        if self.primitive is None or self.combine is not None or logic is not None:
            raise UsageError(
                "Inside the code of an operation, operators are bare primitives; the operation's "
                "logic rules.",
                found=self.name,
                fix="state the logic in define_operation(..., logic=...)",
            )
        return slot_application(self.primitive, args)

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


def as_tensor(value: Any, session: Session, dtype: DType | None = None) -> Tensor:
    """Returns a tensor for an operand; a number becomes a constant of the given format."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Real):
        return constant(value if isinstance(value, int) else float(value), session, dtype=dtype)
    raise UsageError(
        "A merge buffer, or an operation whose reduction an assignment states, is assigned as it "
        "is.",
        found=repr(value),
        where=str(caller_location() or ""),
        fix="inside a function decorated with @oc.cd, write p.grad += p.grad.merge or "
        "c[oc.neutral] += oc.mul(a, b, logic=...)",
    )


def as_tensors(values: Sequence[Any], session: Session) -> tuple[Tensor, ...]:
    """Returns tensors for operands.

    A number takes the format of the tensors beside it, unless it has a fraction and they are
    integers.
    """
    formats = [value.dtype for value in values if isinstance(value, Tensor)]
    beside = promote(*formats) if formats else session.default_dtype

    def fits(value: Any) -> bool:
        return beside.is_float or (beside.is_integer and float(value).is_integer())

    return tuple(
        as_tensor(
            value,
            session,
            beside if isinstance(value, Real) and fits(value) else session.default_dtype,
        )
        for value in values
    )


def define_operation(
    name: str,
    *,
    forward: Code,
    gradient: Code | None = None,
    logic: str = ".",
    primitive: Op | None = None,
    combine: BinaryOp | None = None,
    register: bool = True,
    operands: int | None = None,
) -> Operation:
    """Returns a new operation on tensors, defined by two functions whose parameter names are slots.

    Inside these functions an operator is the bare primitive, and the operation's logic says which
    cells meet:

        softplus = define_operation(
            "softplus", forward=softplus_forward,     # def softplus_forward(v, v1): v[:] = log(1 +
            exp(v1)) gradient=softplus_gradient,   # def softplus_gradient(g, g1, v1): g1 += g / (1
            + exp(-v1))
        )

    Args:
        name: The name that printed code, labels and messages use.
        forward: Assigns the result slot `v` from the operand slots `v1`, `v2`, `v3`.
        gradient: Accumulates into the gradient slots; leave out when no gradient flows.
        logic: How axes line up: `"."` pointwise, `"@"` compose, `"T"` transpose, or an einsum
            specification.
        operands: How many tensors it takes, where the slots `vs` and `gs` stand for all of them.

    Raises:
        UsageError: if a parameter of the functions is not the name of a slot.
    """
    names = slot_names(forward)
    if gradient is not None:
        slot_names(gradient)
    if operands is None:
        operands = (
            arity(primitive)
            if primitive is not None
            else max((int(n[-1]) for n in names if n[-1].isdigit()), default=0)
        )
    operation = Operation(
        name=name,
        operands=operands,
        logic=logic,
        forward=forward,
        gradient=gradient,
        primitive=primitive,
        combine=combine,
    )
    if register:
        operations[name] = operation
    return operation
