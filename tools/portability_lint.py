"""Lint for names of the standard library that Windows or macOS lack.

    python tools/portability_lint.py            # exit status 1 and a line for each finding

The names are read from typeshed, the stubs that mypy ships: those that a module has on Linux and
not on another system. Files of `/proc`, `/sys`, `/dev` and `/bin` count, too. A use is in order

- under a test of its presence: `if hasattr(os, "fork")`, `getattr(os, "O_NOFOLLOW", 0)`,
  `if sys.platform == "linux"`, or `try` with `AttributeError` or `ImportError`;
- on a line, or in a function, with a comment `# posix: reason` (absent from Windows alone) or
  `# linux: reason` (absent from macOS, too), which says why other systems do not come here;
- in a distribution that refuses the system, by `REFUSED`: a test runs the refusal.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

System = Literal["win32", "darwin"]

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS: tuple[System, ...] = ("win32", "darwin")
CHECKED = {
    "ocannl_core": "ocannl_core",
    "ocannl_interp": "plugins/ocannl_interp/src/ocannl_interp",
    "ocannl_cpu_c": "plugins/ocannl_cpu_c/src/ocannl_cpu_c",
    "ocannl_opencl": "plugins/ocannl_opencl/src/ocannl_opencl",
}
"""The folders of the distributions whose users may have another system."""

REFUSED: dict[str, tuple[System, ...]] = {"ocannl_cpu_c": ("win32",)}
"""Systems on which a plugin has no device, and says so."""

MODULES = ("os", "signal", "select", "mmap", "socket", "time", "subprocess", "threading", "sys")
ABSENT_MODULES = (
    "fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "curses", "readline",
    "posix",
)  # fmt: skip
"""Modules that Windows lacks."""
_FILES = re.compile(r"/(?:proc|sys|dev|bin)/(?!null)")
_EXCUSE = re.compile(r"#.*\b(posix|linux): \S")
_PRESENCE = ("AttributeError", "ImportError", "ModuleNotFoundError")
_MISSING_FILE = ("OSError", "FileNotFoundError", "Exception")


@dataclass(frozen=True, slots=True)
class Finding:
    """A use of a name that a system lacks."""

    path: str
    line: int
    name: str
    system: System

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name} does not exist on {self.system}"


@cache
def names_of(module: str, platform: str) -> frozenset[str]:
    """Return the names that typeshed defines in a module on a platform."""
    found = find_spec("mypy")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("The stubs of the standard library come with mypy.", name="mypy")
    folder = Path(found.origin).parent / "typeshed" / "stdlib"
    stub = folder / f"{module}.pyi"
    stub = stub if stub.exists() else folder / module / "__init__.pyi"
    return frozenset(_defined(ast.parse(stub.read_text(encoding="utf-8")).body, platform))


def _defined(body: list[ast.stmt], platform: str) -> Iterator[str]:
    for each in body:
        match each:
            case ast.If(test=test):
                yield from _defined(each.body if _holds(test, platform) else each.orelse, platform)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(names=names) | ast.Import(names=names):
                yield from (alias.asname or alias.name for alias in names)
            case _:
                pass


def _holds(test: ast.expr, platform: str) -> bool:
    """Return the value of a condition of a stub; conditions on versions hold."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_holds(value, platform) for value in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_holds(value, platform) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _holds(operand, platform)
        case ast.Compare(
            left=ast.Attribute(attr="platform"),
            ops=[ast.Eq() | ast.NotEq() as relation],
            comparators=[ast.Constant(value=value)],
        ):
            return (value == platform) == isinstance(relation, ast.Eq)
        case ast.Compare(left=ast.Attribute(attr="version_info"), ops=[ast.Lt()]):
            return False
        case _:
            return True


@cache
def absent_names(module: str, system: System) -> frozenset[str]:
    """Return the names of a module that Linux has and a system lacks."""
    return names_of(module, "linux") - names_of(module, system)


def is_absent(name: str, system: System) -> bool:
    """Return True if a system lacks a module, `fcntl`, or a name in one, `os.fork`."""
    if name.startswith("/"):
        return system == "win32" or not name.startswith("/bin/")
    module, _, attribute = name.partition(".")
    if module in ABSENT_MODULES:
        return system == "win32" or (bool(attribute) and attribute in absent_names(module, system))
    return module in MODULES and attribute in absent_names(module, system)


def findings(source: str, path: str, systems: tuple[System, ...] = SYSTEMS) -> list[Finding]:
    """Return the uses in a module of names that systems lack."""
    lines = source.splitlines()
    found = []
    for node, parents in _walk(ast.parse(source), ()):
        for name in _used(node):
            for system in systems:
                is_file = name.startswith("/")
                if not is_absent(name, system):
                    continue
                if _is_guarded(parents, is_file=is_file):
                    continue
                if not _is_excused(node, parents, lines, system):
                    found.append(Finding(path, node.lineno, name, system))
    return found


def _walk(
    node: ast.AST, parents: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.expr | ast.stmt, tuple[ast.AST, ...]]]:
    if isinstance(node, ast.expr | ast.stmt):
        yield node, parents
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, (*parents, node))


def _used(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return [f"{module}.{name}"]
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
        case ast.Constant(value=str(text)) if _FILES.match(text) and "\n" not in text:
            return [text]
        case _:
            return []


def _is_guarded(parents: tuple[ast.AST, ...], *, is_file: bool) -> bool:
    """Return True under a test of presence, or where the absence of a file is caught."""
    for parent in parents:
        match parent:
            case ast.If(test=test) | ast.IfExp(test=test):
                if _tests_presence(test):
                    return True
            case ast.BoolOp(values=values):
                if any(map(_tests_presence, values)):
                    return True
            case ast.Try(handlers=handlers):
                caught = {text for each in handlers if each.type for text in _named(each.type)}
                if caught & set(_MISSING_FILE if is_file else _PRESENCE):
                    return True
            case ast.With(items=items):
                caught = {text for each in items for text in _named(each.context_expr)}
                if "suppress" in caught and caught & set(_MISSING_FILE if is_file else _PRESENCE):
                    return True
            case _:
                pass
    return False


def _named(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _tests_presence(test: ast.AST) -> bool:
    for each in ast.walk(test):
        match each:
            case ast.Call(func=ast.Name(id="hasattr")):
                return True
            case ast.Attribute(value=ast.Name(id="sys"), attr="platform"):
                return True
            case _:
                pass
    return False


def _is_excused(
    node: ast.expr | ast.stmt, parents: tuple[ast.AST, ...], lines: list[str], system: System
) -> bool:
    """Return True after a comment with a reason, on the line or on that of a function around it."""
    places = [node.lineno, node.end_lineno or node.lineno]
    for parent in parents:
        if isinstance(parent, ast.FunctionDef):
            first = parent.body[0] if ast.get_docstring(parent) is None else parent.body[1]
            places += range(parent.lineno, first.lineno + 1)
    for place in places:
        excuse = _EXCUSE.search(lines[place - 1])
        if excuse and (system == "win32" or excuse[1] == "linux"):
            return True
    return False


def check(root: Path = ROOT) -> list[Finding]:
    """Return the findings in all distributions."""
    found = []
    for distribution, folder in CHECKED.items():
        systems = tuple(s for s in SYSTEMS if s not in REFUSED.get(distribution, ()))
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found += findings(text, str(path.relative_to(root)), systems)
    return found


if __name__ == "__main__":
    every = check()
    print(*every, sep="\n", end="\n" if every else "")
    sys.exit(bool(every))
