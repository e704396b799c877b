"""Conditions and loops: their structure is decided when the graph is read.

Iterations that compute the same with other numbers become a loop of the compiled code; others, such
as those that append to a tensor, are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.errors import UnknownValueError
from ocannl_onnx.operators.movement import axis_of, moved, section
from ocannl_onnx.registry import operator
from ocannl_onnx.rerolling import REROLLED
from ocannl_onnx.values import Item, Sequence, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

MOST_ITERATIONS = 10_000
"""Iterations that are unrolled."""
MOST_STEPS = 1 << 24
"""Iterations of a loop of the compiled code, whose numbers are an array."""


@operator("If")
def if_else(node: Node, condition: Value) -> list[Item]:
    chosen = bool(node.known(condition, "condition").reshape(-1)[0])
    name = "then_branch" if chosen else "else_branch"
    return node.run_graph(node.attr(name), (), name)


class StepsDifferError(Exception):
    """Steps of a loop differ in more than the numbers that they read."""


Step = Callable[[list[Value], list[Value]], list[Item]]
"""Computes the next state and the rows of stacked outputs from a state and entries."""


def repeated(
    node: Node,
    steps: int,
    state: list[Any],
    entries: list[Value],
    step: Step,
    run: Callable[..., Any] = oc.scan,
) -> list[Item] | None:
    """Return the last state and the stacked outputs of a loop whose body is compiled once; None if
    it has to be unrolled.

    Args:
        entries: The numbers that each step reads, with the steps in front.
        run: Runs the loop, as `oc.scan` does.
    """
    every = [*state, *entries]
    is_numeric = all(isinstance(each, Value) and each.format.carrier for each in every)
    if steps < 2 or node.importer.observer is not None or not is_numeric:
        return None  # an observer sees the values of each step
    if all(each.array is not None for each in every):
        return None  # constants are computed when the graph is read
    mark = frozenset({f"a step of {node.operator}"})
    outputs: list[Value] = []

    def body(carry: tuple[Tensor, ...], cells: tuple[Tensor, ...]) -> Any:
        found = step(
            [
                _of_step(like, each, like.shape, mark)
                for like, each in zip(state, carry, strict=True)
            ],
            [
                _of_step(like, each, like.shape[1:], mark)
                for like, each in zip(entries, cells, strict=True)
            ],
        )
        for at, each in enumerate(found):
            if not isinstance(each, Value) or not each.format.carrier:
                raise StepsDifferError
            if at < len(state) and (each.shape, each.format) != (state[at].shape, state[at].format):
                raise StepsDifferError
            outputs.append(each)
        tensors = [oc.primitives.identity(each.tensor) for each in outputs]
        return tuple(tensors[: len(state)]), tuple(tensors[len(state) :])

    xs = tuple(
        oc.einsum("t, ..r.. => t | ..r..", each.tensor, dtype=each.format.carrier)
        for each in entries
    )
    try:
        rows, last = run(body, tuple(each.tensor for each in state), xs, length=steps)
    except (StepsDifferError, UnknownValueError):
        return None
    stacked = [
        oc.einsum("t | ..r.. => t, ..r..", each, dtype=like.format.carrier)
        for each, like in zip(rows, outputs[len(state) :], strict=True)
    ]
    return [
        Value.of_tensor(
            node.sized(tensor, shape), like.format, like.inputs - mark, shape=tuple(shape)
        )
        for tensor, like, shape in zip(
            [*last, *stacked],
            outputs,
            [
                each.shape if at < len(state) else (steps, *each.shape)
                for at, each in enumerate(outputs)
            ],
            strict=True,
        )
    ]


def repeated_layers(node: Node, values: tuple[Value, ...]) -> list[Item]:
    """Run the layers of a rerolled graph, each with its own weights and its entries of inputs."""
    body, number = node.attr("body"), node.attr("num_scan_inputs")
    state, stacked = list(values[:-number]), values[-number:]
    names = node.proto.input[-number:]

    def layer(values: list[Value], parts: list[Value]) -> list[Item]:
        of_layer, given = node.importer.weight_of_layer, iter(parts)
        assert of_layer is not None
        entries = [
            of_layer(name) if each.is_weight else each if each.is_known else next(given)
            for name, each in zip(names, stacked, strict=True)
        ]
        return node.run_graph(body, (*values, *entries), "a layer")

    def run(step: Any, init: Any, xs: Any, length: int) -> Any:
        last, rows = oc.nn.repeat_layers(step, init, xs, layers=length)
        return rows, last

    inputs = [each for each in stacked if not each.is_known]
    found = repeated(node, stacked[0].shape[0], state, inputs, layer, run)
    if found is None:
        node.refuse("its layers pass on values of other shapes", "load the model without reroll")
    return found


def _of_step(like: Value, tensor: Tensor, shape: tuple[int, ...], mark: frozenset[str]) -> Value:
    """Return a value that each step has other numbers of."""
    return Value.of_tensor(tensor, like.format, like.inputs | mark, shape=shape)


@operator("Loop")
def loop(node: Node, count: Value | None, condition: Value | None, *carried: Item) -> list[Item]:
    """Run a loop whose number of iterations is known."""
    body = node.attr("body")
    most = (
        MOST_ITERATIONS
        if count is None
        else int(node.known(count, "number of iterations").reshape(-1)[0])
    )
    goes_on = True if condition is None else bool(node.known(condition, "condition").reshape(-1)[0])
    state: list[Item] = list(carried)

    def iterate(values: list[Value], entries: list[Value]) -> list[Item]:
        true = Value.of_array(np.array(True))
        after, *found = node.run_graph(body, (*entries, true, *values), "an iteration")
        if not isinstance(after, Value) or after.array is None or not after.array.all():
            raise StepsDifferError  # it may end before
        return found

    if goes_on and count is not None and most <= MOST_STEPS:
        numbers = Value.of_array(np.arange(most, dtype=np.int64))
        as_loop = repeated(node, most, state, [numbers], iterate)
        if as_loop is not None:
            return as_loop
    stacked: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    done = 0
    while goes_on and done < most:
        if done >= MOST_ITERATIONS:
            node.refuse(f"it has more than {MOST_ITERATIONS} iterations, which are unrolled")
        step = Value.of_array(np.array(done, np.int64))
        found = node.run_graph(
            body, (step, Value.of_array(np.array(True)), *state), f"iteration {done}"
        )
        after = found[0]
        done += 1
        if done < most:
            goes_on = bool(node.known(after, "condition").reshape(-1)[0])
        state = list(found[1 : 1 + len(state)])
        for rows, row in zip(stacked, found[1 + len(state) :], strict=True):
            rows.append(row)
    return [*state, *(stack(node, rows) for rows in stacked)]


def stack(node: Node, rows: list[Any], axis: int = 0) -> Item:
    """Return values joined along a new axis."""
    if not rows:
        return Value.of_array(np.zeros(0, np.float32))
    if all(isinstance(each, Value) and each.array is not None for each in rows):
        return Value.of_array(np.stack([each.array for each in rows], axis), rows[0].format)
    if not all(isinstance(each, Value) and each.shape == rows[0].shape for each in rows):
        node.refuse("the rows of a stacked output have different shapes")
    return moved(
        rows[0], oc.concat([oc.expand_dims(each.tensor, axis) for each in rows], axis=axis)
    )


@operator("Scan", since=9)
def scan(node: Node, *values: Value) -> list[Item]:
    """Run a scan over a known number of steps."""
    if node.proto.doc_string == REROLLED:
        return repeated_layers(node, values)
    body, number = node.attr("body"), node.attr("num_scan_inputs")
    state: list[Any] = list(values[: len(values) - number])
    entries = values[len(values) - number :]
    outputs = len(body.output) - len(state)
    in_axes = node.attr("scan_input_axes", (0,) * number)
    in_back = node.attr("scan_input_directions", (0,) * number)
    out_axes = node.attr("scan_output_axes", (0,) * outputs)
    out_back = node.attr("scan_output_directions", (0,) * outputs)
    axes = [axis_of(node, axis, each.rank) for axis, each in zip(in_axes, entries, strict=True)]
    lengths = {each.shape[axis] for each, axis in zip(entries, axes, strict=True)}
    if len(lengths) != 1:
        node.invalid("Inputs of a scan have one number of steps.", str(sorted(lengths)))
    (steps,) = lengths
    if not any(each.has_extent(axis) for each, axis in zip(entries, axes, strict=True)):
        fronted = [
            _fronted(node, each, axis, bool(back))
            for each, axis, back in zip(entries, axes, in_back, strict=True)
        ]
        found = repeated(
            node, steps, state, fronted, lambda own, parts: node.run_graph(body, (*own, *parts))
        )
        if found is not None:
            return [
                *found[: len(state)],
                *(
                    _placed(node, each, axis, bool(back))
                    for each, axis, back in zip(
                        found[len(state) :], out_axes, out_back, strict=True
                    )
                ),
            ]
    if steps > MOST_ITERATIONS:
        node.refuse(f"it has more than {MOST_ITERATIONS} steps, which are unrolled")
    rows: list[list[Any]] = [[] for _ in range(outputs)]
    for step in range(steps):
        parts = []
        for each, axis, back in zip(entries, axes, in_back, strict=True):
            at = steps - 1 - step if back else step
            parts.append(_entry(each, axis, at))
        found = node.run_graph(body, (*state, *parts), f"step {step}")
        state = found[: len(state)]
        for own, row in zip(rows, found[len(state) :], strict=True):
            own.append(row)
    stacked = []
    for own, axis, back in zip(rows, out_axes, out_back, strict=True):
        ordered = own[::-1] if back else own
        rank = ordered[0].rank + 1 if ordered else 1
        stacked.append(stack(node, ordered, axis_of(node, axis, rank)))
    return [*state, *stacked]


@operator("Scan", since=8, until=8)
def scan_of_batches(node: Node, lengths: Value | None, *values: Value) -> list[Item]:
    """Scan each row of the batch by itself: before version 9 the time was the second axis."""
    if lengths is not None:
        node.refuse("the lengths of sequences are given; later versions have none")
    rows = []
    for at in range(values[0].shape[0]):
        rows.append(scan(node, *(_entry(each, 0, at) for each in values)))
    return [stack(node, list(column)) for column in zip(*rows, strict=True)]


def _fronted(node: Node, x: Value, axis: int, is_reversed: bool) -> Value:
    """Return a value with an axis in front, in the order of the steps."""
    if x.array is not None and not x.is_weight:
        cells = np.moveaxis(x.array, axis, 0)
        return Value.of_array(cells[::-1] if is_reversed else cells, x.format)
    order = [axis, *(at for at in range(x.rank) if at != axis)]
    shape = tuple(x.shape[at] for at in order)
    tensor = oc.permute(x.tensor, *order) if axis else x.tensor
    tensor = oc.flip(tensor, 0) if is_reversed else tensor
    return Value.of_tensor(node.sized(tensor, shape), x.format, x.inputs, shape=shape)


def _placed(node: Node, item: Item, axis: int, is_reversed: bool) -> Item:
    """Return stacked rows with the axis of steps at its place."""
    assert isinstance(item, Value)
    where = axis_of(node, axis, item.rank)
    if not where and not is_reversed:
        return item
    tensor = oc.flip(item.tensor, 0) if is_reversed else item.tensor
    order = [*range(1, where + 1), 0, *range(where + 1, item.rank)]
    return moved(item, oc.permute(tensor, *order) if where else tensor)


def _entry(x: Value, axis: int, at: int) -> Value:
    if x.array is not None and not x.is_weight:
        return Value.of_array(np.take(x.array, at, axis), x.format)
    return moved(
        x,
        oc.reshape(
            section(x.tensor, axis, at, at + 1),
            output=[s for k, s in enumerate(x.shape) if k != axis],
        ),
    )


@operator("SequenceMap", since=17)
def sequence_map(node: Node, first: Sequence, *others: Any) -> list[Item]:
    body = node.attr("body")
    rows = []
    for at, item in enumerate(first.items):
        more = [each.items[at] if isinstance(each, Sequence) else each for each in others]
        rows.append(node.run_graph(body, (item, *more), f"item {at}"))
    return [Sequence(row[k] for row in rows) for k in range(len(body.output))]
