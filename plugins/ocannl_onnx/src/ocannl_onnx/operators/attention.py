"""Operators of onnxruntime for attention: heads, rotary positions, masks and caches.

Heads are `[batch, heads, positions, width]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.operators.contractions import product, spec_of
from ocannl_onnx.operators.movement import moved, positions_up_to, reshaped, section
from ocannl_onnx.registry import MICROSOFT, operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node

LOWEST = float(np.finfo(np.float32).min)
"""The score of positions that are not read; rows that read none have no NaN."""


def _places(x: Value, axis: int) -> Tensor:
    """Return the positions of an axis."""
    extent = x.extent(axis)
    return (
        oc.arange(x.shape[axis], dtype="int32")
        if extent is None
        else positions_up_to(extent, "int32")
    )


def _as_heads(x: Value, tensor: Tensor, count: int) -> Tensor:
    """Return the heads of rows that lie beside each other; `x` has the axes in front."""
    width = tuple(tensor.shape.dims)[-1] // count
    return oc.permute(reshaped(tensor, [*x.shape[:2], count, width]), 0, 2, 1, 3)


def _attended(
    node: Node,
    x: Value,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    addends: list[Tensor],
    allowed: Tensor | None = None,
    softcap: float = 0.0,
    sink: Any = None,
) -> Value:
    """Return the rows that heads read.

    Args:
        x: A value with the axes of the rows, and the format of the result.
        addends: Terms of the scores, of four axes.
        allowed: The positions that are read, of four axes; None for all.
        sink: A score of each head, or of all, which takes part in the sum of a row only.
    """
    heads, groups = (tuple(each.shape.dims)[1] for each in (query, keys))
    if heads % groups:
        node.invalid("Heads of keys divide those of queries.", f"{heads} and {groups}")
    per = heads // groups

    def grouped(tensor: Tensor) -> Tensor:
        sizes = list(tensor.shape.dims)
        outer = [1, 1] if sizes[1] == 1 else [groups, per]
        return reshaped(tensor, [sizes[0], *outer, *sizes[2:]])

    head = ["g"] if per == 1 else ["g", "r"]
    if per > 1:
        query = grouped(query)
        addends = [grouped(each) for each in addends]
        allowed = None if allowed is None else grouped(allowed)
        if isinstance(sink, Tensor):
            sink = grouped(sink)
    inner = tuple(query.shape.dims)[-1]
    scores: Tensor = oc.einsum(
        spec_of(["b", *head, "s", "h"], ["b", "g", "t", "h"], ["b", *head, "s", "t"]),
        query, keys, dtype="float32",
    )  # fmt: skip
    scores = scores * (node.attr("scale", 0.0) or inner**-0.5)
    if softcap:
        scores = softcap * oc.tanh(scores / softcap)
    for each in addends:
        scores = scores + oc.cast(each, "float32")
    if allowed is not None:
        scores = oc.where(allowed, scores, LOWEST)
    if sink is None:
        weights = oc.softmax(scores, axis=-1)
    else:
        top = oc.maximum(oc.max(scores, axis=-1, keepdims=True), sink)
        powers = oc.exp(scores - top)
        weights = powers / (oc.sum(powers, axis=-1, keepdims=True) + oc.exp(sink - top))
    rows = oc.einsum(
        spec_of(["b", *head, "s", "t"], ["b", "g", "t", "v"], ["b", "s", *head, "v"]),
        weights, values, dtype="float32",
    )  # fmt: skip
    shape = (*x.shape[:2], heads * tuple(values.shape.dims)[-1])
    return moved(x, oc.cast(node.sized(reshaped(rows, shape), shape), x.format.carrier))


def _masked(node: Node, mask: Value | None, x: Value, columns: Tensor) -> list[Tensor]:
    """Return the terms of a mask in the scores: a large negative number for positions to leave out.

    It has the number of valid keys of each example, the ends and the starts, or a number for each
    position, of a row or all, which is 0 for those to leave out.
    """
    if mask is None:
        return []
    count, cells = x.shape[0], mask.tensor
    if mask.rank == 1 and mask.shape[0] in (count, 2 * count):
        keep = oc.less(columns, reshaped(cells[:count], [count, 1, 1, 1]), dtype="bool")
        if mask.shape[0] == 2 * count:
            starts = reshaped(cells[count:], [count, 1, 1, 1])
            keep = oc.logical_and(keep, oc.less_equal(starts, columns, dtype="bool"), dtype="bool")
    elif mask.rank in (2, 3):
        rows = [1, 1] if mask.rank == 2 else [1]
        wide = reshaped(cells, [mask.shape[0], *rows, *mask.shape[1:]])
        keep = oc.less(0, wide, dtype="bool")
    else:
        node.refuse(f"its mask has the sizes {list(mask.shape)}")
    return [oc.where(keep, 0.0, node.attr("mask_filter_value", -10000.0))]


def _up_to(rows: Tensor, columns: Tensor) -> Tensor:
    """Return whether a position is read: it is not behind the row's."""
    found: Tensor = oc.less_equal(columns, rows, dtype="bool")
    return found


