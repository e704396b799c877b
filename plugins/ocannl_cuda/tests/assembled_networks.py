"""The kernels of the benchmarks' networks on devices of three generations, as tables of assembly."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core.ir.launch_limits import LaunchLimits
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_cuda import targets
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.driver_probe import DeviceFacts, Found
from ocannl_cuda.nvcc import Nvcc
from ocannl_cuda.nvrtc import Nvrtc
from ocannl_cuda.source import generate
from plugins.ocannl_cuda.tests.assembly import Assembly, assemble

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def _facts(
    name: str, capability: tuple[int, int], gib: int, processors: int, shared_kib: int, l2_mib: int
) -> DeviceFacts:
    """Return the properties of a device with the limits of its generation."""
    extents = (1024, 1024, 64), ((1 << 31) - 1, 65535, 65535)
    limits = LaunchLimits(1024, *extents, 48 << 10, shared_kib << 10, 65536)
    return DeviceFacts(name, capability, gib << 30, processors, l2_mib << 20, limits)


DEVICES = {
    "sm_80": _facts("A100", (8, 0), 80, 108, 163, 40),
    "sm_90a": _facts("H100", (9, 0), 80, 132, 227, 50),
    "sm_120": _facts("RTX 5090", (12, 0), 32, 170, 99, 96),
}


def target_for(architecture: str, compiler: Nvrtc | Nvcc) -> Target:
    """Return a device that this machine need not have."""
    driver = Found((13, 0), (DEVICES[architecture],))
    (target,) = targets.report(driver, compiler, pycuda_is_installed=True).targets
    return target


def program_of(code: oc.Computation, *bindings: oc.StaticIndex) -> LoopProgram:
    return oc.Context("interp").compile(code, bindings=list(bindings))._build.program.loops


def product(rows: int, terms: int, columns: int, dtype: str = "float32") -> LoopProgram:
    with oc.Session():
        a = oc.placeholder("a", batch=[rows], output=[terms], dtype=dtype)
        b = oc.placeholder("b", batch=[terms], output=[columns], dtype=dtype)
        return program_of(oc.train.forward(oc.einsum("i|k; k|j => i|j", a, b)))


def layer(rows: int, terms: int, columns: int) -> LoopProgram:
    """Return a layer whose weights have a row for each output, with a residual connection."""
    with oc.Session():
        x = oc.placeholder("x", batch=[rows], output=[terms], dtype="bfloat16")
        w = oc.placeholder("w", batch=[columns], output=[terms], dtype="bfloat16")
        bias = oc.placeholder("b", output=[columns], dtype="bfloat16")
        y = oc.placeholder("y", batch=[rows], output=[columns], dtype="bfloat16")
        return program_of(oc.train.forward(oc.relu(oc.einsum("i|k; j|k => i|j", x, w) + bias) + y))


def softmax() -> LoopProgram:
    with oc.Session():
        x = oc.placeholder("x", batch=[512], output=[1024])
        return program_of(oc.train.forward(oc.softmax(x, logic="...|... => ...|0")))


def layer_norm() -> LoopProgram:
    with oc.Session():
        x = oc.placeholder("x", batch=[512], output=[1024])
        difference = x - oc.mean(x, logic="...|... => ...|0")
        variance = oc.mean(difference * difference, logic="...|... => ...|0")
        scale, shift = (oc.tensor(np.ones(1024, np.float32), label=name) for name in "gb")
        return program_of(
            oc.train.forward(scale * (difference * oc.rsqrt(variance + 1e-5)) + shift)
        )


def transpose() -> LoopProgram:
    with oc.Session():
        x = oc.placeholder("x", batch=[4096], output=[4096])
        return program_of(oc.train.forward(oc.einsum("b|o => o|b", x)))


def long_sum() -> LoopProgram:
    with oc.Session():
        x = oc.placeholder("x", batch=[4096], output=[512])
        return program_of(oc.train.forward(oc.einsum("b|o => |o", x)))


def adam() -> LoopProgram:
    with oc.Session():
        x = oc.placeholder("x", batch=[8], output=[512])
        w = oc.param("w", input=[512], output=[512])
        loss = oc.einsum("... => 0", w @ x)
        return program_of(oc.train.Adam(learning_rate=1e-3).minimize(loss))


def attention(dtype: str = "float32", width: int = 64) -> LoopProgram:
    """Return causal attention of 12 heads."""
    with oc.Session():
        q, k, v = (
            oc.placeholder(name, batch=[8, 1024], output=[12, width], dtype=dtype) for name in "qkv"
        )
        y = oc.nn.attention(q * (1 / width**0.5), k, v, causal=True)
        return program_of(oc.train.forward(y))


def attention_gradients(dtype: str = "float32") -> LoopProgram:
    """Return causal attention of 12 heads of 64 cells with its gradients."""
    with oc.Session():
        q, k, v = (
            oc.tensor(
                np.zeros((8, 1024, 12, 64), np.float32),
                batch_axes=2,
                label=name,
                requires_grad=True,
                dtype=dtype,
            )
            for name in "qkv"
        )
        g = oc.placeholder("g", batch=[8, 1024], output=[12, 64], dtype=dtype)
        y = oc.nn.attention(q * (1 / 8), k, v, causal=True)
        return program_of(oc.train.grad_update(oc.einsum("...|... => 0", y * g)))


def workloads(name: str) -> Iterator[Any]:
    """Yield the workloads of a module of the benchmarks."""
    sys.path.append(str(BENCHMARKS))
    try:
        yield from importlib.import_module(f"workloads.{name}").workloads()
    finally:
        sys.path.remove(str(BENCHMARKS))


def training_step(name: str) -> LoopProgram:
    """Return a training step of the benchmarks."""
    work = next(each for each in workloads("training") if each.name.startswith(name))
    with oc.Session():
        batches = work.batches()
        number = oc.static_index("minibatch", range=len(batches))
        inputs = oc.tensor(batches, batch_axes=2)[number]
        classes = work.targets()
        shares = np.eye(classes.max() + 1, dtype=np.float32)[classes]
        wanted = oc.tensor(shares, batch_axes=2)[number]
        parameters = {
            name: oc.param(name, init=oc.tensor(cells, input_axes=work.input_axes.get(name, 0)))
            for name, cells in work.parameters().items()
        }
        scores = work.own(inputs, **parameters)
        shifted = scores - oc.stop_gradient(oc.einmax("...|... => ...|0", scores))
        log_total = oc.log(oc.einsum("...|... => ...|0", oc.exp(shifted)))
        loss = oc.einsum("...|... => 0", wanted * (log_total - shifted)) / batches.shape[1]
        update = oc.train.grad_update(loss)
        update += oc.train.sgd_update(loss, learning_rate=0.1, momentum=0.9)
        return program_of(update, number)


def transformer_block() -> LoopProgram:
    """Return the benchmarks' block of a transformer with its gradients."""
    work = next(each for each in workloads("block") if each.gradients)
    with oc.Session():
        arguments = {
            name: oc.tensor(
                cells,
                batch_axes=work.batch_axes.get(name, 0),
                input_axes=work.input_axes.get(name, 0),
                label=name,
                requires_grad=True,
            )
            for name, cells in work.arrays().items()
        }
        loss = oc.einsum("... => 0", work.own(**arguments))
        return program_of(oc.train.grad_update(loss))


