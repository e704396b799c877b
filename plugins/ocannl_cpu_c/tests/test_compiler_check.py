"""The check of a compiler by kernels with known results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.base.errors import CompileError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen import c_family
from ocannl_core.codegen.text.kernel_text import CompilerVectorization, KernelText
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.testing.subject import subject_named
from ocannl_cpu_c import compiler_check, loader
from ocannl_cpu_c.translation_units import file_of

PROGRAM = """\
import ocannl_core as oc
with oc.Session():
    x = oc.sum(oc.tensor([1.0, 2.0, 3.0]) * 2.0)
    context = oc.Context("cpu_c")
    context.compile(oc.train.forward(x))()
    print(context.item(x))
"""
BROKEN = """\
#!/bin/sh
# a compiler that takes some sums for differences
for each; do
  case $each in
    *.c) sed 's/ + a0/ - a0/; s/ += a0/ -= a0/' "$each" > FOLDER/$$.c; each=FOLDER/$$.c ;;
  esac
  set -- "$@" "$each"; shift
done
exec gcc "$@"
"""


@pytest.fixture(autouse=True)
def checked(tmp_path: Path) -> Iterator[None]:
    """Use a cache of its own, and check the compiler."""
    with settings.overrides(cpu_c__check_compiler=True, cache_dir=str(tmp_path / "cache")):
        yield
    forget_kernels()


def forget_kernels() -> None:
    """Render the kernels again when they are needed."""
    compiler_check._reductions.cache_clear()
    compiler_check.check_kernels.cache_clear()
    compiler_check.check_unit.cache_clear()


def run(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a small program in a process of its own."""
    given = {"OCANNL_CPU_C__CHECK_COMPILER": "true", "OCANNL_CACHE_DIR": str(folder / "cache")}
    env = os.environ | given | variables
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


KERNELS = compiler_check.check_kernels(CompilerVectorization.MIXED)


@pytest.mark.parametrize("number", range(len(KERNELS)))
def test_the_interpreter_has_the_known_results(number: int) -> None:
    check = KERNELS[number]
    params, nodes = tuple(check.nodes)[: len(check.arguments)], check.nodes
    plan = Plan("check", (check.kernel,), params, (), (), nodes)
    subject = subject_named("interp")
    buffers = {
        node: subject.upload(cells, nodes[node])
        for node, cells in zip(params, check.arguments, strict=True)
    }
    executable = subject.backend.compile(
        subject.backend.generate(plan, subject.target), subject.target
    )
    subject.backend.link(executable, buffers)(())
    for node, right in zip(params, check.expected, strict=True):
        found = subject.download(buffers[node])
        assert found.dtype == right.dtype
        assert found.tobytes() == right.tobytes(), check.title


