"""Attention of onnxruntime: masks, caches, groups of queries and rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed")

import ocannl_core as oc
import ocannl_onnx
from plugins.ocannl_onnx.tests.microsoft import check, model_of

Array = np.ndarray[Any, Any]
BATCH, ROWS, HEADS, WIDTH = 2, 3, 4, 16
WHOLE = HEADS * WIDTH


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def as_heads(x: Array, count: int = HEADS) -> Array:
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def attended(
    q: Array, k: Array, v: Array, addend: Any = 0.0, allowed: Any = True, sink: Any = None,
    scale: float | None = None, softcap: float = 0.0,
) -> Array:  # fmt: skip
    """Return the rows that heads read."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(allowed, scores + addend, -np.inf)
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True) + (0.0 if sink is None else np.exp(sink - top))
    rows = (powers / total @ v).transpose(0, 2, 1, 3)
    return rows.reshape(*rows.shape[:2], -1).astype(np.float32)


def rotated(x: Array, cosines: Array, sines: Array, positions: Array, interleaved: bool) -> Array:
    """Return heads whose first cells are rotated."""
    half = cosines.shape[1]
    c, s = cosines[positions][:, None], sines[positions][:, None]
    pair = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    if not interleaved:
        pair = slice(0, half), slice(half, 2 * half)
    result = x.copy()
    a, b = x[..., pair[0]], x[..., pair[1]]
    result[..., pair[0]], result[..., pair[1]] = a * c - b * s, a * s + b * c
    return result


def masks(keys: int, filtered: float) -> dict[str, tuple[Array, Array]]:
    """Return masks, and what they add to the scores."""
    random, at = np.random.default_rng(0), np.arange(keys)
    lengths, starts = np.array([2, keys], np.int32), np.array([0, 1], np.int32)
    own = random.integers(0, 2, (BATCH, keys)).astype(np.int32)
    wide = random.integers(0, 2, (BATCH, ROWS, keys)).astype(np.int32)
    own[..., 0] = wide[..., 0] = 1
    between = (at < lengths[:, None]) & (at >= starts[:, None])
    return {
        "lengths": (lengths, np.where(at < lengths[:, None], 0, filtered)[:, None, None]),
        "ends and starts": (
            np.concatenate([lengths, starts]), np.where(between, 0, filtered)[:, None, None]
        ),
        "rows": (own, np.where(own > 0, 0, filtered)[:, None, None]),
        "cells": (wide, np.where(wide > 0, 0, filtered)[:, None]),
    }  # fmt: skip


QKV = {"q": normal(BATCH, ROWS, WHOLE), "k": normal(BATCH, 5, WHOLE), "v": normal(BATCH, 5, 32)}
PAST = normal(BATCH, HEADS, 2, WIDTH, seed=1), normal(BATCH, HEADS, 2, WIDTH, seed=2)


@pytest.mark.parametrize("filtered", [-10000.0, -1.5])
@pytest.mark.parametrize("mask", ["lengths", "rows", "cells"])
def test_masks_of_heads_agree(mask: str, filtered: float) -> None:
    cells, added = masks(5, filtered)[mask]
    bias, addend = normal(2 * WHOLE + 32), normal(1, HEADS, ROWS, 5)
    b = np.split(bias, [WHOLE, 2 * WHOLE])
    heads = [as_heads(x + own) for x, own in zip(QKV.values(), b, strict=True)]
    check(
        "MultiHeadAttention", {**QKV, "b": bias, "mask": cells, "a": addend},
        [attended(*heads, added + addend)], {"b"},
        num_heads=HEADS, mask_filter_value=filtered,
    )  # fmt: skip


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_caches_of_heads_agree(unidirectional: int) -> None:
    q, k, v = (normal(BATCH, ROWS, WHOLE, seed=k) for k in range(3))
    keys, values = (
        np.concatenate([past, as_heads(new)], 2) for past, new in zip(PAST, (k, v), strict=True)
    )
    allowed = np.arange(2 + ROWS) <= np.arange(ROWS)[:, None] + 2 if unidirectional else True
    expected = [attended(as_heads(q), keys, values, 0.0, allowed, scale=0.3), keys, values]
    cells = {"q": q, "k": k, "v": v, "b": None, "m": None, "a": None, "pk": PAST[0], "pv": PAST[1]}
    check(
        "MultiHeadAttention", cells, expected, num_heads=HEADS, unidirectional=unidirectional,
        scale=0.3,
    )  # fmt: skip


