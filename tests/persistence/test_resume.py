"""Resumed training has the bits of uninterrupted training, in another process, on any threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = Path(__file__).with_name("training.py")


def run(action: str, folder: Path, threads: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(TRAINING), action, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OCANNL_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[str]:
    """The digests of uninterrupted training, on one thread."""
    return run("whole", folder, 1)


def test_resumed_on_two_threads_has_the_bits_of_uninterrupted_on_one(
    folder: Path, whole: list[str]
) -> None:
    first = run("first", folder, 2)
    assert len(whole) == 5
    assert not set(first) & set(whole)
    assert run("second", folder, 2) == whole
