"""Subscripts of tensors: `x[keys]`."""

from __future__ import annotations

from typing import Any

from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.shape.translation.logic import Slice
from ocannl_core.tensor.graph.definitions import Declared
from ocannl_core.tensor.graph.subscript_keys import key_text, parse_keys, parts_of
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operation import define_operation


def _copy(v: Any, v1: Any) -> None:
    v[:] = v1


def _scatter(g: Any, g1: Any) -> None:
    g1 += g


_slice = define_operation("slice", forward=_copy, gradient=_scatter, primitive=UnaryOp.IDENTITY)


def subscript(tensor: Tensor, key: object) -> Tensor:
    """Return the cells of a tensor that keys address.

    Raises:
        ShapeError: if there are more keys than axes, or a position lies outside its axis.
        UsageError: if a part is no key.
    """
    parts = parts_of(key)
    text = f"{tensor.label[0] if tensor.label else 'x'}[{key_text(key)}]"
    # A tensor of integers among the parts selects positions along its axis; `parse_keys` refuses
    # it until gathers are an operation.
    keys = parse_keys(parts, text)
    origin = Origin(text, caller_location())
    environment = tensor.session.environment
    is_declared = isinstance(tensor.definition, Declared)  # its shape follows from later code
    ranks = None if is_declared else environment.implied_ranks(tensor.terms)
    if ranks is not None:  # uses that follow add no axes, so that the keys count those
        environment.set_ranks(tensor.terms, ranks, origin)
    return _slice.tensor((tensor,), Slice(keys), origin=origin)
