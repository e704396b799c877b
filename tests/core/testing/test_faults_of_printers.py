"""The conformance suite finds faults that authors of printers make."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocannl_core.backend import manager
from ocannl_core.cli import main
from ocannl_core.cli.new_backend import write_backend

pytest.importorskip("ocannl_interp")

FAULTS = {
    "gathered_cells": ("printer", "else {constant(beyond, dtype)}", "else {constant(0, dtype)}"),
    "where_does_not_touch": (
        "printer",
        'return f"{function}()"',
        'self._line(f"{function} = {function}()"); return function',
    ),
    "names_and_remarks": ("printer", 'f"# {ascii(text)}"', 'f"# {text}"'),
    "index_values": (
        "printer",
        'return " + ".join([*texts, str(offset)])',
        'return "abs(" + " + ".join([*texts, str(offset)]) + ")"',
    ),
    "check_ends_at": (
        "__init__",
        "known = dict(zip((*check.extents, check.at_run_time), ends, strict=True))",
        "known = dict.fromkeys((*check.extents, check.at_run_time), check.extent)",
    ),
}
"""The module, a part of its text, and the fault in its place, by the test that fails."""


@pytest.fixture(autouse=True)
def _fresh_modules(fresh_plugins: None) -> Iterator[None]:
    yield
    for name in [each for each in sys.modules if each.startswith("ocannl_faulty_")]:
        del sys.modules[name]


@pytest.mark.parametrize("test", FAULTS)
def test_a_fault_fails_a_test(
    test: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"faulty_{test}"
    write_backend(name, tmp_path / "new", "python")
    source = tmp_path / "new" / "src"
    module, part, wrong = FAULTS[test]
    file = source / f"ocannl_{name}" / f"{module}.py"
    text = file.read_text("utf-8")
    assert text.count(part) == 1
    file.write_text(text.replace(part, wrong), "utf-8")
    monkeypatch.syspath_prepend(str(source))
    manager.register(name, importlib.import_module(f"ocannl_{name}"))
    assert main(["check-backend", name, "-k", test]) == 1
    assert "FAILED suite/" in capsys.readouterr().out
