"""Imports of modules by the names that they had in version 0.1: each warns with the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importing `importlib.abc` takes milliseconds

_CORE = "ocannl_core."

MOVED = {
    "custom": "tensor.custom",
    "debug": "runtime.observers",
    "debug.bounds": "runtime.observers.run_checks",
    "debug.value_guard": "runtime.observers.run_checks",
    "dtypes": "ir.numbers.dtypes",
    "errors": "base.errors",
    "hooks": "backend",
    "hooks.backend": "backend.loaded_backend",
    "indexing": "ir.indexing",
    "ir.kernels.parse": "testing.parser.plans",
    "ir.loops.parse": "testing.parser.loops",
    "kernel_passes": "passes.kernels",
    "kernels": "ir.kernels",
    "kernels.parse": "testing.parser.plans",
    "loopir": "ir.loops",
    "loopir.parse": "testing.parser.loops",
    "lower": "passes.lower",
    "machine_model": "schedule.machine_model",
    "node": "ir.node",
    "ops": "ir.numbers.primitives",
    "passes.cse": "passes.loops.cse",
    "passes.fma_contraction": "passes.loops.fma_contraction",
    "passes.licm": "passes.loops.licm",
    "passes.pipeline": "passes.loops.pipeline",
    "passes.simplify": "passes.loops.simplify",
    "ir.assignments.bufferise_calls": "ir.assignments.bufferize_calls",
    "passes.kernels.parallelise": "passes.kernels.parallelize",
    "passes.kernels.recognise_nests": "passes.kernels.recognize_nests",
    "persistence": "data.checkpoints",
    "plot": "display.pictures",
    "plot.pictures": "display.pictures.expression_graph",
    "schedule.rules.vectorisable": "schedule.rules.vectorizable",
    "schedule.rules.vectorise_output": "schedule.rules.vectorize_output",
    "schedule.rules.vectorise_reduction": "schedule.rules.vectorize_reduction",
    "settings": "base.settings",
    "target": "ir.target",
    "train.optimiser": "train.optimizer",
    "train.optimisers": "train.optimizers",
}
"""New names of modules that programs of users may import, and of their folders, by old names."""


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
            f"{fullname} has moved: import {_CORE}{new}. The old name works until version 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        return ModuleSpec(fullname, _Alias(_CORE + new), is_package=True)


def new_name(old: str) -> str | None:
    """Return the new name of a module that has moved, or None; both without the package's name."""
    parts = old.split(".")
    for count in range(len(parts), 0, -1):
        new = MOVED.get(".".join(parts[:count]))
        if new is not None:
            moved = ".".join([new, *parts[count:]])
            return new_name(moved) or moved
    return None


def find_moved_modules() -> None:
    """Let the import system find modules by their old names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
