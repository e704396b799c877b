"""What recorded code does, step by step, while shapes are still open."""

from __future__ import annotations

from ocannl_core.ops import BinaryOp, Op
from ocannl_core.origin import Origin
from ocannl_core.records import dataclass
from ocannl_core.shape.logic import Logic
from ocannl_core.tensor.index_maps import IndexMaps
from ocannl_core.tensor.tensor import MergeBuffer, Tensor

Argument = Tensor | MergeBuffer | float


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """`target = target combine op(*args)`, with index maps from the logic once shapes are
    closed, or stated ones.
    """

    target: Tensor
    combine: BinaryOp
    reset: bool
    op: Op
    args: tuple[Argument, ...]
    logic: Logic | IndexMaps
    origin: Origin


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """The own code of each of these tensors, oldest first.

    Attributes:
        tensors: The tensors.
        is_written_here: The tensors are expressions of recorded code at the place where they were
            written, and are computed there. Others are computed unless they are up to date.
    """

    tensors: tuple[Tensor, ...]
    is_written_here: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ZeroGradients:
    """Sets the gradients of a tensor and of everything it depends on to zero."""

    root: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Backpropagate:
    """Accumulates gradients from a tensor, whose own gradient is set, into everything it depends
    on.
    """

    root: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Titled:
    """Steps under a title."""

    title: str
    steps: tuple[Step, ...]


Step = Assign | Forward | ZeroGradients | Backpropagate | Titled
