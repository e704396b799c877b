"""Attention with several heads, against loops over heads and positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

TOKENS = np.random.default_rng(0).normal(size=(2, 4, 5))
MEMORY = np.random.default_rng(1).normal(size=(2, 3, 6))


def softmax(scores: Any) -> Any:
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def attend(x: Any, memory: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, *, causal: bool) -> Any:
    """One example, head, and query at a time."""
    heads, width, _ = w_q.shape
    result = np.zeros((*x.shape[:2], w_o.shape[0]))
    for example, position in np.ndindex(*x.shape[:2]):
        seen = memory[example, : position + 1] if causal else memory[example]
        for head in range(heads):
            query = w_q[head] @ x[example, position]
            keys, values = seen @ w_k[head].T, seen @ w_v[head].T
            gathered = softmax(keys @ query / np.sqrt(width)) @ values
            result[example, position] += w_o[:, head] @ gathered
    return result


def test_causal_attention_with_a_residual_infers_every_size(check: Any) -> None:
    x = oc.tensor(TOKENS, batch_axes=2)
    output = x + nn.multi_head_attention(x, nn.causal_mask(4), heads=2, width=3)

    def reference(w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
        return TOKENS + attend(TOKENS, TOKENS, w_q, w_k, w_v, w_o, causal=True)

    assert check(output, reference) == ["5->2,3", "5->2,3", "5->2,3", "2,3->5"]


def test_attention_to_another_sequence_has_its_length_and_width(check: Any) -> None:
    memory = oc.tensor(MEMORY, batch_axes=2)
    attention = nn.multi_head_attention(heads=2, width=2, output=[3])
    output = attention(oc.tensor(TOKENS, batch_axes=2), None, memory)

    def reference(w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
        return attend(TOKENS, MEMORY, w_q, w_k, w_v, w_o, causal=False)

    assert check(output, reference) == ["5->2,2", "6->2,2", "6->2,2", "2,2->3"]


def test_attention_without_a_use_is_an_error_about_its_hidden_width() -> None:
    with oc.Session():
        output = nn.multi_head_attention(oc.tensor(TOKENS, batch_axes=2), heads=2, width=3)
        with pytest.raises(oc.ShapeError, match="hidden"):
            _ = output.info


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_causal_mask_hides_later_positions_in_every_format(target: str, dtype: str) -> None:
    """Masked cells change nothing, to the last bit."""
    results = []
    for last in (1.0, 40.0):
        with oc.Session():
            cells = TOKENS.copy()
            cells[:, -1] *= last
            x = oc.tensor(cells, batch_axes=2, dtype=dtype)
            output = x + nn.multi_head_attention(x, nn.causal_mask(4), heads=2, width=3)
            ctx = oc.Context(target)
            routine = ctx.compile(oc.train.forward(output))
            ctx.init_params(output)
            routine()
            assert output.dtype.name == dtype
            results.append(np.asarray(ctx[output], np.float64))
    assert np.isfinite(results[0]).all()
    np.testing.assert_array_equal(results[0][:, :-1], results[1][:, :-1])
    assert (results[0][:, -1] != results[1][:, -1]).any()


def test_softmax_of_large_scores_does_not_overflow(target: str) -> None:
    scores = np.array([[1000.0, 1001.0], [-1000.0, -1000.0]], np.float32)
    with oc.Session():
        weights = oc.softmax(oc.tensor(scores, batch_axes=1), logic="...|... => ...|0")
        colder = oc.softmax(oc.tensor(scores, batch_axes=1), logic="...|... => ...|0", scale=2.0)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(weights) + oc.train.forward(colder))()
        ratio = np.exp(-1.0)
        expected = [[ratio / (1 + ratio), 1 / (1 + ratio)], [0.5, 0.5]]
        np.testing.assert_allclose(ctx[weights], expected, rtol=1e-6)
        ratio = np.exp(-2.0)
        expected = [[ratio / (1 + ratio), 1 / (1 + ratio)], [0.5, 0.5]]
        np.testing.assert_allclose(ctx[colder], expected, rtol=1e-6)


@pytest.mark.parametrize("logic", [None, "...|... => ...|0"])
@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2", "float8_e4m3fn"])
def test_scaled_scores_may_leave_the_range_of_their_format(
    target: str, dtype: str, logic: str | None
) -> None:
    scores = [[-192.0, -224.0, -256.0], [192.0, 224.0, 192.0], [0.0, 0.0, -256.0]]
    with oc.Session():
        cells = oc.tensor(np.array(scores, np.float32), batch_axes=1, dtype=dtype)
        weights = oc.softmax(cells, logic=logic, scale=1000.0)
        down = oc.softmax(cells, logic=logic, scale=-1000.0)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(weights) + oc.train.forward(down))()
        assert ctx[weights].astype(float).tolist() == [[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0]]
        assert ctx[down].astype(float).tolist() == [[0, 0, 1], [0.5, 0, 0.5], [0, 0, 1]]
        assert weights.dtype is cells.dtype


def test_sums_of_short_weights_may_leave_the_range_of_their_format(target: str) -> None:
    with oc.Session():
        weights = oc.softmax(oc.tensor(np.zeros(512, np.float32), dtype="float8_e4m3fn"))
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(weights))()
        assert (ctx[weights].astype(float) == 2.0**-9).all()  # the least positive number


def test_sums_of_many_weights_may_leave_the_range_of_their_format(target: str) -> None:
    count = 70_000
    with oc.Session():
        scores = oc.tensor(np.zeros(count, np.float16))
        weights, logs, total = oc.softmax(scores), oc.log_softmax(scores), oc.logsumexp(scores)
        ctx = oc.Context(target)
        ctx.compile(sum(map(oc.train.forward, (logs, total)), oc.train.forward(weights)))()
        assert np.unique(ctx[weights]).tolist() == [np.float16(1 / count)]
        assert np.unique(ctx[logs]).tolist() == [np.float16(-math.log(count))]
        assert ctx.item(total) == np.float16(math.log(count))


@pytest.mark.parametrize("scale", [1.0, 0.5, 2.0])
@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"]
)
def test_softmax_gives_masked_cells_no_share_and_no_gradient(
    target: str, dtype: str, scale: float
) -> None:
    tolerance = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 0.02, "float16": 2e-3}
    has_infinities = dtype != "float8_e4m3fn"
    excluded = -np.inf if has_infinities else -448.0
    scores = np.array(
        [[excluded] * 4, [0, excluded, 1, 2], [excluded, excluded, 4, excluded], [1, 2, 3, 4]]
    )
    weights = np.arange(16.0).reshape(4, 4) % 5
    with np.errstate(all="ignore"):
        exponentials = np.exp(scale * (scores - scores.max(1, keepdims=True)))
        shares = np.nan_to_num(exponentials / exponentials.sum(1, keepdims=True))
    slopes = scale * shares * (weights - (shares * weights).sum(1, keepdims=True))
    with oc.Session():
        x = oc.tensor(scores, batch_axes=1, dtype=dtype, requires_grad=True)
        found = oc.softmax(x, logic="...|... => ...|0", scale=scale)
        loss = oc.einsum("...|... => 0", found * oc.tensor(weights, batch_axes=1))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[found, x.grad])
        step()
        near = {"atol": 4 * tolerance.get(dtype, 0.15), "rtol": tolerance.get(dtype, 0.15)}
        np.testing.assert_allclose(ctx[found].astype(float), shares, **near)
        np.testing.assert_allclose(ctx[x.grad].astype(float), slopes, **near)
        if has_infinities:
            assert not ctx[found].astype(float)[0].any()
            assert not ctx[x.grad].astype(float)[np.isinf(scores)].any()


def test_a_mask_of_infinities_hides_whole_rows(target: str) -> None:
    hidden = oc.tensor([[0.0, -np.inf, 0.0], [-np.inf] * 3], batch_axes=1)
    w = oc.param("w", init=[1.0, 2.0, 3.0])
    shares = oc.softmax(w + hidden, logic="...|... => ...|0")
    loss = oc.einsum("...|... => 0", shares * oc.tensor([1.0, 2.0, 3.0]))
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.grad_update(loss), keep=[shares, w.grad])
    ctx.init_params(loss)
    step()
    first = 1 / (1 + np.exp(2.0))
    np.testing.assert_allclose(ctx[shares], [[first, 0, 1 - first], [0, 0, 0]], rtol=1e-6)
    slope = 2 * first * (1 - first)
    np.testing.assert_allclose(ctx[w.grad], [-slope, 0, slope], rtol=1e-5)


def test_infinite_and_unknown_scores_are_no_shares(target: str) -> None:
    scores = [[np.inf, 1.0], [np.nan, 1.0]]
    with oc.settings.overrides(allow_nan=True):
        shares = oc.softmax(oc.tensor(np.array(scores), batch_axes=1), logic="...|... => ...|0")
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(shares))()
        found = ctx[shares]
    assert np.isnan(found[0, 0])
    assert np.isnan(found[1]).all()


def test_a_query_without_keys_averages_all_values(target: str) -> None:
    queries, keys = (oc.tensor(np.ones((2, 1, 3)), batch_axes=1) for _ in range(2))
    values = oc.tensor([[[1.0]], [[3.0]]], batch_axes=1)
    mask = oc.tensor([[0.0, 0.0], [0.0, 1.0]], batch_axes=1, input_axes=1)
    attended = nn.attention(queries, keys, values, mask)
    ctx = oc.Context(target)
    ctx.compile(oc.train.forward(attended))()
    assert ctx[attended].ravel().tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "one input axis"),
        ({"batch_axes": 1}, "one input axis"),
        ({"batch_axes": 2}, "one input axis"),
        ({"batch_axes": 1, "input_axes": 1}, "1 at the others"),
    ],
    ids=str,
)
def test_masks_of_other_libraries_are_refused(axes: dict[str, int], message: str) -> None:
    """Each has as many positions as there are sequences and heads, so that all would broadcast."""
    with oc.Session():
        x = oc.placeholder("x", batch=[4, 4], output=[8])
        mask = oc.tensor(np.where(np.tri(4), 0.0, -np.inf).astype(np.float32), **axes)
        with pytest.raises(oc.OcannlError, match=message):
            oc.nn.multi_head_attention(x, mask, heads=4)


def test_a_sequence_along_output_axes_is_refused() -> None:
    with oc.Session():
        x = oc.tensor(np.ones((2, 5, 8), np.float32), batch_axes=1)
        right = oc.tensor(np.ones((2, 5, 8), np.float32), batch_axes=2)
        with pytest.raises(oc.ShapeError, match="last batch axis of a sequence counts positions"):
            oc.nn.multi_head_attention(x, heads=2)
        with pytest.raises(oc.ShapeError, match="last batch axis of a sequence counts positions"):
            oc.nn.multi_head_attention(right, None, x, heads=2)


def test_heads_that_do_not_divide_the_length_of_the_input_need_a_width() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2, 5], output=[8])
        with pytest.raises(oc.UsageError, match="3 heads and a length of 8"):
            oc.nn.multi_head_attention(x, heads=3)
        with pytest.raises(oc.UsageError, match="3 heads and a length of 8"):
            oc.nn.transformer_layer(x, heads=3, hidden=8)
        assert oc.nn.multi_head_attention(x, heads=3, width=2, output=[8]).info.dims == (2, 5, 8)
