"""Conditions and loops.

Where conditions and counts are known when the graph is read, they decide the structure of the code.
Iterations that compute the same with other numbers become a loop of the compiled code; others, such
as those that append to a tensor, are unrolled. A condition that is known at run time only chooses
between the results of both branches, or ends a loop whose greatest number of iterations is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.bounded import BoundedValue
from ocannl_onnx.errors import OnnxError, StepName, UnknownValueError, described
from ocannl_onnx.formats import format_named, format_numbered
from ocannl_onnx.operators.movement import axis_of, moved, reshaped, section
from ocannl_onnx.registry import operator
from ocannl_onnx.rerolling import REROLLED
from ocannl_onnx.values import Item, Sequence, Value, made_in_step

if TYPE_CHECKING:
    import onnx

    from ocannl_onnx.graphs import Node

MOST_ITERATIONS = 10_000
"""Iterations that are unrolled."""
MOST_STEPS = 1 << 24
"""Iterations of a loop of the compiled code, whose numbers are an array."""


@operator("If")
def if_else(node: Node, condition: Value) -> list[Item]:
    if condition.follows_from_data or condition.extents is not None:
        return _selected(node, condition)
    chosen = bool(node.known(condition, "condition").reshape(-1)[0])
    name = "then_branch" if chosen else "else_branch"
    return node.run_graph(node.attr(name), (), name)


def _selected(node: Node, condition: Value) -> list[Item]:
    """Return the results of the branch that a condition chooses at run time; both are computed."""
    holds = _as_condition(condition)
    fix = "" if condition.extents is None else "state a constant size for its axis: extents={...}"
    branches = []
    for name, own in (("then_branch", holds), ("else_branch", oc.logical_not(holds, dtype="bool"))):
        try:
            branches.append(node.run_graph(node.attr(name), (), name, own))
        except OnnxError as error:
            inputs = error.inputs if isinstance(error, UnknownValueError) else frozenset()
            reason = f"both branches are computed, and its {name} cannot be: {error}"
            raise _unknown(node, condition, reason, inputs, fix) from error
    results: list[Item] = []
    for name, *pair in zip(node.proto.output, *branches, strict=True):
        one, other = pair
        if not (_is_plain(one) and _is_plain(other) and _same_kind(one, other)):
            reason = (
                f"its branches compute {one!r} and {other!r} for {name}, and one of two values is "
                "chosen at run time only where they have equal formats and shapes"
            )
            raise _unknown(node, condition, reason, fix=fix)
        cells, others = one.array, other.array
        are_constants = one.extents is None and other.extents is None
        if (
            are_constants
            and cells is not None
            and others is not None
            and np.array_equal(cells, others)
        ):
            results.append(one)
            continue
        found = oc.where(holds, one.tensor, other.tensor)
        results.append(
            Value.of_tensor(node.sized(found, one.shape), one.format, one.inputs | other.inputs)
        )
    return results


def _unknown(
    node: Node, condition: Value, reason: str, inputs: frozenset[str] = frozenset(), fix: str = ""
) -> UnknownValueError:
    """Return the error about a condition that has to be known when the graph is read."""
    return UnknownValueError(
        node.operator,
        "condition",
        condition.inputs | inputs,
        where=node.where,
        reason=f"its condition is known at run time only; {reason}",
        fix=fix,
    )


def _as_condition(value: Value) -> Tensor:
    """Return a condition as a tensor of one cell."""
    return oc.cast(reshaped(value.tensor, []), "bool")


def _is_plain(item: Item) -> TypeGuard[Value]:
    """True for a tensor of numbers whose size is known."""
    if not isinstance(item, Value) or isinstance(item, BoundedValue):
        return False
    return bool(item.format.carrier)


def _same_kind(one: Value, other: Value) -> bool:
    return one.format == other.format and one.shape == other.shape


class StepsDifferError(Exception):
    """Steps of a loop differ in more than the numbers that they read."""


Step = Callable[[list[Value], list[Value]], list[Item]]
"""Computes the next state and the rows of stacked outputs from a state and entries."""


class TracedStep:
    """A step of a loop of the compiled code, called once.

    Attributes:
        outputs: The next state and the rows of stacked outputs.
    """

    def __init__(self, node: Node, state: list[Value], entries: list[Value], step: Step) -> None:
        self.state = state
        self.entries = entries
        self.step = step
        self.outputs: list[Value] = []
        own = node.proto.name or node.proto.output[0]
        self._mark = frozenset({StepName(f"a step of {node.operator} {own!r}")})

    @made_in_step()
    def __call__(self, carry: tuple[Tensor, ...], cells: tuple[Tensor, ...]) -> Any:
        found = self.step(
            [
                _of_step(like, each, like.shape, self._mark)
                for like, each in zip(self.state, carry, strict=True)
            ],
            [
                _of_step(like, each, like.shape[1:], self._mark)
                for like, each in zip(self.entries, cells, strict=True)
            ],
        )
        for at, each in enumerate(found):
            if not isinstance(each, Value) or not _is_plain(each):
                raise StepsDifferError(f"an iteration computes {each!r}")
            if at < len(self.state) and not _same_kind(each, self.state[at]):
                raise StepsDifferError(
                    f"an iteration computes {each!r} from a state {self.state[at]!r}"
                )
            self.outputs.append(each)
        tensors = [oc.primitives.identity(each.tensor) for each in self.outputs]
        return tuple(tensors[: len(self.state)]), tuple(tensors[len(self.state) :])

    def entry_tensors(self) -> tuple[Tensor, ...]:
        """Return the entries of all steps, with the steps as a batch."""
        return tuple(
            oc.einsum("t, ..r.. => t | ..r..", each.tensor, dtype=each.format.carrier)
            for each in self.entries
        )

    def results(
        self, node: Node, steps: int, last: tuple[Tensor, ...], rows: tuple[Tensor, ...]
    ) -> list[Value]:
        """Return the last state and the stacked outputs as values."""
        likes = self.outputs
        count = len(self.state)
        stacked = [
            oc.einsum("t | ..r.. => t, ..r..", each, dtype=like.format.carrier)
            for each, like in zip(rows, likes[count:], strict=True)
        ]
        shapes = [
            each.shape if at < count else (steps, *each.shape) for at, each in enumerate(likes)
        ]
        return [
            Value.of_tensor(
                node.sized(tensor, shape), like.format, like.inputs - self._mark, shape=shape
            )
            for tensor, like, shape in zip([*last, *stacked], likes, shapes, strict=True)
        ]


def repeated(
    node: Node,
    steps: int,
    state: list[Any],
    entries: list[Value],
    step: Step,
    run: Callable[..., Any] = oc.scan,
    *,
    folds_constants: bool = True,
) -> list[Item] | None:
    """Return the last state and the stacked outputs of a loop whose body is compiled once; None if
    it has to be unrolled.

    Args:
        entries: The numbers that each step reads, with the steps in front.
        run: Runs the loop, as `oc.scan` does.
        folds_constants: True to unroll a loop over constants, which is computed when the graph is
            read.
    """
    every = [*state, *entries]
    if steps < 2 or node.importer.observer is not None or not all(map(_is_plain, every)):
        return None  # an observer sees the values of each step
    if folds_constants and all(each.is_known and not each.is_weight for each in every):
        return None
    traced = TracedStep(node, state, entries, step)
    initial = tuple(each.tensor for each in state)
    try:
        rows, last = run(traced, initial, traced.entry_tensors(), length=steps)
    except (StepsDifferError, UnknownValueError):
        return None
    return [*traced.results(node, steps, last, rows)]


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
    layers = stacked[0].shape[0]
    found = repeated(node, layers, state, inputs, layer, run, folds_constants=False)
    if found is None:
        node.refuse("its layers pass on values of other shapes", "load the model without reroll")
    return found


def _of_step(like: Value, tensor: Tensor, shape: tuple[int, ...], mark: frozenset[str]) -> Value:
    """Return a value that each step has other numbers of."""
    return Value.of_tensor(tensor, like.format, like.inputs | mark, shape=shape)


TRUE = np.array(True)


@operator("Loop")
def loop(node: Node, count: Value | None, condition: Value | None, *carried: Item) -> list[Item]:
    """Run a loop whose number of iterations is known, or follows from data up to a bound."""
    body = node.attr("body")
    if any(each is not None and each.follows_from_data for each in (count, condition)):
        return _ended_by_data(node, count, condition, list(carried), None)
    most = (
        MOST_ITERATIONS
        if count is None
        else int(node.known(count, "number of iterations").reshape(-1)[0])
    )
    goes_on = True if condition is None else bool(node.known(condition, "condition").reshape(-1)[0])
    state: list[Item] = list(carried)

    def iterate(values: list[Value], entries: list[Value]) -> list[Item]:
        after, *found = node.run_graph(
            body, (*entries, Value.of_array(TRUE), *values), "an iteration"
        )
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
        found = node.run_graph(body, (step, Value.of_array(TRUE), *state), f"iteration {done}")
        after = found[0]
        done += 1
        if done < most and isinstance(after, Value) and after.follows_from_data:
            return _ended_by_data(node, count, condition, list(carried), after)
        if done < most:
            goes_on = bool(node.known(after, "condition").reshape(-1)[0])
        state = list(found[1 : 1 + len(state)])
        for rows, row in zip(stacked, found[1 + len(state) :], strict=True):
            rows.append(row)
    if not done:
        return [*state, *map(_no_rows, body.output[1 + len(state) :])]
    return [*state, *(stack(node, rows) for rows in stacked)]


def _ended_by_data(
    node: Node,
    count: Value | None,
    condition: Value | None,
    carried: list[Any],
    after: Value | None,
) -> list[Item]:
    """Return the last state and the stacked outputs of a loop that data end at run time, up to a
    bound.

    Args:
        after: The condition after an iteration if that is known at run time only; None if the
            condition before the first one is, or the number of iterations.
    """
    decisive = next(
        each for each in (after, count, condition) if each is not None and each.follows_from_data
    )
    most = None
    if count is not None and count.array is not None:
        most = int(count.array.reshape(-1)[0])
    stated = node.stated_bound
    bounds = [each for each in (most, stated) if each is not None]
    bound = max(min(bounds, default=0), 0)
    if not bounds or bound > MOST_STEPS:
        raise UnknownValueError(
            node.operator,
            "number of iterations",
            decisive.inputs,
            where=node.where,
            reason=f"its number of iterations depends on {described(decisive.inputs)} at run time, "
            "and has no bound",
            fix=f"or state the greatest number: {node.usage_of_bound}",
        )
    if not bound:
        return [*carried, *map(_no_rows, node.attr("body").output[1 + len(carried) :])]
    going = oc.tensor(TRUE) if condition is None else _as_condition(condition)
    if node.scope.condition is not None:
        going = oc.logical_and(going, node.scope.condition, dtype="bool")
    limit = None
    if count is not None and not count.is_known:
        limit = reshaped(count.tensor, [])
        going = oc.logical_and(going, oc.less(0, limit, dtype="bool"), dtype="bool")
    state = [Value.of_tensor(going, inputs=decisive.inputs, shape=()), *carried]
    differs = next((each for each in state if not _is_plain(each)), None)
    if differs is not None:
        raise _unknown(node, decisive, f"and a state of the loop is {differs!r}, no tensor")

    def iterate(values: list[Value], entries: list[Value]) -> list[Item]:
        own, *others = values
        true = Value.of_array(TRUE)
        arguments = (*entries, true, *others)
        goes_on, *found = node.run_graph(node.attr("body"), arguments, "an iteration", own.tensor)
        if not isinstance(goes_on, Value):
            node.invalid("The condition of a loop is a tensor.", f"{goes_on!r}")
        still = _as_condition(goes_on)
        if limit is not None:
            is_inside = oc.less(entries[0].tensor + 1, limit, dtype="bool")
            still = oc.logical_and(still, is_inside, dtype="bool")
        return [Value.of_tensor(still, inputs=goes_on.inputs | own.inputs, shape=()), *found]

    numbers = Value.of_array(np.arange(bound, dtype=np.int64))
    traced = TracedStep(node, state, [numbers], iterate)
    observer, node.importer.observer = node.importer.observer, None  # no values of single steps
    try:
        rows, last, steps = oc.scan_while(
            lambda carry: carry[0],
            traced,
            tuple(each.tensor for each in state),
            traced.entry_tensors(),
            length=bound,
        )
    except (StepsDifferError, UnknownValueError) as error:
        inputs = error.inputs if isinstance(error, UnknownValueError) else frozenset()
        reason = f"its iterations are not equal steps: {error}"
        raise _unknown(node, decisive, reason, inputs) from error
    finally:
        node.importer.observer = observer
    steps = oc.cast(steps, "int64")
    _, *results = traced.results(node, bound, last, rows)
    ends, stacked = results[: len(carried)], results[len(carried) :]
    source = node.proto.name or node.proto.output[0]
    if most is None or bound < most:  # more iterations are an error at run time
        counts = oc.tensor(np.arange(bound + 1), label=node.importer.fresh(f"bound_of_{source}"))
        total = oc.where(last[0], bound + 1, steps, label=f"count_of_{source}")
        steps = oc.take(counts, total)
        fits = oc.less_equal(0, steps, dtype="bool")
        ends = [each.with_tensor(lambda x: oc.where(fits, x, 0)) for each in ends]
    return [*ends, *(BoundedValue(each, 0, steps, source) for each in stacked)]


def _no_rows(output: onnx.ValueInfoProto, axis: int = 0) -> Value:
    """Return the stacked output of no iterations, of the format and the sizes that the body states;
    sizes that it does not state are 0.
    """
    kind = output.type.tensor_type
    found = format_numbered(kind.elem_type) or format_named("float32")
    sizes = [max(each.dim_value, 0) for each in kind.shape.dim]
    sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
    return Value.of_array(np.zeros(sizes, found.numpy), found)


def stack(node: Node, rows: list[Any], axis: int = 0) -> Item:
    """Return values joined along a new axis."""
    if all(isinstance(each, Value) and each.array is not None for each in rows):
        return Value.of_array(np.stack([each.array for each in rows], axis), rows[0].format)
    if any(isinstance(each, BoundedValue) for each in rows):
        node.refuse("the rows of a stacked output have sizes that follow from data at run time")
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
    if not any(each.extent(axis) for each, axis in zip(entries, axes, strict=True)):
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
    if not steps:
        return [*state, *map(_no_rows, body.output[len(state) :], out_axes)]
    for own, axis, back in zip(rows, out_axes, out_back, strict=True):
        ordered = own[::-1] if back else own
        stacked.append(stack(node, ordered, axis_of(node, axis, ordered[0].rank + 1)))
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
    rest = [size for k, size in enumerate(x.shape) if k != axis]
    cells = oc.reshape(section(x.tensor, axis, at, at + 1), output=rest)
    return Value.of_tensor(cells, x.format, x.inputs)


@operator("SequenceMap", since=17)
def sequence_map(node: Node, first: Sequence, *others: Any) -> list[Item]:
    body = node.attr("body")
    rows = []
    for at, item in enumerate(first.items):
        more = [each.items[at] if isinstance(each, Sequence) else each for each in others]
        rows.append(node.run_graph(body, (item, *more), f"item {at}"))
    return [Sequence(row[k] for row in rows) for k in range(len(body.output))]
