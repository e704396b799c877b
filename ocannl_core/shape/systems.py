"""Equations of sizes taken together.

An equation with several unknown sizes waits; a few of them can determine what none does alone:

    o + k = 10,  o = 4*k  -->  k = 2,  o = 8

This is Gaussian elimination over the rational numbers, for each set of equations that share
unknowns. What it finds is implied, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from ocannl_core.shape import formula_messages as messages
from ocannl_core.shape.constraints import DimEqual, Formula
from ocannl_core.shape.derived import difference
from ocannl_core.shape.state import State
from ocannl_core.shape.terms import DimVar, Size


def consequences(state: State, formulas: Iterable[Formula]) -> list[DimEqual]:
    """Returns the sizes, and the pairs of equal sizes, that waiting equations among formulas
    determine.

    Raises:
        ShapeError: if no sizes satisfy them.
    """
    found: list[DimEqual] = []
    for system in _systems(state, formulas):
        if len(system) > 1:
            found += _solved(state, system)
    return found


def _systems(state: State, formulas: Iterable[Formula]) -> Iterable[list[DimEqual]]:
    """Returns the equations, those that share unknowns together."""
    systems: dict[int, list[DimEqual]] = {}
    members: dict[DimVar, int] = {}
    for number, formula in enumerate(formulas):
        if not isinstance(formula, DimEqual):
            continue
        unknown = set(difference(state, formula).terms)
        shared = {members[var] for var in unknown if var in members}
        merged = [formula]
        for other in sorted(shared, reverse=True):
            merged = systems.pop(other) + merged
        systems[number] = merged
        members.update(dict.fromkeys(unknown, number))
        if shared:
            members = {var: number if at in shared else at for var, at in members.items()}
    return systems.values()


Combination = tuple[dict[DimVar, Fraction], Fraction]
"""`sum(coefficient * unknown) = constant`."""


def _solved(state: State, system: Sequence[DimEqual]) -> list[DimEqual]:
    origin = system[0].origin
    found: list[DimEqual] = []
    for terms, constant in _eliminated(_combinations(state, system)):
        if not terms:
            if constant:
                raise messages.contradictory(state, system)
        elif len(terms) == 1:
            ((var, coefficient),) = terms.items()
            size = constant / coefficient
            if size.denominator != 1 or size < 0:
                raise messages.contradictory(state, system)
            found.append(DimEqual(var, Size(int(size)), origin))
        elif len(terms) == 2 and not constant and not sum(terms.values()):
            one, other = terms
            found.append(DimEqual(one, other, origin))
    return found


def _combinations(state: State, system: Sequence[DimEqual]) -> list[Combination]:
    forms = (difference(state, equation) for equation in system)
    return [
        ({var: Fraction(factor) for var, factor in form.terms.items()}, Fraction(-form.constant))
        for form in forms
    ]


def _eliminated(rows: list[Combination]) -> list[Combination]:
    """Returns equivalent equations, each with one unknown that no other one has (Gauss, Jordan)."""
    done: list[Combination] = []
    pending = rows
    while pending:
        terms, constant = pending.pop(0)
        if not terms:
            done.append((terms, constant))
            continue
        pivot = min(terms, key=lambda var: var.id)
        factor = terms[pivot]
        row = {var: each / factor for var, each in terms.items()}, constant / factor
        done = [_without(pivot, other, row) for other in done]
        pending = [_without(pivot, other, row) for other in pending]
        done.append(row)
    return done


def _without(pivot: DimVar, equation: Combination, row: Combination) -> Combination:
    """Returns an equation minus the multiple of `row` that takes an unknown out of it."""
    terms, constant = equation
    factor = terms.get(pivot)
    if factor is None:
        return equation
    combined = dict(terms)
    for var, each in row[0].items():
        combined[var] = combined.get(var, Fraction(0)) - factor * each
    kept = {var: each for var, each in combined.items() if each}
    return kept, constant - factor * row[1]
