"""The public surface as a text: names with their arguments, settings, commands, file formats.

    python -m tools.surface              writes docs/reference/surface.txt
    python -m tools.surface --check      prints the differences of the code from that file

A line is a fact that users rely on. The test in `tests/docs/test_surface.py` fails where the code
differs, so that each change of a name or an argument is seen and intended.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, get_origin

from ocannl_core import backend_api
from ocannl_core.backend.specs import ALL_SPECS
from ocannl_core.base import renamed, renamings
from ocannl_core.base.settings import Settings
from ocannl_core.cli import parser

PATH = Path(__file__).resolve().parents[1] / "docs" / "reference" / "surface.txt"
NAMESPACES = (
    "oc",
    "oc.primitives",
    "oc.random",
    "oc.nn",
    "oc.train",
    "oc.data",
    "oc.custom",
    "oc.testing",
    "oc.assignments",
)
LIBRARIES = ("ocannl_onnx", "ocannl_mpi")
"""Plugins whose names users import."""
PLUGIN_SETTINGS = {"cpu_c": "CSettings", "cuda": "CudaSettings", "mpi": "MpiSettings"}
"""The classes of settings in the modules `own_settings` of plugins."""
FORMATS = {
    "backends": ("ocannl_core.backend.protocols", "BACKEND_API"),
    "generated code": ("ocannl_core.codegen.text.kernel_text", "CODEGEN_VERSION"),
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SPECIAL = frozenset(
    f"__{name}__"
    for name in ("call", "getitem", "setitem", "contains", "enter", "exit", "iter", "len")
)


def surface() -> dict[str, str]:
    """Return the facts of the surface by name, in order."""
    return dict(_facts())


def _facts() -> Iterator[tuple[str, str]]:
    for title in NAMESPACES:
        module = renamed.value_of(title)
        for name in sorted(module.__all__):
            yield from _of_value(f"{title}.{name}", getattr(module, name))
    for info in sorted(iter_modules(backend_api.__path__), key=lambda each: each.name):
        module = import_module(f"{backend_api.__name__}.{info.name}")
        for name in sorted(module.__all__):
            yield from _of_value(f"backend_api.{info.name}.{name}", getattr(module, name))
    for title in LIBRARIES:
        module = import_module(title)
        for name in sorted(module.__all__):
            yield from _of_value(f"{title}.{name}", getattr(module, name))
    for spec in ALL_SPECS:
        for name, hook in sorted(vars(spec).items()):
            if name.startswith("ocannl_"):
                yield f"hook {name}", _signature(hook)
    for setting in fields(Settings):
        yield f"setting {setting.name}", f": {setting.type} = {setting.default!r}"
    for plugin, title in PLUGIN_SETTINGS.items():
        for setting in fields(getattr(import_module(f"ocannl_{plugin}.own_settings"), title)):
            yield f"setting {plugin}__{setting.name}", f": {setting.type} = {setting.default!r}"
    yield from _of_command("command ocannl", parser(["onnx"]))
    for name, (place, constant) in FORMATS.items():
        yield f"format of {name}", f" = {getattr(import_module(place), constant)!r}"
    for old, new in sorted(renamings.NAMES.items()):
        yield f"old {old}", f" -> {new}, until {renamings.GONE}"
    for old, call in sorted(renamings.CALLS.items()):
        yield f"old {old}", f" -> {call.call}, until {renamings.GONE}"
    for owner, names in sorted((renamings.KEYWORDS | renamings.METHODS).items()):
        for old, new in names.items():
            yield f"old {old} of {owner}", f" -> {new}, until {renamings.GONE}"


def _of_command(title: str, command: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield a command with its arguments, and its subcommands."""
    shown: list[str] = []
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _of_command(f"{title} {name}", inner)
            continue
        choices = "" if action.choices is None else "|".join(map(str, action.choices))
        value = choices or action.metavar or action.dest
        if not action.option_strings:
            count = " ..." if action.nargs == argparse.PARSER else action.nargs or ""
            shown.append(f"{value}{count}")
        elif "--help" not in action.option_strings:
            value = "" if action.nargs == 0 else f" {value}"
            shown.append(f"[{'/'.join(action.option_strings)}{value}]")
    yield title, f": {' '.join(shown)}" if shown else ""


