"""Exports of the routines of a program, called beside the routines: all memory is compared.

    model = exported(routines, folder)
    assert model.differences(model.states(compiled(model, ["gcc", "-O2"]))) == []

Every runner returns the state of the model after each call: a shared library in this process, a
program for another processor, a WebAssembly module in Node.js or wasmtime.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.codegen.export import web
from ocannl_core.codegen.export.model import ExportedFunction, ExportedTensor, FileContent, Role
from ocannl_core.ir import host_arrays
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.runtime import values
from ocannl_core.runtime.export import export_routines
from ocannl_core.runtime.export.webassembly import compile_wasm
from ocannl_core.runtime.routine import Routine

Array = np.ndarray[Any, Any]


@contextmanager
def recorded_routines() -> Iterator[list[Routine]]:
    """Record the routines that are compiled inside."""
    found: list[Routine] = []
    original = oc.Context.compile

    def compile(self: oc.Context, *arguments: Any, **keywords: Any) -> Routine:
        routine: Routine = original(self, *arguments, **keywords)
        found.append(routine)
        return routine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oc.Context, "compile", compile)
        yield found


@dataclass
class Call:
    """A call of a function, and the memory after it.

    Attributes:
        inputs: The cells of the inputs, in order.
        indices: The integer arguments, by name.
        memory: The cells of the tensors that the routine has written, by name.
    """

    function: ExportedFunction
    inputs: Sequence[Array]
    indices: Mapping[str, int]
    memory: Mapping[str, bytes]


@dataclass
class Exported:
    """An exported file, and the memory of the context after calls of the routines in it."""

    files: export_routines.ExportedFiles
    content: FileContent
    calls: Sequence[Call]

    @property
    def weights(self) -> bytes:
        """The cells that `model_init` takes; empty if they are inside of the file."""
        if self.files.weights is None:
            return b""
        return self.files.weights.read_bytes()[self.content.weights_at :]

    def differences(self, states: Sequence[bytes], others: Sequence[bytes] = ()) -> list[str]:
        """Return the tensors whose bits differ after calls.

        Args:
            states: The state after each call.
            others: The states that they are compared with; without them, the memory of the context.
        """
        assert len(states) == len(self.calls)
        found = []
        for number, (call, state) in enumerate(zip(self.calls, states, strict=True)):
            assert call.memory
            for tensor in self.content.tensors:
                if (cells := call.memory.get(tensor.name)) is None:
                    continue
                if others:
                    cells = _cells_in(others[number], tensor, call.indices)
                if _cells_in(state, tensor, call.indices) != cells:
                    found.append(f"{tensor.name} after call {number}, {call.function.name}")
        return found

    def largest_error(self, states: Sequence[bytes]) -> float:
        """Return the largest relative difference from cells of the context, in float64."""
        found = 0.0
        for call, state in zip(self.calls, states, strict=True):
            assert call.memory
            for tensor in self.content.tensors:
                if (cells := call.memory.get(tensor.name)) is not None:
                    assert tensor.info.dtype.name == "float64"
                    expected = np.frombuffer(cells)
                    made = np.frombuffer(_cells_in(state, tensor, call.indices))
                    found = max(found, float(np.max(np.abs(made / expected - 1))))
        return found

    def states(self, library: Path) -> list[bytes]:
        """Return the states of a shared library."""
        model, prefix = ctypes.CDLL(str(library)), self.content.prefix
        memory = np.zeros(self.content.state_bytes + 64, np.uint8)
        begin = -memory.ctypes.data % 64
        state = ctypes.c_void_p(memory.ctypes.data + begin)
        given: list[Any] = [state, ctypes.c_size_t(self.content.state_bytes)]
        cells = np.frombuffer(self.weights + bytes(8), np.uint8)
        if len(cells) > 8:
            given += [ctypes.c_void_p(cells.ctypes.data), ctypes.c_size_t(len(cells))]
        assert getattr(model, f"{prefix}_init")(*given) == 0
        found = []
        for call in self.calls:
            outputs = [np.zeros(each.info.nbytes + 1, np.uint8) for each in call.function.outputs]
            pointers = [ctypes.c_void_p(each.ctypes.data) for each in (*call.inputs, *outputs)]
            integers = [ctypes.c_int64(each) for each in call.indices.values()]
            run = getattr(model, f"{prefix}_{call.function.name}")
            assert run(state, *pointers, *integers) == 0
            found.append(memory[begin:][: self.content.state_bytes].tobytes())
        return found

    def states_of_program(self, command: Sequence[str], runner: Sequence[str] = ()) -> list[bytes]:
        """Return the states of a program that a compiler makes, run by an emulator."""
        folder = self.files.source.parent
        (folder / "main.c").write_text(
            _MAIN.replace("MODEL", self.content.prefix.upper())
            .replace("model", self.content.prefix)
            .replace("GIVEN", ", weights, sizeof weights" if self.weights else "")
        )
        self._write_calls(folder)
        program = folder / "main"
        sources = [str(folder / "main.c"), str(self.files.source)]
        built([*command, *sources, "-o", str(program), "-lm"])
        ran = subprocess.run(
            [*runner, str(program)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            cwd=folder,
        )
        assert ran.returncode == 0, ran
        return self._divided(ran.stdout)

    def module(self) -> Path:
        """Return a WebAssembly module of the file."""
        files, prefix = self.files, self.content.prefix
        path = files.source.with_suffix(".wasm")
        symbols = (*web.symbols(self.content), f"{prefix}_call")
        texts = files.source.read_bytes(), files.header.read_bytes()
        needs_library = bool(self.content.library)
        path.write_bytes(compile_wasm(*texts, prefix, symbols, needs_library=needs_library))
        return path

    def states_in_node(self, module: Path, node: str) -> list[bytes]:
        """Return the states of a WebAssembly module in Node.js."""
        folder = module.parent
        self._write_calls(folder)
        facts = self.content.state_bytes, len(self.weights), self.content.prefix
        (folder / "calls.mjs").write_text(f"const facts = {json.dumps(facts)};\n{_JAVASCRIPT}")
        ran = subprocess.run([node, "calls.mjs"], cwd=folder, capture_output=True, check=False)
        assert ran.returncode == 0, ran
        return self._divided(ran.stdout)

    def states_in_wasmtime(self, module: Path) -> list[bytes]:
        """Return the states of a WebAssembly module in wasmtime."""
        import wasmtime

        engine = wasmtime.Engine()
        store = wasmtime.Store(engine)
        loaded = wasmtime.Module.from_file(engine, str(module))
        found = wasmtime.Instance(store, loaded, []).exports(store)
        memory: Any = found["memory"]
        prefix, size = self.content.prefix, self.content.state_bytes
        base: Any = found["__heap_base"]
        state = end = -(-base.value(store) // 64) * 64
        end += -(-size // 64) * 64
        largest = max(each.info.nbytes for each in self.content.tensors) + 64
        need = end + len(self.weights) + 64 + largest * len(self.content.tensors)
        memory.grow(store, max(0, need - memory.data_len(store)) // 65536 + 1)
        given = [state, size]
        if self.weights:
            memory.write(store, self.weights, end)
            given += [end, len(self.weights)]
            end += -(-len(self.weights) // 64) * 64
        function: Any = found[f"{prefix}_init"]
        assert function(store, *given) == 0
        states = []
        for call in self.calls:
            at, places = end, []
            for cells in call.inputs:
                memory.write(store, cells.tobytes(), at)
                places.append(at)
                at += -(-cells.nbytes // 64) * 64
            for tensor in call.function.outputs:
                places.append(at)
                at += -(-tensor.info.nbytes // 64) * 64
            function = found[f"{prefix}_{call.function.name}"]
            assert function(store, state, *places, *call.indices.values()) == 0
            states.append(bytes(memory.read(store, state, state + size)))
        return states

    def _write_calls(self, folder: Path) -> None:
        """Write the calls and the weights for drivers."""
        with (folder / "calls.bin").open("wb") as file:
            file.write(np.int64(len(self.calls)).tobytes())
            names = [each.name for each in self.content.functions]
            for call in self.calls:
                indices = tuple(call.indices.values())
                head = names.index(call.function.name), len(indices), *indices, len(call.inputs)
                file.write(np.array(head, np.int64).tobytes())
                for cells in call.inputs:
                    file.write(np.int64(cells.nbytes).tobytes() + cells.tobytes())
                sizes = [each.info.nbytes for each in call.function.outputs]
                file.write(np.array([len(sizes), *sizes], np.int64).tobytes())
        (folder / "weights.bin").write_bytes(self.weights)
        (folder / "names.json").write_text(json.dumps(names))

    def _divided(self, output: bytes) -> list[bytes]:
        size = self.content.state_bytes
        assert len(output) == size * len(self.calls)
        return [output[at : at + size] for at in range(0, len(output), size)]


def exported(
    routines: Sequence[Routine],
    folder: Path,
    *,
    target: Target | str | None = None,
    weights: str = "inside",
    threads: bool = False,
    rounds: int = 2,
) -> Exported:
    """Export routines of one context, call them in turns, and return both."""
    context = routines[0].context
    named = {f"f{number}": each for number, each in enumerate(routines)}
    contents: list[FileContent] = []
    write = export_routines.c_file.c_file

    def recorded(content: FileContent, dialect: Any) -> str:
        contents.append(content)
        return write(content, dialect)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_routines.c_file, "c_file", recorded)
        path = folder / "model.c"
        files = context.export(named, path, target=target, weights=weights, threads=threads)
    (content,) = contents
    calls = [
        _called(named[function.name], function, content)
        for _ in range(rounds)
        for function in content.functions
    ]
    return Exported(files, content, calls)


def compiled(exported: Exported, command: Sequence[str], name: str = "model") -> Path:
    """Return the shared library of an exported file."""
    source = exported.files.source
    library = source.with_name(f"{name}.so")
    built([*command, "-shared", "-fPIC", "-o", str(library), str(source), "-lm"])
    return library


def built(command: Sequence[str]) -> None:
    """Run a compiler."""
    made = subprocess.run([*command, "-w"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def _called(routine: Routine, function: ExportedFunction, content: FileContent) -> Call:
    """Call a routine, and return the call."""
    indices = {
        each.name: (each.least + each.most) // 2 if each.is_bounded else 3
        for each in function.indices
    }
    store = routine._store
    inputs = []
    for tensor in function.inputs:
        cells = host_arrays.interior(_cells(store, tensor.node), tensor.info)
        if tensor.info.dtype.is_packed:
            inputs.append(host_arrays.memory_of(cells, tensor.info))
        else:
            stated = tuple(slice(indices[n] if isinstance(n, str) else n) for n in tensor.sizes)
            inputs.append(np.array(cells[stated], order="C"))
    by_index = {each.index.name: indices[each.name] for each in function.indices}
    routine(**{each.name: by_index.get(each.name, 0) for each in routine.bindings})
    memory = {}
    for tensor in content.tensors:
        if tensor.node in routine.writes and tensor.role in (Role.OUTPUT, Role.STATE):
            whole = host_arrays.memory_of(_cells(store, tensor.node), tensor.info)
            memory[tensor.name] = _inner(whole.tobytes(), tensor, indices)
    return Call(function, inputs, indices, memory)


def _cells(store: Any, node: TensorNode) -> Array:
    return values.download(store.backend, store.find(node).buffer)


def _cells_in(state: bytes, tensor: ExportedTensor, indices: Mapping[str, int]) -> bytes:
    assert tensor.offset is not None
    return _inner(state[tensor.offset :][: tensor.info.nbytes], tensor, indices)


def _inner(place: bytes, tensor: ExportedTensor, indices: Mapping[str, int]) -> bytes:
    """Return the cells of a tensor in memory, without margins and those beyond an extent."""
    info = tensor.info
    if info.dtype.is_packed:
        return place
    cells = np.frombuffer(place, np.uint8).reshape(*info.buffer_dims, info.dtype.nbytes)
    lefts = [margin.left for margin in info.padding] or [0] * len(info.dims)
    sizes = (indices[n] if isinstance(n, str) else n for n in tensor.sizes)
    axes = zip(lefts, sizes, strict=True)
    return cells[tuple(slice(left, left + size) for left, size in axes)].tobytes()


_MAIN = """\
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

