"""Inlining pass: choose the nodes to inline, and rewrite their reads.

The pass walks the top-level statements in order. At the first read of a node, its definition is
complete, with its own reads inlined already, so the decision falls there:

1. Nodes that the context stores stay in memory; so do nodes that may be read before they are
   written.
2. Nodes that no stored node depends on are removed.
3. A statement that writes the node must be inlinable (`find_definition_obstacle`).
4. Every read must be a load whose cell the definition can be solved for (`solve`).
5. No operand of the definition may be written between it and the read, except that a reader may
   write the very cell that it reads.
6. Cells read more often than `max_visits` must be cheap and unconditional: copies, constants,
   functions of the position, and products of a few numbers of arrays far smaller than the node.
   Equal reads in one stored value count once, except reads of a reduction: a shared reduction is no
   contraction any more.
7. A reduction is inlined only into code that visits the same cells once, so contractions never
   nest, and the scheduler finds contractions with their epilogues. The reduction must run along
   rows: schedules fuse other reductions with their consumers as well, and have more freedom while a
   cell holds the partial result.
8. Expressions stay below a depth and a size.

A later write may prove a decision wrong. Then the node is stored after all, and the pass restarts
with that fact; this is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import IndexMap
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import clone_expr, remove_unused_nodes, rewrite, walk
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, uint4x32
from ocannl_core.passes.loops.accesses import Accesses, NodeAccesses, analyze_accesses
from ocannl_core.passes.loops.definite_assignment import assigns_all
from ocannl_core.passes.loops.inline.definition import (
    InlinableDefinition,
    build_definition,
    find_definition_obstacle,
)
from ocannl_core.passes.loops.inline.invert_indices import NoSolution, Solution, solve
from ocannl_core.passes.loops.inline.readers import (
    chooses_parts,
    is_term,
    runs_along_rows,
    touches_only_own_cell,
    visits_same_cells,
)
from ocannl_core.passes.loops.inline.remove_definitions import find_live_statements, remove_nodes
from ocannl_core.passes.loops.inline.substitute import LocatedDefinition, build_cell_value
from ocannl_core.passes.loops.inline.zeros import is_addition, nodes_without_negative_zero
from ocannl_core.passes.loops.node_positions import NodePositions
from ocannl_core.passes.loops.statement_accesses import AccessSite, AnalyzedStatement
from ocannl_core.schedule.cost_model import cost, repeated_cost
from ocannl_core.schedule.machine_model import (
    MAX_BROADCAST_COST,
    MAX_EXPRESSION_DEPTH,
    MAX_EXPRESSION_NODES,
    MAX_REPEATED_COST,
)

_LEAST_SPREAD = 2
"""The least ratio of a node's size to its operands' size for recomputation at every read."""
_MOST_KEPT_ITERATIONS = 4
"""Limit on the iterations that a read tries when the position does not determine the iteration, of
a node that is requested. Reads of others try none: plain loops and no vectors would be their price.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """Profitability limits of inlining; the settings of the same names."""

    max_visits: int = 1
    max_tracing_dim: int = 5
    inline_scalar_constexprs: bool = True
    inline_simple_computations: bool = True
    inline_complex_computations: bool = False


@dataclass(frozen=True, slots=True)
class InliningResult:
    """A routine after inlining, and the decisions."""

    program: ir.LoopProgram
    virtual: Mapping[TensorNode, Placement]
    """The nodes that need no memory, and why."""
    refused: Mapping[TensorNode, Reason]
    """Why each of the others was not inlined."""
    definitions: Mapping[TensorNode, ir.Definition]
    """The definitions of the virtual nodes that are read."""
    definitely_assigned: frozenset[TensorNode]
    """Nodes whose cells are all written before they are read."""
    positive: frozenset[TensorNode]
    """Nodes that never hold `-0.0` when they are read."""


