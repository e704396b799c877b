"""Recomputation within a budget: values that a routine would keep are computed again.

    a = f(x)                             a = f(x)
    b = g(a)                             b = g(a)
    c = h(b)                     -->     c = h(b)
    d = backpropagation of h             d = backpropagation of h
    e = backpropagation of g(d, a)       a2 = f(x)
                                         e = backpropagation of g(d, a2)

The memory of `a` is free between `g` and its recomputation. A value is computed again from whatever
its statements read, which lives longer then, or is itself computed again.

The pass frees the most bytes for each operation first, until the nodes that live at the same time
fit the budget. The measure is the sum, over all statements, of live bytes beyond the budget; so a
step counts that lowers one of several equal peaks. Values that are private to the iterations of a
repetition come last: they fit what the nodes around it leave of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field
from enum import Enum
from itertools import count, pairwise

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import ById
from ocannl_core.base.rounding import round_up
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import (
    Node,
    clone_stmt,
    free_locals,
    introduced_locals,
    merge_reads,
    reads,
    rename_local,
    rewrite,
    walk,
    writes,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.passes.loops.node_positions import NodePositions
from ocannl_core.schedule.cost_model import cost
from ocannl_core.schedule.machine_model import CACHE_LINE_BYTES

_MOST_TRIED = 8
"""Candidates that are compared exactly in each round, those with the most bytes by cost."""
_LONGEST_CHAIN = 64
"""Values that are computed again for the sake of one."""
_LOWERED = 8
"""The part of a peak, its eighth, by which it is to be lowered further."""
_TOLERATED = 4
"""The part of the budget, its fourth, by which repetitions may exceed it here: later fusion of
their kernels frees about as much, and less if values are computed again.
"""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A statement at the top level, with its accesses."""

    stmt: ir.Stmt
    reads: frozenset[TensorNode]
    writes: frozenset[TensorNode]
    accessed: frozenset[TensorNode]
    cost: int
    inner: int
    """The bytes that it needs for nodes of its own, if it is a repetition."""
    is_plain: bool
    """True for loop nests, which can be repeated, and in which nodes can be renamed."""
    names: Mapping[TensorNode, TensorNode] = field(default_factory=dict)
    """The nodes that it accesses, by those in its statement; empty for the same ones. Most renamed
    statements are dropped with the programs that they are tried in.
    """
    is_clone: bool = False
    """True for a repetition, which has loop variables of its own."""


@dataclass(frozen=True, slots=True)
class _State:
    """A program while values are moved."""

    entries: tuple[_Entry, ...]
    nodes: Mapping[TensorNode, NodeInfo]
    own: Mapping[TensorNode, int]
    """The bytes in the arena of the nodes whose memory belongs to the routine."""
    roots: Mapping[TensorNode, TensorNode]
    """The node of which a node is a copy that is computed again; itself for others."""
    sources: Mapping[TensorNode, tuple[_Entry, ...]]


def recompute_within_budget(program: ir.LoopProgram, budget: int) -> ir.LoopProgram:
    """Return a program that computes values again so that the nodes of the routine that live at the
    same time take at most a number of bytes, as far as possible.

    Args:
        program: The program, with its scratch allocated.
        budget: The bytes; 0 for as few as possible.
    """
    allocations = [s for s in program.body.stmts if isinstance(s, ir.Allocate)]
    first = _first_state(program, allocations)
    state = _with_smaller_iterations(_within(first, budget), budget)
    if state is first:
        return program
    used = {node for each in state.entries for node in each.accessed}
    added = [
        ir.Allocate(node, ir.Scope.ROUTINE) for node in state.nodes if node not in program.nodes
    ]
    kept = [each for each in (*allocations, *added) if each.node in used]
    return replace(
        program,
        nodes={n: info for n, info in state.nodes.items() if n in used or n in program.params},
        body=ir.Block((*kept, *_with_own_variables(state.entries))),
    )


def _with_own_variables(entries: Sequence[_Entry]) -> list[ir.Stmt]:
    """Return the statements, of which no two declare the same scalar variable. External calls may
    stand between a value and its recomputation.
    """
    stmts = [_statement(each) for each in entries]
    declared = [introduced_locals(each) for each in stmts]
    unused = count(1 + max((local.id for each in declared for local in each), default=-1))
    seen: set[ir.Local] = set()
    found = []
    for stmt, variables in zip(stmts, declared, strict=True):
        for local in [each for each in variables if each in seen]:
            stmt = rename_local(stmt, local, replace(local, id=next(unused)))
        seen.update(variables)
        found.append(stmt)
    return found


