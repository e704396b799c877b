"""Training data: batches of arrays in a reproducible order, and files with examples."""

from ocannl_core.data.files import characters, contexts, read_cifar10, read_idx, windows
from ocannl_core.data.loader import Batch, Loader, LoaderState
from ocannl_core.data.permutation import permutation
from ocannl_core.tensor.messages.call_errors import guard

# fmt: off
__all__ = [
    "Batch", "Loader", "LoaderState", "characters", "contexts", "permutation", "read_cifar10",
    "read_idx", "windows",
]
# fmt: on

guard(globals(), __all__)
