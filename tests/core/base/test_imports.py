"""The set of modules that importing the core loads, and the names that they have."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import ocannl_core as oc

PROGRAM = """
import sys
import numpy
before = set(sys.modules)
import ocannl_core
loaded = set(sys.modules) - before
print(*sorted({name.partition(".")[0] for name in loaded} - sys.stdlib_module_names))
print(*sorted(name for name in loaded if name.startswith("ocannl_core.") and name.count(".") <= 2))
print(*sorted(loaded & {"decimal", "difflib", "fractions", "json", "subprocess", "sysconfig"}))
ocannl_core.Context
print("pluggy" in sys.modules, "importlib_metadata" in sys.modules)
"""


def test_importing_the_core_loads_only_the_modules_that_build_expressions() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    distributions, modules, others, on_demand = done.stdout.splitlines()
    assert distributions == "ocannl_core"
    names = {name.removeprefix("ocannl_core.") for name in modules.split()}
    assert not names & {"runtime", "backend", "ir.loops", "passes", "schedule", "codegen", "cli"}
    assert not others
    assert on_demand == "True False"


@pytest.mark.parametrize("module", [oc, oc.train, oc.nn], ids=["oc", "oc.train", "oc.nn"])
def test_completion_offers_exactly_the_public_names(module: ModuleType) -> None:
    names = {name for name in dir(module) if not name.startswith("_")}
    assert names == set(module.__all__) - {"__version__"}
    assert all(hasattr(module, name) for name in names)
