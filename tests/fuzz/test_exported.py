"""Random calls of exported files are clean under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import exported
from .exported import PROGRAMS, SANITIZERS, outcome


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_calls_are_clean(name: str, sanitizer: str, tmp_path: Path) -> None:
    is_clean, output = outcome(name, sanitizer, 150, tmp_path)
    assert is_clean, output


@pytest.mark.slow
def test_a_write_beyond_an_output_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = exported.HARNESS.read_text()
    allocation = "malloc(nbytes ? nbytes : 1)"
    planted = tmp_path / "planted.c"
    short = "malloc(k < function->inputs ? nbytes : nbytes - 1)"
    cleared = "memset(cells, 0, nbytes);"
    planted.write_text(harness.replace(allocation, short).replace(cleared, ""))
    monkeypatch.setattr(exported, "HARNESS", planted)
    is_clean, output = outcome("perceptron", "address,undefined", 50, tmp_path)
    assert not is_clean
    assert "heap-buffer-overflow" in output
    assert "model_predict" in output or "model_train" in output
