"""Definitions of nodes: the program slices that compute them, and the obstacles to inlining."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from operator import is_

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import ComputedIndex, ConcatIndex, IndexMap, IndexVar, variables
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, ranges_of
from ocannl_core.ir.loops.traverse import Node, fold, locals_of, walk
from ocannl_core.ir.node import NodeInfo, Reason, TensorNode
from ocannl_core.passes.loops.definite_assignment import covers_array, follows_store, may_run_never
from ocannl_core.passes.loops.inline.invert_indices import check_definition
from ocannl_core.passes.loops.statement_accesses import AccessSite, AnalyzedStatement
from ocannl_core.schedule.cost_model import COMPUTES, READS, classify_cost


@dataclass(frozen=True, slots=True)
class InlinableDefinition:
    """The slice of a top-level statement that computes a node, with its operands inlined already.

    Attributes:
        body: Stores to the node, under their loops; or a fill of it.
        indices: The index map of all its stores; None for a fill.
        loops: The ranges of its loop variables, outermost first, except loops inside values.
        reads_itself: True if it combines with the previous value of the cell.
        repeats: True if several iterations contribute to one cell, here or inside a value.
        depends_on_memory: True if its value depends on other memory.
        is_complex: True if it computes a function of other memory.
        size: Its number of nodes of the loop language.
    """

    node: TensorNode
    position: int
    body: ir.Block
    indices: IndexMap | None
    loops: Mapping[IndexVar, Range]
    operands: frozenset[TensorNode]
    runs: bool = True
    writes_all: bool = True
    reads_itself: bool = False
    repeats: bool = False
    depends_on_memory: bool = False
    is_complex: bool = False
    has_merge: bool = False
    depth: int = 1
    size: int = 1

    @property
    def is_full_definition(self) -> bool:
        """Return True if the result is independent of the previous contents of the node."""
        return self.writes_all and not self.reads_itself

    @property
    def cell_variables(self) -> tuple[IndexVar, ...]:
        """Return the loop variables in the index map."""
        used = {var for index in self.indices or () for var in variables(index)}
        return tuple(var for var in self.loops if var in used)


def find_definition_obstacle(analyzed: AnalyzedStatement, node: TensorNode) -> Reason | None:
    """Return why a statement's definition of a node cannot be inlined; None if it can."""
    writes = [site for site in analyzed.writes if site.node is node]
    reason = next(
        (
            found
            for site in writes
            if (found := _find_store_obstacle(site, analyzed.next_local > 0))
        ),
        None,
    )
    if reason is not None:
        return reason
    if len({site.indices for site in writes}) > 1:
        return Reason.INCONSISTENT_INDICES
    indices = writes[0].indices
    if indices is None:
        return Reason.INCONSISTENT_INDICES if writes[0].loops or len(writes) > 1 else None
    reads = [site for site in analyzed.reads if site.node is node and not site.is_own]
    reason = next(
        (found for site in reads if (found := _find_read_obstacle(site, writes, analyzed))), None
    )
    if reason is not None:
        return reason
    loops: dict[IndexVar, Range] = {}
    for site in writes:
        for var, values in ranges_of(site.loops).items():
            if loops.setdefault(var, values) != values:
                return Reason.INCONSISTENT_INDICES
    return check_definition(indices, loops)


def _find_store_obstacle(site: AccessSite, has_locals: bool) -> Reason | None:
    if site.is_verbatim:
        return Reason.STAGED_CODE
    if isinstance(site.access, ir.CallExternal):
        return Reason.EXTERNAL_CALL
    if isinstance(site.access, ir.Repeat):
        return Reason.WRITTEN_BY_LOOP
    if isinstance(site.access, ir.StoreVector):
        return Reason.VECTOR_STORE
    if isinstance(site.access, ir.Scatter):
        return Reason.COMPUTED_POSITION
    if any(isinstance(i, (ConcatIndex, ComputedIndex)) for i in site.indices or ()):
        return Reason.CONCATENATED_INDEX
    if any(not loop.traced or loop.kind.resource is ir.Resource.DEVICE for loop in site.loops):
        return Reason.UNTRACED_LOOP
    if (
        has_locals
        and isinstance(site.access, ir.Store)
        and _uses_shared_variables(site.access.value)
    ):
        return Reason.DECLARED_VARIABLE
    return None


def _uses_shared_variables(value: ir.Expr) -> bool:
    locals = locals_of(value)
    if not locals:
        return False
    return bool(set(locals) - {each.local for each in walk(value) if isinstance(each, ir.Scoped)})


