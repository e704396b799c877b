"""Training: forward passes, gradients and updates as recorded code, and a loop over batches."""

from typing import TYPE_CHECKING

from ocannl_core.tensor.computations.computation import forward, trainable_params, unchanged_roots
from ocannl_core.tensor.computations.computation import gradient_update as grad_update
from ocannl_core.tensor.messages.call_errors import guard, list_names, load_on_demand, places_of

if TYPE_CHECKING:
    from ocannl_core.train.communication import Communicator
    from ocannl_core.train.guards import DynamicScale, ZScore
    from ocannl_core.train.optimizer import Optimizer, Update
    from ocannl_core.train.optimizers import (
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
        sgd_step,
        sgd_update,
    )
    from ocannl_core.train.parallel_step import DataParallel, data_parallel
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
    from ocannl_core.train.training_loop import Callback, Checkpoint, Evaluation, Run, evaluate, fit

_MODULES = {
    "communication": "Communicator",
    "guards": "DynamicScale ZScore",
    "optimizer": "Optimizer Update",
    "optimizers": "Adadelta Adafactor Adagrad Adam AdamW Adamax LAMB Lion Muon NAdam RAdam RMSprop "
    "Rprop SGD ScheduleFreeAdamW sgd_step sgd_update",
    "parallel_step": "DataParallel data_parallel",
    "schedules": "Schedule constant cosine exponential joined linear one_cycle wsd",
    "training_loop": "Callback Checkpoint Evaluation Run evaluate fit",
}
"""The names that are loaded at their first use, by module: forward passes need none of them."""

if not TYPE_CHECKING:
    __getattr__ = load_on_demand(globals(), places_of(__name__, _MODULES))
__dir__ = list_names(globals())

# fmt: off
__all__ = [
    "LAMB", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Callback",
    "Checkpoint", "Communicator", "DataParallel", "DynamicScale", "Evaluation", "Lion", "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "Run", "Schedule", "ScheduleFreeAdamW",
    "Update", "ZScore", "constant", "cosine", "data_parallel", "evaluate", "exponential", "fit",
    "forward", "grad_update", "joined", "linear", "one_cycle", "sgd_step", "sgd_update",
    "trainable_params", "unchanged_roots", "wsd",
]
# fmt: on

guard(globals(), __all__)
