"""Computations: recorded code with open shapes, resolved into assignments; and what they train."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.graphs import reachable
from ocannl_core.base.origin import caller_depth, caller_location
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.assignments.printer import to_text
from ocannl_core.ir.node import TensorNode
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.computations import computation_steps as code
from ocannl_core.tensor.computations.external_calls import backpropagation_tensors
from ocannl_core.tensor.computations.gradient_states import no_expression
from ocannl_core.tensor.computations.resolve import ResolvedComputation, mentioned_tensors, resolve
from ocannl_core.tensor.derivatives.gradient_terms import terms_in_memory
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import (
    Applied,
    CarriedValue,
    Literal,
    Parameter,
    Placeholder,
    ResultOf,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.graph.parameter_set import Parameters
from ocannl_core.tensor.graph.session import Notes
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operands import check_recorded_here


@dataclass(frozen=True, eq=False)
class Computation:
    """Code to compile: steps over tensors in program order. `+` puts one computation after another.

    Shapes close, and index maps are derived, when the computation is resolved: at
    `Context.compile`, or earlier through `resolve`.

    Attributes:
        results: Tensors that stay readable by default.
        name: A name for printed code and files.
        temporaries: Tensors of this computation alone; a copy of one may be computed in place.
        declared: Tensors declared in the code itself; one that is written before it is read needs
            no memory between calls.
    """

    steps: tuple[code.Step, ...]
    results: frozenset[Tensor] = frozenset()
    name: str = "routine"
    temporaries: frozenset[Tensor] = frozenset()
    declared: frozenset[Tensor] = frozenset()
    _cache: list[ResolvedComputation] = field(default_factory=list, compare=False, repr=False)

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

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise UsageError.at_caller(
            "Code is compiled by a context, whose routine runs it.",
            found=f"{self!r} called like a function",
            fix="step = oc.Context().compile(code), then step()",
        )

    def resolve(self) -> AssignProgram:
        """Return the computation as assignments over closed shapes, for a context to compile.

        Code recorded later reads the tensors computed here instead of computing them again. Warn
        about code without assignments.

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
        with self._lock:
            program = self._resolution().program
            for tensor in mentioned_tensors(self.steps):
                consumed = tensor.session.consumed
                if tensor not in self.temporaries and tensor not in consumed:
                    consumed[tensor] = f"the computation {self.name}"
            return program

    def keep_less(self, excess: int) -> bool:
        """Let loops keep values for gradients in fewer bytes, by `excess`; other values are
        computed again. Return False if the loops keep nothing but their carries.
        """
        with self._lock:
            found = self._resolution().kept_bytes
            if found:
                self._cache[:] = [self._resolve(max(0, found - excess))]
            return bool(found)

    def literals(self) -> Mapping[TensorNode, np.ndarray[Any, Any]]:
        """Return the host's arrays behind the literal nodes that the computation reads."""
        tensors = self._resolution().tensors
        return {node: t.literal for node, t in tensors.items() if t.literal is not None}

    @property
    def params(self) -> Parameters:
        """The parameters of the code, oldest first, with their names."""
        return Parameters(t for t in mentioned_tensors(self.steps) if t.is_parameter)

    @property
    def statistics(self) -> Parameters:
        """The statistics of the code, oldest first, with their names."""
        return Parameters(t for t in mentioned_tensors(self.steps) if t.is_statistic)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters that the code needs, also through initializers, oldest first."""
        found = {each for parameter in self.params for each in parameter.parameters()}
        return tuple(sorted(found, key=lambda parameter: parameter.id))

    def __repr__(self) -> str:
        return f"<computation {self.name}: {len(self.steps)} steps>"

    def tensors(self, *, of_steps: bool = False) -> Mapping[TensorNode, Tensor]:
        """Return the tensors behind nodes of the resolved program; intermediate ones have none.

        Args:
            of_steps: True for the nodes that are private to the steps of loops, too.
        """
        found = self._resolution()
        return {**found.tensors, **found.step_tensors} if of_steps else found.tensors

    @property
    def _lock(self) -> AbstractContextManager[object]:
        """The lock of the session, whose shapes resolution decides."""
        found = code.session_of(self.steps)
        return nullcontext() if found is None else found.undo_log.lock

    def _resolution(self) -> ResolvedComputation:
        if not self._cache:
            with self._lock:
                if not self._cache:
                    self._cache.append(self._resolve())
        return self._cache[0]

    def _resolve(self, kept_bytes: int | None = None) -> ResolvedComputation:
        local = self.temporaries, self.declared
        return resolve(self.steps, self.results, self.name, *local, kept_bytes)

    def __str__(self) -> str:
        return to_text(self._resolution().program)


def _make_computation(
    session: sessions.Session, steps: tuple[code.Step, ...], results: frozenset[Tensor], name: str
) -> Computation:
    """Return steps as a computation; while code is recorded, splice them into it instead."""
    if session.recorder is not None:
        session.recorder.splice(steps, results)
        return Computation((), frozenset(), name)
    return Computation(steps, results, name)


def require_tensor(value: object, call: str, name: object = "") -> None:
    """Raise UsageError unless the arguments of a call that returns code are a tensor and a name."""
    if isinstance(value, Tensor) and isinstance(name, str):
        return
    raise UsageError.at_caller(
        "Code computes tensors, one for each call.",
        found=f"{name if isinstance(value, Tensor) else reprlib.repr(value)} in {call}(...)",
        fix=f"{call}(a) + {call}(b)"
        if isinstance(value, Tensor) and isinstance(name, Tensor)
        else f"{call}(y), where y is a tensor, such as the result of a block",
    )


def forward(tensor: Tensor, name: str = "forward") -> Computation:
    """Return the code that computes a tensor from parameters, placeholders and literals.

    Called while code is recorded, it adds that code there.

    Raises:
        UsageError: if the argument is no tensor.
    """
    require_tensor(tensor, "oc.train.forward", name)
    return _make_computation(tensor.session, (forward_step(tensor),), frozenset({tensor}), name)


def forward_step(tensor: Tensor) -> code.Forward:
    """Return the forward code of a tensor and of all its dependencies."""
    recorder = tensor.session.recorder
    check_recorded_here([tensor], None if recorder is None else recorder.recording)
    return code.Forward(tuple(ancestors([tensor])))


def zero_gradients(tensor: Tensor) -> Computation:
    """Return the code that sets the gradients of a tensor and of all its dependencies to 0."""
    _require_gradient(tensor)
    return _make_computation(
        tensor.session, (code.ZeroGradients((tensor,)),), _gradients(tensor), "zero_grads"
    )


def backpropagate(tensor: Tensor) -> Computation:
    """Return the code that adds to the gradients of a tensor's dependencies."""
    _require_gradient(tensor)
    return _make_computation(
        tensor.session, (code.Backpropagate((tensor,)),), _gradients(tensor), "backprop"
    )


