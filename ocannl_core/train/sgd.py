"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.computations.trained_parameters import trained_by_name
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import declare


@cd
def sgd_step(
    p: Tensor,
    *,
    learning_rate: float | Tensor,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> None:
    """Update one parameter against its gradient.

    Args:
        p: The parameter.
        learning_rate: The step size; a placeholder of one cell can be changed between calls.
        momentum: The fraction of the previous step that is kept; 0 keeps no state.
        weight_decay: The multiple of the parameter added to its gradient.
        nesterov: True for Nesterov momentum.
    """
    delta = declare("sgd_delta")
    delta[:] = p.grad + weight_decay * p
    if momentum > 0:
        velocity = declare("sgd_momentum")
        velocity[:] = momentum * velocity + delta
        if nesterov:
            delta += momentum * velocity
        else:
            delta[:] = velocity
    p -= learning_rate * delta


@cd
def sgd_update(
    loss: Tensor,
    *,
    learning_rate: float | Tensor,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    params: Iterable[Tensor] | None = None,
) -> None:
    """Update every parameter that gradients of a loss flow into, or the parameters in `params=`;
    for the other arguments see `sgd_step`.

    Raises:
        UsageError: if no gradient flows into any parameter.
    """
    for p in trained_by_name(loss, params, "oc.train.sgd_update").values():
        sgd_step(
            p,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