FEW: dict[str, Callable[[], LoopProgram]] = {
    "product 1024": lambda: product(1024, 1024, 1024),
    "product 4096": lambda: product(4096, 4096, 4096),
    "softmax": softmax,
    "layer norm": layer_norm,
    "adam": adam,
    "attention": attention,
    "attention bfloat16": lambda: attention("bfloat16"),
}
ALL = FEW | {
    "product 4097": lambda: product(4097, 4097, 4097),
    "product 100x37x61": lambda: product(100, 37, 61),
    "product 256": lambda: product(256, 256, 256),
    "product bfloat16": lambda: product(1024, 1024, 1024, "bfloat16"),
    "attention bfloat16 of 128": lambda: attention("bfloat16", 128),
    "attention of 128": lambda: attention("float32", 128),
    "gradients of attention": attention_gradients,
    "gradients of attention bfloat16": lambda: attention_gradients("bfloat16"),
    "layer bfloat16": lambda: layer(4096, 1024, 1024),
    "transpose": transpose,
    "sum over a batch": long_sum,
    "perceptron": lambda: training_step("perceptron"),
    "LeNet": lambda: training_step("LeNet"),
    "transformer block": transformer_block,
}


class KeptCompiler:
    """A compiler whose results stay in the cache of the run: `--kept-cache` resumes an ended run."""

    def __init__(self, compiler: Nvrtc | Nvcc) -> None:
        self._compiler = compiler

    def compile_and_report(
        self, text: str, architecture: str, name: str, *options: str
    ) -> tuple[bytes, str]:
        """Return a cubin and the messages of the compiler."""
        key = "\0".join([self._compiler.identity, architecture, *options, text])
        directory = Path(os.environ["XDG_CACHE_HOME"]) / "assembly"
        path = directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
        if not path.is_file():
            found = self._compiler.compile_and_report(text, architecture, name, *options)
            content, log = found
            directory.mkdir(parents=True, exist_ok=True)
            own = path.with_suffix(f".{os.getpid()}")
            own.write_bytes(log.encode() + b"\0" + content)
            own.replace(path)
        kept, _, content = path.read_bytes().partition(b"\0")
        return content, kept.decode()


class Network:
    """The kernels of a network for a device, compiled.

    Attributes:
        kernels: The threads of a block and the assembly of each.
    """

    def __init__(
        self, program: LoopProgram, architecture: str, compiler: Nvrtc | Nvcc, disassembler: Path
    ) -> None:
        source = generate(plan_kernels(program, target_for(architecture, compiler)))
        found = assemble(
            KeptCompiler(compiler), disassembler, DIALECT.unit(source.kernels), architecture
        )
        self.kernels: list[tuple[int, Assembly]] = [
            (each.block[0], found[each.symbol]) for each in source.kernels
        ]

    def rows(self) -> Iterator[str]:
        """Yield a row of the table for each kernel."""
        for number, (threads, each) in enumerate(self.kernels, 1):
            accesses = (each.accesses(name) for name in ("LDG", "LDGSTS", "STG", "LDS", "STS"))
            counts = (each.instructions.get(name, 0) for name in ("SHFL", "BAR"))
            cells = (
                number,
                threads,
                each.resources.registers,
                each.resources.shared_bytes,
                *accesses,
                *counts,
                each.matrix_instructions,
            )
            yield ROW.format(*cells).rstrip()


ROW = "  {:>3} {:>4} {:>4} {:>6}  {:<20} {:<12} {:<16} {:<16} {:<16} {:>4} {:>4} {:>4}"
HEAD = ROW.format(
    "no", "thr", "regs", "shared", "LDG", "LDGSTS", "STG", "LDS", "STS", "SHFL", "BAR", "MMA"
).rstrip()