def _of_value(title: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a name with its arguments, and the public members of a class."""
    if isinstance(value, ModuleType):
        yield title, " (module)"
    elif get_origin(value) is not None:
        yield title, " (type)"
    elif inspect.isclass(value):
        # calls of enumerations look up members, by arguments that differ between Pythons
        yield title, " (class)" if issubclass(value, Enum) else f" (class){_signature(value)}"
        yield from _members(title, value)
    elif callable(value):
        yield title, _signature(value)
    else:
        yield title, f": {type(value).__name__}"


def _members(title: str, owner: type) -> Iterator[tuple[str, str]]:
    if issubclass(owner, Enum):
        for each in owner:
            is_plain = isinstance(each.value, int | str)
            yield f"{title}.{each.name}", f" = {each.value!r}" if is_plain else ""
        return
    for name in sorted(dir(owner)):
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if name in getattr(owner, "_of_the_core", ()):
            continue
        found = inspect.getattr_static(owner, name)
        own = next((each for each in owner.__mro__ if name in vars(each)), owner)
        is_inherited = own is not owner and own in _public_classes()
        if is_inherited or not own.__module__.startswith("ocannl_"):
            continue
        if isinstance(found, property):
            yield f"{title}.{name}", " (property)"
        elif isinstance(found, classmethod | staticmethod):
            yield f"{title}.{name}", _signature(found.__func__)
        elif callable(found):
            yield f"{title}.{name}", _signature(found)
        else:
            yield f"{title}.{name}", " (attribute)"


@cache
def _public_classes() -> frozenset[type]:
    modules = [renamed.value_of(title) for title in NAMESPACES]
    values = [getattr(module, name) for module in modules for name in module.__all__]
    return frozenset(value for value in values if inspect.isclass(value))


def _signature(value: Callable[..., object]) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", str(signature))  # named tuples, before 3.14
    text = re.sub(r"'([^']*)'(?=[,)]| =| ->|$)", r"\1", text)
    text = re.sub(r"\b[a-z_]+\.(?=[A-Z]\w*[,)\] |]|[A-Z]\w*$)", "", text)  # dtypes.DType
    return re.sub(r"<block function (\w+)\(.*?\) -> '?\w+'?>", r"<\1>", _ADDRESS.sub("", text))


def lines(facts: dict[str, str]) -> list[str]:
    return [name + fact for name, fact in facts.items()]


def read(path: Path = PATH) -> list[str]:
    """Return the lines of the file, without its heading."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def differences(stated: list[str], found: list[str]) -> list[str]:
    """Return the differences of the code from the file: names added, removed and changed."""
    before, after = (dict(map(_name_and_line, each)) for each in (stated, found))
    changes = [f"removed  {before[name]}" for name in before if name not in after]
    changes += [f"added    {after[name]}" for name in after if name not in before]
    changes += [
        f"changed  {before[name]}\n      to {after[name]}"
        for name in before
        if name in after and before[name] != after[name]
    ]
    return changes


def _name_and_line(line: str) -> tuple[str, str]:
    kinds = r"old \w+ of|format of|old|hook|setting"
    found = re.match(rf"command [\w -]+|(?:(?:{kinds}) )?[\w.]+(?: code)?", line)
    return (found[0] if found else line), line


def main(arguments: list[str]) -> int:
    """Write the file, or, with `--check`, print the differences and return 1 if there are some."""
    found = lines(surface())
    if "--check" in arguments:
        changes = differences(read(), found)
        print("\n".join(changes) or "the surface is as the file states it")
        return 1 if changes else 0
    heading = "# Written by `make surface`: public names, hooks, settings, commands and formats."
    PATH.write_text("\n".join((heading, "", *found, "")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
