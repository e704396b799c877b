"""Code of user-written operations inside a computation, and of gradients that are expressions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ocannl_core.base.graphs import reachable
from ocannl_core.ir.assignments.bufferize_calls import bufferize_calls
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.shape.language.shape_terms import closed_shape
from ocannl_core.tensor.computations.gradient_states import no_expression
from ocannl_core.tensor.derivatives.gradient_terms import GradientTerm, terms_in_memory
from ocannl_core.tensor.graph.definitions import (
    CarriedValue,
    Declared,
    GradientOf,
    Literal,
    Parameter,
    Placeholder,
    ResultOf,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.tensor.computations.resolve import AssignmentEmitter
    from ocannl_core.tensor.custom.op import Apply

_KEPT = {Literal: "literal", Placeholder: "placeholder", Parameter: "parameter"}
"""Definitions of tensors whose cells exist before code runs, and must exist after it."""


def with_siblings(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors and the other results of the operations and loops that compute them."""
    found = dict.fromkeys(tensors)
    for tensor in tensors:
        match tensor.definition:
            case ResultOf(application):
                found.update(dict.fromkeys(application.results))
            case ResultOfLoop(loop):
                found.update(dict.fromkeys(loop.results))
    return list(found)


def with_steps(tensors: Iterable[Tensor]) -> set[Tensor]:
    """Return the tensors, and all tensors that the steps of the loops among them compute."""

    def inside(tensor: Tensor) -> tuple[Tensor, ...]:
        if not isinstance(tensor.definition, ResultOfLoop):
            return ()
        loop = tensor.definition.loop
        return (*loop.body, *loop.results, *loop.before, *loop.inputs)

    found = set(tensors)
    loops = [each for each in found if isinstance(each.definition, ResultOfLoop)]
    return found.union(reachable(loops, inside)) if loops else found


def backpropagation_tensors(root: Tensor) -> set[Tensor]:
    """Return every tensor whose shape backpropagation from a tensor needs."""
    found = with_steps(ancestors([root]))
    # in a fixed order: gradient code creates tensors, whose numbers are part of printed programs
    for tensor in sorted(found, key=lambda each: each.id):
        if tensor.grad is not None and (terms := terms_in_memory(tensor)):
            found.update(with_siblings(_gradient_code(terms)))
    return found


def _gradient_code(terms: Iterable[GradientTerm]) -> list[Tensor]:
    """Return the tensors that terms of gradients consist of, oldest first."""
    return ancestors([each.value for each in terms if isinstance(each.value, Tensor)])


class ExternalCalls:
    """Emitter of calls of user-written operations, for one computation."""

    def __init__(self, emitter: AssignmentEmitter) -> None:
        self._emitter = emitter
        self._applied: dict[Apply, int] = {}
        """The time, in changes of any tensor, of the calls whose outputs are up to date."""
        self._updates: dict[Tensor, TensorNode] = {}

    def node_of(self, tensor: Tensor) -> TensorNode:
        """Return a tensor's node; until `settle_calls`, updates have nodes of their own."""
        if tensor.memory is tensor:
            return tensor.node
        return self._updates.setdefault(tensor, TensorNode(tensor.id, tensor.label))

    def forward(self, application: Apply) -> None:
        """Emit the call that computes all outputs of an application, once."""
        if application in self._applied:
            return
        emitter = self._emitter
        self._applied[application] = emitter.now
        for tensor in application.inputs:
            emitter.constant_result(tensor)
        emitter.body.append(application.call(emitter.node_of))
        emitter.embedded.update(map(emitter.node_of, application.results))

    def forget(self, application: Apply) -> None:
        """Emit a call again at its next use: in another step of a loop its inputs differ."""
        self._applied.pop(application, None)
        self._emitter.passed.discard(application)

    def backpropagate(self, application: Apply) -> None:
        """Emit the contributions of the outputs' gradients to the inputs' gradients."""
        if application in self._emitter.passed:
            return
        self._emitter.passed.add(application)
        read = self._applied.get(application, self._emitter.now)
        self.add_terms(application.inputs, application.backward(), read)

    def add_terms(self, inputs: Sequence[Tensor], terms: Sequence[GradientTerm], read: int) -> None:
        """Emit the addition of terms that are expressions to the gradients of inputs.

        Args:
            read: The time, in changes of any tensor, at which the operation has read its inputs.
        """
        code = _gradient_code(terms)
        depends: set[Tensor] = set()  # on gradients of outputs, and so is computed anew
        for tensor in code:
            if isinstance(tensor.definition, GradientOf):
                is_input = any(each is tensor for each in inputs)
                if is_input and self._emitter.last_change([tensor]) > read:
                    raise no_expression(tensor)  # the call has read other cells
                depends.add(tensor)
            elif not depends.isdisjoint(tensor.operands):
                depends.add(tensor)
                self._emitter.embedded.discard(tensor.node)
                if isinstance(tensor.definition, ResultOf):
                    self._applied.pop(tensor.definition.application, None)
        for tensor in code:
            if not isinstance(tensor.definition, CarriedValue):  # which the step has assigned
                self._emitter.forward(tensor)
        for tensor, value, _ in terms:
            if tensor.grad is not None:
                shape = closed_shape() if isinstance(value, int | float) else value.shape
                self._emitter.add_gradient(tensor.grad, self._emitter.operand(value), shape)

    def settle_calls(self, program: AssignProgram) -> AssignProgram:
        """Return the program with calls at valid places, over the memory that they share."""
        definitions = {node: t.definition for node, t in self._emitter.tensors.items()}
        persistent = {
            node for node, each in definitions.items() if isinstance(each, Parameter | Declared)
        }
        kept = {n: _KEPT[type(each)] for n, each in definitions.items() if type(each) in _KEPT}
        return bufferize_calls(program, persistent, kept)