def test_a_compiler_is_checked_once(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert first.stdout == "12.0\n", first.stderr
    objects = sorted(tmp_path.glob("cache/**/objects/*.so"))
    assert run(tmp_path).stdout == "12.0\n"
    assert sorted(tmp_path.glob("cache/**/objects/*.so")) == objects


def test_plain_loops_are_checked_before_the_first_of_them() -> None:
    cache = loader._cache(loader.find())
    mixed, plain = CompilerVectorization.MIXED, CompilerVectorization.PLAIN
    loader._check_compiler(cache, {mixed})
    assert not loader._needs_check(cache, mixed)
    assert loader._needs_check(cache, plain)
    titles = [{each.title for each in compiler_check.check_kernels(k)} for k in (plain, mixed)]
    assert titles[0] < titles[1]
    assert loader.check_state().endswith("to be checked for plain loops before the first of them")
    loader._passed.clear()  # as in another process, which reads the cache
    assert not loader._needs_check(cache, mixed)
    long = KernelText("k_long", "void k_long(void *const *args) {}\n")
    assert long.vectorization is plain
    loader.load([long])
    assert loader.check_state() == "compiler checked: it gets kernels with known results right"


def test_a_compiler_with_wrong_results_is_refused_in_every_process(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    broken = tmp_path / "cc-broken"
    broken.write_text(BROKEN.replace("FOLDER", str(tmp_path)))
    broken.chmod(0o755)
    for _ in range(2):
        ended = run(tmp_path, OCANNL_CPU_C__CC=str(broken))
        assert ended.returncode == 1
        assert "The C compiler must compile kernels with known results right." in ended.stderr
        assert f"{broken}, gcc " in ended.stderr
        assert "add of float32" in ended.stderr
        assert "choose another compiler with OCANNL_CPU_C__CC=" in ended.stderr
    unchecked = run(tmp_path, OCANNL_CPU_C__CC=str(broken), OCANNL_CPU_C__CHECK_COMPILER="false")
    assert unchecked.stdout == "-12.0\n"


def test_shapes_that_a_compiler_gets_wrong_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = next(filter(shutil.which, ("gcc-11", "gcc-12", "gcc")), None)
    if found is None:
        pytest.skip("needs gcc")
    told = subprocess.run([found, "-dumpfullversion"], capture_output=True, text=True).stdout
    version = tuple(map(int, told.split(".")))
    if not ((11,) <= version < (11, 5) or (12,) <= version < (12, 4)):
        pytest.skip("needs a GCC that drops permutations of loads")
    monkeypatch.setattr(c_family, "has_ordered_chain", lambda loop: False)
    forget_kernels()
    with (
        settings.overrides(cpu_c__cc=found),
        pytest.raises(CompileError, match=r"strides \(2, -1\)"),
    ):
        loader._check_compiler(loader._cache(loader.find()), set(loader._CHECKED))


def test_masks_that_a_compiler_mixes_up_are_found() -> None:
    """Without the flag that avoids it, GCC 12.2 gives masked loads of vectors wrong masks."""
    with settings.overrides(cpu_c__cc="gcc"):
        if shutil.which("gcc") is None or loader.find().version != "gcc 12.2.0":
            pytest.skip("needs GCC 12.2")
        compiler = loader.find()
    if compiler.vector_bytes < 32 or "-fno-thread-jumps" not in compiler.flags:
        pytest.skip("needs masked loads, as of AVX2")
    flags = tuple(flag for flag in compiler.flags if flag != "-fno-thread-jumps")
    other = replace(compiler, flags=flags, identity=f"other {compiler.identity}")
    with pytest.raises(CompileError, match="gates of float64 behind other conditions"):
        loader._check_compiler(loader._cache(other), set(loader._CHECKED))


def test_flags_of_the_user_that_switch_something_off_win() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    with settings.overrides(cpu_c__cc="gcc -fno-tree-loop-vectorize"):
        compiler = loader.find()
    command = compiler.start(Path("/nowhere.c"), Path("/nowhere.so"), CompilerVectorization.MIXED)
    command.stop()
    assert "-ftree-loop-vectorize" not in command.command


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_files_with_float64_alone_lose_the_vectorizer_of_straight_lines(dtype: str) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    x = oc.placeholder("x", output=[3], dtype=dtype)
    routine = oc.Context("cpu_c").compile(oc.train.forward(x + 1.0))
    unit = file_of(routine.linkable.built.source.kernels)
    assert unit.has_doubles == (dtype == "float64")
    with settings.overrides(cpu_c__cc="gcc"):
        compiler = loader.find()
    command = compiler.start(
        Path("/nowhere.c"), Path("/nowhere.so"), unit.loops, has_doubles=unit.has_doubles
    )
    command.stop()
    assert ("-fno-tree-slp-vectorize" in command.command) == unit.has_doubles


def test_reports_state_the_check() -> None:
    assert loader.check_state() == "compiler to be checked before its first routine"
    with settings.overrides(cpu_c__check_compiler=False):
        assert loader.check_state() == "compiler not checked (check_compiler=false)"
