"""Compilers of CUDA C++: their choice, the cache of their results, and errors of the code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocannl_core.base import settings
from ocannl_core.base.errors import CompileError
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_cuda import compilers, nvcc, nvrtc
from ocannl_cuda.building import build
from ocannl_cuda.compiler import RejectedError, architecture_of
from ocannl_cuda.compilers import Missing
from ocannl_cuda_emulator import host_compiler
from ocannl_cuda_emulator.host_compiler import HostCompiler
from plugins.ocannl_cuda.tests.resources import Resources, parse


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with settings.overrides(cache_dir=str(tmp_path / "cache")):
        yield


def fake_nvrtc(folder: Path, major: int, minor: int) -> None:
    """Build libraries that have nothing but a version, in the layout of a wheel."""
    folder.mkdir(parents=True)
    code = f"int nvrtcVersion(int *a, int *b) {{ *a = {major}; *b = {minor}; return 0; }}"
    for name in (f"libnvrtc-builtins.so.{major}.{minor}", f"libnvrtc.so.{major}"):
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / name)]
        subprocess.run(command, input=code, text=True, check=True)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with two versions of NVRTC, as wheels install them, and no other one."""
    fake_nvrtc(tmp_path / "nvidia" / "cu13" / "lib", 13, 9)
    fake_nvrtc(tmp_path / "nvidia" / "cuda_nvrtc" / "lib", 12, 8)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = list(nvrtc._libraries_in([*tmp_path.glob("nvidia/*/lib")]))
    monkeypatch.setattr(nvrtc, "_in_wheels", lambda: iter(found))
    monkeypatch.setattr(nvrtc, "_in_system", lambda: iter(()))
    monkeypatch.setenv("PATH", str(tmp_path))
    nvcc.find.cache_clear()
    yield tmp_path
    nvcc.find.cache_clear()


def test_the_newest_wheel_is_chosen(wheels: Path) -> None:
    assert compilers.find().name == f"NVRTC 13.9 ({wheels}/nvidia/cu13/lib/libnvrtc.so.13)"


def test_code_must_not_be_too_new_for_the_driver(wheels: Path) -> None:
    assert compilers.find(12).name.startswith("NVRTC 12.8")
    with pytest.raises(CompileError, match=r"NVRTC 12\.8 .* is too new for the driver, of CUDA 11"):
        compilers.find(11)


def test_without_a_compiler_the_error_lists_every_search(wheels: Path) -> None:
    shutil.rmtree(wheels / "nvidia")
    nvrtc.load.cache_clear()
    found = compilers.search()
    assert isinstance(found, Missing)
    assert len(found.tried) == 3
    assert found.tried[-1] == "there is no program nvcc"
    with pytest.raises(CompileError, match=r"pip install 'ocannl-cuda\[nvrtc\]'"):
        compilers.find()


@pytest.fixture
def fake_nvcc(tmp_path: Path) -> Path:
    program = tmp_path / "nvcc"
    program.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n')
    program.chmod(0o755)
    return program


