"""What running code needs to know of tensors and computations; the tensor layer provides both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ocannl_core.assign.nodes import AssignProgram
from ocannl_core.node import NodeInfo, TensorNode

Array = np.ndarray[Any, Any]


class TensorLike(Protocol):
    """A tensor as the runtime sees it: a node, and where its first values come from."""

    @property
    def node(self) -> TensorNode: ...

    @property
    def info(self) -> NodeInfo:
        """What inference found; asking for it closes the shape."""
        ...

    @property
    def shape(self) -> object:
        """Something whose text is `batch|input->output`."""
        ...

    @property
    def literal(self) -> Array | None:
        """The cells of a tensor made from host data: of the node's dtype, without margins."""
        ...

    @property
    def is_parameter(self) -> bool: ...

    @property
    def is_placeholder(self) -> bool:
        """True if the host provides the cells, and no code computes them."""
        ...

    @property
    def is_gradient(self) -> bool:
        """True if backpropagation computes the cells."""
        ...

    def describe(self) -> str:
        """Returns what people call it: `parameter w (model.py:12: ...)`."""
        ...

    def parameters(self) -> tuple[TensorLike, ...]:
        """Returns every parameter that the tensor depends on, itself included, oldest first."""
        ...

    def initialization(self) -> ComputationLike:
        """Returns the code that computes a parameter's first values."""
        ...


class ComputationLike(Protocol):
    """Code that a context can compile."""

    def resolve(self) -> AssignProgram:
        """Returns the assignments with every shape closed."""
        ...

    def literals(self) -> Mapping[TensorNode, Array]:
        """Returns the cells of the nodes made from host data: `TensorLike.literal` of each."""
        ...

    def __add__(self, other: Any) -> ComputationLike:
        """Returns this code followed by other code."""
        ...

    def tensors(self) -> Mapping[TensorNode, TensorLike]:
        """Returns the tensor behind each node that the code mentions; nodes may be missing."""
        ...
