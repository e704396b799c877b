"""Cumulative sums, sorting and selection of the largest, along the rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function

_SHAPE = (256, 4096)
_LARGEST = 16


def workloads() -> Iterator[Function]:
    """Yield the three functions."""
    yield from (_CUMULATIVE_SUM, _SORT, _LARGEST_CELLS)


def _arrays() -> dict[str, Array]:
    return {"x": np.random.default_rng(0).standard_normal(_SHAPE, dtype=np.float32)}


def _cumulative_sum_torch(x: Any) -> Any:
    import torch

    return torch.cumsum(x, -1)


def _cumulative_sum_jax(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.cumsum(x, -1)


_CUMULATIVE_SUM = Function(
    name="cumulative sum",
    arrays=_arrays,
    own=lambda x: oc.cumsum(x, axis=-1),
    torch=_cumulative_sum_torch,
    jax=_cumulative_sum_jax,
    tinygrad=lambda x: x.cumsum(-1),
    pytensor=None,
    numpy=lambda x, out=None: np.cumsum(x, -1, out=out),
    exact=lambda x: np.cumsum(x, -1, dtype=np.float64),
    batch_axes={"x": 1, "result": 1},
)


def _sort_torch(x: Any) -> Any:
    import torch

    return torch.sort(x, -1).values


def _sort_jax(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sort(x, -1)


def _sort_numpy(x: Any, out: Any = None) -> Any:
    if out is None:
        return np.sort(x, -1)
    np.copyto(out, x)
    out.sort(-1)
    return out


_SORT = Function(
    name="sort",
    arrays=_arrays,
    own=lambda x: oc.sort(x, axis=-1),
    torch=_sort_torch,
    jax=_sort_jax,
    tinygrad=lambda x: x.sort(-1)[0],
    pytensor=None,
    numpy=_sort_numpy,
    exact=lambda x: np.sort(x, -1),
    batch_axes={"x": 1, "result": 1},
)


def _largest_torch(x: Any) -> Any:
    import torch

    return torch.topk(x, _LARGEST, -1).values


def _largest_jax(x: Any) -> Any:
    import jax

    return jax.lax.top_k(x, _LARGEST)[0]


_LARGEST_CELLS = Function(
    name=f"{_LARGEST} largest",
    arrays=_arrays,
    own=lambda x: oc.topk(x, _LARGEST, axis=-1)[0],
    torch=_largest_torch,
    jax=_largest_jax,
    tinygrad=lambda x: x.topk(_LARGEST, -1)[0],
    pytensor=None,
    exact=lambda x: np.flip(np.sort(x, -1)[:, -_LARGEST:], -1),
    batch_axes={"x": 1, "result": 1},
)
