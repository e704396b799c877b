"""Kernels that are no neighbours become one where one of them can move to the other.

    g[o, i] += d[b, o] * x[b, i]          e[b, i] += d[b, o] * w[o, i]
    e[b, i] += d[b, o] * w[o, i]    -->   g[o, i] += d[b, o] * x[b, i]; w[o, i] -= g[o, i]
    w[o, i] -= g[o, i]

A kernel moves over others that neither write what it mentions nor mention what it writes, so that
every cell still sees its operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, assert_never

from ocannl_core.loopir.nodes import Expr, Stmt
from ocannl_core.loopir.traverse import nodes_of, writes
from ocannl_core.node import TensorNode
from ocannl_core.schedule.plan import External, Nest

if TYPE_CHECKING:
    from ocannl_core.schedule.joining.fuse import Part

Nodes = frozenset[TensorNode]
Join = Callable[["Part", "Part"], "Part | None"]


def moved_together(parts: Iterable[Part], joined: Join) -> tuple[Part, ...]:
    """Returns the kernels with each one joined to an earlier one whose results it reads, where both
    run over one domain and one of them can move.

    Args:
        parts: The kernels.
        joined: Returns two as one; None if that is not possible.
    """
    result: list[Part] = []
    for part in parts:
        found = _partner(result, part, joined)
        if found is None:
            result.append(part)
            continue
        at, both, to_the_end = found
        if to_the_end:
            del result[at]
            result.append(both)
        else:
            result[at] = both
    return tuple(result)


def _partner(before: Sequence[Part], part: Part, joined: Join) -> tuple[int, Part, bool] | None:
    """Returns the position of an earlier kernel, both as one, and whether that one moves later."""
    if part.cells is None or part.cells.reduction is not None:
        return None
    mentioned, written = touched(part)
    for at in range(len(before) - 1, -1, -1):
        first = before[at]
        if first.cells is None or not touched(first)[1] & mentioned:
            continue
        between = before[at + 1 :]
        moves_up = _is_free((mentioned, written), between)
        if not moves_up and not _is_free(touched(first), between):
            continue
        both = joined(first, part)
        if both is not None:
            return at, both, not moves_up
    return None


def _is_free(own: tuple[Nodes, Nodes], others: Iterable[Part]) -> bool:
    """True if something can move over others."""
    mentioned, written = own
    for other in others:
        its_mentioned, its_written = touched(other)
        if its_written & mentioned or written & its_mentioned:
            return False
    return True


def touched(part: Part) -> tuple[Nodes, Nodes]:
    """Returns the nodes that a kernel mentions, and those among them that it writes."""
    cells = part.cells
    if cells is not None:
        roots: list[Expr | Stmt] = [*cells.finish]
        if cells.reduction is not None:
            roots += [cells.reduction.term, cells.reduction.initial]
        written = frozenset(store.node for store in cells.finish)
        return frozenset(node for root in roots for node in nodes_of(root)), written
    match part.step:
        case External(call):
            return frozenset((*call.inputs, *call.outputs)), frozenset(call.outputs)
        case Nest(body):
            return frozenset(nodes_of(body)), frozenset(writes(body))
        case _:
            assert_never(part.step)
