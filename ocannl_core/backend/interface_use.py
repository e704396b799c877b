"""The use that the source code of a plugin makes of the core, for its authors.

Users of the plugin see none of it: what is deprecated works.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.plugins import package_of
from ocannl_core.backend.protocols import BACKEND_API, NAMES_SINCE, VERSIONS_PAGE
from ocannl_core.base.renamings import SETTINGS

_CORE = "ocannl_core"
_INTERFACES = ("ocannl_core.backend_api", "ocannl_core.testing")
"""The packages whose names belong to versions; the second one is for tests."""


def files_of(backend: Backend) -> list[Path]:
    """Return the source files of a backend's plugin; none for an object that has no file."""
    plugin = backend.manager.get_plugin(backend.name)
    folder = package_of(plugin)
    if folder is not None:
        return sorted(each for each in folder.rglob("*.py") if each.is_file())
    file = getattr(plugin, "__file__", None)
    return [] if file is None else [Path(file)]


def notes_for_authors(backend: Backend) -> list[str]:
    """Return all that authors of a plugin should change: the version that it states, if it uses
    names of a later one, and what a later version of the interface may break. One line each.
    """
    notes: list[str] = []
    stated = backend.stated_api
    if stated != BACKEND_API:
        notes.append(
            f"OCANNL_API is {_text(stated)}; {_text(BACKEND_API)} is new: see {VERSIONS_PAGE}"
        )
    for path in files_of(backend):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue  # not imported, or the import would have failed
        found = {*_uses(tree), *_newer_names(tree, stated)}
        notes += [f"{path.name}:{line}: {text}" for line, text in sorted(found)]
    return notes


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _newer_names(tree: ast.Module, stated: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Yield the first line of a module that uses each name of a later version than stated."""
    later = {
        name: since for since, names in NAMES_SINCE.items() if since > stated for name in names
    }
    for line, used in sorted(_interface_names(tree)) if later else ():
        parts = used.split(".")
        for name in (".".join(parts[: end + 1]) for end in range(len(parts))):
            since = later.pop(name, None)
            if since is not None:
                text = f"uses {name} (since {_text(since)}) but states {_text(stated)}"
                yield line, f"{text}: OCANNL_API = {since}"


def _interface_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names of the interface in a module with their lines, as `NAMES_SINCE` has them."""
    meanings: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                for each in names:
                    first = each.name.split(".")[0]
                    meanings[each.asname or first] = each.name if each.asname else first
                    yield from _relative(node.lineno, each.name)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for each in names:
                    meanings[each.asname or each.name] = f"{module}.{each.name}"
                    yield from _relative(node.lineno, f"{module}.{each.name}")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(lineno=line):
                yield from _relative(line, _qualified(node, meanings))
            case ast.Call(function, keywords=keywords):
                called = _qualified(function, meanings)
                for argument in keywords if called else ():
                    yield from _relative(argument.value.lineno, f"{called}.{argument.arg}")
            case (
                ast.FunctionDef(name=name, lineno=line)
                | ast.Name(id=name, ctx=ast.Store(), lineno=line)
            ) if name.upper().startswith("OCANNL_"):
                yield line, name


def _qualified(node: ast.expr, meanings: Mapping[str, str]) -> str:
    """Return the full name that an expression is, given those of imported names; else nothing."""
    match node:
        case ast.Name(name):
            return meanings.get(name, "")
        case ast.Attribute(value, name):
            found = _qualified(value, meanings)
            return f"{found}.{name}" if found else ""
    return ""


def _relative(line: int, name: str) -> Iterator[tuple[int, str]]:
    """Yield a full name relative to the interface, if it is part of it."""
    if name.startswith(f"{_CORE}.settings."):
        yield line, name.removeprefix(f"{_CORE}.")
    elif name.startswith(f"{_INTERFACES[0]}."):
        yield line, name.removeprefix(f"{_INTERFACES[0]}.")


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
            ) if name in SETTINGS:
                text = f"settings.current().{name} is deprecated: it is the setting "
                yield node.lineno, f"{text}{SETTINGS[name]} of a plugin"


def _import(line: int, name: str) -> Iterator[tuple[int, str]]:
    is_inside = any(f"{name}.".startswith(f"{each}.") for each in _INTERFACES)
    if name.startswith(f"{_CORE}.") and not is_inside:
        yield line, f"{name} is not part of {_INTERFACES[0]}, and may move without notice"
