"""Private directories of the user, open by descriptor, and the files in them.

    <cache directory>/tmp/       unfinished files, named after their process
                      <name>/    complete files, moved there by renaming

A directory that other users could have written to is not used, nor is anything in it: a temporary
directory replaces it, after a warning. Directories are opened for each use, so that one that was
exchanged, removed or opened to others meanwhile is not used any more.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import stat
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ocannl_core.base import errors
from ocannl_core.base.files import trust
from ocannl_core.base.files.new_files import create, is_stale, is_unfinished, moved, unfinished_name

if TYPE_CHECKING:
    import subprocess

_LARGEST = 1 << 30
"""The largest size of a cached file in bytes."""
_ROOM = 64 << 20
"""The least free space of a temporary directory in bytes."""
_SCRATCH = "tmp"
_MARKER = "CACHEDIR.TAG"
_MARK = b"""\
Signature: 8a477f597d28d172789f06886806bc55
# A cache of ocannl, see https://bford.info/cachedir/: old files in it are removed without notice.
"""
"""The file of a directory that was empty when it became a cache, so that all in it is ours."""
_CACHED = r"[0-9a-f]{16,64}(\.[a-z]+)?"
"""The names of cached files; no others are removed."""
_LIMITS = {
    errno.EMFILE: (
        "A process opens no more files than its limit.",
        "close files, or raise the limit, as by `ulimit -n 4096`",
    ),
    errno.ENFILE: (
        "All processes together open no more files than the limit of the system.",
        "raise the limit, as by `sysctl fs.file-max`",
    ),
    errno.EAGAIN: (
        "A user has no more processes and threads than the limit.",
        "end some, or raise the limit, as by `ulimit -u 4096`",
    ),
    errno.EFBIG: (
        "A process writes no larger files than its limit.",
        "raise the limit, as by `ulimit -f unlimited`",
    ),
}
"""Limits that hold in every directory, and how to raise them, by the error where one is reached."""


class PrivateDirectory:
    """A directory that only the user can change.

    Args:
        descriptor: An open descriptor of it, which this object takes over.
        root: The cache directory that it is in; None for a cache directory.

    Attributes:
        path: Its path, for messages and for programs that take file names.
        descriptor: Of the directory.

    Raises:
        UntrustedError: if others could have written to it.
    """

    def __init__(self, path: Path, descriptor: int, root: PrivateDirectory | None = None) -> None:
        self.path = path
        self.descriptor = descriptor
        self._root = root
        weakref.finalize(self, _close, descriptor).atexit = False
        trust.check(descriptor, str(path))

    @property
    def scratch(self) -> PrivateDirectory:
        """The directory of files that are written before they are moved here."""
        return (self._root or self).child(_SCRATCH)

    def child(self, *names: str) -> PrivateDirectory:
        """Return the directory at the end of these names; create what does not exist.

        Raises:
            OSError: if one cannot be created, or others could have written to it.
        """
        found = self
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=found.descriptor)
            found = found.existing_child(name)
        return found

    def existing_child(self, name: str) -> PrivateDirectory:
        """Return a directory in this one.

        Raises:
            OSError: if there is none, or others could have written to it.
        """
        opened = os.open(name, trust.DIRECTORY | trust.NO_LINK, dir_fd=self.descriptor)
        return PrivateDirectory(self.path / name, opened, self._root or self)

    @property
    def place(self) -> Path:
        """A path that cannot be redirected, for this process and others with the descriptor."""
        path = Path(f"/proc/self/fd/{self.descriptor}")  # linux: elsewhere it is no directory
        return path if path.is_dir() else self.path

    def names(self) -> list[str]:
        """Return the names of the files in the directory, unordered."""
        return os.listdir(self.descriptor)

    def removable_names(self) -> list[str]:
        """Return the names of cached files that may be removed: none if the directory had files of
        others when it became a cache.
        """
        is_ours = (self._root or self).is_marked()
        return [name for name in self.names() if is_ours and re.fullmatch(_CACHED, name)]

    def drop_old(self, most: int) -> None:
        """Remove the least recently used files down to half of `most`, if there are more."""
        names = self.removable_names()
        if len(names) > most:
            for name in sorted(names, key=self.last_use)[: -(most // 2)]:
                self.remove(name)

    def is_marked(self) -> bool:
        """Return True if it was empty when it became a cache."""
        return self.read(_MARKER, limit=len(_MARK)) == _MARK

    def last_use(self, name: str) -> float:
        """Return the time at which a file was last used; 0 if there is none."""
        with suppress(OSError):  # another process may remove it
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mtime
        return 0.0

    def read(
        self, name: str, *, limit: int = _LARGEST, is_use: bool = False, is_checked: bool = True
    ) -> bytes | None:
        """Return the content of a file; None if it does not exist, is larger than a limit in bytes,
        or other users may have written it, unless that is not checked.

        `is_use` records the time of this use.
        """
        try:
            with trust.open_file(name, self.descriptor) as file:
                if is_checked:
                    trust.check(file.fileno(), name)
                size = os.fstat(file.fileno()).st_size
                content = file.read(size) if size <= limit else None
                if is_use:
                    with suppress(OSError):
                        os.utime(file.fileno())
                return content
        except OSError:
            return None

    def read_unfinished(self, name: str) -> bytes | None:
        """Return a file of a child process, of any mode; other users cannot reach it here."""
        return self.read(name, is_checked=False)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        scratch = self.scratch
        temporary = unfinished_name()
        with moved(temporary, scratch.descriptor, name, self.descriptor, 0o600) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> None:
        """Write a new file."""
        with create(name, 0o600, self.descriptor) as file:
            file.write(content)

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
        """Remove a file, or an unfinished directory."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)
        if is_unfinished(name):
            import shutil  # slower to import than this module, and rarely needed

            shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)


