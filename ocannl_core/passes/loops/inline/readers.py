"""Access patterns of the readers of a node."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.ir.indexing import substitute, variables
from ocannl_core.ir.loops.nodes import For, Gather, Load, Remark, Store, Ternary
from ocannl_core.ir.loops.ranges import index_range, ranges_of, visits_cells_once
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import TernaryOp
from ocannl_core.passes.loops.accesses import stores_repeatedly
from ocannl_core.passes.loops.inline.definition import InlinableDefinition
from ocannl_core.passes.loops.inline.invert_indices import Solution, is_one_to_one
from ocannl_core.passes.loops.statement_accesses import AccessSite, AnalyzedStatement


def _single_store(analyzed: AnalyzedStatement) -> AccessSite | None:
    """Return the store of a perfect loop nest around one store; None for other statements."""
    stmt = analyzed.stmt
    while isinstance(stmt, For):
        inner = [each for each in stmt.body.stmts if not isinstance(each, Remark)]
        if len(inner) != 1:
            return None
        (stmt,) = inner
    return analyzed.writes[0] if isinstance(stmt, Store) else None


def chooses_parts(definition: InlinableDefinition, nodes: Mapping[TensorNode, NodeInfo]) -> bool:
    """Return True if a definition reads a part of each of some tensors, and chooses by position
    which: it has loads outside of a tensor, in branches that do not run there.
    """
    choices = (each for each in walk(definition.body) if isinstance(each, Ternary))
    loads = (
        load
        for choice in choices
        if choice.op is TernaryOp.WHERE
        for side in (choice.second, choice.third)
        for load in walk(side)
        if isinstance(load, Load)
    )
    return not all(_is_inside(load, definition, nodes[load.node]) for load in loads)


def _is_inside(load: Load, definition: InlinableDefinition, info: NodeInfo) -> bool:
    for index, extent in zip(load.indices, info.buffer_dims, strict=True):
        reached = index_range(index, definition.loops)  # None: it depends on loops around
        if reached is not None and not 0 <= reached.low <= reached.high < extent:
            return False
    return True


def is_term(site: AccessSite) -> bool:
    """Return True if a reduction reads a node: several iterations store to one cell."""
    return isinstance(site.store, Store) and stores_repeatedly(site, site.store.indices)


def visits_same_cells(
    definition: InlinableDefinition,
    solution: Solution,
    site: AccessSite,
    analyzed: AnalyzedStatement,
) -> bool:
    """Return True if a reader visits each cell of a reduction once, and reduces nothing itself."""
    store = _single_store(analyzed)
    if store is None or site.store is not store.access or site.loops != store.loops:
        return False
    domain = ranges_of(store.loops)
    if solution.conditions or not visits_cells_once(store.indices or (), domain):
        return False
    return is_one_to_one(solution.values, definition.loops, domain, definition.cell_variables)


def runs_along_rows(definition: InlinableDefinition) -> bool:
    """Return True if all loads of a reduction have unit stride along its innermost loop.

    Other reductions are faster in memory, where a C compiler may interchange their loops: this
    keeps the order of the additions to each cell, while a sum in a register prevents the
    interchange. A schedule may tile the reduction, and computes the epilogue while the cells are in
    registers.
    """
    cell = definition.cell_variables
    innermost = next(reversed(list(definition.loops)), None)
    if innermost is None or all(var in cell for var in definition.loops):
        return True
    if innermost in cell:
        return False
    return all(
        innermost not in variables(index)
        for each in walk(definition.body)
        if isinstance(each, Load | Gather)
        for index in each.indices[:-1]
    )


def touches_only_own_cell(
    operand: TensorNode,
    definition: InlinableDefinition,
    solution: Solution,
    site: AccessSite,
    analyzed: AnalyzedStatement,
) -> bool:
    """Return True if a statement that writes an operand reads only the cell that it writes next.

    w[i] -= rate * t[i], where t[i] = w[i] * 2
    """
    store = _single_store(analyzed)
    if store is None or store.node is not operand or site.store is not store.access:
        return False
    if not visits_cells_once(store.indices or (), ranges_of(store.loops)):
        return False
    for each in walk(definition.body):
        if isinstance(each, Gather) and each.node is operand:
            return False
        if isinstance(each, Load) and each.node is operand:
            cell = tuple(substitute(index, solution.values) for index in each.indices)
            if cell != store.indices:
                return False
    return True
