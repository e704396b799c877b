"""Programs of attention, and a bound of the rounding errors of their results."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import ocannl_core as oc
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.node import TensorNode
from ocannl_core.testing.compare import Array

UNIT = 2.0**-24
"""Half the distance from 1 to the next number of float32."""


@dataclass(frozen=True)
class Sizes:
    """The extents of an attention."""

    batch: int
    queries: int
    keys: int
    heads: int
    width: int
    cells: int

    @property
    def dims(self) -> dict[str, tuple[int, ...]]:
        return {
            "q": (self.batch, self.queries, self.heads, self.width),
            "k": (self.batch, self.keys, self.heads, self.width),
            "v": (self.batch, self.keys, self.heads, self.cells),
        }


def attention_program(
    sizes: Sizes, *, causal: bool = False, dtype: str = "float32", gradients: bool = False
) -> LoopProgram:
    """Return the program of an attention, optimised."""
    with oc.Session():
        if gradients:
            q, k, v = (
                oc.tensor(np.zeros(dims, np.float32), batch_axes=2, label=name, requires_grad=True)
                for name, dims in sizes.dims.items()
            )
        else:
            q, k, v = (
                oc.placeholder(name, batch=dims[:2], output=dims[2:], dtype=dtype)
                for name, dims in sizes.dims.items()
            )
        y = oc.nn.attention(q * (1 / math.sqrt(sizes.width)), k, v, causal=causal)
        code = oc.train.forward(y)
        if gradients:
            code = oc.train.grad_update(oc.einsum("...|... => 0", y * y))
        return oc.Context("interp").compile(code)._build.optimised


def random_operands(
    program: LoopProgram, sizes: Sizes, seed: int = 0, scale: float = 2.0
) -> tuple[dict[TensorNode, Array], TensorNode]:
    """Return random cells of the operands of a program, and the node of its result."""
    random = np.random.default_rng(seed)
    names = {node.label[-1]: node for node in program.params}
    arrays: dict[TensorNode, Array] = {
        names[name]: (scale * random.normal(size=dims)).astype(np.float32)
        for name, dims in sizes.dims.items()
    }
    (result,) = [node for node in program.params if node.label[-1] not in sizes.dims]
    return arrays, result


def expected(
    cells: list[NDArray[np.float32]], *, causal: bool, tiles: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return exact results of queries, keys and values, and the bound of the errors of float32.

    Args:
        cells: The queries, keys and values.
        causal: True if queries have the keys up to their own position only.
        tiles: The tiles of keys, in each of which a maximum may change.
    """
    q, k, v = (each.astype(np.float64) for each in cells)
    q = q / math.sqrt(q.shape[-1])
    scores = np.einsum("bshd,bthd->bsht", q, k)
    sizes = np.einsum("bshd,bthd->bsht", abs(q), abs(k))
    if causal:
        seen = np.arange(k.shape[1])[None] <= np.arange(q.shape[1])[:, None]
        scores = np.where(seen[None, :, None], scores, -np.inf)
        sizes = np.where(seen[None, :, None], sizes, 0.0)
    greatest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - greatest)
    weights /= weights.sum(-1, keepdims=True)
    terms, count = q.shape[-1] + 2, k.shape[1]
    # of a score; of the maximum, which is one; of differences; of functions and sums
    distance = np.where(weights > 0, greatest - scores, 0.0)
    error = 2 * terms * sizes.max(-1, keepdims=True) + distance + 4 * tiles + 2 * count + 16
    share = UNIT * (error * weights)
    total = share.sum(-1, keepdims=True)
    bound = np.einsum("bsht,bthe->bshe", share + total * weights, abs(v))
    return np.einsum("bsht,bthe->bshe", weights, v), 1.01 * bound + 1e-37
