"""Shapes stated as text."""

from __future__ import annotations

from ocannl_core.errors import SpecError
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.statement import parse_statement, stated
from ocannl_core.tensor.tensor import Tensor


def require_shape(tensor: Tensor, text: str) -> Tensor:
    """Returns the tensor, and demands that it has the shape that a text denotes.

        oc.require_shape(x, "32|64")            # a batch of 32, one output axis of 64
        oc.require_shape(w, "n->n")             # as many inputs as outputs
        oc.require_shape(w, "..v..->..v..")     # the input axes are the output axes
        oc.require_shape(y, str(x.shape))       # what is printed of a known shape can be read

    A number is a size, equal names are equal sizes or axes, `_` is any size, and a row that is not
    written has no axes. Entries are separated as in specifications: without commas, every letter is
    an axis. Parentheses separate, too. Information flows in every direction.

    Raises:
        ShapeError: if this contradicts what is known; then nothing changes.
        SpecError: if the text denotes no shape.
    """
    name = tensor.label[0] if tensor.label else "a tensor"
    origin = Origin(f"the shape {text} required of {name}", caller_location())
    readable = text.replace("(", " ").replace(")", " ")
    if "=>" in readable or ";" in readable:
        raise SpecError(
            "A shape is `batch|input->output`, where the parts on the left may be left out.",
            found=repr(text),
            where=str(origin),
        )
    statement = parse_statement(f"=>{readable}")
    environment = tensor.session.environment
    environment.derive([], [], lambda fresh: stated(statement, [], [tensor.terms], origin, fresh))
    return tensor
