"""Generated C gives a compiler nothing to complain about."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.prelude import HELPERS

GOLDENS = sorted((Path(__file__).parents[3] / "tests" / "golden").glob("*.c"))
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


def complaints(source: Path, *flags: str) -> str:
    command = ["cc", *STRICT, *flags, "-c", str(source), "-o", str(source) + ".o"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_kernels_compile_without_warnings(golden, tmp_path):
    source = tmp_path / golden.name
    source.write_text(golden.read_text())
    assert complaints(source) == ""


def test_the_whole_prelude_compiles_without_warnings(tmp_path):
    source = tmp_path / "prelude.c"
    source.write_text(Dialect().prelude(HELPERS))
    assert complaints(source, "-Wno-unused-function") == ""
