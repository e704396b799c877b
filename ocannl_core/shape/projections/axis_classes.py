"""Classes of axes that one loop variable traverses, and the index maps over these variables.

In the first stratum, one loop variable traverses all axes that the constraints pair. In the second,
the indices of strided, windowed and concatenated axes are computed from these variables, and other
constraints on such an axis must agree with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import assert_never

from ocannl_core.base.errors import ShapeError, VerifyError
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import (
    AffineIndex,
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Margin,
    Projections,
    StaticIndex,
    SubAxis,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.shape.closing.close import close
from ocannl_core.shape.language.constraints import (
    AtLeast,
    Constraint,
    DimBelow,
    DimConstraint,
    DimEqual,
    Exact,
    ReverseEqual,
    RowBelow,
    RowEqual,
    RowJoin,
    Selection,
    SliceLength,
    Subscript,
    TotalElements,
)
from ocannl_core.shape.language.shape_terms import (
    AffineDim,
    ConcatDim,
    Dim,
    DimVar,
    Row,
    RowKind,
    Shape,
    Size,
)
from ocannl_core.shape.solving import solver
from ocannl_core.shape.solving.derivations import dims_of
from ocannl_core.shape.solving.messages import place
from ocannl_core.shape.solving.row_order import pairs
from ocannl_core.shape.solving.state import SolverState, sides
from ocannl_core.shape.translation.einsum import Relation

HINTS = {RowKind.BATCH: "b", RowKind.OUTPUT: "o", RowKind.INPUT: "i"}
"""The names of loop variables along the rows of a shape."""

Axis = int | DimVar
"""An axis of a tensor, by its identity, or an axis of a spec."""


def derive(
    state: SolverState, relation: Relation, result: Shape, operands: Sequence[Shape]
) -> Projections:
    """Return the projections of a relation between shapes with axis identities."""
    relation.enter(state)
    solver.run(state)
    for constraint in relation.constraints:
        if isinstance(constraint, DimEqual):
            _check_kernel(state, constraint)
    shapes = [Shape(output=row) for c in relation.constraints for row in _rows(c)]
    close(state, shapes, Origin("projections"))
    axes = _ProjectionAxes(state)
    for dim, index in relation.pins.items():
        axes.pin(dim, index)
    for constraint in relation.constraints:
        for pair in _pair_axes(state, constraint):
            axes.meet(pair)
    labels = [dim for dim in relation.labels.values() if isinstance(dim, DimVar)]
    labels += relation.row_axes
    return axes.projections(result, operands, labels)


def _check_kernel(state: SolverState, equation: DimEqual) -> None:
    """Refuse a window that reaches into margins and has no kernel size of its own."""
    formula = equation.right
    window = formula.window if isinstance(formula, AffineDim) else None
    if window is not None and window.padded and state.size(window.kernel) is None:
        raise ShapeError(
            "The size of a padded window does not follow from the axis it slides over.",
            found=f"the size of {window.kernel} in {formula} is undetermined",
            where=place(equation),
            fix=f"give values={{'{window.kernel}': ...}}, or an operand with this axis",
        )


def _rows(constraint: Constraint) -> tuple[Row, ...]:
    if isinstance(constraint, DimConstraint):
        return (Row(trailing=dims_of(constraint)),)
    return sides(constraint)


def _pair_axes(state: SolverState, constraint: Constraint) -> Iterator[DimBelow | DimEqual]:
    """Split a constraint on rows into constraints on axes."""
    match constraint:
        case RowBelow(origin=origin):
            for axis, below, above in pairs(state, constraint):
                yield DimBelow(below, above, origin, axis)
        case RowEqual(left, right, origin):
            equal = zip(_reverse(state, left), _reverse(state, right), strict=True)
            for axis, (one, other) in enumerate(equal, start=1):
                yield DimEqual(one, other, origin, -axis)
        case DimBelow() | DimEqual():
            yield constraint
        case AtLeast() | TotalElements() | Exact() | ReverseEqual() | Selection() | RowJoin():
            pass
        case SliceLength() | Subscript():
            pass
        case _:
            assert_never(constraint)


def _reverse(state: SolverState, row: Row) -> Iterator[Dim]:
    return reversed(state.flat(row).trailing)


class _ProjectionAxes:
    """Classes of axes with a common loop variable (union-find), and formulas for other axes.

    Attributes:
        formulas: For a class, the formulas of its index, which must agree.
        plain: Axes of the spec that are named outside of concatenations.
        axes_with: The number of different concatenated axes with each part.
        margins: For a class, the padding that its windows access.
    """

    def __init__(self, state: SolverState) -> None:
        self._state = state
        self._parents: dict[Axis, Axis] = {}
        self._pins: dict[Axis, AxisIndex] = {}
        self._hints: dict[Axis, str] = {}
        self._vars: dict[Axis, LoopVar] = {}
        self._formulas: dict[Axis, list[tuple[AffineDim | ConcatDim, DimBelow | DimEqual]]] = {}
        self._plain: set[Axis] = set()
        self._parts: set[Axis] = set()
        self._axes_with: Counter[Axis | None] = Counter()
        self._margins: dict[Axis, Margin] = {}
        self._indices: dict[Axis, AxisIndex] = {}
        self._under_way: set[Axis] = set()

    def pin(self, dim: DimVar, index: AxisIndex) -> None:
        """Access an axis at one position only."""
        self._pins[dim] = index

    def meet(self, pair: DimBelow | DimEqual) -> None:
        """Unify two axes, unless one of them is broadcast along the other."""
        left, right = (
            (pair.res, pair.opnd) if isinstance(pair, DimBelow) else (pair.left, pair.right)
        )
        if isinstance(right, AffineDim | ConcatDim):
            self._compute(left, right, pair)
            return
        one, other = self._axis(left), self._axis(right)
        if one is None or other is None:
            return
        self._plain.update((one, other))
        repeated = isinstance(pair, DimBelow) and self._size(right) == 1 != self._size(left)
        if not repeated or self._find(other) in self._pins:
            self._join(one, other, pair)

    def _compute(
        self, whole: Dim, formula: AffineDim | ConcatDim, pair: DimBelow | DimEqual
    ) -> None:
        axis = self._axis(whole)
        assert axis is not None
        self._formulas.setdefault(self._find(axis), []).append((formula, pair))
        if isinstance(formula, ConcatDim):
            self._parts.update(p for part in formula.parts if (p := self._axis(part)) is not None)
            return
        for dim in (formula.over, formula.window.kernel if formula.window else None):
            if dim is not None and (inner := self._axis(dim)) is not None:
                self._plain.add(inner)

    def projections(
        self, result: Shape, operands: Sequence[Shape], labels: Sequence[DimVar]
    ) -> Projections:
        """Return the projections. The domain lists variables in order of first appearance, then the
        variables of labels along which all operands are broadcast: the sum runs over them as well.
        """
        self._parts = {self._find(axis) for axis in self._parts}
        self._plain = {self._find(axis) for axis in self._plain}
        concatenated = {
            self._part_roots(formula)
            for formulas in self._formulas.values()
            for formula, _ in formulas
            if isinstance(formula, ConcatDim)
        }
        self._axes_with = Counter(root for roots in concatenated for root in {*roots})
        domain: dict[LoopVar, int] = {}
        lhs = self._index_map(result, domain)
        rhs = tuple(self._index_map(operand, domain) for operand in operands)
        domain.update(self._unvisited(labels))
        lhs_margins = self._margins_of(result)
        margins = tuple(self._margins_of(operand) for operand in operands)
        return Projections(
            domain=tuple(domain.items()),
            lhs=lhs,
            rhs=rhs,
            lhs_dims=result.dims,
            rhs_dims=tuple(operand.dims for operand in operands),
            margins=margins if any(map(any, map(_reaching, margins))) else (),
            lhs_margins=lhs_margins if any(_reaching(lhs_margins)) else (),
        )

    def _axis(self, dim: Dim) -> Axis | None:
        if isinstance(dim, DimVar):
            # equal sizes do not unify axes: the representatives of the solver are not used
            if dim.name.isidentifier():
                self._hints.setdefault(self._find(dim), dim.name)
            return dim
        return dim.axis_id if isinstance(dim, Size) else None

    def _size(self, dim: Dim) -> int:
        return self._known_size(dim).n

    def _known_size(self, dim: Dim) -> Size:
        size = self._state.size(dim)
        if size is None:
            raise VerifyError(
                "Every axis of an operation on closed shapes has a size.", found=str(dim)
            )
        return size

    def _find(self, axis: Axis) -> Axis:
        while (parent := self._parents.get(axis)) is not None:
            axis = parent
        return axis

    def _join(self, left: Axis, right: Axis, pair: DimBelow | DimEqual) -> None:
        one, other = self._find(left), self._find(right)
        if one == other:
            return
        first, second = self._pins.get(one), self._pins.get(other)
        if first is not None and second is not None and first != second:
            raise _accessed_twice(first, second, pair)
        self._parents[one] = other
        pin = first if first is not None else second
        if pin is not None:
            self._pins[other] = pin
        hint = self._hints.get(one)
        if hint is not None:
            self._hints.setdefault(other, hint)
        if one in self._formulas:
            self._formulas.setdefault(other, []).extend(self._formulas.pop(one))

    def _unvisited(self, labels: Sequence[DimVar]) -> Iterator[tuple[LoopVar, int]]:
        """Yield loops for the labels without an index, unless they have one position."""
        placed = self._vars.keys() | self._pins.keys() | self._formulas.keys() | self._parts
        for label in labels:
            root, size = self._find(label), self._known_size(label)
            if size.n != 1 and root not in placed:
                yield fresh_var(self._hints.get(root, "s"), size.extent), size.n

    def _margins_of(self, shape: Shape) -> tuple[Margin, ...]:
        axes = [self._axis(dim) for _, row in shape.rows() for dim in row.trailing]
        roots = [self._find(axis) for axis in axes if axis is not None]
        return tuple(self._margins.get(root, Margin()) for root in roots)

    def _index_map(self, shape: Shape, domain: dict[LoopVar, int]) -> IndexMap:
        return tuple(
            self._index(dim, HINTS[kind], domain)
            for kind, row in shape.rows()
            for dim in row.trailing
        )

    def _index(self, dim: Dim, hint: str, domain: dict[LoopVar, int]) -> AxisIndex:
        axis, size = self._axis(dim), self._known_size(dim)
        extent = size.n
        assert axis is not None
        root = self._find(axis)
        pin = self._pins.get(root)
        if root in self._formulas:
            return self._computed(root, pin, domain)
        if pin is not None:
            return pin
        if extent == 1 and root not in self._parts:
            return FixedIndex(0)
        if root not in self._vars:
            self._vars[root] = fresh_var(self._hints.get(root, hint), size.extent)
        var = self._vars[root]
        if domain.setdefault(var, extent) != extent or var.size is not size.extent:
            raise VerifyError(
                "Axes traversed together have one size.", found=f"{domain[var]} and {size}"
            )
        return VarIndex(var)

    def _computed(self, root: Axis, pin: AxisIndex | None, domain: dict[LoopVar, int]) -> AxisIndex:
        if root in self._indices:
            return self._indices[root]
        if root in self._under_way:
            _, pair = self._formulas[root][0]
            raise ShapeError(
                "The position on an axis cannot be computed from itself.",
                found=str(self._formulas[root][0][0]),
                where=place(pair),
                fix="name one of the axes differently",
            )
        self._under_way.add(root)
        found = pin
        for formula, pair in self._formulas[root]:
            index = (
                self._affine(root, formula, domain)
                if isinstance(formula, AffineDim)
                else self._concatenated(formula, domain)
            )
            if found is not None and not _agree(found, index):
                raise _accessed_twice(found, index, pair)
            found = index
        assert found is not None
        self._indices[root] = found
        return found

    def _affine(self, root: Axis, formula: AffineDim, domain: dict[LoopVar, int]) -> AxisIndex:
        """Return `stride*over + dilation*kernel + offset - left`, and record the margins."""
        terms, offset = _scale(formula.stride, self._index(formula.over, "o", domain))
        offset += formula.offset
        window = formula.window
        if window is not None:
            kernel_terms, kernel_offset = _scale(
                window.dilation, self._index(window.kernel, "k", domain)
            )
            terms += kernel_terms
            margin = Margin(0, formula.offset)
            if window.padded:
                span = 1 + (self._size(window.kernel) - 1) * window.dilation
                left = span // 2
                right = span - left + formula.offset - formula.stride  # of stride * windows cells
                margin = Margin(left, max(0, right))
            offset += kernel_offset - margin.left
            old = self._margins.get(root, Margin())
            self._margins[root] = Margin(max(old.left, margin.left), max(old.right, margin.right))
        return affine(terms, offset)

    def _concatenated(self, formula: ConcatDim, domain: dict[LoopVar, int]) -> AxisIndex:
        """Return the index of the selected part, or of all parts in sequence.

        All parts remain if an unselected part belongs to another axis as well, which must not
        select it either.
        """
        if len(formula.parts) == 1:
            return FixedIndex(0)
        roots = self._part_roots(formula)
        named = [root for root in roots if root is not None]
        taken = [root for root in named if root in self._plain] or named
        if len(taken) == 1 and all(self._axes_with[root] == 1 for root in {*named} - {*taken}):
            position = roots.index(taken[0])
            start = sum(self._size(part) for part in formula.parts[:position])
            index = self._index(formula.parts[position], "p", domain)
            return affine(*_shift(index, start))
        parts: list[IndexVar | int] = []
        for root, part in zip(roots, formula.parts, strict=True):
            if root is None:
                parts.append(self._size(part))
                continue
            index = self._index(part, "p", domain)
            assert isinstance(index, VarIndex), "parts of concatenations have loops"
            parts.append(index.var)
        return ConcatIndex(tuple(parts))

    def _part_roots(self, formula: ConcatDim) -> tuple[Axis | None, ...]:
        """Return the parts of a concatenated axis; None for skipped ones."""
        return tuple(None if isinstance(p, Size) else self._root(p) for p in formula.parts)

    def _root(self, dim: Dim) -> Axis | None:
        axis = self._axis(dim)
        return None if axis is None else self._find(axis)


def _scale(factor: int, index: AxisIndex) -> tuple[list[tuple[int, IndexVar]], int]:
    terms, offset = as_affine(index)
    return [(factor * coefficient, var) for coefficient, var in terms], factor * offset


def _shift(index: AxisIndex, distance: int) -> tuple[list[tuple[int, IndexVar]], int]:
    terms, offset = as_affine(index)
    return list(terms), offset + distance


def _agree(one: AxisIndex, other: AxisIndex) -> bool:
    if isinstance(one, ConcatIndex) or isinstance(other, ConcatIndex):
        return one == other
    (terms, offset), (other_terms, other_offset) = as_affine(one), as_affine(other)
    return set(terms) == set(other_terms) and offset == other_offset


def _reaching(margins: Sequence[Margin]) -> list[bool]:
    return [bool(margin.left or margin.right) for margin in margins]


def _accessed_twice(first: AxisIndex, second: AxisIndex, pair: DimBelow | DimEqual) -> ShapeError:
    return ShapeError(
        "An axis is accessed either at one position or at another.",
        found=f"position {_position(first)} and position {_position(second)}",
        where=place(pair),
        fix="use two operations",
    )


def _position(index: AxisIndex) -> str:
    match index:
        case FixedIndex(value):
            return str(value)
        case VarIndex(var):
            return _variable(var)
        case AffineIndex(terms, offset):
            text = " + ".join(f"{coefficient}*{_variable(var)}" for coefficient, var in terms)
            return text + (f" + {offset}" if offset else "")
        case ConcatIndex(parts):
            return "^".join(str(p) if isinstance(p, int) else _variable(p) for p in parts)
        case ComputedIndex():
            return "computed"
        case SubAxis():
            return "0"
        case _:
            assert_never(index)


def _variable(var: IndexVar) -> str:
    return var.name if isinstance(var, StaticIndex) else var.hint
