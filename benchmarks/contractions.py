"""Matrix products and convolutions, compiled, in NumPy, and in PyTorch and JAX where these are
installed.

Every contender gets the same arrays, must agree with a product in double precision before it is
timed, and writes its result into memory that it owns already where it can.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness  # before NumPy: it limits the threads

if harness.THREADS == 1:
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )

import numpy as np  # isort: skip

import ocannl_core as oc

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """One contraction.

    Attributes:
        name: What it is, for readers.
        spec: The specification for the compiler.
        einsum: The same for NumPy and PyTorch; empty for a convolution of images `n|h,w,c`.
        shapes: The shapes of both operands.
        gradients: True to compute the gradients of the sum of all squares, too.
    """

    name: str
    spec: str
    einsum: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    gradients: bool = False


_PRODUCT = ("ij;jk=>ik", "ij,jk->ik")
_CONVOLUTION = "n,1*y<+1*v,1*x<+1*u,c; o,v,u,c => n,y,x,o"


def works() -> Iterator[Work]:
    """Yields the contractions, smallest first."""
    for size in (64, 128, 256, 512, 1024, 2048):
        yield Work(f"square {size}", *_PRODUCT, ((size, size), (size, size)))
    yield Work("odd 100 x 37 x 61", *_PRODUCT, ((100, 37), (37, 61)))
    yield Work("tall 4096 x 64 x 64", *_PRODUCT, ((4096, 64), (64, 64)))
    yield Work("wide 64 x 64 x 4096", *_PRODUCT, ((64, 64), (64, 4096)))
    yield Work("long sum 64 x 4096 x 64", *_PRODUCT, ((64, 4096), (4096, 64)))
    yield Work("first transposed", "ji;jk=>ik", "ji,jk->ik", ((512, 512), (512, 512)))
    yield Work("second transposed", "ij;kj=>ik", "ij,kj->ik", ((512, 512), (512, 512)))
    yield Work("both transposed", "ji;kj=>ik", "ji,kj->ik", ((512, 512), (512, 512)))
    yield Work("batched", "bij;bjk=>bik", "bij,bjk->bik", ((64, 128, 32), (64, 32, 128)))
    yield Work("matrix and vector", "ij;j=>i", "ij,j->i", ((1024, 1024), (1024,)))
    yield Work("convolution 3x3", _CONVOLUTION, "", ((8, 30, 30, 64), (64, 3, 3, 64)))
    yield Work(
        "convolution and gradients", _CONVOLUTION, "", ((8, 30, 30, 64), (64, 3, 3, 64)), True
    )


def flops(work: Work) -> float:
    """Returns the multiplications and additions of a contraction."""
    left, right = work.shapes
    if not work.einsum:
        batch, height, width, _ = left
        count = float(batch * (height - 2) * (width - 2) * np.prod(right))
    else:
        inputs = work.einsum.split("->")[0].replace(",", "")
        extents = dict(zip(inputs, (*left, *right), strict=True))
        count = float(np.prod(list(extents.values())))
    return count * (6.0 if work.gradients else 2.0)


Contender = tuple[str, Callable[[], Any], Callable[[], Array]]
"""A name, what is timed, and the result."""


def compiled(work: Work, left: Array, right: Array, backend: str | None) -> Contender:
    """Returns the contraction as this project runs it."""
    with oc.Session():
        a = oc.param("a", init=oc.tensor(left))
        b = oc.param("b", init=oc.tensor(right))
        result = oc.einsum(work.spec, a, b)
        loss = oc.einsum("... => 0", result * result)
        context = oc.Context(backend)
        code = oc.train.grad_update(loss) if work.gradients else oc.train.forward(result)
        kept = [result, a.grad, b.grad] if work.gradients else [result]
        routine = context.compile(code, keep=kept)
        context.init_params(loss)
    return "compiled", routine, lambda: np.array(context[result])


def numpy_peer(work: Work, left: Array, right: Array) -> Contender | None:
    """Returns the contraction in NumPy; None for a convolution."""
    if not work.einsum:
        return None
    if work.einsum == _PRODUCT[1]:
        out = np.empty((left.shape[0], right.shape[1]), np.float32)
        return "numpy", lambda: np.matmul(left, right, out=out), lambda: left @ right

    def run() -> Array:
        found: Array = np.einsum(work.einsum, left, right, optimize=True)
        return found

    return "numpy", run, run


def torch_peer(work: Work, left: Array, right: Array) -> Contender:
    """Returns the contraction in PyTorch, images with the channels last."""
    import torch

    torch.set_num_threads(harness.THREADS)
    if work.einsum:
        a, b = torch.from_numpy(left), torch.from_numpy(right)

        def product() -> Any:
            return torch.einsum(work.einsum, a, b)

        return "torch", product, lambda: np.asarray(product())
    last = torch.channels_last
    images = torch.from_numpy(left).permute(0, 3, 1, 2).to(memory_format=last)
    weights = torch.from_numpy(right).permute(0, 3, 1, 2).to(memory_format=last)
    images, weights = images.requires_grad_(), weights.requires_grad_()

    def convolve() -> Any:
        if not work.gradients:
            with torch.no_grad():
                return torch.nn.functional.conv2d(images, weights)
        images.grad = weights.grad = None
        result = torch.nn.functional.conv2d(images, weights)
        (result * result).sum().backward()  # type: ignore[no-untyped-call]
        return result.detach()

    return "torch", convolve, lambda: np.asarray(convolve().permute(0, 2, 3, 1))


def jax_peer(work: Work, left: Array, right: Array) -> Contender:
    """Returns the contraction in JAX, compiled."""
    import jax
    import jax.numpy as jnp

    a, b = jnp.asarray(left), jnp.asarray(right)

    def value(a: Any, b: Any) -> Any:
        if work.einsum:
            return jnp.einsum(work.einsum, a, b, precision="highest")
        layout = ("NHWC", "OHWI", "NHWC")
        return jax.lax.conv_general_dilated(a, b, (1, 1), "VALID", dimension_numbers=layout)

    def with_gradients(a: Any, b: Any) -> Any:
        result, pull = jax.vjp(value, a, b)
        return result, pull(2 * result)

    once = jax.jit(with_gradients if work.gradients else value)

    def run() -> Any:
        return jax.block_until_ready(once(a, b))

    return "jax", run, lambda: np.asarray(run()[0] if work.gradients else run())


def reference(work: Work, left: Array, right: Array) -> Array:
    """Returns the contraction in double precision."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    if work.einsum:
        found: Array = np.einsum(work.einsum, a, b, optimize=True)
        return found
    windows = np.lib.stride_tricks.sliding_window_view(a, b.shape[1:3], axis=(1, 2))
    convolved: Array = np.einsum("nyxcvu,ovuc->nyxo", windows, b, optimize=True)
    return convolved


