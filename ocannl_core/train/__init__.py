"""Training: code for forward passes, gradients and updates, composed of recorded computations, and
a loop over batches.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocannl_core.tensor.computation import forward
from ocannl_core.tensor.computation import gradient_update as grad_update
from ocannl_core.tensor.foreign_modules import missing_name
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

if TYPE_CHECKING:
    from ocannl_core.train.training_loop import Callback, Checkpoint, Evaluation, Run, fit

_LOADED_ON_DEMAND = frozenset({"Callback", "Checkpoint", "Evaluation", "Run", "fit"})


def __getattr__(name: str) -> Any:
    if name not in _LOADED_ON_DEMAND:
        raise missing_name("oc.train", name, __all__)
    module = import_module("ocannl_core.train.training_loop")
    globals().update({each: getattr(module, each) for each in _LOADED_ON_DEMAND})
    return globals()[name]


__all__ = [
    "LAMB",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Callback",
    "Checkpoint",
    "DynamicScale",
    "Evaluation",
    "Lion",
    "Muon",
    "NAdam",
    "Optimiser",
    "RAdam",
    "RMSprop",
    "Rprop",
    "Run",
    "Schedule",
    "ScheduleFreeAdamW",
    "Update",
    "ZScore",
    "constant",
    "cosine",
    "exponential",
    "fit",
    "forward",
    "grad_update",
    "joined",
    "linear",
    "one_cycle",
    "sgd_step",
    "sgd_update",
    "wsd",
]
