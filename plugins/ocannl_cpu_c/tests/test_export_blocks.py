"""Exported blocks of `oc.nn` and number formats: the same bits by every compiler and processor."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from importlib.util import find_spec
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.runtime.routine import Routine
from tests.support import strict_compilers
from tests.support.example_count import is_exploring
from tests.support.exported_routines import Exported, compiled, exported, recorded_routines
from tests.support.slow import long

Array = np.ndarray[Any, Any]
Given = tuple[oc.Tensor, Array]
ZIG = [sys.executable, "-P", "-m", "ziglang", "cc"]


def numbers(*extents: int) -> Array:
    return np.random.default_rng(len(extents)).standard_normal(extents).astype(np.float32)


def given(name: str, batch: list[int], output: list[int], dtype: str = "float32") -> Given:
    tensor = oc.placeholder(name, batch=batch, output=output, dtype=dtype)
    return tensor, numbers(*batch, *output)


def positions(name: str, *extents: int, below: int = 3) -> Given:
    cells = np.random.default_rng(0).integers(0, below, extents).astype(np.int32)
    return oc.placeholder(name, batch=list(extents), dtype="int32"), cells


def trained(result: oc.Tensor, *inputs: Given) -> list[Routine]:
    """Return a training step with Adam, and an evaluation."""
    loss = oc.mean(result * result)
    ctx = oc.Context("cpu_c")
    optimizer = oc.train.Adam(learning_rate=1e-2, clip_norm=1.0)
    step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss), name="train")
    evaluation = ctx.compile(oc.train.forward(loss), name="evaluate")
    ctx.init_params(loss)
    for tensor, cells in inputs:
        ctx[tensor] = cells
    return [step, evaluation]


def computed(result: oc.Tensor, *inputs: Given) -> list[Routine]:
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(result), name="run")
    ctx.init_params(result)
    for tensor, cells in inputs:
        ctx[tensor] = cells
    return [run]


def image(block: Callable[[oc.Tensor], oc.Tensor]) -> list[Routine]:
    x = given("x", [2], [8, 8, 4])
    return trained(block(x[0]), x)


def rows(block: Callable[[oc.Tensor], Any]) -> list[Routine]:
    x = given("x", [2, 6], [16])
    made = block(x[0])
    return trained(made[0] if isinstance(made, tuple) else made, x)


def embeddings() -> list[Routine]:
    ids = positions("ids", 2, 5, below=9)
    y = nn.learned_positions(nn.embedding(ids[0], entries=9, width=8), length=5)
    y = nn.sinusoidal_positions(nn.layer_norm(y))
    return trained(nn.dense(y, output=[3]), ids)


def losses() -> list[Routine]:
    x, t, ids = given("x", [4], [6]), given("t", [4], [3]), positions("ids", 4)
    scores = nn.dense(x[0], output=[3])
    total = nn.cross_entropy(scores, ids[0], smoothing=0.1) + nn.huber(scores, t[0])
    total += nn.binary_cross_entropy(scores, oc.sigmoid(t[0])) + nn.hinge(scores, t[0])
    return trained(total + nn.kl_divergence(oc.log_softmax(scores), oc.softmax(t[0])), x, t, ids)


def decoder() -> list[Routine]:
    x, memory = given("x", [2, 6], [16]), given("memory", [2, 5], [16])
    return trained(nn.transformer_decoder(x[0], memory[0], layers=1, heads=2, hidden=24), x, memory)


def rotated(x: oc.Tensor) -> oc.Tensor:
    return nn.rotary(nn.rms_norm(nn.dense(x, output=[8])))


def generator() -> list[Routine]:
    """Several routines that share a cache of keys and values."""
    model = nn.gpt(vocabulary=20, layers=2, heads=2, width=8, length=32)
    ids = oc.placeholder("ids", batch=[1, 4], dtype="int32")
    ctx = oc.Context("cpu_c")
    ctx.init_params(model(ids))
    with recorded_routines() as found:
        generate = nn.Generator(ctx, model)
        generate(list(range(12)), 3, temperature=0.7)
        generate([1, 2, 3], 3, temperature=0.7, top_k=5, top_p=0.9)
    return found


def narrow(dtype: str, param_dtype: str) -> list[Routine]:
    with oc.Session(dtype=dtype, param_dtype=param_dtype):
        x = given("x", [4], [32], dtype)
        y = nn.dense(oc.gelu(nn.dense(x[0], output=[32])), output=[8])
        return computed(nn.layer_norm(y), x)


def mixed_training() -> list[Routine]:
    """Parameters in float32, everything else in bfloat16."""
    with oc.Session(dtype="bfloat16", param_dtype="float32"):
        x = given("x", [4], [32], "bfloat16")
        y = nn.dense(oc.gelu(nn.dense(x[0], output=[32])), output=[8])
        return trained(oc.cast(y, "float32"), x)


def quantized(dtype: str, least: int, most: int) -> list[Routine]:
    """Weights of few bits with a scale for each row, beside activations in float32."""
    x = given("x", [3], [64])
    cells = np.random.default_rng(2).integers(least, most + 1, (16, 64)).astype(np.int8)
    scale = oc.tensor(np.linspace(0.01, 0.02, 16).astype(np.float32))
    return computed(oc.matmul(oc.tensor(cells, input_axes=1, dtype=dtype), x[0]) * scale, x)


def doubles() -> list[Routine]:
    with oc.Session(dtype="float64"):
        x = given("x", [4], [8], "float64")
        return trained(nn.dense(oc.sqrt(oc.abs(x[0])) + 1 / x[0], output=[3]), x)


def functions_of_doubles() -> list[Routine]:
    """Elementary functions of the C library, which rounds its own way on each processor."""
    with oc.Session(dtype="float64"):
        x = given("x", [4], [50], "float64")
        y = oc.exp(x[0]) + oc.tanh(x[0]) + oc.log(oc.abs(x[0])) + oc.sin(x[0]) + oc.erf(x[0])
        return computed(y, x)


def ordered() -> list[Routine]:
    x = given("x", [4], [20])
    values, _ = oc.topk(x[0], 5)
    return computed(oc.sum(values) + oc.sum(oc.cumsum(oc.sort(x[0], axis=1), axis=1)), x)


BLOCKS: dict[str, Callable[[], list[Routine]]] = {
    "attention": lambda: rows(lambda x: nn.multi_head_attention(x, heads=2, causal=True)),
    "basic_block": lambda: image(lambda x: nn.basic_block(x, channels=4)),
    "batch_norm": lambda: image(lambda x: nn.batch_norm(nn.conv2d(x, channels=6))),
    "bottleneck_block": lambda: image(lambda x: nn.bottleneck_block(x, channels=4)),
    "decoder": decoder,
    "doubles": doubles,
    "functions_of_doubles": functions_of_doubles,
    "dropout": lambda: rows(lambda x: nn.dropout(nn.dense(x, output=[8]), rate=0.3)),
    "embeddings": embeddings,
    "encoder": lambda: rows(lambda x: nn.transformer_encoder(x, layers=1, heads=2, hidden=24)),
    "generator": generator,
    "group_norm": lambda: image(lambda x: nn.group_norm(x, groups=2) + nn.instance_norm(x)),
    "gru": lambda: rows(lambda x: nn.gru(x, width=8, bidirectional=True)),
    "int4": lambda: quantized("int4", -8, 7),
    "int8": lambda: quantized("int8", -100, 100),
    "losses": losses,
    "lstm": lambda: rows(lambda x: nn.lstm(x, width=8, layers=2)),
    "mixed": mixed_training,
    "mobilenet": lambda: image(lambda x: nn.mobilenet(x, classes=3, first=4, channels=(8, 8))),
    "ordered": ordered,
    "pooling": lambda: image(lambda x: nn.max_pool2d(oc.relu(nn.conv2d(x))) + nn.avg_pool(x)),
    "resize": lambda: image(
        lambda x: nn.resize(nn.conv2d(x, channels=3), (12, 12), mode="bilinear")
    ),
    "rnn": lambda: rows(lambda x: nn.rnn(x, width=8)),
    "rotary": lambda: rows(rotated),
    "separable_conv": lambda: image(lambda x: nn.separable_conv(x, channels=8)),
    "vgg_block": lambda: image(lambda x: nn.vgg_block(x, channels=6)),
    **{
        f"{each}_weights": lambda each=each: narrow("float32", each)
        for each in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    },
    "bfloat16": lambda: narrow("bfloat16", "bfloat16"),
    "float16": lambda: narrow("float16", "float16"),
}
EVERY_FOURTH = [*BLOCKS][::4]
QUICK = ("int4",)
TARGETS = ("portable", "wasm32", "aarch64")


def targets() -> tuple[str, ...]:
    """Return the targets of emulated processors: all in `explore`, else the one without a C library
    that takes a minute to compile.
    """
    return TARGETS if is_exploring() else ("wasm32",)


def processors() -> list[tuple[str, str]]:
    """Return blocks with targets: all pairs in `explore`, else every second block."""
    names = [name for name in BLOCKS if name != "functions_of_doubles"]
    return [(name, each) for each in targets() for name in names[:: 1 if is_exploring() else 2]]


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session(seed=3):
        yield


def compilers() -> list[list[str]]:
    """Return the compilers of this machine with levels of optimization; in `explore`, all of them,
    else the last one: `gcc` compiles the routines themselves.
    """
    found = [[name] for name in ("gcc", "clang") if shutil.which(name)]
    found += [] if find_spec("ziglang") is None else [ZIG]
    found = found if is_exploring() else found[-1:]
    levels = (1, 2, 3) if is_exploring() else (3,)
    return [[*each, f"-O{level}"] for each in found for level in levels]


@pytest.mark.parametrize("name", QUICK)
def test_the_bits_of_the_routines(name: str, tmp_path: Path) -> None:
    model = exported(BLOCKS[name](), tmp_path)
    assert model.differences(model.states(compiled(model, ["cc", "-O2", "-march=native"]))) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*EVERY_FOURTH, *long(each for each in BLOCKS if each not in EVERY_FOURTH)]
)
def test_the_bits_of_the_routines_by_every_compiler(name: str, tmp_path: Path) -> None:
    model = exported(BLOCKS[name](), tmp_path, weights="beside")
    for number, command in enumerate(compilers()):
        library = compiled(model, [*command, "-march=native"], f"model{number}")
        assert model.differences(model.states(library)) == [], command


def emulated(model: Exported, target: str) -> dict[str, list[bytes]]:
    """Return the states after calls on the processors that run code for a target."""
    found = {}
    if target == "wasm32":
        module = model.module()
        if node := shutil.which("node"):
            found["node"] = model.states_in_node(module, node)
        if find_spec("wasmtime") is not None:
            found["wasmtime"] = model.states_in_wasmtime(module)
        return found
    triples = {"aarch64": ["aarch64-linux-musl"], "portable": ["arm-linux-musleabi"]}
    for triple in triples[target]:
        if emulator := shutil.which(f"qemu-{triple.partition('-')[0]}"):
            command = [*ZIG, "-O2", "-target", triple, "-static"]
            found[triple] = model.states_of_program(command, [emulator])
    return found


VECTORS = """\
#include <stdint.h>
void _start(void);
static void reset(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xfu << 20; /* the unit for floats */
  __asm__ volatile("dsb\\nisb");
  _start();
}
static void stop(void) { for (;;) {} }
__attribute__((section(".vectors"), used)) static void *const table[] = {
  (void *)0x20400000, (void *)reset, (void *)stop, (void *)stop};
