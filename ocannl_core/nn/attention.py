"""Attention with several heads, and the keys and values that decoding keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import is_whole
from ocannl_core.ir.numbers.dtypes import SHORT_RANGE, DType, constant_limit, int32, saturate
from ocannl_core.nn.attention_weights import note_weights
from ocannl_core.nn.embeddings import Positions, positions_of, rotary
from ocannl_core.nn.layers import dropout as drop
from ocannl_core.nn.sizes import last_size, require_axes
from ocannl_core.nn.statistics import softmax
from ocannl_core.shape.language.shape_terms import Size
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Literal as LiteralCells
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.models.parameters import Axes, declare, param
from ocannl_core.tensor.operations.axes import require_shape
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.literals import number, offsets, tensor
from ocannl_core.tensor.operations.positions import take
from ocannl_core.tensor.primitives import pointwise_operations as pointwise

SCORES = "... s | h d; ... t | h d => ... s | t -> h"
OVER_KEYS = "... s | t -> ... => ... s | 0 -> ..."
ATTENDED = "... s | t -> h; ... t | h e => ... s | h e"
GROUPED_SCORES = "... s | h g d; ... t | h d => ... s | t -> h g"
GROUPED_ATTENDED = "... s | t -> h g; ... t | h e => ... s | h g e"
_EXCLUDED = 1e9
"""Minus the score of a masked position: its weight is 0 beside any other score."""

_SEQUENCE = -3
"""The axis of positions of keys and values, `...,t|h,d`."""

KeysAndValues = tuple[Tensor, Tensor]
"""The keys and the values of a layer, `...,t|h,d`."""


def causal_mask(length: int) -> Tensor:
    """Return the causal mask: 1 at a position itself and at earlier positions, else 0.

    The shape is `length|length->`: a batch axis of queries, an input axis of keys.
    """
    if isinstance(length, bool) or length < 1:
        raise UsageError.at_caller("A mask has at least one position.", found=f"length={length}")
    cells = np.tril(np.ones((length, length), np.uint8))
    return tensor(cells, batch_axes=1, input_axes=1, label="causal_mask")


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    position: Positions | None = None,
    grouped: bool = False,
    window: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the values averaged with weights `softmax(scores)` over the positions of the keys.

    Shapes: queries `...,s|h,d`, keys `...,t|h,d` and values `...,t|h,e` to `...,s|h,e`; the mask
    broadcasts to the scores, `...,s|t->h`.

    Queries are to be scaled by the caller. A query with all positions masked gets the mean of the
    values. With `causal` alone there is no such query.

    Args:
        mask: Not 0 at allowed pairs of positions; the positions of the keys are its input axis.
        causal: True to allow keys only up to the position of the query.
        position: The positions of the queries; 0, 1, ... by default.
        grouped: True for queries `...,s|h,g,d` in groups: `g` queries share a head of the keys and
            values. The result is `...,s|h,g,e`.
        window: With `causal`, the number of keys that a query attends to: its own and those before;
            None for all.
        dropout: The rate at which weights are dropped in training.
    """
    if isinstance(mask, Tensor):
        _check_mask(mask)
    _check_window(window, causal=causal)
    scores = einsum(GROUPED_SCORES if grouped else SCORES, queries, keys)
    if causal:
        key_positions = require_shape(offsets(dtype=int32, label="key_positions"), "|_->")
        own_positions = positions_of(position)
        allowed = pointwise.less_equal(key_positions, own_positions)
        if window is not None:
            is_near = pointwise.less(own_positions - window, key_positions)
            allowed = pointwise.logical_and(allowed, is_near)
        has_infinity = math.isinf(saturate(-math.inf, scores.dtype))
        if mask is None and position is None and has_infinity:
            # every query has a key at its position or before, whose score is a number
            scores = pointwise.where(allowed, scores, -math.inf)
        else:
            mask = allowed if mask is None else pointwise.where(mask, allowed, 0)
    if mask is not None:
        scores = pointwise.where(mask, scores, _masked_score(scores.dtype))
    weights = softmax(OVER_KEYS, scores)
    note_weights(weights, grouped=grouped)
    if dropout:
        weights = drop(weights, rate=dropout)
    return einsum(GROUPED_ATTENDED if grouped else ATTENDED, weights, values)


