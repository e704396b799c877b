"""Random calls of exported files under sanitizers, by two threads with a state each.

    python -m tests.fuzz.run --exported --count 10000

A call has any bits as numbers (NaN, infinities and denormals included), positions and integer
arguments beyond their ranges, null inputs; between them come states and weights that are null,
misaligned or too small. Each has the result that its arguments allow, and both threads have equal
bits.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.runtime.routine import Routine

HARNESS = Path(__file__).with_name("exported.c")
SANITIZERS = ("address,undefined", "thread")


def perceptron() -> Mapping[str, Routine]:
    """A training step with Adam, and a prediction."""
    x, t = oc.placeholder("x", batch=[8], output=[10]), oc.placeholder("t", batch=[8], output=[3])
    y = nn.dense(oc.tanh(nn.dense(x, output=[16])), output=[3])
    loss = oc.mean((y - t) ** 2)
    ctx = oc.Context("cpu_c")
    optimizer = oc.train.Adam(learning_rate=1e-2, clip_norm=1.0)
    train = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
    ctx.init_params(loss)
    return {"train": train, "predict": ctx.compile(oc.train.forward(y))}


def positions() -> Mapping[str, Routine]:
    """Positions in a table, an extent at run time, a static index and random numbers."""
    n, k = oc.static_extent("n", max=6), oc.static_index("k", range=4)
    ids = oc.placeholder("ids", batch=[n], dtype="int32")
    x = oc.placeholder("x", batch=[n], output=[4])
    y = nn.embedding(ids, entries=20, width=4) * x + oc.number(k)
    z = oc.sum(nn.layer_norm(y), axis=1)
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(z), bindings=[k])
    ctx.init_params(z)
    return {"run": run}


def formats() -> Mapping[str, Routine]:
    """Narrow floats, integers, conversions between them, and data in four bits."""
    x = oc.placeholder("x", output=[32], dtype="bfloat16")
    h = oc.placeholder("h", output=[32], dtype="float16")
    c = oc.placeholder("c", output=[32], dtype="int8")
    d = oc.placeholder("d", output=[32], dtype="float64")
    q = oc.placeholder("q", output=[32], dtype="int4")
    y = oc.cast(x, "float32") * oc.cast(h, "float32") + oc.cast(c, "float32")
    whole = oc.cast(oc.cast(y, "int8"), "float32") + oc.cast(oc.cast(d, "int32"), "float32")
    z = oc.cast(y + whole, "float8_e4m3fn"), c * c + 100, oc.cast(q, "float32") * y, oc.sort(y)
    ctx = oc.Context("cpu_c")
    code = oc.train.forward(z[0])
    for each in z[1:]:
        code = code + oc.train.forward(each)
    return {"run": ctx.compile(code)}


def text() -> Mapping[str, Routine]:
    """The routine of a generator: tokens are written one by one, from a cache."""
    model = nn.gpt(vocabulary=20, layers=1, heads=2, width=8, length=16)
    ids = oc.placeholder("ids", batch=[1, 4], dtype="int32")
    ctx = oc.Context("cpu_c")
    ctx.init_params(model(ids))
    generate = nn.Generator(ctx, model)
    generate([1, 2, 3], 3)
    return {"write": generate.write}


def convolution() -> Mapping[str, Routine]:
    """Cells with margins."""
    x = oc.placeholder("x", batch=[2], output=[8, 8, 3])
    y = nn.max_pool2d(oc.relu(nn.batch_norm(nn.conv2d(x, channels=4))))
    loss = oc.mean(nn.dense(y, output=[2]) ** 2)
    ctx = oc.Context("cpu_c")
    train = ctx.compile(oc.train.grad_update(loss) + oc.train.SGD(learning_rate=1e-2).update(loss))
    ctx.init_params(loss)
    return {"train": train}


PROGRAMS: Mapping[str, Callable[[], Mapping[str, Routine]]] = {
    "perceptron": perceptron,
    "positions": positions,
    "formats": formats,
    "text": text,
    "convolution": convolution,
}


def outcome(name: str, sanitizer: str, count: int, folder: Path) -> tuple[bool, str]:
    """Return True if calls of a program are clean, and the output."""
    with oc.Session(seed=1):
        routines = PROGRAMS[name]()
        context = next(iter(routines.values())).context
        beside = "beside" if len(name) % 2 else "inside"
        files = context.export(routines, folder / "model.c", weights=beside, target="x86-64-v3")
    weights = folder / "weights.bin"
    if files.weights is not None:
        content = files.weights.read_bytes()
        weights.write_bytes(content[8 + int.from_bytes(content[:8], "little") :])
    program = folder / f"model-{sanitizer}"
    flags = ["-O1", "-g", "-w", "-mavx2", "-mfma", "-mf16c", f"-fsanitize={sanitizer}"]
    flags += ["-fno-sanitize-recover=all", "-ffp-contract=off", f"-I{folder}"]
    compiler = shutil.which("cc") or "gcc"
    made = subprocess.run(
        [compiler, *flags, str(HARNESS), str(files.source), "-o", str(program), "-lpthread", "-lm"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        return False, made.stderr
    ran = subprocess.run(
        [str(program), str(count), str(weights)], capture_output=True, text=True, check=False
    )
    return ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="--exported", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="the calls of each program")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.only:
        for sanitizer in SANITIZERS:
            with tempfile.TemporaryDirectory(prefix="ocannl-") as folder:
                is_clean, output = outcome(name, sanitizer, options.count, Path(folder))
            failed += not is_clean
            print(f"{name}, {sanitizer}: {'clean' if is_clean else 'FAILED'}, {output.strip()}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