@operator("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    node: Node,
    query: Value, key: Value | None = None, value: Value | None = None,
    bias: Value | None = None, mask: Value | None = None, addend: Value | None = None,
    past_keys: Value | None = None, past_values: Value | None = None,
    past_length: Value | None = None, beams: Value | None = None,
) -> Any:  # fmt: skip
    if past_length is not None or beams is not None:
        node.refuse("its cache is shared by calls or beams")
    if node.wants(3):
        node.refuse("its products of queries and keys are read")
    count = node.attr("num_heads")
    if query.rank == 5:  # [batch, positions, heads, 3, width]
        parts = [oc.permute(query.tensor[:, :, :, k], 0, 2, 1, 3) for k in range(3)]
        source, q_bias, kv_bias = query, bias is not None, bias is not None
    elif key is None:
        node.invalid("Keys are given, or packed with the queries.", f"{list(query.shape)}")
    else:
        parts, source = [_as_heads(query, query.tensor, count)], key
        q_bias, kv_bias = bias is not None, bias is not None
        if key.rank == 5:  # [batch, positions, heads, 2, width]
            parts += [oc.permute(key.tensor[:, :, :, k], 0, 2, 1, 3) for k in range(2)]
        elif value is None:
            node.invalid("Values are given, or packed with the keys.", f"{list(key.shape)}")
        elif key.rank == 4:  # heads, of which a bias was added before
            parts, kv_bias = [*parts, key.tensor, value.tensor], False
        else:
            parts += [_as_heads(each, each.tensor, count) for each in (key, value)]
    start = 0
    for at, is_added in enumerate((q_bias, kv_bias, kv_bias)):
        if is_added and bias is not None:
            width = tuple(parts[at].shape.dims)[-1]
            own = section(bias.tensor, 0, start, start + count * width)
            parts[at] = parts[at] + reshaped(own, [count, 1, width])
            start += count * width
    length = 2 if source.rank == 4 else 1
    columns, before = _places(source, length), 0
    if past_keys is not None and past_values is not None and past_keys.shape[2]:
        before = past_keys.shape[2]
        parts[1:] = [
            oc.concat([past.tensor, new], axis=2)
            for past, new in zip((past_keys, past_values), parts[1:], strict=True)
        ]
        columns = oc.arange(before + source.shape[length], dtype="int32")
    allowed = None
    if node.attr("unidirectional", 0):
        if source.shape[length] != query.shape[1]:
            node.refuse("it is unidirectional, with other numbers of queries and of new keys")
        allowed = _up_to((_places(query, 1) + before)[None, None, :, None], columns)
    addends = _masked(node, mask, query, columns) + ([addend.tensor] if addend else [])
    result = _attended(node, query, *parts, addends=addends, allowed=allowed)
    return result, moved(query, parts[1]), moved(query, parts[2])


@operator("Attention", domain=MICROSOFT)
def attention(
    node: Node,
    x: Value, weights: Value, bias: Value | None = None,
    mask: Value | None = None, past: Value | None = None, addend: Value | None = None,
    past_length: Value | None = None,
) -> Any:  # fmt: skip
    rows = product(node, x.tensor, x.shape, weights.tensor, weights.shape, x.format.carrier)
    if bias is not None:
        rows = rows + bias.tensor
    return attended_rows(node, x, moved(x, rows), mask, past, addend, past_length)


