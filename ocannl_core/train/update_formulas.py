"""The formulas of an update, traced once and applied to each parameter.

An update of Adam is three assignments: of two averages, and of the parameter. Recorded with
tensors, it is some twenty, each with a shape to infer; a model has hundreds of parameters, which
have one formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.tensor.graph.slots import (
    RESULT,
    Application,
    Code,
    Formula,
    Slot,
    SlotAssignment,
    Variable,
    fold,
    formula_of,
    map_variables,
    operand_variables,
    variables_in,
)
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.train.guards import gated

Method = TypeVar("Method", bound=Callable[..., Any])
Symbol = tuple[Any, ...]
"""The meaning of a variable in a formula: `("p",)`, `("state", "momentum", 0)`."""

PARAMETER = ("p",)
GRADIENT = ("g",)
TIME = ("t",)
RATE = ("rate",)
WEIGHT_DECAY = ("weight_decay",)
GATE = ("gate",)


def pointwise_formula(method: Method) -> Method:
    """Mark a method of an optimizer that applies primitives to cells and reads no shape. One that
    overrides it is not marked.
    """
    method.is_pointwise_formula = True  # type: ignore[attr-defined]
    return method


def is_pointwise_formula(method: Callable[..., Any]) -> bool:
    """Return True if a method is marked."""
    return getattr(method, "is_pointwise_formula", False)


def moved_average(average: Any, value: Any, decay: Any) -> Any:
    """Return a moving average after a move towards a value."""
    return decay * average + (1.0 - decay) * value


class TracedUpdate:
    """An update whose values are slots, with the attributes and methods of `Update`."""

    def __init__(self, *, is_gated: bool) -> None:
        self._slots: dict[Symbol, Slot] = {}
        self._writes: dict[str, int] = {}
        self._gate = self.slot(*GATE) if is_gated else None
        self.assignments: list[tuple[str, SlotAssignment]] = []
        """The assignments to tensors that are kept between updates, and to the parameter, whose
        name is empty.
        """
        self.averages: list[str] = []
        self.p: Any = self.slot(*PARAMETER)
        self.t: Any = self.slot(*TIME)
        self.g: Any = self.slot(*GRADIENT)
        self.rate: Any = None
        self.decay: Any = None

    def slot(self, *symbol: Any) -> Any:
        """Return the slot of a symbol."""
        if symbol not in self._slots:
            variable = Variable("value", len(self._slots) + 1)
            self._slots[symbol] = Slot(str(symbol[-1]), variable, [])
        return self._slots[symbol]

    def state(self, name: str) -> Any:
        return self.slot("state", name, self._writes.get(name, 0))

    def keep(self, name: str, value: Any) -> Any:
        self.assign(name, gated(self._gate, value, self.state(name)))
        self._writes[name] = self._writes.get(name, 0) + 1
        return self.state(name)

    def average(self, name: str, value: Any, decay: Any) -> Any:
        return self.keep(name, moved_average(self.state(name), value, decay))

    def publish_average(self, name: str) -> None:
        self.averages.append(name)

    def correction(self, decay: float, *, power: float = 1.0) -> Any:
        return self.slot("correction", decay, power)

    def move(self, value: Any) -> None:
        """Assign the parameter."""
        self.assign("", gated(self._gate, value, self.p))

    def assign(self, name: str, value: Any) -> None:
        formula = _without_zeros(formula_of(value))
        symbols = {slot.variable: symbol for symbol, slot in self._slots.items()}
        for variable in variables_in(formula):
            symbol = symbols[variable]
            if symbol[0] == "state" and symbol[2] != self._writes.get(symbol[1], 0):
                raise UsageError(
                    "A formula reads what is kept between updates as it is at its assignment.",
                    found=f"{symbol[1]} before an assignment to it",
                )
        self.assignments.append((name, SlotAssignment(RESULT, BinaryOp.SECOND, False, formula)))

    def formulas(self, name: str) -> list[UpdateFormula]:
        """Return the assignments as operations, in order."""
        symbols = {slot.variable: symbol for symbol, slot in self._slots.items()}
        return [
            _operation(f"{name}_{target or 'step'}", target, assignment.value, symbols)
            for target, assignment in self.assignments
        ]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateFormula:
    """The operation that computes the cells of a tensor.

    Attributes:
        target: The name of a tensor that is kept between updates; empty for the parameter.
        symbols: What its operands stand for.
    """

    target: str
    operation: Operation
    symbols: tuple[Symbol, ...]

    def value(self, operand: Callable[[Symbol], Any]) -> Tensor:
        """Return the cells for the operands that symbols have."""
        found: Tensor = self.operation(*map(operand, self.symbols))
        return found


def _operation(
    name: str, target: str, formula: Formula, symbols: Mapping[Variable, Symbol]
) -> UpdateFormula:
    read = tuple(dict.fromkeys(variables_in(formula)))
    values = operand_variables(len(read))
    renamed = dict(zip(read, values, strict=True))
    value = map_variables(formula, renamed.__getitem__)
    assignment = SlotAssignment(RESULT, BinaryOp.SECOND, False, value)
    code = Code.of((RESULT, *values), assignment)
    operation = Operation(name=name, operands=len(read), logic=".", forward=code)
    return UpdateFormula(target, operation, tuple(symbols[variable] for variable in read))


def _without_zeros(formula: Formula) -> Formula:
    """Fold products with 0 and sums with it, as recorded code does: a decay of 0 forgets NaN."""

    def of_part(part: Application, args: list[Formula]) -> Formula:
        match part.op, args:
            case BinaryOp.MUL, [0.0, _] | [_, 0.0]:
                return 0.0
            case BinaryOp.ADD, [0.0, other]:
                return other
            case ((BinaryOp.ADD | BinaryOp.SUB), [other, 0.0]):
                return other
            case _:
                return Application(part.op, tuple(args), part.like)

    folded: Formula = fold(formula, lambda leaf: leaf, of_part)
    return folded
