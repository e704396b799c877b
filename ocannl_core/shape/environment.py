"""The shapes of a session, and the constraints of operations on them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from numbers import Integral
from types import EllipsisType, TracebackType
from typing import Any, TypeVar

from ocannl_core.base.ephemerons import EphemeronKey, drop_unreachable
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.identity import ById
from ocannl_core.base.origin import Location, Origin, caller_location
from ocannl_core.base.undo_log import UndoLog
from ocannl_core.ir.indexing import IndexArithmetic, StaticExtent
from ocannl_core.shape.closing.close import close
from ocannl_core.shape.language.capture import DimRef, bind_captures, equate_captures
from ocannl_core.shape.language.constraints import (
    Constraint,
    DimEqual,
    Exact,
    RowEqual,
    Strided,
    TotalElements,
)
from ocannl_core.shape.language.shape_terms import (
    AffineDim,
    Dim,
    DimVar,
    FreshVariables,
    Row,
    RowKind,
    RowVar,
    Shape,
    Size,
    exceeds_address_space,
    extents_in,
    stated_size,
)
from ocannl_core.shape.solving import solver
from ocannl_core.shape.solving.counts import count_cells
from ocannl_core.shape.solving.derivations import RowReport, explain
from ocannl_core.shape.solving.messages import narrow_origin, too_many_cells
from ocannl_core.shape.solving.ranks import implied_axes
from ocannl_core.shape.solving.state import LeafTensor, SolverState, unknowns_in
from ocannl_core.shape.translation.einsum import Einsum
from ocannl_core.shape.translation.logic import Adjoint, Logic, contracted_rows, relation_of
from ocannl_core.shape.translation.unmatched import (
    DoubtfulBroadcast,
    EinsumApplication,
    application_of,
    find_remarks,
    report,
)

Axes = Sequence[int | Size | StaticExtent | EllipsisType] | None
"""The axes of a row; `...` among them is a row variable, and None is an empty row."""

LEAST_GARBAGE = 20_000
"""The least number of variables, of about a kilobyte each, that may be unreachable."""

_Noted = TypeVar("_Noted", Shape, EinsumApplication)


class Transaction:
    """Constraints, and other changes in the undo log of an environment, that an exception retracts.

    A generator that is closed has not failed: its changes stay.
    """

    __slots__ = ("_depth", "_environment", "_position", "_state")

    def __init__(self, environment: Environment, state: SolverState) -> None:
        self._environment = environment
        self._state = state
        self._depth = -1

    def __enter__(self) -> Transaction:
        state = self._state
        if self._depth >= 0:
            raise UsageError.at_caller(
                "A context manager of oc.atomic() is entered once at a time.",
                found="with inside of with, for the same one",
                fix="call oc.atomic() for each",
            )
        self._environment.forget_unreachable()
        self._environment.previews.clear()
        state.scalars_are_decided = False
        state.closing = None
        self._depth, self._position = state.undo_log.depth, state.undo_log.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state, depth = self._state, self._depth
        try:
            if kind is not None and kind is not GeneratorExit:
                self.rollback()
        finally:
            state.touched_dims.clear()
            state.touched_rows.clear()
            state.undo_log.end(depth)
            self._depth = -1

    def rollback(self) -> None:
        """Retract the changes so far."""
        self._environment.rollback(self._position)


class Environment:
    """Shape inference for a session. An operation that contradicts earlier ones leaves no trace.

    Args:
        undo_log: The log of a session, whose transactions then restore the shapes, too; by default
            a log for shapes alone.
    """

    def __init__(self, undo_log: UndoLog | None = None) -> None:
        self._state = SolverState(undo_log)
        self.undo_log = self._state.undo_log
        """The log that transactions of the environment use."""
        self._leaves = self._state.undo_log.supply()
        self._made_from: dict[Hashable, list[Shape]] = {}
        """The operands of a result, and the captured rows and sizes beside them."""
        self._unchecked: dict[Hashable, list[EinsumApplication]] = {}
        self._reported: set[tuple[Location | None, str]] = set()
        self._next_cleaning = LEAST_GARBAGE
        """The number of variables made at which unreachable ones are looked for."""
        self.previews: dict[int, Shape | None] = {}
        """Shapes as `close` would decide them, by the numbers of tensors, until a constraint is
        added; None where a leaf is open.
        """

    def fresh_shape(
        self, *, batch: Axes = None, input: Axes = None, output: Axes = None, name: str = ""
    ) -> Shape:
        """Return a shape with the given rows; the rows not given are inferred.

        Raises:
            ShapeError: if there are too many cells for an index.
            UsageError: if a size is negative.
        """
        if batch is None is input is output:
            row = self._state.fresh.row
            names = [f"{name}.{kind}" if name else "" for kind in ("batch", "input", "output")]
            return Shape(*[Row(tail=row(each)) for each in names])
        shape = Shape(
            self._row(RowKind.BATCH, batch, name),
            self._row(RowKind.INPUT, input, name),
            self._row(RowKind.OUTPUT, output, name),
        )
        sizes = [dim.n for _, row in shape.rows() for dim in row.dims if isinstance(dim, Size)]
        if exceeds_address_space(sizes):
            raise too_many_cells(str(shape), 1, str(caller_location() or ""), name)
        return shape

    def atomic(self) -> Transaction:
        """Return a transaction, a context manager."""
        return Transaction(self, self._state)

    def rollback(self, position: int) -> None:
        """Retract the changes that follow a position of the undo log."""
        self._state.agenda.clear()
        self._state.queued.clear()
        self.undo_log.rollback(position)
        self._state.revisions += 1
        self.previews.clear()

    def forget_unreachable(self) -> None:
        """Forget variables that no shape or reference outside can reach, once there are many."""
        state = self._state
        if state.fresh.number < self._next_cleaning or not gc.isenabled():
            return
        with self.undo_log.lock:
            if self.undo_log.depth:
                return  # the log of a transaction refers to variables, too
            drop_unreachable([*state.tables, self._made_from, self._unchecked], _keys_in)
            kept = len({*state.parents, *state.values, *state.rows})
            self._next_cleaning = state.fresh.number + max(LEAST_GARBAGE, kept)

    def relate(
        self,
        logic: Logic,
        result: Shape,
        operands: Sequence[Shape],
        origin: Origin,
        capture: Mapping[str, DimRef] | None = None,
    ) -> None:
        """Add the constraints of an operation on the shapes of its result and operands.

        Args:
            capture: References to bind to labels of the spec, for `size_of` and the like; a
                reference that is bound already is unified with the label.

        Raises:
            ShapeError: if they contradict earlier constraints; then nothing is added.
            SpecError: if the spec of the operation does not fit.
        """
        state = self._state
        relation = relation_of(logic, result, operands, origin, state.fresh)
        with self.undo_log.lock, self.atomic():
            for row in contracted_rows(logic, operands):
                tail = state.flat(row).tail
                if tail is not None:
                    state.undo_log.put(state.contracted, tail, True)
            relation.enter(state)
            if capture:
                state.agenda.extend(equate_captures(capture, relation.labels, origin))
            solver.run(state)
            if capture:
                bind_captures(capture, relation.labels, state.undo_log)
            if relation.constraints:
                own: list[Shape] = []
                if labels := relation.labels:
                    # a part of a known axis is connected with no shape, and must be decided, too
                    sizes = [var for var in labels.values() if isinstance(var, DimVar)]
                    own += map(_shape_of, state.undecided(sizes))
                    # so is a captured row that is longer than the rows of the operands
                    taken = [labels[name] for name in capture or ()]
                    own += [_shape_of(var) for var in taken if isinstance(var, RowVar)]
                self._note(self._made_from, result, *operands, *own)
            if isinstance(logic, Einsum):
                values = [name for name, _ in logic.values]
                labels = relation.labels
                applied = application_of(logic.spec, operands, labels, values, origin)
                if self._check(applied):
                    self._note(self._unchecked, result, applied)

    def leaf(self, shape: Shape, origin: Origin, *, parameter: bool = False) -> None:
        """Mark a shape as a leaf's, which follows from the uses of the leaf.

        Args:
            origin: The origin of the tensor, such as `parameter w`.
            parameter: True to raise an error in place of a guess.
        """
        state, order = self._state, self._leaves.take()
        with self.undo_log.lock:
            for kind, row in shape.rows():
                tail, dims = state.unknowns(row)
                if tail is None and not dims:
                    continue
                leaf = LeafTensor(order, kind, shape, origin, parameter)
                if tail is not None:
                    state.mark_row(tail, leaf)
                for dim in dims:
                    state.mark_dim(dim, leaf)
        self.previews.clear()

    def constrain(self, constraints: Sequence[Constraint]) -> None:
        """Add constraints.

        Raises:
            ShapeError: if they contradict earlier constraints; then none is added.
        """
        self.derive((), (), lambda _: constraints)

    def derive(
        self,
        results: Sequence[Shape],
        operands: Sequence[Shape],
        relate: Callable[[FreshVariables], Sequence[Constraint]],
    ) -> None:
        """Add constraints between results and operands, all at once.

        Args:
            relate: Returns the constraints; its argument creates fresh variables.

        Raises:
            ShapeError: if they contradict earlier constraints; then nothing is added.
        """
        constraints = relate(self._state.fresh)
        with self.undo_log.lock, self.atomic():
            self._state.agenda.extend(constraints)
            solver.run(self._state)
            for result in results:
                self._note(self._made_from, result, *operands)

    def total_elements(self, shape: Shape, n: int, origin: Origin | None = None) -> None:
        """Set the number of cells of a shape.

        Raises:
            ShapeError: if the shape contradicts it.
        """
        origin = origin or Origin(f"total_elements {n}")
        rows = (shape.batch, shape.input, shape.output)
        self.constrain([TotalElements(rows, n, origin)])

    def exact(
        self, shape: Shape, dims: Sequence[int | Size | StaticExtent], origin: Origin | None = None
    ) -> None:
        """Set the sizes of all axes of a shape, in buffer order.

        Raises:
            ShapeError: if the shape contradicts them.
        """
        sizes = tuple(map(stated_size, dims))
        origin = origin or Origin(f"exact {', '.join(map(str, sizes))}")
        self.constrain([Exact(tuple(row for _, row in shape.rows()), sizes, origin)])

    def set_dim(self, ref: DimRef, n: int, origin: Origin | None = None) -> None:
        """Set the size of a captured axis, or the product of captured axes.

        Raises:
            ShapeError: if it has another size.
        """
        origin = origin or Origin(f"set_dim {ref.label} to {n}")
        if isinstance(ref.captured, RowVar):
            self.constrain([TotalElements((Row(tail=ref.captured),), n, origin)])
        else:
            self.constrain([DimEqual(ref.captured, Size(n), origin)])

    def set_scale(
        self, ref: DimRef, factor: int, other: DimRef, origin: Origin | None = None
    ) -> None:
        """Make a captured size a multiple of another: `ref = factor * other`.

        Raises:
            ShapeError: if it is not.
            UsageError: if the factor is not positive.
        """
        if factor < 1:
            raise UsageError("A size is a positive multiple of another.", found=f"factor {factor}")
        origin = origin or Origin(f"set_scale {ref.label} to {factor}*{other.label}")
        constraints: list[Constraint] = []
        sizes = [self._captured_size(each, constraints, origin) for each in (ref, other)]
        scaled = sizes[1] if factor == 1 else AffineDim(factor, sizes[1])
        self.constrain([*constraints, DimEqual(sizes[0], scaled, origin)])

    def size_of(self, ref: DimRef) -> int | None:
        """Return the size of a captured axis, or the product of captured ones; None if unknown."""
        with self.undo_log.lock:
            if isinstance(ref.captured, RowVar):
                return count_cells(self._state, Row(tail=ref.captured))
            size = self._state.size(ref.captured)
            return size.n if size else None

    def extents_of(self, ref: DimRef) -> tuple[StaticExtent, ...]:
        """Return the extents at run time among the axes that a reference has captured."""
        with self.undo_log.lock:
            if isinstance(ref.captured, RowVar):
                return tuple(extents_in(self._state.current_row(Row(tail=ref.captured)).dims))
            size = self._state.size(ref.captured)
            return tuple(extents_in([size])) if size else ()

    def with_known_sizes(self, logic: Logic, capture: Mapping[str, DimRef]) -> Logic:
        """Return the logic with the known captured sizes as values.

        The size of a padded window, for example, does not always follow from the shapes of one
        operation.
        """
        if isinstance(logic, Adjoint):
            known = self.with_known_sizes(logic.logic, capture)
            return replace(logic, logic=known, shapes=tuple(map(self.view, logic.shapes)))
        if not isinstance(logic, Einsum):
            return logic
        values, rows = dict(logic.values), dict(logic.rows)
        for name, ref in capture.items():
            if isinstance(ref.term, RowVar):
                with self.undo_log.lock:
                    row = self._state.current_row(Row(tail=ref.term))
                if row.is_closed and not any(extents_in(row.trailing)):
                    rows[name] = row.sizes
            elif (n := self.size_of(ref)) is not None and not self.extents_of(ref):
                values[name] = n
        return replace(
            logic, values=tuple(sorted(values.items())), rows=tuple(sorted(rows.items()))
        )

    @property
    def revisions(self) -> int:
        """The number of revisions of known sizes, between which closed shapes stay the same."""
        return self._state.revisions

    def view(self, shape: Shape) -> Shape:
        """Return the shape as far as it is known, without any effect on inference."""
        current = self._state.current_row
        with self.undo_log.lock:
            return Shape(current(shape.batch), current(shape.input), current(shape.output))

    def close(
        self, shapes: Iterable[Shape], refs: Iterable[DimRef] = (), subject: str = "its shape"
    ) -> None:
        """Decide the shapes, their operands, and all variables connected with them.

        Guess the variables that constraints leave open. Other tensors, even with the same
        operands, are unchanged unless they share an undecided size or row. Captured names are
        decided too if they are given.

        Args:
            subject: The name of the computation in errors.

        Raises:
            ShapeError: if impossible, or a parameter must be guessed; then nothing is decided.
        """
        with self.undo_log.lock, self.atomic():
            captured = [_shape_of(ref.captured) for ref in refs]
            origin = Origin(subject, caller_location())
            unchecked: list[EinsumApplication] = []
            close(self._state, [*self._with_operands(shapes, unchecked), *captured], origin)
            for applied in unchecked:
                self._check(applied)

    def preview(self, shapes: Iterable[Shape], *, has_defaults: bool = True) -> list[Shape]:
        """Return the shapes as `close` would decide them now, without deciding them.

        Args:
            has_defaults: False to refuse guesses on leaves that no use says anything about.

        Raises:
            ShapeError: if `close` would raise it, or for such a guess.
        """
        state = self._state
        shapes = list(shapes)
        kept = dict(self.previews)
        with self.undo_log.lock, self.atomic() as transaction:
            operands = self._with_operands(shapes, [], is_preview=True)
            close(state, operands, Origin("a preview"), has_defaults=has_defaults)
            found = [self.view(shape) for shape in shapes]
            transaction.rollback()
        self.previews.update(kept)
        return found

    def generalize(
        self, arguments: Mapping[str, Shape], shapes: Mapping[str, Shape]
    ) -> tuple[dict[str, Shape], tuple[str, ...]]:
        """Return arguments and shapes that follow from them with as few variables as possible, and
        the relations that remain between these, without any effect on inference.
        """
        from ocannl_core.shape.solving.generalization import SchemeNames, equate_with_least

        with self.undo_log.lock, self.atomic() as transaction:
            equate_with_least(self._state, arguments.values())
            found = {name: self.view(shape) for name, shape in {**arguments, **shapes}.items()}
            names = SchemeNames(found, len(arguments))
            found = {name: names.shape(shape) for name, shape in found.items()}
            conditions = names.conditions(self._state)
            transaction.rollback()
        return found, conditions

    def equate_known(self, shape: Shape, known: Shape, origin: Origin) -> None:
        """Give a shape the closed rows of a shape, perhaps of another environment.

        Raises:
            ShapeError: if it has others; then nothing changes.
        """
        pairs = zip(shape.rows(), known.rows(), strict=True)
        self.constrain(
            [RowEqual(row, other, origin) for (_, row), (_, other) in pairs if other.is_closed]
        )

    def implied_ranks(self, shape: Shape) -> tuple[int, int, int] | None:
        """Return the numbers of batch, output and input axes that a shape has because its operands
        have them; None if uses that follow may add some.
        """
        with self.undo_log.lock:
            found = [implied_axes(self._state, row) for _, row in shape.rows()]
        batch, output, input = found
        if batch is None or output is None or input is None:
            return None
        return batch, output, input

    def implied_shape(self, shape: Shape) -> Shape | None:
        """Return the shape of a computed tensor if all its sizes are known, and its operands imply
        that it has no further axes; None for others.
        """
        rows: list[Row] = []
        with self.undo_log.lock:
            for row in (shape.batch, shape.input, shape.output):
                known = self._state.current_row(row)
                if not all(isinstance(dim, Size) for dim in known.dims):
                    return None
                if known.tail is not None:
                    number = implied_axes(self._state, row, closes_leaves=True)
                    if number != known.known:
                        return None
                rows.append(Row(trailing=known.dims))
        return Shape(*rows)

    def set_ranks(
        self, shape: Shape, ranks: tuple[int, int, int], origin: Origin
    ) -> tuple[Dim, ...]:
        """Set the numbers of batch, output and input axes of a shape; return the sizes of all axes
        in buffer order, as far as they are known.

        Raises:
            ShapeError: if the shape contradicts them.
        """
        sizes: list[Dim] = []
        constraints: list[Constraint] = []
        for (kind, row), rank in zip(shape.rows(), ranks, strict=True):
            with self.undo_log.lock:
                current = self._state.current_row(row)
            if current.tail is None and len(current.trailing) == rank:
                sizes += current.trailing
                continue
            dims = self._state.fresh.dims(rank)
            where = origin.at(f"{kind.value} row of the operand")
            constraints.append(RowEqual(Row(trailing=dims), row, where))
            sizes += dims
        if constraints:
            self.constrain(constraints)
        with self.undo_log.lock:
            return tuple(map(self._state.current, sizes))

    def reason(self, var: DimVar | RowVar) -> Origin | None:
        """Return the constraint that decided or bounds a variable, or None."""
        state = self._state
        with self.undo_log.lock:
            if isinstance(var, RowVar):
                decided = state.decided_rows.get(var)
                return decided[1].origin if decided else None
            found = state.find(var)
            known = state.values.get(found) or state.ceilings.get(found)
            return narrow_origin(known.cause) if known else None

    def explain(self, shape: Shape) -> tuple[RowReport, ...]:
        """Return a shape's derivation, and the bounds of its open parts; infer nothing."""
        with self.undo_log.lock:
            return explain(self._state, shape)

    def report(self, remark: DoubtfulBroadcast) -> None:
        """Warn about a doubtful broadcast, once for each line; or refuse it.

        Raises:
            ShapeError: if the setting `missing_axes` is `error`.
        """
        report(remark, self._reported, self._state.undo_log, of_spec=False)

    def _note(self, notes: dict[Hashable, list[_Noted]], result: Shape, *noted: _Noted) -> None:
        """Add notes about a result."""
        self.undo_log.append(notes.setdefault(_key(result), []), *noted)

    def _check(self, applied: EinsumApplication) -> bool:
        """Report the doubtful parts of an application; return True if more may follow later."""
        found, is_open = find_remarks(self._state, applied)
        for remark in found:
            report(remark, self._reported, self._state.undo_log)
        return is_open

    def _with_operands(
        self,
        shapes: Iterable[Shape],
        unchecked: list[EinsumApplication],
        *,
        is_preview: bool = False,
    ) -> list[Shape]:
        """Return the shapes and their transitive operands, without shapes visited before, and in a
        preview without operands of known shapes; collect the applications that need another check
        when they are closed.
        """
        found: list[Shape] = []
        pending = list(shapes)
        while pending:
            shape = pending.pop()
            found.append(shape)
            key = _key(shape)
            operands = self._made_from.get(key, ())
            if is_preview:
                operands = [each for each in operands if not self.view(each).is_closed]
            pending += operands
            unchecked += self._unchecked.get(key, ())
            self._state.undo_log.remove_unordered(self._unchecked, key)
            self._state.undo_log.remove_unordered(self._made_from, key)
        return found

    def _captured_size(self, ref: DimRef, constraints: list[Constraint], origin: Origin) -> DimVar:
        """Return a captured size; for a row variable, a new variable for the product."""
        if isinstance(ref.captured, DimVar):
            return ref.captured
        product = self._state.fresh.dim(ref.label)
        row = Row(tail=ref.captured)
        constraints.append(TotalElements((row,), Strided(1, product), origin))
        return product

    def _row(self, kind: RowKind, axes: Axes, name: str) -> Row:
        if axes is None:
            return Row(tail=self._state.fresh.row(f"{name}.{kind.value}" if name else ""))
        _check_axes(kind, axes, name)
        cut = [position for position, axis in enumerate(axes) if axis is ...]
        sizes = tuple(stated_size(axis) for axis in axes if not isinstance(axis, EllipsisType))
        if len(cut) > 1:
            raise UsageError(
                "A row has one stretch of axes that are inferred.",
                found=f"`...` {len(cut)} times in the {kind.value} axes"
                + (f" of {name}" if name else ""),
            )
        if any(size.n < 0 for size in sizes):
            raise UsageError.at_caller(
                "The size of an axis cannot be negative.",
                found=f"{kind.value} axes {', '.join(map(str, sizes))}"
                + (f" of {name}" if name else ""),
                fix=f"{kind.value}=[...] for axes that are inferred",
            )
        if not cut:
            return Row(trailing=sizes)
        tail = self._state.fresh.row(f"{name}.{kind.value}" if name else "")
        return Row(sizes[: cut[0]], tail, sizes[cut[0] :])