def attended_rows(
    node: Node,
    x: Value, rows: Value, mask: Value | None, past: Value | None,
    addend: Value | None = None, past_length: Value | None = None,
) -> Any:  # fmt: skip
    """Return the outputs of `Attention` for queries, keys and values beside each other."""
    if past_length is not None or node.attr("past_present_share_buffer", 0):
        node.refuse("its cache is shared by calls")
    if node.attr("do_rotary", 0):
        node.refuse("it rotates queries and keys, without a table of angles")
    count = node.attr("num_heads")
    sizes = node.attr("qkv_hidden_sizes") or (rows.shape[-1] // 3,) * 3
    ends = np.cumsum([0, *sizes]).tolist()
    parts = [_as_heads(x, section(rows.tensor, 2, ends[k], ends[k + 1]), count) for k in range(3)]
    columns, before = _places(x, 1), 0
    if past is not None and past.shape[3]:
        before = past.shape[3]
        parts[1:] = [oc.concat([past.tensor[k], parts[1 + k]], axis=2) for k in range(2)]
        columns = oc.arange(before + x.shape[1], dtype="int32")
    allowed = None
    if node.attr("unidirectional", 0):
        allowed = _up_to((_places(x, 1) + before)[None, None, :, None], columns)
    addends = _masked(node, mask, x, columns) + ([addend.tensor] if addend else [])
    result = _attended(node, x, *parts, addends=addends, allowed=allowed)
    present = oc.stack(parts[1:], axis=0) if node.wants(1) else None
    return result, None if present is None else moved(x, present)


# rotary positions


def _rotated(node: Node, x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    """Return rows whose first cells are rotated, in pairs of neighbors or of both halves."""
    half, width = tuple(cosines.shape.dims)[-1], tuple(x.shape.dims)[-1]
    axis = len(tuple(x.shape.dims)) - 1
    if 2 * half > width:
        node.invalid("The tables have half as many columns as a head.", f"{half} for {width}")
    turned = section(x, axis, 0, 2 * half)
    if interleaved:
        a, b = (section(turned, axis, k, 2 * half, 2) for k in range(2))
    else:
        a, b = section(turned, axis, 0, half), section(turned, axis, half, 2 * half)
    pairs = [a * cosines - b * sines, a * sines + b * cosines]
    if interleaved:
        sizes = [*tuple(x.shape.dims)[:-1], 2 * half]
        parts = [reshaped(oc.stack(pairs, axis=-1), sizes)]
    else:
        parts = pairs
    if 2 * half < width:
        parts.append(section(x, axis, 2 * half, width))
    return parts[0] if len(parts) == 1 else oc.concat(parts, axis=axis)


@operator("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: Node, x: Value, positions: Value, cosines: Value, sines: Value) -> Value:
    if node.attr("is_packed_batching", 0):
        node.refuse("its sequences have lengths of their own (`is_packed_batching`)")
    has_heads = x.rank == 4  # [batch, heads, positions, width]
    cells = x.tensor
    if not has_heads:
        half = cosines.shape[1]
        count = node.attr("num_heads", 0) or x.shape[-1] // (2 * half)
        cells = reshaped(cells, [*x.shape[:2], count, x.shape[-1] // count])
    places = positions.tensor
    if positions.rank == 1:
        places = reshaped(places, [1, 1]) + oc.cast(_places(x, x.rank - 2), "int64")[None]
    places = node.valid_positions(places)
    axis = 1 if has_heads else 2
    tables = [
        oc.take(each.tensor, places, axis=0)[
            tuple(None if at == axis else slice(None) for at in range(4))
        ]
        for each in (cosines, sines)
    ]
    interleaved = bool(node.attr("interleaved", 0))
    result = _rotated(node, cells, tables[0], tables[1], interleaved)
    return moved(x, node.sized(reshaped(oc.cast(result, x.format.carrier), x.shape), x.shape))


# groups of queries


@operator("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    node: Node,
    query: Value, key: Value | None, value: Value | None,
    past_keys: Value | None, past_values: Value | None, lasts: Value, total: Value,
    cosines: Value | None = None, sines: Value | None = None, positions: Value | None = None,
    addend: Value | None = None, sink: Value | None = None, *others: Value | None,
) -> Any:  # fmt: skip
    """Read the cache up to each position.

    An example has `lasts + 1` positions, new ones included. If all of the longest one are new,
    they are the cache; else they follow those of each example in the cache.
    """
    for name, usual in (("k_quant_type", "NONE"), ("v_quant_type", "NONE"), ("qk_output", 0),
                        ("sliding_window_cache", 0)):  # fmt: skip
        if node.attr(name, usual) != usual:
            node.refuse(f"its attribute {name} is {node.attr(name)}")
    if any(each is not None for each in others):
        node.refuse("its heads are normalized, or its cache is quantized")
    heads, groups = node.attr("num_heads"), node.attr("kv_num_heads")
    count, length = query.shape[:2]
    if key is not None and value is not None:
        rows = [query.tensor, key.tensor, value.tensor]
    else:
        width = query.shape[-1] // (heads + 2 * groups)
        ends = [0, heads * width, (heads + groups) * width, (heads + 2 * groups) * width]
        rows = [section(query.tensor, 2, ends[k], ends[k + 1]) for k in range(3)]
    q, k, v = (
        _as_heads(query, each, number)
        for each, number in zip(rows, (heads, groups, groups), strict=True)
    )
    size = 0 if past_keys is None else past_keys.shape[2]
    new = _places(query, 1)
    is_prompt, whole = True, length
    if size:
        whole = node.known_sizes(total, "total sequence length")[0]
        is_prompt = whole == length
        whole = max(whole, size)
    ends_of_examples = oc.cast(reshaped(lasts.tensor, [count, 1]), "int32") + 1
    before = oc.zeros(output=[1, 1], dtype="int32") if is_prompt else ends_of_examples - length
    places = before + new[None]
    if node.attr("do_rotary", 0):
        if cosines is None or sines is None:
            node.refuse("it rotates queries and keys, without a table of angles")
        at = node.valid_positions(places if positions is None else positions.tensor)
        tables = [oc.take(each.tensor, at, axis=0)[:, None] for each in (cosines, sines)]
        interleaved = bool(node.attr("rotary_interleaved", 0))
        q, k = (_rotated(node, each, tables[0], tables[1], interleaved) for each in (q, k))
    columns = oc.arange(whole, dtype="int32") if size else new
    if past_keys is not None and past_values is not None and size:
        k, v = (
            _with_cache(past, own, None if is_prompt else before, columns, whole)
            for past, own in ((past_keys, k), (past_values, v))
        )
    limit = places[:, None, :, None]
    if node.attr("causal", 1):
        allowed = _up_to(limit, columns)
    else:
        allowed = oc.less(columns, ends_of_examples[:, None, :, None], dtype="bool")
    if (window := node.attr("local_window_size", -1)) > 0:
        allowed = oc.logical_and(
            allowed, oc.less(limit - window, columns, dtype="bool"), dtype="bool"
        )
    score: Any = None
    if sink is not None:
        score = oc.cast(reshaped(sink.tensor, [1, heads, 1, 1]), "float32")
    elif node.attr("smooth_softmax", 0) > 0:
        score = 0.0
    result = _attended(
        node, query, q, k, v, addends=[addend.tensor] if addend else [], allowed=allowed,
        softcap=node.attr("softcap", 0.0), sink=score,
    )  # fmt: skip
    return result, moved(query, k), moved(query, v)


def _with_cache(
    past: Value, new: Tensor, before: Tensor | None, columns: Tensor, whole: int
) -> Tensor:
    """Return a cache with new positions behind those of each example, and zeros behind all.

    Args:
        before: The number of positions of each example in the cache; None for none.
    """
    length = tuple(new.shape.dims)[2]
    if before is None:
        return oc.pad(new, [(0, 0), (0, 0), (0, whole - length), (0, 0)])
    after = columns - before  # [batch, whole]: the position among the new ones
    old = past.tensor
    if whole > past.shape[2]:
        old = oc.pad(old, [(0, 0), (0, 0), (0, whole - past.shape[2]), (0, 0)])
    wide = new
    if length > 1:
        wide = oc.take_along(new, oc.clip(after, 0, length - 1)[:, None, :, None], axis=2)
    is_old, is_new = oc.less(after, 0, dtype="bool"), oc.less(after, length, dtype="bool")
    result: Tensor = oc.where(
        is_old[:, None, :, None], old, oc.where(is_new[:, None, :, None], wide, 0.0)
    )
    return result
