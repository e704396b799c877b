"""Which loops may run on several threads.

# every iteration writes a row of its own
for i in range(4096):                           for i in range(4096):  # parallel
    for j in range(1024):              -->          for j in range(1024):
        c[i, j] = a[i, j] + b[j]                        c[i, j] = a[i, j] + b[j]

The mark is a fact about the loop and does not depend on the machine. Each cell is computed by one
iteration, in the order of the program, so however the iterations are dealt out, the bits are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import assert_never

from ocannl_core.indexing import AxisIndex, IndexVar, LoopVar, StaticIndex, affine, as_affine
from ocannl_core.loopir.nodes import (
    AxisKind,
    Barrier,
    Block,
    CallExternal,
    Fill,
    For,
    Gather,
    Staged,
    Stmt,
    StoreVector,
)
from ocannl_core.loopir.ranges import Range, index_range
from ocannl_core.loopir.traverse import Node, accesses_at, allocated, fold, walk
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.passes.cost import own_cost
from ocannl_core.schedule.plan import External, Nest, Plan, Step

LEAST_WORK = 1 << 19
"""The least work that is worth another thread, in additions: some ten microseconds where vector
registers do it, and what waking a thread takes.
"""

_ON_DEVICES = (AxisKind.GRID, AxisKind.BLOCK)


def mark_parallel(plan: Plan) -> Plan:
    """Returns the plan with the outermost loop of large kernels marked where that is proven.

    A kernel qualifies if it is one loop, its iterations touch different cells of whatever any of
    them writes, and its work is enough for two threads.
    """
    return replace(plan, steps=tuple(_marked(step, plan.nodes) for step in plan.steps))


def work_of(body: Stmt) -> int:
    """Returns what running statements once costs, in additions."""
    return fold(body, _cost)


def _cost(node: Node, inside: tuple[int, ...]) -> int:
    return sum(inside) if isinstance(node, Block) else own_cost(node, inside)


def _marked(step: Step, nodes: Mapping[TensorNode, NodeInfo]) -> Step:
    match step:
        case Nest(Block((For(kind=AxisKind.SERIAL) as loop,))):
            if work_of(loop) < 2 * LEAST_WORK or not is_independent(loop, nodes):
                return step
            marked = replace(loop, kind=AxisKind.PARALLEL)
            return replace(step, body=Block((marked,)))
        case Nest() | External():
            return step
        case _:
            assert_never(step)


def is_independent(loop: For, nodes: Mapping[TensorNode, NodeInfo]) -> bool:
    """True only if no two iterations touch the same cell and one of them writes it.

    Sufficient, not necessary: along some axis of every node that is written, all accesses lie at
    `coefficient * variable + rest`, and the rests are closer together than the coefficient.
    """
    if loop.stop - loop.start < 2:
        return False
    own = set(allocated(loop))
    ranges: dict[IndexVar, Range] = {}
    touched: dict[TensorNode, list[list[AxisIndex | None]]] = {}
    written: set[TensorNode] = set()
    spans: dict[TensorNode, int] = {}
    for node in walk(loop):
        match node:
            case Staged() | Barrier() | CallExternal():
                return False
            case For(var, start, stop, _, kind):
                if kind in _ON_DEVICES:
                    return False
                known = ranges.get(var, Range(start, stop - 1))
                ranges[var] = Range(min(known.low, start), max(known.high, stop - 1))
            case Fill(target) if target not in own:
                return False
            case StoreVector(target, length=length):
                spans[target] = max(spans.get(target, 1), length)
        for access in accesses_at(node):
            if access.node in own or access.merge or access.indices is None:
                continue
            places: list[AxisIndex | None] = list(access.indices)
            if isinstance(node, Gather):
                places[node.axis] = None  # computed: it may be anywhere
            touched.setdefault(access.node, []).append(places)
            if access.writes:
                written.add(access.node)
    return all(
        any(
            _is_apart(column, loop.var, ranges, spans.get(node, 1) if axis == last else 1)
            for axis, column in enumerate(zip(*touched[node], strict=True))
        )
        for node in written
        for last in (len(nodes[node].dims) - 1,)
    )


def _is_apart(
    places: Iterable[AxisIndex | None],
    var: LoopVar,
    ranges: Mapping[IndexVar, Range],
    span: int,
) -> bool:
    """True if positions along one axis, of the iterations of `var`, lie apart.

    Args:
        places: The indices of all accesses there; None for one that may be anywhere.
        var: The variable.
        ranges: The values of the variables of all loops.
        span: How many cells an access covers at most.
    """
    steps: set[tuple[int, frozenset[tuple[int, IndexVar]]]] = set()
    lows: list[int] = []
    highs: list[int] = []
    for place in places:
        if place is None:
            return False
        terms, offset = as_affine(place)
        statics = frozenset(term for term in terms if isinstance(term[1], StaticIndex))
        coefficient = sum(factor for factor, each in terms if each == var)
        rest = affine([t for t in terms if t not in statics and t[1] != var], offset)
        reached = index_range(rest, ranges)
        if reached is None:
            return False
        steps.add((coefficient, statics))
        lows.append(reached.low)
        highs.append(reached.high + span - 1)
    # a static index is the same number for all, so it moves them together
    return len(steps) == 1 and max(highs) - min(lows) < abs(next(iter(steps))[0])
