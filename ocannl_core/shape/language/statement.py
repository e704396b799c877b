"""Statements about the shapes of a computation's inputs and outputs, as text.

    "...|n => ...|m, 2"          one input and one output; sizes are named or numbers
    "n; n => n; 2*n"             two of each

The notation of einsum specs, with `;` also between outputs. The meaning differs: a number
is a size, an omitted row has no axes, and rows of tensors equal the written ones. There is no
broadcasting and no reduction, and information flows in every direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ocannl_core.base.errors import SpecError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.shape.language import einsum_ast
from ocannl_core.shape.language.constraints import Constraint, DimEqual, RowEqual
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import (
    AffineDim,
    ConcatDim,
    Dim,
    DimVar,
    FreshVariables,
    Row,
    RowVar,
    Shape,
    Size,
    Window,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """The shapes of inputs and outputs."""

    inputs: tuple[einsum_ast.ShapeSpec, ...]
    outputs: tuple[einsum_ast.ShapeSpec, ...]
    text: str


def parse_statement(text: str) -> Statement:
    """Parse a statement.

    Raises:
        SpecError: if the text does not follow the notation.
    """
    left, arrow, right = text.partition("=>")
    if not arrow:
        raise SpecError(
            "A statement of shapes has `=>` between inputs and outputs.", found=repr(text)
        )
    *others, last = right.split(";")
    if not left.strip():
        count, operands = 0, others
    else:
        count, operands = left.count(";") + 1, [left, *others]
    # in the notation of specs only the last shape follows the arrow
    spec = parse_spec(f"{';'.join(operands)}=>{last}")
    shapes = (*(spec.operands if operands else ()), spec.result)
    return Statement(shapes[:count], shapes[count:], text)


def statement_constraints(
    statement: Statement,
    inputs: Sequence[Shape],
    outputs: Sequence[Shape],
    origin: Origin,
    fresh: FreshVariables,
) -> list[Constraint]:
    """Return the constraints of a statement on the shapes of one application.

    Raises:
        SpecError: if numbers of inputs or outputs differ, or a coefficient is no number.
    """
    for what, wanted, found in (
        ("input", statement.inputs, inputs),
        ("output", statement.outputs, outputs),
    ):
        if len(wanted) != len(found):
            raise SpecError(
                f"A statement of shapes has one shape for each {what}.",
                found=f"{len(wanted)} in {statement.text!r}, for {len(found)}",
                where=str(origin),
            )
    instance = _Instance(statement, origin, fresh)
    is_alone = len(inputs) + len(outputs) == 1
    for what, specs, shapes in (
        ("input", statement.inputs, inputs),
        ("output", statement.outputs, outputs),
    ):
        for position, (spec, shape) in enumerate(zip(specs, shapes, strict=True)):
            for kind, row in shape.rows():
                which = "" if is_alone else f" of {what} {position}"
                where = origin.at(f"{kind.value} row{which}")
                instance.constraints.append(
                    RowEqual(instance.row(spec.row(kind), where), row, where)
                )
    return instance.constraints


class _Instance:
    """One application of a statement, with fresh variables."""

    def __init__(self, statement: Statement, origin: Origin, fresh: FreshVariables) -> None:
        self.constraints: list[Constraint] = []
        self._statement = statement
        self._origin = origin
        self._fresh = fresh
        self._dims: dict[str, DimVar] = {}
        self._rows: dict[str, RowVar] = {}

    def row(self, row: einsum_ast.RowSpec | None, origin: Origin) -> Row:
        if row is None:
            return Row()
        tail = None
        if row.variable is not None:
            tail = self._rows.setdefault(row.variable, self._fresh.row(row.variable))
        leading = tuple(self._dim(axis, origin) for axis in row.leading)
        return Row(leading, tail, tuple(self._dim(axis, origin) for axis in row.trailing))

    def _label(self, name: str) -> DimVar:
        if name not in self._dims:
            self._dims[name] = self._fresh.dim(name)
        return self._dims[name]

    def _dim(self, axis: einsum_ast.AxisSpec, origin: Origin) -> Dim:
        match axis:
            case einsum_ast.Label(name):
                return self._label(name)
            case einsum_ast.Anything():
                return self._fresh.dim()
            case einsum_ast.Fixed(size):
                return Size(size)
            case einsum_ast.Concat(parts):
                return self._computed(
                    ConcatDim(
                        tuple(Size(p) if isinstance(p, int) else self._label(p) for p in parts)
                    ),
                    axis,
                    origin,
                )
            case einsum_ast.Affine():
                return self._computed(self._affine(axis), axis, origin)
            case _:
                assert_never(axis)

    def _computed(self, formula: Dim, axis: einsum_ast.AxisSpec, origin: Origin) -> Dim:
        dim = self._fresh.dim(str(axis))
        self.constraints.append(DimEqual(dim, formula, origin))
        return dim

    def _affine(self, axis: einsum_ast.Affine) -> AffineDim:
        if axis.offset:
            raise self._error(f"{axis}: a size is written without an offset; 2*n+1 is 2*n^1")
        window = None
        if axis.window is not None:
            if axis.window.padded is None:
                raise self._error(
                    f"{axis}: mark windows that stay inside with `<`, others with `=`"
                )
            dilation = self._number(axis.window.dilation)
            window = Window(self._label(axis.window.kernel), dilation, axis.window.padded)
        return AffineDim(self._number(axis.stride), self._label(axis.over), window)

    def _number(self, coefficient: einsum_ast.Coefficient) -> int:
        if isinstance(coefficient, str):
            raise self._error(f"the coefficient {coefficient} is no number")
        return coefficient

    def _error(self, found: str) -> SpecError:
        return SpecError(
            "A statement of shapes is made of names, numbers, multiples, windows and "
            "concatenations.",
            found=f"{found}, in {self._statement.text!r}",
            where=str(self._origin),
        )
