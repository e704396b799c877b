"""Slots: the parameters of the functions that define an operation, and the trace of such functions.

`v` is the result, `v1` the first operand, `g1` the gradient of the first operand. Operators on
slots apply bare primitives; an assignment to a slot becomes one accumulating assignment over the
operation's domain. A function is called once, with slots that record the assignments; their code is
read by emission, by `oc.gradients` and by the inference of shapes and memory:

    def gradient(g, g1, v):         g1 += g * (1 - v * v)
    -->
    g1 += mul(g, sub(1, mul(v, v)))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import returns_of
from ocannl_core.ir.numbers.primitives import BinaryOp, Op
from ocannl_core.ir.text import ATOM, Text, accumulation_symbol, application
from ocannl_core.shape.translation.logic import ConcatPart, Logic, Pointwise, Several
from ocannl_core.tensor.graph import formulas
from ocannl_core.tensor.graph.assignment import Assignable, LeftHandSide
from ocannl_core.tensor.graph.expression import Expression
from ocannl_core.tensor.graph.subscript_keys import key_text

ALL = -1
"""In place of a position: a parameter that gets the slots of all operands, as a tuple."""

SLOT_NAMES: dict[str, formulas.Variable] = {
    **dict.fromkeys(("v", "t", "lhs"), formulas.RESULT),
    **{
        f"{name}{i}": formulas.Variable("value", i) for name in ("v", "t", "rhs") for i in (1, 2, 3)
    },
    "vs": formulas.Variable("value", ALL),
    "g": formulas.COTANGENT,
    "gs": formulas.Variable("gradient", ALL),
    **{f"g{i}": formulas.Variable("gradient", i) for i in (1, 2, 3)},
    "selected": formulas.SELECTION,
}

RETURNS_NOTHING = (
    "The code of an operation returns nothing: the forward function assigns to v, the gradient "
    "function adds to g1, g2, g3; both may write intermediate slots."
)

_INTERMEDIATE = re.compile(r"(lhs|rhs[123]?)_\w+|\w+_(lhs|rhs[123]?)")


@cache
def slot_of(name: str) -> formulas.Variable | None:
    """Return the variable of a parameter; None if the name does not denote a slot."""
    if name in SLOT_NAMES:
        return SLOT_NAMES[name]
    match = _INTERMEDIATE.fullmatch(name)
    if match is None:
        return None
    side = match[1] or match[2]
    return formulas.Variable("intermediate", 0 if side == "lhs" else int(side[3:] or 1), name)


@lru_cache(maxsize=1024)
def parameter_slots(function: Callable[..., None]) -> Mapping[str, formulas.Variable]:
    """Return the variables of the parameters of a defining function, by name."""
    found = {name: slot_of(name) for name in signature_of(function).parameters}
    if unknown := [name for name, variable in found.items() if variable is None]:
        raise UsageError(
            "The parameters of a defining function are named after slots.",
            found=", ".join(unknown),
            fix="use " + ", ".join(SLOT_NAMES) + "; or, for an intermediate tensor with the axes "
            "of a slot, a name like rhs1_mask",
        )
    return {name: variable for name, variable in found.items() if variable is not None}


def slot_texts(slots: Sequence[formulas.Variable]) -> Mapping[formulas.Variable, str]:
    """Return names of slots for messages: `v`, `g2`, `position`."""
    prefixes = {"value": "v", "gradient": "g"}
    return {each: f"{prefixes.get(each.role, each.role)}{each.position or ''}" for each in slots}


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """`target = target combine value`, after a reset of the target if `reset`."""

    target: formulas.Variable
    combine: BinaryOp
    reset: bool
    value: formulas.Formula
    logic: Logic | None = None
    """The logic that is stated for the assignment, or None."""

    @property
    def part(self) -> ConcatPart:
        """The logic, with the tensors that it lines up."""
        sources = tuple(variable.position for variable in formulas.variables_in(self.value))
        return ConcatPart(self.target.position, sources, self.logic or Pointwise())


class Code:
    """The code of an operation: assignments to slots."""

    __slots__ = ("_assignments", "_trace", "_violations", "slots")

    def __init__(
        self, slots: Mapping[formulas.Variable, str], trace: Callable[[], Iterable[SlotAssignment]]
    ) -> None:
        self.slots = slots
        """The slots that the code may access, with the names of parameters."""
        self._trace = trace
        self._assignments: tuple[SlotAssignment, ...] | None = None
        self._violations: tuple[str | None, ...] | None = None

    @staticmethod
    def of(slots: Sequence[formulas.Variable], *assignments: SlotAssignment) -> Code:
        """Return code of given assignments."""
        return Code(slot_texts(slots), lambda: assignments)

    @staticmethod
    def of_function(function: Callable[..., None], operands: int) -> Code:
        """Return the code of a defining function of an operation with a number of operands.

        The function is called when the assignments are first read: functions of this package refer
        to operations that are defined later.
        """
        slots: dict[formulas.Variable, str] = {}
        for name, variable in parameter_slots(function).items():
            if variable == formulas.SELECTION:
                slots |= {formulas.SELECTION: name, formulas.POSITION: "position"}
            elif variable.position == ALL:
                every = formulas.operand_variables(operands, variable.role)
                slots |= {each: f"{name}[{i}]" for i, each in enumerate(every)}
            else:
                slots[variable] = name
        return Code(slots, lambda: _trace(function, operands))

    @property
    def assignments(self) -> tuple[SlotAssignment, ...]:
        """The assignments, in order."""
        if self._assignments is None:
            self._assignments = tuple(self._trace())
        return self._assignments

    @property
    def makes_floats(self) -> bool:
        """Return True if some value has a fraction whatever the operands are."""
        return any(formulas.makes_floats(each.value) for each in self.assignments)

    @property
    def violations(self) -> tuple[str | None, ...]:
        """The rule that each assignment violates, in words, or None."""
        if self._violations is None:
            self._violations = tuple(_violations(self))
        return self._violations

    def __str__(self) -> str:
        lines = []
        for each in self.assignments:
            start = "[neutral]" if each.reset else ""
            symbol, value = accumulation_symbol(each.combine), self.text(each.value)
            lines.append(f"{self.text(each.target)}{start} {symbol} {value}")
        return "\n".join(lines)

    def text(self, formula: formulas.Formula) -> str:
        """Return a formula as text."""
        return self._printed(formula)[0]

    def _printed(self, formula: formulas.Formula) -> Text:
        match formula:
            case formulas.Variable(is_merge=True):
                return f"{self.text(replace(formula, is_merge=False))}.merge", ATOM
            case formulas.Variable():
                slot = replace(formula, occurrence=0)
                return self.slots.get(slot) or slot_texts([slot])[slot], ATOM
            case formulas.Application(op, args):
                return application(op, [self._printed(arg) for arg in args])
            case _:
                return repr(formula), ATOM

    @property
    def results(self) -> list[SlotAssignment]:
        """The assignments to the result."""
        return [each for each in self.assignments if each.target == formulas.RESULT]

    @property
    def accumulation(self) -> BinaryOp | None:
        """The accumulation that writes the result; None for plain assignment."""
        found = (each.combine for each in self.results)
        return next((each for each in found if each is not BinaryOp.SECOND), None)

    @property
    def extreme(self) -> tuple[BinaryOp, formulas.Formula] | None:
        """The accumulation of a maximum or minimum and its operand; None for other results."""
        match self.results:
            case [SlotAssignment(_, (BinaryOp.MAX | BinaryOp.MIN) as combine, _, value)]:
                return combine, value
            case _:
                return None

    @property
    def parts(self) -> Several:
        """The logic of assignments that state one each."""
        return Several(tuple(dict.fromkeys(each.part for each in self.assignments)))


def _violations(code: Code) -> Iterator[str | None]:
    """Yield the violation of each assignment: forward code writes the result, gradient code adds to
    gradients of operands; results and intermediate tensors are written before they are read.
    """
    is_gradient = any(each.role == "gradient" for each in code.slots)
    unwritten = {each for each in code.slots if each.role == "intermediate"}
    unwritten |= set() if is_gradient else {formulas.RESULT}
    gradients = {each for each in code.slots if each.role == "gradient"} - {formulas.COTANGENT}
    targets = unwritten | gradients
    for each in code.assignments:
        target, is_plain = each.target, each.combine is BinaryOp.SECOND
        is_sum = each.combine in (BinaryOp.ADD, BinaryOp.SUB) and not each.reset
        early = next((v for v in formulas.variables_in(each.value) if v in unwritten), None)
        if target not in targets:
            yield f"it writes {code.text(target)}"
        elif target in gradients and not is_sum:
            yield "it writes a gradient by other means than += and -="
        elif target in unwritten and not (is_plain or each.reset):
            yield f"it accumulates into {code.text(target)} before it writes it"
        elif early is not None:
            yield f"it reads {code.text(early)} before it writes it"
        else:
            yield None
        unwritten.discard(target)


def _trace(function: Callable[..., None], operands: int) -> list[SlotAssignment]:
    found: list[SlotAssignment] = []

    def argument(name: str, variable: formulas.Variable) -> Any:
        if variable == formulas.SELECTION:
            slots = Slot(name, variable, found), Slot("position", formulas.POSITION, found)
            return SlotApplication(BinaryOp.EQ, slots)
        if variable.position == ALL:
            every = formulas.operand_variables(operands, variable.role)
            return tuple(Slot(f"{name}[{i}]", each, found) for i, each in enumerate(every))
        return Slot(name, variable, found)

    returned: Any = function(*(argument(*each) for each in parameter_slots(function).items()))  # type: ignore[func-returns-value]
    if returned is not None:
        raise UsageError(
            RETURNS_NOTHING,
            found=f"in {function.__name__}, it returns something",
            where="\n".join(map(str, returns_of(function))),
        )
    return found


@dataclass(frozen=True, slots=True, eq=False)
class SlotApplication(Expression):
    """A primitive applied to slots, not assigned yet."""

    op: Op
    args: tuple[SlotValue, ...]
    logic: Logic | None = None
    """The logic of the assignment, if it is stated there."""

    def __repr__(self) -> str:
        return f"{self.op.value.name}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True, slots=True, eq=False)
class Slot(Assignable):
    """A parameter of a defining function, while the function is traced."""

    name: str
    variable: formulas.Variable
    assignments: list[SlotAssignment]
    """The assignments of the function so far."""

    def __repr__(self) -> str:
        return self.name

    @property
    def merge(self) -> Slot:
        """The merge buffer of the slot's tensor, as an operand."""
        buffer = replace(self.variable, is_merge=True)
        return replace(self, name=f"{self.name}.merge", variable=buffer)

    def __getitem__(self, key: object) -> LeftHandSide:
        target = self.target(key)
        if target is None:
            raise UsageError(
                "A slot is written as v[:] = e, v[oc.neutral] += e or v += e.",
                found=f"{self.name}[{key!r}]",
            )
        return target

    def assign_with(
        self, value: Any, combine: BinaryOp, *, reset: bool, at: tuple[object, ...] = ()
    ) -> None:
        """Record an assignment."""
        if at:
            raise UsageError.at_caller(
                "A slot is written as a whole, or at the positions of a logic.",
                found=f"{self.name}[{key_text(at)}] = ...",
                fix='v.assign(e, logic="... => 2,...") writes position 2 of the first output axis',
            )
        if not isinstance(value, Slot | SlotApplication | int | float):
            raise UsageError(
                "The code of an operation is made of its slots, primitives and numbers.",
                found=f"{value!r} assigned to {self.name}",
            )
        logic = value.logic if isinstance(value, SlotApplication) else None
        self.assignments.append(
            SlotAssignment(self.variable, combine, reset, _formula(value), logic)
        )


