"""No kernel of much work is plain loops, in any case of the survey, any network of the benchmarks,
and any pair of common operations. The tests of the examples check their kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn
from tests.support.plain_loops import unexplained
from tests.support.survey import CASES, WORKLOADS, plan_of, plan_of_workload, plans_of

pytest.importorskip("ocannl_cpu_c")


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_the_survey_have_schedules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for plan in plans_of(CASES[name], monkeypatch):
        assert unexplained(plan) == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_kernels_of_benchmarks_have_schedules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unexplained(plan_of_workload(WORKLOADS[name], monkeypatch)) == []


ROWS, WIDTH = 4096, 64


def cells(*dims: int) -> oc.Tensor:
    numbers = np.random.default_rng(0).standard_normal((ROWS, *dims), np.float32)
    return oc.tensor(numbers, batch_axes=1, label="x", requires_grad=True)


def positions(count: int) -> oc.Tensor:
    numbers = np.random.default_rng(0).integers(0, count, ROWS).astype(np.int32)
    return oc.tensor(numbers, batch_axes=1, label="ids")


def backwards() -> oc.Tensor:
    return oc.tensor(np.arange(WIDTH, dtype=np.int32)[::-1], batch_axes=0, label="ids")


def rows(x: oc.Tensor) -> oc.Tensor:
    return oc.reshape(x, batch=[ROWS], output=[WIDTH])


def two_gates(x: oc.Tensor) -> oc.Tensor:
    return oc.tanh(x) * oc.sigmoid(x)


def residual(x: oc.Tensor) -> oc.Tensor:
    return x + nn.dense(oc.relu(x), output=[WIDTH])


def gated(x: oc.Tensor) -> oc.Tensor:
    return oc.silu(nn.dense(x, output=[48])) * oc.silu(x[:, :1])


def self_attention(x: oc.Tensor) -> oc.Tensor:
    heads = oc.reshape(x, batch=[ROWS // 32, 32], output=[4, WIDTH // 4])
    return nn.attention(heads, heads, heads)


PRODUCERS: dict[str, Callable[[], oc.Tensor]] = {
    "cells": lambda: cells(WIDTH),
    "embedding": lambda: nn.embedding(positions(30), entries=30, width=WIDTH),
    "take": lambda: oc.take(cells(WIDTH), positions(ROWS), axis=0),
    "mask": lambda: oc.where(cells(WIDTH) > 0, cells(WIDTH), 0.0),
    "flip": lambda: oc.flip(cells(WIDTH), 1),
    "columns": lambda: oc.take(cells(WIDTH), backwards(), axis=1),
    "every third": lambda: cells(3 * WIDTH)[:, ::3],
    "frame": lambda: rows(oc.pad(cells(6, 6), [(0, 0), (1, 1), (1, 1)])),
    "rolled": lambda: rows(oc.roll(cells(2, WIDTH // 2), 1, axis=1)),
    "silu": lambda: oc.silu(cells(WIDTH)),
    "gelu": lambda: oc.gelu(cells(WIDTH)),
    "softplus": lambda: oc.softplus(cells(WIDTH)),
    "gates": lambda: two_gates(cells(WIDTH)),
    "dense": lambda: nn.dense(cells(WIDTH), output=[WIDTH]),
    "layer_norm": lambda: nn.layer_norm(cells(WIDTH)),
    "cumsum": lambda: oc.cumsum(cells(WIDTH), axis=1),
    "dropout": lambda: nn.dropout(cells(WIDTH), rate=0.1),
    "concat": lambda: oc.concat([cells(3), cells(WIDTH - 3)], axis=1),
    "slice": lambda: oc.concat([cells(WIDTH), cells(WIDTH)], axis=1)[:, 3 : 3 + WIDTH],
    "roots": lambda: cells(WIDTH) ** 3 + oc.sqrt(oc.abs(cells(WIDTH)) + 1),
    "bfloat16": lambda: oc.cast(cells(WIDTH), "bfloat16"),
}
CONSUMERS: tuple[Callable[[oc.Tensor], oc.Tensor], ...] = (
    oc.tanh,
    lambda x: nn.dense(x, output=[48]),
    lambda x: oc.tanh(nn.dense(x, output=[48])),
    lambda x: nn.cross_entropy(x, positions(WIDTH)),
    lambda x: oc.softmax(x, axis=1),
    nn.layer_norm,
    lambda x: oc.sum(x * x, axis=1),
    lambda x: oc.max(x, axis=1),
    self_attention,
    residual,
    lambda x: oc.where(cells(1) > 0, x, -1.0),
    lambda x: oc.std(x, axis=1),
    lambda x: oc.log(oc.abs(x) + 1e-3) / oc.exp(x),
    gated,
)


def compile_pair(
    producer: Callable[[], oc.Tensor], consumer: Callable[[oc.Tensor], oc.Tensor], *, trains: bool
) -> None:
    found = consumer(producer())
    wide = oc.cast(found, "float32")
    done = oc.train.grad_update(oc.mean(wide * oc.sin(wide))) if trains else oc.train.forward(found)
    oc.Context("cpu_c").compile(done)


@pytest.mark.parametrize("name", PRODUCERS)
def test_kernels_of_two_operations_have_schedules(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward passes and gradients by turns, which both have kernels of their own."""
    for number, consumer in enumerate(CONSUMERS, list(PRODUCERS).index(name)):
        with oc.Session(seed=0):
            compiles = partial(compile_pair, PRODUCERS[name], consumer, trains=number % 2 == 0)
            assert unexplained(plan_of(compiles, monkeypatch)) == [], number