def test_nvcc_is_the_last_resort(
    wheels: Path, fake_nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compilers.find().name.startswith("NVRTC")
    monkeypatch.setattr(nvrtc, "_in_wheels", lambda: iter(()))
    nvcc.find.cache_clear()
    assert compilers.find().name == f"nvcc V12.4.131 ({fake_nvcc})"


def test_the_setting_selects_a_program(wheels: Path, fake_nvcc: Path) -> None:
    with settings.overrides(cuda__compiler=str(fake_nvcc)):
        assert compilers.find().name.startswith("nvcc V12.4.131")
    with (
        settings.overrides(cuda__compiler=sys.executable),
        pytest.raises(CompileError, match="is no nvcc: it prints no release"),
    ):
        compilers.find()


@pytest.mark.parametrize(
    ("capability", "name"),
    [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")],
)
def test_code_is_for_one_architecture(capability: tuple[int, int], name: str) -> None:
    assert architecture_of(capability) == name


class Recording:
    """A compiler that returns its input, and rejects kernels whose text says so."""

    name = "recording compiler"
    identity = "recording"
    is_emulator = False

    def __init__(self) -> None:
        self.units: list[str] = []

    def compile(self, text: str, architecture: str, name: str) -> bytes:
        self.units.append(text)
        if "wrong" in text:
            line = text[: text.index("wrong")].count("\n") + 1
            raise RejectedError(f'{name}({line}): error: identifier "wrong" is undefined')
        return text.encode()


def kernel(symbol: str, body: str = "", author: str = "") -> KernelText:
    head = f'extern "C" __global__ void {symbol}(float *a0) {{'
    return KernelText(symbol, f"{head}\n{body}\n}}\n", author=author)


def test_a_kernel_is_compiled_once() -> None:
    compiler = Recording()
    first = build([kernel("k_1"), kernel("k_2")], compiler, "sm_90a", {})
    again = build([kernel("k_2"), kernel("k_3")], compiler, "sm_90a", {})
    assert len(compiler.units) == 2
    assert "k_2" not in compiler.units[1]
    assert again["k_2"] == first["k_2"]
    assert b"k_3" in again["k_3"].content


def test_another_architecture_has_a_cache_of_its_own() -> None:
    compiler = Recording()
    for architecture in ("sm_80", "sm_90a", "sm_80"):
        build([kernel("k_1")], compiler, architecture, {})
    assert len(compiler.units) == 2


def test_many_kernels_are_compiled_as_several_units() -> None:
    compiler = Recording()
    every = [kernel(f"k_{number}") for number in range(40)]
    found = build(every, compiler, "sm_90a", {})
    assert found.keys() == {each.symbol for each in every}
    assert all(symbol.encode() in cubin.content for symbol, cubin in found.items())


def test_a_damaged_cubin_is_built_again(tmp_path: Path) -> None:
    compiler = Recording()
    build([kernel("k_1")], compiler, "sm_90a", {})
    (cubin,) = (tmp_path / "cache").rglob("*.cubin")
    cubin.write_bytes(b"damaged")
    found = build([kernel("k_1")], compiler, "sm_90a", {})
    assert len(compiler.units) == 2
    assert found["k_1"].content != b"damaged"


def test_an_error_names_the_kernel_its_tensors_and_the_line() -> None:
    every = [kernel("k_1"), kernel("k_2", "  a0[0] = wrong;"), kernel("k_3")]
    with pytest.raises(CompileError) as caught:
        build(every, Recording(), "sm_90a", {"k_2": "writes hidden"})
    assert "kernel k_2 (writes hidden), line " in caught.value.where
    assert ": a0[0] = wrong;" in caught.value.where
    path = caught.value.where.splitlines()[1]
    assert "a0[0] = wrong;" in Path(path).read_text()
    assert 'identifier "wrong" is undefined' in caught.value.found


def test_an_error_in_the_code_of_an_operation_names_its_author() -> None:
    every = [kernel("k_2", "  a0[0] = wrong;", author="my_op at model.py:12")]
    with pytest.raises(CompileError) as caught:
        build(every, Recording(), "sm_90a", {})
    assert caught.value.rule == "The CUDA code of an operation must compile."
    assert caught.value.where.startswith("my_op at model.py:12, line ")


@pytest.mark.parametrize("kind", ["nvrtc", "nvcc", "host"])
def test_the_line_is_found_in_the_messages_of_every_compiler(kind: str) -> None:
    found = {
        "nvrtc": lambda: next(iter(nvrtc.find()), "none"),
        "nvcc": lambda: nvcc.find("nvcc"),
        "host": host_compiler.find,
    }[kind]()
    if isinstance(found, str):
        pytest.skip(found)
    with pytest.raises(CompileError) as caught:
        build([kernel("k_1", "  a0[0] = undeclared;")], found, "sm_90a", {})
    assert ": a0[0] = undeclared;" in caught.value.where.splitlines()[0]
    assert "undeclared" in caught.value.found


def test_a_compiler_of_the_host_is_an_emulator() -> None:
    found = host_compiler.find()
    if isinstance(found, str):
        pytest.skip(found)
    assert isinstance(found, HostCompiler)
    assert found.is_emulator
    assert found.compile("", "sm_90a", "empty.cu").startswith(b"\x7fELF")


def test_an_installation_without_the_emulator_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("ocannl_cuda_emulator")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ocannl_cuda_emulator", None)  # as if it were not there
    with settings.overrides(cuda__compiler="emulator"):
        assert compilers.search() == Missing(
            ("there is no emulator: the repository has it in plugins/ocannl_cuda_emulator",)
        )


def test_the_report_of_the_assembler_is_read() -> None:
    log = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'j' for 'sm_90a'
ptxas info    : Function properties for j
ptxas         .     1744 bytes stack frame, 2000 bytes spill stores, 284 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 1744 bytes cumulative stack size
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : (C7510) Potential Performance Loss: products are serialized in function 'k'
ptxas info    : Used 24 registers, used 1 barriers, 400 bytes smem
"""
    note = "C7510: Potential Performance Loss: products are serialized in function 'k'"
    assert parse(log) == {
        "j": Resources(64, stack_bytes=1744, spill_bytes=2284),
        "k": Resources(24, shared_bytes=400, notes=(note,)),
    }