SlotValue = Slot | SlotApplication | int | float


def _formula(value: SlotValue) -> formulas.Formula:
    match value:
        case Slot(variable=variable):
            return variable
        case SlotApplication(op, args):
            return formulas.Application(op, tuple(map(_formula, args)))
        case _:
            return float(value)


def slot_application(op: Op, args: tuple[Any, ...], logic: Logic | None = None) -> SlotApplication:
    """Return a primitive applied to slots; `logic` lines up their axes in the assignment."""
    for arg in args:
        if not isinstance(arg, Slot | SlotApplication | int | float):
            raise UsageError(
                "Slots combine with slots and numbers only.",
                found=repr(arg),
                fix="make the tensor an operand of the operation",
            )
        if isinstance(arg, SlotApplication) and arg.logic is not None:
            raise UsageError.at_caller(
                "A primitive with a logic of its own is assigned as it is.",
                found=f"{op.value.name}({', '.join(map(repr, args))})",
                fix=f"assign {arg!r} to an intermediate slot first",
            )
    if logic is not None and not all(isinstance(arg, Slot) for arg in args):
        raise UsageError.at_caller(
            "A logic lines up the axes of slots.",
            found=f"{op.value.name}({', '.join(map(repr, args))}, logic=...)",
            fix="assign the nested application to an intermediate slot first",
        )
    return SlotApplication(op, args, logic)
