"""Training: code for forward passes, gradients and updates, composed of recorded computations, and
a loop over batches.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocannl_core.tensor.computations.computation import forward
from ocannl_core.tensor.computations.computation import gradient_update as grad_update
from ocannl_core.tensor.computations.trained_parameters import trainable_params
from ocannl_core.tensor.messages.call_errors import guard
from ocannl_core.tensor.messages.foreign_modules import missing_name
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
    sgd_step,
    sgd_update,
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

if TYPE_CHECKING:
    from ocannl_core.train.communication import Communicator
    from ocannl_core.train.parallel_step import DataParallel, data_parallel
    from ocannl_core.train.training_loop import Callback, Checkpoint, Evaluation, Run, evaluate, fit

_LOADED_ON_DEMAND = {
    **dict.fromkeys(
        ("Callback", "Checkpoint", "Evaluation", "Run", "evaluate", "fit"), "training_loop"
    ),
    **dict.fromkeys(("DataParallel", "data_parallel"), "parallel_step"),
    "Communicator": "communication",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_ON_DEMAND:
        raise missing_name("oc.train", name, __all__)
    file = _LOADED_ON_DEMAND[name]
    module = import_module(f"ocannl_core.train.{file}")
    globals().update({k: getattr(module, k) for k, v in _LOADED_ON_DEMAND.items() if v == file})
    guard(globals(), (k for k, v in _LOADED_ON_DEMAND.items() if v == file))
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


# fmt: off
__all__ = [
    "LAMB", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Callback",
    "Checkpoint", "Communicator", "DataParallel", "DynamicScale", "Evaluation", "Lion", "Muon",
    "NAdam", "Optimiser", "RAdam", "RMSprop", "Rprop", "Run", "Schedule", "ScheduleFreeAdamW",
    "Update", "ZScore", "constant", "cosine", "data_parallel", "evaluate", "exponential", "fit",
    "forward", "grad_update", "joined", "linear", "one_cycle", "sgd_step", "sgd_update",
    "trainable_params", "wsd",
]
# fmt: on

guard(globals(), __all__)