def compare(work: Work, backend: str | None, rounds: int) -> None:
    """Prints the times of all contenders for one contraction.

    Raises:
        SystemExit: if a contender computes something else.
    """
    random = np.random.default_rng(0)
    left, right = (random.normal(size=shape).astype(np.float32) for shape in work.shapes)
    peers = [compiled(work, left, right, backend)]
    peer = numpy_peer(work, left, right)
    if peer is not None:
        peers.append(peer)
    if importlib.util.find_spec("torch") is not None:
        peers.append(torch_peer(work, left, right))
    if importlib.util.find_spec("jax") is not None:
        peers.append(jax_peer(work, left, right))
    expected = reference(work, left, right)
    scale = float(np.abs(expected).max())
    for name, run, result in peers:
        run()
        worst = float(np.abs(result() - expected).max()) / scale
        if not worst < 1e-5:
            sys.exit(f"{work.name}: {name} is {worst:.1e} away from the product")
    timed = [harness.Contender(name, _repeated(run)) for name, run, _ in peers]
    timings = harness.compare(timed, rounds=rounds, sample_seconds=0.01)
    best = min((each.least for each in timings[1:]), default=float("nan"))
    own = timings[0].least
    rates = ", ".join(f"{each.name} {flops(work) / each.least / 1e9:.0f}" for each in timings)
    print(
        f"{work.name:<26} {own * 1e6:>10.1f} us  ratio to the best peer {own / best:.2f}"
        f"  GFLOP/s: {rates}",
        flush=True,
    )


def _repeated(run: Callable[[], Any]) -> Callable[[int], None]:
    def repeat(times: int) -> None:
        for _ in range(times):
            run()

    return repeat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="a part of the names to run")
    options = parser.parse_args()
    for work in works():
        if options.only in work.name:
            compare(work, options.backend, options.rounds)


if __name__ == "__main__":
    main()
