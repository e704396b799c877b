"""Programs of attention, and a bound of the rounding errors of their results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ocannl_core as oc
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import TensorNode
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


def attention_program(sizes: Sizes, *, causal: bool = False, dtype: str = "float32") -> LoopProgram:
    """Return the program of an attention, optimized."""
    with oc.Session():
        q, k, v = (
            oc.placeholder(name, batch=dims[:2], output=dims[2:], dtype=dtype)
            for name, dims in sizes.dims.items()
        )
        y = oc.nn.attention(q * (1 / math.sqrt(sizes.width)), k, v, causal=causal)
        return oc.Context("interp").compile(oc.train.forward(y))._build.program.loops


def gradient_program(
    sizes: Sizes, *, causal: bool = False, dtype: str = "float32"
) -> tuple[LoopProgram, dict[str, TensorNode]]:
    """Return the program of the gradients of an attention, optimized, and its parameters by name.

    The loss is the sum of results times `g`.
    """
    with oc.Session():
        q, k, v = operands = [
            oc.tensor(
                np.zeros(dims, np.float32),
                batch_axes=2,
                label=name,
                requires_grad=True,
                dtype=dtype,
            )
            for name, dims in sizes.dims.items()
        ]
        g = oc.placeholder(
            "g", batch=(sizes.batch, sizes.queries), output=(sizes.heads, sizes.cells), dtype=dtype
        )
        y = oc.nn.attention(q * (1 / math.sqrt(sizes.width)), k, v, causal=causal)
        loss = oc.einsum("...|... => 0", y * g)
        gradients = [each.grad for each in operands if each.grad is not None]
        code = oc.train.grad_update(loss)
        program = oc.Context("interp").compile(code, keep=[loss, *gradients])._build.program.loops
    names = {}
    for node in program.params:
        is_gradient = node.label[-1] == "grad"
        names["d" + node.label[-2] if is_gradient else node.label[-1]] = node
    return program, names


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
    weights, share = _weights(q / math.sqrt(q.shape[-1]), k, causal=causal, tiles=tiles)
    bound = np.einsum("bsht,bthe->bshe", share, abs(v))
    return np.einsum("bsht,bthe->bshe", weights, v), 1.01 * bound + 1e-37


def _weights(
    q: NDArray[np.float64], k: NDArray[np.float64], *, causal: bool, tiles: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return exact weights, and the bound of their errors."""
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
    return weights, share + share.sum(-1, keepdims=True) * weights


def expected_gradients(
    cells: Mapping[str, NDArray[np.float32]], *, causal: bool, tiles: int
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Return exact gradients by queries, keys and values, and the bounds of the errors of float32.

    Args:
        cells: The queries, keys, values, and factors `g` of the results in the loss.
        causal: True if queries have the keys up to their own position only.
        tiles: The tiles of keys, in each of which a maximum may change.
    """
    q, k, v, g = (cells[name].astype(np.float64) for name in "qkvg")
    scale = 1 / math.sqrt(q.shape[-1])
    weights, share = _weights(scale * q, k, causal=causal, tiles=tiles)
    rows, columns, width = weights.shape[1], weights.shape[3], v.shape[-1] + 2
    slopes = np.einsum("bshe,bthe->bsht", g, v)
    slope_sizes = np.einsum("bshe,bthe->bsht", abs(g), abs(v))
    results = np.einsum("bsht,bthe->bshe", weights, v)
    result_errors = np.einsum("bsht,bthe->bshe", share, abs(v))
    means = np.einsum("bshe,bshe->bsh", g, results)[..., None]
    mean_sizes = np.einsum("bshe,bshe->bsh", abs(g), abs(results))[..., None]
    mean_errors = np.einsum("bshe,bshe->bsh", abs(g), result_errors)[..., None]
    difference = weights * (slopes - means)
    sizes = weights * (slope_sizes + mean_sizes)
    # of the weight, of both terms of the difference, and of operations with them
    error = share * (abs(slopes) + abs(means)) + weights * mean_errors + UNIT * (width + 10) * sizes

    def of(
        pattern: str, factor: NDArray[np.float64], errors: NDArray[np.float64], other: Any, n: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        exact = np.einsum(pattern, factor, other)
        bound = np.einsum(pattern, errors + UNIT * (n + 4) * abs(factor), abs(other))
        return exact, 1.01 * bound + 1e-37

    return {
        "dq": of("bsht,bthd->bshd", scale * difference, scale * error, k, columns),
        "dk": of("bsht,bshd->bthd", difference, error, scale * q, rows),
        "dv": of("bsht,bshe->bthe", weights, share, g, rows),
    }
