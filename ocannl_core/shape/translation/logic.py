"""Translation of operations to constraints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from ocannl_core.base.errors import SpecError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.shape.language.constraints import (
    Constraint,
    RowBelow,
    RowEqual,
    Selection,
    Strided,
    Subscript,
    TotalElements,
)
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import (
    BUFFER_ORDER,
    FreshVariables,
    Row,
    RowKind,
    Shape,
    Size,
    rows_in_buffer_order,
)
from ocannl_core.shape.language.subscripts import Keys
from ocannl_core.shape.translation.einsum import Einsum, Instance, Relation, operand_rows

# fmt: off
__all__ = [
    "Adjoint", "Compose", "ComposeAccumulate", "ConcatPart", "Einsum", "Logic", "NumbersOfWords",
    "PlaceAlong", "PlaceRows", "Pointwise", "Relation", "ScatterRows", "SelectingLogic", "Several",
    "Slice", "SliceUpdate", "Take", "TakeAlong", "Transpose", "contracted_rows", "logic_from_text",
    "reduces_axes", "relation_of",
]
# fmt: on


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Pointwise alignment of any number of operands, for each kind of row separately."""


@dataclass(frozen=True, slots=True)
class Compose:
    """Composition: the outputs of the second operand are the inputs of the first, as in `a @ b`."""


@dataclass(frozen=True, slots=True)
class ComposeAccumulate:
    """`a @ b + c`."""


@dataclass(frozen=True, slots=True)
class Transpose:
    """Exchange of inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Selection of the positions that keys address: `x[keys]`."""

    keys: Keys


@dataclass(frozen=True, slots=True)
class SliceUpdate:
    """A write to the positions of the result that keys address: `c[keys] = e`."""

    keys: Keys
    logic: Logic


@dataclass(frozen=True, slots=True)
class NumbersOfWords:
    """Expansion of the words of one output axis to `per_word` consecutive cells each, row by row.
    The number is 0 while the format, which determines it, is open; the shapes are not related then.
    """

    per_word: int


@dataclass(frozen=True, slots=True)
class Take:
    """Selection of positions along one axis of the first operand, by the second one."""

    axis: int
    """The axis, counted in buffer order, from the end if negative."""


@dataclass(frozen=True, slots=True)
class TakeAlong:
    """Selection of positions along one axis, whose operands line up with the result along the
    other axes, as in `numpy.take_along_axis`.
    """

    axis: int


@dataclass(frozen=True, slots=True)
class ScatterRows:
    """Addition of the first operand to a new result, at the positions in the second one."""

    axis: int
    """The axis of the result that has the positions, as in `Take`."""
    size: Size
    """The size of that axis."""


@dataclass(frozen=True, slots=True)
class PlaceRows:
    """Assignment of the first operand, which may be broadcast, at positions in the second one."""

    axis: int
    """The axis of the target that has the positions, as in `Take`."""


@dataclass(frozen=True, slots=True)
class PlaceAlong:
    """Assignment of the first operand, which may be broadcast, where `TakeAlong` would read."""

    axis: int


SelectingLogic = Take | TakeAlong | ScatterRows | PlaceRows | PlaceAlong
"""The second operand holds positions along an axis."""


@dataclass(frozen=True, slots=True)
class ConcatPart:
    """The alignment of the tensors of one assignment of a concatenation."""

    target: int
    """The tensor that it writes: 0 for the result, 1 for the first operand."""
    sources: tuple[int, ...]
    """The tensors that it reads, numbered like `target`."""
    logic: Logic
    """The correspondence of their axes."""


@dataclass(frozen=True, slots=True)
class Several:
    """The logic of several assignments."""

    parts: tuple[ConcatPart, ...]


@dataclass(frozen=True, slots=True)
class Adjoint:
    """The index maps of another operation, with the roles of its tensors exchanged.

    The gradient of `result[i, j] += a[i, k] * b[k, j]` with respect to `a` is such an operation:
    `a'[i, k] += result'[i, j] * b[k, j]`, over the same domain. Shapes are not related: the other
    operation has done that.
    """

    logic: Logic
    shapes: tuple[Shape, ...]
    """The shapes of its result and operands, as stated."""
    target: int
    """The tensor whose axes the result has: 0 for the result, 1 for the first operand."""
    sources: tuple[int, ...]
    """The tensors whose axes the operands have, numbered like `target`."""


Logic = (
    Pointwise
    | Compose
    | ComposeAccumulate
    | Transpose
    | Einsum
    | Slice
    | SliceUpdate
    | NumbersOfWords
    | SelectingLogic
    | Several
    | Adjoint
)


