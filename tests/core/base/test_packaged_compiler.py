"""The compiler of the package `ziglang`, found without running it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from ocannl_core.base import packaged_compiler, settings
from ocannl_core.base.packaged_compiler import PackagedCompiler, cache_variables


def package(folder: Path, *, program: str = "zig") -> Path:
    """Make a package like `ziglang` in a folder."""
    (folder / "ziglang").mkdir(parents=True)
    (folder / "ziglang" / "__init__.py").touch()
    (folder / "ziglang-0.99.dist-info").mkdir()
    (folder / "ziglang-0.99.dist-info" / "METADATA").write_text("Name: ziglang\nVersion: 0.99\n")
    (folder / "ziglang" / program).touch(mode=0o755)
    return folder


def test_the_program_is_beside_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = package(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(site)])
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    program = site / "ziglang" / "zig"
    assert packaged_compiler.find() == PackagedCompiler((str(program), "cc"), "0.99")
    program.chmod(0o644)
    assert packaged_compiler.find() is None
    program.unlink()
    assert packaged_compiler.find() is None
    assert "ziglang" not in sys.modules  # whose module would run the program


def test_a_package_in_the_working_directory_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = package(tmp_path / "here")
    monkeypatch.chdir(here)
    for each in ("", ".", "../here", str(here)):
        monkeypatch.setattr(sys, "path", [each])
        assert packaged_compiler.find() is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(here)])
    assert packaged_compiler.find() is not None


def test_compiled_libraries_are_kept_where_only_the_user_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    with settings.overrides(cache_dir=str(tmp_path / "cache")):
        without = cache_variables("/scratch", keep_libraries=False)
        assert set(without.values()) == {"/scratch"}
        assert not (tmp_path / "cache").exists()
        kept = Path(cache_variables("/scratch", keep_libraries=True)["ZIG_GLOBAL_CACHE_DIR"])
        assert kept == tmp_path / "cache" / "zig"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o700
        kept.chmod(0o777)  # others could have planted libraries
        with pytest.warns(RuntimeWarning, match="zig: every user can write to it"):
            other = cache_variables("/scratch", keep_libraries=True)["ZIG_GLOBAL_CACHE_DIR"]
        assert not Path(other).is_relative_to(tmp_path / "cache")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", "/chosen")
    chosen = cache_variables("/scratch", keep_libraries=True)
    assert chosen == {"ZIG_LOCAL_CACHE_DIR": "/scratch", "ZIG_GLOBAL_CACHE_DIR": "/chosen"}
