"""Operands of operations: constants, conversion of numbers to tensors, and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.assignments.nodes import Constant, ConstantBits, FetchSource, RangeOverOffsets
from ocannl_core.ir.host_arrays import check_number, plain_number
from ocannl_core.ir.numbers.dtypes import DType, uint4x32
from ocannl_core.ir.numbers.primitives import LOGICAL, Op
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.shape_terms import Shape, closed_shape
from ocannl_core.shape.translation.logic import Adjoint, Logic, Pointwise
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.assignment import LeftHandSide
from ocannl_core.tensor.graph.definitions import Filled, Literal, Recording
from ocannl_core.tensor.graph.expression import Expression, no_operand, suggest_operand
from ocannl_core.tensor.graph.margins import window_accesses
from ocannl_core.tensor.graph.precision import Precision, format_for_numbers, number_format
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.slots import Slot, SlotApplication
from ocannl_core.tensor.graph.tensor import MergeBuffer, Tensor
from ocannl_core.tensor.primitives.specifications import composite_name


def fill_tensor(
    session: Session,
    source: Callable[[], FetchSource],
    shape: Shape,
    dtype: DType | Precision,
    label: str,
    number: float | None = None,
) -> Tensor:
    """Return a tensor filled by a fetch, which `source` creates once shapes are closed."""
    origin = Origin(label, caller_location())
    if isinstance(dtype, Precision):
        dtype.check_computable(origin)
    session.environment.leaf(shape, origin)
    return Tensor(session, Filled(source, number), shape, dtype, (label,), origin)


def word_constant(session: Session, source: Callable[[], int], label: str) -> Tensor:
    """Return one 128-bit word whose low half is an integer, computed once shapes are closed."""
    return fill_tensor(session, lambda: ConstantBits(source()), closed_shape(), uint4x32, label)


def constant(
    value: int | float,
    session: Session,
    *,
    dtype: DType | Precision | None = None,
    label: str | None = None,
) -> Tensor:
    """Return a constant of one cell, which is printed as a number and never stored."""
    return fill_tensor(
        session,
        lambda: Constant(value),
        closed_shape(),
        dtype or Precision.by_default(session.default_dtype),
        label or f"{value:g}",
        value,
    )


def as_tensor(value: Any, session: Session, dtype: DType | Precision | None = None) -> Tensor:
    """Return a tensor for an operand; a number becomes a constant of the given format."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Real):
        return constant(plain_number(value, caller_location() or ""), session, dtype=dtype)
    if session.recorder is not None and (made := session.recorder.computed(value)) is not None:
        return made
    if isinstance(value, Slot | SlotApplication):
        raise UsageError.at_caller(
            "The code of an operation is made of its slots, primitives and numbers.",
            found=f"{value!r} in a function of tensors",
            fix="an assignment with logic= sums up: v[oc.neutral] += v1",
        )
    raise UsageError.at_caller(
        "A merge buffer, or an operation whose reduction an assignment states, is assigned as it "
        "is.",
        found=repr(value),
        fix="inside a function decorated with @oc.cd, write p.grad += p.grad.merge or "
        "c[oc.neutral] += oc.multiply(a, b, logic=...)",
    )


def as_tensors(values: Sequence[Any], session: Session, op: Op | None) -> tuple[Tensor, ...]:
    """Return tensors for operands.

    A number takes the format of the other operands, unless it is a float and they are integers.
    """
    given = [value for value in values if isinstance(value, Tensor)]
    if len(given) == len(values):
        return tuple(given)
    if session.recorder is not None:
        computed = [session.recorder.computed(value) for value in values]
        pairs = zip(values, computed, strict=True)
        values = [value if made is None else made for value, made in pairs]
    tensors = [value if isinstance(value, Tensor) else None for value in values]
    beside = format_for_numbers(op, tensors) or session.default_dtype

    def precision(value: Real) -> Precision:
        where = caller_location() or ""
        number = plain_number(value, where)
        if beside.is_float:
            return Precision.by_default(beside)
        dtype = number_format(op, number, beside) if beside.holds_integers else None
        if dtype is None:
            return Precision.by_default(session.default_dtype)
        if op not in LOGICAL:
            check_number(number, dtype, where)
        return Precision.by_default(dtype)

    return tuple(
        as_tensor(value, session, precision(value) if isinstance(value, Real) else None)
        for value in values
    )


def offsets_of(tensor: Tensor, origin: Origin) -> Tensor:
    """Return a tensor of offsets in place of a literal 0, 1, 2, ...; others as they are.

    Comparisons with computed positions become reads at these.
    """
    definition = tensor.definition
    if not isinstance(definition, Literal) or tensor.requires_grad or tensor.is_overwritten:
        return tensor
    cells = definition.array
    if isinstance(cells, np.memmap) or cells.size < 2 or not tensor.terms.is_closed:
        return tensor
    flat = cells.reshape(-1)
    if flat[0] != 0 or flat[-1] != cells.size - 1:
        return tensor
    if not np.array_equal(np.asarray(flat, np.float64), np.arange(cells.size)):
        return tensor
    if tensor.fixed_by is None:
        tensor.session.undo_log.set(tensor, "fixed_by", origin)
    shape, precision, name = tensor.terms, tensor.precision, tensor.label[0]
    return fill_tensor(tensor.session, RangeOverOffsets, shape, precision, name)


