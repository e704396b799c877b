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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from ocannl_core.base.files import trust

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | trust.NO_LINK
_STALE = 24 * 3600.0
"""An unfinished file of this age in seconds is stale, even if its process cannot be checked."""
_UNFINISHED = r"([0-9a-f]{12})-([0-9]{1,19})-[0-9a-f]{12}\.tmp"
_LONGEST_PREFIX = 128
_MOST_LINKS = 40


def create(name: str, mode: int, directory: int | None) -> BinaryIO:
    """Return a new file, with permissions from which the umask takes away.

    Raises:
        OSError: if the name exists, or cannot be created.
    """
    return os.fdopen(os.open(name, _NEW, mode, dir_fd=directory), "wb")


@contextmanager
def moved(
    temporary: str, source: int | None, name: str, target: int | None, mode: int
) -> Iterator[BinaryIO]:
    """Yield a new file, which takes its final name in another directory if the block succeeds."""
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
    folder, name = os.path.split(_followed(os.fspath(path), _MOST_LINKS))
    with trust.opened(folder) as (directory, prefix):
        mode = _mode(prefix + name, directory)
        start = f".{os.fsdecode(os.fsencode(name)[:_LONGEST_PREFIX])}."
        _remove_left(start, directory)
        temporary = f"{prefix}{start}{unfinished_name()}"
        with moved(temporary, directory, prefix + name, directory, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if directory is not None:
            with suppress(OSError):  # some file systems have no such operation
                os.fsync(directory)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by a text in UTF-8, as `replacement`."""
    with replacement(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_new(path: str | os.PathLike[str], text: str) -> None:
    """Write a file that does not exist yet into a directory that is no symbolic link."""
    folder, name = os.path.split(path)
    with (
        trust.opened(folder, trust.NO_LINK) as (directory, prefix),
        create(prefix + name, 0o666, directory) as file,
    ):
        file.write(text.encode("utf-8", "backslashreplace"))


def _followed(path: str, links: int) -> str:
    """Return the path of a file after links in directories of the user alone."""
    folder, name = os.path.split(path)
    with trust.opened(folder) as (directory, prefix):
        try:
            target = os.readlink(prefix + name, dir_fd=directory)
        except OSError:  # no link
            return path
        try:
            trust.check(directory, folder, or_root=True)
        except trust.UntrustedError:
            reason = "it is a symbolic link in a directory that other users can write to"
            raise trust.UntrustedError(path, reason) from None
    if not links:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return _followed(os.path.join(folder, target), links - 1)


def _mode(name: str, directory: int | None) -> int:
    """Return the permissions of a file's replacement, before the umask."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return 0o666
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(errno.EEXIST, "it exists and is no regular file", name)
    is_own = not trust.IS_CHECKED or status.st_uid == os.geteuid()  # posix: checked before
    return status.st_mode & 0o666 if is_own else 0o666


def _remove_left(start: str, directory: int | None) -> None:
    """Remove the user's unfinished files whose names have this beginning, of ended processes."""
    # posix: elsewhere directories have no descriptor
    if directory is None:
        return
    for name in os.listdir(directory):
        with suppress(OSError):
            if name.startswith(start):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if is_own and is_stale(name.removeprefix(start), status.st_mtime):
                    os.unlink(name, dir_fd=directory)


def unfinished_name() -> str:
    """Return a name for a file that this process writes and moves elsewhere when it is complete."""
    return f"{_machine()}-{os.getpid()}-{os.urandom(6).hex()}.tmp"


def is_unfinished(name: str) -> bool:
    """Return True if some process gave this name to an unfinished file."""
    return re.fullmatch(_UNFINISHED, name) is not None


def is_stale(name: str, last_use: float) -> bool:
    """Return True if a name belongs to an unfinished file, and the process in it has ended."""
    found = re.fullmatch(_UNFINISHED, name)
    if found is None:
        return False
    # elsewhere signal 0 is an interruption by the keyboard
    if found[1] != _machine() or not trust.IS_CHECKED:
        return time.time() - last_use > _STALE
    try:
        os.kill(int(found[2]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # the process of another user, or no number of a process
        pass
    return False


@cache
def _machine() -> str:
    """Return the name of the process-id namespace of this process."""
    known = [os.uname().nodename] if hasattr(os, "uname") else []
    with suppress(OSError):
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        known.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256(" ".join(known).encode("utf-8", "replace")).hexdigest()[:12]
