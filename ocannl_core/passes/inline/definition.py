"""What defines a node: the part of a unit that writes it, and whether it could run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from operator import is_

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import ConcatIndex, IndexMap, IndexVar, variables
from ocannl_core.loopir.nodes import (
    AxisKind,
    Block,
    CallExternal,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Scoped,
    Stmt,
    Store,
    StoreVector,
)
from ocannl_core.loopir.ranges import Range
from ocannl_core.loopir.traverse import Node, fold, locals_of, walk
from ocannl_core.node import NodeInfo, Reason, TensorNode
from ocannl_core.passes.accesses import Cost, cost
from ocannl_core.passes.definite_assignment import follows_store, is_whole, ranges_of
from ocannl_core.passes.inline.invert_indices import check_definition
from ocannl_core.passes.statement_accesses import AccessSite, AnalysedStatement

MOST_SIZE = 256
"""The nodes of the loop language of the largest inlined computation."""


@dataclass(frozen=True, slots=True)
class InlinableDefinition:
    """The part of a unit that computes a node, with what it reads inlined already.

    Attributes:
        node: What it computes.
        position: Where its unit is in the routine.
        body: Stores to the node, under their loops; or a fill of it.
        indices: The index map of all its stores; None for a fill.
        loops: The ranges of its loop variables, outermost first, those inside values left out.
        operands: The other nodes that it loads.
        runs: True unless its loops are empty.
        writes_all: True if it writes every cell.
        reads_itself: True if it combines with what is in the node.
        repeats: True if several iterations contribute to one cell, here or inside a value.
        is_accessing: True if its value depends on other memory.
        is_complex: True if it computes something from other memory.
        has_merge: True if it reads a merge buffer.
        depth: How deep its values nest.
        size: How many nodes of the loop language it is made of.
    """

    node: TensorNode
    position: int
    body: Block
    indices: IndexMap | None
    loops: Mapping[IndexVar, Range]
    operands: frozenset[TensorNode]
    runs: bool = True
    writes_all: bool = True
    reads_itself: bool = False
    repeats: bool = False
    is_accessing: bool = False
    is_complex: bool = False
    has_merge: bool = False
    depth: int = 1
    size: int = 1

    @property
    def is_fresh_start(self) -> bool:
        """True if nothing that was in the node before matters afterwards."""
        return self.writes_all and not self.reads_itself

    @property
    def cell_variables(self) -> tuple[IndexVar, ...]:
        """The loop variables that choose the cell."""
        used = {var for index in self.indices or () for var in variables(index)}
        return tuple(var for var in self.loops if var in used)


def obstacle(unit: AnalysedStatement, node: TensorNode) -> Reason | None:
    """Returns why what a unit does to a node cannot run elsewhere; None if it can."""
    writes = [site for site in unit.writes if site.node is node]
    reason = next(
        (found for site in writes if (found := _store_obstacle(site, unit.next_local > 0))), None
    )
    if reason is not None:
        return reason
    if len({site.indices for site in writes}) > 1:
        return Reason.INCONSISTENT_INDICES
    indices = writes[0].indices
    if indices is None:
        return Reason.INCONSISTENT_INDICES if writes[0].loops or len(writes) > 1 else None
    reads = [site for site in unit.reads if site.node is node and not site.is_own]
    reason = next((found for site in reads if (found := _read_obstacle(site, writes, unit))), None)
    if reason is not None:
        return reason
    loops: dict[IndexVar, Range] = {}
    for site in writes:
        for var, values in ranges_of(site.loops).items():
            if loops.setdefault(var, values) != values:
                return Reason.INCONSISTENT_INDICES
    return check_definition(indices, loops)


def _store_obstacle(site: AccessSite, has_locals: bool) -> Reason | None:
    if site.is_staged:
        return Reason.STAGED_CODE
    if isinstance(site.by, CallExternal):
        return Reason.EXTERNAL_CALL
    if isinstance(site.by, StoreVector):
        return Reason.VECTOR_STORE
    if any(isinstance(index, ConcatIndex) for index in site.indices or ()):
        return Reason.CONCATENATED_INDEX
    if any(not loop.traced or loop.kind in (AxisKind.GRID, AxisKind.BLOCK) for loop in site.loops):
        return Reason.UNTRACED_LOOP
    if has_locals and isinstance(site.by, Store) and _uses_shared_variables(site.by.value):
        return Reason.DECLARED_VARIABLE
    return None


def _uses_shared_variables(value: Expr) -> bool:
    locals = locals_of(value)
    if not locals:
        return False
    return bool(set(locals) - {each.local for each in walk(value) if isinstance(each, Scoped)})


def _read_obstacle(
    read: AccessSite, writes: list[AccessSite], unit: AnalysedStatement
) -> Reason | None:
    """Returns why a read inside the unit that computes the node prevents inlining it."""
    if isinstance(read.store, Store) and read.store.node is read.node:
        return Reason.INCONSISTENT_INDICES
    (write, *others) = writes
    store = write.by
    if (
        isinstance(store, Store)
        and not others
        and not any(site.is_own and site.store is store for site in unit.reads)
        and follows_store(read, unit)
    ):
        return None
    shared = {loop.var for loop in write.loops}.intersection(loop.var for loop in read.loops)
    uses = [(Reason.ESCAPING_STORE_SYMBOL, index) for index in write.indices or ()]
    if isinstance(store, Store):
        for each in walk(store.value):
            match each:
                case Load() | LoadMerge() | Gather():
                    uses += [(Reason.ESCAPING_LOAD_SYMBOL, index) for index in each.indices]
                case IndexValue(index):
                    uses.append((Reason.ESCAPING_INDEX_SYMBOL, index))
                case _:
                    pass
    escaping = (why for why, index in uses if shared.intersection(variables(index)))
    return next(escaping, Reason.READ_WITHIN_DEFINITION)


def inlinable_definition(
    unit: AnalysedStatement, stmt: Stmt, node: TensorNode, info: NodeInfo
) -> InlinableDefinition:
    """Returns what a unit does to a node.

    Args:
        unit: The unit as it was.
        stmt: Its statement, with what it reads inlined.
        node: What it computes, with no obstacle to that.
        info: What is known of the node.
    """
    body = _slice(stmt, node)
    writes = [site for site in unit.writes if site.node is node]
    if isinstance(writes[0].by, Fill):
        return InlinableDefinition(node, unit.position, body, None, {}, frozenset())
    indices = writes[0].indices
    loops: dict[IndexVar, Range] = {}
    for site in writes:
        loops.update(ranges_of(site.loops))
    cell = {var for index in indices or () for var in variables(index)}
    repeats = any(values.extent > 1 and var not in cell for var, values in loops.items())
    traits = _Traits(node)
    taken, depth, _ = fold(body, traits.combine)
    combines = traits.reads_itself and (repeats or len(writes) > 1)
    return InlinableDefinition(
        node,
        unit.position,
        body,
        indices,
        loops,
        frozenset(traits.operands),
        any(not site.never_runs for site in writes),
        any(is_whole(site, info) and not site.never_runs for site in writes),
        traits.reads_itself,
        repeats or traits.has_inner_loops,
        taken.reads,
        taken.computes or (combines and taken.reads),
        traits.has_merge,
        depth,
        traits.size,
    )


_Inner = tuple[Cost, int, bool]
"""Of a node of the loop language: what it costs, its depth, and whether it contains loops."""


@dataclass(slots=True)
class _Traits:
    """What a computation consists of, collected from the inside out.

    The attributes are those of `InlinableDefinition`.
    """

    node: TensorNode
    operands: set[TensorNode] = field(default_factory=set)
    reads_itself: bool = False
    has_inner_loops: bool = False
    has_merge: bool = False
    size: int = 0

    def combine(self, node: Node, inner: tuple[_Inner, ...]) -> _Inner:
        """Takes a node into account, given what is inside."""
        self.size += 1
        taken = cost(node, [each[0] for each in inner], self.node)
        has_loops = any(each[2] for each in inner)
        match node:
            case Load(loaded) | Gather(loaded):
                if loaded is self.node:
                    self.reads_itself = True
                else:
                    self.operands.add(loaded)
            case LoadMerge():
                self.has_merge = True
            case Store() if has_loops:
                self.has_inner_loops = True
            case For():
                computes = any(each[0].computes for each in inner)  # repeating is counted apart
                taken = taken._replace(computes=computes)
                has_loops = True
            case _:
                pass
        return taken, 1 + max((each[1] for each in inner), default=0), has_loops


def _slice(stmt: Stmt, node: TensorNode) -> Block:
    """Returns the stores to one node, under their loops."""
    return Block(only_writes(stmt, lambda written: written is node))


def only_writes(stmt: Stmt, wanted: Callable[[TensorNode], bool]) -> tuple[Stmt, ...]:
    """Returns the stores and fills in a statement that write wanted nodes, under their loops."""

    def combine(each: Node, inner: tuple[tuple[Stmt, ...], ...]) -> tuple[Stmt, ...]:
        kept = tuple(one for group in inner for one in group)
        match each:
            case Store(written) | Fill(written) if wanted(written):
                return (each,)
            case For(body=body) if kept:
                same = len(kept) == len(body.stmts) and all(map(is_, kept, body.stmts))
                return (each if same else replace(each, body=Block(kept)),)
            case _:
                return kept

    return fold(stmt, combine, nested_statements)


def nested_statements(node: Node) -> tuple[Node, ...]:
    """Returns the statements directly inside loops and blocks; values are not looked into."""
    match node:
        case For(body=body):
            return body.stmts
        case Block(stmts):
            return stmts
        case _:
            return ()