def test_layouts_of_heads_agree() -> None:
    """Keys and values of another sequence are heads, or packed; onnxruntime packs on GPUs only."""
    q, bias = QKV["q"], normal(3 * WHOLE)
    k, v = normal(BATCH, HEADS, 5, WIDTH, seed=3), normal(BATCH, HEADS, 5, WIDTH, seed=4)
    expected = attended(as_heads(q + bias[:WHOLE]), k, v)
    check("MultiHeadAttention", {"q": q, "k": k, "v": v, "b": bias}, [expected], num_heads=HEADS)
    packed = np.stack([k, v]).transpose(1, 3, 2, 0, 4).copy()
    expected = attended(as_heads(q), k, v)
    check(
        "MultiHeadAttention", {"q": q, "kv": packed}, [expected], num_heads=HEADS, elsewhere=False
    )
    own = normal(BATCH, ROWS, HEADS, 3, WIDTH)
    heads = (own[:, :, :, k].transpose(0, 2, 1, 3) for k in range(3))
    check("MultiHeadAttention", {"qkv": own}, [attended(*heads)], num_heads=HEADS, elsewhere=False)


@pytest.mark.parametrize("filtered", [-10000.0, -1.5])
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", [None, "lengths", "ends and starts", "rows", "cells"])
def test_attention_with_weights_agrees(
    mask: str | None, unidirectional: int, filtered: float
) -> None:
    x, weights, bias = normal(BATCH, ROWS, 6), normal(6, 3 * WHOLE), normal(3 * WHOLE)
    addend = normal(BATCH, HEADS, ROWS, ROWS)
    cells, added = masks(ROWS, filtered)[mask] if mask else (None, 0.0)
    heads = [as_heads(each) for each in np.split(x @ weights + bias, 3, -1)]
    allowed = np.tril(np.ones((ROWS, ROWS), bool)) if unidirectional else True
    check(
        "Attention", {"x": x, "w": weights, "b": bias, "m": cells, "past": None, "a": addend},
        [attended(*heads, added + addend, allowed)], {"w", "b"}, tolerance=3e-5,
        num_heads=HEADS, unidirectional=unidirectional, mask_filter_value=filtered,
    )  # fmt: skip


def test_attention_with_weights_and_a_cache_agrees() -> None:
    x, weights, bias = normal(BATCH, ROWS, 6), normal(6, 3 * WHOLE), normal(3 * WHOLE)
    q, k, v = (as_heads(each) for each in np.split(x @ weights + bias, 3, -1))
    keys, values = (np.concatenate([past, new], 2) for past, new in zip(PAST, (k, v), strict=True))
    past = np.stack(PAST)
    expected = [attended(q, keys, values), np.stack([keys, values])]
    cells = {"x": x, "w": weights, "b": bias, "m": None, "past": past}
    check("Attention", cells, expected, {"w", "b"}, tolerance=3e-5, num_heads=HEADS)


def test_values_of_another_width_agree() -> None:
    x, weights, bias = normal(BATCH, ROWS, 6), normal(6, 2 * WHOLE + 32), normal(2 * WHOLE + 32)
    parts = np.split(x @ weights + bias, [WHOLE, 2 * WHOLE], -1)
    check(
        "Attention", {"x": x, "w": weights, "b": bias}, [attended(*map(as_heads, parts))],
        {"w", "b"}, tolerance=3e-5, num_heads=HEADS, qkv_hidden_sizes=[WHOLE, WHOLE, 32],
    )  # fmt: skip


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [8, 4])
@pytest.mark.parametrize("has_offset", [False, True])
def test_rotary_positions_agree(interleaved: int, half: int, has_offset: bool) -> None:
    cosines, sines, x = normal(10, half, seed=1), normal(10, half, seed=2), QKV["q"]
    ids = np.array([[3, 0, 7], [9, 9, 1]], np.int64)
    given = np.array([4], np.int64) if has_offset else ids
    places = np.array([[4, 5, 6]]) if has_offset else ids
    expected = rotated(as_heads(x), cosines, sines, places, bool(interleaved))
    options: dict[str, Any] = {"num_heads": HEADS, "interleaved": interleaved}
    if half < WIDTH // 2:
        options["rotary_embedding_dim"] = 2 * half
    tables = {"c": cosines, "s": sines}
    rows = expected.transpose(0, 2, 1, 3).reshape(x.shape)
    check("RotaryEmbedding", {"x": x, "p": given, **tables}, [rows], {"c", "s"}, **options)
    cells = {"x": as_heads(x).copy(), "p": given, **tables}
    check("RotaryEmbedding", cells, [expected], {"c", "s"}, **options)


GROUPS = 2