def _within(first: _State, budget: int) -> _State:
    """Return a program that computes values again until it fits a budget, as far as possible.

    Where the budget is out of reach, the excess decreases at all peaks alike, and no value is left
    to compute again before the highest peak is as low as possible. Further rounds have a budget
    just below that peak.
    """
    state = _with_less_excess(first, budget)
    while (peak := _most_live_bytes(state)) > budget:
        goal = max((peak + budget) // 2, peak - peak // _LOWERED)
        further = _with_less_excess(state, goal)
        if _most_live_bytes(further) >= peak:
            break
        state = further
    return state


def _with_less_excess(first: _State, budget: int) -> _State:
    """Return a program that computes values again until none has less excess over a budget."""
    state, excess = first, _excess(first, budget)
    refused: set[tuple[TensorNode, ById]] = set()
    while excess > 0:
        found, best, tried = None, 0.0, 0
        places = _Places(state)
        for node, reader in _candidates(state, places, budget, refused):
            changed = [_recomputed(state, places, node, reader, way) for way in Operands]
            gains = [_gain(state, excess, each, budget) for each in changed]
            if max(gains) > best:
                best, found = max(gains), changed[gains.index(max(gains))]
            if max(gains) <= 0:
                refused.add((node, ById(reader)))
                continue
            tried += 1
            if tried == _MOST_TRIED:
                break
        if found is None:
            break
        state, excess = found, _excess(found, budget)
    return state


def _with_smaller_iterations(state: _State, budget: int) -> _State:
    """Return a program whose repetitions, with what lives around them, meet a budget."""
    live = _live_bytes(state.entries, state.own)
    entries = tuple(
        _smaller(entry, state.nodes, budget - int(here) + entry.inner)
        if here > budget + budget // _TOLERATED and entry.inner
        else entry
        for entry, here in zip(state.entries, live, strict=True)
    )
    changed = any(one is not other for one, other in zip(entries, state.entries, strict=True))
    return replace(state, entries=entries) if changed else state


def _smaller(entry: _Entry, nodes: Mapping[TensorNode, NodeInfo], budget: int) -> _Entry:
    """Return a repetition whose private values fit a budget, as far as possible."""
    repeat = entry.stmt
    assert isinstance(repeat, ir.Repeat)
    private = dict(repeat.private)
    body = [_entry(each) for each in repeat.body.stmts]
    first = _state_of(body, {**nodes, **private}, private.keys())
    found = _with_smaller_iterations(_within(first, max(budget, 0)), max(budget, 0))
    if found is first:
        return entry
    used = {node for each in found.entries for node in each.accessed}
    kept = tuple((n, info) for n, info in found.nodes.items() if n in found.own and n in used)
    return _entry(
        replace(repeat, body=ir.Block(tuple(_with_own_variables(found.entries))), private=kept)
    )


def needed_bytes(program: ir.LoopProgram) -> int:
    """Return the most bytes of nodes of a routine that live at the same time."""
    allocations = [s for s in program.body.stmts if isinstance(s, ir.Allocate)]
    return _most_live_bytes(_first_state(program, allocations))


def _most_live_bytes(state: _State) -> int:
    return int(_live_bytes(state.entries, state.own).max(initial=0))


def _first_state(program: ir.LoopProgram, allocations: Sequence[ir.Allocate]) -> _State:
    entries = [_entry(s) for s in program.body.stmts if not isinstance(s, ir.Allocate)]
    own = {each.node for each in allocations if each.scope is ir.Scope.ROUTINE}
    return _state_of(entries, program.nodes, own)


def _state_of(
    entries: Sequence[_Entry], nodes: Mapping[TensorNode, NodeInfo], own: Set[TensorNode]
) -> _State:
    written: dict[TensorNode, list[_Entry]] = {}
    for entry in entries:
        for node in entry.writes:
            written.setdefault(node, []).append(entry)
    sources = {
        node: tuple(source)
        for node, source in written.items()
        if node in own and all(each.is_plain and each.writes == {node} for each in source)
    }
    sizes = {node: _size(info) for node, info in nodes.items() if node in own}
    return _State(tuple(entries), nodes, sizes, {node: node for node in sizes}, sources)


def _entry(stmt: ir.Stmt) -> _Entry:
    is_plain = isinstance(stmt, ir.For | ir.Store | ir.Fill | ir.Block) and not free_locals(stmt)
    is_plain &= not any(
        isinstance(each, ir.Repeat | ir.CallExternal | ir.CheckPositions | ir.StoreVector)
        for each in walk(stmt)
    )
    inner = _private_bytes(stmt) if isinstance(stmt, ir.Repeat) else 0
    read, written = frozenset((*reads(stmt), *merge_reads(stmt))), frozenset(writes(stmt))
    return _Entry(
        stmt,
        read,
        written,
        read | written,
        max(1, cost(stmt)) if is_plain else 0,
        inner,
        is_plain and not merge_reads(stmt),
    )


def _private_bytes(repeat: ir.Repeat) -> int:
    """Return the most bytes of the nodes of an iteration that live at the same time."""
    entries = [_entry(each) for each in repeat.body.stmts]
    live = _live_bytes(entries, {node: _size(info) for node, info in repeat.private})
    return int(live.max()) if len(live) else 0


def _size(info: NodeInfo) -> int:
    return round_up(info.nbytes, CACHE_LINE_BYTES)


def _live_bytes(
    entries: Sequence[_Entry], own: Mapping[TensorNode, int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the bytes of own nodes that live at each statement, aligned as in the arena."""
    nodes = [node for entry in entries for node in entry.accessed]
    places = [at for at, entry in enumerate(entries) for _ in entry.accessed]
    end = dict(zip(nodes, places, strict=True))
    begin = dict(zip(reversed(nodes), reversed(places), strict=True))
    change = [0] * (len(entries) + 1)
    for node, nbytes in own.items():
        if node in begin:
            change[begin[node]] += nbytes
            change[end[node] + 1] -= nbytes
    live: np.ndarray[tuple[int], np.dtype[np.int64]] = np.cumsum(change, dtype=np.int64)[:-1]
    live += np.array([entry.inner for entry in entries], np.int64)
    return live


def _excess(state: _State, budget: int) -> int:
    live = _live_bytes(state.entries, state.own)
    return int(np.maximum(live - budget, 0).sum())


def _gain(before: _State, excess: int, after: _State, budget: int) -> float:
    """Return the decrease of the excess for each operation that is computed again."""
    added = sum(each.cost for each in after.entries) - sum(each.cost for each in before.entries)
    return (excess - _excess(after, budget)) / max(added, 1)


class _Places:
    """The positions of the statements that access and write each node, and the nodes of a root."""

    def __init__(self, state: _State) -> None:
        self.accessed = NodePositions(entry.accessed for entry in state.entries)
        self.written = NodePositions(entry.writes for entry in state.entries)
        self.versions: dict[TensorNode, list[TensorNode]] = {}
        for node, root in state.roots.items():
            self.versions.setdefault(root, []).append(node)


def _candidates(
    state: _State, places: _Places, budget: int, refused: set[tuple[TensorNode, ById]]
) -> list[tuple[TensorNode, _Entry]]:
    """Return the values that can be computed again, those with the most bytes by cost first, and
    the first statement that is to read each recomputed value.
    """
    entries = state.entries
    is_over = _live_bytes(entries, state.own) > budget
    over = np.concatenate(([0], np.cumsum(is_over)))
    found: list[tuple[float, TensorNode, _Entry]] = []
    for node in state.nodes:  # in the order of the program: copies of a node share its number
        if node not in state.own or not places.written.of(node):
            continue
        source = state.sources.get(state.roots[node])
        if source is None:
            continue
        end, accessed = places.written.of(node)[-1], places.accessed.of(node)
        gaps = [
            (int(over[after] - over[place + 1]), after)
            for place, after in pairwise(accessed)
            if place >= end
        ]
        longest, before = max(gaps, default=(0, 0))
        if longest <= 0 or (node, ById(entries[before])) in refused:
            continue
        if not all(entries[place].is_plain for place in accessed if place >= before):
            continue
        score = longest * state.nodes[node].nbytes / sum(each.cost for each in source)
        found.append((score, node, entries[before]))
    found.sort(key=lambda each: (-each[0], each[1].id))
    return [(node, reader) for _, node, reader in found]


class Operands(Enum):
    """The source of operands that no longer live where a value is computed again."""

    KEPT = "they live longer"
    AGAIN = "they are computed again as well"
    EARLIER = "they are computed again as well, and later recomputations of them read these"


def _recomputed(
    state: _State, places: _Places, node: TensorNode, reader: _Entry, operands: Operands
) -> _State:
    """Return a program with a value computed again; the same one if its operands have changed."""
    entries = state.entries
    before = next(at for at, each in enumerate(entries) if each is reader)
    while before and isinstance(entries[before - 1].stmt, ir.Remark):
        before -= 1
    made = _Recomputation(state, places, node, before, operands)
    copy = made.again(state.roots[node])
    if copy is None:
        return state
    merged = {**made.merged, node: copy}
    after: list[_Entry | None] = list(entries[before:])
    for at in {at for each in merged for at in places.accessed.of(each) if at >= before}:
        each = entries[at]
        is_merged = each.is_plain and each.writes and each.writes <= merged.keys() - {node}
        after[at - before] = None if is_merged else _renamed(each, merged)
    copies = dict.fromkeys(n for each in made.entries for n in each.writes)
    roots = {**state.roots, **{each: r for r, each in made.versions.items() if each in copies}}
    return _State(
        (*entries[:before], *made.entries, *(each for each in after if each is not None)),
        {**state.nodes, **{each: state.nodes[roots[each]] for each in copies}},
        {**state.own, **{each: state.own[roots[each]] for each in copies}},
        roots,
        state.sources,
    )


@dataclass(slots=True)
class _Recomputation:
    """The statements that compute a value again at a place, with what they need.

    An object and no nested functions: these are a cycle that only the collector frees, which does
    not run during compilation.
    """

    state: _State
    places: _Places
    node: TensorNode
    before: int
    """The position of the statement before which it is computed."""
    operands: Operands
    """The source of operands that no longer live."""
    entries: list[_Entry] = field(default_factory=list)
    versions: dict[TensorNode, TensorNode] = field(default_factory=dict)
    """The nodes that hold values there, by root."""
    merged: dict[TensorNode, TensorNode] = field(default_factory=dict)
    """Later copies, and the nodes that replace them."""

    def again(self, root: TensorNode) -> TensorNode | None:
        """Add the statements that compute a value; return its node, None if an operand is lost."""
        names: dict[TensorNode, TensorNode] = {}
        source = self.state.sources[root]
        since = self.places.written.of(root)[0]
        operands = {n for each in source for n in each.reads}
        for operand in sorted(operands, key=lambda n: -n.id):  # programs are the same every time
            if operand is not root:
                found = self._version(operand, since)
                if found is None:
                    return None
                names[operand] = found
        copy = TensorNode(root.id, (*root.label, "again"))
        names[root] = self.versions[root] = copy
        self.entries.extend(_renamed(each, names, is_cloned=True) for each in source)
        if self.operands is Operands.EARLIER:
            for other in self.places.versions[root]:
                first = next(iter(self.places.written.of(other)), -1)
                if other is not root and first >= self.before:
                    self.merged[other] = copy
        return copy

    def _version(self, operand: TensorNode, since: int) -> TensorNode | None:
        """Return the node to read for an operand; None if the value is lost."""
        root = self.state.roots.get(operand)
        if root is None or root not in self.state.sources:
            is_lost = self.places.written.is_between(operand, since, self.before)
            return None if is_lost else operand
        if root not in self.versions:
            found = self._live(root)
            last = self.places.accessed.of(root)[-1]
            is_long = len(self.entries) > _LONGEST_CHAIN
            if found is None and (self.operands is Operands.KEPT or is_long):
                found = root if last < self.before else None
            if found is None:
                return self.again(root)
            self.versions[root] = found
        return self.versions[root]

    def _live(self, root: TensorNode) -> TensorNode | None:
        for each in self.places.versions[root]:
            if each is not self.node:
                accessed = self.places.accessed.of(each)
                if accessed and self.places.written.of(each)[-1] < self.before <= accessed[-1]:
                    return each
        return None


def _renamed(
    entry: _Entry, names: Mapping[TensorNode, TensorNode], *, is_cloned: bool = False
) -> _Entry:
    """Return a statement that accesses other nodes; a clone has loop variables of its own."""
    if names.keys().isdisjoint(entry.accessed) or not entry.is_plain:
        return entry
    before = entry.names or {each: each for each in entry.accessed}
    read = frozenset(names.get(each, each) for each in entry.reads)
    written = frozenset(names.get(each, each) for each in entry.writes)
    return replace(
        entry,
        reads=read,
        writes=written,
        accessed=read | written,
        names={own: names.get(now, now) for own, now in before.items()},
        is_clone=entry.is_clone or is_cloned,
    )


def _statement(entry: _Entry) -> ir.Stmt:
    """Return the statement of an entry, with the nodes that it accesses."""
    if not entry.names:
        return entry.stmt

    def renamed(each: Node) -> Node:
        if isinstance(each, ir.Load | ir.Gather | ir.Store | ir.Scatter | ir.Fill):
            return replace(each, node=entry.names[each.node])
        return each

    stmt: ir.Stmt = rewrite(entry.stmt, renamed, renamed)  # type: ignore[arg-type]
    stmt = clone_stmt(stmt) if entry.is_clone else stmt
    if isinstance(stmt, ir.Block) and len(stmt.stmts) == 1:
        (stmt,) = stmt.stmts
    return stmt
