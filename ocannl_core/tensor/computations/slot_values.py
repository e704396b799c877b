"""The values of slots while code is emitted as assignments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import ById, exact_key
from ocannl_core.ir.assignments import nodes as assign
from ocannl_core.ir.indexing import ComputedIndex, IndexMap, IndexVar, VarIndex, variables
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, promote
from ocannl_core.ir.numbers.primitives import Op, TernaryOp

NO_POSITION = -1
"""The position of an intermediate result, which has axes of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotAccess:
    """The cells that a slot stands for, with their index map over the operation's domain."""

    operand: assign.Operand | None
    """The cells, a number, or None for the gradient of a tensor that needs none: assignments are
    dropped.
    """
    dtype: DType
    index: IndexMap
    dims: tuple[int, ...]
    """Extents of the axes that the map addresses."""
    position: int = NO_POSITION
    """The tensor whose axes it has: 0 for the result, 1 for the first operand."""
    beyond: float | None = None
    """The number that windows read in its margins; None where none leaves the axes."""

    @property
    def node(self) -> TensorNode:
        """The node of the cells."""
        assert isinstance(self.operand, assign.NodeOperand)
        return self.operand.node

    @property
    def variables(self) -> AbstractSet[IndexVar]:
        """The domain variables that the cells depend on."""
        return variables_of([self.index]).keys()

    def with_numbers(self, numbers: Mapping[int, int]) -> SlotAccess:
        """Return the access with other numbers of the operands that hold computed positions."""
        index = tuple(
            replace(each, operand=numbers[each.operand])
            if isinstance(each, ComputedIndex)
            else each
            for each in self.index
        )
        return replace(self, index=index)


@dataclass(frozen=True, slots=True, eq=False)
class NestedValue:
    """A nested application that varies with all domain variables: a part of an assignment."""

    op: Op
    args: tuple[Argument, ...]
    dtype: DType
    variables: AbstractSet[IndexVar]
    """The domain variables that the value depends on."""
    depth: int
    """The greatest number of applications inside of each other."""


Argument = SlotAccess | NestedValue | float
"""An operand of an emitted assignment, or a part of it."""


def leaf_values(args: Iterable[Argument]) -> Iterator[SlotAccess | float]:
    """Yield the operands of nested applications, in order."""
    for arg in args:
        if isinstance(arg, NestedValue):
            yield from leaf_values(arg.args)
        else:
            yield arg


def varying_variables(args: Iterable[Argument]) -> AbstractSet[IndexVar]:
    """Return the domain variables that values depend on."""
    return set().union(*(arg.variables for arg in args if not isinstance(arg, int | float)))


def as_formula(
    op: Op, args: tuple[Argument, ...], dtype: DType
) -> tuple[assign.Formula, tuple[SlotAccess | float, ...]]:
    """Return a primitive of nested applications as a formula, and its operands, each once."""
    operands: dict[object, SlotAccess | float] = {}
    positions: dict[object, int] = {}

    def part_of(arg: Argument) -> int | assign.Formula:
        if isinstance(arg, NestedValue):
            return assign.Formula(arg.op, tuple(map(part_of, arg.args)), arg.dtype)
        key = exact_key(arg) if isinstance(arg, int | float) else ById(arg)
        operands[key] = arg
        return positions.setdefault(key, len(positions))

    formula = assign.Formula(op, tuple(map(part_of, args)), dtype)
    return formula, tuple(operands.values())


def variables_of(maps: Iterable[IndexMap]) -> dict[IndexVar, None]:
    """Return the variables of index maps, in order of appearance."""
    found: dict[IndexVar, None] = {}
    for index_map in maps:
        for index in index_map:
            if isinstance(index, VarIndex):  # almost all
                found[index.var] = None
            else:
                found.update(dict.fromkeys(variables(index)))
    return found


def position_holders(*values: Argument) -> set[int]:
    """Return the numbers of the operands that hold computed positions of accesses."""
    found: set[int] = set()
    for value in values:
        for index in value.index if isinstance(value, SlotAccess) else ():
            if isinstance(index, ComputedIndex):
                found.add(index.operand)
    return found


def as_operand(value: SlotAccess | float) -> tuple[assign.Operand, IndexMap, tuple[int, ...]]:
    """Return the operand with its index map and extents; numbers have none."""
    if not isinstance(value, SlotAccess):
        return assign.Scalar(value), (), ()
    assert value.operand is not None, "gradients of operands are not read"
    if isinstance(value.operand, assign.Scalar):
        return value.operand, (), ()
    return value.operand, value.index, value.dims


def formats_of(op: Op, args: tuple[Argument, ...], alone: DType, default: DType) -> list[DType]:
    """Return one format per argument of a primitive. Numbers take the format of the other slots;
    fractions beside integers are of the default float.
    """
    others = args[1:] if op is TernaryOp.WHERE else args
    slots = [arg.dtype for arg in others if not isinstance(arg, int | float)]
    beside = promote(*slots) if slots else alone

    def of_number(number: float) -> DType:
        return default if beside.holds_integers and number % 1 else beside

    return [of_number(arg) if isinstance(arg, int | float) else arg.dtype for arg in args]
