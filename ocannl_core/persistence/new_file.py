"""Atomic replacement of a file: a reader sees the old content or the new one, never a part.

    .model.safetensors.partial     written, and forced to the disk
    model.safetensors              the same file, after renaming

A process that is killed meanwhile leaves the old file as it was, and the partial one, which the
next replacement overwrites. The partial file is locked, so that two processes cannot write one.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ocannl_core.errors import CheckpointError

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that replaces the one at a path when the block ends without an exception.

    A symbolic link stays one: the file that it names is replaced. Permissions of a replaced file
    are kept.

    Raises:
        CheckpointError: if the file cannot be written; the old one stays.
    """
    final = Path(os.path.realpath(path))
    partial = final.with_name(f".{final.name}.partial")
    try:
        descriptor = _locked(partial, path)
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        with os.fdopen(descriptor, "r+b") as file:
            file.truncate()
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(final.stat().st_mode))
            yield file
            file.flush()
            os.fsync(descriptor)
            os.replace(partial, final)  # before the lock is released
            _force_directory(final.parent)
    except OSError as error:
        with suppress(OSError):
            os.unlink(partial)
        raise unwritable(path, error) from error
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def _locked(partial: Path, path: Path) -> int:
    """Return the descriptor of the partial file, locked and not renamed by another process."""
    while True:
        descriptor = os.open(partial, _FLAGS, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, partial):
                _check_own(descriptor, partial, path)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise CheckpointError(
                "One process or thread at a time writes a checkpoint.",
                found=f"{partial} is being written",
                where=str(path),
                fix="save under another name, or in one process only",
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _check_own(descriptor: int, partial: Path, path: Path) -> None:
    """Raise CheckpointError unless the partial file is the user's own, under one name only."""
    status = os.fstat(descriptor)
    is_own = status.st_uid == os.geteuid() and status.st_nlink == 1
    if not (is_own and stat.S_ISREG(status.st_mode)):
        raise CheckpointError(
            "The file that becomes a checkpoint is a regular file of the user, under one name.",
            found=f"{partial} is not",
            where=str(path),
            fix=f"remove {partial}, or save in a folder that other users cannot write to",
        )


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if the path still names the open file: its writer may have renamed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _force_directory(folder: Path) -> None:
    """Force the new name of a file to the disk, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unwritable(path: Path, error: OSError) -> CheckpointError:
    """Return the error about a checkpoint that the system does not let a program write."""
    return CheckpointError(
        "A checkpoint is written completely, or not at all.",
        found=f"{type(error).__name__}: {error.strerror or error}",
        where=f"{path}; a checkpoint that was there before is unchanged",
        fix="make room on the disk, or choose another folder"
        if not isinstance(error, FileNotFoundError | NotADirectoryError)
        else f"create the folder {path.parent}",
    )
