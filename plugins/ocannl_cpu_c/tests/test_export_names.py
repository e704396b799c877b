"""Names in exported files: of inputs, functions and integer arguments, in C, C++ and Python."""

from __future__ import annotations

import gc
import keyword
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.base.errors import UsageError
from ocannl_core.runtime.export.exported import load_exported
from ocannl_core.runtime.routine import Routine
from tests.support.slow import slow
from tests.support.strict_compilers import built, compilers


def normal(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def test_placeholders_are_inputs_when_nothing_refers_to_them(tmp_path: Path) -> None:
    def made() -> tuple[oc.Context, Routine]:
        x = oc.placeholder("x", output=[3])
        y = oc.tanh(2 * x)
        ctx = oc.Context("cpu_c")
        ctx[x] = np.ones(3, np.float32)
        return ctx, ctx.compile(oc.train.forward(y), name="run")

    ctx, run = made()
    gc.collect()
    files = ctx.export(run, tmp_path / "model.c")
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    assert model.arguments("run") == (("x",), ("tanh",))


def test_names_that_differ_in_case_and_names_of_functions(tmp_path: Path) -> None:
    first, second = oc.placeholder("a", output=[2]), oc.placeholder("A", output=[2])
    third = oc.placeholder("memcpy", output=[2])
    y = oc.sqrt(first + second * third)
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(y), name="run")
    files = ctx.export(run, tmp_path / "model.c")
    model = load_exported(built(files.source, compilers()[0], ["-O0", "-ffreestanding"]), "model")
    assert model.arguments("run") == (("a", "A_2", "memcpy"), ("sqrt_2",))
    pair = np.array([4.0, 9.0], np.float32)
    assert np.asarray(model.run(pair, 0 * pair, pair)[0]).tolist() == [2.0, 3.0]


def test_names_inside_of_functions_are_kept_but_in_c(tmp_path: Path) -> None:
    state, s, other = (oc.placeholder(each, output=[]) for each in ("state", "s", "other"))
    y = oc.tensor([1.0, 2.0]) * state + s * other
    ctx = oc.Context("cpu_c")
    head = oc.static_index("head", range=3)
    code = oc.train.forward(y) + oc.train.forward(oc.number(head) + s)
    run = ctx.compile(code, [head], name="run")
    files = ctx.export(run, tmp_path / "model.c", outputs={"dims": y})
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    assert repr(model) == "<exported model model: run(state, s, other, head=...) -> [dims]>"
    declared = (
        "const float *state_, const float *s_, const float *other, float *dims_, int64_t head_"
    )
    assert declared in " ".join(files.header.read_text().split())
    numbers = (np.float32(each) for each in (2, 3, 4))
    assert np.asarray(model.run(*numbers, head=1)[0]).tolist() == [14.0, 16.0]


def test_a_scalar_has_no_axes(tmp_path: Path) -> None:
    x = oc.placeholder("x", output=[])
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(x * 2.0), name="run")
    files = ctx.export(run, tmp_path / "model.c")
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    (made,) = model.run(np.float32(3))
    assert (np.asarray(made).shape, float(np.asarray(made))) == ((), 6.0)


def test_words_and_macros_of_c_and_cpp_are_no_arguments(tmp_path: Path) -> None:
    names = [
        "linux",
        "unix",
        "NULL",
        "EOF",
        "I",
        "NAN",
        "INFINITY",
        "INT32_MAX",
        "M_PI",
        "FLT_EPSILON",
        "errno",
        "assert",
        "complex",
        "stdin",
        "asm",
        "typeof",
        "nullptr",
        "alignas",
        "thread_local",
        "operator",
        "not_eq",
        "private",
        "try",
        "catch",
        "export",
        "friend",
        "constexpr",
        "typename",
        "wchar_t",
        "MODEL_ABI",
        "MODEL_STATE_BYTES",
        "i",
        "null",
        "module",
    ]
    tensors = [oc.placeholder(name, output=[2]) for name in names]
    ctx = oc.Context("cpu_c")
    y = sum(tensors[1:], tensors[0])
    run = ctx.compile(oc.train.forward(y), name="run")
    files = ctx.export(run, tmp_path / "model.c")
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    (called, _) = model.arguments("run")
    kept = [name for name, other in zip(names, called, strict=True) if name == other]
    assert kept == ["module"]
    assert called[names.index("I")] == "i"
    assert called[names.index("i")] == "i_2"
    with pytest.raises(UsageError, match="identifiers of C and"):
        ctx.export(run, tmp_path / "other.c", outputs={"NULL": y})
    with pytest.raises(UsageError, match="functions of its own"):
        ctx.export({"then": run}, tmp_path / "other.c")
    if (cpp := shutil.which("g++")) is not None:
        (tmp_path / "main.cpp").write_text(
            "#include <cmath>\n#include <cstdio>\n#include <cerrno>\n#include <cfloat>\n"
            '#include <cassert>\n#include "model.h"\nint main() { return 0; }\n'
        )
        source = str(tmp_path / "main.cpp")
        subprocess.run([cpp, "-std=gnu++20", "-Werror", "-fsyntax-only", source], check=True)


