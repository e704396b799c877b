"""New files, and files that replace others: a reader sees the old content or the new one.

    .model.safetensors.<machine>-<process>-<random>.tmp    written, and forced to the disk
    model.safetensors                                      the same file, after renaming

Every file is created under a name that did not exist, relative to an open directory: nothing that
others put there is opened, followed, or a model for permissions. Files of processes that were
killed meanwhile are removed by the next replacement.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ocannl_core.base.files import trust

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_HAS_RELATIVE = os.open in os.supports_dir_fd
_STALE = 24 * 3600.0
"""An unfinished file of this age in seconds is stale, even if its process cannot be checked."""
_UNFINISHED = re.compile(r"([0-9a-f]{12})-([0-9]{1,19})-[0-9a-f]{12}\.tmp")
_LONGEST_PREFIX = 128
_MOST_LINKS = 40

Directory = int | None
"""A descriptor; None where the system has no relative paths: names are paths there."""


def create(name: str, mode: int, directory: Directory) -> BinaryIO:
    """Return a new file.

    Args:
        name: Its name.
        mode: Its permissions, from which the umask takes away.
        directory: The directory that it is in.

    Raises:
        OSError: if the name exists, or cannot be created.
    """
    return os.fdopen(os.open(name, _NEW, mode, dir_fd=directory), "wb")


@contextmanager
def moved(
    temporary: str, source: Directory, name: str, target: Directory, mode: int
) -> Iterator[BinaryIO]:
    """Yield a new file, which is moved when the block ends without an exception.

    Args:
        temporary: Its first name.
        source: The directory of that.
        name: Its final name, which it takes from another file if there is one.
        target: The directory of that.
        mode: Its permissions, from which the umask takes away.
    """
    file = create(temporary, mode, source)
    try:
        with file:
            yield file
        os.replace(temporary, name, src_dir_fd=source, dst_dir_fd=target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=source)
        raise


@contextmanager
def replacement(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of a path when the block ends without an exception.

    It is readable and writable for whom the umask allows it, but for no more than the user's own
    file that it replaces. A symbolic link at the path stays one, and the file that it names is
    replaced, if no other user can have put it there.

    Raises:
        UntrustedError: if another user can have put a symbolic link there.
        OSError: if the file cannot be written; the old one stays.
    """
    with _located(path) as (directory, name, prefix):
        mode = _mode(name, directory)
        short = os.fsdecode(os.fsencode(os.path.basename(name))[:_LONGEST_PREFIX])
        left = f".{short}."
        _remove_left(left, prefix, directory)
        temporary = f"{prefix}{left}{unfinished_name()}"
        with moved(temporary, directory, name, directory, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if directory is not None:
            with suppress(OSError):  # some file systems have no such operation
                os.fsync(directory)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by a text in UTF-8.

    Raises:
        OSError: if it cannot be written; the old one stays.
    """
    with replacement(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextmanager
def _located(path: str | os.PathLike[str]) -> Iterator[tuple[Directory, str, str]]:
    """Yield the directory of a path, the name in it, and the text before each name in it."""
    folder, name = os.path.split(os.fspath(path))
    if not _HAS_RELATIVE:
        folder, name = os.path.split(os.path.realpath(path))
        prefix = os.path.join(folder, "")
        yield None, prefix + name, prefix
        return
    directory = os.open(folder or ".", _DIRECTORY)
    try:
        for _ in range(_MOST_LINKS):
            try:
                target = os.readlink(name, dir_fd=directory)
            except OSError:  # no link
                break
            _check_link(directory, os.path.join(folder, name))
            folder, name = os.path.split(target)
            following = os.open(folder or ".", _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = following
        yield directory, name, ""
    finally:
        os.close(directory)


def _check_link(directory: int, link: str) -> None:
    """Check that no other user can have put a link into a directory."""
    try:
        is_shared = trust.IS_CHECKED and trust.is_shared(directory, link)
    except trust.UntrustedError:
        is_shared = True
    if is_shared:
        reason = "it is a symbolic link in a directory that other users can write to"
        raise trust.UntrustedError(link, reason)


def _mode(name: str, directory: Directory) -> int:
    """Return the permissions of a file's replacement, before the umask."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return 0o666
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, "it exists and is no regular file", name)
    is_own = not trust.IS_CHECKED or status.st_uid == os.geteuid()
    return status.st_mode & 0o666 if is_own else 0o666


# ----- unfinished files ---------------------------------------------------------------------------


def unfinished_name() -> str:
    """Return a name for a file that this process writes and moves elsewhere when it is complete."""
    return f"{_machine()}-{os.getpid()}-{os.urandom(6).hex()}.tmp"


def is_stale(name: str, last_use: float) -> bool:
    """Return True if a name is that of an unfinished file, and the process in it has ended."""
    found = _UNFINISHED.fullmatch(name)
    if found is None:
        return False
    if found[1] == _machine():
        return not _is_alive(int(found[2]))
    return time.time() - last_use > _STALE


@cache
def _machine() -> str:
    """Return the name of the process-id namespace of this process."""
    known = [os.uname().nodename] if hasattr(os, "uname") else []
    with suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        known.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256(" ".join(known).encode("utf-8", "replace")).hexdigest()[:12]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _remove_left(start: str, prefix: str, directory: Directory) -> None:
    """Remove the user's unfinished files whose names have this beginning, of ended processes."""
    if not trust.IS_CHECKED:
        return
    with suppress(OSError):
        for name in os.listdir(directory):
            if name.startswith(start):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if is_own and is_stale(name.removeprefix(start), status.st_mtime):
                    os.unlink(name, dir_fd=directory)


# ----- new directories ----------------------------------------------------------------------------


class NewDirectory:
    """A directory that this process created, open by descriptor, so that it cannot be exchanged.

    Args:
        path: Its path; missing parents are created.

    Raises:
        FileExistsError: if the path exists.
        OSError: if it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self._descriptor: int | None = None
        if _HAS_RELATIVE:
            self._descriptor = os.open(path, _DIRECTORY | os.O_NOFOLLOW)
            weakref.finalize(self, os.close, self._descriptor)
            status = os.fstat(self._descriptor)
            if status.st_uid != os.geteuid():
                raise PermissionError(f"{path} belongs to user {status.st_uid}")

    def write(self, name: str, text: str) -> None:
        """Write a new file.

        Raises:
            OSError: if it exists, or cannot be written.
        """
        place = name if self._descriptor is not None else str(self.path / name)
        with create(place, 0o666, self._descriptor) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
