"""The programs of the folder `examples` as modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ocannl_core as oc

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a program by its name; it runs in a session of its own, in C."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with oc.Session(seed=0), oc.settings.overrides(backend="cpu_c"):
        yield importlib.import_module
