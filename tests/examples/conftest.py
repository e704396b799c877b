"""The programs of the folder `examples` as modules, whose kernels have schedules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ocannl_core as oc
from ocannl_core.compile import driver
from ocannl_core.compile.stages import GeneratedCode
from tests.support.plain_loops import unexplained

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a program by its name; it runs in a session of its own, in C.

    Kernels of much work must have schedules, or reasons why not.
    """
    monkeypatch.syspath_prepend(str(EXAMPLES))
    plain: list[tuple[str, int]] = []

    def generate(*given: Any) -> GeneratedCode:
        code = generated(*given)
        plain.extend(unexplained(code.plan))
        return code

    generated = driver.generate
    monkeypatch.setattr(driver, "generate", generate)
    with oc.Session(seed=0), oc.settings.overrides(backend="cpu_c"):
        yield importlib.import_module
    assert plain == []
