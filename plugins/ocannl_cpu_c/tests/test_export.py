"""Exported C files, compiled by several compilers at several levels: the same bits as routines."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.base.errors import CodegenError, LinkError, UsageError
from ocannl_core.ir.serialization.safetensors import parse_header
from ocannl_core.runtime.export.exported import ExportedError, ExportedModel, load_exported
from ocannl_core.runtime.routine import Routine
from tests.support.strict_compilers import built, compilers

Array = np.ndarray[Any, Any]
FLAGS = (["-O1"], ["-O3", "-march=native"])


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return rng().standard_normal(shape).astype(np.float32)


class Program:
    """Routines of a context with inputs, and the calls that are compared."""

    def __init__(
        self,
        routines: Mapping[str, Routine],
        inputs: Mapping[oc.Tensor, Array],
        calls: list[tuple[str, Mapping[str, int]]],
        *results: oc.Tensor,
    ) -> None:
        self.routines, self.inputs, self.calls = routines, inputs, calls
        self.tensors = results  # contexts keep none of them alive
        self.context = next(iter(routines.values())).context

    def results(self) -> list[dict[str, bytes]]:
        """Return the cells that each call writes, by name, from the values of now on; restore
        them.
        """
        context, found = self.context, []
        memory = {
            stored.tensor: stored
            for each in self.routines.values()
            for stored in each.memory.values()
            if stored.tensor is not None and stored.tensor not in self.inputs
        }
        before = {tensor: context[tensor] for tensor, each in memory.items() if each.has_value}
        for tensor, cells in self.inputs.items():
            context[tensor] = cells
        for name, indices in self.calls:
            self.routines[name](**indices)
            writes = self.routines[name].writes
            found.append({t.node.name: context[t].tobytes() for t in memory if t.node in writes})
        for tensor, cells in before.items():
            context[tensor] = cells
        return found

    def compare(self, model: ExportedModel, results: list[dict[str, bytes]]) -> None:
        """Run the calls on an exported model and compare bit for bit."""
        given = {tensor.node.name: cells for tensor, cells in self.inputs.items()}
        roles = model.tensors
        for (name, indices), expected in zip(self.calls, results, strict=True):
            inputs, outputs = model.arguments(name)
            made = getattr(model, name)(*(given[each] for each in inputs), **indices)
            assert not expected.keys().isdisjoint(outputs)
            for output, cells in zip(outputs, made, strict=True):
                if output in expected:  # its tensor is alive
                    assert np.asarray(cells).tobytes() == expected[output], (name, output)
            for each, cells in expected.items():
                if roles.get(each, ("",))[0] == "state":
                    assert np.asarray(model.cells(each)).tobytes() == cells, (name, each)


def perceptron() -> Program:
    x, t = oc.placeholder("x", batch=[8], output=[10]), oc.placeholder("t", batch=[8], output=[3])
    hidden = oc.tanh(nn.dense(x, output=[16], label="hidden"))
    y = nn.dense(hidden, output=[3], label="last")
    loss = oc.mean((y - t) ** 2)
    ctx = oc.Context("cpu_c")
    update = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1, momentum=0.9)
    routines = {"train": ctx.compile(update), "predict": ctx.compile(oc.train.forward(y))}
    ctx.init_params(loss)
    calls: list[tuple[str, Mapping[str, int]]] = [("train", {})] * 3 + [("predict", {})]
    return Program(routines, {x: normal(8, 10), t: normal(8, 3)}, calls, loss, y)


def adam() -> Program:
    x, t = oc.placeholder("x", batch=[8], output=[10]), oc.placeholder("t", batch=[8], output=[3])
    loss = oc.mean((nn.dense(x, output=[3]) - t) ** 2)
    ctx = oc.Context("cpu_c")
    rate = oc.train.cosine(1e-2, steps=10)
    optimizer = oc.train.Adam(learning_rate=rate, weight_decay=1e-2, clip_norm=1.0)
    train = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss), name="train")
    ctx.init_params(loss)
    return Program({"train": train}, {x: normal(8, 10), t: normal(8, 3)}, [("train", {})] * 3, loss)


def forward(*results: oc.Tensor, inputs: Mapping[oc.Tensor, Array], **indices: Any) -> Program:
    """Return a program that computes tensors, and their gradients if they have some."""
    bindings = indices.pop("bindings", ())
    ctx = oc.Context("cpu_c")
    code = oc.train.forward(results[0])
    for each in results[1:]:
        code = code + oc.train.forward(each)
    run = ctx.compile(code, bindings, name="run")
    ctx.init_params(code)
    return Program({"run": run}, inputs, [("run", indices)], *results)


def with_gradients(loss: oc.Tensor, inputs: Mapping[oc.Tensor, Array]) -> Program:
    ctx = oc.Context("cpu_c")
    train = ctx.compile(oc.train.grad_update(loss), name="run")
    ctx.init_params(loss)
    return Program({"run": train}, inputs, [("run", {}), ("run", {})], loss)


def image() -> Program:
    x = oc.placeholder("x", batch=[2], output=[28, 28, 1])
    return forward(nn.lenet(x, classes=10), inputs={x: normal(2, 28, 28, 1)})


def sequence() -> Program:
    x = oc.placeholder("x", batch=[3, 7], output=[5])
    y = nn.lstm(x, width=8)
    y = y[0] if isinstance(y, tuple) else y
    return with_gradients(oc.mean(y * y), {x: normal(3, 7, 5)})


def attention() -> Program:
    x = oc.placeholder("x", batch=[2, 8], output=[16])
    y = nn.transformer_layer(x, heads=2, hidden=32, causal=True)
    return with_gradients(oc.mean(y * y), {x: normal(2, 8, 16)})


def product() -> Program:
    x = oc.placeholder("x", batch=[64], output=[100])
    y = nn.dense(x, output=[130])
    return with_gradients(oc.mean(y * y), {x: normal(64, 100)})


def positions() -> Program:
    ids = oc.placeholder("ids", batch=[5], dtype="int32")
    y = nn.embedding(ids, entries=9, width=4)
    i = oc.static_index("i", range=4)
    return forward(
        y * oc.number(i), inputs={ids: np.array([0, 8, 3, 3, 1], np.int32)}, bindings=[i], i=2
    )


def extent() -> Program:
    n = oc.static_extent("n", max=6)
    x = oc.placeholder("x", batch=[n], output=[4])
    return forward(oc.sum(nn.dense(oc.tanh(x), output=[3]), axis=1), inputs={x: normal(3, 4)}, n=3)


def integers() -> Program:
    x = oc.placeholder("x", batch=[4], output=[64], dtype="int8")
    weights = rng().integers(-100, 100, (8, 64)).astype(np.int8)
    y = oc.matmul(oc.tensor(weights, input_axes=1), x, dtype="int32")
    return forward(y, inputs={x: rng().integers(-100, 100, (4, 64)).astype(np.int8)})


def narrow() -> Program:
    x = oc.placeholder("x", batch=[4], output=[64])
    with oc.Session(dtype="float32", param_dtype="bfloat16"):
        x = oc.placeholder("x", batch=[4], output=[64])
        y = nn.dense(oc.gelu(nn.dense(x, output=[64], label="hidden")), output=[8], label="last")
        return forward(y, inputs={x: normal(4, 64)})


def conversions() -> Program:
    x = oc.placeholder("x", batch=[3], output=[2], dtype="float64")
    cells = rng().standard_normal((3, 2))
    return forward(oc.cast(oc.cast(x, "float32"), "float64") + x, inputs={x: cells})


def ordering() -> Program:
    x = oc.placeholder("x", batch=[4], output=[20])
    return forward(oc.sort(x, axis=1), oc.cumsum(x, axis=1), inputs={x: normal(4, 20)})


def randomness() -> Program:
    x = oc.placeholder("x", batch=[4], output=[64])
    y = nn.dropout(nn.dense(x, output=[8]), rate=0.3)
    return with_gradients(oc.mean(y * y), {x: normal(4, 64)})


PROGRAMS: tuple[Callable[[], Program], ...] = (
    perceptron,
    adam,
    image,
    sequence,
    attention,
    product,
    positions,
    extent,
    integers,
    narrow,
    conversions,
    ordering,
    randomness,
)
LONG = (image, sequence, attention, product, narrow, adam)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(each, id=each.__name__, marks=[pytest.mark.slow] if each in LONG else [])
        for each in PROGRAMS
    ],
)
def test_the_bits_of_the_routine(make: Callable[[], Program], tmp_path: Path) -> None:
    oc.reset()
    program = make()
    weights = "beside" if len(make.__name__) % 2 else "inside"
    files = program.context.export(program.routines, tmp_path / "model.c", weights=weights)
    results = program.results()
    for command in compilers():
        for flags in FLAGS[:1] if command.endswith("clang") else FLAGS:
            library = built(files.source, command, flags)
            program.compare(load_exported(library, "model", files.weights), results)


@pytest.mark.parametrize("target", ["portable", "x86-64", "aarch64", "wasm32"])
def test_the_same_bits_from_every_compiler(target: str, tmp_path: Path) -> None:
    oc.reset()
    program = perceptron()
    files = program.context.export(program.routines, tmp_path / "model.c", target=target)
    given = list(program.inputs.values())
    found = set()
    for command in compilers():
        for flags in FLAGS:
            model = load_exported(built(files.source, command, flags), "model")
            for _ in range(3):
                model.train(*given)
            found.add(np.asarray(model.cells("weight_hidden")).tobytes())
    assert len(found) == 1


def test_arrays_of_kernels_are_aligned_in_c99(tmp_path: Path) -> None:
    oc.reset()
    a, b = (oc.placeholder(name, output=[128, 128], dtype="float16") for name in "ab")
    ctx = oc.Context("cpu_c")
    routine = ctx.compile(oc.train.forward(oc.einsum("ij; jk => ik", a, b)))
    files = ctx.export(routine, tmp_path / "model.c")
    assert "aligned(64)" in files.source.read_text()
    for command in compilers():
        built(files.source, command, ["-std=c99"])


def test_states_are_independent(tmp_path: Path) -> None:
    program = perceptron()
    files = program.context.export(program.routines, tmp_path / "model.c")
    library = built(files.source, compilers()[0], ["-O0"])
    first, second = load_exported(library, "model"), load_exported(library, "model")
    given = list(program.inputs.values())
    first.train(*given)
    (trained,), (untrained,) = first.predict(given[0]), second.predict(given[0])
    assert not np.array_equal(np.asarray(trained), np.asarray(untrained))
    second.train(*given)
    assert np.array_equal(np.asarray(trained), np.asarray(second.predict(given[0])[0]))


def test_wrong_arguments_of_c_have_results(tmp_path: Path) -> None:
    program = positions()
    files = program.context.export(program.routines, tmp_path / "model.c", weights="beside")
    assert files.weights is not None
    library = ctypes.CDLL(str(built(files.source, compilers()[0], ["-O0"])))
    library.model_status_text.restype = ctypes.c_char_p
    content = files.weights.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    weights = np.frombuffer(content[start:] + bytes(8), np.uint8).copy()
    memory = np.zeros(files.state_bytes + 64, np.uint8)
    state = memory.ctypes.data + -memory.ctypes.data % 64
    ids, out = np.array([0, 8, 3, 3, 1], np.int32), np.zeros((5, 4), np.float32)

    def call(state: int, ids: Array | None, i: int) -> bytes:
        arguments = None if ids is None else ids.ctypes.data
        pointers = [ctypes.c_void_p(each) for each in (state, arguments, out.ctypes.data)]
        text: bytes = library.model_status_text(library.model_run(*pointers, ctypes.c_int64(i)))
        return text

    def init(state: int, nbytes: int, weights: int | None, weights_bytes: int) -> bytes:
        text: bytes = library.model_status_text(
            library.model_init(
                ctypes.c_void_p(state),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(weights),
                ctypes.c_size_t(weights_bytes),
            )
        )
        return text

    at, size = weights.ctypes.data, files.weights_bytes
    assert b"not initialized" in call(state, ids, 2)
    assert b"too small" in init(state, files.state_bytes - 1, at, size)
    assert b"aligned" in init(state + 8, files.state_bytes, at, size)
    assert b"weights" in init(state, files.state_bytes, None, size)
    assert b"weights" in init(state, files.state_bytes, at, size - 1)
    assert b"not of this model" in init(state, files.state_bytes, at + 8, size)
    assert init(state, files.state_bytes, at, size) == b"no error"
    assert call(state, ids, 2) == b"no error"
    assert b"input is null" in call(state, None, 2)
    assert b"out of its range" in call(state, ids, 4)
    assert b"out of its range" in call(state, ids, -1)
    assert b"beyond its axis" in call(state, np.array([0, 9, 3, 3, 1], np.int32), 2)
    assert call(state, ids, 3) == b"no error"
    assert library.model_status_text(99) == b"unknown status"


def test_no_library_is_needed(tmp_path: Path) -> None:
    program = perceptron()
    files = program.context.export(program.routines, tmp_path / "model.c")
    library = built(files.source, compilers()[0], ["-O2", "-ffreestanding", "-nostdlib", "-mfma"])
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("no nm on this machine")
    listed = subprocess.run([nm, "-u", str(library)], capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) <= {"U", "memcpy", "memset"}


@pytest.mark.slow
def test_a_training_step_in_webassembly(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js on this machine")
    program = perceptron()
    for weights in ("inside", "beside"):
        name = f"{weights}_model"
        path = tmp_path / f"{name}.wasm"
        files = program.context.export(program.routines, path, weights=weights)
        assert path.stat().st_size < 40_000
        given = {tensor.node.name: cells for tensor, cells in program.inputs.items()}
        for each, cells in given.items():
            (tmp_path / each).write_bytes(cells.tobytes())
        (tmp_path / "main.mjs").write_text(
            f"""
            import {{ readFileSync, writeFileSync }} from "node:fs";
            import {{ load }} from "./{name}.mjs";
            const cells = (name) => new Float32Array(new Uint8Array(readFileSync(name)).buffer);
            const model = await load(), other = await load();
            for (let step = 0; step < 3; ++step) model.train({{ x: cells("x"), t: cells("t") }});
            writeFileSync("trained", model.cells("weight_hidden"));
            writeFileSync("untrained", other.cells("weight_hidden"));
            try {{ model.predict({{ x: new Float32Array(3) }}); }}
            catch (error) {{ console.log(error.message); }}
            try {{ model.cells("toString"); }} catch (error) {{ console.log(error.message); }}
            try {{ await load(undefined, new Uint8Array(5)); console.log("no weights"); }}
            catch (error) {{ console.log(error.message); }}
            """
        )
        ran = subprocess.run(
            [node, "main.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert ran.stdout.splitlines() == [
            "predict: x is a Float32Array of 80 cells",
            "there is no tensor toString",
            f"the weights have 5 bytes, not {files.weights_bytes}"
            if weights == "beside"
            else "no weights",
        ]
        native = load_exported(built(files.source, compilers()[0], ["-O2"]), name, files.weights)
        untrained = np.asarray(native.cells("weight_hidden")).tobytes()
        for _ in range(3):
            native.train(*given.values())
        trained = np.asarray(native.cells("weight_hidden")).tobytes()
        assert (tmp_path / "untrained").read_bytes() == untrained != trained
        assert (tmp_path / "trained").read_bytes() == trained


def test_two_files_in_one_program_of_cpp(tmp_path: Path) -> None:
    program = perceptron()
    for name in ("first", "second"):
        program.context.export(program.routines, tmp_path / f"{name}.c")
    (tmp_path / "main.cpp").write_text(
        """\
