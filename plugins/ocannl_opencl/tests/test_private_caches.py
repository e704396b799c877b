"""Nothing of PyOpenCL and PoCL is kept, or read, outside of the verified cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyopencl")

_PROGRAM = """
import sys
events = []
sys.addaudithook(lambda event, given: events.append((event, repr(given))))
{before}
import os
import numpy as np
import ocannl_core as oc
before = dict(os.environ)
x = oc.tensor(np.arange(6, dtype=np.float32))
y = oc.exp(x) * x
context = oc.Context("opencl")
context.compile(oc.train.forward(y))()
assert np.allclose(context[y], np.exp(np.arange(6)) * np.arange(6), rtol=1e-5), context[y]
assert dict(os.environ) == before
home = os.environ["HOME"] + "/.cache"
assert not [each for each in events if home in each[1]], events
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a home and of the cache of a program that imports PyOpenCL before."""
    made = tmp_path_factory.mktemp("filled")
    made.joinpath("home").mkdir()
    run(made / "home", "import pyopencl")
    return made


@pytest.fixture
def home(filled: Path, tmp_path: Path) -> Path:
    """An empty home beside a copy of this cache."""
    shutil.copytree(filled / "cache", tmp_path / "cache")
    made = tmp_path / "home"
    made.mkdir()
    return made


def run(home: Path, before: str = "") -> list[Path]:
    """Run a program; return the compiled programs in the cache."""
    cache = home.parent / "cache"
    env = {**os.environ, "HOME": str(home), "OCANNL_CACHE_DIR": str(cache)}
    for name in ("XDG_CACHE_HOME", "POCL_CACHE_DIR", "PYOPENCL_NO_CACHE"):
        env.pop(name, None)
    program = _PROGRAM.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list((cache / "tmp").iterdir()) == []  # the files of the driver go with the process
    assert list(home.iterdir()) == []
    return compiled(home)


def compiled(home: Path) -> list[Path]:
    objects = (home.parent / "cache" / "opencl").glob("*/objects/*.bin")
    return [each for each in objects if each.stat().st_size]


def test_the_home_directory_gets_no_files_and_none_are_read(filled: Path) -> None:
    assert len(compiled(filled / "home")) == 1


def test_a_later_process_takes_the_program_that_an_earlier_one_compiled(home: Path) -> None:
    (kept,) = compiled(home)
    os.utime(kept, (0, 0))
    assert run(home) == [kept]
    assert kept.stat().st_mtime > 0  # its last use


def test_a_damaged_program_is_compiled_again(home: Path) -> None:
    (kept,) = compiled(home)
    changed = bytearray(kept.read_bytes())
    changed[len(changed) // 2] ^= 1  # within machine code, which a driver would take
    kept.write_bytes(changed)
    assert {*run(home)} - {kept}


def test_a_program_that_the_driver_refuses_is_compiled_again(home: Path) -> None:
    """As after an update that its version does not show."""
    import hashlib

    from ocannl_core.base.files.digests import add_json_digest

    (kept,) = compiled(home)
    other = b"no program"
    name = f"{hashlib.sha256(other).hexdigest()}.bin"
    (kept.parent / name).write_bytes(other)
    (kept.parent / name).chmod(0o600)
    for record in (kept.parents[1] / "kernels").glob("????????????????*.json"):
        record.write_bytes(add_json_digest(record.name, {"object": name}))
    run(home)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes")
def test_a_driver_that_would_end_the_process_without_room_for_files_is_not_used(
    tmp_path: Path,
) -> None:
    program = """
import resource
import ocannl_core as oc
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
x = oc.tensor([1.0, 2.0])
y = x + 1
context = oc.Context("interp")
context.compile(oc.train.forward(y))()
assert context[y].tolist() == [2, 3]
try:
    oc.Context("opencl")
except oc.BackendNotFoundError as error:
    print(error)
"""
    env = {**os.environ, "HOME": str(tmp_path), "OCANNL_CACHE_DIR": str(tmp_path / "cache")}
    env.pop("POCL_CACHE_DIR", None)
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # of which Python keeps a part
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PoCL" not in done.stdout or "has no place for its files" in done.stdout
