"""Recording: inside a function decorated with `@cd`, assignments are noted instead of computed.

Operators make tensors as they do elsewhere, without gradients. Each holds its place in the code:
what is used gets computed where it was written, so later writes to its operands do not change it.
Resolving the code turns a tensor that one assignment merely copies into that assignment (see
`resolve`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from types import TracebackType
from typing import ParamSpec

from ocannl_core.errors import UsageError
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.logic import Logic, Pointwise
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.computation import Computation
from ocannl_core.tensor.expression import Expression
from ocannl_core.tensor.operation import Operation, note_accesses
from ocannl_core.tensor.pointwise import identity
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.specifications import naming
from ocannl_core.tensor.steps import Argument, Assign, Forward, Step, Titled
from ocannl_core.tensor.tensor import (
    Applied,
    Declared,
    Filled,
    GradientOf,
    MergeBuffer,
    Parameter,
    ResultOf,
    Tensor,
    ancestors,
)

P = ParamSpec("P")


class Unreduced(Expression):
    """A primitive with a logic of its own: the assignment that it stands in says how it reduces.

    Attributes:
        operation: What is applied.
        operands: The tensors.
        logic: How axes line up.
        writes: How many assignments had been recorded before it.
    """

    __slots__ = ("logic", "operands", "operation", "writes")

    def __init__(
        self, operation: Operation, operands: tuple[Tensor, ...], logic: Logic, writes: int
    ) -> None:
        self.operation = operation
        self.operands = operands
        self.logic = logic
        self.writes = writes

    def __repr__(self) -> str:
        return f"{self.operation.describe(self.logic)} of {', '.join(map(repr, self.operands))}"


@dataclass(slots=True)
class _Section:
    """Entries under a title."""

    title: str
    entries: list[_Entry] = field(default_factory=list)


_Entry = Tensor | Assign | _Section
"""What was written: a tensor made, an assignment, a section."""


class CodeRecorder:
    """The code of one recorded function so far."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.results: set[Tensor] = set()
        self._entries: list[list[_Entry]] = [[]]
        self._made: set[Tensor] = set()
        self._named: set[Tensor] = set()
        self._writes: dict[Tensor, int] = {}

    # ----- what operators call --------------------------------------------------------------------

    def made(self, tensor: Tensor, *, is_named: bool) -> None:
        """Notes that an operator made a tensor here."""
        self._entries[-1].append(tensor)
        self._made.add(tensor)
        if is_named:
            self._named.add(tensor)

    def unreduced(
        self, operation: Operation, operands: tuple[Tensor, ...], logic: Logic
    ) -> Unreduced:
        """Returns a primitive with a logic of its own, for an assignment to absorb."""
        return Unreduced(operation, operands, logic, len(self._writes))

    def assign(self, target: Tensor, value: object, combine: BinaryOp, *, reset: bool) -> None:
        """Notes an assignment."""
        if not target.is_assignable:
            raise UsageError(
                "Declared tensors, parameters, placeholders and gradients can be assigned to.",
                found=repr(target),
                where=str(caller_location() or ""),
                fix='declare a tensor to write to: c = oc.declare("c")',
            )
        origin = Origin(f"assignment to {target.label[0]}", caller_location())
        if isinstance(value, Unreduced):
            step = self._reduction(target, value, combine, reset, origin)
        else:
            argument = self._settle(target, value, reset)
            step = Assign(
                target, combine, reset, UnaryOp.IDENTITY, (argument,), Pointwise(), origin
            )
        self._label(target, step.args)
        operands = _tensors(step)
        with naming(operands, target):
            self.session.environment.relate(
                step.logic, target.terms, [operand.terms for operand in operands], origin
            )
        note_accesses(step.logic, target, operands, origin)
        self._entries[-1].append(step)
        self._writes[target] = len(self._writes) + 1
        if not isinstance(target.definition, Declared):
            self.results.add(target)

    # ----- inside ---------------------------------------------------------------------------------

    def _settle(self, target: Tensor, value: object, reset: bool) -> Argument:
        """Returns what an assignment reads. A reset must not clear what is still to be read."""
        if isinstance(value, Tensor):
            copied: Tensor = identity(value) if reset and value is target else value
            return copied
        if isinstance(value, MergeBuffer):
            return value
        if isinstance(value, Real):
            return float(value)
        raise UsageError(
            "Assignments take tensors, merge buffers and numbers.",
            found=repr(value),
            where=str(caller_location() or ""),
        )

    def _reduction(
        self, target: Tensor, value: Unreduced, combine: BinaryOp, reset: bool, origin: Origin
    ) -> Assign:
        """Returns the assignment that reduces as it accumulates."""
        stale = [t for t in value.operands if self._writes.get(t, 0) > value.writes]
        if stale or any(operand is target for operand in value.operands):
            raise UsageError(
                "An operation whose reduction an assignment states is read by that assignment.",
                found=f"{value!r}, of which an operand is written before or by the assignment",
                where=str(origin),
                fix="write it in the assignment itself, and assign to another tensor",
            )
        if combine is BinaryOp.SECOND:
            raise UsageError(
                "A logic of its own leaves the reduction to the assignment, which must state one.",
                found=f"c[:] = {value!r}",
                where=str(origin),
                fix="write c[oc.neutral] += ..., c[oc.neutral, oc.maximum] = ..., or use oc.einsum",
            )
        primitive = value.operation.primitive
        assert primitive is not None
        return Assign(target, combine, reset, primitive, value.operands, value.logic, origin)

    def _label(self, target: Tensor, args: tuple[Argument, ...]) -> None:
        """Completes the label of a declared tensor with that of what is assigned to it first."""
        if not isinstance(target.definition, Declared) or len(target.label) > 1:
            return
        pending = [arg for arg in args if isinstance(arg, Tensor)]
        while pending:
            source = pending.pop(0)
            if isinstance(source.definition, GradientOf):
                source = source.definition.tensor
            if isinstance(source.definition, Parameter | Declared) and source is not target:
                is_declared = isinstance(source.definition, Declared)
                target.relabel((*target.label, *source.label[1 if is_declared else 0 :]))
                return
            if source in self._made:
                pending += source.operands

    # ----- sections and the end -------------------------------------------------------------------

    def open_section(self, title: str) -> None:
        section = _Section(title)
        self._entries[-1].append(section)
        self._entries.append(section.entries)

    def close_section(self) -> None:
        self._entries.pop()

    def finish(self, name: str) -> Computation:
        """Returns what was recorded: assignments, and the code of the tensors that they need."""
        assigned = [t for step in _assigns(self._entries[0]) for t in _tensors(step)]
        updates = [t for t in self._made if _changes_state(t)]
        assigned += updates
        needed = set(ancestors(assigned)) if assigned else set()
        steps = _Steps(self.session, self._made, needed)
        return Computation(
            steps.of(self._entries[0]),
            frozenset(self.results),
            name,
            frozenset(self._made - self._named) - frozenset(updates),
        )


