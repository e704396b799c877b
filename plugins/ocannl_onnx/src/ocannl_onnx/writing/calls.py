"""External operations: a function for each, which emits its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import helper

from ocannl_onnx.formats import format_named
from ocannl_onnx.writing.emitter import BOOL, INT32, INT64, Emitter, WrittenValue, computed_in

Rule = Callable[..., str]

RULES: dict[str, Rule] = {}
"""Functions of the emitter, the operation and the inputs, by the name of the operation."""


def _rule(function: Rule) -> Rule:
    RULES["".join(part.title() for part in function.__name__.split("_"))] = function
    return function


def _computed(emit: Emitter, x: WrittenValue) -> str:
    return emit.cast(emit.materialized(x), x.format, computed_in(x.format))


def _top(emit: Emitter, op: Any, x: WrittenValue, count: Any) -> str:
    """Return the positions of the first cells in order, as int32."""
    _, found = emit.several(
        "TopK",
        [_computed(emit, x), emit.size(count)],
        ["ordered", "order"],
        axis=op.axis,
        largest=int(op.descending),
        sorted=1,
    )
    return emit.cast(found, INT64, INT32)


@_rule
def arg_sort(emit: Emitter, op: Any, x: WrittenValue) -> str:
    return _top(emit, op, x, x.sizes[op.axis])


@_rule
def top_positions(emit: Emitter, op: Any, x: WrittenValue) -> str:
    return _top(emit, op, x, op.count)


@_rule
def take_along_axis(emit: Emitter, op: Any, x: WrittenValue, positions: WrittenValue) -> str:
    at = emit.cast(emit.materialized(positions), positions.format, INT64)
    return emit("GatherElements", emit.materialized(x), at, axis=op.axis)


@_rule
def put_along(
    emit: Emitter, op: Any, x: WrittenValue, positions: WrittenValue, cells: WrittenValue
) -> str:
    format = computed_in(x.format)
    at = emit.cast(emit.materialized(positions), positions.format, INT64)
    zeros = emit("Expand", emit.constant(0, format), emit.shape(x.sizes))
    found = emit(
        "ScatterElements", zeros, at, _computed(emit, cells), axis=op.axis, reduction="add"
    )
    return emit.cast(found, format, x.format)


@_rule
def search_sorted(emit: Emitter, op: Any, ordered: WrittenValue, cells: WrittenValue) -> str:
    """Count the cells in order that are less; NaN is the greatest number."""
    wide = format_named("float64") if ordered.format.is_float else INT64
    a = emit.cast(emit.materialized(ordered), ordered.format, wide)
    b = emit.cast(emit.materialized(cells), cells.format, wide)
    b = emit("Unsqueeze", b, emit.constant([-1]))
    before = emit("Less", a, b) if op.side == "left" else emit("LessOrEqual", a, b)
    if wide.is_float:
        is_number = emit("Not", emit("IsNaN", a))
        last = emit("IsNaN", b)
        if op.side == "left":
            before = emit("Or", before, emit("And", last, is_number))
        else:
            before = emit("Or", before, last)
    return emit("ReduceSum", emit.cast(before, BOOL, INT32), emit.constant([-1]), keepdims=0)


@_rule
def scan(emit: Emitter, op: Any, x: WrittenValue) -> str:
    """Return running sums as `CumSum`, and other running values as a scan of one operator."""
    format = computed_in(x.format)
    cells = _computed(emit, x)
    if op.kind == "sum":
        found = emit("CumSum", cells, emit.constant(op.axis), reverse=int(op.is_reversed))
        return emit.cast(found, format, x.format)
    operator = {"prod": "Mul", "max": "Max", "min": "Min"}[op.kind]
    end = -1 if op.is_reversed else 0
    first = emit("Gather", cells, emit.constant(end), axis=op.axis)
    if op.kind == "prod":
        one = emit.constant(1, format)
        first = emit("Expand", one, emit("Shape", first))
    rank = len(x.sizes) - 1
    names = [emit.names.unique(each) for each in ("before", "cell", "after", "item")]
    before, cell, after, item = names

    def port(name: str) -> Any:
        return helper.make_tensor_value_info(name, format.number, [None] * rank)

    body = helper.make_graph(
        [
            helper.make_node(operator, [before, cell], [after]),
            helper.make_node("Identity", [after], [item]),
        ],
        f"running_{op.kind}",
        [port(before), port(cell)],
        [port(after), port(item)],
    )
    direction = int(op.is_reversed)
    _, found = emit.several(
        "Scan",
        [first, cells],
        ["last", "running"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[op.axis],
        scan_output_axes=[op.axis],
        scan_input_directions=[direction],
        scan_output_directions=[direction],
    )
    return emit.cast(found, format, x.format)
