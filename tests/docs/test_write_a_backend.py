"""The backend that the documentation builds passes the conformance suite."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ocannl_core.backend import manager
from ocannl_core.cli.new_backend import backend_text

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "write_a_backend.md"


BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def tiny_c() -> ModuleType:
    """Return the page's program as a module."""
    module = ModuleType("tiny_c")
    sys.modules["tiny_c"] = module
    try:
        exec(compile("\n".join(BLOCKS), str(PAGE), "exec"), vars(module))
    finally:
        manager.refresh()
    return module


PLUGIN = tiny_c()


class TestTinyC(PLUGIN.TestTinyC):  # type: ignore[name-defined, misc]
    @pytest.fixture
    def target(self) -> str:
        if "tiny_c" not in {entry.name for entry in manager.backend_entries()}:
            manager.register("tiny_c", PLUGIN)
        return "tiny_c"


def test_the_page_shows_the_backend_that_the_command_writes() -> None:
    """Beside titles of sections, which the page has as headings, and the docstring."""
    template = backend_text("tiny_c").split('"""\n', 1)[1]
    written = [line for line in template.splitlines() if line and not line.startswith("# ---")]
    shown = [line for block in BLOCKS for line in block.splitlines() if line]
    assert shown[: len(written)] == written
