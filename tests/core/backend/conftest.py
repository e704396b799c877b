"""Temporary plugins: a module and the metadata of a distribution in a temporary directory."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ocannl_core.backend import manager

Install = Callable[..., Path]

WORKING = """
    from ocannl_core.backend.specs import hookimpl
    from ocannl_core.backend.protocols import TargetReport
    from ocannl_core.ir.target import Target

    OCANNL_API = (1, 0)

    @hookimpl
    def ocannl_targets():
        return TargetReport((Target("{name}", description="a test device", priority={priority}),))

    @hookimpl
    def ocannl_generate(): ...

    @hookimpl
    def ocannl_compile(): ...

    @hookimpl
    def ocannl_allocate(): ...

    @hookimpl
    def ocannl_transfer(): ...
"""


def write_plugin(
    folder: Path,
    name: str,
    code: str,
    *,
    module: str = "",
    attribute: str = "",
    distribution: str = "",
    version: str = "1.0",
    group: str = "ocannl.backends",
) -> None:
    """Write a module and the metadata of a distribution whose entry point names it."""
    module = module or f"plugin_{name}"
    distribution = distribution or f"dist-{name}"
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(textwrap.dedent(code))
    metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (metadata / "entry_points.txt").write_text(
        f"[{group}]\n{name} = {module}{attribute and ':'}{attribute}\n"
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a plugin for the duration of a test: `install(name, code, ...)`."""
    folder = tmp_path / "site"
    folder.mkdir()
    for variable in [each for each in os.environ if each.startswith("OCANNL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder))
    manager.refresh()

    def install(name: str, code: str = "", *, priority: int = 0, **options: str) -> Path:
        write_plugin(folder, name, code or WORKING.format(name=name, priority=priority), **options)
        manager.refresh()
        return folder

    yield install
    for module in list(sys.modules):
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(folder)):
            del sys.modules[module]
    manager.refresh()


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Disable all plugins except the named ones."""

    def only(*names: str) -> None:
        monkeypatch.setenv("OCANNL_LOAD_PLUGINS", ",".join(names) or ",")

    return only
