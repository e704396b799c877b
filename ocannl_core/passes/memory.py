"""Which nodes the context stores and which belong to the routine.

A node that the context does not keep, and of which the routine reads nothing that it has not
written before, needs no memory from outside: it is allocated in the routine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ocannl_core.indexing import AxisIndex, IndexVar, affine, as_affine, fresh_var, row_major
from ocannl_core.loopir.nodes import (
    Allocate,
    Block,
    CallExternal,
    Fill,
    For,
    LoopProgram,
    Scope,
    Staged,
    Stmt,
    Store,
    StoreVector,
)
from ocannl_core.loopir.ranges import Box, Range, boxes_cover, certain_box
from ocannl_core.loopir.traverse import (
    Node,
    accesses,
    accesses_at,
    allocated,
    children,
    locals_of,
    reads,
    writes,
)
from ocannl_core.node import MemoryMode, NodeInfo, Placement, Reason, TensorNode


def allocate_scratch(program: LoopProgram, stored: Mapping[TensorNode, Placement]) -> LoopProgram:
    """Returns the program with the memory of its own nodes allocated at the start of its body.

    Args:
        program: The program.
        stored: Nodes that the context keeps; they stay parameters.
    """
    scratch = tuple(n for n in _independent(program) if n not in stored)
    if not scratch:
        return program
    allocations = tuple(Allocate(node, Scope.ROUTINE) for node in scratch)
    return replace(
        program,
        params=tuple(node for node in program.params if node not in scratch),
        body=Block((*allocations, *program.body.stmts)),
    )


def placements(
    program: LoopProgram, stored: Mapping[TensorNode, Placement]
) -> dict[TensorNode, Placement]:
    """Returns for every node of a program where its cells are, and why.

    Args:
        program: A program, before or after `allocate_scratch`.
        stored: Nodes that the context keeps, with its decisions, which stand.
    """
    own = {*_independent(program), *allocated(program.body)}
    read, written = set(reads(program.body)), set(writes(program.body))
    inlined = {local.node for local in locals_of(program.body) if local.node is not None}
    found: dict[TensorNode, Placement] = {}
    for node in (*program.nodes, *(n for n in inlined if n not in program.nodes)):
        if node in stored:
            found[node] = stored[node]
        elif node not in read and node not in written and node in inlined:
            found[node] = Placement(MemoryMode.VIRTUAL)
        elif node in own:
            found[node] = Placement(MemoryMode.LOCAL, Reason.ONLY_USED_HERE)
        elif node in written:
            found[node] = Placement(MemoryMode.MATERIALIZED, Reason.READ_BEFORE_WRITE)
        else:
            found[node] = Placement(MemoryMode.MATERIALIZED, Reason.READ_ONLY)
    return found


def _independent(program: LoopProgram) -> tuple[TensorNode, ...]:
    """Returns the parameters that are written and not read before that, in order."""
    analysis = _Initialization(program.nodes)
    for stmt in _top_level(program.body):
        analysis.statement(stmt)
    merged = {access.node for access in accesses(program.body) if access.merge}
    dependent = analysis.read_first | merged
    written = set(writes(program.body))
    return tuple(n for n in program.params if n in written and n not in dependent)


def _top_level(body: Block) -> Iterator[Stmt]:
    pending: list[Stmt] = list(reversed(body.stmts))
    while pending:
        stmt = pending.pop()
        if isinstance(stmt, Block):
            pending.extend(reversed(stmt.stmts))
        else:
            yield stmt


_Cell = tuple[TensorNode, tuple[AxisIndex, ...]]


@dataclass(slots=True)
class _Initialization:
    """Which nodes are certain to be written before they are read.

    Attributes:
        nodes: What is known of every node.
        boxes: Cells certain to be written so far.
        complete: Nodes of which every cell is written.
        read_first: Nodes of which some cell may be read before it is written.
    """

    nodes: Mapping[TensorNode, NodeInfo]
    boxes: dict[TensorNode, list[Box]] = field(default_factory=dict)
    complete: set[TensorNode] = field(default_factory=set)
    read_first: set[TensorNode] = field(default_factory=set)

    def statement(self, stmt: Stmt) -> None:
        """Takes the reads of a top-level statement, then its writes, into account."""
        self.read_first |= set(self._uncovered_reads(stmt))
        for node, box in _certain_writes(stmt, self.nodes):
            boxes = self.boxes.setdefault(node, [])
            boxes.append(box)
            if boxes_cover(boxes, self.nodes[node].buffer_dims):
                self.complete.add(node)

    def _uncovered_reads(self, stmt: Stmt) -> Iterator[TensorNode]:
        """Yields nodes read at a cell that no earlier store certainly wrote.

        Inside the statement, a store counts for reads of the very same cell that follow it under
        the same loops.
        """
        written: list[set[_Cell]] = [set()]
        pending: list[tuple[Node, bool]] = [(stmt, False)]
        while pending:
            node, entered = pending.pop()
            inner = () if entered else children(node)
            if inner:
                if isinstance(node, For):
                    written.append(set())
                pending.append((node, True))
                pending.extend((child, False) for child in reversed(inner))
                continue
            if entered and isinstance(node, For):
                written.pop()
            for access in accesses_at(node):
                if access.indices is not None and access.writes and isinstance(node, Store):
                    written[-1].add((access.node, access.indices))
                elif not access.writes and access.node not in self.complete:
                    cell = (access.node, access.indices)
                    if not any(cell in scope for scope in written):
                        yield access.node


def _certain_writes(
    stmt: Stmt, nodes: Mapping[TensorNode, NodeInfo]
) -> Iterator[tuple[TensorNode, Box]]:
    """Yields boxes of cells that a top-level statement writes whatever happens."""
    ranges: dict[IndexVar, Range] = {}
    pending: list[Stmt | None] = [stmt]
    entered: list[For] = []
    while pending:
        each = pending.pop()
        match each:
            case None:
                del ranges[entered.pop().var]
            case For(var, start, stop, body):
                ranges[var] = Range(start, stop - 1)
                entered.append(each)
                pending += [None, body]
            case Block(stmts):
                pending += reversed(stmts)
            case Staged(body=body):
                pending.append(body)
            case Store(node, indices):
                box = certain_box(indices, ranges)
                if box is not None:
                    yield node, box
            case StoreVector(node):
                if _covers_all(each, nodes[node], ranges):
                    yield node, _whole(nodes[node].buffer_dims)
            case Fill(node) if all(values.extent for values in ranges.values()):
                yield node, _whole(nodes[node].buffer_dims)
            case CallExternal(_, _, outputs):
                yield from ((node, _interior(nodes[node])) for node in outputs)
            case _:
                pass


def _covers_all(store: StoreVector, info: NodeInfo, ranges: Mapping[IndexVar, Range]) -> bool:
    """True only if a vector store writes the whole buffer, taken as one axis."""
    lane = fresh_var("lane")
    terms, start = as_affine(row_major(store.indices, info.buffer_dims))
    cells = affine([*terms, (1, lane)], start)
    box = certain_box((cells,), {**ranges, lane: Range(0, store.length - 1)})
    return box is not None and box[0].low <= 0 and box[0].high >= info.size - 1


def _whole(dims: tuple[int, ...]) -> Box:
    return tuple(Range(0, dim - 1) for dim in dims)


def _interior(info: NodeInfo) -> Box:
    if not info.padding:
        return _whole(info.dims)
    return tuple(
        Range(margin.left, margin.left + dim - 1)
        for dim, margin in zip(info.dims, info.padding, strict=True)
    )
