"""Training data: batches of arrays in a reproducible order, and files with examples."""

from typing import TYPE_CHECKING

from ocannl_core.data.files import characters, contexts, read_cifar10, read_idx, windows
from ocannl_core.data.loader import Batch, Loader, LoaderState
from ocannl_core.data.permutation import permutation
from ocannl_core.tensor.messages.call_errors import guard, list_names, load_on_demand
from ocannl_core.tensor.operations.literals import mapped as memmap

# fmt: off
__all__ = [
    "Batch", "Loader", "LoaderState", "characters", "contexts", "memmap", "permutation",
    "read_cifar10", "read_idx", "windows",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = load_on_demand(globals(), {})
__dir__ = list_names(globals())
guard(globals(), __all__)
