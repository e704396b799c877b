"""Slots: the operands of an operation's own code, with index maps from its logic.

The two functions that define an operation take slots: `v` is the result, `v1` the first operand,
`g1` the gradient of the first operand. Operators on slots apply bare primitives; an assignment to a
slot becomes one accumulating assignment over the operation's domain. A nested application is stored
first, in a node with one axis for every domain variable that it varies with: `g2 -= g * (v / v2)`
computes `v / v2` once per cell of `v`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, Literal, Protocol

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.assignments.nodes import Merge, NodeOperand, Operand, Scalar
from ocannl_core.ir.indexing import ComputedIndex, IndexMap, IndexVar, variables
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, UnaryOp
from ocannl_core.shape.translation.logic import ConcatPart, Logic, Pointwise, Several
from ocannl_core.tensor.graph.assignment import Assignable, LeftHandSide
from ocannl_core.tensor.graph.expression import Expression
from ocannl_core.tensor.graph.subscript_keys import key_text

Role = Literal["value", "gradient", "intermediate", "selection", "position"]
ALL = -1
"""In place of a position: a parameter that gets the slots of all operands, as a tuple."""


@dataclass(frozen=True, slots=True)
class SlotName:
    """The meaning of a parameter name of a defining function."""

    role: Role
    """The value or the gradient of a tensor, an intermediate tensor with its axes, the selection of
    a maximum or minimum, or the positions on the reduced axes.
    """
    position: int
    """The result (0), an operand (1-3), or all operands."""


SLOT_NAMES: dict[str, SlotName] = {
    **dict.fromkeys(("v", "t", "lhs"), SlotName("value", 0)),
    **{f"{name}{i}": SlotName("value", i) for name in ("v", "t", "rhs") for i in (1, 2, 3)},
    "vs": SlotName("value", ALL),
    "g": SlotName("gradient", 0),
    "gs": SlotName("gradient", ALL),
    **{f"g{i}": SlotName("gradient", i) for i in (1, 2, 3)},
    "selected": SlotName("selection", 0),
}

POSITION = "position"
"""The slot of the positions on the reduced axes; in code made by this package only."""

_INTERMEDIATE = re.compile(r"(lhs|rhs[123]?)_\w+|\w+_(lhs|rhs[123]?)")


@cache
def slot_of(name: str) -> SlotName:
    """Return the meaning of a parameter name.

    Raises:
        KeyError: if the name does not denote a slot.
    """
    if name in SLOT_NAMES:
        return SLOT_NAMES[name]
    if name == POSITION:
        return SlotName("position", 0)
    match = _INTERMEDIATE.fullmatch(name)
    if match is None:
        raise KeyError(name)
    side = match[1] or match[2]
    position = 0 if side == "lhs" else int(side[3:] or 1)
    return SlotName("intermediate", position)


class SlotEmitter(Protocol):
    """A receiver of the assignments of defining functions."""

    def accumulate(
        self, target: Slot, combine: BinaryOp, *, reset: bool, value: SlotValue
    ) -> None: ...

    def set_from_words(self, target: Slot, words: Slot) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class SlotApplication(Expression):
    """A primitive applied to slots, not assigned yet."""

    op: Op
    args: tuple[SlotValue, ...]
    logic: Logic | None = None
    """The logic of the assignment, if it is stated there."""
    dtype: DType | None = None
    """The number format that it is stored in; it follows from the arguments when None."""

    def __repr__(self) -> str:
        return f"{self.op.value.name}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True, slots=True, eq=False)
class Slot(Assignable):
    """A tensor of an operation's code together with its index map."""

    name: str
    operand: Operand | None
    """The cells, a number, or None for the gradient of a tensor that needs none: assignments are
    dropped.
    """
    dtype: DType
    index: IndexMap
    """The index map over the operation's domain."""
    dims: tuple[int, ...]
    """Extents of the axes that the map addresses."""
    emitter: SlotEmitter
    position: int = 0
    """The tensor whose axes it has: 0 for the result, 1 for the first operand."""
    beyond: float | None = None
    """The number that windows read in its margins; None where none leaves the axes."""

    def __repr__(self) -> str:
        return self.name

    @property
    def merge(self) -> Slot:
        """The merge buffer of the slot's tensor, as an operand."""
        if not isinstance(self.operand, NodeOperand):
            raise UsageError("Constants have no merge buffer.", found=f"{self.name}.merge")
        return replace(self, name=f"{self.name}.merge", operand=Merge(self.operand.node))

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
        """Pass an assignment on to the emitter."""
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
        self.emitter.accumulate(self, combine, reset=reset, value=value)

    def fill_from_words(self, words: Slot) -> None:
        """Assign runs of cells the numbers unpacked from words."""
        self.emitter.set_from_words(self, words)


SlotValue = Slot | SlotApplication | int | float


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


@lru_cache(maxsize=1024)
def slot_names(function: Callable[..., None]) -> tuple[str, ...]:
    """Return the parameter names of a defining function."""
    names = tuple(inspect.signature(function).parameters)
    known = {*SLOT_NAMES, POSITION}
    unknown = [each for each in names if each not in known and not _INTERMEDIATE.fullmatch(each)]
    if unknown:
        raise UsageError(
            "The parameters of a defining function are named after slots.",
            found=", ".join(unknown),
            fix="use " + ", ".join(SLOT_NAMES) + "; or, for an intermediate tensor with the axes "
            "of a slot, a name like rhs1_mask",
        )
    return names


