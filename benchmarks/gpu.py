"""Kernels on a GPU: checks, and times as ratios to the device's copies and to PyTorch.

    python benchmarks/gpu.py              # on a CUDA device
    python benchmarks/gpu.py --small      # sizes for emulated devices, whose times mean nothing
    python benchmarks/gpu.py --backend opencl

    python benchmarks/gpu.py --isolate 60 # in processes of their own: a kernel that hangs, or
                                          # loses the device, costs its own line only

Each line is printed when it is known, so that a run that is cut off leaves results: our own of
all parts come first, those of matrix instructions before the others, and then the parts beside
PyTorch if it is installed and sees the device: eager and compiled, with cuBLAS for products and its
fused attention; else beside CuPy, with cuBLAS. Times on CUDA devices are those between events on
the stream; the series of all parties alternate, and the fastest counts.
"""

from __future__ import annotations

import argparse
import importlib
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import IO, Any

import numpy as np
from gpu_clocks import Clock, CudaClock, CupyClock, HostClock, Run, TorchClock, fastest
from isolation import run_isolated

import ocannl_core as oc
from ocannl_core.base import settings

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Workload:
    """A computation with its cost.

    Attributes:
        arrays: Its operands.
        make: Makes the result of tensors.
        reference: The result in PyTorch or NumPy, given the module and the operands.
        flops: Its multiplications and additions; 0 if its time is that of memory.
        nbytes: The bytes that it must read and write.
        tolerance: The largest difference relative to the largest result.
        dtype: The number format.
    """

    name: str
    arrays: tuple[Array, ...]
    make: Callable[..., oc.Tensor]
    reference: Callable[..., Any]
    flops: float
    nbytes: float
    tolerance: float = 1e-4
    dtype: str = "float32"


def product(a: oc.Tensor, b: oc.Tensor) -> oc.Tensor:
    return oc.einsum("ik; kj => ij", a, b)


def softmax(x: oc.Tensor) -> oc.Tensor:
    exponents = oc.exp(x - oc.einmax("ij => i0", x))
    return exponents / oc.einsum("ij => i0", exponents)


def layer_norm(x: oc.Tensor) -> oc.Tensor:
    width = x.info.dims[-1]
    centered = x - oc.einsum("ij => i0", x) / width
    variance = oc.einsum("ij => i0", centered * centered) / width
    return centered / oc.sqrt(variance + 1e-5)


def attention(q: oc.Tensor, k: oc.Tensor, v: oc.Tensor) -> oc.Tensor:
    scores = oc.einsum("hid; hjd => hij", q, k) * (q.info.dims[-1] ** -0.5)
    exponents = oc.exp(scores - oc.einmax("hij => hi0", scores))
    return oc.einsum("hij; hjd => hid", exponents / oc.einsum("hij => hi0", exponents), v)


def workloads(*, small: bool) -> Iterator[Workload]:
    """Yield the workloads, those of matrix instructions first."""
    random = np.random.default_rng(0)

    def normal(*dims: int) -> Array:
        return random.standard_normal(dims).astype(np.float32)

    n = 64 if small else 4096
    a, b = normal(n, n), normal(n, n)
    yield Workload(f"product {n} bfloat16", (a, b), product, lambda m, a, b: a @ b,
                   2.0 * n**3, 0, 2e-2, "bfloat16")  # fmt: skip
    heads, length, depth = (2, 32, 16) if small else (16, 2048, 128)
    operands = tuple(normal(heads, length, depth) for _ in "qkv")
    flops = 4.0 * heads * length**2 * depth
    for dtype, tolerance in (("bfloat16", 4e-2), ("float32", 1e-4)):
        name = f"attention {dtype}"
        yield Workload(name, operands, attention, _reference_attention, flops, 0, tolerance, dtype)
    for n in (64,) if small else (1024, 4096, 4097):
        a, b = normal(n, n), normal(n, n)
        yield Workload(f"product {n}", (a, b), product, lambda m, a, b: a @ b, 2.0 * n**3, 0)
    rows, width = (64, 128) if small else (16384, 4096)
    x, y = normal(rows, width), normal(rows, width)
    size = float(x.nbytes)
    yield Workload("x + y", (x, y), lambda x, y: x + y, lambda m, x, y: x + y, 0, 3 * size)
    yield Workload("tanh(x) * y", (x, y), lambda x, y: oc.tanh(x) * y,
                   lambda m, x, y: m.tanh(x) * y, 0, 3 * size)  # fmt: skip
    yield Workload("sum of rows", (x,), lambda x: oc.einsum("ij => i", x),
                   lambda m, x: x.sum(1), 0, size)  # fmt: skip
    yield Workload("softmax", (x,), softmax, _reference_softmax, 0, 2 * size)
    yield Workload("layer norm", (x,), layer_norm, _reference_norm, 0, 2 * size)