def _key(shape: Shape) -> Hashable:
    """Return the key of a shape: closed shapes of different tensors may be equal."""
    if shape.is_closed:
        return ById(shape)
    rows = shape.batch, shape.output, shape.input
    return tuple([(row.leading, row.tail, row.trailing) for row in rows])


def _keys_in(key: Any) -> Sequence[EphemeronKey]:
    """Return the shape or the variables in a key of notes or of a table of the solver."""
    match key:
        case DimVar() | RowVar():
            return (key,)
        case ById(value=Shape() as shape):
            return (shape,)
        case tuple():
            return [each for parts in key for each in Row(*parts).unknowns]
        case _:
            return unknowns_in(key)


def _shape_of(captured: DimVar | RowVar) -> Shape:
    if isinstance(captured, RowVar):
        return Shape(output=Row(tail=captured))
    return Shape(output=Row(trailing=(captured,)))


def _check_axes(kind: RowKind, axes: object, name: str) -> None:
    """Refuse anything but a list of sizes."""
    given = axes if isinstance(axes, list | tuple) else None
    if given is None or any(
        isinstance(axis, bool)
        or not isinstance(
            axis.n if isinstance(axis, Size) else axis, Integral | StaticExtent | EllipsisType
        )
        for axis in given
    ):
        raise UsageError.at_caller(
            "The axes of a row are a list of sizes.",
            found=f"{kind.value}={axes!r}" + (f" for {name}" if name else ""),
            fix=_listed(kind, axes),
        )


def _listed(kind: RowKind, axes: object) -> str:
    """Return the spelling of sizes that were given in another way."""
    given = (axes,) if isinstance(axes, int | Shape) or not isinstance(axes, Iterable) else (*axes,)
    if any(isinstance(each, Shape) for each in given):
        return "x.shape.dims are sizes; oc.zeros_like(x), and its like, take the shape of a tensor"
    if None in given or any(isinstance(each, IndexArithmetic) for each in given):
        return (
            f"{kind.value}=[...] for axes that are inferred; oc.static_extent(name, max=256) is a "
            "size that calls state"
        )
    sizes = [int(each) for each in given if isinstance(each, int | float) and each == each // 1]
    return f"{kind.value}={sizes or [8, 3]}"