def exact_number(value: Real) -> int | float:
    """Return a number of an assignment: a float, or an integer that no float equals."""
    number = plain_number(value, caller_location() or "")
    return number if isinstance(number, int) and float(number) != number else float(number)


def assignment_operands(
    args: Sequence[Any], session: Session
) -> tuple[Tensor | MergeBuffer | float, ...]:
    """Return the operands of a primitive for an assignment; numbers stay numbers."""
    return tuple(
        exact_number(arg)
        if isinstance(arg, Real)
        else arg
        if isinstance(arg, MergeBuffer)
        else as_tensor(arg, session)
        for arg in args
    )


def session_of(args: tuple[Any, ...], name: str) -> Session:
    """Return the session of the operands of an operation; the current one for numbers only."""
    found: Session | None = None
    for arg in args:
        tensor = arg.tensor if isinstance(arg, MergeBuffer) else arg
        if isinstance(tensor, Tensor):
            if tensor.session is sessions.RETRACTED:
                raise sessions.of_failed_application(repr(tensor))
            if found is not None and tensor.session is not found:
                raise sessions.of_different_sessions(f"{tensor!r} as an operand of {name}")
            found = tensor.session
    return found or sessions.current()


def check_operands(args: Sequence[Any], count: int, name: str) -> bool:
    """Return True if a slot is among expressions and numbers.

    Raises:
        UsageError: unless `args` are `count` of these.
    """
    if len(args) != count:
        raise UsageError.at_caller(
            f"The operation {name} takes {count} operand{'s' if count != 1 else ''}.",
            found=str(len(args)),
        )
    has_slot = False
    for arg in args:
        if isinstance(arg, LeftHandSide):
            raise UsageError.at_caller(
                "A left-hand side is assigned to, not read.",
                found=f"{arg!r} as an operand of {composite_name() or name}",
                fix=f"{arg.owner!r} without brackets has all cells",
            )
        if not isinstance(arg, (Expression, Real)):
            raise no_operand(arg, f"as an operand of {composite_name() or name}")
        has_slot |= isinstance(arg, (Slot, SlotApplication))
    return has_slot


def require_operand(value: object, name: str) -> Tensor:
    """Return the tensor of an operand of a function with a name; refuse anything else."""
    recorder = sessions.current().recorder
    made = value if recorder is None or isinstance(value, Tensor) else recorder.computed(value)
    if not isinstance(made, Tensor):
        raise UsageError.at_caller(
            f"The operands of {name} are tensors.",
            found=f"{type(value).__name__} as an operand of {name}",
            fix=suggest_operand(value),
        )
    return made


def check_recorded_here(tensors: Sequence[Tensor], recording: Recording | None) -> None:
    """Refuse tensors of other recorded code, and of a loop's step that is not being traced."""
    for tensor in tensors:
        if tensor.loop is not None and not tensor.loop.contains(tensor.session.loop):
            raise UsageError.at_caller(
                "A tensor of a step of a loop has a value for each step: it is no part of code "
                "outside.",
                found=f"{tensor!r}, made in the body of {tensor.loop.name}",
                fix="return it from the body: as the carry, for its value after the last step, or "
                "beside the carry, for those of all steps",
            )
        if tensor.recording is not None and tensor.recording is not recording:
            raise UsageError.at_caller(
                "A tensor made in recorded code has its value there: it is no part of other code.",
                found=f"{tensor!r}, recorded in {tensor.recording}",
                fix='assign it to a tensor declared outside of that function, c = oc.declare("c"), '
                "or make the tensor outside",
            )


def note_accesses(
    logic: Logic,
    result: Tensor,
    operands: Sequence[Tensor],
    origin: Origin,
    capture: Mapping[str, DimRef] | None = None,
) -> None:
    """Record with each tensor the padded windows through which an operation accesses it."""
    if isinstance(logic, Pointwise):
        return
    tensors = (result, *operands)
    roles, shapes = tuple(range(len(tensors))), tuple(each.terms for each in tensors)
    if isinstance(logic, Adjoint):
        roles, shapes, logic = (logic.target, *logic.sources), logic.shapes, logic.logic
    for access in window_accesses(logic, shapes[0], shapes[1:], origin, capture or {}):
        accessed = 0 if access.position is None else access.position + 1
        for tensor in (each for each, role in zip(tensors, roles, strict=True) if role == accessed):
            if tensor.dtype.is_packed:
                raise UsageError(
                    "Windows that reach beyond an axis read cells with margins, which those of 4 "
                    "bits have not.",
                    found=f"{tensor!r} of {tensor.dtype}",
                    where=str(origin),
                    fix=f'convert it: oc.cast(x, "{tensor.dtype.unpacked}")',
                )
            tensor.add_access(access)
