"""Opening of files and directories that only the user can have written.

Owner and permissions are read from the descriptor that is used afterwards, so that nothing can be
exchanged between the check and the use. The path to it is not looked at: whoever can exchange a
directory on the path can put no file there that has the user as its owner.

A group is as good as the user if the user is its only member, as in systems where everybody has a
group of their own. On systems without user ids or without relative paths, nothing is checked.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import BinaryIO

IS_CHECKED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
"""Support of the checks by this system."""
DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class UntrustedError(OSError):
    """Another user can have written a file or directory, or can exchange it.

    Args:
        path: The file or directory.
        reason: The reason, beginning with "it".
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EACCES, reason, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def check(descriptor: int | None, path: str, *, or_root: bool = False) -> None:
    """Check that only the user, or root, can have written to an open file or directory.

    Raises:
        UntrustedError: if others can write to it, or it belongs to one of them.
    """
    # posix: nothing is checked elsewhere
    if descriptor is None or not IS_CHECKED:
        return
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() and not (or_root and status.st_uid == 0):
        raise UntrustedError(path, f"it belongs to user {status.st_uid}")
    if status.st_mode & stat.S_IWOTH:
        raise UntrustedError(path, "every user can write to it")
    is_for_group = status.st_mode & stat.S_IWGRP
    if is_for_group and not (_has_one_member(status.st_gid) and not _has_access_list(descriptor)):
        raise UntrustedError(path, f"it can be written by group {status.st_gid}")


@contextmanager
def opened(folder: str, flags: int = 0) -> Iterator[tuple[int | None, str]]:
    """Yield a directory's descriptor and the prefix of names: without descriptors, its path."""
    if not IS_CHECKED:
        yield None, os.path.join(folder, "")
        return
    directory = os.open(folder or ".", DIRECTORY | flags)
    try:
        yield directory, ""
    finally:
        os.close(directory)


def open_file(
    name: str | os.PathLike[str], directory: int | None = None, *, follows_links: bool = False
) -> BinaryIO:
    """Return a file to be read; a pipe or a device, which may never end, is refused.

    Raises:
        UntrustedError: if it is no regular file.
        OSError: if it cannot be opened, or is a link that is not followed.
    """
    descriptor = os.open(name, _FILE if follows_links else _FILE | NO_LINK, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UntrustedError(os.fspath(name), "it is no regular file")
    return os.fdopen(descriptor, "rb")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a regular file to be read.

    Raises:
        OSError: if it is none, or cannot be opened.
    """
    return open_file(path, follows_links=True)


@cache
def _has_one_member(group: int) -> bool:
    """Return True if the user is certainly the only member of a group."""
    import grp  # posix: called after the checks of `check`
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        members = grp.getgrgid(group).gr_mem
    except KeyError:
        return False
    alike = {each.pw_uid for each in pwd.getpwall() if each.pw_gid == group}
    return alike == {user.pw_uid} and set(members) <= {user.pw_name}


def _has_access_list(descriptor: int) -> bool:
    """Return True if an access list of Linux may let further users write."""
    if hasattr(os, "getxattr"):
        try:
            os.getxattr(descriptor, "system.posix_acl_access")
        except OSError as error:
            return error.errno not in (errno.ENODATA, errno.ENOTSUP)
        return True
    return False
