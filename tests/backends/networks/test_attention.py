"""Attention with several heads, against loops over heads and positions."""

from __future__ import annotations

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


def test_attention_without_a_use_asks_for_its_hidden_width() -> None:
    with oc.Session():
        output = nn.multi_head_attention(oc.tensor(TOKENS, batch_axes=2), heads=2, width=3)
        with pytest.raises(oc.ShapeError, match="hidden"):
            _ = output.info


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_mask_hides_what_comes_later_in_every_format(target: str, dtype: str) -> None:
    """What is hidden changes nothing, to the last bit."""
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
        weights = nn.softmax("...|... => ...|0", oc.tensor(scores, batch_axes=1))
        colder = nn.softmax("...|... => ...|0", oc.tensor(scores, batch_axes=1), scale=2.0)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(weights) + oc.train.forward(colder))()
        ratio = np.exp(-1.0)
        expected = [[ratio / (1 + ratio), 1 / (1 + ratio)], [0.5, 0.5]]
        np.testing.assert_allclose(ctx[weights], expected, rtol=1e-6)
        ratio = np.exp(-2.0)
        expected = [[ratio / (1 + ratio), 1 / (1 + ratio)], [0.5, 0.5]]
        np.testing.assert_allclose(ctx[colder], expected, rtol=1e-6)
