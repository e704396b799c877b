"""The Python in the documentation runs, page by page, on both backends that run programs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "```python" in path.read_text(encoding="utf-8")
)
SMALLER_IN_PYTHON = {
    "docs/howto/tune.md": {"500": "50", "700": "70"},
    "docs/howto/cuda.md": {"((64, 72), (72, 64))": "((16, 24), (24, 16))"},
}
"""Extents of pages about fast kernels, with smaller ones for the interpreter."""
OPTIONAL = {"docs/howto/onnx.md": ("onnx", "onnxruntime"), "docs/reference/onnx.md": ("onnx",)}
"""Packages that the programs of a page import, and that an environment may lack."""
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program(page: str, backend: str) -> str:
    """Return the Python of a page, each line at the number that it has there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for extents, smaller in SMALLER_IN_PYTHON.get(page, {}).items() if backend == "interp" else ():
        assert extents in text
        text = text.replace(extents, smaller)
    lines = [""] * text.count("\n")
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for offset, line in enumerate(block[1].splitlines()):
            lines[first + offset] = line
    return "\n".join(lines)


def test_the_readme_and_the_tutorial_have_programs() -> None:
    assert {"README.md", "docs/tutorial/first_model.md"} <= set(PAGES)


def run(page: str, backend: str) -> ModuleType:
    """Run the Python of a page as a module of its own, and return the module."""
    module = ModuleType("page")
    sys.modules["page"] = module
    try:
        own = {"cache_dir": "cache"} if "tune" in page else {}  # schedules are for this page alone
        with settings.overrides(backend=backend, **own), oc.Session():
            exec(compile(program(page, backend), str(ROOT / page), "exec"), vars(module))
    finally:
        del sys.modules["page"]
        manager.refresh()  # a page may register a backend
    return module


@pytest.mark.parametrize("backend", ["cpu_c", "interp"])
@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page: str, backend: str) -> None:
    for package in OPTIONAL.get(page, ()):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    run(page, backend)


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_the_model_of_the_readme_learns_the_exclusive_or(backend: str) -> None:
    module = run("README.md", backend)
    assert ((module.ctx[module.guess].ravel() > 0) == [False, True, True, False]).all()
    assert module.ctx.target.backend == backend


def test_the_readme_shows_the_output_of_its_program() -> None:
    module = run("README.md", "cpu_c")
    assert str(oc.summary(module.guess)) in (ROOT / "README.md").read_text(encoding="utf-8")
    assert module.losses[-1] < 0.01
