"""Definitions: the sources of the cells of tensors, and the graph that definitions form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.graphs import reachable
from ocannl_core.base.origin import Location, Origin
from ocannl_core.ir.assignments.nodes import FetchSource
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.shape_terms import Dim
from ocannl_core.shape.translation.logic import Logic, NumbersOfWords

if TYPE_CHECKING:
    from ocannl_core.tensor.custom.op import Apply
    from ocannl_core.tensor.graph.tensor import Tensor
    from ocannl_core.tensor.models.network_blocks import NetworkBlock
    from ocannl_core.tensor.primitives.operation import Operation


class _WithoutOperands:
    """The base of definitions that read no other tensor."""

    __slots__ = ()
    operands: ClassVar[tuple[Tensor, ...]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """The result of an operation on other tensors."""

    operation: Operation
    operands: tuple[Tensor, ...]
    logic: Logic
    capture: Mapping[str, DimRef] = field(default_factory=dict)
    """Names of the logic's specification, and the references to their sizes."""
    like: Tensor | None = None
    """The tensor whose number format the result has; None where it follows from the operands."""


LITERAL = "literal"
"""The label of a literal without a name."""

CAST = "cast"
"""The label of a conversion without a name."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal(_WithoutOperands):
    """An array of the host, copied when the tensor was made, or mapped from a file."""

    array: np.ndarray[Any, Any]
    """The cells in row-major order; converted to the tensor's number format when that is final, or,
    if it is a file's, on the way to a device.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Filled(_WithoutOperands):
    """A fetch that reads no other tensor, created once shapes are closed: it may depend on them."""

    source: Callable[[], FetchSource]
    number: float | None = None
    """The number in every cell, where the program states it."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameter(_WithoutOperands):
    """An initializer, run once in a routine of its own, and updates after that."""

    initializer: Tensor
    code: Callable[[Tensor], Any]
    """Return the computation of the first value of a parameter with this definition."""
    scopes: tuple[NetworkBlock[Any], ...] = ()
    """The blocks that it was made in, outermost first."""
    is_unstated_number: bool = False
    """True if it starts as one number, and no axes were stated."""


@dataclass(frozen=True, slots=True, eq=False)
class Placeholder(_WithoutOperands):
    """Data of the host, stored between calls: `ctx[x] = array`."""


@dataclass(frozen=True, slots=True, eq=False)
class Declared(_WithoutOperands):
    """State written by recorded assignments; zero at first."""

    scopes: tuple[NetworkBlock[Any], ...] = ()
    """The blocks that a statistic was made in, outermost first."""
    initialization: Callable[[Any], Any] | None = None
    """The function that returns the code of a statistic's first value; None for other state."""

    @property
    def is_statistic(self) -> bool:
        """True for state of a model that training updates and evaluation reads: code that only
        reads it runs after other code has assigned it.
        """
        return self.initialization is not None


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """Code that follows each backpropagation through a tensor."""

    steps: tuple[Any, ...]
    """The recorded code, of the type that `computation_steps` defines on top of tensors."""
    targets: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GradientOf(_WithoutOperands):
    """The gradient of another tensor, computed by backpropagation."""

    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ResultOf:
    """A user-written operation, which computes all its outputs at once."""

    application: Apply
    """The application of the operation."""
    updated: Tensor | None = None
    """The parameter or declared tensor whose memory this output takes over."""

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The inputs of the operation."""
        return tuple(self.application.inputs)


@dataclass(slots=True, eq=False)
class Loop:
    """A loop over a time axis, of which one step was traced."""

    name: str
    index: StaticIndex
    """The position of a step on the time axis."""
    is_reversed: bool
    """True if the steps run from the last position to the first."""
    keep: str
    """The values of a step that its gradient reads from memory and does not recompute: `"carry"`,
    `"reductions"` or `"all"`.
    """
    outer: Loop | None
    """The loop whose body contains this one; None outside of any."""
    origin: Origin
    length: int | None = None
    time: Dim | None = None
    """The size of the time axis."""
    over: tuple[Tensor, ...] = ()
    """The tensors with a time axis that the steps read."""
    entries: tuple[Tensor, ...] = ()
    """The entries of `over` for a step."""
    initial: tuple[Tensor, ...] = ()
    """The carry before the first step."""
    before: tuple[Tensor, ...] = ()
    """The carry that a step receives."""
    after: tuple[Tensor, ...] = ()
    """The carry that the step returns; as many tensors as `before`."""
    final: tuple[Tensor, ...] = ()
    """The carry after the last step; its tensors are results."""
    items: tuple[Tensor, ...] = ()
    """The values that a step returns beside the carry."""
    stacked: tuple[Tensor, ...] = ()
    """The items of all steps along the time axis, also results."""
    body: tuple[Tensor, ...] = ()
    """The tensors that a step computes, oldest first."""
    inputs: tuple[Tensor, ...] = ()
    """Tensors from outside that the steps read."""
    positions: set[Tensor] = field(default_factory=set)
    """Tensors that hold the position of the step."""
    layers: dict[Tensor, Tensor] | None = None
    """The parameters with an entry for each step; None where all steps share parameters."""

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The results of the loop."""
        return (*self.final, *self.stacked)

    @property
    def kept_values(self) -> tuple[Tensor, ...]:
        """The tensors of a step whose values gradients read from memory where they need them, as
        `keep` says, in the order of the step; without the carry, which they read in any case.
        """
        given = {*self.entries, *self.positions}
        return tuple(
            each for each in self.body if each not in given and self._keeps(each.definition)
        )

    def _keeps(self, definition: Definition) -> bool:
        match definition:
            case Applied(operation):
                reduces = operation.forward.accumulation is not None
            case ResultOf():
                reduces = True
            case _:
                return False
        return self.keep == "all" or (self.keep == "reductions" and reduces)

    def is_oldest(self, result: Tensor, among: AbstractSet[Tensor]) -> bool:
        """Return True for the oldest of the results in a set. Gradients pass through the loop
        there, once those of all results are complete: gradients add younger results.
        """
        return not any(each.id < result.id for each in self.results if each in among)

    def contains(self, other: Loop | None) -> bool:
        """Return True if another loop is this one, or is inside its body."""
        while other is not None and other is not self:
            other = other.outer
        return other is self