#include "first.h"
#include "second.h"
alignas(64) static char a[FIRST_STATE_BYTES], b[SECOND_STATE_BYTES];
static const float x[8 * 10] = {1}, t[8 * 3] = {2};
int main() {
  float loss[2];
  if (first_init(a, sizeof a) || second_init(b, sizeof b)) return 1;
  if (first_train(a, x, t, &loss[0]) || second_train(b, x, t, &loss[1])) return 2;
  return loss[0] == loss[1] && loss[0] > 0 ? 0 : 3;
}
"""
    )
    c, cpp = compilers()[0], shutil.which("g++")
    if cpp is None:
        pytest.skip("no compiler of C++ on this machine")
    for name in ("first", "second"):
        object_file = str(tmp_path / f"{name}.o")
        subprocess.run([c, "-c", "-w", str(tmp_path / f"{name}.c"), "-o", object_file], check=True)
    objects = [str(tmp_path / f"{name}.o") for name in ("first", "second")]
    program_file = str(tmp_path / "main")
    subprocess.run(
        [cpp, "-Wall", "-Werror", str(tmp_path / "main.cpp"), *objects, "-lm", "-o", program_file],
        check=True,
    )
    assert subprocess.run([program_file], check=False).returncode == 0


def test_nothing_undefined_happens(tmp_path: Path) -> None:
    program = perceptron()
    program.context.export(program.routines, tmp_path / "model.c")
    (tmp_path / "main.c").write_text(
        """\
