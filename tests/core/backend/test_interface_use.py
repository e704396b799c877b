"""The notes for authors of plugins: uses of the core that later versions may break."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

from ocannl_core import backend_api
from ocannl_core.backend import manager
from ocannl_core.backend.interface_use import (
    _interface_names,
    _newer_names,
    _uses,
    files_of,
    notes_for_authors,
)
from ocannl_core.backend.protocols import BACKEND_API, NAMES_SINCE, VERSIONS_PAGE
from ocannl_core.backend.specs import CodegenHooks, DeviceHooks, MemoryHooks, TransferHooks
from ocannl_core.ir.numbers.primitives import EVERY_PRIMITIVE
from ocannl_core.ir.target import Target
from tests.core.backend.conftest import WORKING
from tests.core.backend.conftest import install as install
from tests.core.backend.conftest import only as only
from tests.core.backend.test_manager import Install, Only

ROOT = Path(__file__).resolve().parents[3]
FROZEN = ROOT / "tests" / "frozen_backends"
EXAMPLES = (
    *ROOT.glob("examples/backends/*/src/*/__init__.py"),
    *ROOT.glob("tests/example_plugin/src/*/__init__.py"),
    *ROOT.glob("tests/frozen_backends/1.0/*/src/*/__init__.py"),
)


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


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from ocannl_core.backend_api import DeviceError", "DeviceError"),
        ("from ocannl_core.backend_api import DeviceError as E", "DeviceError"),
        ("import ocannl_core.backend_api.memory", "memory"),
        ("from ocannl_core.backend_api import memory", "memory"),
        ("from ocannl_core.backend_api.memory import Arena", "memory"),
        ("from ocannl_core import backend_api\nbackend_api.DeviceError", "DeviceError"),
        ("import ocannl_core.backend_api as b\nb.DeviceError", "DeviceError"),
        ("import ocannl_core\nocannl_core.backend_api.DeviceError", "DeviceError"),
        ("from ocannl_core.backend_api import settings\nsettings.setting()", "settings.setting"),
        ("from ocannl_core import settings\nsettings.of_plugin()", "settings.of_plugin"),
        (
            "from ocannl_core.backend_api import Target\nTarget('x', primitives=())",
            "Target.primitives",
        ),
        ("def ocannl_device_error(error): ...", "ocannl_device_error"),
        ("class P:\n    ocannl_share = None", "ocannl_share"),
        ("OCANNL_SETTINGS = object", "OCANNL_SETTINGS"),
        (
            "from ocannl_core.backend_api.arithmetic import UnaryOp\nUnaryOp.BITCAST",
            "arithmetic.UnaryOp.BITCAST",
        ),
    ],
)
def test_names_of_a_later_version_than_stated_are_found(code: str, name: str) -> None:
    ((line, text),) = _newer_names(ast.parse(code), (1, 0))
    assert line == len(code.splitlines())
    assert text == f"uses {name} (since 1.1) but states 1.0: OCANNL_API = (1, 1)"
    assert list(_newer_names(ast.parse(code), (1, 1))) == []


def test_every_later_primitive_has_its_version() -> None:
    for op in EVERY_PRIMITIVE:
        if op.value.since > (1, 0):
            assert f"arithmetic.{type(op).__name__}.{op.name}" in NAMES_SINCE[op.value.since]


def test_each_later_name_gives_one_note() -> None:
    code = "from ocannl_core.backend_api import memory\nmemory.Arena\nmemory.transfer"
    assert [line for line, _ in _newer_names(ast.parse(code), (1, 0))] == [1]


@pytest.mark.parametrize(
    "code",
    [
        "from ocannl_core.backend_api import Target, settings\nTarget('x', has_fma=True)",
        "from ocannl_core.backend_api import settings\nsettings.current().threads",
        "from mine import DeviceError, memory\nmemory.Arena",
        "def primitives(): ...",
    ],
)
def test_names_of_the_stated_version_give_no_note(code: str) -> None:
    assert list(_newer_names(ast.parse(code), (1, 0))) == []


def present_names() -> set[str]:
    """Return the names of the interface as `NAMES_SINCE` has them."""
    names = {f"Target.{each}" for each in Target.__dataclass_fields__}
    for hooks in (DeviceHooks, CodegenHooks, MemoryHooks, TransferHooks):
        names |= {each for each in vars(hooks) if each.startswith("ocannl_")}
    for each in pkgutil.iter_modules(backend_api.__path__):
        module = importlib.import_module(f"{backend_api.__name__}.{each.name}")
        names |= {f"{each.name}.{name}" for name in module.__all__}
    return names | set(backend_api.__all__)


def test_each_name_belongs_to_a_version_and_to_its_page() -> None:
    first = set((FROZEN / "names_1.0.txt").read_text(encoding="utf-8").split())
    page = (ROOT / VERSIONS_PAGE).read_text(encoding="utf-8")
    added = {name: since for since, names in NAMES_SINCE.items() for name in names}
    assert max(added.values()) == BACKEND_API
    assert not first & added.keys()
    new = present_names() - first
    missing = {each for each in new if not {each, each.split(".")[0]} & added.keys()}
    assert not missing, "names without a version: add them to NAMES_SINCE and to the page"
    for name, since in added.items():
        section = page.partition(f"## Version {since[0]}.{since[1]}\n")[2].partition("\n## ")[0]
        assert f"`{name}`" in section, name


@pytest.mark.parametrize("path", sorted(EXAMPLES), ids=lambda path: path.parts[-2])
def test_example_plugins_state_the_version_that_they_use(path: Path) -> None:
    trees = [ast.parse(each.read_text(encoding="utf-8")) for each in path.parent.rglob("*.py")]
    (stated,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OCANNL_API"
    )
    assert any([*_interface_names(tree)] for tree in trees)
    assert [note for tree in trees for note in _newer_names(tree, stated)] == []


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
