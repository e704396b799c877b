"""Checks of one device that the conformance suite does not make: products on the copy engine, and
memory and streams of PyTorch.

    python plugins/ocannl_cuda/device_checks.py products --size 200
    python plugins/ocannl_cuda/device_checks.py sharing

Each prints a line for a check; the exit code is 1 if one has failed, 3 if nothing could be checked.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ocannl_core as oc

LAYOUTS = ("m,k; k,n => m,n", "k,m; k,n => m,n", "m,k; n,k => m,n", "k,m; n,k => m,n")
BATCHED = "b,m,k; b,k,n => b,m,n"


def product(spec: str, extents: dict[str, int], *, is_asynchronous: bool) -> Any:
    """Return a product of whole numbers, whose sums are exact."""
    random = np.random.default_rng(0)
    names = [each.strip().split(",") for each in spec.partition("=>")[0].split(";")]
    factors = [random.integers(-2, 3, [extents[name] for name in each]) for each in names]
    with oc.base.settings.overrides(asynchronous_products=is_asynchronous), oc.Session():
        result = oc.einsum(spec, *(oc.tensor(each, dtype="bfloat16") for each in factors))
        context = oc.Context("cuda")
        context.compile(oc.train.forward(result))()
        return np.asarray(context[result], np.float32)


def products(size: int) -> Iterator[tuple[str, bool]]:
    """Yield the products of a size, of tails and of a batch, compared with those of `mma.sync`."""
    for spec, tail in itertools.product((*LAYOUTS, BATCHED), (0, 8)):
        extents = {"b": 3, "m": size + tail, "n": size, "k": size + tail}
        if spec == BATCHED and size > 1024:
            continue
        found, expected = (product(spec, extents, is_asynchronous=way) for way in (True, False))
        yield f"{spec} of {extents['m']} x {size} x {extents['k']}", bool((found == expected).all())


def sharing(torch: Any) -> Iterator[tuple[str, bool]]:
    """Yield checks of tensors of PyTorch, while work is queued on both sides."""
    import ocannl_cuda

    count = 1 << 22
    x = oc.placeholder("x", output=[count])
    y = x * 2.0
    ctx = oc.Context("cuda")
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = np.zeros(count, np.float32)
    step()

    def busy() -> Any:
        """Return a tensor of ones that PyTorch computes for a while."""
        matrix = torch.eye(4096, device="cuda")
        for _ in range(20):
            matrix = matrix @ torch.eye(4096, device="cuda")
        return (matrix.diagonal()[:1] * torch.ones(count, device="cuda")).contiguous()

    ctx[x] = busy()
    step()
    yield "a tensor is copied after the work that fills it", bool((ctx[y] == 2.0).all())
    for name, stream in (
        ("the default stream", None),
        ("a stream of its own", torch.cuda.Stream()),
    ):
        with torch.cuda.stream(stream), ocannl_cuda.on_stream(torch.cuda.current_stream()):
            ctx[x] = busy() * 3.0
            step()
            found = torch.from_dlpack(ctx.buffer(y)).clone()
        torch.cuda.synchronize()
        yield f"a step runs in order with {name}", bool((found == 6.0).all())
    ctx.adopt(x, busy() * 4.0)
    step()
    result = torch.from_dlpack(ctx.buffer(y))
    ctx.release()
    del step, ctx
    gc.collect()
    torch.full((count,), -1.0, device="cuda")  # takes memory that is free
    yield "adopted memory is held until a step has read it", bool((result == 8.0).all())


def main() -> int:
    """Print the checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("products", help="products on the copy engine").add_argument(
        "--size", type=int, default=64, help="the rows, the columns and the terms"
    )
    commands.add_parser("sharing", help="memory and streams of PyTorch")
    given = parser.parse_args()
    checks: Callable[[], Iterator[tuple[str, bool]]]
    if given.command == "products":
        checks = lambda: products(given.size)  # noqa: E731
    else:
        try:
            torch = importlib.import_module("torch")
            is_there = torch.cuda.is_available()
        except ImportError:
            is_there = False
        if not is_there:
            print("PyTorch is not installed, or sees no device")
            return 3
        checks = lambda: sharing(torch)  # noqa: E731
    failed = 0
    for name, is_right in checks():
        failed += not is_right
        print(f"{'right' if is_right else 'WRONG'}  {name}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
