"""Recurrent networks: cells, which are bodies of `oc.scan`, and layers of them over sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.nn.layers import dropout as drop
from ocannl_core.nn.sizes import positive_integers, require_axes
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.models.parameters import param
from ocannl_core.tensor.operations.activations import sigmoid
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.literals import offsets
from ocannl_core.tensor.operations.rearrangement import concat
from ocannl_core.tensor.operations.scan import scan
from ocannl_core.tensor.primitives.pointwise_operations import less, tanh, where

Step = Callable[[Any, Tensor], tuple[Any, Tensor]]
"""A step from the state and the projected input to the next state and the output."""


@op
def rnn_cell(
    state: Tensor, x: Tensor, *, width: int, activation: Callable[[Tensor], Tensor] = tanh
) -> tuple[Tensor, Tensor]:
    """Return the next state of an Elman network, twice: a step of `oc.scan`.

        hs, last = oc.scan(oc.nn.rnn_cell(width=8), 0.0, xs)

    Shapes: state `b|width`, `x` `b|n`. Parameters: `weight_ih` of shape `n->width`, `weight_hh` of
    shape `width->width`, `bias_ih` and `bias_hh` of shape `width`.

    Args:
        x: The input of the step.
        width: The size of the state.
        activation: The activation of the next state.
    """
    return _rnn(width, activation)(state, _projected(x, [width]))


@op
def gru_cell(state: Tensor, x: Tensor, *, width: int) -> tuple[Tensor, Tensor]:
    """Return the next state of a gated recurrent unit, twice: a step of `oc.scan`.

    Shapes: state `b|width`, `x` `b|n`. Parameters: `weight_ih` of shape `n->3,width`, `weight_hh`
    of shape `width->3,width`, `bias_ih` and `bias_hh` of shape `3,width`; the gates are reset,
    update and new, as in PyTorch. Arguments are as for `rnn_cell`.
    """
    return _gru(width)(state, _projected(x, [3, width]))


@op
def lstm_cell(state: tuple[Any, Any], x: Tensor, *, width: int) -> tuple[Any, Tensor]:
    """Return the next state of a long short-term memory, and its first part: a step of `oc.scan`.

        hs, (h, c) = oc.scan(oc.nn.lstm_cell(width=8), (0.0, 0.0), xs)

    Shapes: the state is a pair of `b|width`, output and cell; `x` is `b|n`. Parameters: `weight_ih`
    of shape `n->4,width`, `weight_hh` of shape `width->4,width`, `bias_ih` and `bias_hh` of shape
    `4,width`; the gates are input, forget, cell and output, as in PyTorch. Arguments are as for
    `rnn_cell`.
    """
    return _lstm(width)(state, _projected(x, [4, width]))


def _projected(x: Tensor, output: Sequence[int], source: str = "ih", **axes: Any) -> Tensor:
    """Return the part of the gates that depends on the input of the step."""
    weight = param(f"weight_{source}", output=output, **axes)
    return weight @ x + param(f"bias_{source}", output=output, init=0.0)


def _recurrent(state: Tensor, output: Sequence[int]) -> Tensor:
    """Return the part of the gates that depends on the state."""
    return _projected(state, output, "hh", input=[output[-1]])


def _gate(gates: Tensor, number: int) -> Tensor:
    return einsum(f"...|{number}, n => ...|n", gates)


def _rnn(width: int, activation: Callable[[Tensor], Tensor]) -> Step:
    def step(state: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        state = activation(projected + _recurrent(state, [width]))
        return state, state

    return step


def _gru(width: int) -> Step:
    def step(state: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        recurrent = _recurrent(state, [3, width])
        reset = sigmoid(_gate(projected, 0) + _gate(recurrent, 0))
        update = sigmoid(_gate(projected, 1) + _gate(recurrent, 1))
        new = tanh(_gate(projected, 2) + reset * _gate(recurrent, 2))
        state = new + update * (state - new)
        return state, state

    return step


def _lstm(width: int) -> Step:
    def step(state: tuple[Tensor, Tensor], projected: Tensor) -> tuple[Any, Tensor]:
        output, cell = state
        gates = projected + _recurrent(output, [4, width])
        cell = sigmoid(_gate(gates, 1)) * cell + sigmoid(_gate(gates, 0)) * tanh(_gate(gates, 2))
        output = sigmoid(_gate(gates, 3)) * tanh(cell)
        return (output, cell), output

    return step


@op
def rnn(
    xs: Tensor,
    states: Sequence[Any] | None = None,
    lengths: Tensor | None = None,
    *,
    width: int,
    layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
    activation: Callable[[Tensor], Tensor] = tanh,
) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the outputs of an Elman network for all steps, and its last states.

    Shapes: `steps,b|n` to `steps,b|width`, or `steps,b|2*width` in two directions. The time axis is
    the leftmost batch axis. Products with the inputs of all steps are computed at once. Each cell
    has the parameters of `rnn_cell`, in a block `l0`, `l1`, ... per layer, and `l0_reverse`, ...

    Args:
        states: The first state of each layer and direction, as in the result; 0 by default.
        lengths: The number of steps of each sequence of the batch, integers `b|`; all of them by
            default. Beyond its length a sequence keeps its state, and its outputs are 0.
        width: The size of a state.
        layers: The number of layers; each reads the outputs of the one before.
        bidirectional: True for a second network in each layer that runs from the last step to the
            first; the outputs of both are concatenated.
        dropout: The rate of dropout between layers.
        activation: The activation of a state.
    """
    kind = "rnn", activation
    return _stack(xs, states, lengths, kind, width, layers, bidirectional, dropout)


