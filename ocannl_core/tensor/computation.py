"""Computations: recorded code whose shapes are still open, and what resolves it into
assignments.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from ocannl_core.assign.nodes import AssignProgram
from ocannl_core.assign.printer import to_text
from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.origin import caller_depth, caller_location
from ocannl_core.shape.logic import Pointwise
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.calls import backpropagated
from ocannl_core.tensor.definitions import (
    Applied,
    GradientOf,
    Literal,
    Parameter,
    Placeholder,
    ResultOf,
)
from ocannl_core.tensor.gradient_flow import refuse_stopped_gradient
from ocannl_core.tensor.graph import ancestors
from ocannl_core.tensor.operation import check_recorded_here
from ocannl_core.tensor.parameter_set import Parameters
from ocannl_core.tensor.registry import code_of
from ocannl_core.tensor.resolve import Resolved, mentioned, resolve
from ocannl_core.tensor.steps import (
    Assign,
    Backpropagate,
    Forward,
    Step,
    UpdateGradients,
    ZeroGradients,
)
from ocannl_core.tensor.tensor import Tensor


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
        declared: Tensors declared in the code itself; one that is written before it is read needs
            no memory between calls.
    """

    steps: tuple[Step, ...]
    results: frozenset[Tensor] = frozenset()
    name: str = "routine"
    temporaries: frozenset[Tensor] = frozenset()
    declared: frozenset[Tensor] = frozenset()
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
            self.declared | other.declared,
        )

    def resolve(self) -> AssignProgram:
        """Returns the computation as assignments over closed shapes, for a context to compile.

        From then on code that is recorded reads the tensors that are computed here. Warns about
        code that does nothing.

        Raises:
            ShapeError: if the shapes contradict each other, or leave a parameter's size open.
        """
        if not self.steps:
            warnings.warn(
                f"the code {self.name} assigns nothing. Assignments are written c[:] = e or c += e "
                "inside the function; called inside another recorded function, it becomes a part "
                "of that one's code",
                stacklevel=caller_depth(),
            )
        program = self._resolved().program
        for tensor in mentioned(self.steps):
            consumed = tensor.session.consumed
            if tensor not in self.temporaries and tensor not in consumed:
                consumed[tensor] = f"the computation {self.name}"
        return program

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
            self._cache.append(
                resolve(self.steps, self.results, self.name, self.temporaries, self.declared)
            )
        return self._cache[0]

    def __str__(self) -> str:
        return to_text(self._resolved().program)


def _given(
    session: sessions.Session, steps: tuple[Step, ...], results: frozenset[Tensor], name: str
) -> Computation:
    """Returns steps as a computation; while code is recorded they become a part of it instead."""
    if session.recorder is not None:
        session.recorder.splice(steps, results)
        return Computation((), frozenset(), name)
    return Computation(steps, results, name)


def require_tensor(value: object, call: str) -> None:
    """Raises UsageError unless what code is asked for is a tensor."""
    if isinstance(value, Tensor):
        return
    raise UsageError(
        "Code computes tensors, one for each call.",
        found=f"{value!r} in {call}(...)",
        where=str(caller_location() or ""),
        fix=f"{call}(y), where y is a tensor, such as what a block returned",
    )


def forward(tensor: Tensor, name: str = "forward") -> Computation:
    """Returns the code that computes a tensor from parameters, placeholders and literals.

    Called while code is recorded, it adds that code there.

    Raises:
        UsageError: if it is asked for something else than a tensor.
    """
    require_tensor(tensor, "oc.train.forward")
    return _given(tensor.session, (forward_step(tensor),), frozenset({tensor}), name)


def forward_step(tensor: Tensor) -> Forward:
    """Returns the own code of a tensor and of everything it is computed from."""
    recorder = tensor.session.recorder
    check_recorded_here([tensor], None if recorder is None else recorder.recording)
    return Forward(tuple(ancestors([tensor])))


def zero_gradients(tensor: Tensor) -> Computation:
    """Returns the code that sets the gradients of a tensor and of all it is computed from to 0."""
    _require_gradient(tensor)
    return _given(tensor.session, (ZeroGradients((tensor,)),), _gradients(tensor), "zero_grads")


def backpropagate(tensor: Tensor) -> Computation:
    """Returns the code that adds to the gradients of all that a tensor is computed from."""
    _require_gradient(tensor)
    return _given(tensor.session, (Backpropagate((tensor,)),), _gradients(tensor), "backprop")