def _gradients(tensor: Tensor) -> frozenset[Tensor]:
    """Return the gradients of the leaves: literals, parameters and placeholders."""
    leaves = (
        t
        for t in ancestors([tensor])
        if isinstance(t.definition, Literal | Parameter | Placeholder)
    )
    return frozenset(leaf.grad for leaf in leaves if leaf.grad is not None)


def _require_gradient(tensor: Tensor) -> None:
    """Raise UsageError, naming the operations that stop it, unless a tensor has a gradient."""
    if tensor.grad is not None:
        return
    graph = ancestors([tensor])
    if any(each.is_parameter for each in graph):
        stops = [
            each
            for each in graph
            if isinstance(each.definition, Applied | ResultOf | ResultOfLoop)
            and each.grad is None
            and any(operand.grad is not None for operand in each.operands)
        ]
        if not stops:
            raise UsageError(
                "Gradients are computed of a tensor that depends on parameters that are trained.",
                found=f"{tensor!r} depends only on parameters made with requires_grad=False",
                where=str(tensor.origin),
                fix="leave out requires_grad=False where a parameter is to be trained",
            )
        raise UsageError(
            "Gradients flow from a loss to its parameters only through operations with a gradient.",
            found="\n".join(f"{each!r} passes no gradient on to its operands" for each in stops),
            where="\n".join(str(each.origin) for each in stops),
            fix="keep oc.stop_gradient, comparisons and roundings out of the only way from the "
            "loss to the parameters",
        )
    for each in graph:
        if each.is_gradient:
            raise no_expression(each)
    raise UsageError(
        "Gradients are computed of a tensor that depends on parameters, or on other tensors with "
        "requires_grad=True.",
        found=f"{tensor!r} depends on none",
        where=str(tensor.origin),
        fix='make trainable tensors with oc.param("w"); give requires_grad=True to inputs '
        "whose gradients are wanted",
    )


