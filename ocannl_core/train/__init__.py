"""Training: code for forward passes, gradients and updates, composed of recorded computations."""

from ocannl_core.tensor.computation import forward
from ocannl_core.tensor.computation import gradient_update as grad_update
from ocannl_core.train.guards import DynamicScale, ZScore
from ocannl_core.train.optimiser import Optimiser, Update
from ocannl_core.train.optimisers import (
    LAMB,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
    ScheduleFreeAdamW,
)
from ocannl_core.train.schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    joined,
    linear,
    one_cycle,
    wsd,
)
from ocannl_core.train.sgd import sgd_step, sgd_update

__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "DynamicScale",
    "Lion",
    "Muon",
    "NAdam",
    "Optimiser",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Schedule",
    "ScheduleFreeAdamW",
    "Update",
    "ZScore",
    "constant",
    "cosine",
    "exponential",
    "forward",
    "grad_update",
    "joined",
    "linear",
    "one_cycle",
    "sgd_step",
    "sgd_update",
    "wsd",
]