def call_code(code: Callable[..., None], operands: int, slot: Callable[[str, int], Any]) -> Any:
    """Call a defining function with a slot for each of its parameters, made from its name and its
    position; a parameter for all operands gets a tuple.
    """

    def argument(name: str) -> Any:
        position = slot_of(name).position
        if position != ALL:
            return slot(name, position)
        return tuple(slot(f"{name}[{i}]", i + 1) for i in range(operands))

    return code(*map(argument, slot_names(code)))


def role_of(name: str) -> Role:
    """Return the role of a slot by its name in `call_code`."""
    return slot_of(name.partition("[")[0]).role


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """An assignment of a defining function."""

    target: Slot
    combine: BinaryOp
    reset: bool
    value: SlotValue


class _Recorder:
    """Collector of the assignments of a defining function."""

    def __init__(self) -> None:
        self.found: list[SlotAssignment] = []

    def accumulate(self, target: Slot, combine: BinaryOp, *, reset: bool, value: SlotValue) -> None:
        self.found.append(SlotAssignment(target, combine, reset, value))

    def set_from_words(self, target: Slot, words: Slot) -> None:
        self.accumulate(target, BinaryOp.SECOND, reset=False, value=words)


@lru_cache(maxsize=1024)
def trace(code: Callable[..., None], operands: int) -> tuple[SlotAssignment, ...]:
    """Return the assignments of a defining function to slots without axes, which `with_slots`
    replaces by others.
    """
    recorder = _Recorder()

    def slot(name: str, position: int) -> Slot:
        cells = NodeOperand(TensorNode(0, (name,)))  # of no tensor
        return Slot(name, cells, float32, (), (), recorder, position)

    call_code(code, operands, slot)
    return tuple(recorder.found)


def with_slots(value: SlotValue, slot_for: Callable[[Slot], SlotValue]) -> SlotValue:
    """Return a value with other slots in place of its own."""
    match value:
        case Slot(name, Merge(node)):
            base = replace(value, name=name.removesuffix(".merge"), operand=NodeOperand(node))
            return found.merge if isinstance(found := slot_for(base), Slot) else found
        case Slot():
            return slot_for(value)
        case SlotApplication(args=args):
            return replace(value, args=tuple(with_slots(arg, slot_for) for arg in args))
        case _:
            return value


def _results(forward: Callable[..., None], operands: int) -> list[SlotAssignment]:
    """Return the assignments to the result."""
    result = SlotName("value", 0)
    return [e for e in trace(forward, operands) if SLOT_NAMES.get(e.target.name) == result]


def accumulation_of(forward: Callable[..., None], operands: int) -> BinaryOp | None:
    """Return the accumulation that writes the result; None for plain assignment."""
    found = (each.combine for each in _results(forward, operands))
    return next((each for each in found if each is not BinaryOp.SECOND), None)


def extreme_of(forward: Callable[..., None], operands: int) -> tuple[BinaryOp, SlotValue] | None:
    """Return the accumulation of a maximum or minimum and its operand; None for other results."""
    match _results(forward, operands):
        case [SlotAssignment(_, (BinaryOp.MAX | BinaryOp.MIN) as combine, _, value)]:
            return combine, value
        case _:
            return None


def logic_of_parts(forward: Callable[..., None], operands: int) -> Several:
    """Return the logic of a defining function whose assignments state one each."""
    parts = (part_of(each.target, each.value) for each in trace(forward, operands))
    return Several(tuple(dict.fromkeys(parts)))


def part_of(target: Slot, value: SlotValue) -> ConcatPart:
    """Return the logic of one assignment, with the slots that it lines up."""
    stated = value.logic if isinstance(value, SlotApplication) else None
    sources = tuple(slot.position for slot in slots_in(value))
    return ConcatPart(target.position, sources, stated or Pointwise())


def slots_in(value: SlotValue) -> Iterator[Slot]:
    """Yield the slots that a value reads, one for each read."""
    match value:
        case Slot():
            yield value
        case SlotApplication(args=args):
            for arg in args:
                yield from slots_in(arg)
        case _:
            pass


def value_variables(value: SlotValue) -> set[IndexVar]:
    """Return the domain variables that a value depends on."""
    match value:
        case Slot(index=index):
            return {var for each in index for var in variables(each)}
        case SlotApplication(args=args):
            return set().union(*(value_variables(arg) for arg in args))
        case _:
            return set()


def as_operand(value: Slot | int | float) -> tuple[Operand, IndexMap, tuple[int, ...]]:
    """Return the operand with its index map and extents; numbers have none."""
    if isinstance(value, Slot):
        assert value.operand is not None, "gradients of operands are not read"
        if isinstance(value.operand, Scalar):
            return value.operand, (), ()
        return value.operand, value.index, value.dims
    return Scalar(float(value)), (), ()


def as_application(value: SlotValue) -> tuple[Op, tuple[SlotValue, ...]]:
    """Return the primitive and the arguments that compute a value, `identity` for a slot."""
    if isinstance(value, SlotApplication):
        return value.op, value.args
    return UnaryOp.IDENTITY, (value,)


def with_numbered_positions(
    target: Slot, args: tuple[SlotValue, ...]
) -> tuple[Slot, tuple[SlotValue, ...]]:
    """Return a target and arguments with computed positions that refer to the arguments."""
    numbers = {arg.position - 1: number for number, arg in enumerate(args) if isinstance(arg, Slot)}

    def renumbered(slot: Slot) -> Slot:
        if not any(isinstance(index, ComputedIndex) for index in slot.index):
            return slot
        found = tuple(
            replace(index, operand=numbers[index.operand])
            if isinstance(index, ComputedIndex)
            else index
            for index in slot.index
        )
        return replace(slot, index=found)

    return renumbered(target), tuple(renumbered(a) if isinstance(a, Slot) else a for a in args)
