"""Report of the number formats of a program, with the source of each."""

from __future__ import annotations

from pathlib import Path

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.tensor.computations.computation import Computation
from ocannl_core.tensor.computations.resolve import mentioned_tensors
from ocannl_core.tensor.graph.definitions import Applied, GradientOf, ancestors
from ocannl_core.tensor.graph.precision import Why
from ocannl_core.tensor.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class PrecisionRow:
    """One tensor of a report."""

    name: str
    """The tensor's label."""
    dtype: DType
    """Its number format."""
    why: Why
    """The source of the format."""
    reason: str
    """The source as text: with the operands, or the operation and its line."""


@dataclass(frozen=True, slots=True)
class PrecisionReport:
    """The number formats of a program, oldest tensor first."""

    rows: tuple[PrecisionRow, ...]

    def __str__(self) -> str:
        names = max((len(row.name) for row in self.rows), default=0)
        formats = max((len(row.dtype.name) for row in self.rows), default=0)
        return "\n".join(
            f"{row.name:<{names}}  {row.dtype.name:<{formats}}  {row.reason}" for row in self.rows
        )


def precision_report(subject: Tensor | Computation) -> PrecisionReport:
    """Return the number formats of a tensor and all its dependencies, or of all tensors of a
    computation. The report decides no format.

    Gradients have the formats of their tensors, and no rows of their own.

    Raises:
        UsageError: for anything else.
    """
    if not isinstance(subject, Tensor | Computation):
        raise UsageError.at_caller(
            "Tensors and computations have number formats.",
            found=repr(subject),
            fix="oc.precision_report(loss)",
        )
    found = [subject] if isinstance(subject, Tensor) else list(mentioned_tensors(subject.steps))
    tensors = ancestors(found)
    return PrecisionReport(
        tuple(
            PrecisionRow(_name(t), t.dtype, t.precision.why, _reason(t))
            for t in tensors
            if not isinstance(t.definition, GradientOf)
        )
    )


def _name(tensor: Tensor) -> str:
    return "_".join(tensor.label) or f"#{tensor.id}"


def _reason(tensor: Tensor) -> str:
    precision = tensor.precision
    definition = tensor.definition
    if isinstance(definition, Applied) and definition.like is not None:
        return f"that of {_name(definition.like)}"
    match precision.why:
        case Why.STATED:
            return f"stated{_place(tensor.origin)}"
        case Why.STORED if not precision.positions:
            return "the session's param_dtype"
        case Why.USE:
            origin = precision.origin or tensor.origin
            return f"from its use in {origin.operation}{_place(origin)}"
        case Why.DEFAULT:
            return "default"
        case Why.OPERANDS if not precision.positions or not isinstance(tensor.definition, Applied):
            return "default: no operand decides"
        case Why.OPERANDS | Why.STORED:
            operands = tensor.operands
            names = dict.fromkeys(_name(operands[position]) for position in precision.positions)
            return f"from {', '.join(names)}"


def _place(origin: Origin) -> str:
    location = origin.location
    return f", {Path(location.file).name}:{location.line}" if location else ""