def _check_window(window: int | None, *, causal: bool) -> None:
    if window is not None and (not is_whole(window) or window < 1 or not causal):
        raise UsageError.at_caller(
            "A window of causal attention has at least one position, the own one of a query.",
            found=f"window={window!r}, causal={causal!r}",
            fix="window=4096, causal=True; other windows are a mask=",
        )


def _check_mask(mask: Tensor) -> None:
    """Refuse masks of other shapes, which broadcasting would take, and masks that are added."""
    require_axes(
        mask,
        "...|_->...",
        "A mask of attention has one input axis, the positions of the keys.",
        "oc.tensor(mask, batch_axes=1, input_axes=1) of the axes queries, keys; for padding "
        "oc.reshape(oc.tensor(mask), batch=[b, 1], input=[t], output=[])",
    )
    definition = mask.definition
    if isinstance(definition, LiteralCells) and (definition.array < 0).any():
        raise UsageError.at_caller(
            "A mask of attention is 0 at excluded pairs of positions, and 1 at the others.",
            found=f"{mask.describe()}, with {definition.array.min()}",
            fix="of numbers that other libraries add to scores, mask == 0 are the allowed pairs",
        )


def _masked_score(dtype: DType) -> float:
    """Return the score of a masked position, within the range of the format."""
    if dtype not in SHORT_RANGE:
        return -_EXCLUDED
    return -constant_limit(dtype, settings.current().half_constant_cutoff) / 2