def _reference_softmax(module: Any, x: Any) -> Any:
    if module is not np:
        return module.softmax(x, 1)
    exponents = np.exp(x - x.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def _reference_norm(module: Any, x: Any) -> Any:
    if module is not np:
        return module.nn.functional.layer_norm(x, (x.shape[-1],))
    centered = x - x.mean(1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(1, keepdims=True) + 1e-5)


def _reference_attention(module: Any, q: Any, k: Any, v: Any) -> Any:
    if module is not np:
        return module.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    scores = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5
    exponents = np.exp(scores - scores.max(2, keepdims=True))
    return exponents / exponents.sum(2, keepdims=True) @ v


def torch_on_device() -> Any:
    """Return PyTorch if it is installed and has a device; None otherwise."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def cupy_on_device() -> Any:
    """Return CuPy if it is installed and has a device; None otherwise."""
    try:
        cupy = importlib.import_module("cupy")
        return cupy if cupy.cuda.is_available() else None
    except Exception:  # it loads libraries of CUDA, each of which may be missing
        return None


@dataclass(frozen=True)
class Bench:
    """The parties of the comparison.

    Attributes:
        ctx: The context of our side.
        clock: The clock of our side.
        torch: PyTorch; None without it.
        cupy: CuPy; None without it.
        least: The least seconds of a series.
        compiles: True to compare with compiled functions of PyTorch, too.
    """

    ctx: oc.Context
    clock: Clock
    torch: Any
    cupy: Any
    least: float
    compiles: bool

    def others(self, work: Workload) -> dict[str, tuple[Run, Clock]]:
        """Return the ways of others to compute a workload."""
        torch = self.torch
        if torch is not None:
            torch.backends.cuda.matmul.allow_tf32 = False
            kind = getattr(torch, work.dtype)
            given = [torch.from_numpy(array).cuda().to(kind) for array in work.arrays]
            return self.of_torch(lambda *arrays: work.reference(torch, *arrays), *given)
        cupy = self.cupy
        if cupy is None or work.dtype != "float32":
            return {}
        arrays = [cupy.asarray(array) for array in work.arrays]
        return {"CuPy": (lambda: work.reference(np, *arrays), CupyClock(cupy))}

    def of_torch(self, function: Callable[..., Any], *given: Any) -> dict[str, tuple[Run, Clock]]:
        """Return PyTorch's ways to run a function."""
        if self.torch is None:
            return {}
        clock = TorchClock(self.torch)
        found: dict[str, tuple[Run, Clock]] = {"PyTorch": (lambda: function(*given), clock)}
        if self.compiles:
            compiled = self.torch.compile(function)
            found["torch.compile"] = (lambda: compiled(*given), clock)
        return found


def ratios(found: dict[str, float]) -> str:
    """Return the ratios of the times of others to that of the first party."""
    own, *_ = found.values()
    return "".join(f"  {each / own:.2f} of {name}" for name, each in list(found.items())[1:])


def variants(work: Workload) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings to measure a workload with, each with a name: the defaults first."""
    yield "", {}
    known = {field.name for field in fields(settings.Settings)}
    if work.flops and work.dtype == "float32" and "accumulation" in known:
        yield "accumulation fast", {"accumulation": "fast"}
    if work.flops and work.dtype != "float32" and "asynchronous_products" in known:
        yield "asynchronous products", {"asynchronous_products": True}


def measure(work: Workload, bench: Bench, copy: float) -> Iterator[str]:
    """Yield lines about a workload with some settings, after comparing results with NumPy's."""
    ctx = bench.ctx
    expected = work.reference(np, *(array.astype(np.float64) for array in work.arrays))
    others = bench.others(work)
    for name, chosen in variants(work):
        operands = [oc.tensor(array, dtype=work.dtype) for array in work.arrays]
        result = work.make(*operands)
        with settings.overrides(**chosen):
            routine = ctx.compile(oc.train.forward(result))
        found = fastest({"": (routine, bench.clock)} | others, bench.least)
        own = found[""]
        computed = np.asarray(ctx[result], np.float64)
        error = float(np.abs(computed - expected).max() / np.abs(expected).max())
        verdict = "right" if error < work.tolerance else "WRONG"
        rate = f"{work.flops / own / 1e12:.2f} TFLOP/s"
        if not work.flops:
            rate = f"{work.nbytes / own / 1e9:.0f} GB/s, {work.nbytes / own / copy:.2f} of copies"
        title = f"{work.name}, {name}" if name else work.name
        yield f"{title:<22} {own * 1e6:>10.1f} us  {rate}  {verdict} to {error:.1e}{ratios(found)}"


def copy_rate(bench: Bench, nbytes: int) -> float:
    """Return the bytes that the device reads and writes in a second, in copies of its memory."""
    ctx = bench.ctx
    target, source = (oc.tensor(np.ones(nbytes // 4, np.float32)) for _ in range(2))
    total = target + source
    ctx.compile(oc.train.forward(total), keep=[total, target, source])()
    buffers = ctx.buffer(total), ctx.buffer(source)
    run = lambda: ctx.backend.transfer(*buffers)  # noqa: E731
    return 2 * nbytes / fastest({"": (run, bench.clock)}, bench.least)[""]


def perceptron(
    bench: Bench, width: int, batch: int, depth: int = 3
) -> tuple[oc.Routine, dict[str, Any]]:
    """Return a training step of some layers, and PyTorch's ways to run it."""
    x = oc.placeholder("x", batch=[batch], output=[width])
    y = oc.placeholder("y", batch=[batch], output=[width])
    hidden = x
    for number in range(depth):
        weights, bias = (oc.param(f"{name}{number}", output=[width]) for name in "wb")
        hidden = oc.tanh(weights @ hidden + bias)
    loss = oc.einsum("...|... => 0", (hidden - y) ** 2.0)
    ctx = bench.ctx
    step = ctx.compile(oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=1e-4))
    ctx.init_params(loss)
    random = np.random.default_rng(0)
    data = [random.standard_normal((batch, width)).astype(np.float32) for _ in range(2)]
    for tensor, cells in zip((x, y), data, strict=True):
        ctx[tensor] = cells
    torch = bench.torch
    if torch is None:
        return step, {}
    layers = [
        part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.Tanh())
    ]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs, targets = (torch.from_numpy(cells).cuda() for cells in data)

    def train(inputs: Any, targets: Any) -> None:
        optimizer.zero_grad()
        ((model(inputs) - targets) ** 2).sum().backward()
        optimizer.step()

    return step, bench.of_torch(train, inputs, targets)


def training_step(bench: Bench, width: int, batch: int) -> str:
    """Return a line about the time of a training step."""
    step, others = perceptron(bench, width, batch)
    found = fastest({"": (step, bench.clock)} | others, bench.least)
    return f"{f'perceptron {batch} x {width}':<22} {found[''] * 1e6:>10.1f} us{ratios(found)}"


@contextmanager
def launches_made(bench: Bench) -> Iterator[list[Any]]:
    """Yield a list that gets the launches of kernels that are linked meanwhile, on CUDA devices."""
    found: list[Any] = []
    if isinstance(bench.clock, CudaClock):
        from ocannl_cuda.launches import KernelLaunch

        device = bench.clock.device
        own = device.own

        def noted(thing: Any) -> None:
            if isinstance(thing, KernelLaunch):
                found.append(thing)
            own(thing)

        device.own = noted
        try:
            yield found
        finally:
            device.own = own
    else:
        yield found


def prepared_calls(launches: Sequence[Any], device: Any) -> Run:
    """Return a function that runs kernels by PyCUDA's prepared calls."""
    calls = []
    for launch in launches:
        packed = launch.packed({})
        given = struct.unpack(f"={len(packed) // 8}Q", packed)
        launch._function.prepare("P" * len(given))
        more = {"shared_size": launch._shared_bytes}
        calls.append((launch._function.prepared_async_call, *launch._grid_and_block, given, more))

    def run() -> None:
        stream = device.stream
        with device.current():
            for call, grid, block, given, more in calls:
                call(grid, block, stream, *given, **more)

    return run


def host_times(bench: Bench, rounds: int) -> Iterator[str]:
    """Yield lines about the time that the host takes to start a small training step; the rounds of
    all parties alternate.
    """
    parties: dict[str, Run] = {}
    for name, uses_graphs in (("launches", False), ("a graph", True)):
        with (
            settings.overrides(cuda_graphs=uses_graphs),
            oc.Session(),
            launches_made(bench) as launches,
        ):
            step, others = perceptron(bench, 16, 8, depth=4)
        kernels = len(step.plan.kernels)
        parties[f"a training step of {kernels} kernels as {name}"] = step
        if not uses_graphs:
            if isinstance(bench.clock, CudaClock) and len(launches) >= kernels:
                prepared = prepared_calls(launches[:kernels], bench.clock.device)
                parties["prepared calls of PyCUDA for its kernels"] = prepared
            parties |= {key: run for key, (run, _) in others.items()}
    best = dict.fromkeys(parties, float("inf"))
    calls = 10  # few enough that no queue of the driver is full
    for _ in range(rounds):
        for party, run in parties.items():
            run()
            bench.ctx.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            best[party] = min(best[party], (time.perf_counter() - start) / calls)
            bench.ctx.synchronize()
    first = next(iter(best.values()))
    for party, seconds in best.items():
        ratio = seconds / first
        yield f"{'host, ' + party:<50} {seconds * 1e6:>6.1f} us  {ratio:.2f} of the first"


Part = tuple[str, Callable[[], Iterable[str]]]


def parts_of(bench: Bench, *, small: bool) -> Iterator[Part]:
    """Yield all measurements, each with a name and a function that yields lines: first without
    others, then beside them.
    """
    yield from own_parts(replace(bench, torch=None, cupy=None), small=small)
    if bench.torch is not None or bench.cupy is not None:
        for name, lines in own_parts(bench, small=small):
            yield f"{name}, beside others", lines


def own_parts(bench: Bench, *, small: bool) -> Iterator[Part]:
    """Yield the measurements of all parties that take part."""
    copy = 0.0

    def copies() -> Iterator[str]:
        yield f"{'copy':<22} {rate() / 1e9:.0f} GB/s"

    def rate() -> float:
        nonlocal copy
        copy = copy or copy_rate(bench, 1 << (16 if small else 28))
        return copy

    yield "copies", copies
    for work in workloads(small=small):
        yield work.name, lambda work=work: measure(work, bench, rate() if not work.flops else 1.0)
    for width, batch in [(16, 8)] if small else [(256, 128), (2048, 512)]:
        size = width, batch
        yield f"perceptron {width}", lambda size=size: [training_step(bench, *size)]
    yield "host times", lambda: host_times(bench, 10 if small else 50)


def run_parts(bench: Bench, progress: IO[str], *, small: bool, only: str, skipped: int) -> int:
    """Print the lines of parts, and return how many have failed.

    Args:
        bench: The parties.
        progress: Gets a line with the number and the name of each part before it begins.
        small: True for small arrays.
        only: A text in the names of the parts.
        skipped: The number of parts to leave out.
    """
    failed = 0
    for number, (name, lines) in enumerate(parts_of(bench, small=small)):
        if number < skipped or only not in name:
            continue
        print(number, name, file=progress, flush=True)
        try:
            with oc.Session():
                for line in lines():
                    print(line, flush=True)
                    failed += "WRONG" in line
        except Exception as error:  # the others still count
            failed += 1
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
            bench.ctx.synchronize()  # raises if the device refuses all further work of this process
    return failed


def main() -> int:
    """Print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="cuda", help="the device, as NAME or NAME:DEVICE")
    parser.add_argument("--small", action="store_true", help="small arrays, single runs")
    parser.add_argument("--only", default="", help="parts with this text in their names")
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    parser.add_argument("--isolate", type=float, metavar="SECONDS", help="the most for a part")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many parts")
    parser.add_argument("--progress", type=int, help="a file descriptor for the names of parts")
    given = parser.parse_args()
    if given.isolate:
        own = ["--backend", given.backend, "--only", given.only]
        own += ["--small"] * given.small + ["--eager"] * given.eager
        own += ["--no-peers"] * given.no_peers
        return run_isolated(__file__, own, given.isolate)
    ctx, small = oc.Context(given.backend), given.small
    torch = None if given.no_peers else torch_on_device()
    is_cuda = ctx.target.backend == "cuda"
    clock = CudaClock(ctx.target.device) if is_cuda else HostClock(ctx.synchronize)
    cupy = cupy_on_device() if torch is None and not given.no_peers else None
    bench = Bench(ctx, clock, torch, cupy, 0.0 if small else 0.1, not given.eager)
    if not given.skip:
        print(f"{ctx.target}: {ctx.target.description}; {ctx.target.compiler}", flush=True)
        found = [each for each in (torch, cupy) if each is not None]
        names = [f"{each.__name__} {each.__version__}" for each in found]
        print(f"peers: {', '.join(names) or 'neither PyTorch nor CuPy'}", flush=True)
    with open(os.devnull if given.progress is None else given.progress, "w") as progress:
        return int(run_parts(bench, progress, small=small, only=given.only, skipped=given.skip) > 0)


if __name__ == "__main__":
    sys.exit(main())