def logic_from_text(
    text: str, operands: int, padded: bool | None = None, values: Mapping[str, int] | None = None
) -> Logic:
    """Parse the logic of an operation: `.` pointwise, `@` compose, `T` transpose, or an einsum
    spec, to which `padded` and `values` belong as in `Einsum`.

    Raises:
        SpecError: if the text is none of these, or is not for this number of operands.
    """
    match text.strip():
        case ".":
            return Pointwise()
        case "@":
            logic: Logic = ComposeAccumulate() if operands == 3 else Compose()
        case "T":
            logic = Transpose()
        case _:
            logic = Einsum(parse_spec(text), padded, tuple(sorted((values or {}).items())))
    _check_operands(logic, operands)
    return logic


def relation_of(
    logic: Logic, result: Shape, operands: Sequence[Shape], origin: Origin, fresh: FreshVariables
) -> Relation:
    """Return the constraints of an operation, and the positions that it pins.

    Args:
        fresh: The supply of variables; every application has its own.

    Raises:
        SpecError: if the number of operands is wrong, or inference does not support the spec.
    """
    _check_operands(logic, len(operands), origin)
    match logic:
        case Pointwise():
            return Relation(_pointwise(result, operands, origin))
        case Compose():
            return Relation(_compose(result, operands, origin))
        case ComposeAccumulate():
            composed = _compose(result, operands[:2], origin)
            return Relation(composed + _pointwise(result, operands[2:], origin, first=2))
        case Transpose():
            return Relation(_transpose(result, operands[0], origin))
        case Einsum():
            return Instance(logic, origin, fresh).relate(result, operands)
        case Slice(keys):
            return Relation([Subscript(result, operands[0], keys, origin)])
        case SliceUpdate(keys, inner):
            part = Shape(*(Row(tail=fresh.row()) for _ in RowKind))
            relation = relation_of(inner, part, operands, origin, fresh)
            written = Subscript(part, result, keys, origin, is_written=True)
            relation.constraints.insert(0, written)
            return relation
        case NumbersOfWords(0):
            return Relation([])
        case NumbersOfWords(per_word):
            return _numbers_of_words(per_word, result, operands[0], origin, fresh)
        case Take() | TakeAlong() | ScatterRows() | PlaceRows() | PlaceAlong():
            return Relation(list(_select(logic, result, operands, origin, fresh)))
        case Several(parts):
            return _several(parts, (result, *operands), origin, fresh)
        case Adjoint():
            return Relation([])
        case _:
            assert_never(logic)


def contracted_rows(logic: Logic, operands: Sequence[Shape]) -> Iterator[Row]:
    """Yield the rows of operands that a contraction relates to rows other than the result's.

    Such a row of a parameter must follow from its uses: a guess would change the meaning of the
    product.
    """
    match logic:
        case Compose() | ComposeAccumulate():
            yield operands[0].input
            yield operands[0].output
            yield operands[1].output
        case Transpose():
            yield operands[0].input
            yield operands[0].output
        case Several(parts):
            for part in parts:
                read = [operands[source - 1] for source in part.sources if source]
                if len(read) == len(part.sources):  # not the result, which is no parameter
                    yield from contracted_rows(part.logic, read)
        case SliceUpdate(_, inner):
            yield from contracted_rows(inner, operands)
        case Pointwise() | Einsum() | Slice() | NumbersOfWords() | Adjoint():
            pass
        case Take() | TakeAlong() | ScatterRows() | PlaceRows() | PlaceAlong():
            pass
        case _:
            assert_never(logic)


def reduces_axes(logic: Logic) -> bool:
    """Return True if an accumulating assignment combines several terms in a cell of its result."""
    match logic:
        case Compose() | ComposeAccumulate():
            return True
        case Einsum(spec):
            return spec.reduces
        case SliceUpdate(_, inner):
            return reduces_axes(inner)
        case Several(parts):
            return any(reduces_axes(part.logic) for part in parts)
        case Pointwise() | Transpose() | Slice() | NumbersOfWords() | Adjoint():
            return False
        case Take() | TakeAlong() | ScatterRows() | PlaceRows() | PlaceAlong():
            return False
        case _:
            assert_never(logic)


def _check_operands(logic: Logic, operands: int, origin: Origin | None = None) -> None:
    match logic:
        case Pointwise() | Several():
            return
        case Compose():
            name, wanted = "Matrix product", 2
        case ComposeAccumulate():
            name, wanted = "Matrix product with an addend", 3
        case Transpose():
            name, wanted = "Transposition", 1
        case Slice():
            name, wanted = "A subscript", 1
        case SliceUpdate(_, inner):
            _check_operands(inner, operands, origin)
            return
        case NumbersOfWords():
            name, wanted = "Making numbers of words", 1
        case Take() | TakeAlong():
            name, wanted = "A selection by positions", 2
        case ScatterRows() | PlaceRows() | PlaceAlong():
            name, wanted = "A store at positions", 2
        case Einsum(spec):
            name, wanted = f"The spec {spec.text or spec!s}", len(spec.operands)
        case Adjoint(sources=sources):
            name, wanted = "A gradient as an operation", len(sources)
        case _:
            assert_never(logic)
    if wanted != operands:
        raise SpecError(
            f"{name} is for {_count(wanted)}.",
            found=_count(operands),
            where=str(origin or ""),
            fix="separate the operands of a spec by `;`" if isinstance(logic, Einsum) else "",
        )


