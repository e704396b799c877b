"""Names of weights in the files that they were read from, so that saving keeps them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ocannl_core import Tensor
from ocannl_core.assignments import TensorNode

_NAMES: WeakKeyDictionary[TensorNode, str] = WeakKeyDictionary()


def note_file_name(tensor: Tensor, name: str) -> None:
    """State the name of the initializer that became a tensor."""
    _NAMES[tensor.node] = name


def file_name_of(tensor: Tensor) -> str | None:
    """Return the name of the initializer that became a tensor; None for other tensors."""
    return _NAMES.get(tensor.node)
