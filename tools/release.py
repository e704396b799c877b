"""Build a release: every source distribution and wheel, checked, and nothing uploaded.

    python tools/release.py                    # of a clean checkout, into dist/
    python tools/release.py --previous v0.1.0  # tests the upgrade from this tag or commit
    python tools/release.py --wheels-only      # builds the wheels of the working tree once

The steps: the versions of all distributions agree; every archive is built twice, and both have
the same bits; its metadata and contents are checked; the wheels are installed in an empty
environment, where the program of the README runs with a C compiler and without one, and whose
components, with their licences, are listed in CycloneDX; what an earlier version left behind, its
caches, tuned schedules and checkpoints, is used by this one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (
    ".",
    "plugins/ocannl_interp",
    "plugins/ocannl_cpu_c",
    "plugins/ocannl_cuda",
    "plugins/ocannl_opencl",
    "plugins/ocannl_mpi",
    "plugins/ocannl_onnx",
)
"""The folders of the distributions that users install, the core first."""

LOCK = "requirements/ci.txt"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class ReleaseError(Exception):
    """A requirement of a release that does not hold."""


@dataclass(frozen=True, slots=True)
class Project:
    """A distribution of the repository.

    Attributes:
        folder: Relative to the root.
        name: As registries have it.
        version: As `1.2.3`.
        requirements: The dependencies, with all extras.
    """

    folder: str
    name: str
    version: str
    requirements: tuple[str, ...]


def projects(root: Path = ROOT) -> tuple[Project, ...]:
    """Return the distributions that users install."""
    return tuple(_project(root, folder) for folder in PROJECTS)


def _project(root: Path, folder: str) -> Project:
    stated = tomllib.loads((root / folder / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, Any] = stated["project"]
    extras = table.get("optional-dependencies", {}).values()
    every = [*table["dependencies"], *(each for extra in extras for each in extra)]
    return Project(folder, table["name"], table["version"], tuple(every))


def version_problems(root: Path = ROOT) -> list[str]:
    """Return where the versions of the distributions, of the module and of the changelog differ."""
    found = projects(root)
    version = found[0].version
    problems = [
        f"{each.name} has version {each.version}, and {found[0].name} {version}"
        for each in found
        if each.version != version
    ]
    numbers = _VERSION.fullmatch(version)
    if numbers is None:
        return [*problems, f"the version {version} is not of the form 1.2.3"]
    major, minor = int(numbers[1]), int(numbers[2])
    expected = f">={major}.{minor},<{major}.{minor + 1}"
    for each in found:
        for requirement in each.requirements:
            name, _, bounds = requirement.partition(">=")
            if name.startswith("ocannl-") and bounds and f">={bounds}" != expected:
                problems.append(f"{each.name} requires {requirement}: the bounds are {expected}")
    module = (root / "ocannl_core/base/version.py").read_text(encoding="utf-8")
    if f'__version__ = "{version}"' not in module:
        problems.append(f"ocannl_core.__version__ is not {version}")
    if f"\n## {version}" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        problems.append(f"CHANGELOG.md has no section {version}")
    return problems


# The variables with which pip and Python would find other packages than the built ones.
_IGNORED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def _run(
    command: Sequence[str | Path], folder: Path = ROOT, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command and return its output.

    Raises:
        ReleaseError: if it fails, with its output.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _IGNORED}
    kept |= variables or {}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        text = " ".join(str(each) for each in command)
        raise ReleaseError(f"{text}\nexit status {done.returncode}\n{done.stdout}")
    return done.stdout


def export(ref: str, folder: Path, root: Path = ROOT) -> Path:
    """Write the files of a commit to a folder."""
    folder.mkdir(parents=True)
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        _run(["git", "archive", "--output", archive.name, ref], root)
        _run(["tar", "-xf", archive.name, "-C", folder], root)
    return folder


def build(tree: Path, out: Path, epoch: str, *, wheels_only: bool = False) -> list[Path]:
    """Build the distributions of a tree; return the archives. A wheel is built from its sdist."""
    for folder in PROJECTS:
        only = ["--wheel"] if wheels_only else []
        command = [sys.executable, "-m", "build", "--no-isolation", *only, "--outdir", out, folder]
        _run(command, tree, {"SOURCE_DATE_EPOCH": epoch, "PYTHONDONTWRITEBYTECODE": "1"})
    return sorted(out.iterdir())


def digests(archives: Sequence[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by name."""
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in archives}