def inline(
    program: ir.LoopProgram,
    stored: Mapping[TensorNode, Placement],
    policy: Policy | None = None,
    requested: Collection[TensorNode] = (),
    vetoed: Collection[TensorNode] = (),
) -> InliningResult:
    """Inline the definitions of nodes into their readers.

    for i in range(4): b[i] = a[i] * 2
    for i in range(4): c[i] = b[i] + 1   -->   for i in range(4): c[i] = a[i] * 2 + 1

    Stored nodes are bit-identical.

    Args:
        requested: Nodes to inline wherever that is possible, profitable or not.
        vetoed: Nodes that the backend wants in memory.
    """
    accesses = analyze_accesses(program)
    refused = dict(_find_refused(accesses, stored, policy or Policy(), requested))
    refused |= {
        n: Reason.BACKEND_CHOICE for n in accesses.nodes if n in vetoed and n not in refused
    }
    live, needed = find_live_statements(accesses, refused.keys())
    revoked: dict[TensorNode, Reason] = {}
    while True:
        known = {**refused, **revoked}
        limits = policy or Policy()
        attempt = _InliningPass(program, accesses, live, needed, limits, requested, known)
        attempt.run()
        if not attempt.revoked:
            return attempt.result()
        revoked |= attempt.revoked


def _find_refused(
    accesses: Accesses,
    stored: Mapping[TensorNode, Placement],
    policy: Policy,
    requested: Collection[TensorNode],
) -> dict[TensorNode, Reason]:
    """Return the nodes that certainly need memory, with the reasons."""
    found: dict[TensorNode, Reason] = {}
    for node, facts in accesses.nodes.items():
        reason: Reason | None = None
        if facts.is_read_only:
            reason = Reason.READ_ONLY_KNOWN_STORED if node in stored else Reason.NO_SETTER
        elif node in stored:
            reason = Reason.ALREADY_STORED
        elif facts.is_read_before_write:
            reason = Reason.READ_BEFORE_WRITE
        elif policy.max_visits <= 0 and node not in requested:
            reason = Reason.INLINING_DISABLED
        if reason is not None:
            found[node] = reason
    return found


