"""Kernels on a GPU: checks, and times as ratios to the device's copies and to PyTorch.

    python benchmarks/gpu.py              # on a CUDA device
    python benchmarks/gpu.py --small      # sizes for emulated devices, whose times mean nothing
    python benchmarks/gpu.py --backend opencl

Each line is printed when it is known, so that a run that is cut off leaves results. PyTorch takes
part if it is installed and sees the device: eager and compiled, with cuBLAS for products and its
fused attention. Times on CUDA devices are those between events on the stream; the series of all
parties alternate, and the fastest counts.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import ocannl_core as oc
from ocannl_core import settings

Array = np.ndarray[Any, Any]
Run = Callable[[], object]
_ROUNDS = 5


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
    centred = x - oc.einsum("ij => i0", x) / width
    variance = oc.einsum("ij => i0", centred * centred) / width
    return centred / oc.sqrt(variance + 1e-5)


def attention(q: oc.Tensor, k: oc.Tensor, v: oc.Tensor) -> oc.Tensor:
    scores = oc.einsum("hid; hjd => hij", q, k) * (q.info.dims[-1] ** -0.5)
    exponents = oc.exp(scores - oc.einmax("hij => hi0", scores))
    return oc.einsum("hij; hjd => hid", exponents / oc.einsum("hij => hi0", exponents), v)


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
    yield Workload("layer norm", (x,), layer_norm, _reference_norm, 0, 2 * size)
    for n in (64,) if small else (1024, 4096, 4097):
        a, b = normal(n, n), normal(n, n)
        yield Workload(f"product {n}", (a, b), product, lambda m, a, b: a @ b, 2.0 * n**3, 0)
    heads, length, depth = (2, 32, 16) if small else (16, 2048, 128)
    operands = tuple(normal(heads, length, depth) for _ in "qkv")
    flops = 4.0 * heads * length**2 * depth
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 4e-2)):
        name = f"attention {dtype}"
        yield Workload(name, operands, attention, _reference_attention, flops, 0, tolerance, dtype)
    n = 64 if small else 4096
    a, b = normal(n, n), normal(n, n)
    yield Workload(f"product {n} bfloat16", (a, b), product, lambda m, a, b: a @ b,
                   2.0 * n**3, 0, 2e-2, "bfloat16")  # fmt: skip


def _reference_softmax(module: Any, x: Any) -> Any:
    if module is not np:
        return module.softmax(x, 1)
    exponents = np.exp(x - x.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def _reference_norm(module: Any, x: Any) -> Any:
    if module is not np:
        return module.nn.functional.layer_norm(x, (x.shape[-1],))
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(1, keepdims=True) + 1e-5)


def _reference_attention(module: Any, q: Any, k: Any, v: Any) -> Any:
    if module is not np:
        return module.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    scores = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5
    exponents = np.exp(scores - scores.max(2, keepdims=True))
    return exponents / exponents.sum(2, keepdims=True) @ v


# ----- clocks -----------------------------------------------------------------------------------


class Clock(Protocol):
    def seconds(self, run: Run, count: int) -> float:
        """Return the seconds from the start of the first run to the end of the last one."""
        ...


class HostClock:
    """Seconds on the host, of work that it waits for."""

    def __init__(self, wait: Run) -> None:
        self._wait = wait

    def seconds(self, run: Run, count: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            run()
        self._wait()
        return time.perf_counter() - start


class CudaClock:
    """Seconds between events on the stream of routines."""

    def __init__(self, ordinal: int) -> None:
        from ocannl_cuda.device import ordinal_device

        self._device = ordinal_device(ordinal)

    def seconds(self, run: Run, count: int) -> float:
        device = self._device
        first, last = self._event(), self._event()
        for _ in range(count):
            run()
        with device.current():
            last.record(device.stream)
            last.synchronize()
            return float(first.time_till(last)) * 1e-3

    def _event(self) -> Any:
        with self._device.current():
            event = self._device.driver.Event()
            event.record(self._device.stream)
        return event


class TorchClock:
    """Seconds between events on the stream of PyTorch."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def seconds(self, run: Run, count: int) -> float:
        first, last = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            run()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3


def fastest(parties: dict[str, tuple[Run, Clock]], least: float) -> dict[str, float]:
    """Return the seconds of a run of each party: of its fastest series, which takes the least time
    at least; the series of all parties alternate.
    """
    counts: dict[str, int] = {}
    for name, (run, clock) in parties.items():
        clock.seconds(run, 2)  # compiles, and captures graphs
        counts[name] = 1
        while clock.seconds(run, counts[name]) < least:
            counts[name] *= 2
    found: dict[str, float] = {}
    for _ in range(_ROUNDS if least else 1):
        for name, (run, clock) in parties.items():
            seconds = clock.seconds(run, counts[name]) / counts[name]
            found[name] = min(found.get(name, seconds), seconds)
    return found