def consume_forward(tensor: Tensor) -> Computation:
    """Return a tensor's forward code, once."""
    step, before = forward_step(tensor), tensor.session.consumed
    taken = _consume(step.tensors, before, f"the code consumed at {caller_location()}")
    if taken:
        raise UsageError.at_caller(
            "Forward code is consumed once.",
            found="\n".join(f"{name}: in {text}" for name, text in taken),
            fix=f"run that computation and read the tensor, or compute it again: "
            f"oc.train.forward({tensor.node.name})",
        )
    return _make_computation(tensor.session, (step,), frozenset({tensor}), "forward")


def consume_backprop(tensor: Tensor) -> Computation:
    """Return a tensor's code for backpropagation, once."""
    _require_gradient(tensor)
    before = tensor.session.backpropagated
    taken = _consume(ancestors([tensor]), before, f"consumed at {caller_location()}")
    if taken:
        raise UsageError.at_caller(
            "Code for backpropagation is consumed once.",
            found="\n".join(f"{name}: {text}" for name, text in taken),
            fix=f"include it wherever it is needed: {tensor.node.name}.backprop()",
        )
    return backpropagate(tensor)


def _consume(tensors: Sequence[Tensor], before: Notes, text: str) -> list[tuple[str, str]]:
    """Note where code is consumed; return earlier notes about it instead, if there are some."""
    own = [t for t in tensors if isinstance(t.definition, Applied | ResultOf | ResultOfLoop)]
    taken = [(each.describe(), before[each]) for each in own if each in before]
    if not taken:
        for each in own:
            before[each] = text
    return taken


def gradient_update(loss: Tensor) -> Computation:
    """Return the code that computes a tensor and the gradients of the sum of its cells in all its
    dependencies.

    Forward code, gradients to zero, the tensor's own gradient to one, backpropagation. Called while
    code is recorded, it adds that code there.

    In one computation, the gradients of several losses add up until code reads a gradient or
    assigns a parameter: `grad_update(a) + grad_update(b)` computes the gradients of `a + b`.

    Raises:
        UsageError: if the tensor depends on no parameter, or is computed from gradients.
    """
    require_tensor(loss, "oc.train.grad_update")
    _require_gradient(loss)
    backpropagation_tensors(loss)  # report operations without a gradient here, not at compilation
    return _make_computation(
        loss.session, (code.UpdateGradients((loss,)),), _gradients(loss) | {loss}, "grad_update"
    )


def statistics_update(loss: Tensor) -> Computation:
    """Return the code that follows backpropagation from a tensor, which `gradient_update` contains:
    running statistics move, and the step of dropout is counted. Called while code is recorded, it
    adds that code there.
    """
    steps = code.effects_of((loss,))
    return _make_computation(loss.session, steps, frozenset(), "statistics")


def initialize(parameter: Tensor) -> Computation:
    """Return the code that computes a parameter's first value from its initializer."""
    assert isinstance(parameter.definition, Parameter)
    initializer = parameter.definition.initializer
    environment = parameter.session.environment
    parameter.settle()
    initializer.adopt(parameter.dtype)
    _close_shape(parameter)  # sizes follow from uses; the initializer fills them
    environment.relate(Pointwise(), parameter.terms, [initializer.terms], parameter.origin)
    steps = (forward_step(initializer), code.Assign.whole(parameter, initializer))
    return Computation(steps, frozenset({parameter}), f"init_{parameter.node.name}")


