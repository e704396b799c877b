"""Programs that are no C compilers are told apart from those that are."""

from __future__ import annotations

import shutil

import pytest

from ocannl_core.base import settings
from ocannl_core.base.errors import CompileError
from ocannl_cpu_c.compiler import find


def test_a_program_that_does_nothing_is_no_compiler() -> None:
    nothing = shutil.which("true")
    if nothing is None:
        pytest.skip("there is no program `true` here")
    with (
        settings.overrides(cpu_c__cc=nothing),
        pytest.raises(CompileError, match="is it a C compiler"),
    ):
        find()


def test_an_unknown_processor_names_the_setting() -> None:
    with (
        settings.overrides(cpu_c__arch="pdp-11"),
        pytest.raises(CompileError, match="OCANNL_CPU_C__ARCH"),
    ):
        find()
