"""Stochastic gradient descent."""

from __future__ import annotations

from ocannl_core.errors import UsageError
from ocannl_core.tensor.computations.computation import require_tensor
from ocannl_core.tensor.computations.recording import cd
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
) -> None:
    """Update every parameter that a loss depends on; the arguments are those of `sgd_step`.

    Raises:
        UsageError: if no gradient flows into any parameter.
    """
    require_tensor(loss, "oc.train.sgd_update")
    trained = [p for p in loss.params if p.requires_grad]
    if not trained:
        raise UsageError(
            "Updates are for parameters that gradients flow into.",
            found=f"{loss!r} depends on none",
            where=str(loss.origin),
            fix='make trainable tensors with oc.param("w")',
        )
    for p in trained:
        sgd_step(
            p,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
