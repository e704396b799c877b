"""Searches of directed graphs that are given by functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Node = TypeVar("_Node")


def reachable(
    start: Iterable[_Node], successors: Callable[[_Node], Iterable[_Node]]
) -> dict[_Node, None]:
    """Return the nodes of a start and all that follow them, depth first."""
    found: dict[_Node, None] = {}
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += successors(node)
    return found


def strongly_connected_components(
    nodes: Iterable[_Node], successors: Callable[[_Node], Iterable[_Node]]
) -> Iterator[list[_Node]]:
    """Yield the sets of nodes that reach each other (Tarjan's algorithm, without recursion)."""
    number: dict[_Node, int] = {}
    low: dict[_Node, int] = {}
    path: dict[_Node, None] = {}
    for start in nodes:
        if start in number:
            continue
        number[start] = low[start] = len(number)
        path[start] = None
        stack = [(start, iter(successors(start)))]
        while stack:
            node, rest = stack[-1]
            for after in rest:
                if after not in number:
                    number[after] = low[after] = len(number)
                    path[after] = None
                    stack.append((after, iter(successors(after))))
                    break
                if after in path:
                    low[node] = min(low[node], number[after])
            else:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
                if low[node] == number[node]:
                    yield _unwind(path, node)


def _unwind(path: dict[_Node, None], last: _Node) -> list[_Node]:
    component: list[_Node] = []
    while True:
        node, _ = path.popitem()
        component.append(node)
        if node == last:
            return component