@op
def gru(
    xs: Tensor,
    states: Sequence[Any] | None = None,
    lengths: Tensor | None = None,
    *,
    width: int,
    layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the outputs of gated recurrent units for all steps, and their last states.

    Shapes and arguments are as for `rnn`, parameters as for `gru_cell`.
    """
    return _stack(xs, states, lengths, ("gru", None), width, layers, bidirectional, dropout)


@op
def lstm(
    xs: Tensor,
    states: Sequence[Any] | None = None,
    lengths: Tensor | None = None,
    *,
    width: int,
    layers: int = 1,
    bidirectional: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, tuple[Any, ...]]:
    """Return the outputs of a long short-term memory for all steps, and its last states.

    Shapes and arguments are as for `rnn`, parameters as for `lstm_cell`; a state is a pair.
    """
    return _stack(xs, states, lengths, ("lstm", None), width, layers, bidirectional, dropout)


def _stack(
    xs: Tensor,
    states: Sequence[Any] | None,
    lengths: Tensor | None,
    kind: tuple[str, Any],
    width: int,
    layers: int,
    bidirectional: bool,
    rate: float,
) -> tuple[Tensor, tuple[Any, ...]]:
    rule, fix = "There are 1 or more layers.", "layers=2, each of which reads the one before"
    (layers,) = positive_integers([layers], rule, f"layers={layers!r}", fix)
    directions = 2 if bidirectional else 1
    is_pair = kind[0] == "lstm"
    zero = (0.0, 0.0) if is_pair else 0.0
    first = [zero] * (layers * directions) if states is None else list(states)
    fix = f"states=[{'(hidden, cell)' if is_pair else 'hidden'}] of one layer in one direction"
    if len(first) != layers * directions:
        raise UsageError.at_caller(
            "A recurrent network has a state for each layer and direction.",
            found=f"{len(first)} states for {layers} layers in {directions} directions",
            fix=f"{fix}, as an earlier call returns them, or none",
        )
    for state in first:
        if (isinstance(state, tuple | list) and len(state) == 2) is not is_pair:
            raise UsageError.at_caller(
                f"A state of oc.nn.{kind[0]} is {'a pair of tensors' if is_pair else 'a tensor'}.",
                found=f"the state {state!r}",
                fix=fix,
            )
    if isinstance(lengths, Tensor):
        require_axes(
            lengths,
            "...|",
            "The lengths of sequences have batch axes only: a number for each sequence.",
            'oc.tensor(lengths, dtype="int32", batch_axes=1)',
        )
    last: list[Any] = []
    for layer in range(layers):
        if layer and rate:
            xs = drop(xs, rate=rate)
        outputs = []
        for direction in range(directions):
            label = f"l{layer}{'_reverse' * direction}"
            state = first[len(last)]
            run = _layer(kind=kind, width=width, is_reversed=bool(direction), label=label)
            each, final = run(xs, state, lengths)
            outputs.append(each)
            last.append(final)
        xs = outputs[0] if len(outputs) == 1 else concat("...|a; ...|b => ...|a^b", *outputs)
    return xs, tuple(last)


@op
def _layer(
    xs: Tensor,
    state: Any,
    lengths: Tensor | None = None,
    *,
    kind: tuple[str, Any],
    width: int,
    is_reversed: bool,
) -> tuple[Tensor, Any]:
    """Return the outputs and the last state of one layer in one direction."""
    name, activation = kind
    match name:
        case "rnn":
            step, output = _rnn(width, activation), [width]
        case "gru":
            step, output = _gru(width), [3, width]
        case _:
            step, output = _lstm(width), [4, width]
    projected = _projected(xs, output)
    if lengths is None:
        outputs, last = scan(step, state, projected, reverse=is_reversed)
        return outputs, last
    places = offsets(output=[...], dtype=int32)
    is_inside = less(places, lengths, logic="|t; ...| => t, ...|")

    def step_inside(before: Any, entry: tuple[Tensor, Tensor]) -> tuple[Any, Tensor]:
        each, is_own = entry
        after, result = step(before, each)
        if isinstance(after, tuple):
            kept: Any = tuple(where(is_own, a, b) for a, b in zip(after, before, strict=True))
        else:
            kept = where(is_own, after, before)
        return kept, where(is_own, result, 0.0)

    outputs, last = scan(step_inside, state, (projected, is_inside), reverse=is_reversed)
    return outputs, last
