"""Choosing which nodes are computed where they are read, and rewriting the routine so.

One pass runs through the units in order. Before a unit reads a node for the first time, all that
computes the node is known, with what it reads inlined already, so the decision is made there:

1. What the context stores stays stored; so does what may be read before it is written.
2. What no stored node depends on is dropped.
3. A unit that writes the node must be able to run elsewhere (`computation.obstacle`).
4. Every read must be a load whose cell the definition can be solved for (`solve`).
5. Nothing that the definition reads may be written between it and the read; but a reader may write
   the very cell that it reads.
6. Cells read more often than `max_visits` must be cheap, and come without conditions: copies,
   constants, what depends on the position alone, and products of a few numbers that are spread over
   far more cells than those have. Equal reads in one stored value count once, unless they are of a
   reduction: shared, that would be no contraction any more.
7. A reduction is merged only into code that visits the same cells once; so a contraction never ends
   up inside another one, and the scheduler finds contractions with what follows them. It must
   run along rows: schedules join others with what follows them as well, and have more freedom while
   a cell holds the partial result.
8. Expressions stay below a depth and a size.

A decision may turn out wrong when a node is written again after it was inlined. Then the node is
stored after all, and the pass starts afresh; it does so rarely, and each time knows more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from math import prod

from ocannl_core.dtypes import DType, uint4x32
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import IndexMap
from ocannl_core.loopir.nodes import Block, Expr, Fill, Load, Local, LoopProgram, Stmt, Store
from ocannl_core.loopir.traverse import nodes_of, rewrite, walk
from ocannl_core.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.passes.accesses import Accesses, NodeAccesses, trace
from ocannl_core.passes.definite_assignment import assigns_all
from ocannl_core.passes.expression_cost import MOST_DEPTH, cost
from ocannl_core.passes.inline.definition import (
    MOST_SIZE,
    InlinableDefinition,
    inlinable_definition,
    obstacle,
)
from ocannl_core.passes.inline.invert_indices import NoSolution, Solution, solve
from ocannl_core.passes.inline.readers import (
    runs_along_rows,
    touches_only_own_cell,
    visits_same_cells,
)
from ocannl_core.passes.inline.remove_definitions import live_units, remove_nodes
from ocannl_core.passes.inline.substitute import Located, copy_of, value_of_cell
from ocannl_core.passes.inline.zeros import is_addition, nodes_without_negative_zero
from ocannl_core.passes.statement_accesses import AccessSite, AnalysedStatement

_LEAST_SPREAD = 2
"""So many times as large as all its operands together is a node that is computed at every read."""
_MOST_SPREAD_COST = 5
"""The most that computing such a cell costs: two operations on three numbers."""
_MOST_KEPT_ITERATIONS = 16
"""How many iterations may be tried for a cell because its position does not say which wrote it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What is worth inlining; the settings of the same names."""

    max_visits: int = 1
    max_tracing_dim: int = 5
    inline_scalar_constexprs: bool = True
    inline_simple_computations: bool = True
    inline_complex_computations: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """How to compute a virtual node elsewhere.

    Attributes:
        body: Stores to the node, with what virtual nodes contribute in place.
        operands: The nodes that it loads.
        overwritten: Those of them that the routine writes afterwards.
        has_merge: True if it reads a merge buffer.
    """

    body: tuple[Stmt, ...]
    operands: frozenset[TensorNode]
    overwritten: frozenset[TensorNode]
    has_merge: bool


@dataclass(frozen=True, slots=True)
class Inlined:
    """A routine after inlining, and what was decided.

    Attributes:
        program: The routine.
        virtual: The nodes that need no memory, and why.
        refused: Why each of the others needs some, as far as inlining is concerned.
        definitions: How to compute the virtual nodes that something reads.
        independent: Nodes whose cells are all written before they are read.
        positive: Nodes that never hold `-0.0` when they are read.
    """

    program: LoopProgram
    virtual: Mapping[TensorNode, Placement]
    refused: Mapping[TensorNode, Reason]
    definitions: Mapping[TensorNode, Definition]
    independent: frozenset[TensorNode]
    positive: frozenset[TensorNode]


def inline(
    program: LoopProgram,
    stored: Mapping[TensorNode, Placement],
    policy: Policy | None = None,
    requested: Collection[TensorNode] = (),
) -> Inlined:
    """Returns a program of the same meaning with the definitions of nodes where they are read.

    for i in range(4): b[i] = a[i] * 2
    for i in range(4): c[i] = b[i] + 1   -->   for i in range(4): c[i] = a[i] * 2 + 1

    The cells of stored nodes get the same bits.

    Args:
        program: The program.
        stored: Nodes that the context keeps.
        policy: What is worthwhile.
        requested: Nodes to inline wherever that is possible, worthwhile or not.
    """
    accesses = trace(program)
    refused = dict(_fixed(accesses, stored, policy or Policy(), requested))
    live, needed = live_units(accesses, refused.keys())
    late: dict[TensorNode, Reason] = {}
    while True:
        known = {**refused, **late}
        attempt = _Attempt(program, accesses, live, needed, policy or Policy(), requested, known)
        attempt.run()
        if not attempt.late:
            return attempt.result()
        late |= attempt.late


def _fixed(
    accesses: Accesses,
    stored: Mapping[TensorNode, Placement],
    policy: Policy,
    requested: Collection[TensorNode],
) -> dict[TensorNode, Reason]:
    """Returns the nodes that certainly need memory."""
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
class _Attempt:
    """One run through the units.

    Attributes:
        program: What is rewritten.
        accesses: What it does to each node.
        live: Positions of the units that something stored depends on.
        needed: Nodes that something stored depends on.
        policy: What is worthwhile.
        requested: Nodes of which that is not asked.
        refused: Nodes that need memory, and why.
        parts: The computations of every other node so far.
        settled: Nodes, and after how many of their computations they were found to be virtual.
        inlined: Nodes that some expression contains already.
        late: Nodes found to need memory after that.
        rewritten: The units so far.
        next_local: A number that no scalar variable has.
        writes: The units that write each node, in order.
        positive: Nodes that never hold `-0.0`.
    """

    program: LoopProgram
    accesses: Accesses
    live: frozenset[int]
    needed: frozenset[TensorNode]
    policy: Policy
    requested: Collection[TensorNode]
    refused: dict[TensorNode, Reason]
    parts: dict[TensorNode, list[InlinableDefinition]] = field(default_factory=dict)
    settled: dict[TensorNode, int] = field(default_factory=dict)
    inlined: set[TensorNode] = field(default_factory=set)
    late: dict[TensorNode, Reason] = field(default_factory=dict)
    rewritten: list[Stmt] = field(default_factory=list)
    next_local: int = 0
    writes: dict[TensorNode, list[int]] = field(default_factory=dict)
    positive: frozenset[TensorNode] = frozenset()

    def run(self) -> None:
        self.next_local = max((unit.next_local for unit in self.accesses.units), default=0)
        self.positive = nodes_without_negative_zero(self.accesses)
        for node, facts in self.accesses.nodes.items():
            self.writes[node] = list(dict.fromkeys(position for position, _ in facts.writes))
        for unit in self.accesses.units:
            stmt = unit.stmt
            if unit.position in self.live:
                stmt = self.unit(unit)
            self.rewritten.append(stmt)

    def unit(self, unit: AnalysedStatement) -> Stmt:
        """Returns a unit with the definitions of what it reads in place."""
        written = [n for n in dict.fromkeys(s.node for s in unit.writes) if n in self.needed]
        for node in written:
            if node not in self.refused and (reason := obstacle(unit, node)):
                self.refuse(node, reason)
        wanted = {s.node for s in unit.reads if s.node not in self.refused and not s.is_own}
        virtual = {node for node in wanted if self.is_virtual(node, unit)}
        stmt: Stmt = unit.stmt
        if virtual:
            self.inlined |= virtual
            body = rewrite(stmt, *self.rules(unit, virtual))
            stmt = body.stmts[0] if len(body.stmts) == 1 else body
        for node in written:
            if node not in self.refused:
                self.define(unit, stmt, node)
        return stmt

    def refuse(self, node: TensorNode, reason: Reason) -> None:
        self.refused[node] = reason
        if node in self.inlined:
            self.late[node] = reason

    def define(self, unit: AnalysedStatement, stmt: Stmt, node: TensorNode) -> None:
        """Notes what a unit computes of a node."""
        computation = inlinable_definition(unit, stmt, node, self.program.nodes[node])
        if computation.depth > MOST_DEPTH or computation.size > MOST_SIZE:
            self.refuse(node, Reason.TOO_LARGE)
        self.parts.setdefault(node, []).append(computation)

    # ----- decisions -----

    def is_virtual(self, node: TensorNode, unit: AnalysedStatement) -> bool:
        """Returns whether a node can be computed where the unit reads it; decides if need be."""
        count = len(self.parts.get(node, ()))
        if self.settled.get(node) == count:
            return True
        reason = self.obstacle(node, unit)
        if reason is None:
            self.settled[node] = count
            return True
        self.refuse(node, reason)
        return False

    def obstacle(self, node: TensorNode, unit: AnalysedStatement) -> Reason | None:
        """Returns why a node, as computed so far, needs memory; None if it does not."""
        facts, parts = self.accesses.nodes[node], self.parts.get(node, [])
        reads = [(p, site) for p, site in facts.reads if p in self.live]
        if any(not isinstance(s.by, Load) or s.is_staged for _, s in reads):
            return Reason.SURVIVING_READ
        is_inside = any(site.node is node for site in unit.writes)
        if not parts and not is_inside:
            return Reason.NO_COMPUTATION
        since = max((part.position for part in parts if part.is_fresh_start), default=-1)
        until = self.next_start(node, unit.position)
        facts = replace(facts, reads=tuple(read for read in reads if since < read[0] < until))
        if not is_inside and not any(part.repeats for part in parts):
            facts = facts.evaluated_once()
        visits = facts.visits(self.policy.max_tracing_dim).most
        is_visited_often = visits > self.policy.max_visits and node not in self.requested
        if is_visited_often and not self._is_cheap(facts, parts, is_inside):
            return Reason.VISITED_TOO_OFTEN
        if is_inside:
            return Reason.OPERAND_OVERWRITTEN if self._changes_inside(node, unit) else None
        later = self.writes[node]
        following = bisect_right(later, parts[-1].position)
        end = later[following] if following < len(later) else len(self.accesses.units)
        for position, site in reads:
            if parts[-1].position < position <= end and not self._is_within(node, position):
                reason = self.read_obstacle(parts, site, position, is_visited_often)
                if reason is not None:
                    return reason
        return None

    def _changes_inside(self, node: TensorNode, unit: AnalysedStatement) -> bool:
        """True if a unit that computes a node and reads it, in this order, writes something that
        the node is computed from after computing it.
        """
        order = [site.node for site in unit.writes]
        later = set(order[order.index(node) + 1 :]) - {node}
        pending, operands = [node], {node}
        while pending:
            each = pending.pop()
            found = {site.node for site in unit.reads if _writes(site.store, each)}
            found.update(*(part.operands for part in self.parts.get(each, ())))
            pending += found - operands
            operands |= found
        return not operands.isdisjoint(later)

    def next_start(self, node: TensorNode, position: int) -> int:
        """Returns the first unit behind a position that assigns all of a node anew."""
        units, facts = self.accesses.units, self.accesses.nodes[node]
        return next(
            (
                later
                for later, site in facts.writes
                if later > position
                and assigns_all(site, facts.info)
                and not site.is_staged
                and not any(read.node is node for read in units[later].reads)
            ),
            len(units),
        )

    def _is_within(self, node: TensorNode, position: int) -> bool:
        writes = self.writes[node]
        place = bisect_left(writes, position)
        return place < len(writes) and writes[place] == position

    def _is_cheap(
        self, facts: NodeAccesses, parts: list[InlinableDefinition], is_inside: bool
    ) -> bool:
        """Returns whether a node may be computed at every read.

        Args:
            facts: What the routine does to it.
            parts: What computes it so far.
            is_inside: True if the unit that reads it also computes it, which is not yet in `parts`.
        """
        accessing = any(part.is_accessing for part in parts) or (is_inside and facts.is_accessing)
        sums = accessing and any(part.reads_itself for part in parts)
        is_complex = (
            any(part.is_complex or part.repeats for part in parts)
            or (sums and not self._is_copy(parts))
            or (is_inside and facts.is_complex)
        )
        if facts.is_constant or (facts.info.size == 1 and not accessing):
            return self.policy.inline_scalar_constexprs
        if is_complex and not (not is_inside and self._is_spread(parts)):
            return self.policy.inline_complex_computations
        return self.policy.inline_simple_computations

    def _is_spread(self, parts: list[InlinableDefinition]) -> bool:
        """True if a node is a few operations on nodes that are small beside it, `a[i] * b[j]`:
        reading it from memory would take no less than computing it from what is near.
        """
        if len(parts) != 1 or parts[0].repeats or not parts[0].is_fresh_start:
            return False
        if len(parts[0].operands) < 2:
            return False
        (part,) = parts
        stores = [each for each in walk(part.body) if isinstance(each, Store)]
        sizes = [self.program.nodes[operand].size for operand in part.operands]
        return (
            len(stores) == 1
            and cost(stores[0].value) <= _MOST_SPREAD_COST
            and self.program.nodes[part.node].size >= _LEAST_SPREAD * sum(sizes)
        )

    def _is_copy(self, parts: list[InlinableDefinition]) -> bool:
        """True if a node starts at zero and one load is added, which is the load itself."""
        if len(parts) != 2 or parts[0].indices is not None:
            return False
        (fill,) = parts[0].body.stmts
        stores = [each for each in walk(parts[1].body) if isinstance(each, Store)]
        return (
            isinstance(fill, Fill)
            and fill.value == 0
            and len(stores) == 1
            and is_addition(stores[0].value, stores[0].node, self.positive)
        )

    def read_obstacle(
        self,
        parts: list[InlinableDefinition],
        site: AccessSite,
        position: int,
        is_visited_often: bool,
    ) -> Reason | None:
        """Returns why one read needs the node in memory; None if it does not."""
        unit = self.accesses.units[position]
        try:
            located = self.located(parts, site.indices or (), unit)
        except NoSolution as no_solution:
            return no_solution.reason
        if not located:
            return Reason.NO_COMPUTATION
        for part, solution in located:
            if not all(self._is_unchanged(m, part, solution, site, unit) for m in part.operands):
                return Reason.OPERAND_OVERWRITTEN
            if solution.conditions and is_visited_often:
                return Reason.VISITED_TOO_OFTEN
            if solution.conditions and self.program.nodes[part.node].dtype is uint4x32:
                return Reason.INDEX_MISMATCH
            if prod(part.loops[var].extent for var in solution.kept) > _MOST_KEPT_ITERATIONS:
                return Reason.TOO_LARGE
            if part.node in self.requested:
                continue
            if part.repeats and not visits_same_cells(part, solution, site, unit):
                return Reason.REDUCTION_FOR_OTHER_CELLS
            if not runs_along_rows(part):
                return Reason.STRIDED_REDUCTION
        if sum(part.size for part, _ in located) > MOST_SIZE:
            return Reason.TOO_LARGE
        return None

    def located(
        self, parts: list[InlinableDefinition], cell: IndexMap, unit: AnalysedStatement
    ) -> list[Located]:
        """Returns the computations that may write a cell, with the iterations that do.

        Raises:
            NoSolution: if those cannot be expressed.
        """
        found: list[Located] = []
        for part in parts:
            if part.indices is None:
                found = [(part, Solution({}, {}))]  # what was there before is gone
                continue
            solution = solve(part.indices, part.loops, cell, unit.ranges)
            if solution is None:
                continue
            is_certain = part.runs and not (solution.conditions or solution.kept)
            if is_certain and not part.reads_itself:
                found = []  # likewise
            found.append((part, solution))
        return found

    def _is_unchanged(
        self,
        operand: TensorNode,
        part: InlinableDefinition,
        solution: Solution,
        site: AccessSite,
        unit: AnalysedStatement,
    ) -> bool:
        """True if an operand has, where its reader is, the value that the definition would see."""
        writes = self.writes[operand]
        after = bisect_left(writes, part.position)
        if after == len(writes) or writes[after] > unit.position:
            return True
        return writes[after] == unit.position and touches_only_own_cell(
            operand, part, solution, site, unit
        )

    # ----- rewriting -----

    def rules(
        self, unit: AnalysedStatement, virtual: set[TensorNode]
    ) -> tuple[Callable[[Stmt], Stmt], Callable[[Expr], Expr]]:
        """Returns how statements and expressions of a unit are rewritten."""
        inside = {site.node for site in unit.writes}.intersection(virtual)
        current: dict[TensorNode, Expr] = {}

        def statement(stmt: Stmt) -> Stmt:
            if isinstance(stmt, Store) and stmt.node in inside:
                current[stmt.node] = stmt.value
            return stmt

        def expression(expr: Expr) -> Expr:
            if not isinstance(expr, Load) or expr.node not in virtual:
                return expr
            if expr.node in current:
                return copy_of(current[expr.node], self.new_local)
            if expr.node in inside:
                return expr  # the cell that is being written
            located = self.located(self.parts[expr.node], expr.indices, unit)
            return value_of_cell(
                expr.node, expr.dtype, expr.indices, located, self.new_local, self.positive
            )

        return statement, expression

    def new_local(self, dtype: DType, node: TensorNode | None) -> Local:
        self.next_local += 1
        return Local(self.next_local - 1, dtype, node)

    # ----- the result -----

    def result(self) -> Inlined:
        """Returns the program without the definitions that nothing reads any more."""
        virtual: dict[TensorNode, Placement] = {}
        for node, facts in self.accesses.nodes.items():
            if node in self.refused:
                continue
            if facts.is_constant:
                reason = Reason.CONSTANT_SCALAR
            elif all(part.indices is None for part in self.parts.get(node, ())):
                reason = Reason.INLINED_FILL
            else:
                reason = Reason.INLINED
            reason = Reason.INLINING_REQUESTED if node in self.requested else reason
            reason = reason if node in self.inlined else Reason.NEVER_READ
            virtual[node] = Placement(MemoryMode.VIRTUAL, reason)
        body = Block(remove_nodes(self.rewritten, self.accesses.units, virtual.keys()))
        used = set(nodes_of(body))
        return Inlined(
            replace(
                self.program,
                params=tuple(node for node in self.program.params if node in used),
                nodes={node: info for node, info in self.program.nodes.items() if node in used},
                body=body,
            ),
            virtual,
            self.refused,
            {node: self.definition(node) for node in self.parts if node in self.inlined},
            frozenset(node for node, facts in self.accesses.nodes.items() if facts.is_independent),
            self.positive,
        )

    def definition(self, node: TensorNode) -> Definition:
        parts = self.parts[node]
        operands = frozenset(operand for part in parts for operand in part.operands)
        overwritten = {
            operand
            for part in parts
            for operand in part.operands
            if self.writes[operand] and self.writes[operand][-1] >= part.position
        }
        body = tuple(stmt for part in parts for stmt in part.body.stmts)
        has_merge = any(part.has_merge for part in parts)
        return Definition(body, operands, frozenset(overwritten), has_merge)


def _writes(stmt: Stmt | None, node: TensorNode) -> bool:
    return isinstance(stmt, Store) and stmt.node is node
