"""Products of matrices: square, tall, wide, odd, transposed and batched."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import ocannl_core as oc
from workloads.functions import Array, Function


def workloads() -> Iterator[Function]:
    """Yield the products, square ones first."""
    for size in (64, 128, 256, 512, 1024, 2048):
        yield _product(f"square {size}", "ij;jk=>ik", (size, size), (size, size))
    yield _product("odd 100 x 37 x 61", "ij;jk=>ik", (100, 37), (37, 61))
    yield _product("tall 4096 x 64 x 64", "ij;jk=>ik", (4096, 64), (64, 64))
    yield _product("wide 64 x 64 x 4096", "ij;jk=>ik", (64, 64), (64, 4096))
    yield _product("long sum 64 x 4096 x 64", "ij;jk=>ik", (64, 4096), (4096, 64))
    yield _product("first transposed", "ji;jk=>ik", (512, 512), (512, 512))
    yield _product("second transposed", "ij;kj=>ik", (512, 512), (512, 512))
    yield _product("both transposed", "ji;kj=>ik", (512, 512), (512, 512))
    yield _product("batched", "bij;bjk=>bik", (64, 128, 32), (64, 32, 128))
    yield _product("batched, second transposed", "bij;bkj=>bik", (64, 128, 32), (64, 128, 32))
    yield _product("matrix and vector", "ij;j=>i", (1024, 1024), (1024,))


def _product(name: str, spec: str, left: tuple[int, ...], right: tuple[int, ...]) -> Function:
    first, second = spec.split("=>")[0].split(";")
    transposed = first.endswith("i"), second.endswith("kj")
    extents = dict(zip(first + second, (*left, *right), strict=True))
    return Function(
        name=f"product, {name}",
        arrays=partial(_arrays, left, right),
        own=lambda a, b: oc.einsum(spec, a, b),
        torch=partial(_in_torch, transposed=transposed),
        jax=partial(_in_jax, transposed=transposed),
        tinygrad=partial(_in_tinygrad, transposed=transposed),
        pytensor=partial(_product_of, transposed=transposed),
        numpy=partial(_in_numpy, transposed=transposed),
        exact=partial(_exact, transposed=transposed),
        flops=2.0 * float(np.prod(list(extents.values()))),
    )


_Transposed = tuple[bool, bool]


def _arrays(left: tuple[int, ...], right: tuple[int, ...]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {"a": left, "b": right}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _views(a: Any, b: Any, transposed: _Transposed) -> tuple[Any, Any]:
    """Return the operands as products of matrices take them, without moving any cells."""
    if transposed[0]:
        a = a.swapaxes(-1, -2)
    if transposed[1]:
        b = b.swapaxes(-1, -2)
    return a, b


def _product_of(a: Any, b: Any, *, transposed: _Transposed) -> Any:
    a, b = _views(a, b, transposed)
    return a @ b


def _in_tinygrad(a: Any, b: Any, *, transposed: _Transposed) -> Any:
    return (a.transpose(-1, -2) if transposed[0] else a) @ (
        b.transpose(-1, -2) if transposed[1] else b
    )


def _in_numpy(a: Any, b: Any, *, out: Any, transposed: _Transposed) -> Any:
    return np.matmul(*_views(a, b, transposed), out=out)


def _exact(a: Any, b: Any, *, transposed: _Transposed) -> Any:
    return _product_of(a.astype(np.float64), b.astype(np.float64), transposed=transposed)


def _in_torch(a: Any, b: Any, *, transposed: _Transposed) -> Any:
    import torch

    return torch.matmul(*_views(a, b, transposed))


def _in_jax(a: Any, b: Any, *, transposed: _Transposed) -> Any:
    import jax.numpy as jnp

    return jnp.matmul(*_views(a, b, transposed), precision="highest")
