"""Recording: inside a function decorated with `@cd`, operators and assignments are noted instead of
computed.

An operator gives an `Application`: no node, no constraints yet. An assignment absorbs it as one
primitive accumulation. Any other use, or a write to one of its operands in between, turns it into
an intermediate tensor whose code stands where the operator was written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import TracebackType
from typing import Any, ParamSpec

from ocannl_core.errors import UsageError
from ocannl_core.ops import BinaryOp, Op, UnaryOp
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.logic import Logic, Pointwise
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.computation import Computation
from ocannl_core.tensor.expression import Expression
from ocannl_core.tensor.operation import Operation, as_tensor, note_accesses
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.specifications import naming
from ocannl_core.tensor.steps import Argument, Assign, Forward, Step, Titled
from ocannl_core.tensor.tensor import (
    Declared,
    GradientOf,
    MergeBuffer,
    Parameter,
    Tensor,
    ancestors,
)

P = ParamSpec("P")


class Application(Expression):
    """An operator applied while recording.

    Attributes:
        operation: What is applied.
        operands: Tensors and merge buffers.
        logic: How axes line up.
        origin: The operator's line.
    """

    __slots__ = ("logic", "operands", "operation", "origin", "place", "recorder", "tensor")

    def __init__(
        self,
        recorder: CodeRecorder,
        operation: Operation,
        operands: tuple[Argument, ...],
        logic: Logic,
        place: _Place,
    ) -> None:
        self.recorder = recorder
        self.operation = operation
        self.operands = operands
        self.logic = logic
        self.origin = Origin(operation.describe(logic), caller_location())
        self.place = place
        self.tensor: Tensor | None = None

    def materialize(self) -> Tensor:
        """Returns the application as an intermediate tensor, computed where the operator was
        written.
        """
        if self.tensor is None:
            session = self.recorder.session
            operands = tuple(as_tensor(operand, session) for operand in self.operands)
            self.tensor = self.operation.tensor(
                operands, self.logic, requires_grad=False, origin=self.origin
            )
            self.place.steps.append(self.recorder.forward_of(self.tensor))
        return self.tensor

    def __repr__(self) -> str:
        return f"{self.operation.name}({', '.join(map(repr, self.operands))})"


@dataclass(slots=True)
class _Place:
    """A position among the recorded steps at which code of an intermediate tensor may be
    inserted.
    """

    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class _Section:
    """Positions under a title."""

    title: str
    places: list[_Place | _Section] = field(default_factory=list)


class CodeRecorder:
    """The assignments of one recorded function so far."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.results: set[Tensor] = set()
        self._open: list[list[_Place | _Section]] = [[]]
        self._pending: dict[Application, None] = {}

    # ----- what operators call --------------------------------------------------------------------

    def apply(self, operation: Operation, operands: tuple[Any, ...], logic: Logic) -> Any:
        """Returns an operator applied to operands; a Python 0 as a coefficient or a summand folds
        at once.
        """
        folded = _fold(operation, operands)
        if folded is not None:
            return folded
        settled = tuple(self._settle(operand) for operand in operands)
        place = _Place()
        self._open[-1].append(place)
        application = Application(self, operation, settled, logic, place)
        self._pending[application] = None
        if operation.primitive is None:
            application.materialize()
        return application

    def assign(self, target: Tensor, value: object, combine: BinaryOp, *, reset: bool) -> None:
        """Records an assignment; absorbs an application that is one primitive."""
        if not target.is_assignable:
            raise UsageError(
                "Declared tensors, parameters, placeholders and gradients can be assigned to.",
                found=repr(target),
                where=str(caller_location() or ""),
                fix='declare a tensor to write to: c = oc.declare("c")',
            )
        origin = Origin(f"assignment to {target.label[0]}", caller_location())
        absorbed = self._absorb(target, value, combine, reset)
        op, args, logic, combine, reset = absorbed or (
            UnaryOp.IDENTITY,
            (self._settle(value),),
            Pointwise(),
            combine,
            reset,
        )
        for arg in args:
            self._read(arg)
        self._label(target, args)
        tensors = [
            arg.tensor if isinstance(arg, MergeBuffer) else arg
            for arg in args
            if isinstance(arg, Expression)
        ]
        with naming(tensors, target):
            self.session.environment.relate(logic, target.terms, [t.terms for t in tensors], origin)
        note_accesses(logic, target, tensors, origin)
        self._before_write(target)
        self.add(Assign(target, combine, reset, op, args, logic, origin))
        if not isinstance(target.definition, Declared):
            self.results.add(target)

    # ----- inside ---------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        self._open[-1].append(_Place([step]))

    def _settle(self, operand: Any) -> Argument:
        """Returns an operand as a tensor, a merge buffer or a number; applications become
        tensors.
        """
        if isinstance(operand, Application):
            return operand.materialize()
        if isinstance(operand, Tensor | MergeBuffer):
            return operand
        if isinstance(operand, Real):
            return float(operand)
        raise UsageError(
            "Assignments take tensors, merge buffers and numbers.",
            found=repr(operand),
            where=str(caller_location() or ""),
        )

    def _absorb(
        self, target: Tensor, value: object, combine: BinaryOp, reset: bool
    ) -> tuple[Op, tuple[Argument, ...], Logic, BinaryOp, bool] | None:
        """Returns an unused application as the primitive of an assignment, or None when it has to
        be a tensor.
        """
        if not isinstance(value, Application) or value.tensor is not None:
            return None
        operation = value.operation
        needed = operation.combine
        plain = combine is BinaryOp.SECOND and not reset
        if operation.primitive is None or not (needed is None or plain or needed is combine):
            return None
        if not isinstance(value.logic, Pointwise) and not all(
            isinstance(arg, Expression) for arg in value.operands
        ):
            return None
        rearranges = needed is not None or reset or not isinstance(value.logic, Pointwise)
        if rearranges and any(operand is target for operand in value.operands):
            return None  # the target's cells would change while they are still to be read
        del self._pending[value]
        if needed is not None and plain:
            combine, reset = needed, True
        return operation.primitive, value.operands, value.logic, combine, reset

    def _read(self, arg: Argument) -> None:
        if isinstance(arg, Tensor) and arg.operands and arg not in self.session.consumed:
            self.add(self.forward_of(arg))

    def forward_of(self, tensor: Tensor) -> Forward:
        """Returns the code of a tensor and of those of its operands that no computation contains
        yet.
        """
        fresh = tuple(t for t in ancestors([tensor]) if t not in self.session.consumed)
        self.session.consumed.update(fresh)
        return Forward(fresh)

    def _before_write(self, target: Tensor) -> None:
        """Fixes the value of applications that read what is about to be written."""
        for application in list(self._pending):
            if any(operand is target for operand in application.operands):
                application.materialize()
            if application.tensor is not None:
                del self._pending[application]

    def _label(self, target: Tensor, args: tuple[Argument, ...]) -> None:
        """Completes the label of a declared tensor with that of what is assigned to it first."""
        if not isinstance(target.definition, Declared) or len(target.label) > 1:
            return
        for arg in args:
            source = (
                arg.definition.tensor
                if isinstance(arg, Tensor) and isinstance(arg.definition, GradientOf)
                else arg
            )
            if isinstance(source, Tensor) and isinstance(source.definition, Parameter | Declared):
                extra = (
                    source.label[1:] if isinstance(source.definition, Declared) else source.label
                )
                target.relabel((*target.label, *extra))
                return

    # ----- sections and the end -------------------------------------------------------------------

    def open_section(self, title: str) -> None:
        section = _Section(title)
        self._open[-1].append(section)
        self._open.append(section.places)

    def close_section(self) -> None:
        self._open.pop()

    def finish(self, name: str) -> Computation:
        """Returns what was recorded."""
        return Computation(_steps(self._open[0]), frozenset(self.results), name)