@dataclass(frozen=True, slots=True, eq=False)
class CarriedValue(_WithoutOperands):
    """A value that a step of a loop receives from the step before."""

    loop: Loop


@dataclass(frozen=True, slots=True, eq=False)
class ResultOfLoop:
    """A result of a loop: a carry after the last step, or values of all steps."""

    loop: Loop

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that the steps read."""
        return self.loop.inputs


Definition = (
    Applied
    | Literal
    | Filled
    | Parameter
    | Placeholder
    | Declared
    | GradientOf
    | ResultOf
    | CarriedValue
    | ResultOfLoop
)
"""The closed union of definitions."""


def kind_of(definition: Definition) -> str:
    """Return the noun, in messages, for a tensor with a definition."""
    match definition:
        case Parameter():
            return "parameter"
        case Placeholder():
            return "placeholder"
        case GradientOf():
            return "gradient"
        case Literal():
            return "literal"
        case CarriedValue():
            return "carry"
        case Declared(is_statistic=True):
            return "statistic"
        case Applied() | Filled() | Declared() | ResultOf() | ResultOfLoop():
            return "tensor"
        case _:
            assert_never(definition)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One run of a function decorated with `@cd`; compared by identity."""

    name: str
    location: Location | None

    def __str__(self) -> str:
        return f"{self.name}, at {self.location}" if self.location else self.name


def ancestors(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors and their dependencies, oldest first, without initializers of parameters."""
    return sorted(reachable(tensors, attrgetter("definition.operands")), key=attrgetter("id"))


def is_unpacked(definition: Definition) -> bool:
    """Return True if a tensor holds numbers unpacked from random words."""
    return isinstance(definition, Applied) and (
        definition.operation.primitive is UnaryOp.UNIFORM
        or isinstance(definition.logic, NumbersOfWords)
    )


def check_label(*parts: object) -> None:
    """Raise UsageError unless every part of a label is a text, or is not given."""
    for part in parts:
        if part is not None and not isinstance(part, str):
            raise UsageError.at_caller(
                "A label is a text: printed code and messages name tensors by it.",
                found=f"label={part!r}",
                fix='label="x"',
            )


def has_name(definition: Definition, label: tuple[str, ...]) -> bool:
    """Return True if a label is a name, beyond the operation, the number or the literal itself."""
    match definition:
        case Applied(operation):
            return label not in ((operation.name,), (CAST,))
        case Literal():
            return label != (LITERAL,)
        case Filled():
            return label[0].isidentifier()
        case _:
            return True
