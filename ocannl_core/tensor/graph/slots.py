"""Formulas, and slots: the parameters of the functions that define an operation, and their trace.

A formula is a value that the code of an operation assigns: primitives applied to variables, where
one part, as one object, may occur many times. A slot is a variable as a parameter of a function
that defines an operation:

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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import count
from numbers import Real
from typing import Any, Literal, TypeVar

from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import ById, IdentityMap, exact_key
from ocannl_core.base.origin import returns_of
from ocannl_core.ir.host_arrays import plain_number
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, Result, TernaryOp
from ocannl_core.ir.text import ATOM, Text, accumulation_symbol, application
from ocannl_core.shape.translation.logic import ConcatPart, Logic, Pointwise, Several
from ocannl_core.tensor.graph.assignment import Assignable, LeftHandSide
from ocannl_core.tensor.graph.expression import Expression
from ocannl_core.tensor.graph.subscript_keys import key_text

_Folded = TypeVar("_Folded")

Role = Literal["value", "gradient", "intermediate", "selection", "position", "count"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A slot in a formula.

    Attributes:
        role: The value or the gradient of a tensor, an intermediate tensor with its axes, the
            position of the cell that a maximum or minimum selects, the position on the reduced
            axes, or the number of these positions.
        position: The tensor: the result (0) or an operand (from 1).
        name: The name of an intermediate slot.
        occurrence: A number that distinguishes reads of one slot along different axes; 0 if they
            are not distinguished.
        is_merge: True for the merge buffer of the tensor.
    """

    role: Role
    position: int
    name: str = ""
    occurrence: int = 0
    is_merge: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """A primitive applied to formulas. Numbers in it compare by their bits."""

    op: Op
    args: tuple[Formula, ...]
    like: Variable | None = None
    """The variable in whose number format the value is stored; None where the format follows from
    the operands.
    """

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Application) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Hashable, ...]:
        """Return the parts of the formula, each once, with numbers in place of applications."""
        numbers: dict[Hashable, int] = {}

        def number(part: Application, args: list[Hashable]) -> Hashable:
            return numbers.setdefault((part.op, part.like, *args), len(numbers))

        fold(self, exact_key, number)
        return tuple(numbers)


Formula = Variable | Application | float

RESULT = Variable("value", 0)
COTANGENT = Variable("gradient", 0)
"""The gradient of the result."""
SELECTION = Variable("selection", 0)
POSITION = Variable("position", 0)
COUNT = Variable("count", 0)
PLACE = Variable("position", 0, "place")
"""The position on the reduced axes; in the margin of an operand, the number of positions."""


def operand_variables(operands: int, role: Role = "value") -> tuple[Variable, ...]:
    """Return the values or the gradients of the operands of an operation."""
    return tuple(Variable(role, position) for position in range(1, operands + 1))


def fold(
    value: Any, of_leaf: Callable[[Any], _Folded], of_part: Callable[[Any, list[_Folded]], _Folded]
) -> _Folded:
    """Return the result for a formula, or for a value made of slots, from the results for its
    operands. A part that occurs more than once, as one object, has one result.
    """
    found: IdentityMap[object, _Folded] = IdentityMap()

    def result(part: Any) -> _Folded:
        return found[part] if isinstance(part, _PARTS) else of_leaf(part)

    pending = [value] if isinstance(value, _PARTS) else []
    while pending:
        part = pending[-1]
        inner = [arg for arg in part.args if isinstance(arg, _PARTS) and arg not in found]
        pending += reversed(inner)
        if not inner:
            pending.pop()
            if part not in found:
                found[part] = of_part(part, [result(arg) for arg in part.args])
    return result(value)


def variables_in(formula: Formula) -> Iterator[Variable]:
    """Yield the variables of a formula, one for each occurrence. A part that occurs more than
    once, as one object, yields its variables once.
    """
    visited: IdentityMap[Formula, None] = IdentityMap()
    pending = [formula]
    while pending:
        part = pending.pop()
        if isinstance(part, Variable):
            yield part
        elif isinstance(part, Application) and part not in visited:
            visited[part] = None
            pending += reversed(part.args)


def applies_more_than(limit: int, formula: Formula) -> bool:
    """Return True if a formula applies more primitives than a limit, counted at each occurrence."""
    count, pending = 0, [formula]
    while pending and count <= limit:
        part = pending.pop()
        if isinstance(part, Application):
            count += 1
            pending += part.args
    return count > limit


def repeated_parts(formula: Formula) -> set[ById]:
    """Return the identities of the applications that occur in a formula more than once."""
    seen: set[ById] = set()
    repeated: set[ById] = set()
    pending = [formula]
    while pending:
        part = pending.pop()
        if isinstance(part, Application):
            key = ById(part)
            if key in seen:
                repeated.add(key)
            else:
                seen.add(key)
                pending += part.args
    return repeated


