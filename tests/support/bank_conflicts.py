"""Bank conflicts of accesses of shared memory, and sectors of other memory, counted from their index
maps for each warp.

Shared memory has 32 banks of words of 4 bytes; a word `n` is in bank `n % 32`. The threads of a warp
that access different words of one bank wait for each other. Vectors of 8 and 16 bytes are served for
a half and a quarter of a warp at a time.

Other memory is accessed in sectors of 32 bytes. The threads of a warp that access cells of one sector
do so in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from ocannl_core.ir.indexing import AxisIndex, IndexVar, as_affine, row_major, value_of
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Block,
    For,
    Load,
    LoopBound,
    Scope,
    Stmt,
    Store,
)
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import NodeInfo, TensorNode

BANKS = 32
WARP = 32
SECTOR = 32
Env = Mapping[IndexVar, int]


@dataclass(frozen=True)
class MemoryAccess:
    """An access of memory that threads share.

    Attributes:
        node: The array.
        position: The place of the cell in it.
        loops: The loops around, outermost first.
        cells: The neighboring cells that one instruction accesses.
        is_store: True for a store.
    """

    node: TensorNode
    position: AxisIndex
    loops: tuple[For, ...]
    cells: int
    is_store: bool


def shared_accesses(body: Block, nodes: Mapping[TensorNode, NodeInfo]) -> Iterator[MemoryAccess]:
    """Yield the accesses of shared memory in a kernel."""
    yield from _accesses(body, nodes, allocated(body, Scope.GROUP))


def device_accesses(body: Block, nodes: Mapping[TensorNode, NodeInfo]) -> Iterator[MemoryAccess]:
    """Yield the accesses of the memory of the device in a kernel."""
    own = {each.node for each in walk(body) if isinstance(each, Allocate)}
    yield from _accesses(body, nodes, set(nodes) - own)


def allocated(body: Block, scope: Scope) -> set[TensorNode]:
    """Return the arrays of a scope that a kernel allocates."""
    return {each.node for each in walk(body) if isinstance(each, Allocate) and each.scope is scope}


def _accesses(
    body: Block, nodes: Mapping[TensorNode, NodeInfo], wanted: set[TensorNode]
) -> Iterator[MemoryAccess]:
    """Yield the accesses of some arrays."""

    def visit(stmt: Stmt, loops: tuple[For, ...]) -> Iterator[MemoryAccess]:
        match stmt:
            case Block(stmts):
                for each in stmts:
                    yield from visit(each, loops)
            case For(body=inner):
                yield from visit(inner, (*loops, stmt))
            case Store():
                for each in walk(stmt):
                    if isinstance(each, Load | Store) and each.node in wanted:
                        position = row_major(each.indices, nodes[each.node].buffer_dims)
                        cells = _together(position, loops)
                        is_store = isinstance(each, Store)
                        yield MemoryAccess(each.node, position, loops, cells, is_store)
            case _:
                pass

    yield from visit(body, ())


def _together(position: AxisIndex, loops: tuple[For, ...]) -> int:
    """Return the cells that the innermost iterations which are written out access together."""
    terms, offset = as_affine(position)
    steps = {var: step for step, var in terms}
    for loop in reversed(loops):
        if loop.kind not in (AxisKind.UNROLLED, AxisKind.VECTOR, AxisKind.COPY):
            continue
        if steps.get(loop.var) == 1 and loop.bound is None:
            extent = loop.stop - loop.start
            others = [step for var, step in steps.items() if var is not loop.var]
            return next(
                cells
                for cells in (4, 2, 1)
                if extent % cells == 0 and all(step % cells == 0 for step in (*others, offset))
            )
    return 1


def degree(access: MemoryAccess, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Return how many threads of a warp wait for the same bank in turn, at most; 1 if none wait."""
    width = access.cells * nodes[access.node].dtype.nbytes
    worst = 1
    for starts in _starts(access, nodes, WARP if width <= 4 else WARP * 4 // width):
        words: dict[int, set[int]] = {}
        for start in starts:
            for word in range(start // 4, start // 4 + max(1, width // 4)):
                words.setdefault(word % BANKS, set()).add(word)
        worst = max([worst, *map(len, words.values())])
    return worst


def sectors(access: MemoryAccess, nodes: Mapping[TensorNode, NodeInfo]) -> tuple[int, int]:
    """Return the transactions of all warps of a block for an access, and the fewest that have its
    cells.
    """
    width = access.cells * nodes[access.node].dtype.nbytes
    found = least = 0
    for starts in _starts(access, nodes, WARP):
        found += len({at // SECTOR for start in starts for at in range(start, start + width)})
        least += -(-len(set(starts)) * width // SECTOR)
    return found, least


def _starts(
    access: MemoryAccess, nodes: Mapping[TensorNode, NodeInfo], group: int
) -> Iterator[list[int]]:
    """Yield the first bytes that the threads of a block access, so many threads at a time."""
    nbytes = nodes[access.node].dtype.nbytes
    block = [loop for loop in access.loops if loop.kind is AxisKind.BLOCK]
    extents = [loop.stop - loop.start for loop in block]
    threads = list(product(*map(range, extents)))
    bounds = [loop.bound for loop in access.loops if loop.bound is not None]
    # other iterations move all threads by as many cells, and so all banks alike
    env = {loop.var: loop.start for loop in access.loops}
    for first in range(0, len(threads), group):
        own = [
            env | {loop.var: at for loop, at in zip(block, thread, strict=True)}
            for thread in threads[first : first + group]
        ]
        yield [
            value_of(access.position, each) * nbytes
            for each in own
            if all(_holds(bound, each) for bound in bounds)
        ]


def _holds(bound: LoopBound, env: Env) -> bool:
    return value_of(bound.index, env) < bound.maximum
