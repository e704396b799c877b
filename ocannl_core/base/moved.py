"""Imports of modules by their old names: each warns with the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from ocannl_core.base.renamings import MODULES
from ocannl_core.base.version import GONE

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importing `importlib.abc` takes milliseconds

_CORE = "ocannl_core."


class _Alias(Loader):
    """A loader that returns a module under its new name."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias in its place


class _Finder:
    """A finder of modules by their old names.

    It comes before the finder of files, which would load a second copy of a module in a folder
    that has moved.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_CORE):
            return None
        new = new_name(fullname.removeprefix(_CORE))
        if new is None:
            return None
        warnings.warn(
            f"{fullname} has moved: import {_CORE}{new}. The old name works until version {GONE}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return ModuleSpec(fullname, _Alias(_CORE + new), is_package=True)


def new_name(old: str) -> str | None:
    """Return the new name of a module that has moved, or None; both without the package's name."""
    parts = old.split(".")
    for count in range(len(parts), 0, -1):
        new = MODULES.get(".".join(parts[:count]))
        if new is not None:
            moved = ".".join([new, *parts[count:]])
            return new_name(moved) or moved
    return None


def find_moved_modules() -> None:
    """Let the import system find modules by their old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
