"""The compiler of the package `ziglang`: found, linked without its own libraries, equal bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from inline_snapshot import snapshot

from ocannl_core.base import packaged_compiler, settings
from ocannl_core.base.errors import CompileError
from ocannl_core.base.fast_dataclass import replace
from ocannl_cpu_c import compiler, compiler_command, linking, loader
from ocannl_cpu_c.bindings import ffi
from ocannl_cpu_c.cache import TranslationUnit, open_cache
from ocannl_cpu_c.compiler_command import CompilerCommand, choose
from ocannl_cpu_c.linking import Libraries, loaded_c_library
from ocannl_cpu_c.translation_units import keys_text

is_there = packaged_compiler.find() is not None
needs_package = pytest.mark.skipif(not is_there, reason="the package ziglang is not installed")
ON_LINUX = sys.platform.startswith("linux")


@pytest.fixture
def empty_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no program be on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "OCANNL_CPU_C__CC"):
        monkeypatch.delenv(variable, raising=False)


def package(folder: Path) -> Path:
    """Make a package like `ziglang` in a folder."""
    (folder / "ziglang").mkdir(parents=True)
    (folder / "ziglang" / "__init__.py").touch()
    (folder / "ziglang-0.99.dist-info").mkdir()
    (folder / "ziglang-0.99.dist-info" / "METADATA").write_text("Name: ziglang\nVersion: 0.99\n")
    (folder / "ziglang" / "zig").write_bytes(b"\x7fELF")
    (folder / "ziglang" / "zig").chmod(0o755)
    return folder


@pytest.mark.usefixtures("empty_path")
def test_the_package_is_the_last_choice_and_can_be_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(package(tmp_path / "site")), *sys.path])
    program = str(tmp_path / "site" / "ziglang" / "zig")
    found = choose(None, None)
    assert found.words == (program, "cc")
    assert found.origin == "the package ziglang 0.99"
    assert found.is_zig
    assert found.adds_nothing
    with_flags = choose("ziglang -DA=1 -O1", "gcc")
    assert with_flags.words == (program, "cc", "-DA=1", "-O1")
    assert with_flags.adds_nothing
    assert not choose("ziglang -fsanitize=address", None).adds_nothing
    (tmp_path / "cc").write_text("#!/bin/sh\n")
    (tmp_path / "cc").chmod(0o755)
    assert choose(None, None) == CompilerCommand(("cc",), "the path", ("cc",))
    assert choose(None, "ziglang").words == (program, "cc")


def test_the_same_version_has_the_same_identity_in_each_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    for name in ("one", "two"):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "path", [str(package(tmp_path / name)), *sys.path])
            found.append(choose("ziglang -O1", None))
    assert found[0].words != found[1].words
    assert found[0].identity == found[1].identity == ("ziglang", "0.99", "-O1")


def test_a_package_that_is_chosen_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_command, "packaged_compiler", lambda: None)
    with pytest.raises(CompileError) as caught:
        choose("ziglang", None)
    assert str(caught.value) == snapshot("""\
The chosen C compiler must be installed.
  found  no program 'ziglang'
  where  the setting cc (OCANNL_CPU_C__CC)
  try    install a C compiler (Debian, Ubuntu: apt-get install gcc) or the one of a Python package
         (pip install 'ocannl-cpu-c[compiler]'), or run without one: OCANNL_BACKEND=interp\
""")


def test_any_spelling_of_zig_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zig = tmp_path / "zig"
    zig.write_bytes(b"\x7fELF")
    zig.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for text, adds_nothing in (
        ("zig cc", True),
        (f"{zig} cc", True),
        ("zig cc -pg", False),
        (f"{sys.executable} -m ziglang cc", False),
    ):
        found = choose(text, None)
        assert found.is_zig
        assert found.adds_nothing == adds_nothing
    assert not choose(f"{sys.executable} cc", None).is_zig


def test_the_c_library_of_the_process_is_found_in_any_order_of_addresses(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("libm.so.6", "libc.so.6", "libpthread.so.0")]
    for each in files:
        each.touch()
    others = ["/nowhere/libc.so.6", tmp_path / "libcrypt.so.1", "/lib/libm.so.6 (deleted)"]
    maps = tmp_path / "maps"
    for order in ([*files, *others], [*others, *reversed(files)]):
        lines = [f"7f0{n}-7f1{n} r-xp 0 08:01 {n}    {each}\n" for n, each in enumerate(order)]
        maps.write_text("7ffe-7fff rw-p 0 00:00 0    [stack]\n" + 2 * "".join(lines))
        assert loaded_c_library(maps) == tuple(map(str, sorted(files)))
    maps.write_text(f"7f-7f r-xp 0 08:01 1    {files[1]}\n")  # no libm
    assert loaded_c_library(maps) == ()
    musl = tmp_path / "ld-musl-x86_64.so.1"
    musl.touch()
    maps.write_text(f"7f-7f r-xp 0 08:01 1    {musl}\n")
    assert loaded_c_library(maps) == (str(musl),)
    assert loaded_c_library(tmp_path / "none") == ()


def test_libraries_are_left_out_only_where_flags_of_the_user_need_none() -> None:
    default = ("-lm", "-pthread")
    gcc = CompilerCommand((sys.executable,), "the path", ("gcc",))
    linux = {"__linux__": "1"}
    assert linking.linking(gcc, linux, is_gcc=True)[Libraries.NONE] == ("-nostdlib", "-lgcc")
    assert linking.linking(gcc, linux, is_gcc=True)[Libraries.C] == default
    sanitized = CompilerCommand((sys.executable, "-fsanitize=address"), "CC", ("gcc",))
    for command, macros in ((sanitized, linux), (gcc, {})):
        assert set(linking.linking(command, macros, is_gcc=True)) == {default}
    zig = CompilerCommand((sys.executable, "cc"), "the package", ("zig",), program=2)
    alone, c_library, every = linking.linking(zig, linux, is_gcc=False)
    assert alone == ("-nostdlib",)
    assert every == default
    if ON_LINUX:
        assert c_library[0] == "-nostdlib"
        assert all(Path(each).is_file() for each in c_library[1:])


PROGRAM = """
import numpy as np
import ocannl_core as oc

