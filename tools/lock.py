"""Resolve the dependencies of all distributions.

    python tools/lock.py                             # requirements/ci.txt, of few changes
    python tools/lock.py --upgrade                   # with the newest versions
    python tools/lock.py --floors build/floors.txt   # the oldest versions, for this Python

The file has the packages of the group `dev` by version and hash, with markers for the Pythons and
systems that need others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = "requirements/ci.txt"
OLDEST_PYTHON = "3.11"
HEADER = f"""\
# The packages of CI, for Python {OLDEST_PYTHON} and newer on all systems. Written by `make lock`.
"""
FOLDERS = (".", *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("plugins/ocannl_*"))))


def resolve(group: str, out: Path, *options: str) -> None:
    """Write the versions of all dependencies, and of a group's packages."""
    names = [
        f"ocannl-{Path(folder).name.removeprefix('ocannl_').replace('_', '-')}"
        for folder in FOLDERS[1:]
    ]
    own = [f"--no-emit-package={name}" for name in ("ocannl-core", *names)]
    uv = Path(sysconfig.get_path("scripts"), "uv")
    command = [uv, "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate"]
    done = subprocess.run(
        [*command, *own, *options, "--group", group, "--output-file", out, "-"],
        input="".join(f"-e ./{folder}\n" for folder in FOLDERS),
        cwd=ROOT,
        text=True,
    )
    if done.returncode:
        sys.exit(done.returncode)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Resolve the dependencies of all distributions.")
    parser.add_argument("--floors", type=Path, help="write the oldest versions to this file")
    parsed, options = parser.parse_known_args(arguments)
    if parsed.floors:
        parsed.floors.parent.mkdir(parents=True, exist_ok=True)
        parsed.floors.unlink(missing_ok=True)
        python = f"--python-version={sys.version_info[0]}.{sys.version_info[1]}"
        resolve("test", parsed.floors, "--resolution=lowest-direct", python, *options)
        return 0
    path = ROOT / LOCK
    resolve(
        "dev",
        path,
        "--universal",
        "--generate-hashes",
        f"--python-version={OLDEST_PYTHON}",
        *options,
    )
    path.write_text(HEADER + path.read_text(encoding="utf-8"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
