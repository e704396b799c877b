"""Detection of the compiler, and errors if there is none or it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from inline_snapshot import snapshot

import ocannl_cpu_c as backend
from ocannl_core.base import settings
from ocannl_core.base.errors import CompileError
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import Block, Fill
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.target import Target
from ocannl_cpu_c import compiler, compiler_command, loader, own_settings

TARGET = Target("cpu_c")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that makes a program of shell lines."""

    def make(lines: str) -> str:
        path = tmp_path / "some-cc"
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
        return str(path)

    return make


def compile_something() -> None:
    out = TensorNode(0, ("out",))
    nest = Kernel(Block((Fill(out, 1.25),)), (out,), ())
    plan = Plan("routine", (nest,), (out,), (), (), {out: NodeInfo(float32, (3,))})
    backend.ocannl_compile(backend.ocannl_generate(KernelStream.of(plan), TARGET), TARGET)


def failure() -> str:
    with pytest.raises(CompileError) as error:
        compile_something()
    return str(error.value)


def test_the_machine_is_described_as_compiled_code_sees_it():
    report = backend.ocannl_targets()
    (target,) = report.targets
    assert (target.backend, target.priority, report.reason) == ("cpu_c", 50, "")
    assert target.cores >= 1
    assert target.vector_bytes in (0, 16, 32, 64)
    assert target.description
    found, flags, processor, place, checked = report.details
    assert found.startswith("compiler ")
    assert "-ffp-contract=off" in flags
    assert "-ffast-math" not in flags
    assert processor.startswith(f"processor {own_settings.current().arch}: ")
    assert place == f"cache {settings.cache_directory()}/cpu_c"
    assert checked == loader.check_state()


def test_the_setting_precedes_the_variable_and_the_path(script, monkeypatch):
    chosen = script('exec cc "$@"')
    monkeypatch.delenv("OCANNL_CPU_C__CC", raising=False)
    monkeypatch.setenv("CC", "gcc -pipe")
    assert compiler.find().command == ("gcc", "-pipe")
    with settings.overrides(cpu_c__cc=f"{chosen} -pipe"):
        assert compiler.find().command == (chosen, "-pipe")
    monkeypatch.delenv("CC")
    assert compiler.find().command == ("cc",)


def test_a_chosen_compiler_is_never_replaced(monkeypatch):
    monkeypatch.setenv("OCANNL_CPU_C__CC", "no-such-compiler -O0")
    assert failure() == snapshot("""\
The chosen C compiler must be installed.
  found  no program 'no-such-compiler -O0'
  where  the setting cc (OCANNL_CPU_C__CC)
  try    install a C compiler (Debian, Ubuntu: apt-get install gcc) or the one of a Python package
         (pip install 'ocannl-cpu-c[compiler]'), or run without one: OCANNL_BACKEND=interp\
""")


def test_without_any_compiler_the_message_names_packages_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compiler_command, "packaged_compiler", lambda: None)
    for variable in ("CC", "OCANNL_CPU_C__CC"):
        monkeypatch.delenv(variable, raising=False)
    assert failure() == snapshot("""\
The CPU backend needs a C compiler.
  found  none of cc, gcc, clang on the path, and no package ziglang
  try    install a C compiler (Debian, Ubuntu: apt-get install gcc) or the one of a Python package
         (pip install 'ocannl-cpu-c[compiler]'), or run without one: OCANNL_BACKEND=interp\
""")
    report = backend.ocannl_targets()
    assert report.targets == ()
    assert (report.reason, report.priority) == snapshot(
        (
            "The CPU backend needs a C compiler: none of cc, gcc, clang on the path, and no package ziglang",
            50,
        )
    )
    assert "OCANNL_BACKEND=interp" in report.fix


def test_a_compiler_that_does_not_answer_is_reported(script):
    with settings.overrides(cpu_c__cc=script("echo 'the license has expired' >&2; exit 1")):
        text = failure()
        report = backend.ocannl_targets()
    assert text.replace(str(settings.cache_directory()), "CACHE").splitlines()[:3] == snapshot(
        ["The C compiler must work.", "  found  exit status 1", "         the license has expired"]
    )
    assert report.reason == snapshot(
        "The C compiler must work: exit status 1 the license has expired"
    )


def test_a_compiler_that_is_stopped_amid_its_answer_is_reported(script):
    with settings.overrides(cpu_c__cc=script("echo '#define __STDC__ 1'; kill -9 $$")):
        reason = backend.ocannl_targets().reason
    assert reason == snapshot("The C compiler must work: it was stopped: signal 9")


def test_rejected_code_is_kept_and_the_command_shown(script, tmp_path):
    lines = """\
case "$*" in *-dM*) exec cc "$@";; esac
for i in $(seq 1 50); do echo "generated.c:$i: error: no"; done >&2
exit 3"""
    command = script(lines)
    with settings.overrides(cpu_c__cc=command, cache_dir=str(tmp_path / "cache")):
        text = failure()
    sources = (tmp_path / "cache").rglob("*.c")  # perhaps with the runtime library
    (source,) = (each for each in sources if "void k_" in each.read_text())
    assert str(source) in text
    assert command in text
    assert "generated.c:39: error: no\n         ... and 11 more lines" in text
    assert "generated.c:41" not in text
    first, second, *_, last = text.splitlines()
    assert [first, second, last] == snapshot(
        [
            "The C compiler must accept generated code.",
            "  found  exit status 3",
            "  try    check the compiler with OCANNL_CPU_C__CC=...; OCANNL_BACKEND=interp runs without one",
        ]
    )
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_an_unknown_processor_is_an_error_and_native_is_optional(script):
    with (
        settings.overrides(cpu_c__arch="no-such-processor"),
        pytest.raises(CompileError, match="The C compiler must work"),
    ):
        compiler.find()
    ignorant = script('case "$*" in *-march=*) exit 1;; esac\nexec cc "$@"')
    with settings.overrides(cpu_c__cc=ignorant, cpu_c__arch="native"):
        assert not any(flag.startswith("-march") for flag in compiler.find().flags)
