"""The command line: output and exit codes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ocannl_core.backend import manager
from ocannl_core.backend.protocols import Source, TargetReport
from ocannl_core.backend.specs import hookimpl
from ocannl_core.base.errors import CompileError
from ocannl_core.base.version import __version__
from ocannl_core.cli import main
from ocannl_core.cli.backends import table
from ocannl_core.cli.inventory import inventory
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.target import Target


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only backends that a test registers are looked at."""
    for variable in [name for name in os.environ if name.startswith("OCANNL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    manager.refresh()
    installed = ",".join(entry.name for entry in manager.backend_entries())
    monkeypatch.setenv("OCANNL_DISABLE_PLUGINS", installed)
    yield
    manager.refresh()


class Missing:
    """A backend without its driver."""

    OCANNL_API = (1, 0)

    @hookimpl
    def ocannl_targets(self) -> TargetReport:
        return TargetReport(reason="the driver is missing", fix="install it")


class Present:
    """A backend with two devices whose compiler rejects everything."""

    OCANNL_API = (1, 0)

    @hookimpl
    def ocannl_targets(self) -> TargetReport:
        devices = (
            Target(
                "present", 0, "first", priority=5, vector_bytes=32, cores=4, vector_registers=16
            ),
            Target("present", 1, "second", priority=4),
        )
        return TargetReport(devices, details=("compiler 1.0",))

    @hookimpl
    def ocannl_generate(self, kernels: KernelStream) -> Source:
        class Text:
            language = "text"
            text = kernels.plan().name

        return Text()

    @hookimpl
    def ocannl_compile(self, source: Source) -> None:
        raise CompileError("The compiler must accept the code.", found="syntax error")

    @hookimpl
    def ocannl_allocate(self) -> None: ...

    @hookimpl
    def ocannl_transfer(self) -> None: ...


class Broken:
    """A backend for another version of the interface."""

    OCANNL_API = (0, 9)


def shown(*, verbose: bool) -> str:
    """Return the printed backends, without the installed ones."""
    rows = [row for row in inventory() if row.state != "disabled"]
    return table(rows, verbose=verbose)


def test_backends_shows_each_state_with_its_reason() -> None:
    manager.register("missing", Missing())
    manager.register("present", Present())
    manager.register("broken", Broken())
    assert shown(verbose=False) == snapshot("""\
backend    status       devices  priority  plugin
present *  available    2        5         registered in this process
broken     broken       0        -         registered in this process
    reason  it was written for version 0 of the backend interface, and this is version 1: update the plugin or ocannl-core
    try     authors find the changes in docs/reference/backend_versions.md
missing    unavailable  0        -         registered in this process
    reason  the driver is missing
    try     install it\
""")


def test_verbose_shows_devices_and_details() -> None:
    manager.register("present", Present())
    assert shown(verbose=True) == snapshot("""\
backend    status     devices  priority  plugin
present *  available  2        5         registered in this process
    device  present:0: first, cores: 4, bytes in a vector: 32
    device  present:1: second, cores: 1, bytes in a vector: 0
    detail  compiler 1.0
    from    plugin registered in this process (entry point present = Present)\
""")


def test_backends_prints_the_reason_for_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.register("present", Present())
    assert main(["backends"]) == 0
    assert capsys.readouterr().out.endswith(
        "\n* new contexts use this backend: it has the highest priority\n"
    )
    monkeypatch.setenv("OCANNL_BACKEND", "present:1")
    assert main(["backends"]) == 0
    assert capsys.readouterr().out.endswith("chosen by OCANNL_BACKEND\n")


def test_json_holds_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    manager.register("missing", Missing())
    manager.register("present", Present())
    assert main(["backends", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["present"]["default"] is True
    assert [device["device"] for device in rows["present"]["devices"]] == [0, 1]
    assert (rows["missing"]["status"], rows["missing"]["fix"]) == ("unavailable", "install it")


def test_backends_fails_when_the_chosen_one_cannot_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.register("missing", Missing())
    manager.register("present", Present())
    monkeypatch.setenv("OCANNL_BACKEND", "missing")
    assert main(["backends"]) == 1
    assert "requested by OCANNL_BACKEND but has no device" in capsys.readouterr().out


def test_doctor_fails_when_a_device_does_not_compute(capsys: pytest.CaptureFixture[str]) -> None:
    manager.register("present", Present())
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        "FAIL  present:0, a kernel compared with NumPy: CompileError: The compiler must accept the code."
        in lines
    )
    assert "      compiler 1.0" in lines


def test_doctor_tolerates_a_missing_driver_of_unnamed_backends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    manager.register("missing", Missing())
    main(["doctor"])
    assert "WARN  backend missing: unavailable: the driver is missing" in capsys.readouterr().out
    assert main(["doctor", "missing"]) == 1
    assert "FAIL  backend missing: unavailable: the driver is missing" in capsys.readouterr().out


def test_doctor_fails_when_a_missing_backend_leaves_a_slower_one_to_be_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class MissingCompiler:
        OCANNL_API = (1, 0)

        @hookimpl
        def ocannl_targets(self) -> TargetReport:
            return TargetReport(reason="no compiler", fix="install one", priority=10**6)

    monkeypatch.setenv("OCANNL_DISABLE_PLUGINS", "cpu_c,cuda,opencl")
    manager.register("missing", MissingCompiler())
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "FAIL  backend missing: unavailable: no compiler" in text
    assert "failed: 1" in text
    monkeypatch.setenv("OCANNL_BACKEND", "interp")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "WARN  backend missing: unavailable: no compiler" in text
    assert "warnings: " in text
    assert "no problems" not in text


def test_doctor_lists_installed_backends_for_an_unknown_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    manager.register("present", Present())
    assert main(["doctor", "presnt"]) == 1
    assert "did you mean present?" in capsys.readouterr().err


def test_doctor_warns_about_a_cache_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocking = tmp_path / "file"
    blocking.write_text("not a directory")
    monkeypatch.setenv("OCANNL_CACHE_DIR", str(blocking / "cache"))
    main(["doctor"])
    assert f"WARN  cache directory: {blocking}/cache cannot be written" in capsys.readouterr().out


def test_config_shows_values_with_their_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OCANNL_DISABLE_PLUGINS")
    monkeypatch.setenv("OCANNL_SEED", "7")
    (tmp_path / "ocannl.toml").write_text("disable_plugins = ['cuda', 'other']\n")
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.replace(str(tmp_path), "FOLDER").splitlines()
    assert lines[::2] == snapshot(
        [
            "backend                      not set  (from default)",
            "fallback                     none  (from default)",
            "cache_dir                    not set  (from default)",
            "asynchronous_products        false  (from default)",
            "dump_dir                     not set  (from default)",
            "timeline                     not set  (from default)",
            "log_runs                     0  (from default)",
            "guard_values                 off  (from default)",
            "check_bounds                 false  (from default)",
            "profile                      not set  (from default)",
            "schedule                     default  (from default)",
            "accumulation                 float32  (from default)",
            "tune                         cached  (from default)",
            "tune_budget                  10.0  (from default)",
            "tune_placements              false  (from default)",
            "contract                     true  (from default)",
            "libraries                    false  (from default)",
            "threads                      not set  (from default)",
            "host_devices                 1  (from default)",
            "asynchronous                 false  (from default)",
            "device_memory                not set  (from default)",
            "tables_are_finite            false  (from default)",
            "check_positions              true  (from default)",
            "seed                         7  (from OCANNL_SEED)",
            "threefry_rounds              20  (from default)",
            "default_dtype                float32  (from default)",
            "param_dtype                  not set  (from default)",
            "half_constant_cutoff         16384  (from default)",
            "allow_nan                    false  (from default)",
            "warn_summed_once             true  (from default)",
            "missing_axes                 warn  (from default)",
            "python_ops                   false  (from default)",
            "memory_budget                not set  (from default)",
            "max_visits                   1  (from default)",
            "max_tracing_dim              5  (from default)",
            "enable_device_only           true  (from default)",
            "inline_scalar_constexprs     true  (from default)",
            "inline_simple_computations   true  (from default)",
            "inline_complex_computations  false  (from default)",
            "load_plugins                 not set  (from default)",
            "disable_plugins              cuda, other  (from FOLDER/ocannl.toml)",
            "strict_plugins               false  (from default)",
            "plugin_timeout               10.0  (from default)",
            "trusted_directories          none  (from default)",
            "fill_limit                   16  (from default)",
            "print_decimals               4  (from default)",
            "print_edge                   4  (from default)",
            "cpu_c__cc                    not set  (from default)",
            "cpu_c__arch                  native  (from default)",
            "cpu_c__check_compiler        true  (from default)",
            "mpi__timeout                 300.0  (from default)",
            "mpi__device_memory           not set  (from default)",
        ]
    )


def test_an_unreadable_configuration_is_an_error_of_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "ocannl.toml").write_text("sed = 1\n")
    assert main(["config"]) == 1
    assert "did you mean seed" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at the end", "at once"])
def test_output_that_cannot_be_written_is_an_error_of_the_command(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "ocannl_core.cli", "config"],
            env=dict(os.environ, PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    reason = os.strerror(errno.ENOSPC)
    assert ran.stderr == f"error: the output cannot be written: {reason}\n"


def test_wrong_usage_ends_with_code_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["backend"])
    assert caught.value.code == 2


def test_no_command_is_wrong_usage_and_lists_the_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    text = capsys.readouterr().err
    assert all(name in text for name in ("backends", "doctor", "bench", "new-backend"))


def test_the_version_is_that_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"ocannl {__version__}\n"