"""
"""The first words of the memory of a microcontroller: its stack, and the beginning of programs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "machine", "flags"),
    [
        ("cortex-m0", "mps2-an385", ["-mcpu=cortex-m0"]),
        ("cortex-m4", "mps2-an386", ["-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"]),
    ],
)
@pytest.mark.parametrize("name", ["attention", "batch_norm", "embeddings", "int4", "bfloat16"])
def test_the_same_bits_on_microcontrollers(
    name: str, target: str, machine: str, flags: list[str], tmp_path: Path
) -> None:
    compiler, emulator = shutil.which("arm-none-eabi-gcc"), shutil.which("qemu-system-arm")
    if compiler is None or emulator is None:
        pytest.skip("no compiler or emulator of microcontrollers on this machine")
    model = exported(BLOCKS[name](), tmp_path, target=target)
    here = model.states(compiled(model, ["cc", "-O2", "-mfma"]))
    (tmp_path / "vectors.c").write_text(VECTORS)
    linked = ["-mthumb", "--specs=rdimon.specs", "-Wl,--section-start=.vectors=0x0"]
    command = [compiler, "-O2", "-std=gnu11", *flags, *linked, str(tmp_path / "vectors.c")]
    quiet = ["-display", "none", "-serial", "null", "-monitor", "none"]
    runner = [emulator, "-M", machine, *quiet, "-semihosting", "-kernel"]
    assert model.differences(model.states_of_program(command, runner), here) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target"), processors())