def initialize_statistic(statistic: Tensor, value: float) -> Computation:
    """Return the code that sets all cells of a statistic to a number."""
    statistic.settle()
    _close_shape(statistic)
    step = code.Assign.whole(statistic, value)
    return Computation((step,), frozenset({statistic}), f"init_{statistic.node.name}")


def _close_shape(tensor: Tensor) -> None:
    what = f"the shape of {tensor.node.name}"
    tensor.session.environment.close([tensor.terms], subject=what)


@contextmanager
def unchanged_roots() -> Iterator[None]:
    """Build and resolve code without consuming the code of its tensors.

        with oc.train.unchanged_roots():
            a + b                            # only relates the shapes of a and b

    Recorded code embeds the code of a tensor unless a computation compiled earlier contains it;
    code compiled or consumed inside does not count.
    """
    session = sessions.current()
    consumed, backpropagated = session.consumed.copy(), session.backpropagated.copy()
    try:
        yield
    finally:
        session.consumed, session.backpropagated = consumed, backpropagated


def trainable_params(loss: Tensor) -> Parameters:
    """Return the parameters whose gradient backpropagation from a tensor writes, by name.

    Other parameters of the tensor are frozen: it reads them through `oc.stop_gradient` or another
    operation without a gradient, or they are made with `requires_grad=False`. They have values and
    are saved; optimizers leave them as they are.
    """
    require_tensor(loss, "oc.train.trainable_params")
    reached = reachable([loss] if loss.requires_grad else [], _gradient_targets)
    return Parameters(p for p in loss.params if p in reached)


def trained_by_name(loss: Tensor, params: Iterable[Tensor] | None, call: str) -> dict[str, Tensor]:
    """Return the given parameters, or all that gradients flow into, by name in `loss.params`."""
    require_tensor(loss, call)
    if params is None:
        chosen = set(trainable_params(loss))
        if not chosen:
            raise UsageError(
                "Updates are for parameters that gradients flow into.",
                found=f"{loss!r} depends on none",
                where=str(loss.origin),
                fix='make trainable tensors with oc.param("w"); oc.stop_gradient freezes those '
                "behind it",
            )
    else:
        chosen = set(params.values() if isinstance(params, Parameters) else params)
        foreign = [p for p in chosen if p not in loss.params or p.grad is None]
        if foreign or not chosen:
            raise UsageError.at_caller(
                "params= are parameters of the loss that have a gradient.",
                found=", ".join(map(repr, foreign)) or "none",
                fix=f"{call}(loss, params=[...]) with some of "
                + ", ".join(name for name, p in loss.params.items() if p.grad is not None),
            )
    return {name: p for name, p in loss.params.items() if p in chosen}


def _gradient_targets(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors to whose gradients a tensor's gradient is passed on."""
    yield from (each for each in _differentiated(tensor) if each.requires_grad)


def _differentiated(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors by which the code of a gradient differentiates a tensor."""
    match tensor.definition:
        case Applied(operation=operation, operands=operands):
            if operation.gradient is None:
                yield from (term.input for term in terms_in_memory(tensor))
                return
            written = {
                each.position for each in operation.gradient.slots if each.role == "gradient"
            }
            yield from (o for i, o in enumerate(operands, 1) if i in written)
        case ResultOf(application):
            yield from (term.input for term in application.backward())
        case ResultOfLoop(loop):
            values = (*loop.after, *loop.items)
            yield from (v for r, v in zip(loop.results, values, strict=True) if r is tensor)
        case CarriedValue(loop):
            places = [place for place, each in enumerate(loop.before) if each is tensor]
            for place in places:
                yield loop.initial[place]
                yield loop.after[place]
        case _:
            return
