"""Layered layout of directed graphs (Sugiyama, Tagawa and Toda, 1981).

1. Edges that close a cycle are turned around.
2. Each node gets a layer below all of its sources, in which there is room; sources of the graph
   move down to their uses (Coffman and Graham, 1972).
3. An edge across several layers gets a dummy node in each layer between.
4. In sweeps down and up, the nodes of a layer are ordered by the median of their neighbors.
5. Each node moves to the mean of its neighbors, as far as the widths of its layer allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.graphs import reachable

GAP, LAYER_GAP = 24.0, 34.0
_SWEEPS = 12
_DUMMY_WIDTH, _DUMMY_GAP = 2.0, 8.0
_ROOM = 1000.0
"""The width of a layer, unless one node is wider."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """Places of nodes and edges."""

    centers: tuple[Point, ...]
    """The center of each node."""
    routes: tuple[tuple[Point, ...], ...]
    """The points that each edge passes, from its source to its target."""
    width: float
    height: float


def lay_out(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> GraphLayout:
    """Return a layout of nodes with widths and heights, in which edges point down."""
    count = len(sizes)
    forward = _without_cycles(count, edges)
    widths = [width for width, _ in sizes]
    layer = _layers(widths, forward)
    chains: list[list[int]] = []
    for source, target in forward:
        chain = [source]
        for between in range(layer[source] + 1, layer[target]):
            chain.append(len(widths))
            widths.append(_DUMMY_WIDTH)
            layer.append(between)
        chains.append([*chain, target])
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for chain in chains:
        for upper, lower in pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    layers = _ordered(layer, above, below)
    xs = _side_by_side(_positions(layers, widths, above, below), widths, above, below)
    left = min((xs[n] - widths[n] / 2 for n in range(count)), default=0.0) - GAP
    right = max((xs[n] + widths[n] / 2 for n in range(count)), default=0.0) + GAP
    heights = [max((sizes[n][1] for n in members if n < count), default=0.0) for members in layers]
    tops = [LAYER_GAP + sum(heights[:k]) + k * LAYER_GAP for k in range(len(heights))]
    ys = [tops[k] + heights[k] / 2 for k in layer]
    place = [(xs[n] - left, ys[n]) for n in range(len(widths))]
    routes = []
    for chain, (source, target), given in zip(chains, forward, edges, strict=True):
        start = (place[source][0], place[source][1] + sizes[source][1] / 2)
        end = (place[target][0], place[target][1] - sizes[target][1] / 2)
        route = [start, *(place[n] for n in chain[1:-1]), end]
        routes.append(tuple(route if given == (source, target) else route[::-1]))
    bottom = tops[-1] + heights[-1] + LAYER_GAP if heights else LAYER_GAP
    return GraphLayout(tuple(place[:count]), tuple(routes), right - left, bottom)


def _without_cycles(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return edges without cycles: an edge that closes a cycle is turned around."""
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        after[source].append(target)
    state = [0] * count  # 1 while on the path, 2 afterwards
    closing: set[tuple[int, int]] = set()
    for root in range(count):
        if state[root]:
            continue
        state[root] = 1
        path = [(root, iter(after[root]))]
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is None:
                state[node] = 2
                path.pop()
            elif state[following] == 1:
                closing.add((node, following))
            elif state[following] == 0:
                state[following] = 1
                path.append((following, iter(after[following])))
    return [
        (target, source) if (source, target) in closing and source != target else (source, target)
        for source, target in edges
    ]


def _layers(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: the first layer with room below all of its sources."""
    count = len(widths)
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        if source != target:
            after[source].append(target)
            waiting[target] += 1
    earliest, layer = [0] * count, [0] * count
    used: dict[int, float] = defaultdict(float)

    def settle(node: int, wanted: int, direction: int) -> None:
        width = widths[node] + GAP
        while used[wanted] and used[wanted] + width > _ROOM:
            wanted += direction
        layer[node] = wanted
        used[wanted] += width

    is_source = [not waiting[node] for node in range(count)]
    ready = [node for node in range(count) if is_source[node]]
    for node in ready:
        if not is_source[node] or not after[node]:
            settle(node, earliest[node], 1)
        for following in after[node]:
            earliest[following] = max(earliest[following], layer[node] + 1)
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    for node in range(count):
        if is_source[node] and after[node]:
            settle(node, min(layer[following] for following in after[node]) - 1, -1)
    rank = {each: number for number, each in enumerate(sorted(set(layer)))}
    return [rank[each] for each in layer]


def _ordered(
    layer: Sequence[int], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the nodes of each layer in an order with few crossings."""
    layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node in range(len(layer)):
        layers[layer[node]].append(node)
    rank = {node: float(k) for members in layers for k, node in enumerate(members)}
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        neighbors = above if is_down else below
        for members in layers if is_down else reversed(layers):
            wanted = {
                node: median(rank[each] for each in neighbors[node])
                if neighbors[node]
                else rank[node]
                for node in members
            }
            members.sort(key=wanted.__getitem__)
            rank.update((node, float(k)) for k, node in enumerate(members))
    return layers


def _positions(
    layers: Sequence[Sequence[int]],
    widths: Sequence[float],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
) -> list[float]:
    """Return the horizontal center of each node."""
    xs = [0.0] * len(widths)
    for members in layers:
        _place(members, [0.0] * len(members), widths, xs)
    for sweep in range(2 * _SWEEPS):
        is_down = sweep % 2 == 0
        for members in layers if is_down else reversed(layers):
            wanted = []
            for node in members:
                near = above[node] if is_down else below[node]
                wanted.append(fmean(xs[each] for each in near) if near else xs[node])
            _place(members, wanted, widths, xs)
    return xs


def _side_by_side(
    xs: Sequence[float],
    widths: Sequence[float],
    above: Sequence[Sequence[int]],
    below: Sequence[Sequence[int]],
) -> list[float]:
    """Return positions with the connected parts of the graph next to each other."""
    placed, right = list(xs), 0.0
    seen: set[int] = set()
    for first in range(len(xs)):
        if first in seen:
            continue
        part = reachable([first], lambda node: (*above[node], *below[node]))
        seen.update(part)
        shift = right - min(xs[node] - widths[node] / 2 for node in part)
        right = max(xs[node] + widths[node] / 2 for node in part) + shift + GAP
        for node in part:
            placed[node] = xs[node] + shift
    return placed


def _place(
    members: Sequence[int], wanted: Iterable[float], widths: Sequence[float], xs: list[float]
) -> None:
    """Place the nodes of a layer in order, as near to wanted positions as their widths allow.

    The least squares under distances between neighbors: pools of nodes that touch each other
    (isotonic regression of the positions less their offsets in the row).
    """
    offset, pools, offsets = 0.0, list[list[float]](), list[float]()
    for number, (node, place) in enumerate(zip(members, wanted, strict=True)):
        if number:
            before = widths[members[number - 1]]
            edges = (before, widths[node]).count(_DUMMY_WIDTH)
            gap = (GAP, (GAP - _DUMMY_WIDTH) / 2, _DUMMY_GAP)[edges]
            offset += (before + widths[node]) / 2 + gap
        offsets.append(offset)
        pools.append([place - offset, 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value, weight = pools.pop()
            pools[-1][0] = (pools[-1][0] * pools[-1][1] + value * weight) / (pools[-1][1] + weight)
            pools[-1][1] += weight
    values = [value for value, weight in pools for _ in range(int(weight))]
    for node, value, shift in zip(members, values, offsets, strict=True):
        xs[node] = value + shift
