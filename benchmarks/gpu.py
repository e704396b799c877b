"""Kernels on a GPU: checks, and times as ratios to the device's copies and to PyTorch.

    python benchmarks/gpu.py              # on a CUDA device
    python benchmarks/gpu.py --small      # sizes for emulated devices, whose times mean nothing
    python benchmarks/gpu.py --backend opencl

Each line is printed when it is known, so that a run that is cut off leaves results. PyTorch takes
part if it is installed and sees the device.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import ocannl_core as oc

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Workload:
    """A computation with its cost.

    Attributes:
        name: Its name.
        arrays: Its operands.
        make: Makes the result of tensors.
        reference: The result in PyTorch or NumPy, given the module and the operands.
        flops: Its multiplications and additions; 0 if its time is that of memory.
        nbytes: The bytes that it must read and write.
        tolerance: The largest difference relative to the largest result.
    """

    name: str
    arrays: tuple[Array, ...]
    make: Callable[..., oc.Tensor]
    reference: Callable[..., Any]
    flops: float
    nbytes: float
    tolerance: float = 1e-4


def product(a: oc.Tensor, b: oc.Tensor) -> oc.Tensor:
    return oc.einsum("ik; kj => ij", a, b)


def softmax(x: oc.Tensor) -> oc.Tensor:
    exponents = oc.exp(x - oc.einmax("ij => i0", x))
    return exponents / oc.einsum("ij => i0", exponents)


def workloads(*, small: bool) -> Iterator[Workload]:
    """Yield the workloads, the shortest to compile first."""
    random = np.random.default_rng(0)

    def normal(*dims: int) -> Array:
        return random.standard_normal(dims).astype(np.float32)

    rows, width = (64, 128) if small else (16384, 4096)
    x, y = normal(rows, width), normal(rows, width)
    size = float(x.nbytes)
    yield Workload("x + y", (x, y), lambda x, y: x + y, lambda m, x, y: x + y, 0, 3 * size)
    yield Workload("tanh(x) * y", (x, y), lambda x, y: oc.tanh(x) * y,
                   lambda m, x, y: m.tanh(x) * y, 0, 3 * size)  # fmt: skip
    yield Workload("sum of rows", (x,), lambda x: oc.einsum("ij => i", x),
                   lambda m, x: x.sum(1), 0, size)  # fmt: skip
    yield Workload("softmax", (x,), softmax, _reference_softmax, 0, 2 * size)
    for n in (64,) if small else (1024, 4096):
        a, b = normal(n, n), normal(n, n)
        yield Workload(f"product {n}", (a, b), product, lambda m, a, b: a @ b, 2.0 * n**3, 0)


def _reference_softmax(module: Any, x: Any) -> Any:
    if module is not np:
        return module.softmax(x, 1)
    exponents = np.exp(x - x.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def seconds_of(run: Callable[[], object], wait: Callable[[], object], least: float) -> float:
    """Return the seconds of one run, of the fastest of three series that take the least time."""
    run()
    wait()
    count, found = 1, []
    while len(found) < 3:
        start = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        spent = time.perf_counter() - start
        if spent < least:
            count *= 2
        else:
            found.append(spent / count)
    return min(found)


def torch_on_device() -> Any:
    """Return PyTorch if it is installed and has a device; None otherwise."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def measure(work: Workload, ctx: oc.Context, torch: Any, least: float, copy: float) -> str:
    """Return a line about a workload, after comparing its result with NumPy's."""
    operands = [oc.tensor(array) for array in work.arrays]
    result = work.make(*operands)
    routine = ctx.compile(oc.train.forward(result))
    own = seconds_of(routine, ctx.synchronize, least)
    expected = work.reference(np, *(array.astype(np.float64) for array in work.arrays))
    error = float(np.abs(ctx[result] - expected).max() / np.abs(expected).max())
    verdict = "right" if error < work.tolerance else "WRONG"
    rate = f"{work.flops / own / 1e12:.2f} TFLOP/s"
    if not work.flops:
        rate = f"{work.nbytes / own / 1e9:.0f} GB/s, {work.nbytes / own / copy:.2f} of copies"
    line = f"{work.name:<14} {own * 1e6:>10.1f} us  {rate}  {verdict} to {error:.1e}"
    if torch is not None:
        given = [torch.from_numpy(array).cuda() for array in work.arrays]
        torch.backends.cuda.matmul.allow_tf32 = False
        run = lambda: work.reference(torch, *given)  # noqa: E731
        theirs = seconds_of(run, torch.cuda.synchronize, least)
        line += f"  {theirs / own:.2f} times as fast as PyTorch"
    return line


def copy_rate(ctx: oc.Context, nbytes: int, least: float) -> float:
    """Return the bytes that the device reads and writes in a second, in copies of its memory."""
    target, source = (oc.tensor(np.ones(nbytes // 4, np.float32)) for _ in range(2))
    total = target + source
    ctx.compile(oc.train.forward(total), keep=[total, target, source])()
    buffers = ctx.buffer(total), ctx.buffer(source)
    seconds = seconds_of(lambda: ctx.backend.transfer(*buffers), ctx.synchronize, least)
    return 2 * nbytes / seconds


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="cuda", help="the device, as NAME or NAME:DEVICE")
    parser.add_argument("--small", action="store_true", help="small arrays, single runs")
    arguments = parser.parse_args()
    ctx, torch = oc.Context(arguments.backend), torch_on_device()
    least = 0.0 if arguments.small else 0.2
    print(f"{ctx.target}: {ctx.target.description}; {ctx.target.compiler}", flush=True)
    print(f"PyTorch {torch.__version__}" if torch is not None else "no PyTorch", flush=True)
    copy = copy_rate(ctx, 1 << (16 if arguments.small else 28), least)
    print(f"{'copy':<14} {copy / 1e9:.0f} GB/s", flush=True)
    for work in workloads(small=arguments.small):
        print(measure(work, ctx, torch, least, copy), flush=True)


if __name__ == "__main__":
    main()
