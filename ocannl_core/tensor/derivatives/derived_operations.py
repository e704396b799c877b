"""Operations derived from other operations' code: terms of gradients, and searches for maxima.

The assignment `g1 += g * v2` of a gradient function becomes an operation whose result has the axes
of `v1` and whose operands are `g` and `v2`, over the domain of the operation that it belongs to
(`shape.logic.Adjoint`). Its own gradient follows from the formula.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.tensor.derivatives import formulas
from ocannl_core.tensor.graph.slots import (
    Slot,
    SlotApplication,
    SlotValue,
    accumulation_of,
    as_application,
    extreme_of,
    with_slots,
)
from ocannl_core.tensor.primitives.operation import Code, Operation
from ocannl_core.tensor.primitives.pointwise_operations import minimum


@dataclass(frozen=True, eq=False, kw_only=True)
class DerivedOperation(Operation):
    """An operation derived from the code of another one.

    Attributes:
        roles: The slots of the other operation's code that the operands stand for.
        padding: The accumulation of the other operation, whose neutral element windows over values
            read beyond an axis; None for 0.
    """

    roles: tuple[formulas.Variable, ...]
    padding: BinaryOp | None

    @property
    def selection(self) -> int | None:
        """The operand with the positions of selected cells, if there is one."""
        found = (i for i, each in enumerate(self.roles) if each.role == "selection")
        return next(found, None)

    def is_gradient(self, position: int) -> bool:
        """Return True if an operand is a gradient, which is 0 beyond an axis."""
        return self.roles[position - 1].role == "gradient"


def padding_of(operation: Operation) -> BinaryOp | None:
    """Return the accumulation whose neutral element windows read beyond an axis; None for 0."""
    if isinstance(operation, DerivedOperation):
        return operation.padding
    return accumulation_of(operation.forward, operation.operands)


@lru_cache(maxsize=4096)
def term_operation(
    name: str,
    formula: formulas.Formula,
    roles: tuple[formulas.Variable, ...],
    padding: BinaryOp | None,
    positions: int = 0,
) -> DerivedOperation:
    """Return the operation that sums a formula over the cells of its domain."""
    has_positions = formulas.POSITION in formulas.variables_in(formula)

    def forward(v: Any, vs: Any) -> None:
        v.accumulate(formulas.as_slots(formula, dict(zip(roles, vs, strict=True))), reset=True)

    def forward_of_positions(v: Any, vs: Any, position: Any) -> None:
        slots = {**dict(zip(roles, vs, strict=True)), formulas.POSITION: position}
        v.accumulate(formulas.as_slots(formula, slots), reset=True)

    seed = formulas.Variable("gradient", -1)
    partial = formulas.derivatives(formula, seed)

    def gradient(g: Any, gs: Any, vs: Any) -> None:
        add_terms(gs, {**dict(zip(roles, vs, strict=True)), seed: g})

    def gradient_of_positions(g: Any, gs: Any, vs: Any, position: Any) -> None:
        add_terms(gs, {**dict(zip(roles, vs, strict=True)), seed: g, formulas.POSITION: position})

    def add_terms(gs: tuple[Slot, ...], slots: dict[formulas.Variable, Slot]) -> None:
        for role, target in zip(roles, gs, strict=True):
            if role in partial:
                target.accumulate(formulas.as_slots(partial[role], slots))

    return DerivedOperation(
        name=name,
        operands=len(roles),
        logic=None,
        forward=forward_of_positions if has_positions else forward,
        gradient=gradient_of_positions if has_positions else gradient,
        roles=roles,
        padding=padding,
        positions=positions,
    )


@lru_cache(maxsize=1024)
def search_operation(name: str, forward: Code, operands: int) -> DerivedOperation:
    """Return the search, in a maximum and its operands, for the positions that it selects."""

    def search(v: Any, vs: Any, position: Any) -> None:
        result = vs[0]
        extreme = extreme_of(forward, operands)
        if extreme is None:
            raise UsageError(
                "The slot `selected` stands for the selection of a maximum or minimum.",
                found=f"{name}, whose forward function does not accumulate one into v",
                fix="v[oc.neutral, oc.maximum] = v1",
            )
        combine, formal = extreme
        value = with_slots(formal, lambda slot: vs[slot.position])
        op, args = as_application(value)
        is_exact = isinstance(value, Slot) and value.dtype is result.dtype
        rounded = value if is_exact else SlotApplication(op, args, dtype=result.dtype)
        v.accumulate(position_search(combine, result, rounded, position), minimum, reset=True)

    roles = (
        formulas.Variable("value", 0),
        *(formulas.Variable("value", i + 1) for i in range(operands)),
    )
    return DerivedOperation(
        name=f"{name}_search",
        operands=len(roles),
        logic=None,
        forward=search,
        gradient=None,
        roles=roles,
        padding=accumulation_of(forward, operands),
    )


def position_search(
    combine: BinaryOp, result: Slot, value: SlotValue, position: Slot
) -> SlotApplication:
    """Return the value whose minimum is the position of the first cell that equals a maximum.

        v[i] max= v1[i, j]
    -->
        first[i] min= v1[i, j] < v[i] ? the number of positions : j
    """
    others = (value, result) if combine is BinaryOp.MAX else (result, value)
    is_other = SlotApplication(BinaryOp.LT, others)
    return SlotApplication(TernaryOp.WHERE, (is_other, prod(position.dims), position))
