"""Where gradients stop on their way from a loss to its parameters."""

from __future__ import annotations

from ocannl_core.errors import UsageError
from ocannl_core.tensor.definitions import Applied, ResultOf, ancestors
from ocannl_core.tensor.tensor import Tensor


def refuse_stopped_gradient(loss: Tensor) -> None:
    """Raises UsageError if a loss depends on parameters, but no gradient flows to any of them.

    The message names the operations that let none through.
    """
    if loss.grad is not None:
        return
    graph = ancestors([loss])
    if not any(tensor.is_parameter for tensor in graph):
        return
    stops = [
        tensor
        for tensor in graph
        if isinstance(tensor.definition, Applied | ResultOf)
        and tensor.grad is None
        and any(operand.grad is not None for operand in tensor.operands)
    ]
    if not stops:
        raise UsageError(
            "Gradients are computed of a tensor that depends on parameters that are trained.",
            found=f"{loss!r} depends only on parameters made with requires_grad=False",
            where=str(loss.origin),
            fix="leave out requires_grad=False where a parameter is to be trained",
        )
    raise UsageError(
        "Gradients flow from a loss to its parameters only through operations that have one.",
        found="\n".join(f"{tensor!r} passes no gradient on to its operands" for tensor in stops),
        where="\n".join(str(tensor.origin) for tensor in stops),
        fix="keep oc.stop_gradient, comparisons and roundings out of the only way from the loss "
        "to the parameters",
    )