def _gradients(tensor: Tensor) -> frozenset[Tensor]:
    """Returns the gradients that backpropagation is for: those of what is not computed."""
    leaves = (
        t
        for t in ancestors([tensor])
        if isinstance(t.definition, Literal | Parameter | Placeholder)
    )
    return frozenset(leaf.grad for leaf in leaves if leaf.grad is not None)


def _require_gradient(tensor: Tensor) -> None:
    """Raises UsageError unless a tensor has a gradient."""
    refuse_stopped_gradient(tensor)
    if tensor.grad is not None:
        return
    if any(isinstance(t.definition, GradientOf) for t in ancestors([tensor])):
        raise UsageError(
            "There are no second derivatives: backpropagation is code, not tensors, and has no "
            "gradient.",
            found=f"{tensor!r} is computed from a gradient",
            where=str(tensor.origin),
            fix="write the first derivative as an expression of its own, and differentiate that",
        )
    raise UsageError(
        "Gradients are computed of a tensor that depends on parameters, or on other tensors with "
        "requires_grad=True.",
        found=f"{tensor!r} depends on none",
        where=str(tensor.origin),
        fix='make what is to be trained with oc.param("w"); give requires_grad=True to inputs '
        "whose gradients are wanted",
    )


# ----- code that is given out once ----------------------------------------------------------------


def consume_forward(tensor: Tensor) -> Computation:
    """Returns a tensor's forward code, once.

    Raises:
        UsageError: if some of it is contained in a computation already.
    """
    step = forward_step(tensor)
    consumed = tensor.session.consumed
    own = [each for each in step.tensors if isinstance(each.definition, Applied | ResultOf)]
    taken = [each for each in own if each in consumed]
    if taken:
        raise UsageError(
            "Forward code is consumed once.",
            found="\n".join(f"{each.describe()}: in {consumed[each]}" for each in taken),
            where=str(caller_location() or ""),
            fix=f"run that computation and read the tensor, or compute it again: "
            f"oc.train.forward({tensor.node.name})",
        )
    line = f"the code consumed at {caller_location()}"
    for each in own:
        consumed[each] = line
    return _given(tensor.session, (step,), frozenset({tensor}), "forward")


def consume_backprop(tensor: Tensor) -> Computation:
    """Returns a tensor's code for backpropagation, once.

    Raises:
        UsageError: if it was consumed before.
    """
    _require_gradient(tensor)
    before = tensor.session.backpropagated
    taken = [
        t
        for t in ancestors([tensor])
        if t in before and isinstance(t.definition, Applied | ResultOf)
    ]
    if taken:
        raise UsageError(
            "Code for backpropagation is consumed once.",
            found="\n".join(f"{each.describe()}: {before[each]}" for each in taken),
            where=str(caller_location() or ""),
            fix=f"include it wherever it is needed: {tensor.node.name}.backprop()",
        )
    line = f"consumed at {caller_location()}"
    for each in ancestors([tensor]):
        before[each] = line
    return backpropagate(tensor)


code_of.update(
    forward=forward,
    zero_grads=zero_gradients,
    backprop=backpropagate,
    consume_forward=consume_forward,
    consume_backprop=consume_backprop,
)


# ----- training and initialisation ----------------------------------------------------------------


def gradient_update(loss: Tensor) -> Computation:
    """Returns the code that computes a tensor and the gradients of the sum of its cells in
    everything it depends on.

    Forward code, gradients to zero, the tensor's own gradient to one, backpropagation. Called while
    code is recorded, it adds that code there.

    In one computation, the gradients of several losses add up until code reads a gradient or
    assigns a parameter: `grad_update(a) + grad_update(b)` computes those of `a + b`.

    Raises:
        UsageError: if the tensor depends on no parameter, or is computed from gradients.
    """
    require_tensor(loss, "oc.train.grad_update")
    _require_gradient(loss)
    backpropagated(loss)  # an operation without a gradient is told here, not at compilation
    return _given(
        loss.session, (UpdateGradients((loss,)),), _gradients(loss) | {loss}, "grad_update"
    )


def initialization_of(parameter: Tensor) -> Computation:
    """Returns the code that computes a parameter's first value from its initialiser."""
    assert isinstance(parameter.definition, Parameter)
    initializer = parameter.definition.initializer
    environment = parameter.session.environment
    parameter.settle()
    initializer.adopt(parameter.dtype)
    what = f"the shape of {parameter.node.name}"
    environment.close([parameter.terms], subject=what)  # uses decide; the initialiser fills it
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