@op
def multi_head_attention(
    x: Tensor,
    mask: Tensor | None = None,
    memory: Tensor | KeysAndValues | None = None,
    cache: KeysAndValues | None = None,
    position: Positions | None = None,
    values: Tensor | None = None,
    *,
    heads: int,
    width: int | None = None,
    output: Sequence[int] | None = None,
    kv_heads: int | None = None,
    bias: bool | Literal["qkv"] = False,
    causal: bool = False,
    window: int | None = None,
    rotary_base: float | None = None,
    interleaved: bool = False,
    dropout: float = 0.0,
) -> Any:
    """Return scaled dot-product attention with several heads, from a sequence to itself or to
    another.

    Shapes: `...,s|n` to `...,s|m`, where the last batch axis counts positions. Parameters: `w_q`,
    `w_k` and `w_v` of shape `n->heads,width`, and `w_o` of shape `heads,width->m`; with a bias also
    `b_q`, `b_k`, `b_v` and `b_o`, 0 at first. With groups, `w_q` is `n->kv_heads,g,width` for `g`
    queries that share keys and values, which are `n->kv_heads,width`.

    Args:
        x: The sequence of the queries.
        mask: Not 0 at allowed pairs of positions, with a shape that broadcasts to `...,s|t->heads`,
            such as `causal_mask(length)`.
        memory: The sequence of the keys and values, `...,t|k`; `x` itself by default. A pair is
            taken as the keys and values themselves, `...,t|heads,width`, as an earlier call
            returned them.
        cache: Keys and values of other positions, `...,t|heads,width`. The result is then a pair:
            the attended values, and the keys and values of the sequence. Without a position, `x` is
            the beginning of the sequence, and the cache is not read.
        position: The position of the first cell of `x`, or the positions of its cells; 0, 1, ... by
            default. Beside a cache, the position of the first cell.
        values: The sequence of the values, `...,t|k`; the sequence of the keys by default.
        heads: The number of heads of the queries.
        width: The length of queries, keys and values, for each head; by default the length of `x`
            divided by the heads.
        output: The axes of the result; inferred from its use when not given.
        kv_heads: The number of heads of the keys and values, which divides `heads`.
        bias: True to add a bias to each of the four products, "qkv" to those of queries, keys and
            values alone.
        causal: True to allow keys only up to the position of the query.
        window: The number of positions up to its own one that a query attends to, of a causal
            attention; None for all.
        rotary_base: The base of rotations of queries and keys, as for `rotary`; None for none.
        interleaved: The convention of the rotations, as for `rotary`.
        dropout: The rate at which weights are dropped in training.
    """
    groups = _groups(heads, kv_heads)
    if not isinstance(bias, bool) and bias != "qkv":
        raise UsageError.at_caller(
            "A bias is added to all products of an attention, to none, or to queries, keys and "
            "values.",
            found=f"bias={bias!r}",
            fix='bias=True, bias=False or bias="qkv"',
        )
    for sequence in (x, memory, values):
        if isinstance(sequence, Tensor):
            require_axes(
                sequence,
                "..., _|_",
                "The last batch axis of a sequence counts positions; there is one output axis.",
                'oc.tensor(x, batch_axes=2), or oc.placeholder("x", batch=[b, s], output=[n])',
            )
    width = width_of_heads(x, heads, width, "multi_head_attention")
    source = x if memory is None else memory
    own = [heads, width] if kv_heads is None else [kv_heads, width]
    asked = [heads, width] if kv_heads is None else [kv_heads, groups, width]

    def turned(cells: Tensor) -> Tensor:
        if rotary_base is None:
            return cells
        return rotary(cells, position, base=rotary_base, interleaved=interleaved)

    queries = turned(_projected("q", x, asked, bool(bias)))
    if isinstance(source, tuple):
        rows = source
    else:
        keys = turned(_projected("k", source, own, bool(bias)))
        rows = keys, _projected("v", source if values is None else values, own, bool(bias))
    found = rows
    if cache is not None and position is not None:
        keys, cached = (_with_rows(*each, position) for each in zip(cache, rows, strict=True))
        found = keys, cached
    attended = attention(
        queries * (1 / math.sqrt(width)),
        *found,
        mask,
        causal=causal,
        position=position,
        grouped=kv_heads is not None,
        window=window,
        dropout=dropout,
    )
    result = _projected("o", attended, output, bias is True)
    return result if cache is None else (result, rows)


def _projected(name: str, x: Tensor, output: Sequence[int] | None, bias: bool) -> Tensor:
    result: Tensor = param(f"w_{name}", output=output) @ x
    return result + param(f"b_{name}", output=output, input=[], init=0.0) if bias else result


def _groups(heads: int, kv_heads: int | None) -> int:
    """Return the number of queries that share keys and values."""
    shared = heads if kv_heads is None else kv_heads
    if heads < 1 or shared < 1 or heads % shared:
        raise UsageError.at_caller(
            "The heads of keys and values divide those of queries.",
            found=f"heads={heads!r}, kv_heads={kv_heads!r}",
            fix="heads=8, kv_heads=2",
        )
    return heads // shared


def width_of_heads(x: Tensor, heads: int, width: int | None, name: str) -> int:
    """Return the length of queries, keys and values for each head."""
    if width is not None:
        return width
    size = last_size(x, name)
    if size % heads:
        raise UsageError.at_caller(
            "Without width=, the heads divide the length of the input.",
            found=f"{heads} heads and a length of {size}",
            fix=f"width={max(1, size // heads)} for the length of each head",
        )
    return size // heads


def _with_rows(cached: Tensor, rows: Tensor, position: Positions) -> Tensor:
    """Return cached keys or values, the rows from a position on replaced, to be read in place."""
    places = require_shape(offsets(dtype=int32, label="cached_positions"), "_|")
    count = _count(rows)
    first = position if isinstance(position, Tensor) else number(position, dtype=int32)
    if count == 1:
        return pointwise.where(pointwise.equal(places, first), rows, cached)
    own = places - first
    chosen = take(rows, pointwise.minimum(pointwise.maximum(own, 0), count - 1), axis=_SEQUENCE)
    is_own = pointwise.logical_and(pointwise.less_equal(0, own), pointwise.less(own, count))
    return pointwise.where(is_own, chosen, cached)


