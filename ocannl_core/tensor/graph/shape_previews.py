"""Previews of shapes that follow from known shapes alone, as compiling would decide them now."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ocannl_core.base.errors import ShapeError
from ocannl_core.shape.language.shape_terms import Shape, rows_in_buffer_order
from ocannl_core.tensor.graph.definitions import Applied, CarriedValue, ResultOf, ResultOfLoop

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.tensor import Tensor


_COMPUTED = (Applied, CarriedValue, ResultOf, ResultOfLoop)


def implied_ranks(tensor: Tensor) -> tuple[int, int, int] | None:
    """Return the numbers of batch, output and input axes; None if later uses may add some."""
    ranks = tensor.session.environment.implied_ranks(tensor.terms)
    if ranks is None and (shape := preview(tensor)) is not None:
        batch, output, input = (len(row.trailing) for row in rows_in_buffer_order(shape))
        return batch, output, input
    return ranks


def preview(tensor: Tensor) -> Shape | None:
    """Return the shape as compiling would decide it now; None for a leaf, and for a shape that
    depends on the default of a leaf that no use determines.

    Previews of operands without open leaves are made together. All are kept until a constraint is
    added.
    """
    environment = tensor.session.environment
    previews = environment.previews
    if not isinstance(tensor.definition, _COMPUTED):
        return None
    if tensor.id not in previews:
        previews[tensor.id] = implied = environment.implied_shape(tensor.terms)
        if implied is None:
            is_known = _find_determined(tensor)
            if is_known[tensor]:
                known = [each for each, holds in is_known.items() if holds]
                _add_previews(known, has_defaults=True)
            else:
                _add_previews([tensor], has_defaults=False)
    return previews[tensor.id]


def _add_previews(tensors: list[Tensor], *, has_defaults: bool) -> None:
    """Add previews of tensors; a preview is None if compiling would refuse the tensor."""
    if not tensors:
        return
    environment = tensors[0].session.environment
    shapes: list[Shape | None] = [None] * len(tensors)
    with suppress(ShapeError):  # compiling reports it
        terms = [each.terms for each in tensors]
        shapes[:] = environment.preview(terms, has_defaults=has_defaults)
    environment.previews.update(
        (each.id, shape) for each, shape in zip(tensors, shapes, strict=True)
    )


def _find_determined(tensor: Tensor) -> dict[Tensor, bool]:
    """Return, for a tensor and its operands with open shapes, True if no leaf is open."""
    environment = tensor.session.environment
    found: dict[Tensor, bool] = {}
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
