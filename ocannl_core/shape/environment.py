"""The shapes of a session: what operations have said about them so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ocannl_core.errors import UsageError
from ocannl_core.origin import Origin
from ocannl_core.shape import solver
from ocannl_core.shape.close import close
from ocannl_core.shape.constraints import Constraint
from ocannl_core.shape.logic import Logic, constraints_of, contracted_rows
from ocannl_core.shape.messages import narrowed
from ocannl_core.shape.state import Leaf, State
from ocannl_core.shape.terms import DimVar, Row, RowKind, RowVar, Shape, Size

Axes = Sequence[int | Size] | None
"""The axes of a row; None when they are to be inferred."""


class Environment:
    """Infers shapes. What contradicts earlier information is refused and leaves no trace."""

    def __init__(self) -> None:
        self._state = State()
        self._leaves = 0
        self._made_from: dict[Shape | int, dict[tuple[Shape, ...], Shape]] = {}

    def fresh_shape(
        self, *, batch: Axes = None, input: Axes = None, output: Axes = None, name: str = ""
    ) -> Shape:
        """Returns a shape with the given rows; the rows not given are inferred.

        Raises:
            UsageError: if a size is negative.
        """
        return Shape(
            self._row(RowKind.BATCH, batch, name),
            self._row(RowKind.INPUT, input, name),
            self._row(RowKind.OUTPUT, output, name),
        )

    def relate(
        self, logic: Logic, result: Shape, operands: Sequence[Shape], origin: Origin
    ) -> None:
        """Adds what an operation says about the shapes of its result and operands.

        Raises:
            ShapeError: if this contradicts what is known; then nothing is added.
            SpecError: if the operation's specification does not fit.
        """
        state = self._state
        constraints = constraints_of(logic, result, operands, origin, state.fresh)
        with self._atomically():
            for row in contracted_rows(logic, operands):
                tail = state.flat(row).tail
                if tail is not None:
                    state.journal.put(state.contracted, tail, True)
            state.agenda.extend(constraints)
            solver.run(state)
            state.put_inner(self._made_from, _key(result), tuple(operands), result)

    def leaf(self, shape: Shape, origin: Origin, *, parameter: bool = False) -> None:
        """Marks a shape as that of a tensor which no operation computes: it learns from its uses.

        Args:
            shape: The shape.
            origin: What made the tensor, such as `parameter w`.
            parameter: What its uses do not say is an error rather than a guess.
        """
        state = self._state
        for kind, row in shape.rows():
            leaf = Leaf(self._leaves, kind, row, origin, parameter)
            tail, dims = state.unknowns(row)
            if tail is not None:
                state.mark_row(tail, leaf)
            for dim in dims:
                state.mark_dim(dim, leaf)
        self._leaves += 1
        state.journal.commit()

    def constrain(self, constraints: Sequence[Constraint]) -> None:
        """Adds constraints.

        Raises:
            ShapeError: if they contradict what is known; then none is added.
        """
        with self._atomically():
            self._state.agenda.extend(constraints)
            solver.run(self._state)

    def view(self, shape: Shape) -> Shape:
        """Returns the shape as far as it is known. Looking does not influence inference."""
        return Shape(self._seen(shape.batch), self._seen(shape.input), self._seen(shape.output))

    def close(self, shapes: Iterable[Shape]) -> None:
        """Decides the shapes, those they were computed from, and all that is connected with them.

        Guesses where constraints leave freedom. Other tensors, even those that share operands, stay
        as they are unless an undecided size or row ties them to these.

        Raises:
            ShapeError: if that is impossible, or would guess the shape of a parameter; then nothing
                is decided.
        """
        with self._atomically():
            close(self._state, self._with_operands(shapes))

    def reason(self, var: DimVar | RowVar) -> Origin | None:
        """Returns what decided a variable, or bounds it; None if nothing did."""
        state = self._state
        if isinstance(var, RowVar):
            cause = state.row_causes.get(var)
            return cause.origin if cause else None
        found = state.find(var)
        known = state.values.get(found) or state.ceilings.get(found)
        return narrowed(known.cause) if known else None

    # ----- details ------------------------------------------------------------------------------

    def _with_operands(self, shapes: Iterable[Shape]) -> list[Shape]:
        """Returns shapes and what they were computed from, which need not be looked at again."""
        found: list[Shape] = []
        pending = list(shapes)
        while pending:
            shape = pending.pop()
            found.append(shape)
            key = _key(shape)
            for operands in self._made_from.get(key, ()):
                pending += operands
            self._state.journal.remove(self._made_from, key)
        return found

    @contextmanager
    def _atomically(self) -> Iterator[None]:
        state = self._state
        state.journal.commit()
        try:
            yield
        except BaseException:
            state.agenda.clear()
            state.journal.rollback()
            raise
        finally:
            state.touched_dims.clear()
            state.touched_rows.clear()
        state.journal.commit()

    def _row(self, kind: RowKind, axes: Axes, name: str) -> Row:
        if axes is None:
            return Row(tail=self._state.fresh.row(f"{name}.{kind.value}" if name else ""))
        sizes = tuple(axis if isinstance(axis, Size) else Size(axis) for axis in axes)
        if any(size.n < 0 for size in sizes):
            raise UsageError(
                "The size of an axis cannot be negative.",
                found=f"{kind.value} axes {', '.join(map(str, sizes))}"
                + (f" of {name}" if name else ""),
            )
        return Row(trailing=sizes)

    def _seen(self, row: Row) -> Row:
        flat = self._state.flat(row)
        current = self._state.current
        return Row(
            tuple(current(dim) for dim in flat.leading),
            flat.tail,
            tuple(current(dim) for dim in flat.trailing),
        )


def _key(shape: Shape) -> Shape | int:
    """Returns what identifies a shape: closed ones can be equal although the tensors differ."""
    return id(shape) if shape.is_closed else shape
