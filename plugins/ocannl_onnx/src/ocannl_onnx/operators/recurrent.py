"""Recurrent layers: loops over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.activations import ACTIVATIONS
from ocannl_onnx.operators.movement import reshaped
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

Step = Callable[[tuple[Any, ...], Any], tuple[Any, ...]]
"""A function of the states and an entry, which returns the next states."""
Direction = Callable[[int], tuple[Tensor, Step]]
"""A function of the number of a direction, which returns the entries of its steps, and its step."""

_WITH_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
_WITH_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}


def _activated(function: Callable[..., Any], alpha: Any, beta: Any, x: Any) -> Any:
    return function(x, alpha, beta)


class _Layer:
    """The inputs of a recurrent node, with the time in front.

    Attributes:
        x: The input, of axes time, batch, features.
        extent: The extent at run time that is the size of the batch; None for a constant size.
        reverses: The direction of each part: True for one from the last step to the first.
    """

    def __init__(
        self, node: Node, x: Value, w: Value, r: Value, gates: int, functions: tuple[str, ...]
    ) -> None:
        self.node, self.gates = node, gates
        self.is_batch_first = bool(node.attr("layout", 0))
        self.x = oc.swapaxes(x.tensor, 0, 1) if self.is_batch_first else x.tensor
        self.steps, self.batch = (x.shape[1], x.shape[0]) if self.is_batch_first else x.shape[:2]
        self.extent = x.extent(0 if self.is_batch_first else 1)
        self.hidden = r.shape[-1]
        self.format = x.format
        direction = node.attr("direction", "forward")
        self.reverses = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(
            direction, []
        )
        if len(self.reverses) != w.shape[0] or w.shape[1] != gates * self.hidden:
            node.invalid(
                "Weights have a part for each direction and gate.",
                f"{list(w.shape)} for {direction}, {gates} gates of {self.hidden}",
            )
        self.functions = self._functions(functions * len(self.reverses))
        self.limit = node.attr("clip")

    def _functions(self, default: tuple[str, ...]) -> list[Callable[[Any], Any]]:
        alphas, betas = (
            list(self.node.attr("activation_alpha", ())),
            list(self.node.attr("activation_beta", ())),
        )
        found: list[Callable[[Any], Any]] = []
        for name in self.node.attr("activations", default):
            known = {each.lower(): each for each in ACTIVATIONS}
            if name.lower() not in known:
                self.node.refuse(f"the activation {name!r} is not one of the standard")
            name = known[name.lower()]
            a = alphas.pop(0) if name in _WITH_ALPHA and alphas else None
            b = betas.pop(0) if name in _WITH_BETA and betas else None
            found.append(partial(_activated, ACTIVATIONS[name], a, b))
        return found

    def clipped(self, x: Any) -> Any:
        return x if self.limit is None else oc.clip(x, -self.limit, self.limit)

    def state(self, initial: Value | None, part: int) -> Tensor:
        """Return the first state of a direction, of axes batch and hidden."""
        if initial is None:
            return oc.zeros((self.extent or self.batch, self.hidden), dtype=self.format.carrier)
        return initial.tensor[:, part] if self.is_batch_first else initial.tensor[part]

    def bias(self, b: Value | None, part: int) -> list[Any]:
        """Return the biases of the gates, for the input and then for the hidden state."""
        if b is None:
            return [0.0] * (2 * self.gates)
        own, n = b.tensor[part], self.hidden
        return [own[k * n : (k + 1) * n] for k in range(2 * self.gates)]

    def run(
        self,
        lengths: Value | None,
        part: int,
        projected: Tensor,
        first: tuple[Tensor, ...],
        step: Step,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the hidden states of all steps, `[time, batch, hidden]`, and the last states."""
        reverse = self.reverses[part]
        alive = None
        if lengths is not None:
            time = oc.tensor(np.arange(self.steps).reshape(-1, 1, 1), dtype="int32")
            alive = oc.less(
                time, reshaped(oc.cast(lengths.tensor, "int32"), [self.batch, 1]), dtype="bool"
            )

        def body(carry: tuple[Any, ...], entry: Any) -> tuple[tuple[Any, ...], Any]:
            new = step(carry, entry["x"])
            if "alive" not in entry:
                return new, new[0]
            kept = tuple(
                oc.where(entry["alive"], after, before)
                for after, before in zip(new, carry, strict=True)
            )
            return kept, oc.where(entry["alive"], new[0], 0.0)

        entries = {"x": oc.einsum("t, ..r.. => t | ..r..", projected)}
        if alive is not None:
            entries["alive"] = oc.einsum("t, ..r.. => t | ..r..", alive, dtype="bool")
        states, last = oc.scan(body, first, entries, reverse=reverse)
        return oc.einsum("t | ..r.. => t, ..r..", states), last

    def both(
        self, lengths: Value | None, initial: Sequence[Value | None], direction: Direction
    ) -> tuple[Tensor, ...]:
        """Return the hidden states of all steps, and the last states of each kind.

        Args:
            initial: The first states of each kind.
            direction: Returns the entries of the steps of a direction, and its step.
        """
        states: list[Tensor] = []
        ends: list[list[Tensor]] = [[] for _ in initial]
        for part in range(len(self.reverses)):
            projected, step = direction(part)
            first = tuple(self.state(each, part) for each in initial)
            sequence, last = self.run(lengths, part, projected, first, step)
            states.append(sequence)
            for found, end in zip(ends, last, strict=True):
                found.append(end)
        return self.joined(states), *map(self.last, ends)

    def joined(self, states: list[Tensor]) -> Tensor:
        """Return `[time, direction, batch, hidden]`, or with the batch in front."""
        rows = [reshaped(each, [self.steps, 1, self.batch, self.hidden]) for each in states]
        result = rows[0] if len(rows) == 1 else oc.concat(rows, axis=1)
        return oc.permute(result, 2, 0, 1, 3) if self.is_batch_first else result

    def last(self, states: list[Tensor]) -> Tensor:
        rows = [reshaped(each, [1, self.batch, self.hidden]) for each in states]
        result = rows[0] if len(rows) == 1 else oc.concat(rows, axis=0)
        return oc.swapaxes(result, 0, 1) if self.is_batch_first else result


