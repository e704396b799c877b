"""Translation of specs to constraints.

Rows of a spec are compared with rows of tensors by inequalities: an operand may have fewer axes
than its row, or axes of size 1, and is then broadcast. Windows and concatenations determine how an
axis is traversed, which excludes broadcasting; so specs with these compare input and output rows by
equations, and batch rows without such axes by inequalities.

A strided, windowed or concatenated axis of an operand is a fresh size with a formula for it, so
that an operand of size 1 is broadcast along it like along any other axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cache
from typing import NamedTuple, assert_never

from ocannl_core.base.errors import ShapeError, SpecError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import AxisIndex, FixedIndex
from ocannl_core.shape.language import shape_terms
from ocannl_core.shape.language.capture import advice_on_words
from ocannl_core.shape.language.constraints import (
    AtLeast,
    Constraint,
    DimEqual,
    NamedAxis,
    RowBelow,
    RowEqual,
)
from ocannl_core.shape.language.einsum_ast import (
    Affine,
    Anything,
    AxisSpec,
    Coefficient,
    Concat,
    Fixed,
    Label,
    RowSpec,
    Spec,
    axis_names,
)
from ocannl_core.shape.language.einsum_parser import spec_error
from ocannl_core.shape.solving.state import SolverState


@dataclass(frozen=True, slots=True)
class Einsum:
    """The logic of a spec."""

    spec: Spec
    padded: bool | None = None
    """The default of windows without `<` or `=`: True if they may reach into margins."""
    values: tuple[tuple[str, int], ...] = ()
    """Numbers by name: the value of a coefficient, or the size of a labelled axis."""
    rows: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The sizes of the axes of row variables, by name."""


@dataclass(slots=True)
class Relation:
    """The constraints of an operation on shapes and positions."""

    constraints: list[Constraint] = field(default_factory=list)
    pins: dict[shape_terms.DimVar, AxisIndex] = field(default_factory=dict)
    """Sizes whose axes are accessed at one given position."""
    labels: dict[str, shape_terms.DimVar | shape_terms.RowVar] = field(default_factory=dict)
    """The variables of the names of a spec."""
    row_axes: list[shape_terms.DimVar] = field(default_factory=list)
    """The axes of row variables of given sizes."""
    optional: list[shape_terms.DimVar] = field(default_factory=list)
    """Parts of concatenated axes that may be empty."""
    addressed: list[shape_terms.DimVar] = field(default_factory=list)
    """Axes of operands of which a position other than 0 is read."""
    spanned: list[shape_terms.DimVar] = field(default_factory=list)
    """Computed axes along which operands are broadcast."""

    def enter(self, state: SolverState) -> None:
        """Mark the sizes concerned, and add the constraints to the agenda."""
        for marks, dims in (
            (state.optional, self.optional),
            (state.addressed, self.addressed),
            (state.spanned, self.spanned),
        ):
            for dim in dims:
                state.undo_log.put(marks, dim, True)
        state.agenda.extend(self.constraints)


_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def operand_name(position: int) -> str:
    """Return the name of an operand in errors.

    0  -->  the first operand
    """
    name = _ORDINALS[position] if position < len(_ORDINALS) else f"{position + 1}th"
    return f"the {name} operand"


@cache
def operand_rows(position: int) -> tuple[str, ...]:
    """Return the names of the rows of an operand in errors, in buffer order.

    0  -->  batch row of the first operand, ...
    """
    return tuple(
        f"{kind.value} row of {operand_name(position)}" for kind in shape_terms.BUFFER_ORDER
    )


class _Side(NamedTuple):
    """The translation of the axes of a row to sizes."""

    is_result: bool = False
    """True for the result, whose positions are written."""
    is_free: bool = False
    """True for a result whose axes are not stated."""
    keeps_formulas: bool = False
    """True to keep formulas in the row, in place of sizes that equal them."""