@dataclass(slots=True)
class _Steps:
    """Turns entries into steps: tensors where they were made, others before their first use."""

    session: Session
    made: set[Tensor]
    needed: set[Tensor]
    written: set[Tensor] = field(default_factory=set)

    def of(self, entries: Sequence[_Entry]) -> tuple[Step, ...]:
        steps: list[Step] = []
        for entry in entries:
            match entry:
                case Tensor():
                    if entry in self.needed:
                        steps += self.outside(entry.operands)
                        steps.append(Forward((entry,)))
                case Assign():
                    steps += self.outside(_tensors(entry))
                    steps.append(entry)
                case _Section(title, inner):
                    steps.append(Titled(title, self.of(inner)))
        return tuple(steps)

    def outside(self, tensors: Sequence[Tensor]) -> list[Step]:
        """Returns the code of what was made outside and is contained in no computation yet."""
        fresh = [
            t
            for t in ancestors(list(tensors))
            if isinstance(t.definition, Applied | Filled | ResultOf)
            and t not in self.made
            and t not in self.written
            and t not in self.session.consumed
        ]
        self.written.update(fresh)
        return [Forward(tuple(fresh))] if fresh else []


def _changes_state(tensor: Tensor) -> bool:
    definition = tensor.definition
    return isinstance(definition, ResultOf) and definition.application.changes_state


def _assigns(entries: Sequence[_Entry]) -> list[Assign]:
    found: list[Assign] = []
    for entry in entries:
        if isinstance(entry, Assign):
            found.append(entry)
        elif isinstance(entry, _Section):
            found += _assigns(entry.entries)
    return found


def _tensors(step: Assign) -> list[Tensor]:
    """Returns the tensors that an assignment reads."""
    return [
        arg.tensor if isinstance(arg, MergeBuffer) else arg
        for arg in step.args
        if isinstance(arg, Tensor | MergeBuffer)
    ]


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
