"""A backend from outside the project: built, installed elsewhere, listed and used by another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "tests" / "example_plugin"

PROGRAM = """
from ocannl_core.cli.doctor import check_kernel
from ocannl_core.base.errors import CodegenError
from ocannl_core.backend.manager import select
from ocannl_core.ir.loops.nodes import Barrier, Block
from ocannl_core.ir.kernels.nodes import Kernel, Plan

backend, target = select("example")
check_kernel(backend, target)
print("computes on", target, "of", backend.plugin)
try:
    barrier = Kernel(Block((Barrier(),)), (), ())
    backend.generate(Plan("p", (barrier,), (), (), (), {}), target)
except CodegenError as error:
    print("refuses", error.found)
"""


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process that finds the distributions in a folder, and no settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OCANNL_")}
    path = os.pathsep.join(part for part in (str(folder), env.get("PYTHONPATH", "")) if part)
    return subprocess.run(
        [sys.executable, *command],
        env={**env, "PYTHONPATH": path, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the example plugin's wheel was installed."""
    work = tmp_path_factory.mktemp("third-party")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(PLUGIN))
    (wheel,) = work.glob("ocannl_example-*.whl")
    site = work / "site"
    pip("install", "--no-index", "--no-deps", "--target", str(site), str(wheel))
    return site


def test_it_is_listed_with_its_distribution_and_version(site: Path) -> None:
    done = run(site, "-m", "ocannl_core.cli", "backends", "--json", OCANNL_LOAD_PLUGINS="example")
    (row,) = [row for row in json.loads(done.stdout) if row["name"] == "example"]
    assert (row["distribution"], row["version"]) == ("ocannl-example", "1.2.3")
    assert (row["status"], row["default"], row["editable"]) == ("available", True, False)
    assert row["devices"][0]["description"] == "this Python process, slowly"


def test_it_computes_and_refuses_unsupported_programs(site: Path) -> None:
    done = run(site, "-c", PROGRAM)
    assert done.stdout.splitlines() == [
        "computes on example:0 of ocannl-example 1.2.3",
        "refuses Barrier",
    ], done.stderr


OP = """
import ocannl_core as oc

class Double(oc.custom.Op):
    spec = "... => ..."

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = 2 * inputs[0]

x = oc.tensor([1.0, 2.0, 3.0])
y = Double()(x + 1.0) + 1.0
ctx = oc.Context("example")
ctx.compile(oc.train.forward(y))()
print(ctx[y])
"""


def test_user_written_operations_run_on_copies_of_its_memory(site: Path) -> None:
    done = run(site, "-c", OP)
    assert done.stdout == "[5. 7. 9.]\n", done.stderr


SCAN = """
import ocannl_core as oc

xs = oc.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], batch_axes=1)
sums, total = oc.scan(lambda h, x: (h + x, oc.exp(h) * 0.0 + h + x), oc.tensor([0.0, 0.0]), xs)
ctx = oc.Context("example")
ctx.compile(oc.train.forward(sums))()
print(ctx[sums].tolist())
"""


def test_loops_over_time_run_on_it(site: Path) -> None:
    done = run(site, "-c", SCAN)
    assert done.stdout == "[[1.0, 2.0], [4.0, 6.0], [9.0, 12.0]]\n", done.stderr


def test_it_can_be_chosen_by_a_variable_and_passes_the_doctor(site: Path) -> None:
    done = run(site, "-m", "ocannl_core.cli", "doctor", "example", OCANNL_BACKEND="example:0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK    example:0, a kernel compared with NumPy" in done.stdout.splitlines()


def test_it_is_gone_where_it_is_not_installed(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", PROGRAM)
    assert "Backend 'example' was requested but is not installed." in done.stderr
    assert "pip install" not in done.stderr
    assert "`ocannl backends` lists installed backends" in done.stderr


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("raises", "raise OSError('no library')", "it fails on import: OSError: no library"),
        (
            "exits",
            "import sys; sys.exit('no licence')",
            "it fails on import: SystemExit: no licence",
        ),
        ("future", "OCANNL_API = (2, 0)", "it was written for version 2 of the backend interface"),
        (
            "absent",
            None,
            "it fails on import: ModuleNotFoundError: No module named 'module_absent'",
        ),
    ],
)
def test_a_broken_one_beside_it_is_shown_and_stops_nothing(
    site: Path, tmp_path: Path, name: str, code: str | None, reason: str
) -> None:
    metadata = tmp_path / f"dist_{name}-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(f"[ocannl.backends]\n{name} = module_{name}\n")
    if code is not None:
        (tmp_path / f"module_{name}.py").write_text(code)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    only = f"example,{name}"
    done = run(
        tmp_path,
        *("-m", "ocannl_core.cli", "backends", "--json"),
        PYTHONPATH=f"{tmp_path}{os.pathsep}{path}",
        OCANNL_LOAD_PLUGINS=only,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["example"]["status"] == "available"
    assert rows[name]["status"] == "broken"
    assert rows[name]["distribution"] == f"dist-{name}"
    assert rows[name]["reason"].startswith(reason)
