"""Recording: a function decorated with `@cd` records assignments instead of computing them.

Operators create tensors as elsewhere, without gradients. A tensor of recorded code is computed at
the place of its expression if it is used, so later writes to its operands do not change it. A
tensor that one assignment merely copies is computed by that assignment (see `eliminate_copies`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from numbers import Real
from types import TracebackType
from typing import Any, ParamSpec

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin, caller_location, returns_of
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.shape.language.subscripts import Keys
from ocannl_core.shape.translation.logic import (
    Compose,
    ComposeAccumulate,
    Logic,
    PlaceRows,
    Pointwise,
    SliceUpdate,
)
from ocannl_core.tensor.computations import computation_steps as code
from ocannl_core.tensor.computations.computation import Computation
from ocannl_core.tensor.graph import definitions, precision
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.assignment import assigned_in_step
from ocannl_core.tensor.graph.expression import Expression
from ocannl_core.tensor.graph.index_maps import IndexMaps
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import MergeBuffer, Tensor
from ocannl_core.tensor.primitives.operands import (
    as_tensor,
    check_recorded_here,
    exact_number,
    note_accesses,
)
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.pointwise_operations import identity
from ocannl_core.tensor.primitives.specifications import describe_operands

P = ParamSpec("P")


@dataclass(frozen=True, slots=True, eq=False)
class RecordedPrimitive(Expression):
    """A primitive with a logic of its own, whose assignment states the reduction.

    `writes` counts the assignments and splices recorded before it.
    """

    operation: Operation
    operands: tuple[code.Argument, ...]
    logic: Logic | IndexMaps
    writes: int
    recording: definitions.Recording

    def __repr__(self) -> str:
        return f"{self.operation.describe(self.logic)} of {', '.join(map(repr, self.operands))}"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the tensor that the primitive makes as an operand."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(as_tensor(self, sessions.current()), name)

    def __getitem__(self, keys: Any) -> Any:
        return as_tensor(self, sessions.current())[keys]


@dataclass(slots=True)
class _Section:
    """Entries under a title."""

    title: str
    entries: list[_Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InPlaceUpdate:
    """An in-place operation on a part of a tensor, before Python assigns its result."""

    part: Tensor
    """The slice, or the rows selected by positions."""
    combine: BinaryOp
    value: object
    writes: int
    """The number of assignments and splices recorded before it."""


_Entry = Tensor | _Section | code.Step
"""An entry of recorded code: a new tensor, a section, an assignment or other code."""


class CodeRecorder:
    """The code of one recorded function so far."""

    def __init__(self, session: Session, recording: definitions.Recording) -> None:
        self.session = session
        self.recording = recording
        self.results: set[Tensor] = set()
        self._entries: list[list[_Entry]] = [[]]
        self._made: set[Tensor] = set()
        self._declared: set[Tensor] = set()
        self._named: set[Tensor] = set()
        self._writes: dict[Tensor, int] = {}
        """The time of the last assignment to each tensor, counted in assignments and splices."""
        self._spliced = 0
        self._now = 0
        self._updates: dict[Tensor, InPlaceUpdate] = {}
        self._computed: dict[RecordedPrimitive, Tensor] = {}

    def add_tensor(self, tensor: Tensor, *, is_named: bool) -> None:
        """Record a tensor created by an operator at this place."""
        tensor.recording = self.recording
        undo_log = self.session.undo_log
        undo_log.append(self._entries[-1], tensor)
        undo_log.add(self._made, tensor)
        if is_named:
            undo_log.add(self._named, tensor)

    def add_declaration(self, tensor: Tensor) -> None:
        """Record a tensor declared here: it is kept only if it is read before it is written."""
        self.session.undo_log.add(self._declared, tensor)

    def splice(self, steps: tuple[code.Step, ...], results: frozenset[Tensor]) -> None:
        """Record steps built elsewhere, such as the forward code of a tensor."""
        undo_log = self.session.undo_log
        undo_log.append(self._entries[-1], *steps)
        for each in results:
            undo_log.add(self.results, each)
        undo_log.set(self, "_now", self._now + 1)
        undo_log.set(self, "_spliced", self._now)

    def record_primitive(
        self, operation: Operation, operands: tuple[code.Argument, ...], logic: Logic | IndexMaps
    ) -> RecordedPrimitive:
        """Return a primitive with a logic of its own, for an assignment to reduce."""
        return RecordedPrimitive(operation, operands, logic, self._now, self.recording)

    def computed(self, value: object) -> Tensor | None:
        """Return the tensor of a primitive with a logic of its own that is read, not assigned;
        None for anything else, or if it reads a merge buffer.
        """
        if not isinstance(value, RecordedPrimitive) or isinstance(value.logic, IndexMaps):
            return None
        operands = tuple(each for each in value.operands if isinstance(each, Tensor))
        if len(operands) < len(value.operands):
            return None
        made = self._computed.get(value)
        if made is None:
            self._check_current(value, operands, caller_location())
            made = value.operation.tensor(operands, value.logic)
            if self.session.recorder is self:  # else a step of a loop has made it for itself
                self.session.undo_log.put(self._computed, value, made)
        return made

    def note_update(self, result: Tensor, part: Tensor, combine: BinaryOp, value: object) -> None:
        """Note that an in-place operator made a tensor from a part of another one.

        In `c[2:5] += e` and `c[ids] += e`, Python assigns the tensor to the part next, and that
        assignment accumulates in place.
        """
        undo_log = self.session.undo_log
        undo_log.put(self._updates, result, InPlaceUpdate(part, combine, value, self._now))

    def update_of(self, result: object) -> InPlaceUpdate | None:
        """Return the update that computed a tensor, if nothing was recorded since, or None."""
        update = self._updates.get(result) if isinstance(result, Tensor) else None
        return update if update is not None and update.writes == self._now else None

    def assign(
        self, target: Tensor, value: object, combine: BinaryOp, *, reset: bool, keys: Keys = ()
    ) -> None:
        """Record an assignment to a tensor, or to the cells that keys address."""
        self._check_target(target)
        origin = _assignment_origin(target, "a slice of " if keys else "")
        if isinstance(value, Tensor) and combine is BinaryOp.SECOND and keys:
            value, combine = self._in_place(target, value, keys)
        if isinstance(value, RecordedPrimitive):
            step = self._reduction(target, value, combine, reset, origin, keys)
        else:
            argument = self._settle(target, value, must_copy=reset or bool(keys))
            step = code.Assign(
                target, combine, reset, UnaryOp.IDENTITY, (argument,), Pointwise(), origin
            )
        self._add_step(_at_keys(step, keys) if keys else step)

    def assign_rows(
        self, target: Tensor, positions: Tensor, axis: int, value: object, combine: BinaryOp
    ) -> None:
        """Record an assignment at computed positions along an axis."""
        self._check_target(target)
        argument = (
            as_tensor(value, self.session, target.dtype) if isinstance(value, Real) else value
        )
        if not isinstance(argument, Tensor):
            raise UsageError.at_caller(
                "An assignment at positions takes a tensor or a number.",
                found=repr(value),
                fix="compute it first: t = oc.primitives.identity(...), then c[ids] = t",
            )
        if argument is target:
            argument = identity(argument)
        args, logic = (argument, positions), PlaceRows(axis)
        origin = _assignment_origin(target)
        self._add_step(code.Assign(target, combine, False, BinaryOp.FIRST, args, logic, origin))

    def _check_target(self, target: Tensor) -> None:
        if not target.is_assignable:
            raise UsageError.at_caller(
                "Declared tensors, parameters, placeholders and gradients can be assigned to.",
                found=repr(target),
                fix='declare a tensor to write to: c = oc.declare("c")',
            )
        if target.session is not self.session:
            raise sessions.of_different_sessions(f"{target!r} of another session assigned to")

    def _add_step(self, step: code.Assign) -> None:
        target, origin = step.target, step.origin
        operands = code.operand_tensors(step)
        self._label(target, operands)
        check_recorded_here(operands, self.recording)
        if not isinstance(step.logic, IndexMaps):
            with describe_operands(operands, target):
                self.session.environment.relate(
                    step.logic, target.terms, [operand.terms for operand in operands], origin
                )
            note_accesses(step.logic, target, operands, origin)
        self._note_formats(step, operands)
        undo_log = self.session.undo_log
        undo_log.append(self._entries[-1], step)
        undo_log.set(self, "_now", self._now + 1)
        undo_log.put(self._writes, target, self._now)
        if not isinstance(target.definition, definitions.Declared):
            undo_log.add(self.results, target)

    def _in_place(self, target: Tensor, value: Tensor, keys: Keys) -> tuple[object, BinaryOp]:
        """Return the right-hand side and the accumulation of `c[keys] += e`, of which Python passes
        the value that `c[keys] + e` would have.
        """
        update = self.update_of(value)
        if update is not None:
            source, own = update.part.sliced_from or (None, ())
            if source is target and own == keys:
                return update.value, update.combine
        return value, BinaryOp.SECOND

    def _settle(self, target: Tensor, value: object, *, must_copy: bool) -> code.Argument:
        """Return the argument of an assignment: of a reset, or of a write to a part, a copy of the
        target, whose cells are read after others are written.
        """
        if isinstance(value, Tensor):
            copied: Tensor = identity(value) if must_copy and value is target else value
            return copied
        if isinstance(value, MergeBuffer):
            return value
        if isinstance(value, Real):
            return exact_number(value)
        raise UsageError.at_caller(
            "Assignments take tensors, merge buffers and numbers.",
            found=repr(value),
            fix="a tensor that needs no gradient has None as its .grad: assign gradients of "
            "parameters and of tensors that depend on them"
            if value is None
            else "wrap arrays and lists with oc.tensor(...)",
        )

    def _reduction(
        self,
        target: Tensor,
        value: RecordedPrimitive,
        combine: BinaryOp,
        reset: bool,
        origin: Origin,
        keys: Keys,
    ) -> code.Assign:
        """Return the assignment of a primitive, which reduces as it accumulates."""
        tensors = [operand for operand in value.operands if isinstance(operand, Tensor)]
        self._check_current(value, tensors, origin)
        rearranges = reset or bool(keys) or not isinstance(value.logic, Pointwise)
        if rearranges and any(tensor is target for tensor in tensors):
            raise UsageError(
                "An assignment that states how axes are rearranged or reduced reads other tensors "
                "than it writes.",
                found=f"{value!r}",
                where=str(origin),
                fix="assign to another tensor, or compute it apart: c[:] = oc.einsum(spec, c)",
            )
        if combine is BinaryOp.SECOND and isinstance(value.logic, Compose | ComposeAccumulate):
            raise UsageError(
                "A logic of its own leaves the reduction to the assignment, which must state one.",
                found=f"c[:] = {value!r}",
                where=str(origin),
                fix="write c[oc.neutral] += ..., c[oc.neutral, oc.maximum] = ..., or use oc.einsum",
            )
        primitive = value.operation.primitive
        assert primitive is not None
        return code.Assign(target, combine, reset, primitive, value.operands, value.logic, origin)

    def _check_current(
        self, value: RecordedPrimitive, tensors: Sequence[Tensor], where: object
    ) -> None:
        """Refuse a primitive that would read other cells than at its place in the code."""
        last = [self._spliced, *(self._writes.get(tensor, 0) for tensor in tensors)]
        is_stale = max(last) > value.writes
        if is_stale or value.recording is not self.recording:
            raise UsageError(
                "An operation whose reduction an assignment states is read by that assignment.",
                found=f"{value!r}, of which an operand has been written since"
                if is_stale
                else f"{value!r}, written in {value.recording}",
                where=str(where),
                fix="write it in the assignment itself",
            )

    def _note_formats(self, step: code.Assign, operands: list[Tensor]) -> None:
        """Give a declared tensor without a stated format the format of the assigned value."""
        values = operands[:1] if isinstance(step.logic, PlaceRows) else operands
        found = precision.result_precision(
            step.op,
            precision.operand_precisions(
                step.op, values, precision.format_for_numbers(step.op, values)
            ),
            self.session.default_dtype,
            is_reduction=precision.is_reduction(step.combine, step.logic),
        )
        step.target.precision.check_computable(step.origin)
        is_declared = isinstance(step.target.definition, definitions.Declared)
        step.target.note_use(step.origin, found.dtype if is_declared and found.positions else None)
        for operand in operands:
            operand.note_use(step.origin)

    def _label(self, target: Tensor, operands: Sequence[Tensor]) -> None:
        """Complete the label of a declared tensor with the label of its first assigned value."""
        if not isinstance(target.definition, definitions.Declared) or len(target.label) > 1:
            return
        pending = list(operands)
        seen: set[Tensor] = set()
        for source in pending:  # grows while it is walked: nearest first
            if isinstance(source.definition, definitions.GradientOf):
                source = source.definition.tensor
            is_declared = isinstance(source.definition, definitions.Declared)
            name = source.label[1 if is_declared else 0 :]
            if name and definitions.has_name(source.definition, source.label):
                target.relabel((*target.label, *name))
                return
            if source in self._made and source not in seen:
                seen.add(source)
                pending += source.operands

    def open_section(self, title: str) -> None:
        section = _Section(title)
        self.session.undo_log.append(self._entries[-1], section)
        self._entries.append(section.entries)

    def close_section(self) -> None:
        self._entries.pop()

    def finish(self, name: str) -> Computation:
        """Return the recorded assignments, with the code of the tensors that they need."""
        used = list(_read_tensors(self._entries[0]))
        updates = [t for t in self._made if code.changes_state(t)]
        used += updates
        needed = set(definitions.ancestors(used)) if used else set()
        steps = _StepBuilder(self.session, self._made, needed)
        return Computation(
            steps.of(self._entries[0]),
            frozenset(self.results),
            name,
            frozenset(self._made - self._named) - frozenset(updates),
            frozenset(self._declared),
        )


@dataclass(slots=True)
class _StepBuilder:
    """Conversion of entries to steps, with tensors from outside before their first use."""

    session: Session
    made: set[Tensor]
    needed: set[Tensor]
    written: set[Tensor] = field(default_factory=set)

    def of(self, entries: Sequence[_Entry]) -> tuple[code.Step, ...]:
        steps: list[code.Step] = []
        for entry in entries:
            match entry:
                case Tensor():
                    if entry in self.needed:
                        steps += self.outside(entry.operands)
                        steps.append(code.Forward((entry,), is_written_here=True))
                case code.Assign():
                    steps += self.outside(code.operand_tensors(entry))
                    steps.append(entry)
                case _Section(title, inner):
                    steps.append(code.Titled(title, self.of(inner)))
                case _:
                    self.written.update(code.computed_tensors(entry))
                    steps.append(entry)
        return tuple(steps)

    def outside(self, tensors: Sequence[Tensor]) -> list[code.Step]:
        """Return the forward code of tensors from outside that no computation contains yet; fills,
        which read nothing, are repeated wherever they are used.
        """
        fresh: set[Tensor] = set()
        pending = list(tensors)
        while pending:
            tensor = pending.pop()
            is_contained = tensor in self.made or tensor in self.written or tensor in fresh
            match tensor.definition:
                case definitions.Applied() | definitions.ResultOf() | definitions.ResultOfLoop():
                    if not is_contained and tensor not in self.session.consumed:
                        fresh.add(tensor)
                        pending += tensor.operands
                case definitions.Filled() if not is_contained:
                    fresh.add(tensor)
        self.written.update(fresh)
        return [code.Forward(tuple(sorted(fresh, key=lambda t: t.id)))] if fresh else []


def _assignment_origin(target: Tensor, part: str = "") -> Origin:
    return Origin(f"assignment to {part}{target.label[0]}", caller_location())


def _at_keys(step: code.Assign, keys: Keys) -> code.Assign:
    """Return the assignment to the cells that keys address, in place of all cells."""
    if isinstance(step.logic, IndexMaps):
        raise UsageError(
            "Stated projections address the cells of the whole target.",
            found=f"projections={step.logic.text!r} for a slice",
            where=str(step.origin),
            fix="write the positions of the slice into the projections, and assign to c[:]",
        )
    return replace(step, logic=SliceUpdate(keys, step.logic))


def _read_tensors(entries: Sequence[_Entry | code.Step]) -> Iterator[Tensor]:
    """Yield the tensors that assignments and other code read."""
    for entry in entries:
        match entry:
            case code.Assign():
                yield from code.operand_tensors(entry)
            case code.Forward(tensors):
                yield from tensors
            case (
                code.ZeroGradients(roots) | code.Backpropagate(roots) | code.UpdateGradients(roots)
            ):
                yield from roots
            case _Section(_, inner) | code.Titled(_, inner):
                yield from _read_tensors(inner)
            case Tensor():
                pass


def cd(function: Callable[P, None]) -> Callable[P, Computation]:
    """Turn a function that assigns to tensors into one that returns the recorded computation.

        @oc.cd
        def sgd_step(p, *, learning_rate):
            p -= learning_rate * p.grad

    The function runs once, at the call: Python's control flow determines the recorded code. Called
    inside another recorded function, its assignments become a section there, under its name and the
    name of its first tensor.

    Raises:
        UsageError: if the function returns something.
    """

    @functools.wraps(function)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> Computation:
        session = sessions.current()
        if session.loop is not None:
            raise assigned_in_step(f"code of {function.__name__}", session.loop.name)
        if isinstance(session.recorder, CodeRecorder):
            about = [arg for arg in args if isinstance(arg, Tensor)][:1]
            with session.atomic(), section(function.__name__, *about):
                _run(function, *args, **kwargs)
            return Computation((), frozenset(), function.__name__)
        recorder = CodeRecorder(
            session, definitions.Recording(function.__name__, caller_location())
        )
        with session.atomic():
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
            "A function decorated with @oc.cd returns nothing: its assignments are the result.",
            found=f"{function.__name__} returned {result!r}",
            where="\n".join(map(str, returns_of(function))) or str(caller_location() or ""),
            fix="assign to a tensor that the caller passes in",
        )


class section:
    """A title, in printed code, for the assignments recorded inside `with oc.section("title"):`.

    The title can have several parts; a tensor among them stands for its name.
    """

    def __init__(self, *title: str | Tensor) -> None:
        if not title:
            raise UsageError.at_caller(
                "A section has a title.",
                found="oc.section()",
                fix='with oc.section("update of", p):',
            )
        self._title = " ".join(
            "_".join(part.label) if isinstance(part, Tensor) else str(part) for part in title
        )
        self._recorder: CodeRecorder | None = None

    def __enter__(self) -> None:
        recorder = sessions.current().recorder
        if not isinstance(recorder, CodeRecorder):
            raise UsageError.at_caller(
                "Sections divide recorded code.",
                found=f"oc.section({self._title!r}) outside a function decorated with @oc.cd",
            )
        self._recorder = recorder
        recorder.open_section(self._title)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._recorder is not None:
            self._recorder.close_section()
