"""Random code of several routines gives the same bits with and without the optimizer.

Without the optimizer nothing is inlined and everything is kept on the device, so that later
routines read the results of earlier ones; with it they compute these again, or are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.testing.compare import Array, assert_same
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count

WIDTH, BATCH = 4, 3


@dataclass(frozen=True)
class TensorStep:
    """A new tensor: its operation and its operands."""

    kind: str
    first: int
    second: int


@dataclass(frozen=True)
class Update:
    """An assignment to a tensor that keeps its value between calls."""

    kind: str
    target: int
    source: int


@dataclass(frozen=True)
class Piece:
    """Part of a routine: the code of a tensor, of gradients, or updates."""

    kind: str
    tensor: int
    updates: tuple[Update, ...]


@dataclass(frozen=True)
class NetworkPlan:
    """Tensors, routines, and the order in which the routines are called."""

    steps: tuple[TensorStep, ...]
    routines: tuple[tuple[Piece, ...], ...]
    calls: tuple[int, ...]


STEPS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "scale": lambda a, b: a * 0.75,
    "shift": lambda a, b: a + 1.0,
    "relu": lambda a, b: oc.relu(a),
    "tanh": lambda a, b: oc.tanh(a),
    "choose": lambda a, b: oc.where(a < b, a, b * 0.5),
    "sum": lambda a, b: oc.einsum("...|i => ...|0", a),
    "largest": lambda a, b: oc.einmax("...|i => ...|0", a),
    "mix": lambda a, b: oc.param("mix", output=[WIDTH], init=0.25) @ a,
    "window": lambda a, b: oc.einsum(
        "...|i=+k; k => ...|i", a, oc.tensor([0.5, 1.0, -0.25]), padded=True
    ),
    "dot": lambda a, b: oc.einsum("...|i; ...|i => ...|0", a, b),
}
UPDATES = ("set", "add", "subtract", "scale")

_number = st.integers(0, 11)
_steps = st.builds(TensorStep, st.sampled_from(sorted(STEPS)), _number, _number)
_updates = st.builds(Update, st.sampled_from(UPDATES), _number, _number)
_pieces = st.builds(
    Piece,
    st.sampled_from(["forward", "gradients", "updates"]),
    _number,
    st.lists(_updates, min_size=1, max_size=3).map(tuple),
)
PLANS = st.builds(
    NetworkPlan,
    st.lists(_steps, min_size=2, max_size=7).map(tuple),
    st.lists(st.lists(_pieces, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(
        tuple
    ),
    st.lists(_number, min_size=2, max_size=4).map(tuple),
)


class NetworkModel:
    """The tensors of a plan."""

    def __init__(self, plan: NetworkPlan) -> None:
        self.data = oc.placeholder("x", batch=[BATCH], output=[WIDTH])
        self.bias = oc.param("bias", output=[WIDTH], init=0.5)
        self.stored = [oc.declare("u"), oc.declare("v"), self.bias]
        self.tensors: list[oc.Tensor] = [self.data, self.bias]
        for step in plan.steps:
            first, second = (self.tensors[n % len(self.tensors)] for n in (step.first, step.second))
            self.tensors.append(STEPS[step.kind](first, second))
        self.loss = oc.einsum("...|... => 0", self.tensors[-1] * self.bias)

    def code(self, piece: Piece) -> oc.Computation:
        match piece.kind:
            case "forward":
                return oc.train.forward(self.tensors[2 + piece.tensor % (len(self.tensors) - 2)])
            case "gradients":
                return oc.train.grad_update(self.loss)
            case _:
                return self.updates(piece.updates)

    @oc.cd
    def updates(self, updates: Sequence[Update]) -> None:
        for update in updates:
            target = self.stored[update.target % len(self.stored)]
            source = self.tensors[update.source % len(self.tensors)]
            if target is self.bias:
                source = oc.einsum("...|i => i", source)
            match update.kind:
                case "set":
                    target[:] = source
                case "add":
                    target += source
                case "subtract":
                    target -= source * 0.5
                case _:
                    target[:] = target * 0.5 + source


@dataclass
class PlanRun:
    """The run of a plan.

    Attributes:
        allowed: The routines to compile and the calls to make; None to try all.
        admitted: Those that were not refused.
    """

    allowed: list[bool] | None = None
    admitted: list[bool] = field(default_factory=list)

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Return the result of an action; None if it is refused or not allowed."""
        if self.allowed is not None and not self.allowed[len(self.admitted)]:
            self.admitted.append(False)
            return None
        try:
            result = action()
        except oc.LinkError:
            assert self.allowed is None, "refused without the optimizer and admitted with it"
            self.admitted.append(False)
            return None
        self.admitted.append(True)
        return result

    def cells(self, target: str, plan: NetworkPlan) -> dict[str, Array]:
        """Return the cells of parameters, their gradients and the other kept tensors."""
        with oc.Session(seed=3):
            model = NetworkModel(plan)
            context = oc.Context(target)
            context[model.data] = np.linspace(-2, 2, BATCH * WIDTH).reshape(BATCH, WIDTH)
            context.init_params(model.loss)
            routines = []
            for pieces in plan.routines:
                code = reduce(add, (model.code(piece) for piece in pieces))
                routines.append(self.attempt(partial(context.compile, code)))
            for call in plan.calls:
                routine = routines[call % len(routines)]
                if routine is not None:
                    self.attempt(routine)
            kept = {"loss": model.loss}
            for tensor in [*model.stored, *model.loss.params]:
                kept[tensor.node.name] = tensor
            for parameter in model.loss.params:
                kept[f"gradient of {parameter.node.name}"] = parameter.grad
            found = {name: _cells(context, tensor) for name, tensor in kept.items()}
            return {name: cells for name, cells in found.items() if cells is not None}


def _cells(context: oc.Context, tensor: oc.Tensor) -> Array | None:
    try:
        return context[tensor]
    except oc.LinkError:  # nothing that ran stores it
        return None


@hypothesis_settings(
    max_examples=example_count(15),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(plan=PLANS)
def test_the_optimizer_changes_no_bit_of_results(target: str, plan: NetworkPlan) -> None:
    optimized = PlanRun()
    # schedules of devices with thread blocks order the terms of a sum by the nest around it
    has_blocks = subject_named(target).target.thread_blocks is not None
    schedule = "none" if has_blocks else "default"
    try:
        with settings.overrides(contract=False, schedule=schedule):
            found = optimized.cells(target, plan)
    except oc.ShapeError:
        reject()  # an update of the wrong shape
    plain = PlanRun(optimized.admitted)
    with settings.overrides(
        contract=False, schedule=schedule, max_visits=0, enable_device_only=False
    ):
        expected = plain.cells(target, plan)
    for name, cells in found.items():
        assert_same(cells, expected[name], oc.float32, what=name)