#include "model.h"
static _Alignas(64) char state[MODEL_STATE_BYTES];
int main(void) {
  float x[80], t[24], y[24], loss;
  for (int i = 0; i < 80; ++i) x[i] = (float)(i % 7);
  for (int i = 0; i < 24; ++i) t[i] = (float)(i % 5);
  if (model_init(state, sizeof state)) return 1;
  for (int i = 0; i < 100; ++i)
    if (model_train(state, x, t, &loss) || model_predict(state, x, y)) return 2;
  return model_train(state, x, t, 0);
}
"""
    )
    command = [compilers()[0], "-w", "-O1", "-fsanitize=address,undefined", "-static-libasan"]
    sources = [str(tmp_path / "main.c"), str(tmp_path / "model.c")]
    linked = subprocess.run(
        [*command, *sources, "-lm", "-o", str(tmp_path / "main")], capture_output=True, check=False
    )
    if linked.returncode:
        pytest.skip("no sanitizers on this machine")
    ran = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_calls_of_python_are_checked(tmp_path: Path) -> None:
    program = perceptron()
    files = program.context.export(program.routines, tmp_path / "model.c")
    library = built(files.source, compilers()[0], ["-O0"])
    with pytest.raises(ExportedError, match="no shared library of this machine"):
        load_exported(files.source)
    with pytest.raises(ExportedError, match="pass prefix="):
        load_exported(library)
    model = load_exported(library, "model")
    assert model.functions == ("train", "predict")
    assert model.tensors["x"] == ("input", "float32", (8, 10))
    with pytest.raises(ExportedError, match=r"train takes \(x, t\)"):
        model.train(normal(8, 10))
    with pytest.raises(ExportedError, match=r"train takes \(x, t\)"):
        model.train(normal(8, 10), x=normal(8, 10))
    (by_name,), (by_position,) = model.predict(x=normal(8, 10)), model.predict(normal(8, 10))
    assert bytes(by_name) == bytes(by_position)
    assert repr(model).startswith("<exported model model: train(x, t) -> [")
    with pytest.raises(ExportedError, match=r"takes x as \(8, 10\) contiguous cells of float32"):
        model.predict(normal(8, 11))
    with pytest.raises(ExportedError, match="found"):
        model.predict(np.zeros((8, 10), np.int32))
    with pytest.raises(ExportedError, match="buffer protocol"):
        model.predict([0.0] * 80)
    with pytest.raises(ExportedError, match="no tensor"):
        model.cells("nothing")


def test_errors_of_python_name_the_difference(tmp_path: Path) -> None:
    n, k = oc.static_extent("n", max=5), oc.static_index("k", range=4)
    x = oc.placeholder("x", batch=[n], output=[3])
    narrow = oc.placeholder("narrow", output=[3], dtype="bfloat16")
    packed = oc.placeholder("packed", output=[4], dtype="int4")
    data = oc.cast(narrow, "float32") + oc.sum(oc.cast(packed, "float32"))
    y = oc.sum(x, axis=0) + data + oc.number(k)
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(y), bindings=[k], name="run")
    files = ctx.export(run, tmp_path / "model.c")
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    cells = np.ones((2, 3), np.float32)
    given = {
        "x": cells,
        "narrow": np.ones(3, ml_dtypes.bfloat16).view("uint16"),
        "packed": np.array([0x21, 0x43], np.uint8),
        "n": 2,
        "k": 1,
    }
    for same in (cells, cells.reshape(-1)):
        (made,) = model.run(**given | {"x": same})
        assert np.asarray(made).tolist() == [14.0] * 3
    wrong: dict[str, tuple[Any, str]] = {
        "x": (np.ones((3, 2), np.float32), r"as \(2, 3\) .* found \(3, 2\)"),
        "narrow": (np.ones(3, ml_dtypes.bfloat16), r"x\.view\(\"uint16\"\); found ndarray"),
        "packed": (np.ones(4, np.int8), r"int4, two in a byte: 2 bytes; found \(4,\)"),
        "n": (2.0, r"takes n as a 64-bit integer; found 2\.0"),
        "k": (2**64, "takes k as a 64-bit integer"),
    }
    for name, (value, text) in wrong.items():
        with pytest.raises(ExportedError, match=text):
            model.run(**given | {name: value})
    with pytest.raises(ExportedError, match="with gaps between them"):
        model.run(**given | {"x": np.ones((2, 6), np.float32)[:, ::2]})


def test_refusals(tmp_path: Path) -> None:
    class Double(oc.custom.Op):
        spec = "... => ..."

        def perform(self, inputs: Any, outputs: Any) -> None:
            outputs[0][...] = 2 * inputs[0]

    x = oc.placeholder("x", output=[3])
    ctx = oc.Context("cpu_c")
    doubled = Double()(x)
    python = ctx.compile(oc.train.forward(doubled), name="run")
    with pytest.raises(
        CodegenError, match=r"(?s)operation in Python.*Double, which computes .*test_export\.py:\d+"
    ):
        ctx.export(python, tmp_path / "model.c")
    y = oc.tanh(nn.dense(x, output=[2]))
    run = ctx.compile(oc.train.forward(y), name="run")
    with pytest.raises(LinkError, match=r"weight_dense, which run reads, has none"):
        ctx.export(run, tmp_path / "model.c")
    ctx.init_params(y)
    with pytest.raises(UsageError, match="to a C file or a WebAssembly"):
        ctx.export(run, tmp_path / "model.so")
    with pytest.raises(UsageError, match="a folder that exists"):
        ctx.export(run, tmp_path / "nowhere" / "model.c")
    with pytest.raises(UsageError, match="identifiers of C"):
        ctx.export({"int": run}, tmp_path / "model.c")
    with pytest.raises(UsageError, match="functions of its own"):
        ctx.export({"init": run}, tmp_path / "model.c")
    with pytest.raises(UsageError, match="some routine writes"):
        ctx.export(run, tmp_path / "model.c", outputs=[x])
    with pytest.raises(UsageError, match="identifiers of C"):
        ctx.export(run, tmp_path / "my-model.c")
    with pytest.raises(oc.BackendNotFoundError, match="a name that its backend knows"):
        ctx.export(run, tmp_path / "model.c", target="z80")
    with pytest.raises(UsageError, match="keep in memory"):
        ctx.export(run, tmp_path / "model.c", outputs=[oc.tanh(x)])
    with pytest.raises(UsageError, match="that it has compiled"):
        oc.Context("cpu_c").export(run, tmp_path / "model.c")
    assert not list(tmp_path.iterdir())


def test_functions_of_a_library_are_named(tmp_path: Path) -> None:
    with oc.Session(dtype="float64"):
        x = oc.placeholder("x", output=[3], dtype="float64")
        y = oc.tan(oc.sqrt(x)) + oc.sinh(x)
        ctx = oc.Context("cpu_c")
        run = ctx.compile(oc.train.forward(y), name="run")
        ctx.export(run, tmp_path / "model.c")
    text = " ".join((tmp_path / "model.h").read_text().split())
    assert "It calls sinh, tan of the C library" in text


def test_arrays_without_cells_and_of_another_order_of_bytes(tmp_path: Path) -> None:
    n = oc.static_extent("n", max=3)
    x, ids = oc.placeholder("x", batch=[n]), oc.placeholder("ids", batch=[n, 2], dtype="int32")
    y, doubled = x + 1.0, ids * 2
    ctx = oc.Context("cpu_c")
    results = [y, doubled]
    run = ctx.compile(oc.train.forward(y) + oc.train.forward(doubled), keep=results, name="run")
    files = ctx.export(run, tmp_path / "model.c", outputs=results)
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    found = model.run(np.zeros(0, np.float32), np.zeros((0, 2), np.int32), n=0)
    for _ in range(2):
        assert [np.asarray(each).shape for each in found] == [(0,), (0, 2)]
        assert [str(np.asarray(each).dtype) for each in found] == ["float32", "int32"]
        found = model.run(*found, n=0)
    with pytest.raises(ExportedError, match=r"cells of int32; found \(1, 2\) of the format '>i'"):
        model.run(np.ones(1, np.float32), np.ones((1, 2), ">i4"), n=1)


def test_any_number_is_an_index_without_a_range(tmp_path: Path) -> None:
    k = oc.static_index("k")
    x = oc.placeholder("x", output=[64])
    y = x * oc.uniform(counter=k)
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(y), bindings=[k], name="run")
    ctx[x] = normal(64)
    files = ctx.export(run, tmp_path / "model.c", outputs=[y])
    assert "k: any number" in files.header.read_text()
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    for number in (0, -3, 2**62):
        run(k=number)
        assert np.asarray(model.run(normal(64), k=number)[0]).tobytes() == ctx[y].tobytes()


def test_sums_of_indices_do_not_overflow(tmp_path: Path) -> None:
    i, j = oc.static_index("i"), oc.static_index("j")
    x = oc.placeholder("x", output=[10])
    y = 2 * x[4 * i + j]
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(y), bindings=[i, j], name="run")
    files = ctx.export(run, tmp_path / "model.c", outputs=[y])
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    cells = np.arange(10, dtype=np.float32)
    assert np.asarray(model.run(cells, i=-3, j=15)[0]) == 6
    for wrong in ((2, 2), (2**62, 3), (2**63 - 1, 2**63 - 1), (-(2**63), 2**63 - 1)):
        with pytest.raises(ExportedError, match="out of its range"):
            model.run(cells, **dict(zip("ij", wrong, strict=True)))


@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_files_are_written_together_or_not_at_all(
    weights: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = perceptron()
    program.context.export(program.routines, tmp_path / "model.c", weights=weights)
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    program.results()
    run = {"run": next(iter(program.routines.values()))}

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(UsageError, match="together, or not at all"):
            program.context.export(run, tmp_path / "model.c", weights=weights)
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
    header = tmp_path / "model.h"
    header.unlink()
    header.mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        program.context.export(run, tmp_path / "model.c", weights=weights)
    assert (tmp_path / "model.c").read_bytes() == before[tmp_path / "model.c"]


def test_results_of_earlier_calls_are_no_weights(tmp_path: Path) -> None:
    program = perceptron()
    program.results()
    files = program.context.export(program.routines, tmp_path / "model.c", weights="beside")
    assert files.weights is not None
    names = set(parse_header(memoryview(files.weights.read_bytes()), "").entries)
    assert {"weight_hidden", "weight_last"} <= names
    assert not {program.tensors[0].node.name, program.tensors[1].node.name} & names
    assert not any("grad" in name for name in names)


def test_tensors_without_cells_are_no_arguments(tmp_path: Path) -> None:
    oc.reset()
    x, ctx = oc.placeholder("x", output=[0, 3]), oc.Context("cpu_c")
    double, total = x * 2.0, x.sum()
    nothing = ctx.compile(oc.train.forward(double))
    with pytest.raises(oc.UsageError, match=r"with cells[^$]*none in forward"):
        ctx.export(nothing, tmp_path / "model.c")
    some = ctx.compile(oc.train.forward(total))
    with pytest.raises(oc.UsageError, match=r"no argument in C[^$]*of shape 0,3, in inputs="):
        ctx.export(some, tmp_path / "model.c", inputs=[x])
    model = load_exported(
        built(ctx.export(some, tmp_path / "model.c").source, compilers()[0], ["-O0"]), "model"
    )
    assert np.asarray(model.forward()[0]) == 0


def test_a_short_file_of_weights_is_refused(tmp_path: Path) -> None:
    program = perceptron()
    files = program.context.export(program.routines, tmp_path / "model.c", weights="beside")
    assert files.weights is not None
    library = built(files.source, compilers()[0], ["-O0"])
    content = files.weights.read_bytes()
    for length in (0, 4, len(content) - 1):
        files.weights.write_bytes(content[:length])
        with pytest.raises(ExportedError, match=r"too short|empty"):
            load_exported(library, "model", files.weights)


def test_weights_of_another_layout_are_refused(tmp_path: Path) -> None:
    program = perceptron()
    (tmp_path / "later").mkdir()
    first = program.context.export(program.routines, tmp_path / "model.c", weights="beside")
    for tensor, cells in program.inputs.items():
        program.context[tensor] = cells
    program.routines["train"]()  # biases and momenta are no longer zero
    path = tmp_path / "later" / "model.c"
    second = program.context.export(program.routines, path, weights="beside")
    library = built(first.source, compilers()[0], ["-O0"])
    load_exported(library, "model", first.weights)
    assert second.weights is not None
    with pytest.raises(ExportedError, match="not of this model"):
        load_exported(library, "model", second.weights)
    program.routines["train"]()
    third = program.context.export(program.routines, path, weights="beside")
    load_exported(built(path, compilers()[0], ["-O0"]), "model", third.weights)


def test_a_library_that_was_built_anew_is_loaded_anew(tmp_path: Path) -> None:
    def model(factor: float) -> ExportedModel:
        oc.reset()
        x = oc.placeholder("x", output=[3])
        ctx = oc.Context("cpu_c")
        run = ctx.compile(oc.train.forward(x * factor), name="run")
        files = ctx.export(run, tmp_path / "model.c")
        return load_exported(built(files.source, compilers()[0], ["-O0"]), "model")

    models = [model(2.0), model(3.0)]
    made = [np.asarray(each.run(np.ones(3, np.float32))[0])[0] for each in models]
    assert made == [2.0, 3.0]


def test_inputs_and_outputs_by_choice(tmp_path: Path) -> None:
    x = oc.placeholder("x", output=[3])
    w = oc.param("w", output=[2])
    y = w @ x
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(y), name="run")
    for wrong in ({"int": y}, {"x": y}, {"sqrt": y}):
        with pytest.raises(UsageError, match="names"):
            ctx.export(run, tmp_path / "model.c", inputs={"x": x, "w": w}, outputs=wrong)
    named = ctx.export(
        run, tmp_path / "named.c", inputs={"right": x, "left": w}, outputs={"product": y}
    )
    model = load_exported(built(named.source, compilers()[0], ["-O0"]), "named")
    assert model.arguments("run") == (("right", "left"), ("product",))
    files = ctx.export(run, tmp_path / "model.c", inputs=[w, x], outputs=[y])
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    assert model.arguments("run") == (("w", "x"), ("matmul",))
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    (made,) = model.run(weights, np.ones(3, np.float32))
    assert np.asarray(made).tolist() == [3.0, 12.0]


def test_a_parameter_may_be_an_input_and_an_output(tmp_path: Path) -> None:
    x, w = oc.placeholder("x", batch=[4], output=[3]), oc.param("w", output=[2])
    y = w @ x
    loss = oc.mean(y * y)
    ctx = oc.Context("cpu_c")
    update = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
    train = ctx.compile(update, name="train")
    ctx.init_params(loss)
    ctx[x] = normal(4, 3)
    before = np.array(ctx[w])
    train()
    for outputs, name in (([loss, w], "w_after"), ({"loss": loss, "w_new": w}, "w_new")):
        file = tmp_path / f"with_{name}.c"
        files = ctx.export(train, file, inputs=[x, w], outputs=outputs)
        assert f"float *{name});" in files.header.read_text()
        model = load_exported(built(files.source, compilers()[0], ["-O0"]), file.stem)
        cost, made = map(np.asarray, model.train(normal(4, 3), before))
        assert (cost.tobytes(), made.tobytes()) == (ctx[loss].tobytes(), ctx[w].tobytes())
    for arguments in ({"inputs": [x, x]}, {"outputs": {"a": loss, "b": loss}}):
        with pytest.raises(UsageError, match="puts= names each tensor once"):
            ctx.export(train, tmp_path / "model.c", **arguments)