@dataclass(slots=True)
class _InliningPass:
    """One run over the top-level statements."""

    program: ir.LoopProgram
    accesses: Accesses
    live: frozenset[int]
    """Positions of the statements that stored nodes depend on."""
    needed: frozenset[TensorNode]
    """Nodes that stored nodes depend on."""
    policy: Policy
    requested: Collection[TensorNode]
    """Nodes exempt from those limits."""
    refused: dict[TensorNode, Reason]
    """Nodes that need memory, and why."""
    definitions: dict[TensorNode, list[InlinableDefinition]] = field(default_factory=dict)
    """The definitions of every other node up to the current statement."""
    settled: dict[TensorNode, int] = field(default_factory=dict)
    """Nodes that are virtual, with the number of their definitions at that decision."""
    inlined: set[TensorNode] = field(default_factory=set)
    """Nodes that some rewritten expression already contains."""
    revoked: dict[TensorNode, Reason] = field(default_factory=dict)
    """Inlined nodes that turned out to need memory."""
    rewritten: list[ir.Stmt] = field(default_factory=list)
    next_local: int = 0
    """An unused number for a scalar."""
    writes: NodePositions = field(default_factory=lambda: NodePositions(()))
    """The positions of the statements that write each node."""
    positive: frozenset[TensorNode] = frozenset()
    """Nodes that never hold `-0.0`."""

    def run(self) -> None:
        self.next_local = max(
            (analyzed.next_local for analyzed in self.accesses.statements), default=0
        )
        self.positive = nodes_without_negative_zero(self.accesses)
        written = ({site.node for site in each.writes} for each in self.accesses.statements)
        self.writes = NodePositions(written)
        for analyzed in self.accesses.statements:
            stmt = analyzed.stmt
            if analyzed.position in self.live:
                stmt = self.rewrite_statement(analyzed)
            self.rewritten.append(stmt)

    def rewrite_statement(self, analyzed: AnalyzedStatement) -> ir.Stmt:
        """Inline the virtual nodes that a statement reads."""
        written = [n for n in dict.fromkeys(s.node for s in analyzed.writes) if n in self.needed]
        for node in written:
            if node not in self.refused and (reason := find_definition_obstacle(analyzed, node)):
                self.refuse(node, reason)
        wanted = {s.node for s in analyzed.reads if s.node not in self.refused and not s.is_own}
        virtual = {node for node in wanted if self.is_virtual(node, analyzed)}
        stmt: ir.Stmt = analyzed.stmt
        if virtual:
            self.inlined |= virtual
            body = rewrite(stmt, *self.rules(analyzed, virtual))
            stmt = body.stmts[0] if len(body.stmts) == 1 else body
        for node in written:
            if node not in self.refused:
                self.record_definition(analyzed, stmt, node)
        return stmt

    def refuse(self, node: TensorNode, reason: Reason) -> None:
        self.refused[node] = reason
        if node in self.inlined:
            self.revoked[node] = reason

    def record_definition(
        self, analyzed: AnalyzedStatement, stmt: ir.Stmt, node: TensorNode
    ) -> None:
        computation = build_definition(analyzed, stmt, node, self.program.nodes[node])
        if computation.depth > MAX_EXPRESSION_DEPTH or computation.size > MAX_EXPRESSION_NODES:
            self.refuse(node, Reason.TOO_LARGE)
        self.definitions.setdefault(node, []).append(computation)

    def is_virtual(self, node: TensorNode, analyzed: AnalyzedStatement) -> bool:
        """Return True if a node can be inlined into a statement; decide again if it grew."""
        count = len(self.definitions.get(node, ()))
        if self.settled.get(node) == count:
            return True
        reason = self.find_obstacle(node, analyzed)
        if reason is None:
            self.settled[node] = count
            return True
        self.refuse(node, reason)
        return False

    def find_obstacle(self, node: TensorNode, analyzed: AnalyzedStatement) -> Reason | None:
        """Return why a node, as defined so far, needs memory; None if it does not."""
        facts, definitions = self.accesses.nodes[node], self.definitions.get(node, [])
        reads = [(p, site) for p, site in facts.reads if p in self.live]
        if any(not isinstance(s.access, ir.Load) or s.is_verbatim for _, s in reads):
            return Reason.SURVIVING_READ
        is_inside = any(site.node is node for site in analyzed.writes)
        if not definitions and not is_inside:
            return Reason.NO_COMPUTATION
        since = max((each.position for each in definitions if each.is_full_definition), default=-1)
        until = self.next_full_write(node, analyzed.position)
        since_then = tuple([read for read in reads if since < read[0] < until])
        if len(since_then) < len(facts.reads):
            facts = replace(facts, reads=since_then)
        if not is_inside and not any(each.repeats for each in definitions):
            facts = facts.merge_equal_reads()
        visits = facts.count_reads(self.policy.max_tracing_dim).most
        is_visited_often = visits > self.policy.max_visits and node not in self.requested
        if is_visited_often and not self._is_cheap(facts, definitions, is_inside, visits):
            return Reason.VISITED_TOO_OFTEN
        if is_inside:
            return Reason.OPERAND_OVERWRITTEN if self._changes_inside(node, analyzed) else None
        last = definitions[-1].position
        for position, site in reads:
            if last < position and not self.writes.is_between(node, last, position + 1):
                reason = self.find_read_obstacle(definitions, site, position, is_visited_often)
                if reason is not None:
                    return reason
        return None

    def _changes_inside(self, node: TensorNode, analyzed: AnalyzedStatement) -> bool:
        """Return True if a statement writes an operand of a node after computing the node."""
        order = [site.node for site in analyzed.writes]
        later = set(order[order.index(node) + 1 :]) - {node}
        pending, operands = [node], {node}
        while pending:
            each = pending.pop()
            found = {site.node for site in analyzed.reads if _writes(site.store, each)}
            found.update(*(one.operands for one in self.definitions.get(each, ())))
            pending += found - operands
            operands |= found
        return not operands.isdisjoint(later)

    def next_full_write(self, node: TensorNode, position: int) -> int:
        """Return the next statement after a position that assigns the whole node anew."""
        statements, facts = self.accesses.statements, self.accesses.nodes[node]
        return next(
            (
                later
                for later, site in facts.writes
                if later > position
                and assigns_all(site, facts.info)
                and not site.is_verbatim
                and not any(read.node is node for read in statements[later].reads)
            ),
            len(statements),
        )

    def _is_cheap(
        self,
        facts: NodeAccesses,
        definitions: list[InlinableDefinition],
        is_inside: bool,
        visits: int,
    ) -> bool:
        """Return True if a node may be computed at every read.

        Args:
            definitions: Its definitions so far.
            is_inside: True if the reading statement also defines it; `definitions` excludes that.
            visits: The greatest number of reads of a cell.
        """
        values = (s.value for d in definitions for s in walk(d.body) if isinstance(s, ir.Store))
        accessing = any(each.depends_on_memory for each in definitions) or (
            is_inside and facts.depends_on_memory
        )
        sums = accessing and any(each.reads_itself for each in definitions)
        is_complex = (
            any(each.is_complex or each.repeats for each in definitions)
            or (sums and not self._is_copy(definitions))
            or (is_inside and facts.is_complex)
            or repeated_cost(values, visits) > MAX_REPEATED_COST
        )
        if facts.is_constant or (facts.info.size == 1 and not accessing):
            return self.policy.inline_scalar_constexprs
        if is_complex and not (not is_inside and self._is_broadcast_product(definitions)):
            return self.policy.inline_complex_computations
        return self.policy.inline_simple_computations

    def _is_broadcast_product(self, definitions: list[InlinableDefinition]) -> bool:
        """Return True if a node is a few operations on nodes that are small beside it.

        An example is `a[i] * b[j]`: loading the product takes no less than computing it from
        operands in the cache. Rows of a small table are none: a gather in every term would keep
        schedules from the sums that read them.
        """
        if len(definitions) != 1 or definitions[0].repeats or not definitions[0].is_full_definition:
            return False
        if len(definitions[0].operands) < 2:
            return False
        (definition,) = definitions
        parts = list(walk(definition.body))
        stores = [each for each in parts if isinstance(each, ir.Store)]
        sizes = [self.program.nodes[operand].size for operand in definition.operands]
        return (
            len(stores) == 1
            and not any(isinstance(each, ir.Gather) for each in parts)
            and cost(stores[0].value) <= MAX_BROADCAST_COST
            and self.program.nodes[definition.node].size >= _LEAST_SPREAD * sum(sizes)
        )

    def _is_copy(self, definitions: list[InlinableDefinition]) -> bool:
        """Return True if a node starts at zero and one load is added to it."""
        if len(definitions) != 2 or definitions[0].indices is not None:
            return False
        (fill,) = definitions[0].body.stmts
        stores = [each for each in walk(definitions[1].body) if isinstance(each, ir.Store)]
        return (
            isinstance(fill, ir.Fill)
            and fill.value == 0
            and len(stores) == 1
            and is_addition(stores[0].value, stores[0].node, self.positive)
        )

    def find_read_obstacle(
        self,
        definitions: list[InlinableDefinition],
        site: AccessSite,
        position: int,
        is_visited_often: bool,
    ) -> Reason | None:
        """Return why one read needs the node in memory; None if it does not."""
        analyzed = self.accesses.statements[position]
        try:
            located = self.locate(definitions, site.indices or (), analyzed)
        except NoSolution as no_solution:
            return no_solution.reason
        if not located:
            return Reason.NO_COMPUTATION
        for definition, solution in located:
            if not all(
                self._is_unchanged(m, definition, solution, site, analyzed)
                for m in definition.operands
            ):
                return Reason.OPERAND_OVERWRITTEN
            if solution.conditions and is_visited_often:
                return Reason.VISITED_TOO_OFTEN
            if solution.conditions and self.program.nodes[definition.node].dtype is uint4x32:
                return Reason.INDEX_MISMATCH
            most = _MOST_KEPT_ITERATIONS if definition.node in self.requested else 1
            if prod(definition.loops[var].extent for var in solution.kept) > most:
                return Reason.TOO_LARGE
            if definition.node in self.requested:
                continue
            if is_term(site) and (
                solution.conditions or chooses_parts(definition, self.program.nodes)
            ):
                return Reason.PARTS_IN_REDUCTION
            if definition.repeats and not visits_same_cells(definition, solution, site, analyzed):
                return Reason.REDUCTION_FOR_OTHER_CELLS
            if not runs_along_rows(definition):
                return Reason.STRIDED_REDUCTION
        if sum(definition.size for definition, _ in located) > MAX_EXPRESSION_NODES:
            return Reason.TOO_LARGE
        return None

    def locate(
        self, definitions: list[InlinableDefinition], cell: IndexMap, analyzed: AnalyzedStatement
    ) -> list[LocatedDefinition]:
        """Return the definitions that may write a cell, with the iterations that do.

        Raises:
            NoSolution: if those cannot be expressed.
        """
        found: list[LocatedDefinition] = []
        for definition in definitions:
            if definition.indices is None:
                found = [(definition, Solution({}, {}))]  # overwrites all earlier values
                continue
            solution = solve(definition.indices, definition.loops, cell, analyzed.ranges)
            if solution is None:
                continue
            is_certain = definition.runs and not (solution.conditions or solution.kept)
            if is_certain and not definition.reads_itself:
                found = []  # overwrites the earlier values of this cell
            found.append((definition, solution))
        return found

    def _is_unchanged(
        self,
        operand: TensorNode,
        definition: InlinableDefinition,
        solution: Solution,
        site: AccessSite,
        analyzed: AnalyzedStatement,
    ) -> bool:
        """Return True if an operand has the same value at the reader as at the definition."""
        since, here = definition.position - 1, analyzed.position
        if self.writes.is_between(operand, since, here):
            return False
        is_written = self.writes.is_between(operand, here - 1, here + 1)
        return not is_written or touches_only_own_cell(
            operand, definition, solution, site, analyzed
        )

    def rules(
        self, analyzed: AnalyzedStatement, virtual: set[TensorNode]
    ) -> tuple[Callable[[ir.Stmt], ir.Stmt] | None, Callable[[ir.Expr], ir.Expr]]:
        """Return the rewrite rules for the statements and expressions of a top-level statement."""
        inside = {site.node for site in analyzed.writes}.intersection(virtual)
        current: dict[TensorNode, ir.Expr] = {}

        def statement(stmt: ir.Stmt) -> ir.Stmt:
            if isinstance(stmt, ir.Store) and stmt.node in inside:
                current[stmt.node] = stmt.value
            return stmt

        def expression(expr: ir.Expr) -> ir.Expr:
            if not isinstance(expr, ir.Load) or expr.node not in virtual:
                return expr
            if expr.node in current:
                return clone_expr(current[expr.node], self.new_local)
            if expr.node in inside:
                return expr  # the cell that is being written
            located = self.locate(self.definitions[expr.node], expr.indices, analyzed)
            return build_cell_value(
                expr.node, expr.dtype, expr.indices, located, self.new_local, self.positive
            )

        return statement if inside else None, expression

    def new_local(self, dtype: DType, node: TensorNode | None) -> ir.Local:
        self.next_local += 1
        return ir.Local(self.next_local - 1, dtype, node)

    def result(self) -> InliningResult:
        """Remove the dead definitions, and return the program with the decisions."""
        virtual: dict[TensorNode, Placement] = {}
        for node, facts in self.accesses.nodes.items():
            if node in self.refused:
                continue
            if facts.is_constant:
                reason = Reason.CONSTANT_SCALAR
            elif all(each.indices is None for each in self.definitions.get(node, ())):
                reason = Reason.INLINED_FILL
            else:
                reason = Reason.INLINED
            reason = Reason.INLINING_REQUESTED if node in self.requested else reason
            reason = reason if node in self.inlined else Reason.NEVER_READ
            virtual[node] = Placement(MemoryMode.VIRTUAL, reason)
        body = ir.Block(remove_nodes(self.rewritten, self.accesses.statements, virtual.keys()))
        return InliningResult(
            remove_unused_nodes(replace(self.program, body=body)),
            virtual,
            self.refused,
            {node: self.definition(node) for node in self.definitions if node in self.inlined},
            frozenset(
                node for node, facts in self.accesses.nodes.items() if facts.is_definitely_assigned
            ),
            self.positive,
        )

    def definition(self, node: TensorNode) -> ir.Definition:
        definitions = self.definitions[node]
        operands = frozenset(operand for each in definitions for operand in each.operands)
        overwritten = {
            operand
            for each in definitions
            for operand in each.operands
            if self.writes.is_between(operand, each.position - 1, len(self.accesses.statements))
        }
        body = tuple(stmt for each in definitions for stmt in each.body.stmts)
        has_merge = any(each.has_merge for each in definitions)
        return ir.Definition(body, operands, frozenset(overwritten), has_merge)


def _writes(stmt: ir.Stmt | None, node: TensorNode) -> bool:
    return isinstance(stmt, ir.Store) and stmt.node is node
