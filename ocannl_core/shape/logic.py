"""From operations to constraints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from ocannl_core.errors import SpecError
from ocannl_core.indexing import AxisIndex, FixedIndex, StaticIndex, VarIndex
from ocannl_core.origin import Origin
from ocannl_core.shape.constraints import AtLeast, Constraint, DimEqual, RowBelow, RowEqual
from ocannl_core.shape.notation import Affine, Anything, AxisSpec, Concat, Fixed, Label, RowSpec
from ocannl_core.shape.spec import Spec, parse_spec, spec_error
from ocannl_core.shape.supply import Supply
from ocannl_core.shape.terms import Dim, DimVar, Row, RowVar, Shape, Size


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Axis by axis, each kind of row for itself; any number of operands."""


@dataclass(frozen=True, slots=True)
class Compose:
    """The outputs of the second operand meet the inputs of the first: `a @ b`."""


@dataclass(frozen=True, slots=True)
class ComposeAccumulate:
    """`a @ b + c`."""


@dataclass(frozen=True, slots=True)
class Transpose:
    """Inputs and outputs change places."""


@dataclass(frozen=True, slots=True)
class Einsum:
    """As a specification says."""

    spec: Spec


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """One position of each of the leading batch axes."""

    indices: tuple[StaticIndex | int, ...]


Logic = Pointwise | Compose | ComposeAccumulate | Transpose | Einsum | BatchSlice


