"""Systems of equations of sizes.

An equation with several unknown sizes waits; several equations together can determine them:

    o + k = 10,  o = 4*k  -->  k = 2,  o = 8

This is Gaussian elimination over the rational numbers, for each set of equations that share
unknowns. Its results are implied, not guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction

from ocannl_core.base.origin import Origin
from ocannl_core.shape.language.constraints import DimEqual, Formula
from ocannl_core.shape.language.shape_terms import DimVar, Size
from ocannl_core.shape.solving import messages
from ocannl_core.shape.solving.computed_sizes import difference
from ocannl_core.shape.solving.state import SolverState


def solve_systems(state: SolverState, formulas: Iterable[Formula]) -> list[DimEqual]:
    """Solve the waiting equations among formulas; return the sizes, and the pairs of equal sizes.

    Raises:
        ShapeError: if they have no solution.
    """
    found: list[DimEqual] = []
    for system in _systems(state, formulas):
        if len(system) > 1:
            found += _solve_system(state, system)
    return found


def _systems(state: SolverState, formulas: Iterable[Formula]) -> Iterable[list[DimEqual]]:
    """Partition the equations into systems that share unknowns (union-find)."""
    parents: dict[DimVar, DimVar] = {}

    def find(var: DimVar) -> DimVar:
        while parents[var] != var:
            parents[var] = parents[parents[var]]
            var = parents[var]
        return var

    equations = [formula for formula in formulas if isinstance(formula, DimEqual)]
    unknown = [tuple(difference(state, equation).terms) for equation in equations]
    for terms in unknown:
        for var in terms:
            parents.setdefault(var, var)
            parents[find(var)] = find(terms[0])
    systems: dict[DimVar | None, list[DimEqual]] = {}
    for equation, terms in zip(equations, unknown, strict=True):
        systems.setdefault(find(terms[0]) if terms else None, []).append(equation)
    return systems.values()


Combination = tuple[dict[DimVar, Fraction], Fraction]
"""`sum(coefficient * unknown) + constant`."""


def _solve_system(state: SolverState, system: Sequence[DimEqual]) -> list[DimEqual]:
    zeros = [_combination(state, equation) for equation in system]
    origins: dict[DimVar, Origin] = {}
    for equation, (mentioned, _) in zip(system, zeros, strict=True):
        for var in mentioned:
            origins.setdefault(var, equation.origin)
    solutions = _eliminate(zeros)
    if solutions is None:
        raise messages.contradictory(state, system)
    found: list[DimEqual] = []
    alike: dict[tuple[frozenset[tuple[DimVar, Fraction]], Fraction], DimVar] = {}
    for terms, _ in solutions.values():
        for free in terms:
            alike[frozenset({(free, Fraction(1))}), Fraction(0)] = free
    for var, (terms, size) in solutions.items():
        if terms:
            other = alike.setdefault((frozenset(terms.items()), size), var)
            if other != var:
                found.append(DimEqual(var, other, origins[var]))
        elif size.denominator != 1 or size < 0:
            raise messages.contradictory(state, system)
        else:
            found.append(DimEqual(var, Size(int(size)), origins[var]))
    return found


def _combination(state: SolverState, equation: DimEqual) -> Combination:
    """Return the difference of an equation's sides, which is zero."""
    terms, constant = difference(state, equation)
    return {var: Fraction(factor) for var, factor in terms.items()}, Fraction(constant)


def _eliminate(zeros: Sequence[Combination]) -> dict[DimVar, Combination] | None:
    """Return unknowns as combinations of the free ones (Gauss-Jordan); None if contradictory.

    Pivots are unknowns of few equations, so that the combinations of a long chain stay short.
    """
    mentions = Counter(var for terms, _ in zeros for var in terms)
    solutions: dict[DimVar, Combination] = {}
    users: dict[DimVar, set[DimVar]] = {}
    for zero in zeros:
        terms, constant = zero
        for var in list(terms):
            if var in solutions:
                terms, constant = _substitute(var, (terms, constant), solutions[var])
        if not terms:
            if constant:
                return None
            continue
        pivot = min(terms, key=lambda var: (mentions[var], var.id))
        factor = -terms[pivot]
        rest = {var: each / factor for var, each in terms.items() if var != pivot}
        solution = rest, constant / factor
        for var in users.pop(pivot, ()):
            solutions[var] = _substitute(pivot, solutions[var], solution)
            for free in rest:
                users.setdefault(free, set()).add(var)
        solutions[pivot] = solution
        for free in rest:
            users.setdefault(free, set()).add(pivot)
    return solutions


def _substitute(var: DimVar, combination: Combination, value: Combination) -> Combination:
    terms, constant = combination
    factor = terms.get(var)
    if factor is None:
        return combination
    combined = {other: each for other, each in terms.items() if other != var}
    for other, each in value[0].items():
        combined[other] = combined.get(other, Fraction(0)) + factor * each
    kept = {other: each for other, each in combined.items() if each}
    return kept, constant + factor * value[1]