def _projected(x: Tensor, w: Tensor) -> Tensor:
    """Return the products of all entries with the weights of a direction."""
    return oc.einsum("t, b, i; g, i => t, b, g", x, w)


def _hidden(h: Any, r: Tensor) -> Tensor:
    return oc.einsum("b, h; g, h => b, g", h, r)


@operator("RNN", since=7)
def rnn(
    node: Node,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    lengths: Value | None = None,
    initial: Value | None = None,
) -> Any:
    layer = _Layer(node, x, w, r, 1, ("Tanh",))

    def direction(part: int) -> tuple[Tensor, Step]:
        input_bias, hidden_bias = layer.bias(b, part)
        own, function = r.tensor[part], layer.functions[part]

        def step(carry: tuple[Any, ...], entry: Any) -> tuple[Any, ...]:
            return (function(layer.clipped(entry + _hidden(carry[0], own))),)

        return _projected(layer.x, w.tensor[part]) + (input_bias + hidden_bias), step

    return layer.both(lengths, [initial], direction)


@operator("GRU", since=7)
def gru(
    node: Node,
    x: Value,
    w: Value,
    r: Value,
    b: Value | None = None,
    lengths: Value | None = None,
    initial: Value | None = None,
) -> Any:
    layer = _Layer(node, x, w, r, 3, ("Sigmoid", "Tanh"))
    n, is_linear = layer.hidden, bool(node.attr("linear_before_reset", 0))

    def direction(part: int) -> tuple[Tensor, Step]:
        wz, wr, wh, rz, rr, rh = layer.bias(b, part)
        own = r.tensor[part]
        gates = _projected(layer.x, w.tensor[part])
        projected = oc.concat(
            [
                gates[:, :, :n] + (wz + rz),
                gates[:, :, n : 2 * n] + (wr + rr),
                gates[:, :, 2 * n :] + (wh if is_linear else wh + rh),
            ],
            axis=2,
        )
        f, g = layer.functions[2 * part : 2 * part + 2]

        def step(carry: tuple[Any, ...], entry: Any) -> tuple[Any, ...]:
            (h,) = carry
            update = f(layer.clipped(entry[:, :n] + _hidden(h, own[:n])))
            reset = f(layer.clipped(entry[:, n : 2 * n] + _hidden(h, own[n : 2 * n])))
            if is_linear:
                inner = reset * (_hidden(h, own[2 * n :]) + rh)
            else:
                inner = _hidden(reset * h, own[2 * n :])
            new = g(layer.clipped(entry[:, 2 * n :] + inner))
            return ((1.0 - update) * new + update * h,)

        return projected, step

    return layer.both(lengths, [initial], direction)


@operator("LSTM", since=7)
def lstm(
    node: Node, x: Value, w: Value, r: Value, b: Value | None = None, lengths: Value | None = None,
    initial: Value | None = None, cell: Value | None = None, peepholes: Value | None = None,
) -> Any:  # fmt: skip
    layer = _Layer(node, x, w, r, 4, ("Sigmoid", "Tanh", "Tanh"))
    n, couples = layer.hidden, bool(node.attr("input_forget", 0))

    def direction(part: int) -> tuple[Tensor, Step]:
        own = r.tensor[part]
        projected = _projected(layer.x, w.tensor[part])
        if b is not None:
            both = b.tensor[part]
            projected = projected + (both[: 4 * n] + both[4 * n :])
        peep = None if peepholes is None else peepholes.tensor[part]
        f, g, h = layer.functions[3 * part : 3 * part + 3]

        def step(carry: tuple[Any, ...], entry: Any) -> tuple[Any, ...]:
            before, memory = carry
            gates = entry + _hidden(before, own)
            into, out, forget, new = (gates[:, k * n : (k + 1) * n] for k in range(4))
            if peep is not None:
                into = into + peep[:n] * memory
                forget = forget + peep[2 * n :] * memory
            into = f(layer.clipped(into))
            forget = 1.0 - into if couples else f(layer.clipped(forget))
            kept = forget * memory + into * g(layer.clipped(new))
            if peep is not None:
                out = out + peep[n : 2 * n] * kept
            return f(layer.clipped(out)) * h(kept), kept

        return projected, step

    return layer.both(lengths, [initial, cell], direction)
