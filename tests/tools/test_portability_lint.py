"""The core and the plugins for all systems use no name that a system lacks, or refuse the system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.portability_lint import REFUSED, System, absent_names, findings

pytest.importorskip("mypy", reason="the stubs of the standard library come with mypy")

ROOT = Path(__file__).resolve().parents[2]


def names(source: str, system: System = "win32") -> list[str]:
    return [each.name for each in findings(source, "module.py", (system,))]


def test_the_stubs_tell_which_names_a_system_lacks() -> None:
    assert {"fork", "geteuid", "register_at_fork", "O_NOFOLLOW"} <= absent_names("os", "win32")
    assert {"memfd_create", "sched_getaffinity"} <= absent_names("os", "darwin")
    assert not {"fork", "geteuid", "replace"} & absent_names("os", "darwin")
    assert {"SIGALRM", "setitimer"} <= absent_names("signal", "win32")
    assert "F_ADD_SEALS" in absent_names("fcntl", "darwin")


def test_a_name_that_a_system_lacks_is_found_with_its_line() -> None:
    source = "import os\n\npid = os.fork()\n"
    assert list(map(str, findings(source, "a.py"))) == ["a.py:3: os.fork does not exist on win32"]
    assert names("import fcntl") == ["fcntl"]
    assert names("import fcntl", "darwin") == []
    assert names("from signal import SIGALRM") == ["signal.SIGALRM"]
    assert names("open('/proc/cpuinfo')", "darwin") == ["/proc/cpuinfo"]
    assert names("run('/bin/sh')", "darwin") == []


@pytest.mark.parametrize(
    "source",
    [
        'if hasattr(os, "fork"):\n    os.fork()',
        'if sys.platform == "linux":\n    os.fork()',
        'child = hasattr(os, "fork") and os.fork()',
        'flag = getattr(os, "O_NOFOLLOW", 0)',
        "try:\n    os.fork()\nexcept AttributeError:\n    pass",
        "try:\n    open('/proc/cpuinfo')\nexcept OSError:\n    pass",
        "with suppress(OSError):\n    open('/proc/cpuinfo')",
        "os.fork()  # posix: the caller has looked",
        'def f():\n    """Fork."""\n    # posix: the caller has looked\n    x = 1\n    os.fork()',
    ],
)
def test_a_use_with_a_counterpart_or_a_reason_is_in_order(source: str) -> None:
    assert names(source) == []


def test_a_reason_for_windows_is_none_for_macos_and_needs_words() -> None:
    assert names("os.memfd_create('')  # posix: because", "darwin") == ["os.memfd_create"]
    assert names("os.memfd_create('')  # linux: because", "darwin") == []
    assert names("os.fork()  # posix:") == ["os.fork"]
    assert names("try:\n    os.fork()\nexcept OSError:\n    pass") == ["os.fork"]


TRAINS = """
import sys
from pathlib import Path

import numpy as np

import ocannl_core as oc

w = oc.param("w", output=[3], input=[2])
x = oc.tensor(np.arange(4.0).reshape(2, 2), batch_axes=1)
y = w @ x
loss = oc.einsum("...|...=>0", y * y)
context = oc.Context({backend!r})
update = oc.train.sgd_update(loss, learning_rate=0.01)
step = context.compile(oc.train.grad_update(loss) + update)
context.init_params(loss)
step()
before = context.item(loss)
for _ in range(2):  # the second replaces the first
    oc.save("model.safetensors", context, loss)
step()
after = context.item(loss)
oc.load("model.safetensors", context, loss)
step()
assert np.isfinite(before) and before != after == context.item(loss)
assert Path("model.safetensors").exists()
print(sys.platform, "trained")
"""


def run(system: System, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "tests.support.other_system", system, str(file)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("system", "backend"), [("win32", "interp"), ("darwin", "interp"), ("darwin", "cpu_c")]
)
def test_a_network_is_trained_without_the_names_that_a_system_lacks(
    system: System, backend: str, tmp_path: Path
) -> None:
    done = run(system, TRAINS.format(backend=backend), tmp_path)
    assert done.stdout == f"{system} trained\n", done.stderr


def test_a_plugin_that_refuses_a_system_is_imported_there_and_gives_the_reason(
    tmp_path: Path,
) -> None:
    assert REFUSED == {"ocannl_cpu_c": ("win32",)}
    program = """
import ocannl_core as oc

try:
    oc.Context("cpu_c")
except oc.OcannlError as error:
    print(error)
"""
    done = run("win32", program, tmp_path)
    assert "runs compilers and loads their code on Linux and macOS alone" in done.stdout, done
    assert "install ocannl-interp" in done.stdout