def _count(rows: Tensor) -> int:
    """Return the number of positions of keys or values, which becomes final: 1 where it is not
    known yet, as in the slice of one token.
    """
    axes = rows.shape.batch.trailing
    size = axes[-1] if axes else None
    count = size.n if isinstance(size, Size) else 1
    require_shape(rows, f"..., {count}|...")
    return count


@dataclass(frozen=True, slots=True, eq=False)
class KeyValueCache:
    """The keys and values of all layers of a decoder, kept between the calls of a routine.

    Attributes:
        keys: The keys, `layers,...,length|heads,width`.
        values: The values, `layers,...,length|heads,width`.
        memory: The keys and values of the memory, `layers,...,positions|heads,width`, of a decoder
            that attends to one; else None.
    """

    keys: Tensor
    values: Tensor
    memory: KeysAndValues | None = None

    def write(self, rows: KeysAndValues, position: Positions | None) -> None:
        """Record the assignment of keys and values of all layers to their positions.

        Args:
            rows: Keys and values of neighboring positions.
            position: The first of them; None for the beginning of the sequence.

        Raises:
            UsageError: outside of recorded code.
        """
        _require_recorder()
        if isinstance(position, Tensor):
            raise UsageError.at_caller(
                "A cache is written at a position that the call of the routine states.",
                found=f"the tensor {position!r}",
                fix='position=oc.static_index("i"), in bindings=[i] of ctx.compile',
            )
        for cached, row in zip((self.keys, self.values), rows, strict=True):
            if position is None:
                count = row.shape.batch.trailing[-1]
                cached[..., 0 : getattr(count, "n", None), :, :] = row
            else:
                cached[..., position : position + _count(row), :, :] = row

    def write_memory(self, rows: KeysAndValues) -> None:
        """Record the assignment of the keys and values of the memory, of all layers.

        Raises:
            UsageError: outside of recorded code.
        """
        _require_recorder()
        assert self.memory is not None
        for cached, row in zip(self.memory, rows, strict=True):
            cached[:] = row


def _require_recorder() -> None:
    if sessions.current().recorder is None:
        raise UsageError.at_caller(
            "A cache is written in place, which is recorded code.",
            found="a model applied to a cache in an expression",
            fix="apply it in a function decorated with @oc.cd, and compile that",
        )


def key_value_cache(
    *,
    layers: int,
    length: Any,
    heads: int,
    width: int,
    batch: Axes = (),
    memory: Any = None,
    memory_heads: int | None = None,
    dtype: DType | str | None = None,
) -> KeyValueCache:
    """Return an empty cache for the keys and values of a decoder.

    Args:
        layers: The number of layers.
        length: The number of positions, a constant: parts of an extent are not written.
        heads: The number of heads of the keys and values.
        width: The length of keys and values, for each head.
        batch: The batch axes of the sequences.
        memory: The number of positions of the memory, whose keys and values are kept, too; None for
            a decoder without one.
        memory_heads: The number of heads of the memory's keys and values, if it differs.
        dtype: The number format.
    """
    axes = [batch] if isinstance(batch, int) else list(batch)  # type: ignore[arg-type]

    def pair(prefix: str, positions: Any, count: int) -> KeysAndValues:
        shape: dict[str, Any] = {"batch": [layers, *axes, positions], "output": [count, width]}
        keys, values = (
            declare(f"{prefix}{name}", **shape, input=(), dtype=dtype)
            for name in ("keys", "values")
        )
        return keys, values

    kept = None if memory is None else pair("memory_", memory, memory_heads or heads)
    return KeyValueCache(*pair("", length, heads), kept)
