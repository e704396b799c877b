"""The backend that the documentation builds passes the conformance suite."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ocannl_core.hooks import manager

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "write_a_backend.md"


def tiny_c() -> ModuleType:
    """Return the page's program as a module."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    module = ModuleType("tiny_c")
    sys.modules["tiny_c"] = module
    try:
        exec(compile("\n".join(blocks), str(PAGE), "exec"), vars(module))
    finally:
        manager.refresh()
    return module


PLUGIN = tiny_c()


class TestTinyC(PLUGIN.TestTinyC):  # type: ignore[name-defined, misc]
    @pytest.fixture(autouse=True)
    def _registered(self) -> None:
        if "tiny_c" not in {entry.name for entry in manager.backend_entries()}:
            manager.register("tiny_c", PLUGIN)
