"""Previews of shapes that follow from known ones alone, as compiling would decide them now."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol, Self, TypeVar

from ocannl_core.errors import ShapeError
from ocannl_core.shape.language.terms import Shape
from ocannl_core.tensor.graph.definitions import Applied, DefinedNode
from ocannl_core.tensor.graph.session import Session


class ShapedNode(DefinedNode, Protocol):
    """A node of the graph, with its shape as it was stated."""

    @property
    def session(self) -> Session: ...

    @property
    def terms(self) -> Shape: ...

    @property
    def operands(self) -> tuple[Self, ...]: ...


N = TypeVar("N", bound=ShapedNode)


def known_shape(tensor: ShapedNode) -> tuple[Shape, tuple[int, Shape] | None]:
    """Return the shape as far as it is known; if that is wholly, then also with the revision of the
    known sizes, until the next of which it stays the same.
    """
    environment = tensor.session.environment
    found = environment.view(tensor.terms)
    if found.is_closed:
        return found, (environment.revisions, found)
    is_computed = isinstance(tensor.definition, Applied)
    return (is_computed and preview(tensor)) or found, None


def preview(tensor: ShapedNode) -> Shape | None:
    """Return the shape as compiling would decide it now; None where a leaf is open.

    Previews of all operands are made together, and kept until a constraint is added.
    """
    environment = tensor.session.environment
    if tensor.id not in environment.previews:
        is_known = _find_determined(tensor)
        known = [each for each, holds in is_known.items() if holds]
        shapes: list[Shape] = []
        with suppress(ShapeError):  # compiling reports it
            shapes = environment.preview([each.terms for each in known])
        environment.previews.update({each.id: None for each in is_known})
        for each, shape in zip(known, shapes, strict=False):
            environment.previews[each.id] = shape
    return environment.previews[tensor.id]


def _find_determined(tensor: N) -> dict[N, bool]:
    """Return, for a tensor and its operands with open shapes, True if no leaf is open."""
    environment = tensor.session.environment
    found: dict[N, bool] = {}
    pending = [tensor]
    while pending:
        last = pending[-1]
        new = [
            each
            for each in last.operands
            if each not in found and not environment.view(each.terms).is_closed
        ]
        if isinstance(last.definition, Applied) and new:
            pending += new
            continue
        pending.pop()
        found[last] = isinstance(last.definition, Applied) and all(
            found.get(each, True) for each in last.operands
        )
    return found
