"""Dense layers and perceptrons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.models.parameters import param
from ocannl_core.tensor.primitives.pointwise_operations import relu


@op
def dense(x: Tensor, *, output: Sequence[int] | None = None, bias: bool = True) -> Tensor:
    """Return an affine function of the output axes: `weight @ x + bias`.

    Shapes: `b|n` to `b|m`, with parameters `weight` of shape `n->m` and `bias` of shape `m`, 0 at
    first. Any number of axes may stand for `n` and `m`.

    Args:
        x: The features.
        output: The sizes `m`; inferred from the use of the result when not given.
        bias: False to leave out the bias.
    """
    # both state all their axes, so that the number of axes of the result is known at once
    result: Tensor = param("weight", output=output) @ x
    if bias:
        result = result + param("bias", output=output, input=[], init=0.0)
    return result


@op
def mlp(
    x: Tensor,
    *,
    hidden: Sequence[int],
    output: Sequence[int] | None = None,
    activation: Callable[[Tensor], Tensor] = relu,
) -> Tensor:
    """Return the output of a multi-layer perceptron: a dense layer with an activation for each
    hidden width, then a dense layer.

    Shapes: `b|n` to `b|m`.

    Args:
        x: The features.
        hidden: The width of each hidden layer.
        output: The sizes `m`; inferred from the use of the result when not given.
        activation: The activation of hidden layers.
    """
    for width in hidden:
        x = activation(dense(x, output=[width]))
    result: Tensor = dense(x, output=output)
    return result