def _count(operands: int) -> str:
    return "1 operand" if operands == 1 else f"{operands} operands"


def _pointwise(
    result: Shape, operands: Sequence[Shape], origin: Origin, first: int = 0
) -> list[Constraint]:
    found: list[Constraint] = []
    made = rows_in_buffer_order(result)
    for position, operand in enumerate(operands, start=first):
        rows = zip(made, rows_in_buffer_order(operand), operand_rows(position), strict=True)
        for below, above, detail in rows:
            found.append(RowBelow(below, above, origin.at(detail)))
    return found


def _compose(result: Shape, operands: Sequence[Shape], origin: Origin) -> list[Constraint]:
    one, two = operands
    meeting = "input row of the first operand, against the output row of the second operand"
    return [
        RowBelow(one.input, two.output, origin.at(meeting)),
        RowBelow(result.batch, one.batch, origin.at("batch row of the first operand")),
        RowBelow(result.batch, two.batch, origin.at("batch row of the second operand")),
        RowBelow(result.input, two.input, origin.at("input row of the second operand")),
        RowBelow(result.output, one.output, origin.at("output row of the first operand")),
    ]


def _transpose(result: Shape, operand: Shape, origin: Origin) -> list[Constraint]:
    return [
        RowBelow(result.batch, operand.batch, origin.at("batch row of the operand")),
        RowBelow(result.input, operand.output, origin.at("output row of the operand")),
        RowBelow(result.output, operand.input, origin.at("input row of the operand")),
    ]


def _select(
    logic: SelectingLogic,
    result: Shape,
    operands: Sequence[Shape],
    origin: Origin,
    fresh: FreshVariables,
) -> Iterator[Constraint]:
    first, positions = map(rows_in_buffer_order, operands)
    made = rows_in_buffer_order(result)
    match logic:
        case Take(axis):
            yield Selection(first, positions, made, axis, fresh.dim("positions"), origin)
        case TakeAlong(axis):
            extent = fresh.dim("positions")
            yield Selection(first, positions, made, axis, extent, origin, is_along=True)
        case ScatterRows(axis, size):
            yield Selection(made, positions, first, axis, size, origin, is_inserted=True)
        case PlaceRows(axis) | PlaceAlong(axis):
            placed = fresh.row("batch"), fresh.row("output"), fresh.row("input")
            batch, output, input = (Row(tail=tail) for tail in placed)
            selected = batch, output, input
            extent, is_along = fresh.dim("positions"), isinstance(logic, PlaceAlong)
            yield Selection(made, positions, selected, axis, extent, origin, is_along=is_along)
            for kind, whole, row in zip(BUFFER_ORDER, selected, first, strict=True):
                yield RowBelow(whole, row, origin.at(f"{kind.value} row of the assigned value"))
        case _:
            assert_never(logic)


def _numbers_of_words(
    per_word: int, result: Shape, operand: Shape, origin: Origin, fresh: FreshVariables
) -> Relation:
    words = fresh.dim("words")
    one_axis = {RowKind.OUTPUT: Row(trailing=(words,))}
    relation = Relation()
    for kind, row in operand.rows():
        detail = origin.at(f"the {kind.value} row of the words, which are one output axis")
        relation.constraints.append(RowEqual(row, one_axis.get(kind, Row()), detail))
    rows = (result.batch, result.input, result.output)
    count = origin.at(f"{per_word} numbers of each random word")
    relation.constraints.append(TotalElements(rows, Strided(per_word, words), count))
    return relation


def _several(
    parts: Sequence[ConcatPart], shapes: Sequence[Shape], origin: Origin, fresh: FreshVariables
) -> Relation:
    """Return the union of the parts, each with names of its own."""
    relation = Relation()
    for position, part in enumerate(parts):
        sources = [shapes[source] for source in part.sources]
        where = replace(origin, operation=f"assignment {position + 1} of {origin.operation}")
        found = relation_of(part.logic, shapes[part.target], sources, where, fresh)
        relation.constraints += found.constraints
        relation.pins |= found.pins
        relation.optional += found.optional
        relation.labels |= {f"{name}.{position}": each for name, each in found.labels.items()}
    return relation
