"""Assignments: `c[:] = e`, `c += e`, `c[oc.neutral] += e`, `c[oc.maximum] = e`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from inspect import unwrap
from typing import TYPE_CHECKING, Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.expression import Expression, functions
from ocannl_core.tensor.graph.subscript_keys import is_everything, key_text, parts_of

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.session import Recorder


class Neutral:
    """In `c[oc.neutral] += e`: the target starts from the neutral element of the accumulation."""

    def __repr__(self) -> str:
        return "oc.neutral"


neutral = Neutral()


def _accumulation(combine: BinaryOp, name: str) -> Callable[[Assignable, Any], Any]:
    """Return an in-place operator that records an accumulation; on an expression that cannot be
    assigned to, the result of the operation, to which Python rebinds the name.
    """

    def operator(self: Assignable, value: Any) -> Any:
        if self.is_assignable:
            self.assign_with(value, combine, reset=False)
            return self
        result = functions[name](self, value)
        self.note_update(result, combine, value)
        return result

    return operator


def _no_accumulation(symbol: str, name: str) -> Callable[[Assignable, Any], Any]:
    """Return an in-place operator for expressions that cannot be assigned to, and no others."""

    def operator(self: Assignable, value: Any) -> Any:
        if not self.is_assignable:
            return functions[name](self, value)
        raise UsageError.at_caller(
            f"{symbol} accumulates nothing.",
            found=f"c {symbol}= e on a tensor that can be assigned to",
            fix=f"write c[:] = c {symbol} e",
        )

    return operator


class Assignable(Expression):
    """An expression with cells that code may write."""

    __slots__ = ()

    __iadd__ = _accumulation(BinaryOp.ADD, "add")
    __isub__ = _accumulation(BinaryOp.SUB, "sub")
    __imul__ = _accumulation(BinaryOp.MUL, "mul")
    __itruediv__ = _accumulation(BinaryOp.DIV, "div")
    __ipow__ = _accumulation(BinaryOp.POW, "power")
    __ior__ = _accumulation(BinaryOp.OR, "either")
    __iand__ = _accumulation(BinaryOp.AND, "both")
    __imod__ = _no_accumulation("%", "mod")
    __ifloordiv__ = _no_accumulation("//", "floor_divide")
    __ixor__ = _no_accumulation("^", "one_of")
    __imatmul__ = _no_accumulation("@", "matmul")

    def note_update(self, result: Any, combine: BinaryOp, value: Any) -> None:
        """Note that an in-place operator made a tensor from this one.

        Python assigns it next: to a name, or in `c[2:5] += e` to the slice that this tensor is.
        """

    @property
    def is_assignable(self) -> bool:
        """Return True when this expression may be written; else in-place operators rebind."""
        return True

    @abstractmethod
    def assign_with(
        self, value: Any, combine: BinaryOp, *, reset: bool, at: tuple[object, ...] = ()
    ) -> None:
        """Record the assignment `self[at] = self[at] combine value`, after a reset if `reset`."""

    def assign(
        self, value: object, *, logic: str | None = None, projections: str | None = None
    ) -> None:
        """Record `self[:] = value`.

        Args:
            value: A tensor, a number or a merge buffer; in recorded code also a primitive.
            logic: The correspondence between the axes of the value and of this tensor: `"a => a^b"`
                writes the first part of the axis and leaves the rest as it is.
            projections: Index maps in place of a logic: `"i, j => j, i over i<2, j<3"`.
        """
        value = _apply_logic(value, logic, projections)
        self.assign_with(value, BinaryOp.SECOND, reset=False)

    def accumulate(
        self,
        value: object,
        with_: object = None,
        *,
        reset: bool = False,
        logic: str | None = None,
        projections: str | None = None,
    ) -> None:
        """Record the accumulation of a value.

        Args:
            value: The accumulated value.
            with_: The accumulating operation; addition when not given.
            reset: True to start from the neutral element.
            logic: The correspondence of axes as in `assign`, or else `projections`.
        """
        combine = BinaryOp.ADD if with_ is None else accumulator(with_)
        self.assign_with(_apply_logic(value, logic, projections), combine, reset=reset)

    def target(self, key: object) -> LeftHandSide | None:
        """Return the left-hand side of an in-place operator on `self[key]`, or None."""
        if is_everything(key):
            return LeftHandSide(self, reset=False)
        subscripts, modifiers = _split_key(key)
        if any(part is not neutral for part in modifiers):
            raise UsageError.at_caller(
                "An assignment names its accumulating operation once.",
                found=f"c[{key_text(key)}], read or followed by an operator",
                fix="write c[oc.maximum] = e, or c[oc.neutral, oc.maximum] = e to start afresh",
            )
        return LeftHandSide(self, reset=True, at=subscripts) if modifiers else None

    def __setitem__(self, key: object, value: object) -> None:
        if isinstance(value, RecordedAssignment):
            return  # c[oc.neutral] += e has been noted by the in-place operator
        at, modifiers = _split_key(key)
        accumulators = [part for part in modifiers if part is not neutral]
        if modifiers and len(accumulators) != 1:
            raise UsageError.at_caller(
                "An assignment names one accumulating operation at most.",
                found=f"c[{key_text(key)}] = ...",
                fix="write c[:] = e, c[oc.maximum] = e, c[oc.neutral, oc.maximum] = e or "
                "c[oc.neutral] += e",
            )
        combine = accumulator(accumulators[0]) if modifiers else BinaryOp.SECOND
        self.assign_with(value, combine, reset=len(modifiers) > 1, at=at)


class RecordedAssignment:
    """The result of a recorded in-place operator; storing it does nothing."""


def _in_place_operator(
    combine: BinaryOp, symbol: str
) -> Callable[[LeftHandSide, Any], RecordedAssignment]:
    def operator(self: LeftHandSide, value: Any) -> RecordedAssignment:
        if not self.reset:
            raise of_two_readings(f"{symbol}=")
        self.owner.assign_with(value, combine, reset=True, at=self.at)
        return RecordedAssignment()

    return operator


def of_two_readings(symbol: str) -> UsageError:
    """Return the error about `c[:] += e`."""
    return UsageError.at_caller(
        "c[:] can be assigned to, not accumulated into: the two readings of `c[:] += e` differ.",
        found=f"c[:] {symbol} e",
        fix=f"write c {symbol} e to go on from c, or c[oc.neutral] {symbol} e to start afresh",
    )


class LeftHandSide(Expression):
    """The left-hand side of an in-place operator, which is no operand.

    `c[oc.neutral] += e` resets first; `v[:] += e` of a slot is an error.
    """

    def __init__(self, owner: Assignable, *, reset: bool, at: tuple[object, ...] = ()) -> None:
        self.owner = owner
        self.reset = reset
        self.at = at

    def __repr__(self) -> str:
        return f"{self.owner!r}[{'oc.neutral' if self.reset else ':'}]"

    __iadd__ = _in_place_operator(BinaryOp.ADD, "+")
    __isub__ = _in_place_operator(BinaryOp.SUB, "-")
    __imul__ = _in_place_operator(BinaryOp.MUL, "*")
    __itruediv__ = _in_place_operator(BinaryOp.DIV, "/")
    __ipow__ = _in_place_operator(BinaryOp.POW, "**")
    __ior__ = _in_place_operator(BinaryOp.OR, "|")
    __iand__ = _in_place_operator(BinaryOp.AND, "&")


def _split_key(key: object) -> tuple[tuple[object, ...], list[object]]:
    """Return the subscripts of a key, and its other parts, which state how cells are assigned."""
    subscripts: list[object] = []
    modifiers: list[object] = []
    for part in parts_of(key):
        is_function = callable(part) and not isinstance(part, Expression)
        is_modifier = part is neutral or hasattr(part, "primitive") or is_function
        (modifiers if is_modifier else subscripts).append(part)
    is_whole = len(subscripts) == 1 and (is_everything(subscripts[0]) or subscripts[0] is ...)
    return () if is_whole else tuple(subscripts), modifiers


def accumulator(operation: object) -> BinaryOp:
    """Return the primitive with which an operation accumulates."""
    if callable(operation) and unwrap(operation) is unwrap(functions["power"]):
        return BinaryOp.POW  # `power` selects a primitive
    primitive = getattr(operation, "primitive", None)
    reduces = getattr(operation, "combine", None) is not None
    if not isinstance(primitive, BinaryOp) or primitive.value.neutral is None or reduces:
        raise UsageError.at_caller(
            "Accumulation needs an operation with a neutral element.",
            found=repr(operation),
            fix="use +=, -=, *=, /=, **=, |=, &= or c[oc.maximum] = e, c[oc.minimum] = e, "
            "c[oc.primitives.relu_gate] = e",
        )
    return primitive


def _apply_logic(value: object, logic: str | None, projections: str | None) -> object:
    """Return the operand of an assignment, with the stated logic or index maps."""
    if logic is None and projections is None:
        return value
    rearranged: object = functions["identity"](value, logic=logic, projections=projections)
    return rearranged


def recorder_for(target: Any, part: str = "", otherwise: str = "") -> Recorder:
    """Return the recorder of an assignment to a tensor, or to a part of it.

    Raises:
        UsageError: outside of a function decorated with `@oc.cd`, and in a step of a loop.
    """
    recorder = sessions.current().recorder or target.session.recorder
    if recorder is not None:
        return recorder
    what = f"an assignment to {part}{target!r}"
    if (loop := target.session.loop) is not None:
        raise assigned_in_step(what, loop.name)
    raise UsageError.at_caller(
        "Assignments are recorded inside functions decorated with @oc.cd.",
        found=f"{what} outside of one",
        fix="put the assignment into a function decorated with @oc.cd and compile its result"
        + otherwise,
    )


def assigned_in_step(what: str, loop: str) -> UsageError:
    """Return the error for code in a step of the named loop."""
    return UsageError.at_caller(
        "A step of a loop computes tensors and assigns none.",
        found=f"{what} in the body of {loop}",
        fix="return the new value as the carry, or as a value of the step",
    )
