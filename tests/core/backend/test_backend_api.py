"""Backends import one package: its names exist, are documented, and suffice."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ocannl_core.backend_api import Capability, c_family, launches

ROOT = Path(__file__).resolve().parents[3]
FRONT = "ocannl_core.backend_api"
MODULES = [
    import_module(FRONT),
    *(
        import_module(f"{FRONT}.{path.stem}")
        for path in sorted((ROOT / "ocannl_core" / "backend_api").glob("[!_]*.py"))
    ),
]
PAGE = (ROOT / "docs" / "reference" / "backend_api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_exactly_the_names_of_a_module_are_documented(module: ModuleType) -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (section,) = [each for each in sections if each.startswith(f"{module.__name__}\n")]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_a_name_is_in_one_module() -> None:
    names = [name for module in MODULES for name in module.__all__]
    assert len(names) == len(set(names))


def imported(text: str) -> set[str]:
    """Return the modules of the core that a program imports."""
    nodes = list(ast.walk(ast.parse(text)))
    found = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    found |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in found if name.startswith("ocannl_core")}


def test_the_example_plugin_imports_nothing_else() -> None:
    source = ROOT / "tests" / "example_plugin" / "src"
    modules = {name for path in source.rglob("*.py") for name in imported(path.read_text("utf-8"))}
    assert modules == {FRONT, f"{FRONT}.arithmetic", f"{FRONT}.host_calls", f"{FRONT}.loops"}


def test_the_backend_of_the_documentation_imports_nothing_else() -> None:
    page = (ROOT / "docs" / "howto" / "write_a_backend.md").read_text(encoding="utf-8")
    program, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert imported(program) == {
        FRONT, f"{FRONT}.c_family", f"{FRONT}.host_calls", f"{FRONT}.launches", f"{FRONT}.loops"
    }  # fmt: skip


def test_hooks_load_neither_passes_nor_code_generator() -> None:
    program = (
        f"import sys, {FRONT}; print(*(n for n in sys.modules if '.codegen' in n or 'passes' in n))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_names_that_have_moved_are_found_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"KernelText has moved to .*backend_api.launches"):
        found = c_family.KernelText
    assert found is launches.KernelText
    with pytest.raises(AttributeError, match="has no attribute 'Kernel'"):
        c_family.Kernel  # noqa: B018


def test_every_capability_is_documented() -> None:
    page = (ROOT / "docs" / "howto" / "declare_limits.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `capabilities`"))
    for each in Capability:
        assert each.value in row
    guide = (ROOT / "docs" / "howto" / "write_a_backend.md").read_text(encoding="utf-8")
    assert str(Capability.SEVERAL_DEVICES) in guide