def test_functions_have_no_names_of_the_file_or_of_headers(tmp_path: Path) -> None:
    x = oc.placeholder("x", output=[2])
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(2 * x), name="run")
    for file, name in (("NET", "OK"), ("NET", "H"), ("is", "valid"), ("int32", "t"), ("M", "PI")):
        with pytest.raises(UsageError, match=f"found  '?{file}_{name}"):
            ctx.export({name: run}, tmp_path / f"{file}.c")
    files = ctx.export({"ok": run, "Run": run}, tmp_path / "NET.c")
    assert load_exported(built(files.source, compilers()[0], ["-O0"]), "NET").functions == (
        "ok", "Run"
    )  # fmt: skip


@pytest.mark.parametrize("threads", [*slow([False]), True])
def test_names_inside_of_the_file_are_no_arguments(threads: bool, tmp_path: Path) -> None:
    def exported(names: Sequence[str], indices: Sequence[str], file: Path) -> str:
        """Export and call a program with inputs and integer arguments of the given names."""
        oc.reset()
        tensors = [oc.placeholder(name, output=[2]) for name in names]
        bindings = [oc.static_index(name, range=4) for name in indices]
        rows = oc.static_extent("rows", max=6)
        ids = oc.placeholder("ids", batch=[rows], dtype="int32")
        large = oc.placeholder("large", output=[200, 300])

        def step(carry: oc.Tensor, _: None) -> tuple[oc.Tensor, None]:
            positions = (oc.number(k * each) for k, each in enumerate(bindings, start=1))
            return sum(positions, sum(tensors, carry * 0.5)), None

        _, last = oc.scan(step, oc.number(1.0), length=3)
        y, z = nn.embedding(ids, entries=9, width=2) + last, oc.exp(large)
        ctx = oc.Context("cpu_c")
        code = oc.train.forward(y) + oc.train.forward(z)
        run = ctx.compile(code, bindings, name="run")
        ctx.init_params(y)
        given = dict.fromkeys(tensors, normal(2))
        given |= {ids: np.array([0, 8, 3], np.int32), large: normal(200, 300)}
        for tensor, cells in given.items():
            ctx[tensor] = cells
        numbers = [k % 4 for k in range(len(indices))]
        run(rows=3, **dict(zip(indices, numbers, strict=True)))
        files = ctx.export(run, file, outputs=[y, z], threads=threads)
        model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
        called = re.findall(r"(\w+)=", repr(model))
        assert called.pop() == "rows"
        made = model.run(*given.values(), rows=3, **dict(zip(called, numbers, strict=True)))
        for tensor, cells in zip((y, z), made, strict=True):
            assert np.asarray(cells).tobytes() == ctx[tensor].tobytes()
        text = files.source.read_text()
        return text[text.index("int model_run(") :]

    folders = [tmp_path / name for name in ("few", "inputs", "indices")]
    for folder in folders:
        folder.mkdir()
    few, inputs, indices = (folder / "model.c" for folder in folders)
    words = set(re.findall(r"[a-z]\w*", exported(["x"], ["k"], few)))
    words |= {each + digit for each in ("step", "weights") for digit in "012345"}
    assert {"is_valid", "move_cells", "failed"} <= words
    assert not threads or {"share", "arrays", "indices"} <= words
    names = sorted(each for each in words if not keyword.iskeyword(each) and each != "rows")
    exported(names, [], inputs)
    exported([], names, indices)


def test_any_name_is_an_input_of_a_method(tmp_path: Path) -> None:
    tensors = [oc.placeholder(name, output=[2]) for name in ("self", "number", "function")]
    ctx = oc.Context("cpu_c")
    run = ctx.compile(oc.train.forward(sum(tensors[1:], tensors[0])), name="run")
    files = ctx.export(run, tmp_path / "model.c")
    model = load_exported(built(files.source, compilers()[0], ["-O0"]), "model")
    cells = np.ones(2, np.float32)
    (made,) = model.run(**dict.fromkeys(("self", "number", "function"), cells))
    assert np.asarray(made).tolist() == [3.0, 3.0]
    with pytest.raises(UsageError, match="begin with an underscore"):
        ctx.export({"_check": run}, tmp_path / "model.c")
