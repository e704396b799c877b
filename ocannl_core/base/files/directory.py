"""Private directories of the user, open by descriptor, and the files in them.

    <cache directory>/tmp/       unfinished files, named after their process
                      <name>/    complete files, moved there by renaming

A directory that other users could have written to is not used, nor is anything in it: a temporary
directory replaces it, after a warning.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ocannl_core.base.errors import printable
from ocannl_core.base.files import trust
from ocannl_core.base.files.new_files import create, is_stale, moved, unfinished_name

if TYPE_CHECKING:
    import subprocess

_LARGEST = 1 << 30
"""The largest size of a cached file in bytes."""
_ROOM = 64 << 20
"""The least free space of a temporary directory in bytes."""
_MOST_HELD = 16
"""The largest number of open directories; each takes a descriptor of the process."""
_SCRATCH = "tmp"
_MARKER = "CACHEDIR.TAG"
_MARK = b"""\
Signature: 8a477f597d28d172789f06886806bc55
# A cache of ocannl, see https://bford.info/cachedir/: old files in it are removed without notice.
"""
"""The file of a directory that was empty when it became a cache, so that all in it is ours."""
_CACHED = re.compile(r"[0-9a-f]{16,64}(\.[a-z]+)?")
"""The names of cached files; no others are removed."""
_DIRECTORY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)


class PrivateDirectory:
    """A directory that only the user can change.

    Args:
        path: Its path.
        descriptor: An open descriptor of it, which this object takes over.
        root: The parent directory, with the unfinished files of both; None for none.

    Attributes:
        path: Its path, for messages and for programs that take file names.
        descriptor: Of the directory.
    """

    def __init__(self, path: Path, descriptor: int, root: PrivateDirectory | None = None) -> None:
        self.path = path
        self.descriptor = descriptor
        self._root = root
        self._scratch: PrivateDirectory | None = None
        self._identity = _identity(descriptor)
        weakref.finalize(self, _close, descriptor, self._identity).atexit = False

    @property
    def scratch(self) -> PrivateDirectory:
        """The directory of files that are written before they are moved here.

        Raises:
            OSError: if it cannot be created.
        """
        root = self._root or self
        if root._scratch is None or not root._scratch.is_current():
            root._scratch = root.child(_SCRATCH)
            root._scratch._root = None  # no reference cycle, which would be collected late
        return root._scratch

    def is_current(self) -> bool:
        """Return True if the directory still exists and is still private."""
        try:
            trust.check_private(self.descriptor, str(self.path))
            is_there = os.fstat(self.descriptor).st_nlink > 0
            return is_there and _identity(self.descriptor) == self._identity
        except OSError:
            return False

    def child(self, name: str) -> PrivateDirectory:
        """Return a directory in this one; create it if it does not exist.

        Raises:
            UntrustedError: if others could have written to it.
            OSError: if it cannot be created.
        """
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        return self.existing_child(name)

    def existing_child(self, name: str) -> PrivateDirectory:
        """Return a directory in this one.

        Raises:
            UntrustedError: if others could have written to it.
            OSError: if there is none.
        """
        found = os.open(name, _DIRECTORY, dir_fd=self.descriptor)
        try:
            trust.check_private(found, str(self.path / name))
        except BaseException:
            os.close(found)
            raise
        return PrivateDirectory(self.path / name, found, self._root or self)

    @property
    def place(self) -> Path:
        """A path that cannot be redirected, for this process and others that have the
        descriptor.
        """
        path = Path(f"/proc/self/fd/{self.descriptor}")
        return path if path.is_dir() else self.path

    def names(self) -> list[str]:
        """Return the names of the files in the directory, unordered."""
        return os.listdir(self.descriptor)

    def removable_names(self) -> list[str]:
        """Return the names of cached files that may be removed: none if the directory had files of
        others when it became a cache.
        """
        if not (self._root or self).is_marked():
            return []
        return [name for name in self.names() if _CACHED.fullmatch(name)]

    def is_marked(self) -> bool:
        """Return True if it was empty when it became a cache."""
        return self.read(_MARKER, limit=len(_MARK)) == _MARK

    def mark(self) -> None:
        """Mark a directory as a cache if it is empty.

        Raises:
            OSError: if it cannot be written.
        """
        if not self.names():
            with suppress(FileExistsError):  # another process has
                self.create(_MARKER, _MARK)

    def last_use(self, name: str) -> float:
        """Return the time at which a file was last used; 0 if there is none."""
        try:
            status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except OSError:  # another process removed it
            return 0.0
        return status.st_mtime

    def read(self, name: str, *, limit: int = _LARGEST, is_use: bool = False) -> bytes | None:
        """Return the content of a file; None if it does not exist, or other users may have written
        it.

        Args:
            name: The file.
            limit: Its largest size in bytes.
            is_use: True to record the time of this use.
        """
        try:
            descriptor = trust.open_file(name, self.descriptor)
        except OSError:
            return None
        try:
            status = trust.check_own_file(descriptor, name)
            if status.st_size > limit:
                return None
            content = trust.read_all(descriptor, limit)
            if is_use:
                with suppress(OSError):
                    os.utime(descriptor)
            return content if len(content) <= limit else None
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def read_unfinished(self, name: str) -> bytes | None:
        """Return a file that a child process has written; None if it is no regular file.

        The mode of such a file depends on the program. Other users cannot reach it here.
        """
        try:
            descriptor = trust.open_file(name, self.descriptor)
        except OSError:
            return None
        try:
            return trust.read_all(descriptor, _LARGEST)
        finally:
            os.close(descriptor)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically.

        Raises:
            OSError: if it cannot be written.
        """
        temporary, scratch = unfinished_name(), self.scratch.descriptor
        with moved(temporary, scratch, name, self.descriptor, 0o600) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> None:
        """Write a new file.

        Raises:
            OSError: if it exists, or cannot be written.
        """
        with create(name, 0o600, self.descriptor) as file:
            file.write(content)

    def take(self, source: PrivateDirectory, old: str, new: str | None = None) -> None:
        """Move a finished file here; replace a file of its name.

        Args:
            source: The directory that it is in.
            old: Its name there.
            new: Its name here; None for the same.

        Raises:
            OSError: if there is no such file, or it cannot be moved.
        """
        there, here = source.descriptor, self.descriptor
        os.replace(old, new or old, src_dir_fd=there, dst_dir_fd=here)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a program in the directory; its temporary files are there, too."""
        import subprocess  # slower to import than this module, and rarely needed

        place = str(self.place)
        return subprocess.run(
            command,
            cwd=place,
            env={**os.environ, "TMPDIR": place},
            pass_fds=(self.descriptor,),
            capture_output=True,
            text=True,
        )

    def remove(self, name: str) -> None:
        """Remove a file."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_unfinished(self, name: str) -> None:
        """Remove a file or directory of this process or of one that has ended."""
        import shutil  # slower to import than this module, and rarely needed

        self.remove(name)
        shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)


