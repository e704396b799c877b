"""Walks over what tensors are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ocannl_core.tensor.definitions import ResultOf

if TYPE_CHECKING:
    from ocannl_core.tensor.tensor import Tensor


def ancestors(tensors: list[Tensor]) -> list[Tensor]:
    """Returns the tensors and everything they are computed from, oldest first. Parameters are not
    looked into.
    """
    seen = set(tensors)
    pending = list(tensors)
    while pending:
        for operand in pending.pop().operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return sorted(seen, key=lambda tensor: tensor.id)


def with_siblings(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors and what user-written operations compute together with them."""
    found = dict.fromkeys(tensors)
    for tensor in tensors:
        if isinstance(tensor.definition, ResultOf):
            found.update(dict.fromkeys(tensor.definition.application.results))
    return list(found)