def torch_on_device() -> Any:
    """Return PyTorch if it is installed and has a device; None otherwise."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


@dataclass(frozen=True)
class Bench:
    """The parties of the comparison.

    Attributes:
        ctx: The context of our side.
        clock: The clock of our side.
        torch: PyTorch; None without it.
        least: The least seconds of a series.
        compiles: True to compare with compiled functions of PyTorch, too.
    """

    ctx: oc.Context
    clock: Clock
    torch: Any
    least: float
    compiles: bool

    def others(self, function: Callable[..., Any], *given: Any) -> dict[str, tuple[Run, Clock]]:
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


def measure(work: Workload, bench: Bench, copy: float) -> str:
    """Return a line about a workload, after comparing its result with NumPy's."""
    ctx, torch = bench.ctx, bench.torch
    operands = [oc.tensor(array, dtype=work.dtype) for array in work.arrays]
    result = work.make(*operands)
    routine = ctx.compile(oc.train.forward(result))
    given = []
    if torch is not None:
        torch.backends.cuda.matmul.allow_tf32 = False
        kind = getattr(torch, work.dtype)
        given = [torch.from_numpy(array).cuda().to(kind) for array in work.arrays]
    others = bench.others(lambda *arrays: work.reference(torch, *arrays), *given)
    found = fastest({"": (routine, bench.clock)} | others, bench.least)
    own = found[""]
    expected = work.reference(np, *(array.astype(np.float64) for array in work.arrays))
    computed = np.asarray(ctx[result], np.float64)
    error = float(np.abs(computed - expected).max() / np.abs(expected).max())
    verdict = "right" if error < work.tolerance else "WRONG"
    rate = f"{work.flops / own / 1e12:.2f} TFLOP/s"
    if not work.flops:
        rate = f"{work.nbytes / own / 1e9:.0f} GB/s, {work.nbytes / own / copy:.2f} of copies"
    return f"{work.name:<22} {own * 1e6:>10.1f} us  {rate}  {verdict} to {error:.1e}{ratios(found)}"


def copy_rate(bench: Bench, nbytes: int) -> float:
    """Return the bytes that the device reads and writes in a second, in copies of its memory."""
    ctx = bench.ctx
    target, source = (oc.tensor(np.ones(nbytes // 4, np.float32)) for _ in range(2))
    total = target + source
    ctx.compile(oc.train.forward(total), keep=[total, target, source])()
    buffers = ctx.buffer(total), ctx.buffer(source)
    run = lambda: ctx.backend.transfer(*buffers)  # noqa: E731
    return 2 * nbytes / fastest({"": (run, bench.clock)}, bench.least)[""]


# ----- training steps ---------------------------------------------------------------------------


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

    return step, bench.others(train, inputs, targets)


def training_step(bench: Bench, width: int, batch: int) -> str:
    """Return a line about the time of a training step."""
    step, others = perceptron(bench, width, batch)
    found = fastest({"": (step, bench.clock)} | others, bench.least)
    return f"{f'perceptron {batch} x {width}':<22} {found[''] * 1e6:>10.1f} us{ratios(found)}"


def host_times(bench: Bench, rounds: int) -> Iterator[str]:
    """Yield lines about the time that the host takes to start a small training step."""
    calls = 10  # few enough that no queue of the driver is full
    first = 0.0
    for name, uses_graphs in (("launches", False), ("a graph", True)):
        with settings.overrides(cuda_graphs=uses_graphs), oc.Session():
            step, others = perceptron(bench, 16, 8, depth=4)
        kernels = len(step.plan.kernels)
        parties: dict[str, Run] = {f"a training step of {kernels} kernels as {name}": step}
        if not uses_graphs:
            parties |= {key: run for key, (run, _) in others.items()}
        for party, run in parties.items():
            best = float("inf")
            for _ in range(rounds):
                run()
                bench.ctx.synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    run()
                best = min(best, (time.perf_counter() - start) / calls)
                bench.ctx.synchronize()
            first = first or best
            yield f"{'host, ' + party:<44} {best * 1e6:>6.1f} us  {best / first:.2f} of the first"


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="cuda", help="the device, as NAME or NAME:DEVICE")
    parser.add_argument("--small", action="store_true", help="small arrays, single runs")
    parser.add_argument("--only", default="", help="workloads with this text in their names")
    parser.add_argument("--eager", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    ctx, torch, small = oc.Context(arguments.backend), torch_on_device(), arguments.small
    is_cuda = ctx.target.backend == "cuda"
    clock = CudaClock(ctx.target.device) if is_cuda else HostClock(ctx.synchronize)
    bench = Bench(ctx, clock, torch, 0.0 if small else 0.1, not arguments.eager)
    print(f"{ctx.target}: {ctx.target.description}; {ctx.target.compiler}", flush=True)
    print(f"PyTorch {torch.__version__}" if torch is not None else "no PyTorch", flush=True)
    if arguments.only in "host times":
        for line in host_times(bench, 10 if small else 50):
            print(line, flush=True)
    copy = copy_rate(bench, 1 << (16 if small else 28))
    print(f"{'copy':<22} {copy / 1e9:.0f} GB/s", flush=True)
    for work in workloads(small=small):
        if arguments.only in work.name:
            print(measure(work, bench, copy), flush=True)
    if arguments.only in "perceptron":
        for width, batch in [(16, 8)] if small else [(256, 128), (2048, 512)]:
            print(training_step(bench, width, batch), flush=True)


if __name__ == "__main__":
    main()
