"""How the code that reads a node goes through its cells, as far as inlining must know."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.indexing import (
    IndexVar,
    LoopVar,
    Projections,
    is_injective,
    substitute,
    variables,
)
from ocannl_core.loopir.nodes import For, Gather, Load, Remark, Store
from ocannl_core.loopir.ranges import Range
from ocannl_core.loopir.traverse import walk
from ocannl_core.node import TensorNode
from ocannl_core.passes.definite_assignment import ranges_of
from ocannl_core.passes.inline.definition import InlinableDefinition
from ocannl_core.passes.inline.invert_indices import Solution, is_one_to_one
from ocannl_core.passes.statement_accesses import AccessSite, AnalysedStatement


def _single_store(unit: AnalysedStatement) -> AccessSite | None:
    """Returns the store of a unit that is a chain of loops around one store; None of others."""
    stmt = unit.stmt
    while isinstance(stmt, For):
        inner = [each for each in stmt.body.stmts if not isinstance(each, Remark)]
        if len(inner) != 1:
            return None
        (stmt,) = inner
    return unit.writes[0] if isinstance(stmt, Store) else None


def _is_injective(store: AccessSite, loops: Mapping[IndexVar, Range]) -> bool:
    domain = tuple((var, each.extent) for var, each in loops.items() if isinstance(var, LoopVar))
    indices = store.indices or ()
    return is_injective(Projections(domain, indices, (), (1,) * len(indices), ()))


def visits_same_cells(
    part: InlinableDefinition, solution: Solution, site: AccessSite, unit: AnalysedStatement
) -> bool:
    """True if a reader runs over the cells of a reduction, each once, and reduces nothing."""
    store = _single_store(unit)
    if store is None or site.store is not store.by or site.loops != store.loops:
        return False
    domain = ranges_of(store.loops)
    if solution.conditions or not _is_injective(store, domain):
        return False
    return is_one_to_one(solution.values, part.loops, domain, part.cell_variables)


def runs_along_rows(part: InlinableDefinition) -> bool:
    """True if the innermost loop of a reduction moves to the neighbouring cell in all it reads.

    Other reductions are faster in memory, where a compiler may exchange their loops: that keeps the
    order of the additions to each cell, which a sum in a register would not leave room for. A
    schedule may add up a part at a time, and computes what follows while the cells are at hand.
    """
    cell = part.cell_variables
    innermost = next(reversed(list(part.loops)), None)
    if innermost is None or all(var in cell for var in part.loops):
        return True
    if innermost in cell:
        return False
    return all(
        innermost not in variables(index)
        for each in walk(part.body)
        if isinstance(each, Load | Gather)
        for index in each.indices[:-1]
    )


def touches_only_own_cell(
    operand: TensorNode,
    part: InlinableDefinition,
    solution: Solution,
    site: AccessSite,
    unit: AnalysedStatement,
) -> bool:
    """True if a unit that writes an operand reads, of all its cells, only the one it writes next.

    w[i] -= rate * t[i], where t[i] = w[i] * 2
    """
    store = _single_store(unit)
    if store is None or store.node is not operand or site.store is not store.by:
        return False
    if not _is_injective(store, ranges_of(store.loops)):
        return False
    for each in walk(part.body):
        if isinstance(each, Gather) and each.node is operand:
            return False
        if isinstance(each, Load) and each.node is operand:
            cell = tuple(substitute(index, solution.values) for index in each.indices)
            if cell != store.indices:
                return False
    return True
