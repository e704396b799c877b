"""The use that the source code of a plugin makes of the core, for its authors.

Users of the plugin see none of it: what is deprecated works.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.protocols import BACKEND_API, VERSIONS_PAGE
from ocannl_core.base import settings

_CORE = "ocannl_core"
_INTERFACES = ("ocannl_core.backend_api", "ocannl_core.testing")
"""The packages whose names belong to versions; the second one is for tests."""


def files_of(backend: Backend) -> list[Path]:
    """Return the source files of a backend's plugin; none for an object that has no file."""
    file = getattr(backend.manager.get_plugin(backend.name), "__file__", None)
    if file is None:
        return []
    path = Path(file)
    return sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]


def notes_for_authors(backend: Backend) -> list[str]:
    """Return all that authors of a plugin should change before a later version of the interface
    breaks it, a line each.
    """
    notes: list[str] = []
    stated = getattr(backend.manager.get_plugin(backend.name), "OCANNL_API", BACKEND_API)
    if stated != BACKEND_API:
        needed, present = (".".join(map(str, each)) for each in (stated, BACKEND_API))
        notes.append(f"OCANNL_API is {needed}; {present} is new: see {VERSIONS_PAGE}")
    for path in files_of(backend):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue  # not imported, or the import would have failed
        notes += [f"{path.name}:{line}: {text}" for line, text in sorted(set(_uses(tree)))]
    return notes


def _uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines of a module that later versions of the core may break."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                for each in names:
                    yield from _import(node.lineno, each.name)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for each in names:
                    name = f"{module}.{each.name}" if module == _CORE else module
                    yield from _import(node.lineno, name)
            case ast.Attribute(
                ast.Call(ast.Attribute(ast.Name("settings"), "current")), str(name)
            ) if name in settings.MOVED:
                text = f"settings.current().{name} is deprecated: it is the setting "
                yield node.lineno, f"{text}{settings.MOVED[name]} of a plugin"


def _import(line: int, name: str) -> Iterator[tuple[int, str]]:
    is_inside = any(f"{name}.".startswith(f"{each}.") for each in _INTERFACES)
    if name.startswith(f"{_CORE}.") and not is_inside:
        yield line, f"{name} is not part of {_INTERFACES[0]}, and may move without notice"
