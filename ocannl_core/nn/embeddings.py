"""Embeddings: rows of a trained table, and positions in a sequence, which is the last batch axis.

Positions are sinusoids, a learned table, or rotations.
"""

from __future__ import annotations

import math
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.numbers.dtypes import float32, float64, int32
from ocannl_core.nn.sizes import last_size, positive_integers, with_shape_of
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.models.parameters import param
from ocannl_core.tensor.operations.axes import require_shape
from ocannl_core.tensor.operations.contractions import concat, einsum, interleave
from ocannl_core.tensor.operations.literals import number, offsets
from ocannl_core.tensor.operations.positions import take
from ocannl_core.tensor.primitives.pointwise_operations import cast, cos, exp, sin


@op
def embedding(
    ids: Tensor, *, entries: int | None = None, width: int | None = None, init: Any = None
) -> Tensor:
    """Return one row of a table for every id.

    Shapes: `b|` to `b|n`, with a parameter `table` of `v` rows, of shape `v,n`. It is the product
    of one-hot vectors with the table, read and not multiplied; the gradient is added to the rows
    that were read, in the order of the ids. A layer that shares the table with the embedding is
    `oc.einsum("...|n; |v,n => ...|v", x, table)`.

    Args:
        ids: Integers from 0 to `entries - 1`; others are errors when the routine runs.
        entries: The number of rows `v`; inferred from other uses of the table when not given.
        width: The size `n`; inferred from the use of the result when not given.
        init: The initial value of the table, as for `oc.param`. By default it is uniform, centered,
            of variance 1: a row is the image of a one-hot vector, which has a fan-in of 1.
    """
    for name, size in (("entries", entries), ("width", width)):
        if size is not None:
            rule = "The sizes of an embedding are positive integers."
            fix = f"{name}=64, or leave it out where the use of the embedding decides it"
            positive_integers([size], rule, f"{name}={size!r}", fix)
    rows, cells = ("_" if size is None else str(size) for size in (entries, width))
    table = require_shape(param("table", init=init), f"{rows},{cells}")
    return take(table, ids, axis=0)


Positions = Tensor | StaticIndex | int
"""The position of each cell of a sequence `...,s|`, or of the first cell alone, which may be an
argument of the routine's calls.
"""


def positions_of(given: Positions | None) -> Tensor:
    """Return positions as integers; 0, 1, ... along the last batch axis by default."""
    if isinstance(given, Tensor):
        if not given.dtype.is_integer:
            raise UsageError.at_caller(
                "Positions are integers.",
                found=f"positions of {given.dtype}",
                fix='oc.tensor(positions, dtype="int32", batch_axes=1)',
            )
        return given
    counted: Tensor = require_shape(offsets(dtype=int32, label="positions"), "_|")
    return counted if given is None else counted + number(given, dtype=int32)


def sinusoidal_positions(
    x: Tensor, positions: Positions | None = None, *, base: float = 10000.0
) -> Tensor:
    """Return `x` plus sines and cosines of its positions, at even and odd features.

    Shapes: `...,s|n` to `...,s|n`, for an even number `n` that is known. The angle of features `2
    i` and `2 i + 1` is the position times `base ** (-2 i / n)`.

    Args:
        positions: The positions; 0, 1, ... by default.
        base: The base of the wave lengths.
    """
    angles = _angles(x, positions, base, "sinusoidal_positions")
    waves = interleave(sin(angles), cos(angles))
    return with_shape_of(x, x + cast(waves, x.dtype))


@op
def learned_positions(x: Tensor, positions: Positions | None = None, *, length: int) -> Tensor:
    """Return `x` plus the row of a trained table for each position.

    Shapes: `...,s|n` to `...,s|n`; the table is a parameter of an `embedding` of `length` rows.

    Args:
        positions: The positions; 0, 1, ... by default. Positions beyond the table are errors.
        length: The greatest number of positions.
    """
    rows = embedding(positions_of(positions), entries=length)
    return with_shape_of(x, x + rows)


def rotary(
    x: Tensor,
    positions: Positions | None = None,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
) -> Tensor:
    """Return queries or keys rotated by angles that grow with the position (RoPE).

    Products of a rotated query and a rotated key depend on the distance of their positions alone.

    Shapes: `...,s|h,d` to `...,s|h,d`, for an even number `d` that is known. Pair `i` of features
    is rotated by the position times `base ** (-2 i / d)`.

    Args:
        x: Queries or keys.
        positions: The positions; 0, 1, ... by default. When decoding, that of the first cell.
        base: The base of the wave lengths.
        interleaved: False for pairs `i` and `i + d / 2`, as in GPT-NeoX and in Llama of Hugging
            Face; True for neighbors `2 i` and `2 i + 1`, as in the paper, GPT-J and Meta's Llama.
    """
    angles = _angles(x, positions, base, "rotary")
    half = last_size(x, "rotary") // 2
    cosine, sine = cast(cos(angles), x.dtype), cast(sin(angles), x.dtype)
    if interleaved:
        first = einsum("...|..h.., 2*i => ...|..h.., i", x)
        second = einsum("...|..h.., 2*i+1 => ...|..h.., i", x)
    else:
        sizes = {"a": half, "b": half}
        first = einsum("...|..h.., a^b => ...|..h.., a", x, values=sizes)
        second = einsum("...|..h.., a^b => ...|..h.., b", x, values=sizes)
    parts = first * cosine - second * sine, first * sine + second * cosine
    if interleaved:
        return interleave(*parts)
    return concat("...|..h.., a; ...|..h.., b => ...|..h.., a^b", *parts)


def _angles(x: Tensor, positions: Positions | None, base: float, name: str) -> Tensor:
    """Return the angle of every position and pair of features, `...,s|i`."""
    width = last_size(x, name)
    if width % 2 or width == 0 or not base > 0:
        raise UsageError.at_caller(
            f"{name} rotates pairs of features, by powers of a positive base.",
            found=f"{width} features and base={base!r}",
            fix="2 features or another even number, and base=10000.0",
        )
    dtype = float64 if x.dtype is float64 else float32
    pairs = offsets(output=[width // 2], dtype=dtype, label="pairs")
    frequencies = exp(pairs * (-2.0 * math.log(base) / width))
    return cast(positions_of(positions), dtype) * frequencies