def group_case(
    batch: int, rows: int, past: int, ends: list[int], total: int, *, half: int = 0,
    interleaved: int = 0, packed: bool = False, window: int = -1, causal: int = 1,
    sink: Any = None, addend: Any = None, has_ids: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Check attention with groups of queries. Rows behind the end of an example, which belong
    to no example, are not compared.
    """
    q = normal(batch, rows, WHOLE)
    k, v = (normal(batch, rows, GROUPS * WIDTH, seed=at) for at in (1, 2))
    old = [normal(batch, GROUPS, past, WIDTH, seed=at) for at in (3, 4)]
    is_prompt = rows == total
    before = np.zeros(batch, int) if is_prompt else np.array(ends) - rows
    places = before[:, None] + np.arange(rows)
    heads, new = as_heads(q), [as_heads(k, GROUPS), as_heads(v, GROUPS)]
    cosines, sines = normal(20, half, seed=5), normal(20, half, seed=6)
    if half:
        heads, new[0] = (
            rotated(x, cosines, sines, places, bool(interleaved)) for x in (heads, new[0])
        )
        options |= {"do_rotary": 1, "rotary_interleaved": interleaved}
    whole = max(past, total)
    caches = [np.zeros((batch, GROUPS, whole, WIDTH), np.float32) for _ in range(2)]
    for cache, own, added in zip(caches, old, new, strict=True):
        for b, count in enumerate(before):
            cache[b, :, :count] = own[b, :, :count]
            cache[b, :, count : count + rows] = added[b]
    limit, columns = places[:, None, :, None], np.arange(whole)
    allowed = columns <= limit if causal else columns < np.array(ends)[:, None, None, None]
    if window > 0:
        allowed, options["local_window_size"] = allowed & (columns > limit - window), window
    if not causal:
        options["causal"] = 0
    own_sink = 0.0 if options.get("smooth_softmax") else sink
    if isinstance(own_sink, np.ndarray):
        own_sink = own_sink[:, None, None]
    expected = attended(
        heads, *caches, 0.0 if addend is None else addend, allowed, own_sink,
        options.get("scale"), options.get("softcap", 0.0),
    )  # fmt: skip
    cells = {
        "q": np.concatenate([q, k, v], -1) if packed else q,
        "k": None if packed else k, "v": None if packed else v,
        "pk": old[0] if past else None, "pv": old[1] if past else None,
        "ends": np.array(ends, np.int32) - 1, "total": np.array(total, np.int32),
        "c": cosines if half else None, "s": sines if half else None,
        "ids": places.astype(np.int64) if has_ids else None, "a": addend, "sink": sink,
    }  # fmt: skip
    while cells[[*cells][-1]] is None:
        cells.popitem()
    check(
        "GroupQueryAttention", cells, [expected, *caches], {"c", "s"} if half else (), ("total",),
        num_heads=HEADS, kv_num_heads=GROUPS, valid=np.array(ends) if is_prompt else None,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("rotary", [{}, {"half": 8}, {"half": 8, "interleaved": 1}], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_prompts_agree(rotary: dict[str, Any], packed: bool) -> None:
    group_case(2, 5, 0, [5, 5], 5, packed=packed, **rotary)
    group_case(2, 5, 0, [5, 3], 5, packed=packed, **rotary)
    group_case(2, 4, 8, [4, 3], 4, packed=packed, **rotary)


@pytest.mark.parametrize("rotary", [{}, {"half": 8}, {"half": 8, "has_ids": True}], ids=str)
def test_decoding_agrees(rotary: dict[str, Any]) -> None:
    """The cache grows by the new positions, or has room for them."""
    group_case(1, 1, 5, [6], 6, **rotary)
    group_case(2, 1, 5, [6, 4], 6, **rotary)
    group_case(2, 1, 8, [6, 4], 6, **rotary)
    group_case(2, 1, 8, [6, 4], 8, **rotary)
    group_case(1, 3, 5, [8], 8, **rotary)
    group_case(1, 3, 9, [8], 8, **rotary)


def test_scores_of_groups_agree() -> None:
    group_case(1, 6, 0, [6], 6, window=3)
    group_case(1, 1, 6, [7], 7, window=3)
    group_case(1, 5, 0, [5], 5, softcap=2.0)
    group_case(1, 5, 0, [5], 5, scale=0.3)
    group_case(1, 5, 0, [5], 5, addend=normal(1, HEADS, 5, 5), softcap=2.0)
    group_case(1, 5, 0, [5], 5, addend=normal(1, 1, 5, 5))
    group_case(1, 5, 0, [5], 5, sink=normal(HEADS))
    group_case(1, 5, 0, [5], 5, smooth_softmax=1)
    group_case(2, 5, 0, [5, 3], 5, causal=0)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [({"qk_output": 1}, "qk_output"), ({"k_quant_type": "PER_TENSOR"}, "k_quant_type")],
)
def test_other_groups_are_refused(attributes: dict[str, Any], reason: str) -> None:
    cells = {
        "q": QKV["q"], "k": normal(BATCH, ROWS, 32), "v": normal(BATCH, ROWS, 32), "pk": None,
        "pv": None, "ends": np.full(BATCH, ROWS - 1, np.int32), "total": np.array(ROWS, np.int32),
    }  # fmt: skip
    proto = model_of(
        "GroupQueryAttention", cells, {*cells} - {"q"}, ["y"], num_heads=HEADS, kv_num_heads=2,
        **attributes,
    )  # fmt: skip
    with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match=reason), oc.Session():
        ocannl_onnx.load(proto)(q=oc.placeholder("q", output=list(QKV["q"].shape)))
