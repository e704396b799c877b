"""Attention with several heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocannl_core import settings
from ocannl_core.dtypes import SHORT_RANGE, DType, constant_limit
from ocannl_core.nn.statistics import softmax
from ocannl_core.tensor.contractions import einsum
from ocannl_core.tensor.literals import tensor
from ocannl_core.tensor.network_blocks import op
from ocannl_core.tensor.parameters import param
from ocannl_core.tensor.pointwise_operations import where
from ocannl_core.tensor.tensor import Tensor

SCORES = "... s | h d; ... t | h d => ... s | t -> h"
OVER_KEYS = "... s | t -> h => ... s | 0 -> h"
ATTENDED = "... s | t -> h; ... t | h e => ... s | h e"
_EXCLUDED = 1e9
"""Minus the score of a masked position: its weight is 0 beside any other score."""


def causal_mask(length: int) -> Tensor:
    """Return 1 where attention is allowed, to a position itself and those before it, and 0
    elsewhere.

    The shape is `length|length->`: a batch axis of queries, an input axis of keys.
    """
    cells = np.tril(np.ones((length, length), np.uint8))
    return tensor(cells, batch_axes=1, input_axes=1, label="causal_mask")


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the values averaged with weights `softmax(scores)` over the positions of the keys.

    Shapes: queries `...,s|h,d`, keys `...,t|h,d` and values `...,t|h,e` to `...,s|h,e`; the mask
    broadcasts to the scores, `...,s|t->h`.

    Queries are to be scaled by the caller. A query with all positions masked gets the mean of the
    values.
    """
    scores = einsum(SCORES, queries, keys)
    if mask is not None:
        scores = where(mask, scores, _masked_score(scores.dtype))
    attended: Tensor = einsum(ATTENDED, softmax(OVER_KEYS, scores), values)
    return attended


def _masked_score(dtype: DType) -> float:
    """Return the score of a masked position, within the range of the format."""
    if dtype not in SHORT_RANGE:
        return -_EXCLUDED
    return -constant_limit(dtype, settings.current().half_constant_cutoff) / 2


@op
def multi_head_attention(
    x: Tensor,
    mask: Tensor | None = None,
    memory: Tensor | None = None,
    *,
    heads: int,
    width: int,
    output: Sequence[int] | None = None,
) -> Tensor:
    """Return scaled dot-product attention with several heads, from a sequence to itself or to
    another.

    Shapes: `...,s|n` to `...,s|m`, where the last batch axis counts positions. Parameters: `w_q`,
    `w_k` and `w_v` of shape `n->heads,width`, and `w_o` of shape `heads,width->m`.

    Args:
        x: The sequence of the queries.
        mask: Not 0 at allowed pairs of positions, with a shape that broadcasts to `...,s|t->heads`,
            such as that of `causal_mask`.
        memory: The sequence of the keys and values, `...,t|k`; `x` itself by default.
        heads: The number of heads.
        width: The length of queries, keys and values, for each head.
        output: The axes of the result; inferred from its use when not given.
    """
    source = x if memory is None else memory
    queries = (param("w_q", output=[heads, width]) @ x) * (1 / math.sqrt(width))
    keys = param("w_k", output=[heads, width]) @ source
    values = param("w_v", output=[heads, width]) @ source
    result: Tensor = param("w_o", output=output) @ attention(queries, keys, values, mask)
    return result