def makes_floats(formula: Formula) -> bool:
    """Return True if a formula has fractional values for integers, too."""

    def visit(part: Application, args: list[bool]) -> bool:
        row = part.op.value
        is_number = row.result not in (Result.TRUTH, Result.BITS)
        return is_number and (row.is_real or any(args[part.op is TernaryOp.WHERE :]))

    return fold(formula, lambda leaf: isinstance(leaf, float) and leaf % 1 != 0, visit)


def map_variables(
    formula: Formula,
    function: Callable[[Variable], Formula],
    apply: Callable[[Application, tuple[Formula, ...]], Formula] | None = None,
) -> Formula:
    """Return a formula with variables replaced.

    Args:
        apply: Returns a part with other operands; by default it keeps the primitive.
    """

    def of_part(part: Application, args: list[Formula]) -> Formula:
        operands = tuple(args)
        return replace(part, args=operands) if apply is None else apply(part, operands)

    return fold(
        formula, lambda leaf: function(leaf) if isinstance(leaf, Variable) else leaf, of_part
    )


def with_occurrences(formula: Formula) -> Formula:
    """Return a formula whose variables occur once each, with a number for each occurrence."""
    numbers = count(1)
    return map_variables(formula, lambda variable: replace(variable, occurrence=next(numbers)))


ALL = -1
"""In place of a position: a parameter that gets the slots of all operands, as a tuple."""

SLOT_NAMES: dict[str, Variable] = {
    **dict.fromkeys(("v", "t", "lhs"), RESULT),
    **{f"{name}{i}": Variable("value", i) for name in ("v", "t", "rhs") for i in (1, 2, 3)},
    "vs": Variable("value", ALL),
    "g": COTANGENT,
    "gs": Variable("gradient", ALL),
    **{f"g{i}": Variable("gradient", i) for i in (1, 2, 3)},
    "selected": SELECTION,
}

RETURNS_NOTHING = (
    "The code of an operation returns nothing: the forward function assigns to v, the gradient "
    "function adds to g1, g2, g3; both may write intermediate slots."
)

_INTERMEDIATE = r"(lhs|rhs[123]?)_\w+|\w+_(lhs|rhs[123]?)"


@cache
def slot_of(name: str) -> Variable | None:
    """Return the variable of a parameter; None if the name does not denote a slot."""
    if name in SLOT_NAMES:
        return SLOT_NAMES[name]
    match = re.fullmatch(_INTERMEDIATE, name)
    if match is None:
        return None
    side = match[1] or match[2]
    return Variable("intermediate", 0 if side == "lhs" else int(side[3:] or 1), name)


@lru_cache(maxsize=1024)
def parameter_slots(function: Callable[..., None]) -> Mapping[str, Variable]:
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


def slot_texts(slots: Sequence[Variable]) -> Mapping[Variable, str]:
    """Return names of slots for messages: `v`, `g2`, `position`."""
    prefixes = {"value": "v", "gradient": "g"}
    return {each: f"{prefixes.get(each.role, each.role)}{each.position or ''}" for each in slots}


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """`target = target combine value`, after a reset of the target if `reset`."""

    target: Variable
    combine: BinaryOp
    reset: bool
    value: Formula
    logic: Logic | None = None
    """The logic that is stated for the assignment, or None."""
    writes_float: bool = False
    """True if the value has a term that the code writes as a float, such as `2.0`."""

    @property
    def part(self) -> ConcatPart:
        """The logic, with the tensors that it lines up."""
        sources = tuple(variable.position for variable in variables_in(self.value))
        return ConcatPart(self.target.position, sources, self.logic or Pointwise())


