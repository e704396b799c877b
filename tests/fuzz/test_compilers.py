"""Random reductions over axes in all directions, by every compiler that is installed."""

from __future__ import annotations

import shutil

import pytest

from ocannl_core.base import packaged_compiler

from .compilers import KNOWN, differences


@pytest.mark.slow
@pytest.mark.parametrize("compiler", KNOWN)
def test_a_compiler_and_the_interpreter_have_equal_bits_for_axes_in_all_directions(compiler):
    if not (packaged_compiler.find() if compiler == "ziglang" else shutil.which(compiler)):
        pytest.skip(f"needs {compiler}")
    assert list(differences(seed=2, count=20, compilers=[compiler])) == []
