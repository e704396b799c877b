"""The script that checks a machine with a device, on an emulated one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from plugins.ocannl_cuda.tests.emulated import needs_emulation
from tests.support.slow import long

pytestmark = needs_emulation

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "plugins" / "ocannl_cuda" / "check_device.sh"
SANITIZER = """#!/bin/sh
[ "$2 $3 $4" = "memcheck --kernel-regex kns=k_" ] && exit 9
shift 6
exec "$@"
"""
"""A tool that finds a fault in the memory accesses of every program."""


def check(folder: Path, **variables: str) -> tuple[list[list[str]], str, int]:
    """Run the script, and return the words of its summary, its output and its exit code."""
    own = {
        "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHON": sys.executable,
        "EMULATED": "1",
        "ONLY": "x + y",
        "TESTS": "matrix_product",
        "TMPDIR": str(folder),
    }
    command = ["bash", str(SCRIPT)]
    env = os.environ | own | variables
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    _, _, summary = result.stdout.partition("===== summary")
    found = [re.sub(r" +\d+ s$", "", line).split() for line in summary.splitlines()[1:]]
    return found, result.stdout + result.stderr, result.returncode


def tool(folder: Path, text: str) -> None:
    path = folder / "compute-sanitizer"
    path.write_text(text)
    path.chmod(0o755)


STEPS = {
    "1 2": [
        "doctor passed",
        "first results passed",
        "conformance passed",
        "copy engine, 64 passed",
        "other libraries in part",
        "memcheck failed with 9",
        "racecheck passed",
    ],
    "3 4 5": [
        "speed passed",
        "asynchronous products passed",
        "beside PyTorch eager passed",
        "conformance, graphs passed",
        "host times passed",
        "perceptron times passed",
        "beside torch.compile passed",
        "counters left out: no ncu",
    ],
}
"""The parts of the script, with their steps."""


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["1 2", *long(["3 4 5"])])
def test_every_step_runs_and_is_summed_up(parts: str, tmp_path: Path) -> None:
    tool(tmp_path, SANITIZER)
    found, output, code = check(tmp_path, PARTS=parts)
    # a slow machine runs a part of the suite in the time that it has
    steps = [re.sub("^(conformance.*) in part$", r"\1 passed", " ".join(each)) for each in found]
    assert steps == STEPS[parts], output
    assert code == (parts == "1 2")
    assert output.count("Emulated device 0") >= 2
    assert output.count("right to") >= 2


def test_steps_that_hang_and_those_without_time_are_summed_up(tmp_path: Path) -> None:
    tool(tmp_path, "#!/bin/sh\nexec sleep 60\n")
    program = shutil.which("timeout")
    sooner = tmp_path / "timeout"  # in less than the limit of a step, which is the second argument
    sooner.write_text(f'#!/bin/sh\n[ "$2" -le 6 ] || exit\nshift 2\nexec {program} 2 "$@"\n')
    sooner.chmod(0o755)
    begun = "import time; time.sleep(60)"
    (tmp_path / "sitecustomize.py").write_text(begun)  # every Python hangs
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    found, output, code = check(tmp_path, LIMIT="6", PYTHONPATH=paths)
    assert found[0] == ["doctor", "cut", "off"], output
    assert found[-1] == ["counters", "left", "out:", "no", "ncu"]
    assert [each[-4:] for each in found[1:-1]] == [["left", "out:", "no", "time"]] * (
        len(found) - 2
    )
    assert len(found) >= 6
    assert code == 0


def test_the_parts_that_are_chosen_run_and_no_others(tmp_path: Path) -> None:
    tool(tmp_path, "#!/bin/sh\nexec true\n")
    begun = "import sys; sys.exit(5)"
    (tmp_path / "sitecustomize.py").write_text(begun)  # every Python fails
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    found, output, code = check(tmp_path, PARTS="2", PYTHONPATH=paths)
    names = [" ".join(each) for each in found]
    assert names == [
        "copy engine, 64 failed with 1",
        "other libraries failed with 1",
        "memcheck failed with 1",
        "racecheck failed with 1",
    ], output
    assert code == 1


WHEELS = {
    "pytest-8.1.0": "8.1",
    "hypothesis-6.200.0": "6.200.0",
    "pluggy-1.6.0": "",
    "ml_dtypes-0.5.1": "0.4",
}
"""Wheels, and the versions that are installed."""


def test_packages_that_are_missing_or_too_old_are_unpacked(tmp_path: Path) -> None:
    script = SCRIPT.read_text()
    unpack = script.partition("UNPACK='")[2].partition("'\n")[0]
    (tmp_path / "wheels").mkdir()
    installed = tmp_path / "installed"
    for wheel, version in WHEELS.items():
        name = wheel.partition("-")[0]
        with zipfile.ZipFile(tmp_path / "wheels" / f"{wheel}-py3-none-any.whl", "w") as file:
            file.writestr(f"{name}.py", "")
        if version:
            info = installed / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            info.joinpath("METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
    command = [
        sys.executable,
        "-S",
        "-c",
        unpack,
        "there",
        "pytest>=8.2",
        "hypothesis>=6.100",
        "pluggy>=1.5",
        "ml-dtypes>=0.5",
    ]
    env = os.environ | {"PYTHONPATH": str(installed)}
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
    assert sorted(each.stem for each in (tmp_path / "there").iterdir()) == [
        "ml_dtypes",
        "pluggy",
        "pytest",
    ]
