"""Requirements on shapes, stated as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocannl_core.base.errors import SpecError, UsageError
from ocannl_core.base.identity import ById
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.shape.language.statement import parse_statement, statement_constraints
from ocannl_core.tensor.graph.tensor import Tensor


def require_shape(tensor: Tensor, shape: str | Sequence[int | StaticExtent]) -> Tensor:
    """Require that a tensor has the shape that a text or sizes denote, and return it.

        oc.require_shape(x, (32, 64))           # two axes, of the kinds that the tensor has
        oc.require_shape(x, "32|64")            # a batch of 32, one output axis of 64
        oc.require_shape(w, "n->n")             # as many inputs as outputs
        oc.require_shape(w, "..v..->..v..")     # the input axes are the output axes
        oc.require_shape(y, str(x.shape))       # the printed form of a known shape is accepted

    Sizes in buffer order (batch, output, input) leave the kinds of the axes as they are, so that
    open kinds still follow from other uses; a text states them. In a text,
    a number is a size, equal names are equal sizes or axes, `_` is any size, and a row that is not
    written has no axes. Entries are separated as in specifications: without commas, every letter is
    an axis. Parentheses separate, too. Information flows in every direction.

    Raises:
        ShapeError: if this contradicts known shapes; then nothing changes.
        SpecError: if the text denotes no shape.
        UsageError: for anything but a text or sizes.
    """
    origin = Origin(f"the shape {shape} required of {_name(tensor)}", caller_location())
    if not isinstance(shape, str):
        tensor.session.environment.exact(tensor.terms, _sizes(shape, origin), origin)
        tensor.note_stated_shape()
        return tensor
    readable = shape.replace("(", " ").replace(")", " ")
    if ";" in readable:
        raise _no_shape(shape, origin)
    _require(readable, [tensor], origin)
    return tensor


def require_shapes(text: str, *tensors: Tensor) -> None:
    """Require that tensors have the shapes that a text denotes, `;` between them.

        oc.require_shapes("...|..n..; ..n..", x, gamma)    # gamma has the output axes of x
        oc.require_shapes("n->m; m->n", encoder, decoder)

    The notation is as for `require_shape`; a name means the same in all shapes. Unlike operands of
    an operation, which broadcast, the tensors have exactly these axes.

    Raises:
        ShapeError: if this contradicts known shapes; then nothing changes.
        SpecError: if the text does not denote one shape for each tensor.
        UsageError: if there are no tensors, or they belong to different sessions.
    """
    names = ", ".join(map(_name, tensors))
    origin = Origin(f"the shapes {text} required of {names}", caller_location())
    if len({ById(tensor.session) for tensor in tensors}) != 1:
        raise UsageError(
            "Shapes are required of tensors of one session.",
            found=names or "no tensors",
            where=str(origin),
        )
    _require(text, tensors, origin)


def _require(text: str, tensors: Sequence[Tensor], origin: Origin) -> None:
    if "=>" in text:
        raise _no_shape(text, origin)
    statement = parse_statement(f"=>{text}")
    for tensor in tensors:
        tensor.note_stated_shape()
    shapes = [tensor.terms for tensor in tensors]
    environment = tensors[0].session.environment
    environment.derive(
        [], [], lambda fresh: statement_constraints(statement, [], shapes, origin, fresh)
    )


def _sizes(given: object, origin: Origin) -> Sequence[int | StaticExtent]:
    """Return sizes, checked to be numbers and extents."""
    is_number = (int, np.integer)
    if not isinstance(given, Sequence) or not all(
        isinstance(each, StaticExtent)
        or (isinstance(each, is_number) and not isinstance(each, bool) and each >= 0)
        for each in given
    ):
        raise UsageError(
            "A shape is a text or the sizes of all axes in buffer order.",
            found=repr(given),
            where=str(origin),
            fix='oc.require_shape(x, (32, 64)), or oc.require_shape(x, "32|64")',
        )
    return given


def _no_shape(text: str, origin: Origin) -> SpecError:
    return SpecError(
        "A shape is `batch|input->output`, where the parts on the left may be left out.",
        found=repr(text),
        where=str(origin),
    )


def _name(tensor: Tensor) -> str:
    return tensor.label[0] if tensor.label else "a tensor"