random = np.random.default_rng(1)
x = oc.tensor(random.normal(size=(256, 96)).astype(np.float32), batch_axes=1)
y = oc.tensor(random.normal(size=(64, 7)), batch_axes=1)  # float64: functions of the C library
loss = oc.einsum("... | ... => 0", oc.tanh(oc.param("w", output=[130]) @ x))
adam = oc.train.Adam(learning_rate=1e-2)
other = oc.exp(y) + oc.sin(y) * oc.tanh(y) + oc.log(y * y) + (y * y) ** 1.37
ctx = oc.Context("cpu_c")
step = ctx.compile(adam.minimize(loss))
ctx.init_params(loss)
for _ in range(3):
    step()
ctx.compile(oc.train.forward(other))()
print(ctx[loss].tobytes().hex(), hash(ctx[other].tobytes().hex()))
print(ctx.target.description)
"""


def run_alone(folder: Path, program: str, **variables: str) -> str:
    """Return the output of a program with a home and a cache of its own."""
    (folder / "home").mkdir(parents=True)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CC"},
        "HOME": str(folder / "home"),
        "OCANNL_CACHE_DIR": str(folder / "cache"),
        "OCANNL_THREADS": "2",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        "TMPDIR": str(folder),
        **variables,
    }
    environment.pop("OCANNL_CPU_C__CC", None) if "PATH" in variables else None
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_package
def test_a_machine_without_a_compiler_gets_the_bits_of_one_with_gcc(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    alone = run_alone(tmp_path / "alone", PROGRAM, PATH=str(tmp_path / "empty"))
    if ON_LINUX:  # no library was compiled, and nothing left anywhere else
        assert not (tmp_path / "alone" / "cache" / "zig").exists()
        assert [each for each in (tmp_path / "alone" / "home").rglob("*") if each.is_file()] == []
        objects = list((tmp_path / "alone" / "cache").rglob("*.so"))
        assert objects
        for each in objects:
            content = each.read_bytes()
            assert not any(name in content for name in (b"__ubsan", b"__stack_chk", b".debug_"))
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compare with")
    assert run_alone(tmp_path / "gcc", PROGRAM, OCANNL_CPU_C__CC="gcc") == alone


@needs_package
@pytest.mark.parametrize("arch", ["x86-64-v3", "sapphirerapids"])
def test_processors_have_the_names_that_other_compilers_know(arch: str) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("processors of another architecture")
    with settings.overrides(cpu_c__cc="ziglang", cpu_c__arch=arch):
        found = compiler.find()
    assert found.vector_bytes == (64 if arch == "sapphirerapids" else 32)
    assert found.has_fma
    with (
        settings.overrides(cpu_c__cc="ziglang", cpu_c__arch="no-such-processor"),
        pytest.raises(CompileError, match="no_such_processor"),
    ):
        compiler.find()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs GCC")
def test_code_that_needs_more_libraries_is_linked_again(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    text = """
    void quotient(void *const *args) { *(__int128 *)args[0] /= *(__int128 *)args[1]; }
    void (*const ocannl_kernels[])(void *const *) = {quotient};
    """
    unit = TranslationUnit(("0" * 64,), text + keys_text(["0" * 64]), libraries=Libraries.NONE)
    with settings.overrides(cpu_c__cc="gcc", cache_dir=str(tmp_path)):
        found = compiler.find()
        assert found.linking[Libraries.DEFAULT] == ("-lm", "-pthread")  # with libgcc, by default
        cache = open_cache(replace(found, linking=(("-nostdlib",), *found.linking[1:])))
        (entry,) = loader._compile(cache, [unit]).values()
        assert entry.path.is_relative_to(tmp_path)
        kernel = loader._open(unit.keys[0], entry)
    cells = [np.array(each, np.int64) for each in ([0, 4], [8, 0])]  # 4 * 2 ** 64 / 8
    kernel.address(ffi.new("void *[]", [ffi.from_buffer(each) for each in cells]))
    assert cells[0].tolist() == [-(1 << 63), 0]  # 2 ** 63 without sign
    assert not recwarn.list
