"""Modules by the names that they had before they moved."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from ocannl_core.base.moved import new_name
from ocannl_core.base.renamings import MODULES


@pytest.mark.parametrize("old", sorted(MODULES))
def test_a_module_is_found_by_its_old_name_with_a_warning(old: str) -> None:
    sys.modules.pop(f"ocannl_core.{old}", None)
    new = importlib.import_module(f"ocannl_core.{MODULES[old]}")
    spec = new.__spec__
    with pytest.warns(DeprecationWarning, match="has moved") as caught:  # of its folder, too
        found = importlib.import_module(f"ocannl_core.{old}")
    assert f"import ocannl_core.{MODULES[old]}. " in str(caught[-1].message)
    assert found is new
    assert new.__spec__ is spec


def test_a_module_in_a_folder_that_has_moved_is_one_object_under_both_names() -> None:
    program = """
import ocannl_core
from ocannl_core.loopir.nodes import Load as old
from ocannl_core.ir.loops.nodes import Load as new
from ocannl_core.custom import Op
assert old is new and Op is ocannl_core.custom.Op
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_no_module_ever_had_is_not_found() -> None:
    assert new_name("nonsense") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ocannl_core.nonsense")
    with pytest.warns(DeprecationWarning, match="moved"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("ocannl_core.loopir.nonsense")