class Code:
    """The code of an operation: assignments to slots."""

    __slots__ = ("_assignments", "_trace", "_violations", "slots")

    def __init__(
        self, slots: Mapping[Variable, str], trace: Callable[[], Iterable[SlotAssignment]]
    ) -> None:
        self.slots = slots
        """The slots that the code may access, with the names of parameters."""
        self._trace = trace
        self._assignments: tuple[SlotAssignment, ...] | None = None
        self._violations: tuple[str | None, ...] | None = None

    @staticmethod
    def of(slots: Sequence[Variable], *assignments: SlotAssignment) -> Code:
        """Return code of given assignments."""
        return Code(slot_texts(slots), lambda: assignments)

    @staticmethod
    def of_function(function: Callable[..., None], operands: int) -> Code:
        """Return the code of a defining function of an operation with a number of operands.

        The function is called when the assignments are first read: functions of this package refer
        to operations that are defined later.
        """
        slots: dict[Variable, str] = {}
        for name, variable in parameter_slots(function).items():
            if variable == SELECTION:
                slots |= {SELECTION: name, POSITION: "position"}
            elif variable.position == ALL:
                every = operand_variables(operands, variable.role)
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
    def formula(self) -> Formula | None:
        """The formula of operands that is assigned to the result; None for other code."""
        match self.assignments:
            case (SlotAssignment(target, BinaryOp.SECOND, False, value, None),) if (
                target == RESULT
                and all(each.role == "value" and each.position for each in variables_in(value))
            ):
                return value
            case _:
                return None

    @property
    def makes_floats(self) -> bool:
        """Return True if some value is a float for integers, too."""
        return any(each.writes_float or makes_floats(each.value) for each in self.assignments)

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

    def text(self, formula: Formula) -> str:
        """Return a formula as text, with an ellipsis for parts with a long text."""

        def of_part(part: Application, args: list[Text]) -> Text:
            return application(part.op, [(_elided(text), rank) for text, rank in args])

        return fold(formula, self._printed, of_part)[0]

    def _printed(self, leaf: Variable | float) -> Text:
        match leaf:
            case Variable(is_merge=True):
                return f"{self.text(replace(leaf, is_merge=False))}.merge", ATOM
            case Variable():
                slot = replace(leaf, occurrence=0)
                return self.slots.get(slot) or slot_texts([slot])[slot], ATOM
            case _:
                return repr(leaf), ATOM

    @property
    def results(self) -> list[SlotAssignment]:
        """The assignments to the result."""
        return [each for each in self.assignments if each.target == RESULT]

    @property
    def accumulation(self) -> BinaryOp | None:
        """The accumulation that writes the result; None for plain assignment."""
        found = (each.combine for each in self.results)
        return next((each for each in found if each is not BinaryOp.SECOND), None)

    @property
    def extreme(self) -> tuple[BinaryOp, Formula] | None:
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


_LONGEST_TEXT = 2000
"""The number of characters of the text of an operand. Its length doubles where a part occurs twice.
"""


def _elided(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else "..."


def _violations(code: Code) -> Iterator[str | None]:
    """Yield the violation of each assignment: forward code writes the result, gradient code adds to
    gradients of operands; results and intermediate tensors are written before they are read.
    """
    is_gradient = any(each.role == "gradient" for each in code.slots)
    unwritten = {each for each in code.slots if each.role == "intermediate"}
    unwritten |= set() if is_gradient else {RESULT}
    gradients = {each for each in code.slots if each.role == "gradient"} - {COTANGENT}
    targets = unwritten | gradients
    for each in code.assignments:
        target, is_plain = each.target, each.combine is BinaryOp.SECOND
        is_sum = each.combine in (BinaryOp.ADD, BinaryOp.SUB) and not each.reset
        early = next((v for v in variables_in(each.value) if v in unwritten), None)
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

    def argument(name: str, variable: Variable) -> Any:
        if variable == SELECTION:
            slots = Slot(name, variable, found), Slot("position", POSITION, found)
            return SlotApplication(BinaryOp.EQ, slots)
        if variable.position == ALL:
            every = operand_variables(operands, variable.role)
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
        def of_part(part: SlotApplication, args: list[str]) -> str:
            return f"{part.op.value.name}({', '.join(map(_elided, args))})"

        return fold(self, repr, of_part)


@dataclass(frozen=True, slots=True, eq=False)
class Slot(Assignable):
    """A parameter of a defining function, while the function is traced."""

    name: str
    variable: Variable
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
        if isinstance(value, Real):
            value = plain_number(value, self.name)
        if not isinstance(value, Slot | SlotApplication | int | float):
            raise UsageError(
                "The code of an operation is made of its slots, primitives and numbers.",
                found=f"{value!r} assigned to {self.name}",
            )
        logic = value.logic if isinstance(value, SlotApplication) else None
        self.assignments.append(
            SlotAssignment(
                self.variable, combine, reset, formula_of(value), logic, _writes_float(value)
            )
        )


SlotValue = Slot | SlotApplication | int | float
_PARTS = Application, SlotApplication


def _writes_float(value: SlotValue) -> bool:
    """Return True if a float is among the terms of a value, as `2.0` in `2.0 * v`."""

    def visit(part: SlotApplication, args: list[bool]) -> bool:
        is_number = part.op.value.result not in (Result.TRUTH, Result.BITS)
        return is_number and any(args[part.op is TernaryOp.WHERE :])

    return fold(value, lambda leaf: isinstance(leaf, float), visit)


def formula_of(value: SlotValue) -> Formula:
    """Return a value as a formula, in which a value that occurs more than once is one object."""

    def of_leaf(leaf: Slot | float) -> Formula:
        if isinstance(leaf, Slot):
            return leaf.variable
        if float(leaf) != leaf and isinstance(leaf, int):
            raise UsageError(
                "The numbers in the code of an operation are numbers of float64.",
                found=str(leaf),
                fix="make the number an operand of the operation",
            )
        return float(leaf)

    return fold(value, of_leaf, lambda part, args: Application(part.op, tuple(args)))


def slot_application(op: Op, args: tuple[Any, ...], logic: Logic | None = None) -> SlotApplication:
    """Return a primitive applied to slots; `logic` lines up their axes in the assignment."""
    args = tuple(plain_number(arg, op.value.name) if isinstance(arg, Real) else arg for arg in args)
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