def _close(descriptor: int) -> None:
    with suppress(OSError):  # the program may have closed it
        os.close(descriptor)


_swept: set[Path] = set()
_temporary: list[Path] = []


def private_directory(root: Path, *names: str) -> PrivateDirectory:
    """Return the directory at the end of these names in the user's cache directory, or a temporary
    one after a warning.

    Raises:
        CompileError: if a limit of the process is reached.
        OSError: if no temporary directory can be created either.
    """
    try:
        return open_private(root, create=True).child(*names)
    except OSError as error:
        return temporary_directory(root, *names, error=error)


def open_private(path: Path, *, create: bool = False) -> PrivateDirectory:
    """Open a directory that only the user can change.

    `create` also creates a missing one, marks an empty one as a cache, and removes unfinished files
    of processes that have ended.

    Raises:
        OSError: if it cannot be opened, or others can change it.
    """
    path = Path(os.path.abspath(path))
    if not trust.IS_CHECKED:
        raise trust.UntrustedError(str(path), "it is on a system without user ids")
    if create:
        path.mkdir(0o700, parents=True, exist_ok=True)
    found = PrivateDirectory(path, os.open(path, trust.DIRECTORY))
    if create and path not in _swept:
        _swept.add(path)
        with suppress(OSError):
            if not found.names():
                found.create(_MARKER, _MARK)
            if found.is_marked():
                scratch = found.existing_child(_SCRATCH)
                for name in scratch.names():
                    if is_stale(name, scratch.last_use(name)):
                        scratch.remove(name)
    return found


@contextmanager
def unfinished_directory(root: Path, name: str) -> Iterator[PrivateDirectory]:
    """Yield a new directory of this name for a program that writes files; remove it afterwards.

    Raises:
        CompileError: if a limit of the process is reached.
        OSError: if no temporary directory can be created either.
    """
    own = unfinished_name()
    made = private_directory(root, _SCRATCH, own, name)
    try:
        yield made
    finally:
        with suppress(FileNotFoundError):  # users may delete the cache at any time
            made.scratch.remove(own)


def temporary_directory(refused: Path, *names: str, error: OSError) -> PrivateDirectory:
    """Return the directory at the end of these names in one that is removed with the process, after
    a warning about the cache directory that cannot be used for a reason.

    Raises:
        CompileError: if the reason is a limit of the process, which is the same for any directory.
        OSError: if it cannot be created.
    """
    if limit := _LIMITS.get(error.errno or 0):
        rule, fix = limit
        raise errors.CompileError(rule, found=str(error), where=str(refused), fix=fix) from None
    try:
        found = open_private(_temporary[0]).child(*names)
    except (IndexError, OSError):
        try:
            _temporary[:] = [_new_temporary()]
            found = open_private(_temporary[0]).child(*names)
        except OSError as other:
            reason = f"{refused} cannot be used ({error}), and no temporary directory ({other})"
            raise OSError(error.errno, reason) from None
    warn_of_loss("Compiled code is not kept", refused, error)
    return found


def _new_temporary() -> Path:
    """Return a directory that is removed when the process ends, in one where others cannot exchange
    it: programs take file names.
    """
    import tempfile  # as slow to import as the rest of this module

    if not trust.IS_CHECKED:
        raise OSError(errno.ENOTSUP, "no directory is known to be private without user ids")
    parents = ["/var/tmp", "/dev/shm"]  # linux: or none, passed over
    with suppress(OSError):  # all that it tries may be full
        parents.insert(0, tempfile.gettempdir())
    for parent in parents:
        with suppress(OSError):
            status = os.stat(parent)
            owners = (0, os.geteuid())  # posix: refused above
            if not (status.st_mode & stat.S_ISVTX and status.st_uid in owners):
                with trust.opened(parent) as (opened, _):
                    trust.check(opened, parent, or_root=True)
            space = os.statvfs(parent)  # posix: refused above
            if space.f_bavail * space.f_frsize > _ROOM:
                made = Path(tempfile.mkdtemp(prefix="ocannl-", dir=parent))
                atexit.register(_remove_own, made, os.getpid())
                return made
    raise OSError(errno.ENOSPC, "no directory for temporary files is private and has room")


def _remove_own(path: Path, process: int) -> None:
    import shutil

    if os.getpid() == process:  # not in forked children
        shutil.rmtree(path, ignore_errors=True)


def warn_of_loss(lost: str, refused: Path, error: OSError) -> None:
    """Warn about a directory that cannot be used, for a reason, and the loss by that."""
    fix = "set OCANNL_CACHE_DIR to a directory of your own"
    _, fix = _LIMITS.get(error.errno or 0, ("", fix))
    text = f"{lost}: {refused} cannot be used ({error}). {fix[0].upper()}{fix[1:]}."
    errors.warn_once(text, RuntimeWarning)
