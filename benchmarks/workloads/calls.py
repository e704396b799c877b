"""Workloads so small that calling them is all of the work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from results import OWN

import ocannl_core as oc
from workloads.functions import Array, Attempts, Contender, Function, repeat

_CELLS = 4


def _arrays() -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(_CELLS, dtype=np.float32) for name in "ab"}


def _add(a: Any, b: Any) -> Any:
    return a + b


def _numpy(a: Array, b: Array, out: Array | None) -> Array:
    found: Array = np.add(a, b, out=out)
    return found


ADDITION = Function(
    name=f"a call: {_CELLS} additions",
    arrays=_arrays,
    own=_add,
    torch=_add,
    jax=_add,
    tinygrad=_add,
    pytensor=_add,
    numpy=_numpy,
)
NOTHING = Function(
    name="a call: nothing",
    arrays=_arrays,
    own=_add,
    torch=_add,
    jax=_add,
    tinygrad=None,
    pytensor=None,
)
"""A compiled function that has no work; contenders come from `empty`."""


def expression() -> Attempts:
    """Return the additions as an expression of NumPy, which makes a new array."""

    def prepare() -> Contender:
        a, b = _arrays().values()
        return Contender(repeat(lambda: a + b), lambda: [a + b])

    return {"numpy expression": prepare}


def empty(backend: str | None, libraries: list[str]) -> Attempts:
    """Return compiled code without work: of this project, with a static index; of JAX and of
    PyTorch.
    """
    found: dict[str, Callable[[], Contender]] = {OWN: partial(_empty_routine, backend)}
    if "jax" in libraries:
        found["jax"] = _empty_in_jax
    if "torch" in libraries:
        found["torch compiled"] = _empty_in_torch
    return found


def _contender(call: Callable[[], object]) -> Contender:
    return Contender(repeat(call), list)


def _empty_routine(backend: str | None) -> Contender:
    with oc.Session():
        number = oc.static_index("minibatch", range=8)
        one = oc.tensor(np.arange(8, dtype=np.float32), batch_axes=1)[number]
        routine = oc.Context(backend).compile(oc.train.forward(one), bindings=[number])
    return _contender(lambda: routine(minibatch=3))


def _empty_in_jax() -> Contender:
    import jax

    cells = jax.numpy.ones(_CELLS)
    function = jax.jit(lambda x: x)
    return _contender(lambda: jax.block_until_ready(function(cells)))


def _empty_in_torch() -> Contender:
    import torch

    cells = torch.ones(_CELLS)
    function = torch.compile(lambda x: x)
    return _contender(lambda: function(cells))
