"""mypy finds comparisons of tensors where identity is meant, by the plugin, and unknown names."""

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


UNKNOWN = """
import ocannl_core as oc

oc.sort, oc.nn.lstm, oc.train.SGD, oc.random.words, oc.custom.Reduce
oc.srt
oc.nn.lstn
oc.train.SDG
oc.random.wrods
"""


def errors_of(text: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "planted.py"
    file.write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.splitlines()


@pytest.mark.slow
def test_membership_of_tensors_in_sequences_is_an_error_of_types(tmp_path: Path) -> None:
    found = errors_of(PLANTED, tmp_path)
    lines = [line.split(":")[1] for line in found if "compared with ==" in line]
    assert lines == ["6", "7", "8", "9", "10"], found


@pytest.mark.slow
def test_unknown_names_of_public_modules_are_errors_of_types(tmp_path: Path) -> None:
    found = errors_of(UNKNOWN, tmp_path)
    lines = [line.split(":")[1] for line in found if "attr-defined" in line]
    assert lines == ["5", "6", "7", "8"], found
