"""A release: versions in step, archives that depend on their sources alone, and complete metadata."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tools import build_site, lock, release

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = {"all", "compiler", "cpu_c", "cuda", "interp", "mpi", "onnx", "opencl"}


def copied(folder: Path) -> Path:
    """Return a copy of the files that state versions."""
    for name in (
        *(f"{each}/pyproject.toml" for each in release.PROJECTS),
        "CHANGELOG.md",
        "ocannl_core/base/version.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_versions_of_all_distributions_are_in_step() -> None:
    assert release.version_problems() == []


def test_a_version_that_is_out_of_step_is_found(tmp_path: Path) -> None:
    root = copied(tmp_path)
    assert release.version_problems(root) == []
    change(root / "plugins/ocannl_mpi/pyproject.toml", 'version = "0.1.0"', 'version = "0.1.1"')
    change(root / "plugins/ocannl_interp/pyproject.toml", ">=0.1,<0.2", ">=0.1,<1")
    change(root / "ocannl_core/base/version.py", "0.1.0", "0.0.9")
    change(root / "CHANGELOG.md", "\n## 0.1.0", "\n## 0.2.0")
    assert release.version_problems(root) == [
        "ocannl-mpi has version 0.1.1, and ocannl-core 0.1.0",
        "ocannl-interp requires ocannl-core>=0.1,<1: the bounds are >=0.1,<0.2",
        "ocannl_core.__version__ is not 0.1.0",
        "CHANGELOG.md has no section 0.1.0",
    ]


def test_every_plugin_but_the_emulator_is_released_with_the_licence() -> None:
    plugins = {str(path.relative_to(ROOT)) for path in ROOT.glob("plugins/ocannl_*")}
    assert {*release.PROJECTS} == {".", *plugins} - {"plugins/ocannl_cuda_emulator"}
    licence = (ROOT / "LICENSE").read_bytes()
    for folder in release.PROJECTS:
        copied = ROOT / folder / "LICENSE"
        assert copied.read_bytes() == licence
        assert not copied.is_symlink()  # installers refuse archives with links that leave them


def test_every_dependency_has_a_floor_and_a_ceiling_or_a_reason_for_none() -> None:
    without = {
        each
        for project in release.projects()
        for each in project.requirements
        if ">=" in each and "<" not in each
    }
    reasons = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "No ceiling: its majors drop old Pythons" in reasons
    # libraries with versions by date, and vendors' libraries, state none
    by_date = {"pycuda>=2025.1", "pyopencl>=2024.2.7", "pyopencl[pocl]>=2024.2.7", "mpich>=4.2"}
    assert without == {"importlib-metadata>=8.0", *by_date}
    assert all(">=" in each for project in release.projects() for each in project.requirements)


def test_the_lock_file_has_every_direct_dependency_with_hashes() -> None:
    text = (ROOT / lock.LOCK).read_text(encoding="utf-8")
    locked = set(re.findall(r"^([\w.-]+)==\S+(?: ;.*)? \\\n    --hash=sha256:", text, re.MULTILINE))
    assert len(locked) == len(
        {
            line.split("==")[0]
            for line in text.splitlines()
            if "==" in line and not line.startswith(" ")
        }
    )
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    wanted = [
        each
        for name in ("test", "lint", "docs", "notebooks", "release")
        for each in groups[name]
        if isinstance(each, str)
    ]
    wanted += [each for project in release.projects()[:3] for each in project.requirements]
    names = {re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in wanted}  # type: ignore[index]
    assert {name for name in names if not name.startswith("ocannl-")} <= locked


def test_dependencies_that_were_left_out_of_the_lock_have_no_place_in_ci() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert '"$VENV/.locked"' in script
    assert ".for-dev" not in script


@pytest.mark.slow
def test_a_distribution_is_built_twice_with_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("build.env")  # a folder of that name is no package of it
    pytest.importorskip("hatchling")
    digests = []
    for number in range(2):
        out = tmp_path / str(number)
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), "."]
        environment = {**release.os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        digests.append(release.digests(sorted(out.iterdir())))
    assert digests[0] == digests[1]
    (wheel,) = (tmp_path / "0").glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read("ocannl_core-0.1.0.dist-info/METADATA").decode()
        assert "ocannl_core-0.1.0.dist-info/licenses/LICENSE" in archive.namelist()
    # in this spelling: pip before 23.3 does not find the extra under another one
    assert set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE)) == EXTRAS


def test_the_install_page_and_the_readme_name_every_extra() -> None:
    page = (ROOT / "docs/tutorial/install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page.split("## Compilers")[0], re.MULTILINE)) == EXTRAS
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert 'pip install "ocannl-core[cpu_c]"' in readme[:600]
    assert all(f"`{extra}`" in readme.split("## Install")[1] for extra in EXTRAS)


def test_the_install_page_has_the_licence_of_every_dependency() -> None:
    page = (ROOT / "docs/tutorial/install.md").read_text(encoding="utf-8").split("## Licences")[1]
    spelled = page.lower().replace("nvrtc", "nvidia-cuda-nvrtc").replace("_", "-")
    for project in release.projects():
        for requirement in project.requirements:
            name = re.split(r"[\[><=]", requirement)[0].lower().replace("_", "-")
            assert name.startswith("ocannl-") or name in spelled, name


PAGE = "<html><body id=top>{}</body></html>"


def site(folder: Path, body: str) -> list[str]:
    (folder / "index.html").write_text(PAGE.format(body))
    (folder / "searchindex.js").write_text("Search.setIndex({})")
    return list(build_site.problems(folder))


def test_pages_that_need_a_server_or_lead_nowhere_are_found(tmp_path: Path) -> None:
    assert site(tmp_path, '<a href="#top">up</a><script src="searchindex.js"></script>') == []
    assert site(tmp_path, '<script src="https://example.org/a.js"></script>') == [
        "index.html loads https://example.org/a.js from elsewhere"
    ]
    assert site(tmp_path, '<a href="other.html">x</a>') == [
        "index.html leads to other.html, which does not exist"
    ]
    assert site(tmp_path, '<a href="#below">x</a>') == [
        "index.html leads to #below, which has no such place"
    ]
    (tmp_path / "searchindex.js").unlink()
    assert list(build_site.problems(tmp_path))[-1].startswith("searchindex.js is no script")