class Instance:
    """One application of a spec, with fresh variables."""

    def __init__(self, logic: Einsum, origin: Origin, fresh: shape_terms.FreshVariables) -> None:
        self._spec = logic.spec
        self._padded = logic.padded
        self._values = dict(logic.values)
        self._row_sizes = dict(logic.rows)
        self._origin = origin
        self._fresh = fresh
        self._dims: dict[str, shape_terms.DimVar] = {}
        self._rows: dict[str, shape_terms.RowVar] = {}
        self._aligned = logic.spec.aligned
        self._relation = Relation()

    def relate(self, result: shape_terms.Shape, operands: Sequence[shape_terms.Shape]) -> Relation:
        """Return the constraints: the result refines its rows of the spec, and these refine the
        operands.

        Raises:
            SpecError: if a name that should be a number has no value, or a value has no name.
            ShapeError: if a window states neither that it may reach into margins nor that it may
                not, or a value is too large for an index.
        """
        constraints = self._relation.constraints
        for position, (shape_spec, operand) in enumerate(
            zip(self._spec.operands, operands, strict=True)
        ):
            for (kind, row), detail in zip(operand.rows(), operand_rows(position), strict=True):
                origin = self._origin.at(detail)
                written = shape_spec.row(kind)
                spec_row = self._operand_row(written, origin)
                if written is None:
                    constraints.append(RowBelow(spec_row, row, origin))
                elif self._is_exact(written, kind):
                    constraints.append(RowEqual(spec_row, row, origin))
                else:
                    named = NamedAxis(len(written.leading), len(written.trailing))
                    constraints.append(RowBelow(spec_row, row, origin, named=named))
                    self._mark(written, spec_row)
        for kind, row in result.rows():
            origin = self._origin.at(f"{kind.value} row of the result")
            written = self._spec.result.row(kind)
            exact = written is not None and self._is_exact(written, kind)
            free = row.tail is not None
            spec_row = self._result_row(written, origin, is_free=free, is_exact=exact)
            constraints.append(
                RowEqual(row, spec_row, origin)
                if exact
                else RowBelow(row, spec_row, origin, is_written=True)
            )
        self._constrain_values()
        self._relation.optional += [
            self._dims[name] for name in self._spec.optional_parts if name in self._dims
        ]
        self._relation.labels = {**self._rows, **self._dims}
        return self._relation

    def _constrain_values(self) -> None:
        constraints = self._relation.constraints
        for name, number in self._values.items():
            if number > shape_terms.LARGEST_INDEX:
                raise ShapeError(
                    "An axis has less than 2**63 positions, or indices could not address them.",
                    found=f"{name} = {number}",
                    where=str(self._origin),
                    fix="give a smaller number",
                )
            if name in self._dims:
                origin = self._origin.at(f"the size given for {name}")
                constraints.append(DimEqual(self._dims[name], shape_terms.Size(number), origin))
            elif name not in _coefficients(self._spec):
                raise SpecError(
                    "A value is for an axis or a coefficient of the spec.",
                    found=f"{name} = {number}; the axes are {', '.join(sorted(self._dims))}",
                    where=str(self._origin),
                    fix=advice_on_words(name, self._dims)
                    or f"name an axis of {self._spec.text or self._spec}",
                )

        for name, sizes in self._row_sizes.items():
            axes = self._fresh.dims(len(sizes))
            origin = self._origin.at(f"the sizes of {name}")
            constraints += [
                DimEqual(axis, shape_terms.Size(n), origin)
                for axis, n in zip(axes, sizes, strict=True)
            ]
            constraints.append(
                RowEqual(
                    shape_terms.Row(tail=self._rows[name]), shape_terms.Row(trailing=axes), origin
                )
            )
            self._relation.row_axes += axes

    def _is_exact(self, row: RowSpec, kind: shape_terms.RowKind) -> bool:
        """Return True for rows compared by equations."""
        if not self._aligned:
            return False
        if row.axes and all(isinstance(axis, Fixed | Anything) for axis in row.axes):
            return False
        names = {name for axis in row.axes for name in axis_names(axis)}
        return kind is not shape_terms.RowKind.BATCH or not self._aligned.isdisjoint(names)

    def _operand_row(self, row: RowSpec | None, origin: Origin) -> shape_terms.Row:
        """Return an operand's row; without a row variable, further axes on the left are reduced."""
        if row is None:
            return shape_terms.Row(tail=self._fresh.row())
        tail = self._fresh.row() if row.variable is None else self._row_variable(row.variable)
        leading, trailing = self._axes(row, origin, _Side())
        return shape_terms.Row(leading, tail, trailing)

    def _mark(self, written: RowSpec, row: shape_terms.Row) -> None:
        """Mark the axes of an operand at other positions than 0, and computed ones."""
        for axis, dim in zip(written.axes, row.dims, strict=True):
            if isinstance(dim, shape_terms.DimVar) and _skips_first(axis):
                self._relation.addressed.append(dim)
            elif isinstance(dim, shape_terms.DimVar) and isinstance(axis, Affine | Concat):
                self._relation.spanned.append(dim)

    def _result_row(
        self, row: RowSpec | None, origin: Origin, *, is_free: bool, is_exact: bool
    ) -> shape_terms.Row:
        """Return the row of the result, which may have further axes without a variable.

        The result is not broadcast along a computed axis, so that its axis equals the formula even
        in an inequality: the row contains the formula itself.
        """
        if row is None:
            return shape_terms.Row()
        tail = None if row.variable is None else self._row_variable(row.variable)
        side = _Side(is_result=True, is_free=is_free, keeps_formulas=not is_exact)
        leading, trailing = self._axes(row, origin, side)
        return shape_terms.Row(leading, tail, trailing)

    def _row_variable(self, name: str) -> shape_terms.RowVar:
        if name not in self._rows:
            self._rows[name] = self._fresh.row(name)
        return self._rows[name]

    def _axes(
        self, row: RowSpec, origin: Origin, side: _Side
    ) -> tuple[tuple[shape_terms.Dim, ...], tuple[shape_terms.Dim, ...]]:
        leading = tuple(
            self._dim(axis, origin, position, side) for position, axis in enumerate(row.leading)
        )
        trailing = tuple(
            self._dim(axis, origin, position - len(row.trailing), side)
            for position, axis in enumerate(row.trailing)
        )
        return leading, trailing

    def _label(self, name: str) -> shape_terms.DimVar:
        if name not in self._dims:
            self._dims[name] = self._fresh.dim(name)
        return self._dims[name]

    def _dim(self, axis: AxisSpec, origin: Origin, position: int, side: _Side) -> shape_terms.Dim:
        constraints = self._relation.constraints
        match axis:
            case Label(name):
                return self._label(name)
            case Anything():
                return self._fresh.dim()
            case Fixed(0) if side.is_free:
                # only this position is written: a formula, so that no use broadcasts the axis
                return shape_terms.ONE_WRITTEN if side.keeps_formulas else shape_terms.Size(1)
            case Fixed(index):
                dim = self._fresh.dim()
                self._relation.pins[dim] = FixedIndex(index)
                constraints.append(
                    AtLeast(dim, index + 1, origin, position, lengthens=side.is_result)
                )
                return dim
            case Affine() | Concat():
                formula = self._affine(axis) if isinstance(axis, Affine) else self._concat(axis)
                if side.keeps_formulas:
                    return formula
                dim = self._fresh.dim(str(axis))
                constraints.append(DimEqual(dim, formula, origin, position))
                return dim
            case _:
                assert_never(axis)

    def _affine(self, axis: Affine) -> shape_terms.AffineDim:
        stride = self._number(axis.stride, axis)
        padded = axis.window.padded if axis.window is not None else None
        if padded is None:
            padded = self._padded
        # the margins have room for windows that begin one cell later
        if axis.offset >= stride + bool(axis.window and padded):
            raise self._error(
                axis,
                "An offset lies between two positions of its axis: it is less than the stride, or "
                "equal to it for windows that may exceed the axis.",
            )
        over = self._label(axis.over)
        if axis.window is None:
            return shape_terms.AffineDim(stride, over, None, axis.offset)
        if padded is None:
            raise ShapeError(
                "padded= must be stated for a window that is marked neither `<` nor `=`.",
                found=f"{axis} in {self._spec.text or self._spec}",
                where=str(self._origin),
                fix="write `<` for windows that stay inside, `=` for windows that reach into"
                " margins,\nor give padded=False or padded=True",
            )
        dilation = self._number(axis.window.dilation, axis)
        window = shape_terms.Window(self._label(axis.window.kernel), dilation, padded)
        return shape_terms.AffineDim(stride, over, window, axis.offset)

    def _concat(self, axis: Concat) -> shape_terms.ConcatDim:
        return shape_terms.ConcatDim(
            tuple(
                self._label(part) if isinstance(part, str) else shape_terms.Size(part)
                for part in axis.parts
            )
        )

    def _number(self, coefficient: Coefficient, axis: Affine) -> int:
        if isinstance(coefficient, str):
            if coefficient not in self._values:
                raise self._error(
                    axis,
                    f"Invalid stride value (expected integer): {coefficient}.",
                    f'write the number, or give values={{"{coefficient}": ...}}',
                )
            coefficient = self._values[coefficient]
        if coefficient < 1:
            raise self._error(axis, "A coefficient must be positive.")
        return coefficient

    def _error(self, axis: Affine, rule: str, fix: str = "") -> SpecError:
        error = spec_error(self._spec.text or str(self._spec), axis.at, rule)
        return SpecError(error.rule, found=error.found, where=str(self._origin), fix=fix)


def _skips_first(axis: AxisSpec) -> bool:
    """Return True for an axis that is always indexed at a position other than 0."""
    match axis:
        case Fixed(index):
            return index > 0
        case Affine(offset=offset, window=None):
            return offset > 0
        case Label() | Anything() | Affine() | Concat():
            return False
        case _:
            assert_never(axis)


def _coefficients(spec: Spec) -> set[str]:
    """Return the names of coefficients."""
    found: set[Coefficient] = set()
    for axis in spec.axes:
        if isinstance(axis, Affine):
            found.add(axis.stride)
            if axis.window is not None:
                found.add(axis.window.dilation)
    return {name for name in found if isinstance(name, str)}