def _close(descriptor: int, identity: tuple[int, int]) -> None:
    """Close a descriptor, unless the program has closed it and it is now another file's."""
    with suppress(OSError):
        if _identity(descriptor) == identity:
            os.close(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


# ----- the directories of a process ---------------------------------------------------------------

_lock = threading.RLock()
_held: dict[str, PrivateDirectory] = {}
_temporary: list[PrivateDirectory] = []


def private_directory(root: Path, name: str) -> PrivateDirectory:
    """Return a directory in the user's cache directory, or a temporary one after a warning.

    Args:
        root: The cache directory.
        name: The directory in it.

    Raises:
        OSError: if no temporary directory can be created either.
    """
    try:
        return open_private(root, create=True).child(name)
    except OSError as error:
        return temporary_directory(root, name, error)


def open_private(path: Path, *, create: bool = False) -> PrivateDirectory:
    """Open a directory that only the user can change; remove unfinished files of processes that
    have ended.

    Args:
        path: The directory.
        create: True to create it if it does not exist.

    Raises:
        UntrustedError: if others can change it, or could exchange it.
        OSError: if it cannot be opened.
    """
    key = os.path.abspath(path)
    with _lock:
        found = _held.pop(key, None)
        if found is None or not found.is_current():
            found = PrivateDirectory(Path(key), trust.open_directory(key, create=create))
            with suppress(OSError):
                if create:
                    found.mark()
                if found.is_marked():
                    _remove_stale(found.existing_child(_SCRATCH))
        _held[key] = found
        while len(_held) > _MOST_HELD:
            del _held[next(iter(_held))]
        return found


@contextmanager
def unfinished_directory(root: Path, name: str) -> Iterator[PrivateDirectory]:
    """Yield a new directory for a program that writes files, and remove it afterwards.

    Args:
        root: The cache directory.
        name: A directory in it.

    Raises:
        OSError: if no temporary directory can be created either.
    """
    own = unfinished_name()
    try:
        scratch = private_directory(root, name).scratch
        made = scratch.child(own)
    except OSError as error:
        scratch = temporary_directory(root, name, error)
        made = scratch.child(own)
    try:
        yield made
    finally:
        scratch.remove_unfinished(own)


def temporary_directory(refused: Path, name: str, error: OSError) -> PrivateDirectory:
    """Return a directory that is removed with the process, after a warning about one that cannot be
    used.

    Args:
        refused: The cache directory that cannot be used.
        name: The name of the replacement.
        error: The reason.

    Raises:
        OSError: if it cannot be created.
    """
    with _lock:
        if not _temporary or not _temporary[0].is_current():
            _temporary[:] = [_new_temporary()]
        found = _temporary[0].child(name)
    warn_once("Compiled code is not kept", refused, error)
    return found


def _remove_stale(scratch: PrivateDirectory) -> None:
    for name in scratch.names():
        if is_stale(name, scratch.last_use(name)):
            scratch.remove_unfinished(name)


def warn_once(lost: str, refused: Path, error: OSError) -> None:
    """Warn about a directory that cannot be used.

    Args:
        lost: The consequence.
        refused: The directory.
        error: The reason.
    """
    _warn(f"{lost}: {refused} cannot be used ({error}).")


@cache
def _warn(text: str) -> None:
    advice = "Set OCANNL_CACHE_DIR to a directory of your own."
    warnings.warn(printable(f"{text} {advice}"), RuntimeWarning, stacklevel=4)


# ----- temporary directories ----------------------------------------------------------------------


def _new_temporary() -> PrivateDirectory:
    """Return a directory that is removed when the process ends."""
    import tempfile  # as slow to import as the rest of this module

    parents = dict.fromkeys((tempfile.gettempdir(), "/var/tmp", "/dev/shm"))
    problem = OSError(errno.ENOENT, "there is no directory for temporary files")
    for parent in sorted(parents, key=_lacks_room):
        path = os.path.join(parent, f"ocannl-{unfinished_name()}")
        try:
            trust.is_shared(parent, parent)  # for programs that take file names
            found = PrivateDirectory(Path(path), trust.open_directory(path, create=True))
        except OSError as error:
            problem = error
            continue
        atexit.register(_remove_own, path, os.getpid())
        return found
    raise problem


def _lacks_room(parent: str) -> bool:
    try:
        status = os.statvfs(parent)
    except OSError:
        return True
    return status.f_bavail * status.f_frsize < _ROOM


def _remove_own(path: str, process: int) -> None:
    import shutil

    if os.getpid() == process:  # not in forked children
        shutil.rmtree(path, ignore_errors=True)
