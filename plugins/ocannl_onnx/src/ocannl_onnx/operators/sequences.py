"""Sequences and optional values, whose structure is known when the graph is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_onnx.operators.control_flow import stack
from ocannl_onnx.operators.movement import axis_of, moved, reshaped, section
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Array, Item, Optional, Sequence, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


@operator("SequenceEmpty", since=11)
def sequence_empty(node: Node) -> Sequence:
    return Sequence(())


@operator("SequenceConstruct", since=11)
def sequence_construct(node: Node, *items: Item) -> Sequence:
    return Sequence(items)


def _position(node: Node, sequence: Sequence, position: Value | None, last: int) -> int:
    size = len(sequence.items)
    at = last if position is None else int(node.known(position, "position").reshape(-1)[0])
    if not -size <= at <= size:
        node.invalid(f"Positions are from {-size} to {size}.", str(at))
    return at + size if at < 0 else at


@operator("SequenceInsert", since=11)
def sequence_insert(
    node: Node, sequence: Sequence, item: Item, position: Value | None = None
) -> Sequence:
    at = _position(node, sequence, position, len(sequence.items))
    return Sequence((*sequence.items[:at], item, *sequence.items[at:]))


@operator("SequenceErase", since=11)
def sequence_erase(node: Node, sequence: Sequence, position: Value | None = None) -> Sequence:
    at = _position(node, sequence, position, len(sequence.items) - 1)
    return Sequence((*sequence.items[:at], *sequence.items[at + 1 :]))


@operator("SequenceAt", since=11)
def sequence_at(node: Node, sequence: Sequence, position: Value) -> Item:
    found: Item = sequence.items[_position(node, sequence, position, 0)]
    return found


@operator("SequenceLength", since=11)
def sequence_length(node: Node, sequence: Sequence) -> Array:
    return np.array(len(sequence.items), np.int64)


@operator("SplitToSequence", since=11)
def split_to_sequence(node: Node, x: Value, given: Value | None = None) -> Sequence:
    axis = axis_of(node, node.attr("axis", 0), x.rank)
    size, keep = x.shape[axis], True
    if given is None:
        parts, keep = [1] * size, bool(node.attr("keepdims", 1))
    elif given.rank == 0:
        part = int(node.known(given, "split").reshape(()))
        if part < 1:
            node.invalid("A part has at least one position.", str(part))
        parts = [min(part, size - start) for start in range(0, size, part)]
    else:
        parts = list(node.known_sizes(given, "split"))
    items, start = [], 0
    for part in parts:
        if x.array is not None and not x.is_weight:
            cells = np.take(x.array, range(start, start + part), axis)
            items.append(Value.of_array(cells if keep else np.squeeze(cells, axis), x.format))
        else:
            tensor = section(x.tensor, axis, start, start + part)
            if not keep:
                tensor = reshaped(tensor, [s for k, s in enumerate(x.shape) if k != axis])
            items.append(moved(x, tensor))
        start += part
    return Sequence(items)


@operator("ConcatFromSequence", since=11)
def concat_from_sequence(node: Node, sequence: Sequence) -> Item:
    items: Any = sequence.items
    if node.attr("new_axis", 0):
        return stack(node, list(items), axis_of(node, node.attr("axis", 0), items[0].rank + 1))
    axis = axis_of(node, node.attr("axis", 0), items[0].rank)
    return moved(items[0], oc.concat([each.tensor for each in items], axis=axis))


@operator("Optional", since=15)
def optional(node: Node, item: Item | None = None) -> Optional:
    return Optional(item)


@operator("OptionalHasElement", since=15)
def optional_has_element(node: Node, item: Any = None) -> Array:
    return np.array(item is not None and not (isinstance(item, Optional) and item.item is None))


@operator("OptionalGetElement", since=15)
def optional_get_element(node: Node, item: Any) -> Item:
    found: Item | None = item.item if isinstance(item, Optional) else item
    if found is None:
        node.invalid("The optional value has an element.", "none")
    return found