static _Alignas(64) char state[MODEL_STATE_BYTES];
#ifdef MODEL_WEIGHTS_BYTES
static _Alignas(64) char weights[MODEL_WEIGHTS_BYTES];
#endif
static FILE *calls;

static int64_t next(void) {
  int64_t number = 0;
  if (fread(&number, 8, 1, calls) != 1) exit(90);
  return number;
}

int main(void) {
  calls = fopen("calls.bin", "rb");
#ifdef MODEL_WEIGHTS_BYTES
  FILE *const file = fopen("weights.bin", "rb");
  if (!file || fread(weights, 1, sizeof weights, file) != sizeof weights) return 91;
#endif
  if (!calls || model_init(state, sizeof state GIVEN)) return 92;
  for (int64_t left = next(); left; --left) {
    static void *inputs[256], *outputs[256];
    static int64_t indices[256];
    const int64_t function = next(), integers = next();
    for (int64_t i = 0; i < integers; ++i) indices[i] = next();
    const int64_t given = next();
    for (int64_t i = 0; i < given; ++i) {
      const int64_t nbytes = next();
      inputs[i] = malloc(nbytes + 64);
      if (nbytes && fread(inputs[i], nbytes, 1, calls) != 1) return 93;
    }
    const int64_t made = next();
    for (int64_t i = 0; i < made; ++i) outputs[i] = malloc(next() + 64);
    if (model_call(state, function, (const void *const *)inputs, outputs, indices)) return 94;
    fwrite(state, sizeof state, 1, stdout);
  }
  return 0;
}
"""

_JAVASCRIPT = """\
import { readFileSync, writeSync } from "node:fs";
const [size, weightsBytes, prefix] = facts;
const module = await WebAssembly.compile(readFileSync(`${prefix}.wasm`));
const { exports } = await WebAssembly.instantiate(module, {});
const aligned = (at) => Math.ceil(at / 64) * 64;
const calls = readFileSync("calls.bin"), names = JSON.parse(readFileSync("names.json"));
const state = aligned(exports.__heap_base.value);
const weights = aligned(state + size), begin = aligned(weights + weightsBytes);
exports.memory.grow(Math.ceil((begin + 2 * calls.length) / 65536));
const bytes = (at, count) => new Uint8Array(exports.memory.buffer, at, count);
const given = [state, size];
if (weightsBytes) {
  bytes(weights, weightsBytes).set(readFileSync("weights.bin"));
  given.push(weights, weightsBytes);
}
const check = (status) => { if (status) throw new Error(`status ${status}`); };
check(exports[`${prefix}_init`](...given));
let at = 0;
const next = () => calls.readBigInt64LE((at += 8) - 8);
for (let left = next(); left; --left) {
  const name = names[Number(next())], places = [];
  const integers = Array.from({ length: Number(next()) }, next);
  let end = begin;
  const place = (count) => {
    places.push(end);
    const needed = aligned(end + count) - exports.memory.buffer.byteLength;
    if (needed > 0) exports.memory.grow(Math.ceil(needed / 65536));
    end = aligned(end + count);
  };
  for (let inputs = next(); inputs; --inputs) {
    const count = Number(next());
    place(count);
    bytes(places.at(-1), count).set(calls.subarray(at, at + count));
    at += count;
  }
  for (let outputs = next(); outputs; --outputs) place(Number(next()));
  check(exports[`${prefix}_${name}`](state, ...places, ...integers));
  for (let done = 0; done < size; ) done += writeSync(1, bytes(state + done, size - done));
}
"""
