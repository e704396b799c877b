"""Dense layers, perceptrons, dropout, and stacks of equal layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import float32, int64
from ocannl_core.nn.attention_weights import add_weights, weights_of_a_layer
from ocannl_core.nn.sizes import positive_integers
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Effect
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import is_evaluating, op
from ocannl_core.tensor.models.parameters import param, session_statistic
from ocannl_core.tensor.operations.axes import share_shape
from ocannl_core.tensor.operations.contractions import where
from ocannl_core.tensor.operations.random import Counter, uniform
from ocannl_core.tensor.primitives.operands import require_operand
from ocannl_core.tensor.primitives.pointwise_operations import relu


@op
def dense(x: Tensor, *, output: int | Sequence[int] | None = None, bias: bool = True) -> Tensor:
    """Return an affine function of the output axes: `weight @ x + bias`.

        y = oc.nn.dense(x, output=[64])         # a layer of its own
        layer = oc.nn.dense(output=[64])        # a layer whose applications share its parameters
        y1, y2 = layer(x1), layer(x2)

    Shapes: `b|n` to `b|m`, with parameters `weight` of shape `n->m` and `bias` of shape `m`, 0 at
    first. Any number of axes may stand for `n` and `m`.

    Args:
        x: The input; the weight multiplies its output axes.
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
    hidden: int | Sequence[int],
    output: int | Sequence[int] | None = None,
    activation: Callable[[Tensor], Tensor] = relu,
) -> Tensor:
    """Return the output of a multi-layer perceptron: a dense layer with an activation for each
    hidden width, then a dense layer.

    Shapes: `b|n` to `b|m`.

    Args:
        x: The input of the first layer.
        hidden: The width of each hidden layer; an integer for a single hidden layer.
        output: The sizes `m`; inferred from the use of the result when not given.
        activation: The activation of hidden layers.
    """
    for width in [hidden] if isinstance(hidden, int) else hidden:
        x = activation(dense(x, output=[width]))
    return dense(x, output=output)


def repeat_layers(
    layer: Callable[..., Any], x: Any, xs: Any = None, *, layers: int, keep: str = "reductions"
) -> Any:
    """Return the result of equal layers one after the other, each with parameters of its own.

        y = oc.nn.repeat_layers(lambda x: oc.relu(dense(x)), x, layers=128)

    The code of a layer is compiled once: the time to compile does not depend on their number. Each
    parameter that the function makes gets a leading batch axis, the layer. The result has the shape
    and the number format of `x`.

    Args:
        layer: A function of the previous layer's result; a block, or a function that applies
            blocks. With `xs`, it also takes the layer's entry, and returns a pair: the input of the
            next layer and a value.
        x: The input of the first layer: a tensor, or a structure of tensors as in `oc.scan`.
        xs: Tensors with an entry for each layer along their leftmost batch axis, or a structure of
            such tensors. The result is then a pair: the result of the last layer, and the values of
            all layers along a leftmost batch axis.
        layers: The number of layers, 1 or more.
        keep: The values of each layer that gradients read from memory, as in `oc.scan`.

    Raises:
        UsageError: if the layer returns another structure, or another number format.
        ShapeError: if it changes the shape.
    """
    (layers,) = positive_integers(
        [layers], "There are 1 or more layers.", f"layers={layers!r}", "layers=12"
    )
    collected: list[dict[str, Any]] = []

    def step(carry: Any, entry: Any) -> Any:
        with weights_of_a_layer() as weights:
            returned = layer(carry, entry) if xs is not None else (layer(carry), None)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UsageError.at_caller(
                "A layer that reads an entry returns the input of the next layer, and a value.",
                found=f"{step.__name__} returned {returned!r}",
                fix="return h, value; and return h, None without a value",
            )
        following, value = returned
        if not weights:
            return following, value
        collected.append(weights)
        return following, (value, tuple(weights.values()))

    from ocannl_core.tensor.operations.scan import run_steps  # which single layers do without

    step.__name__ = getattr(layer, "__name__", "layer")
    items, result = run_steps(step, x, xs, layers, is_reversed=False, keep=keep, has_layers=True)
    for weights in collected:
        items, stacked = items
        add_weights(dict(zip(weights, stacked, strict=True)))
    return result if xs is None else (result, items)


def dropout(x: Tensor, *, rate: float = 0.5, counter: Counter | None = None) -> Tensor:
    """Return cells set to 0 with probability `rate`, and the others divided by `1 - rate`.

    Inside `with oc.evaluation():` it is `x`. The random numbers follow from the seed of the
    session, from the place of the call among its random tensors, and from the counter.

    Args:
        x: The cells; the shape is kept.
        rate: The probability, from 0 to 1; at 1 every cell is 0.
        counter: A number that selects the random numbers. By default it is the number of
            backpropagations so far, a statistic of the session, so that each step drops other
            cells.

    Raises:
        UsageError: if the rate is no probability.
    """
    x = require_operand(x, "oc.nn.dropout")
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0 <= rate <= 1:
        raise UsageError.at_caller(
            "The rate of dropout is the probability of a cell to become 0.",
            found=f"rate={rate!r}",
            fix="rate=0.1",
        )
    if rate == 0 or is_evaluating():
        return x
    if rate == 1:
        return where(x == x, 0.0, 0.0 * x)
    steps = session_statistic("dropout_step", dtype=int64) if counter is None else None
    drawn = uniform(counter=steps if steps is not None else counter, dtype=float32)
    share_shape(x, drawn, "random numbers")
    is_kept = drawn >= rate
    result: Tensor = where(is_kept, x * (1.0 / (1.0 - rate)), 0.0)
    if steps is not None and result.session.recorder is None:
        result.add_effect(_count(result.session, steps))
    return result


def _count(session: sessions.Session, steps: Tensor) -> Effect:
    """Return the effect that counts a step, the same one for all calls of a session."""

    def make() -> Effect:
        loop, session.loop = session.loop, None  # it follows the backpropagation of all its steps
        try:
            return Effect(_increment(steps).steps, (steps,))
        finally:
            session.loop = loop

    return sessions.shared(session, ("dropout_step", "effect"), make)


@cd
def _increment(count: Tensor) -> None:
    count += 1
