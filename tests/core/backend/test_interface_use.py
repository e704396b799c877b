"""The notes for authors of plugins: uses of the core that later versions may break."""

from __future__ import annotations

import ast

import pytest

from ocannl_core.backend import manager
from ocannl_core.backend.interface_use import _uses, files_of, notes_for_authors
from ocannl_core.backend.protocols import BACKEND_API, VERSIONS_PAGE
from tests.core.backend.conftest import WORKING
from tests.core.backend.conftest import install as install
from tests.core.backend.conftest import only as only
from tests.core.backend.test_manager import Install, Only


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("import ocannl_core.ir.node", "ocannl_core.ir.node is not part of"),
        ("from ocannl_core.ir.node import TensorNode", "ocannl_core.ir.node is not part of"),
        ("from ocannl_core import ir", "ocannl_core.ir is not part of"),
        ("settings.current().cuda_graphs", "it is the setting cuda__graphs of a plugin"),
    ],
)
def test_uses_beyond_the_interface_are_found(line: str, note: str) -> None:
    ((number, text),) = _uses(ast.parse(f"import json\n{line}\n"))
    assert number == 2
    assert note in text


@pytest.mark.parametrize(
    "line",
    [
        "import ocannl_core",
        "from ocannl_core import backend_api",
        "from ocannl_core.backend_api import Target",
        "import ocannl_core.backend_api.loops",
        "from ocannl_core.testing.conformance import BackendConformance",
        "from . import printer",
        "settings.current().threads",
        "own_settings.current().cuda_graphs",
        "import ocannl_core_tools.x",
    ],
)
def test_the_interface_itself_gives_no_note(line: str) -> None:
    assert list(_uses(ast.parse(line))) == []


def test_a_plugin_has_notes_with_files_and_lines(install: Install, only: Only) -> None:
    install("noted", WORKING.format(name="noted", priority=0))
    only("noted")
    backend = manager.backend("noted")
    assert [path.name for path in files_of(backend)] == ["plugin_noted.py"]
    notes = notes_for_authors(backend)
    assert f"{BACKEND_API[0]}.{BACKEND_API[1]} is new: see {VERSIONS_PAGE}" in notes[0]
    assert any(each.startswith("plugin_noted.py:2: ocannl_core.backend.specs") for each in notes)


@pytest.mark.parametrize("name", ["interp", "cpu_c", "cuda", "opencl"])
def test_backends_of_this_repository_need_no_notes(name: str) -> None:
    assert notes_for_authors(manager.backend(name)) == []