def test_the_same_bits_on_every_processor(name: str, target: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    model = exported(BLOCKS[name](), tmp_path, target=target)
    here = model.states(compiled(model, ["cc", "-O2", "-mfma"]))
    there = emulated(model, target)
    if not there:
        pytest.skip(f"no emulator of {target} on this machine")
    for runner, states in there.items():
        assert model.differences(states, here) == [], runner


@pytest.mark.slow
@pytest.mark.parametrize("target", targets())
def test_functions_of_doubles_are_close_on_every_processor(target: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    model = exported(functions_of_doubles(), tmp_path, target=target)
    there = emulated(model, target)
    if not there:
        pytest.skip(f"no emulator of {target} on this machine")
    for runner, states in there.items():
        assert model.largest_error(states) < 4e-15, runner


@pytest.mark.parametrize("target", ["portable", "x86-64"])
def test_nothing_undefined_happens_at_the_edges_of_functions(tmp_path: Path, target: str) -> None:
    """Numbers that are negative, far from 0, or none."""
    x = oc.placeholder("x", output=[24])
    results = {
        "a": oc.log(x),
        "b": oc.log2(x),
        "c": oc.log1p(x),
        "d": oc.cast(x, "int32"),
        "e": oc.cast(x, "int8"),
        "f": oc.sort(x),
        "g": oc.argsort(x, descending=True),
        "h": oc.exp(x) + oc.expm1(x) + oc.tanh(x) + oc.sin(x) + oc.erf(x),
    }
    ctx = oc.Context("cpu_c")
    code = reduce(add, map(oc.train.forward, results.values()))
    routine = ctx.compile(code, keep=list(results.values()))
    ctx.export({"run": routine}, tmp_path / "model.c", outputs=results, target=target)
    outputs = ", ".join("0" for _ in results)
    (tmp_path / "main.c").write_text(
        f"""\
#include "model.h"
#include <math.h>
static _Alignas(64) char state[MODEL_STATE_BYTES];
int main(void) {{
  float x[24] = {{
    0, -0.0f, 1, -1, NAN, -NAN, INFINITY, -INFINITY, 0x1p-149f, -0x1p-149f, 0x1p-126f, -0x1p-127f,
    0x1p31f, -0x1p31f, 0x1p54f, -0x1p54f, 3e38f, -3e38f, -0.5f, -2, 128, -129, 4e9f, -4e9f,
  }};
  return model_init(state, sizeof state) || model_run(state, x, {outputs});
}}
"""
    )
    compiler = strict_compilers.compilers()[0]
    command = [compiler, "-w", "-O1", "-fsanitize=undefined,float-cast-overflow"]
    sources = [str(tmp_path / "main.c"), str(tmp_path / "model.c")]
    linked = subprocess.run(
        [*command, *sources, "-lm", "-o", str(tmp_path / "main")], capture_output=True, check=False
    )
    if linked.returncode:
        pytest.skip("no sanitizers on this machine")
    ran = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
