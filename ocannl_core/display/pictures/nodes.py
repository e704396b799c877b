"""Directed graphs to draw: nodes with lines of text, edges, nested groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ocannl_core.base.fast_dataclass import dataclass

Kind = Literal["input", "parameter", "operation", "block", "memory", "kernel", "call"]

COLORS: Mapping[Kind, str] = {
    "input": "#cfe3f7",
    "parameter": "#fde7b3",
    "operation": "#f4f4f4",
    "block": "#d9f0d3",
    "memory": "#e6dcf2",
    "kernel": "#f4f4f4",
    "call": "#f7d4cf",
}
"""The fill of each kind of node."""

Group = tuple[tuple[str, int], ...]
"""The titles of nested groups, outermost first, each with a number that distinguishes groups of the
same title.
"""


@dataclass(frozen=True, slots=True)
class PictureNode:
    """A node."""

    title: str
    """The first line."""
    details: tuple[str, ...] = ()
    kind: Kind = "operation"
    """The kind, shown by the form and the color."""
    group: Group = ()
    """The groups around it."""
    note: str = ""
    """A text for readers who point at the node, such as a line of the program."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The title and the details."""
        return (self.title, *self.details)


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A directed edge between two nodes, given by their positions."""

    source: int
    target: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class GroupTree:
    """A group with the positions of its own nodes, and the groups in it."""

    title: str
    nodes: tuple[int, ...]
    groups: tuple[GroupTree, ...]


def group_tree(
    title: str, nodes: Sequence[PictureNode], members: Sequence[int], depth: int = 0
) -> GroupTree:
    """Return the groups of some nodes as a tree, below groups to a depth."""
    inner: dict[tuple[str, int], list[int]] = {}
    own = []
    for number in members:
        group = nodes[number].group
        if len(group) > depth:
            inner.setdefault(group[depth], []).append(number)
        else:
            own.append(number)
    groups = (group_tree(key[0], nodes, inside, depth + 1) for key, inside in inner.items())
    return GroupTree(title, tuple(own), tuple(groups))