def logic_from_text(text: str, operands: int) -> Logic:
    """Returns the logic of a text: `.` pointwise, `@` compose, `T` transpose, or an einsum spec.

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
            logic = Einsum(parse_spec(text))
    _check_operands(logic, operands, "")
    return logic


def constraints_of(
    logic: Logic, result: Shape, operands: Sequence[Shape], origin: Origin, fresh: Supply
) -> list[Constraint]:
    """Returns what an operation says about the shapes of its result and operands.

    Args:
        logic: How the axes correspond.
        result: The result's shape.
        operands: The operands' shapes.
        origin: The operation.
        fresh: Gives the variables of a spec, which are new in every application.

    Raises:
        SpecError: if the number of operands is wrong, or the spec needs what inference does not
            support.
    """
    return relation_of(logic, result, operands, origin, fresh).constraints


@dataclass(slots=True)
class Relation:
    """What an operation says about shapes and about positions.

    Attributes:
        constraints: The constraints on shapes.
        pins: Sizes whose axes are accessed at one given position.
    """

    constraints: list[Constraint] = field(default_factory=list)
    pins: dict[DimVar, AxisIndex] = field(default_factory=dict)


def relation_of(
    logic: Logic, result: Shape, operands: Sequence[Shape], origin: Origin, fresh: Supply
) -> Relation:
    """Returns the constraints of an operation together with the positions it fixes."""
    _check_operands(logic, len(operands), str(origin))
    match logic:
        case Pointwise():
            return Relation(list(_pointwise(result, operands, origin)))
        case Compose():
            return Relation(list(_compose(result, operands, origin)))
        case ComposeAccumulate():
            composed = _compose(result, operands[:2], origin)
            return Relation([*composed, *_pointwise(result, operands[2:], origin, first=2)])
        case Transpose():
            return Relation(list(_transpose(result, operands[0], origin)))
        case Einsum(spec):
            return _Instance(spec, origin, fresh).relate(result, operands)
        case BatchSlice(indices):
            return _slice(indices, result, operands[0], origin, fresh)
        case _:
            assert_never(logic)


def contracted_rows(logic: Logic, operands: Sequence[Shape]) -> Iterator[Row]:
    """Yields the rows of operands that meet more than the same row of the result.

    A parameter's row of this kind must follow from its uses: guessing it would change what the
    product means.
    """
    match logic:
        case Compose() | ComposeAccumulate():
            yield operands[0].input
            yield operands[0].output
            yield operands[1].output
        case Transpose():
            yield operands[0].input
            yield operands[0].output
        case Pointwise() | Einsum() | BatchSlice():
            pass
        case _:
            assert_never(logic)


def _check_operands(logic: Logic, operands: int, where: str) -> None:
    match logic:
        case Pointwise():
            return
        case Compose():
            name, wanted = "Matrix product", 2
        case ComposeAccumulate():
            name, wanted = "Matrix product with an addend", 3
        case Transpose():
            name, wanted = "Transposition", 1
        case BatchSlice():
            name, wanted = "A slice of the batch", 1
        case Einsum(spec):
            name, wanted = f"The spec {spec.text or spec!s}", len(spec.operands)
        case _:
            assert_never(logic)
    if wanted != operands:
        raise SpecError(
            f"{name} is for {_count(wanted)}.",
            found=_count(operands),
            where=where,
            fix="separate the operands of a spec by `;`" if isinstance(logic, Einsum) else "",
        )


def _count(operands: int) -> str:
    return "1 operand" if operands == 1 else f"{operands} operands"


# ----- the fixed correspondences ------------------------------------------------------------------

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def _operand(position: int) -> str:
    name = _ORDINALS[position] if position < len(_ORDINALS) else f"{position + 1}th"
    return f"the {name} operand"


def _pointwise(
    result: Shape, operands: Sequence[Shape], origin: Origin, first: int = 0
) -> Iterator[Constraint]:
    for position, operand in enumerate(operands, start=first):
        for kind, row in operand.rows():
            detail = f"{kind.value} row of {_operand(position)}"
            yield RowBelow(result.row(kind), row, origin.at(detail))


def _compose(result: Shape, operands: Sequence[Shape], origin: Origin) -> Iterator[Constraint]:
    one, two = operands
    meeting = "input row of the first operand, against the output row of the second operand"
    yield RowBelow(one.input, two.output, origin.at(meeting))
    yield RowBelow(result.batch, one.batch, origin.at("batch row of the first operand"))
    yield RowBelow(result.batch, two.batch, origin.at("batch row of the second operand"))
    yield RowBelow(result.input, two.input, origin.at("input row of the second operand"))
    yield RowBelow(result.output, one.output, origin.at("output row of the first operand"))


def _transpose(result: Shape, operand: Shape, origin: Origin) -> Iterator[Constraint]:
    yield RowBelow(result.batch, operand.batch, origin.at("batch row of the operand"))
    yield RowBelow(result.input, operand.output, origin.at("output row of the operand"))
    yield RowBelow(result.output, operand.input, origin.at("input row of the operand"))


def _slice(
    indices: tuple[StaticIndex | int, ...],
    result: Shape,
    operand: Shape,
    origin: Origin,
    fresh: Supply,
) -> Relation:
    relation = Relation()
    leading: list[Dim] = []
    batch = origin.at("batch row of the operand")
    for position, index in enumerate(indices):
        dim = fresh.dim(index.name if isinstance(index, StaticIndex) else "")
        leading.append(dim)
        if isinstance(index, StaticIndex):
            relation.pins[dim] = VarIndex(index)
            if index.extent is not None:
                where = origin.at(f"the range of index {index.name}")
                relation.constraints.append(DimEqual(dim, Size(index.extent), where))
        else:
            relation.pins[dim] = FixedIndex(index)
            relation.constraints.append(AtLeast(dim, index + 1, batch, position))
    row = result.batch
    sliced = Row((*leading, *row.leading), row.tail, row.trailing)
    relation.constraints += [
        RowEqual(sliced, operand.batch, batch),
        RowEqual(result.input, operand.input, origin.at("input row of the operand")),
        RowEqual(result.output, operand.output, origin.at("output row of the operand")),
    ]
    return relation


# ----- einsum -------------------------------------------------------------------------------------


class _Instance:
    """One application of a spec, with variables of its own."""

    def __init__(self, spec: Spec, origin: Origin, fresh: Supply) -> None:
        self._spec = spec
        self._origin = origin
        self._fresh = fresh
        self._dims: dict[str, DimVar] = {}
        self._rows: dict[str, RowVar] = {}
        self._relation = Relation()

    def relate(self, result: Shape, operands: Sequence[Shape]) -> Relation:
        """Returns the constraints: the result refines its rows of the spec, these the operands."""
        constraints = self._relation.constraints
        for position, (shape_spec, operand) in enumerate(
            zip(self._spec.operands, operands, strict=True)
        ):
            for kind, row in operand.rows():
                origin = self._origin.at(f"{kind.value} row of {_operand(position)}")
                spec_row = self._operand_row(shape_spec.row(kind), origin)
                constraints.append(RowBelow(spec_row, row, origin))
        for kind, row in result.rows():
            origin = self._origin.at(f"{kind.value} row of the result")
            spec_row = self._result_row(
                self._spec.result.row(kind), origin, is_free=row.tail is not None
            )
            constraints.append(RowBelow(row, spec_row, origin))
        return self._relation

    def _operand_row(self, row: RowSpec | None, origin: Origin) -> Row:
        """A row without a row variable leaves further axes to its left to be reduced."""
        if row is None:
            return Row(tail=self._fresh.row())
        tail = self._fresh.row() if row.variable is None else self._row_variable(row.variable)
        leading, trailing = self._axes(row, origin)
        return Row(leading, tail, trailing)

    def _result_row(self, row: RowSpec | None, origin: Origin, *, is_free: bool) -> Row:
        """A result may always have further axes, so that no variable is needed for them."""
        if row is None:
            return Row()
        tail = None if row.variable is None else self._row_variable(row.variable)
        leading, trailing = self._axes(row, origin, is_free=is_free)
        return Row(leading, tail, trailing)

    def _row_variable(self, name: str) -> RowVar:
        return self._rows.setdefault(name, self._fresh.row(name))

    def _axes(
        self, row: RowSpec, origin: Origin, *, is_free: bool = False
    ) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
        leading = tuple(
            self._dim(axis, origin, position, is_free=is_free)
            for position, axis in enumerate(row.leading)
        )
        trailing = tuple(
            self._dim(axis, origin, position - len(row.trailing), is_free=is_free)
            for position, axis in enumerate(row.trailing)
        )
        return leading, trailing

    def _dim(self, axis: AxisSpec, origin: Origin, position: int, *, is_free: bool) -> Dim:
        match axis:
            case Label(name):
                if name not in self._dims:
                    self._dims[name] = self._fresh.dim(name)
                return self._dims[name]
            case Anything():
                return self._fresh.dim()
            case Fixed(0) if is_free:
                return Size(1)
            case Fixed(index):
                dim = self._fresh.dim()
                self._relation.pins[dim] = FixedIndex(index)
                self._relation.constraints.append(AtLeast(dim, index + 1, origin, position))
                return dim
            case Affine():
                raise self._unsupported(axis, "Strided and windowed axes are not supported here.")
            case Concat():
                raise self._unsupported(axis, "Concatenated axes are not supported here.")
            case _:
                assert_never(axis)

    def _unsupported(self, axis: Affine | Concat, rule: str) -> SpecError:
        error = spec_error(self._spec.text or str(self._spec), axis.at, rule)
        return SpecError(
            error.rule, found=error.found, where=str(self._origin), fix="name the axis plainly"
        )
