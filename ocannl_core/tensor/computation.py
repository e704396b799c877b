"""Computations: recorded code whose shapes are still open, and what resolves it into
assignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocannl_core.assign.nodes import AssignProgram
from ocannl_core.assign.printer import to_text
from ocannl_core.errors import UsageError
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.shape.logic import Pointwise
from ocannl_core.tensor.calls import backpropagated
from ocannl_core.tensor.gradient_flow import refuse_stopped_gradient
from ocannl_core.tensor.parameter_set import Parameters
from ocannl_core.tensor.resolve import Resolved, mentioned, resolve
from ocannl_core.tensor.steps import Assign, Backpropagate, Forward, Step, Titled, ZeroGradients
from ocannl_core.tensor.tensor import Parameter, Tensor, ancestors


@dataclass(frozen=True, eq=False)
class Computation:
    """Code to compile: steps over tensors in program order. `+` puts one computation after another.

    Shapes close, and index maps are derived, when the computation is resolved: at
    `Context.compile`, or earlier through `resolve`.

    Attributes:
        steps: What to do.
        results: Tensors that stay readable by default.
        name: A name for printed code and files.
        temporaries: Tensors that only this computation knows; an assignment that copies one may
            compute it in place.
    """

    steps: tuple[Step, ...]
    results: frozenset[Tensor] = frozenset()
    name: str = "routine"
    temporaries: frozenset[Tensor] = frozenset()
    _cache: list[Resolved] = field(default_factory=list, compare=False, repr=False)

    def __add__(self, other: Computation) -> Computation:
        if not isinstance(other, Computation):
            return NotImplemented
        name = self.name if self.name == other.name else f"{self.name}_{other.name}"
        return Computation(
            self.steps + other.steps,
            self.results | other.results,
            name,
            self.temporaries | other.temporaries,
        )

    def resolve(self) -> AssignProgram:
        """Returns the computation as assignments over closed shapes.

        Raises:
            ShapeError: if the shapes contradict each other, or leave a parameter's size open.
        """
        return self._resolved().program

    def literals(self) -> Mapping[TensorNode, np.ndarray[Any, Any]]:
        """Returns the host's arrays behind the literal nodes that the computation reads."""
        tensors = self._resolved().tensors
        return {node: t.literal for node, t in tensors.items() if t.literal is not None}

    @property
    def params(self) -> Parameters:
        """The parameters that the code mentions, oldest first, with their names."""
        return Parameters(t for t in mentioned(self.steps) if t.is_parameter)

    def __repr__(self) -> str:
        return f"<computation {self.name}: {len(self.steps)} steps>"

    def tensors(self) -> Mapping[TensorNode, Tensor]:
        """Returns the tensor behind each node of the resolved program; intermediate nodes have
        none.
        """
        return self._resolved().tensors

    def _resolved(self) -> Resolved:
        if not self._cache:
            self._cache.append(resolve(self.steps, self.results, self.name, self.temporaries))
        return self._cache[0]

    def __str__(self) -> str:
        return to_text(self.resolve())


def forward(tensor: Tensor, name: str = "forward") -> Computation:
    """Returns the code that computes a tensor from parameters, placeholders and literals."""
    return Computation((forward_step(tensor),), frozenset({tensor}), name)


def forward_step(tensor: Tensor) -> Forward:
    """Returns the own code of a tensor and of everything it is computed from."""
    return Forward(tuple(ancestors([tensor])))


def gradient_update(loss: Tensor) -> Computation:
    """Returns the code that computes a tensor and the gradients of the sum of its cells in
    everything it depends on.

    Forward code, gradients to zero, the tensor's own gradient to one, backpropagation.

    Raises:
        UsageError: if the tensor depends on no parameter.
    """
    refuse_stopped_gradient(loss)
    if loss.grad is None:
        raise UsageError(
            "Gradients are computed of a tensor that depends on parameters.",
            found=f"{loss!r} depends on none",
            where=str(loss.origin),
            fix='make what is to be trained with oc.param("w")',
        )
    backpropagated(loss)  # an operation without a gradient is told here, not at compilation
    one = Assign(
        loss.grad, BinaryOp.SECOND, False, UnaryOp.IDENTITY, (1.0,), Pointwise(), loss.origin
    )
    gradients = {p.grad for p in loss.params if p.grad is not None}
    steps = (
        Titled("forward", (forward_step(loss),)),
        Titled("zero gradients", (ZeroGradients(loss),)),
        Titled("backpropagate", (one, Backpropagate(loss))),
    )
    return Computation(steps, frozenset({loss, *gradients}), "grad_update")


def initialization_of(parameter: Tensor) -> Computation:
    """Returns the code that computes a parameter's first value from its initialiser."""
    assert isinstance(parameter.definition, Parameter)
    initializer = parameter.definition.initializer
    environment = parameter.session.environment
    environment.close([parameter.terms])  # uses decide the shape; the initialiser fills it
    environment.relate(Pointwise(), parameter.terms, [initializer.terms], parameter.origin)
    copy = Assign(
        parameter,
        BinaryOp.SECOND,
        False,
        UnaryOp.IDENTITY,
        (initializer,),
        Pointwise(),
        parameter.origin,
    )
    steps = (forward_step(initializer), copy)
    return Computation(steps, frozenset({parameter}), f"init_{parameter.node.name}")
