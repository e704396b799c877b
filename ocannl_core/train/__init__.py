"""Training: code for forward passes, gradients and updates, composed of recorded computations."""

from ocannl_core.tensor.computation import forward
from ocannl_core.tensor.computation import gradient_update as grad_update
from ocannl_core.train.sgd import sgd_step, sgd_update

__all__ = ["forward", "grad_update", "sgd_step", "sgd_update"]