def check_archives(archives: Sequence[Path]) -> None:
    """Check the metadata and contents of archives.

    Raises:
        ReleaseError: if one is wrong, or a wheel is not for every system.
    """
    wheels = [each for each in archives if each.suffix == ".whl"]
    bound = [each.name for each in wheels if not each.name.endswith("-py3-none-any.whl")]
    if bound:
        raise ReleaseError(f"these wheels are not for every Python and system: {bound}")
    _run([sys.executable, "-m", "twine", "check", "--strict", *archives])
    _run([sys.executable, "-m", "check_wheel_contents", "--no-config", *wheels])


class Environment:
    """An empty virtual environment with the wheels of a folder, for `tools/release_programs.py`.

    Args:
        folder: A new one.
        wheels: The folder of the wheels.
        extras: The extras of the core to install.
        locked: The file with the versions of all other packages; None for the newest.
    """

    def __init__(
        self, folder: Path, wheels: Path, extras: Sequence[str], locked: Path | None = None
    ) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)
        self.python = folder / "bin" / "python"
        self.install(wheels, extras, locked)

    def install(self, wheels: Path, extras: Sequence[str], locked: Path | None = None) -> None:
        """Install the wheels of a folder in place of the installed ones."""
        (core,) = wheels.glob("ocannl_core-*.whl")
        plugins = [each for each in wheels.glob("*.whl") if each != core]
        pip = [self.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        named = (path for extra in extras for path in wheels.glob(f"ocannl_{extra}-*.whl"))
        wanted = [f"{core}[{','.join(extras)}]", *named]
        constraints = [] if locked is None else ["--constraint", str(_without_hashes(locked))]
        found = ["--find-links", wheels]
        _run([*pip, *constraints, *found, *wanted], self.folder)
        # versions of old and new wheels may be equal
        _run([*pip, "--no-deps", "--force-reinstall", core, *plugins], self.folder)

    def run(self, program: Path, *arguments: str, **variables: str) -> str:
        """Run a program outside of the checkout; return its output."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return _run([self.python, "-P", program, *arguments], work, variables)


def _without_hashes(lock: Path) -> Path:
    """Write a lock file without hashes, which local wheels have not; return its path."""
    text = lock.read_text(encoding="utf-8")
    plain = re.sub(r" \\\n(?:    --hash=\S+(?: \\)?\n)+", "\n", text)
    path = Path(tempfile.gettempdir(), f"ocannl-constraints-{os.getpid()}.txt")
    path.write_text(plain, encoding="utf-8")
    return path


def without_compilers(folder: Path) -> str:
    """Return a search path of programs with no compiler on it: an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def check_readme(environment: Environment, root: Path) -> str:
    """Run the README's programs, with a compiler if there is one, and without; return a report.

    Raises:
        ReleaseError: if one fails, or the lack of a compiler is not explained.
    """
    program = root / "tools" / "release_programs.py"
    readme = str(root / "README.md")
    cache = {"OCANNL_CACHE_DIR": str(environment.folder / "cache-readme")}
    lines = []
    if any(map(shutil.which, ("cc", "gcc", "clang"))):
        lines.append(environment.run(program, "readme", readme, "cpu_c", **cache))
    empty = without_compilers(environment.folder / "empty")
    lines.append(environment.run(program, "readme", readme, "interp", PATH=empty, **cache))
    return "".join(lines).rstrip()


def check_upgrade(previous: Path, current: Path, root: Path, scratch: Path) -> str:
    """Use the caches, checkpoints and tuned schedules of earlier wheels by the current ones.

    Raises:
        ReleaseError: if the current ones cannot use them.
    """
    program = root / "tools" / "release_programs.py"
    environment = Environment(scratch / "upgraded", previous, ["interp", "cpu_c"])
    variables = {"OCANNL_CACHE_DIR": str(scratch / "upgraded" / "cache")}
    before = environment.run(program, "leave", **variables)
    environment.install(current, ["interp", "cpu_c"])
    after = environment.run(program, "find", **variables)
    return before + after.rstrip()


def write_bill_of_materials(environment: Environment, out: Path, version: str, epoch: str) -> Path:
    """Write the components of an environment and their licences in CycloneDX."""
    path = out / f"ocannl-{version}.cdx.json"
    command = ["environment", "--output-reproducible", "--of", "JSON", "-o", path]
    tool = Path(sysconfig.get_path("scripts"), "cyclonedx-py")
    pyproject = ROOT / "pyproject.toml"
    _run(
        [tool, *command, "--pyproject", pyproject, "--mc-type", "library", environment.python],
        variables={"SOURCE_DATE_EPOCH": epoch},
    )
    return path


def release(out: Path, previous: str | None, *, root: Path = ROOT) -> None:
    """Build and check a release.

    Raises:
        ReleaseError: if a requirement does not hold.
    """

    def step(text: str) -> None:
        print(f"== {text}", flush=True)

    changed = _run(["git", "status", "--porcelain"], root).strip()
    if changed:
        raise ReleaseError(f"a release needs a clean checkout; these files differ:\n{changed}")
    problems = version_problems(root)
    if problems:
        raise ReleaseError("the versions differ:\n" + "\n".join(problems))
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty: remove it, or choose another folder with --out")
    version = projects(root)[0].version
    epoch = _run(["git", "log", "-1", "--format=%ct"], root).strip()
    with tempfile.TemporaryDirectory(prefix="ocannl-release-") as name:
        scratch = Path(name)
        step(f"version {version}: build twice")
        trees = [export("HEAD", scratch / each, root) for each in ("tree", "same-tree")]
        first = build(trees[0], scratch / "first", epoch)
        second = digests(build(trees[1], scratch / "second", epoch))
        differing = [name for name, digest in digests(first).items() if second.get(name) != digest]
        if differing or len(first) != len(second):
            raise ReleaseError(f"two builds differ: {differing}")
        step("metadata and contents")
        check_archives(first)
        step("installed in an empty environment")
        lock = root / LOCK
        environment = Environment(
            scratch / "installed", scratch / "first", ["interp", "cpu_c"], lock
        )
        print(check_readme(environment, root))
        earlier = previous or _last_tag(version, root)
        if earlier is None:
            step("no earlier release: an upgrade was not tested; --previous names a commit")
        else:
            step(f"upgrade from {earlier}")
            old = export(earlier, scratch / "old-tree", root)
            build(old, scratch / "old", epoch, wheels_only=True)
            print(check_upgrade(scratch / "old", scratch / "first", root, scratch))
        step("bill of materials")
        # PyCUDA has no wheels, and its compiler no other source than its vendor
        environment.install(scratch / "first", ["interp", "cpu_c", "opencl", "mpi", "onnx"], lock)
        _run([environment.python, "-m", "pip", "uninstall", "-q", "-y", "setuptools", "pip"])
        out.mkdir(parents=True, exist_ok=True)
        for archive in first:
            shutil.copy2(archive, out)
        bill = write_bill_of_materials(environment, out, version, epoch)
    sums = "".join(f"{digest}  {name}\n" for name, digest in digests(sorted(out.iterdir())).items())
    (out / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")
    archives = [str(out / each.name) for each in first]
    print(f"\nNothing was uploaded. To publish {version}:\n")
    print(f"  git tag v{version} && git push origin v{version}")
    print(f"  twine upload {' '.join(archives)}")
    print(f"\nBeside the release: {bill} and {out / 'SHA256SUMS'}")


def _last_tag(version: str, root: Path) -> str | None:
    """Return the newest tag of another version."""
    tags = _run(["git", "tag", "--list", "v*", "--sort=-version:refname", "--merged"], root).split()
    return next((each for each in tags if each != f"v{version}"), None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build and check a release; upload nothing.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="default: dist")
    parser.add_argument("--previous", metavar="REF", help="the tag or commit to upgrade from")
    parser.add_argument(
        "--wheels-only", action="store_true", help="build the wheels of the working tree, once"
    )
    parsed = parser.parse_args(arguments)
    try:
        if parsed.wheels_only:
            epoch = _run(["git", "log", "-1", "--format=%ct"]).strip()
            check_archives(build(ROOT, parsed.out.resolve(), epoch, wheels_only=True))
        else:
            release(parsed.out.resolve(), parsed.previous)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
