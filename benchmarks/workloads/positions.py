"""Rows of a table: 512 positions in a table of 20000 rows of 64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function

_ROWS, _WIDTH, _POSITIONS = 20_000, 64, 512


def workloads() -> Iterator[Function]:
    """Yield the embedding forward, and forward and backward."""
    yield _EMBEDDING
    yield replace(
        _EMBEDDING, name=f"{_EMBEDDING.name} and gradients", gradients=True, numpy=None, exact=None
    )


def _arrays() -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        "table": random.standard_normal((_ROWS, _WIDTH), dtype=np.float32),
        "ids": random.integers(0, _ROWS, _POSITIONS).astype(np.int32),
    }


def _own(table: Any, ids: Any) -> Any:
    return oc.take(table, ids)


def _torch(table: Any, ids: Any) -> Any:
    from torch.nn.functional import embedding

    return embedding(ids, table)


def _jax(table: Any, ids: Any) -> Any:
    return table[ids]


def _tinygrad(table: Any, ids: Any) -> Any:
    return table[ids]


def _pytensor(table: Any, ids: Any) -> Any:
    return table[ids]


def _numpy(table: Any, ids: Any, out: Any = None) -> Any:
    return np.take(table, ids, axis=0, out=out)


_EMBEDDING = Function(
    name="embedding of 512 positions",
    arrays=_arrays,
    own=_own,
    torch=_torch,
    jax=_jax,
    tinygrad=_tinygrad,
    pytensor=_pytensor,
    numpy=_numpy,
    exact=lambda table, ids: np.take(table, ids, axis=0),
    batch_axes={"ids": 1, "result": 1},
    result=(_POSITIONS, _WIDTH),
)