def _find_read_obstacle(
    read: AccessSite, writes: list[AccessSite], analyzed: AnalyzedStatement
) -> Reason | None:
    """Return why a read inside the defining statement prevents inlining."""
    if isinstance(read.store, ir.Store) and read.store.node is read.node:
        return Reason.INCONSISTENT_INDICES
    (write, *others) = writes
    store = write.access
    if (
        isinstance(store, ir.Store)
        and not others
        and not any(site.is_own and site.store is store for site in analyzed.reads)
        and follows_store(read, analyzed)
    ):
        return None
    shared = {loop.var for loop in write.loops}.intersection(loop.var for loop in read.loops)
    uses = [(Reason.ESCAPING_STORE_SYMBOL, index) for index in write.indices or ()]
    if isinstance(store, ir.Store):
        for each in walk(store.value):
            match each:
                case ir.Load() | ir.LoadMerge() | ir.Gather():
                    uses += [(Reason.ESCAPING_LOAD_SYMBOL, index) for index in each.indices]
                case ir.IndexValue(index):
                    uses.append((Reason.ESCAPING_INDEX_SYMBOL, index))
    escaping = (why for why, index in uses if shared.intersection(variables(index)))
    return next(escaping, Reason.READ_WITHIN_DEFINITION)


def build_definition(
    analyzed: AnalyzedStatement, stmt: ir.Stmt, node: TensorNode, info: NodeInfo
) -> InlinableDefinition:
    """Build the definition of a node by a top-level statement.

    Args:
        analyzed: The accesses of the original statement.
        stmt: The statement, with its operands inlined.
    """
    body = ir.Block(slice_writes(stmt, lambda written: written is node))
    writes = [site for site in analyzed.writes if site.node is node]
    if isinstance(writes[0].access, ir.Fill):
        return InlinableDefinition(node, analyzed.position, body, None, {}, frozenset())
    indices = writes[0].indices
    loops: dict[IndexVar, Range] = {}
    for site in writes:
        loops.update(ranges_of(site.loops))
    cell = {var for index in indices or () for var in variables(index)}
    repeats = any(values.extent > 1 and var not in cell for var, values in loops.items())
    traits = _Traits(node)
    taken, depth = traits.collect(body)
    combines = traits.reads_itself and (repeats or len(writes) > 1)
    return InlinableDefinition(
        node,
        analyzed.position,
        body,
        indices,
        loops,
        frozenset(traits.operands),
        any(not site.never_runs and not may_run_never(site) for site in writes),
        any(covers_array(site, info) and not site.never_runs for site in writes),
        traits.reads_itself,
        repeats or traits.has_inner_loops,
        bool(taken & READS),
        bool(taken & COMPUTES) or (combines and bool(taken & READS)),
        traits.has_merge,
        depth,
        traits.size,
    )


_LOOPS = 8
"""A part of cost classes: the node contains loops."""


@dataclass(slots=True)
class _Traits:
    """The properties of a definition, collected bottom-up.

    The attributes are as in `InlinableDefinition`.
    """

    node: TensorNode
    operands: set[TensorNode] = field(default_factory=set)
    reads_itself: bool = False
    has_inner_loops: bool = False
    has_merge: bool = False
    size: int = 0

    def collect(self, body: ir.Block) -> tuple[int, int]:
        """Account for all nodes; return the cost class and the depth of the body."""
        return fold(body, self._account)

    def _account(self, node: Node, parts: tuple[tuple[int, int], ...]) -> tuple[int, int]:
        self.size += 1
        inside = depth = 0
        for part, height in parts:
            inside |= part
            depth = max(depth, height)
        taken = classify_cost(node, inside, self.node) | inside & _LOOPS
        match node:
            case ir.Load(loaded) | ir.Gather(loaded):
                if loaded is self.node:
                    self.reads_itself = True
                else:
                    self.operands.add(loaded)
            case ir.LoadMerge():
                self.has_merge = True
            case ir.Store() if inside & _LOOPS:
                self.has_inner_loops = True
            case ir.For():
                taken = inside | _LOOPS  # see `repeats`
        return taken, depth + 1


def slice_writes(stmt: ir.Stmt, wanted: Callable[[TensorNode], bool]) -> tuple[ir.Stmt, ...]:
    """Return the stores and fills in a statement that write wanted nodes, under their loops."""
    match stmt:
        case ir.Store(written) | ir.Fill(written):
            return (stmt,) if wanted(written) else ()
        case ir.For(body=body):
            kept = slice_writes(body, wanted)
            same = len(kept) == len(body.stmts) and all(map(is_, kept, body.stmts))
            return (stmt if same else replace(stmt, body=ir.Block(kept)),) if kept else ()
        case ir.Block(stmts):
            return tuple([one for each in stmts for one in slice_writes(each, wanted)])
        case _:
            return ()
