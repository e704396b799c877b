"""Directories of one run of pytest, and a check that its tests write nowhere else.

The controller makes them, its workers and all child processes inherit their environment variables,
and the controller removes them:

    <directory>/home     HOME: no test reads the user's configuration files
    <directory>/cache    XDG_CACHE_HOME, with the compiled kernels of all workers in `ocannl`
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL_DIRECTORIES = {"__pycache__", ".pytest_cache", ".hypothesis", ".coverage"}
"""Directories of test tools, which git ignores."""
_MEASURED = ("schedules", "placements")
"""Parts of a cache that change the code of a program, by measured times."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_DEVICES = ("/dev/", "/proc/", "/var/tmp/")


def environment_of(directory: Path) -> Mapping[str, str]:
    """Create the directories of a run, and return the environment variables that name them.

    Args:
        directory: Their parent, which only the user can read.
    """
    home, cache = directory / "home", directory / "cache"
    settings_of_git = os.environ.get("GIT_CONFIG_GLOBAL") or os.path.expanduser("~/.gitconfig")
    for each in (home, cache, cache / "ocannl"):
        each.mkdir(mode=0o700, exist_ok=True)
    for name in (*_MEASURED, "routines", "kernels"):
        shutil.rmtree(cache / "ocannl" / name, ignore_errors=True)
    return {
        "HOME": str(home),
        "GIT_CONFIG_GLOBAL": settings_of_git,  # it may have to trust the checkout
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_CACHE_HOME": str(cache),
        "OCANNL_CACHE_DIR": str(cache / "ocannl"),
    }


def take_measurements() -> list[str]:
    """Return and remove the parts of the shared cache that change the code of programs."""
    shared = os.path.join(os.environ["XDG_CACHE_HOME"], "ocannl")
    found = [name for name in _MEASURED if os.path.isdir(os.path.join(shared, name))]
    for name in found:
        shutil.rmtree(os.path.join(shared, name), ignore_errors=True)
    return found


def _state(path: str) -> tuple[int, int, int] | None:
    """Return what a change of a file changes; None if there is no such file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class WrittenFiles:
    """Files that this process opens for writing outside of temporary directories.

    Args:
        root: The checkout, where only test tools write.
        temporary: Where tests write, also below `root`.
    """

    def __init__(self, root: Path, *temporary: Path) -> None:
        self._root = f"{root}{os.sep}"
        self._temporary = tuple(f"{os.path.realpath(each)}{os.sep}" for each in temporary)
        self._found: dict[str, tuple[int, int, int] | None] = {}

    def watch(self) -> None:
        """Take note of files from now on, until the process ends."""
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Take note of a file that an audit event opens for writing, or creates otherwise."""
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES:
                self._note(path)
        elif event == "os.mkdir":
            path, _, directory = arguments
            if directory == -1:
                self._note(path)
        elif event == "os.rename":
            _, path, _, directory = arguments
            if directory == -1:
                self._note(path)

    def _note(self, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            absolute = os.path.abspath(os.fsdecode(path))
            if self._is_outside(absolute):
                self._found.setdefault(absolute, _state(absolute))

    def _is_outside(self, path: str) -> bool:
        if not TOOL_DIRECTORIES.isdisjoint(path.split(os.sep)):
            return False
        places = (f"{path}{os.sep}", f"{os.path.realpath(path)}{os.sep}")
        inside = [place for each in places for place in self._places if each.startswith(place)]
        return max(inside, key=len, default=self._root) == self._root

    @property
    def _places(self) -> tuple[str, ...]:
        return (self._root, *self._temporary, *_DEVICES)

    def take(self) -> list[str]:
        """Return the files that have been made or changed, and forget all.

        The name of a file that is opened relative to a directory descriptor looks like one in the
        working directory, where nothing changes.
        """
        found, self._found = self._found, {}
        return [path for path, before in found.items() if _state(path) not in (None, before)]
