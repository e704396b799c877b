"""Protocols of tensors and computations; the tensor layer implements both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.node import NodeInfo, TensorNode

Array = np.ndarray[Any, Any]


class TensorLike(Protocol):
    """A tensor: a node, and the source of its first values."""

    @property
    def node(self) -> TensorNode: ...

    @property
    def info(self) -> NodeInfo:
        """Format and extents of the node; reading them closes the shape."""
        ...

    @property
    def shape(self) -> object:
        """The shape, printed as `batch|input->output`."""
        ...

    @property
    def literal(self) -> Array | None:
        """The cells of a tensor made from host data: of the node's dtype, without margins."""
        ...

    @property
    def is_parameter(self) -> bool: ...

    def note_host_write(self) -> None:
        """Record that the host writes the cells; raise UsageError if code relies on them."""
        ...

    @property
    def is_placeholder(self) -> bool:
        """Return True if the host provides the cells, and no code computes them."""
        ...

    @property
    def is_statistic(self) -> bool:
        """Return True for state that training follows and evaluation reads."""
        ...

    @property
    def is_gradient(self) -> bool:
        """Return True if backpropagation computes the cells."""
        ...

    def describe(self) -> str:
        """Return its name in messages: `parameter w (model.py:12: ...)`."""
        ...

    def parameters(self) -> tuple[TensorLike, ...]:
        """Return every parameter that the tensor depends on, itself included, oldest first."""
        ...

    def initialization(self) -> ComputationLike:
        """Return the code that computes a parameter's first values."""
        ...


class HasParameters(Protocol):
    """A tensor or code with parameters."""

    def parameters(self) -> tuple[TensorLike, ...]:
        """Return every parameter that it depends on, oldest first."""
        ...

    @property
    def statistics(self) -> Iterable[TensorLike]:
        """The statistics that it depends on, or that its gradient updates, oldest first."""
        ...


class ComputationLike(Protocol):
    """Code that a context can compile."""

    def resolve(self) -> AssignProgram:
        """Return the assignments with every shape closed."""
        ...

    def keep_less(self, excess: int) -> bool:
        """Let loops keep fewer bytes of values for gradients; return False if they keep none."""
        ...

    def literals(self) -> Mapping[TensorNode, Array]:
        """Return the cells of the nodes made from host data: `TensorLike.literal` of each."""
        ...

    def __add__(self, other: Any) -> ComputationLike:
        """Return this code followed by other code."""
        ...

    def tensors(self) -> Mapping[TensorNode, TensorLike]:
        """Return the tensor behind each node that the code mentions; nodes may be missing."""
        ...
