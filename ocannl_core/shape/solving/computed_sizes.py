"""Sizes computed from other sizes: strided, windowed and concatenated axes.

Every such size is a linear form of other sizes:

    stride*over                     -->  stride*over
    stride*over=+dilation*kernel    -->  stride*over
    stride*over<+dilation*kernel    -->  stride*over + dilation*kernel + (1 - stride - dilation)
    one^other                       -->  one + other

so that an equation is `sum(coefficient * unknown) = constant`. With one unknown it is solved; two
unknowns that cancel are unified; otherwise it waits for more sizes. Only sizes are substituted for
variables, so that cyclic formulas do not cause an endless loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from math import gcd
from typing import NamedTuple, assert_never

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.shape.language import shape_terms
from ocannl_core.shape.language.constraints import DimEqual
from ocannl_core.shape.solving import messages
from ocannl_core.shape.solving.state import SolverState


class SolutionRole(IntEnum):
    """The role of a size in a formula; lower roles are guessed before higher ones follow."""

    KERNEL = 0
    PART = 1
    WHOLE = 2


class Linear(NamedTuple):
    """`sum(coefficient * variable) + constant`; the variables are undecided representatives."""

    terms: dict[shape_terms.DimVar, int]
    constant: int


class SolutionOutcome(NamedTuple):
    """The consequences of an equation in the present state."""

    solved: tuple[shape_terms.DimVar, shape_terms.Size] | None = None
    """The one unknown, and its size."""
    same: tuple[shape_terms.DimVar, shape_terms.DimVar] | None = None
    """Two unknowns that are equal."""
    waits: bool = False
    """True if more sizes are needed."""


def linear(state: SolverState, dim: shape_terms.Dim, *, is_symbolic: bool = False) -> Linear:
    """Return a size as a linear form of its unknowns, or of all its variables."""
    match dim:
        case shape_terms.Size(n):
            return Linear({}, n)
        case shape_terms.DimVar():
            known = None if is_symbolic else state.size(dim)
            return Linear({state.find(dim): 1}, 0) if known is None else Linear({}, known.n)
        case shape_terms.AffineDim(stride, over, window):
            scaled = _combine((stride, linear(state, over, is_symbolic=is_symbolic)))
            if window is None or window.padded:
                return scaled
            kernel = linear(state, window.kernel, is_symbolic=is_symbolic)
            terms, constant = _combine((1, scaled), (window.dilation, kernel))
            return Linear(terms, constant + 1 - stride - window.dilation)
        case shape_terms.ConcatDim(parts):
            forms = (linear(state, part, is_symbolic=is_symbolic) for part in parts)
            return _combine(*((1, form) for form in forms))
        case _:
            assert_never(dim)


def difference(state: SolverState, equation: DimEqual) -> Linear:
    """Return the left side minus the right side, which is zero."""
    return _combine((1, linear(state, equation.left)), (-1, linear(state, equation.right)))


def _combine(*forms: tuple[int, Linear]) -> Linear:
    terms: dict[shape_terms.DimVar, int] = {}
    for factor, form in forms:
        for var, coefficient in form.terms.items():
            terms[var] = terms.get(var, 0) + factor * coefficient
    kept = {var: coefficient for var, coefficient in terms.items() if coefficient}
    return Linear(kept, sum(factor * form.constant for factor, form in forms))


def roles(equation: DimEqual) -> Iterator[tuple[shape_terms.DimVar, SolutionRole]]:
    """Yield the variables of an equation and their roles."""
    for side in (equation.left, equation.right):
        if isinstance(side, shape_terms.DimVar):
            yield side, SolutionRole.WHOLE
        else:
            yield from _roles_within(side)


def _roles_within(dim: shape_terms.Dim) -> Iterator[tuple[shape_terms.DimVar, SolutionRole]]:
    match dim:
        case shape_terms.DimVar():
            yield dim, SolutionRole.PART
        case shape_terms.AffineDim(over=over, window=window):
            yield from _roles_within(over)
            if window is not None:
                for var, _ in _roles_within(window.kernel):
                    yield var, SolutionRole.KERNEL
        case shape_terms.ConcatDim(parts):
            for part in parts:
                yield from _roles_within(part)
        case shape_terms.Size():
            return
        case _:
            assert_never(dim)


def solve(state: SolverState, equation: DimEqual) -> SolutionOutcome:
    """Solve an equation of sizes, at least one of them computed.

    Raises:
        ShapeError: if it has no solution.
    """
    _refuse_extents(state, equation)
    left, right = linear(state, equation.left), linear(state, equation.right)
    terms, excess = _combine((1, left), (-1, right))
    _check_windows(state, equation)
    if _is_from_itself(state, equation):
        raise messages.too_short(state, equation, itself=True)
    basis = _basis(state, equation)
    if not terms:
        if excess:
            raise messages.formula_fails(state, equation, left.constant, right.constant)
        return SolutionOutcome(solved=_propagate_basis(state, equation, basis))
    constant = -excess
    if constant % gcd(*terms.values()):
        raise messages.does_not_divide(state, equation)
    if len(terms) == 1:
        ((var, coefficient),) = terms.items()
        n = constant // coefficient
        if n < _least(state, equation, var):
            itself = var in left.terms and var in right.terms
            raise messages.too_short(state, equation, itself=itself)
        return SolutionOutcome(solved=(var, shape_terms.Size(n, basis)))
    if constant == 0 and len(terms) == 2 and sum(terms.values()) == 0:
        one, other = terms
        return SolutionOutcome(same=(one, other))
    if all(coefficient > 0 for coefficient in terms.values()):
        least = sum(c * _least(state, equation, var) for var, c in terms.items())
        if constant < least:
            raise messages.too_short(state, equation, itself=False)
    return SolutionOutcome(waits=True)


def _refuse_extents(state: SolverState, equation: DimEqual) -> None:
    """Refuse windows, strides and concatenation of axes whose extent is known at run time only."""
    for side in (equation.left, equation.right):
        for dim in shape_terms.plain_dims(side):
            size = state.size(dim)
            if size is not None and size.extent is not None:
                raise messages.computed_from_extent(state, equation, size.extent)


def _is_from_itself(state: SolverState, equation: DimEqual) -> bool:
    """Return True for a size that is a multiple of itself, and so could only be 0: x = 2*x."""
    left, right = (
        linear(state, side, is_symbolic=True) for side in (equation.left, equation.right)
    )
    terms, constant = _combine((1, left), (-1, right))
    return (
        len(terms) == 1 and not constant and terms.keys() <= left.terms.keys() & right.terms.keys()
    )


def _windows(dim: shape_terms.Dim) -> Iterator[shape_terms.AffineDim]:
    """Yield the windows in a size that must lie inside their axis."""
    if isinstance(dim, shape_terms.AffineDim):
        if dim.window is not None and not dim.window.padded:
            yield dim
        yield from _windows(dim.over)
    elif isinstance(dim, shape_terms.ConcatDim):
        for part in dim.parts:
            yield from _windows(part)


def _may_be_nowhere(state: SolverState, dim: shape_terms.AffineDim) -> bool:
    """Return True if windows may have no positions, since they part their axis, which then has no
    cells: their span is their distance, as far as is known.
    """
    assert dim.window is not None
    kernel = state.size(dim.window.kernel)
    return kernel is None or dim.window.dilation * (kernel.n - 1) + 1 == dim.stride


def _check_windows(state: SolverState, equation: DimEqual) -> None:
    """Refuse an empty axis under a window that must lie inside it, and an empty kernel."""
    for side in (equation.left, equation.right):
        for dim in _windows(side):
            assert dim.window is not None
            positions, kernel = state.size(dim.over), state.size(dim.window.kernel)
            is_misplaced = positions is not None and not positions.n
            is_misplaced = is_misplaced and not _may_be_nowhere(state, dim)
            if is_misplaced or (kernel is not None and kernel.n < 1):
                raise messages.too_short(state, equation, itself=False)


def _least(state: SolverState, equation: DimEqual, var: shape_terms.DimVar) -> int:
    """Return the least size that a variable can have in an equation."""
    for side in (equation.left, equation.right):
        for dim in _windows(side):
            assert dim.window is not None
            for part in (dim.over, dim.window.kernel):
                if isinstance(part, shape_terms.DimVar) and state.find(part) == var:
                    return int(part is dim.window.kernel or not _may_be_nowhere(state, dim))
    return 0


def _basis(state: SolverState, equation: DimEqual) -> str | None:
    """Return the known basis of an axis, its positions, its kernel and its parts."""
    sizes = [
        state.size(dim)
        for side in (equation.left, equation.right)
        for dim in shape_terms.plain_dims(side)
    ]
    bases = {size.basis: None for size in sizes if size is not None and size.basis is not None}
    if len(bases) > 1:
        raise messages.bases_of_formula_differ(state, equation, sorted(bases))
    return next(iter(bases), None)


def _propagate_basis(
    state: SolverState, equation: DimEqual, basis: str | None
) -> tuple[shape_terms.DimVar, shape_terms.Size] | None:
    """Return a size of an equation whose basis follows from the others."""
    if basis is None:
        return None
    for side in (equation.left, equation.right):
        for dim in shape_terms.plain_dims(side):
            size = state.size(dim)
            if isinstance(dim, shape_terms.DimVar) and size is not None and size.basis is None:
                return state.find(dim), replace(size, basis=basis)
    return None
