"""The plugin of mypy finds comparisons of tensors where identity is meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLANTED = """
from collections.abc import Sequence
from ocannl_core.tensor.graph.tensor import Tensor

def planted(a: Tensor, b: list[Tensor], c: dict[str, Tensor], d: tuple[Tensor, ...]) -> None:
    print(a in b)
    print(a in c.values())
    print(a not in d)
    print(d.index(a))
    print(b.count(a))
    print(a in set(b), a in {a: 1}, "x" in c)
"""


@pytest.mark.slow
def test_membership_of_tensors_in_sequences_is_an_error_of_types(tmp_path: Path) -> None:
    file = tmp_path / "planted.py"
    file.write_text(PLANTED)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines = [line.split(":")[1] for line in found.splitlines() if "compared with ==" in line]
    assert lines == ["6", "7", "8", "9", "10"], found