def _steps(places: Sequence[_Place | _Section]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for place in places:
        if isinstance(place, _Place):
            steps += place.steps
        else:
            steps.append(Titled(place.title, _steps(place.places)))
    return tuple(steps)


def _fold(operation: Operation, operands: tuple[Any, ...]) -> Any:
    """Returns what an operator with a Python 0 is, or None: `0 * x --> 0`, `x + 0 --> x`, `x - 0
    --> x`.
    """
    if len(operands) != 2 or operation.combine is not None:
        return None
    left, right = (isinstance(o, Real) and float(o) == 0.0 for o in operands)
    match operation.primitive:
        case BinaryOp.MUL if left or right:
            return 0.0
        case BinaryOp.ADD if right:
            return operands[0]
        case BinaryOp.ADD if left:
            return operands[1]
        case BinaryOp.SUB if right:
            return operands[0]
        case _:
            return None


def cd(function: Callable[P, None]) -> Callable[P, Computation]:
    """Makes a function that assigns to tensors into one that returns the recorded computation.

        @oc.cd
        def sgd_step(p, *, learning_rate):
            p -= learning_rate * p.grad

    The function runs once, at the call: Python's control flow chooses what is recorded. Called
    inside another recorded function, its assignments are spliced in.

    Raises:
        UsageError: if the function returns something.
    """

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> Computation:
        session = sessions.current()
        if isinstance(session.recorder, CodeRecorder):
            _run(function, *args, **kwargs)
            return Computation((), frozenset(), function.__name__)
        recorder = CodeRecorder(session)
        session.recorder = recorder
        try:
            _run(function, *args, **kwargs)
        finally:
            session.recorder = None
        return recorder.finish(function.__name__)

    return recorded


def _run(function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    result = function(*args, **kwargs)
    if result is not None:
        raise UsageError(
            "A function decorated with @oc.cd returns nothing: what it assigns is the result.",
            found=f"{function.__name__} returned {result!r}",
            fix="assign to a tensor that the caller passes in",
        )


class section:
    """Gives the assignments recorded inside `with oc.section("title"):` a title in printed code."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._recorder: CodeRecorder | None = None

    def __enter__(self) -> None:
        recorder = sessions.current().recorder
        if not isinstance(recorder, CodeRecorder):
            raise UsageError(
                "Sections divide recorded code.",
                found=f"oc.section({self._title!r}) outside a function decorated with @oc.cd",
                where=str(caller_location() or ""),
            )
        self._recorder = recorder
        recorder.open_section(self._title)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._recorder is not None and error is None:
            self._recorder.close_section()
