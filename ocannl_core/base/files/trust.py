"""Opening of files and directories that only the user can have written.

Owner and permissions are those of the descriptor that is used afterwards, so that nothing can be
exchanged between the check and the use. The path to it is not looked at: whoever can exchange a
directory on the path can put no file there that has the user as its owner.

A group is as good as the user if the user is its only member, as in systems where everybody has a
group of their own. On systems without user ids or without relative paths, nothing is checked.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from functools import cache
from typing import BinaryIO

IS_CHECKED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
"""Support of the checks by this system."""

_MOST_AT_ONCE = 1 << 24
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
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


def open_directory(path: str, *, create: bool = False) -> int:
    """Return a descriptor of a directory that only the user can change.

    Args:
        path: The directory.
        create: True to create it, and missing parents.

    Raises:
        UntrustedError: if others can.
        OSError: if it cannot be opened.
    """
    if not IS_CHECKED:
        raise UntrustedError(path, "it is on a system without user ids")
    if create:
        _make(path)
    found = os.open(path, _DIRECTORY)
    try:
        check_private(found, path)
    except BaseException:
        os.close(found)
        raise
    return found


def _make(path: str) -> None:
    """Create a directory and missing parents for the user alone."""
    if os.path.isdir(path):
        return
    if (parent := os.path.dirname(path)) != path:
        _make(parent)
    with suppress(FileExistsError):  # another process may create it at the same time
        os.mkdir(path, 0o700)


def read_file(path: str, limit: int) -> bytes:
    """Return the content of a file that only the user can have written.

    In a directory that all users can write to, a link may be that of another user, to a file of the
    user that is meant for something else.

    Args:
        path: The file.
        limit: The largest size in bytes.

    Raises:
        UntrustedError: if others can have written it, or its name.
        OSError: if it cannot be read.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if not IS_CHECKED:
        with open_regular(path) as file:
            return _check_size(file.read(limit + 1), limit, path)
    parent = os.open(folder, _DIRECTORY)
    try:
        may_be_linked = is_shared(parent, folder)
        descriptor = open_file(name, parent, follows_links=not may_be_linked)
    finally:
        os.close(parent)
    try:
        status = os.fstat(descriptor)
        _check_owner(status, path)
        _check_closed(descriptor, status, path)
        if may_be_linked and status.st_nlink > 1:
            raise UntrustedError(path, "it has several names")
        return _check_size(read_all(descriptor, limit), limit, path)
    finally:
        os.close(descriptor)


def open_file(
    name: str | os.PathLike[str], directory: int | None = None, *, follows_links: bool = False
) -> int:
    """Return a descriptor to read a file; a pipe or a device, which may never end, is refused.

    Args:
        name: The file.
        directory: The directory that it is in.
        follows_links: False to refuse a symbolic link.

    Raises:
        UntrustedError: if it is no regular file, or a link that is not followed.
        OSError: if it cannot be opened.
    """
    try:
        descriptor = os.open(name, _FILE if follows_links else _FILE | _NO_LINK, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError(os.fspath(name), "it is a symbolic link") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UntrustedError(os.fspath(name), "it is no regular file")
    return descriptor


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a regular file to be read.

    Raises:
        OSError: if it is none, or cannot be opened.
    """
    return os.fdopen(open_file(path, follows_links=True), "rb")


def is_shared(directory: str | int, path: str) -> bool:
    """Return True if others can make entries in a directory, of which only owners replace theirs.

    Args:
        directory: Its path or descriptor.
        path: Its path, for messages.

    Raises:
        UntrustedError: if others can replace the entries of the user.
    """
    status = os.stat(directory)
    _check_owner(status, path)
    try:
        _check_closed(directory, status, path)
    except UntrustedError:
        if status.st_mode & stat.S_ISVTX:
            return True
        raise
    return False


def check_private(descriptor: int, path: str) -> None:
    """Check that only the user can have written to a file or directory.

    Raises:
        UntrustedError: if others can write to it, or it belongs to one of them.
    """
    status = os.fstat(descriptor)
    _check_own(status, path)
    _check_closed(descriptor, status, path)


def check_own_file(descriptor: int, path: str) -> os.stat_result:
    """Return the status of a file of the user in a private directory.

    Raises:
        UntrustedError: if it belongs to another user, others can write to it, or it has a second
            name.
    """
    check_private(descriptor, path)
    status = os.fstat(descriptor)
    if status.st_nlink > 1:
        raise UntrustedError(path, "it has several names")
    return status


def read_all(descriptor: int, limit: int) -> bytes:
    """Return up to `limit + 1` bytes of a file."""
    parts: list[bytes] = []
    left = limit + 1
    # larger buffers, freed again, would make the allocator return memory that must be cleared
    size = os.fstat(descriptor).st_size + 1
    while left > 0 and (part := os.read(descriptor, min(left, size, _MOST_AT_ONCE))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _check_size(content: bytes, limit: int, path: str) -> bytes:
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", path)
    return content


# ----- owners -------------------------------------------------------------------------------------


def _check_owner(status: os.stat_result, path: str) -> None:
    """Check that something belongs to the user or to root."""
    if status.st_uid != 0:
        _check_own(status, path)


def _check_own(status: os.stat_result, path: str) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedError(path, f"it belongs to user {status.st_uid}")


def _check_closed(place: str | int, status: os.stat_result, path: str) -> None:
    """Check that no other user can write to a file or directory."""
    if status.st_mode & stat.S_IWOTH:
        raise UntrustedError(path, "every user can write to it")
    if status.st_mode & stat.S_IWGRP and not (
        _has_one_member(status.st_gid) and not _has_access_list(place)
    ):
        raise UntrustedError(path, f"it can be written by group {status.st_gid}")


@cache
def _has_one_member(group: int) -> bool:
    """Return True if the user is certainly the only member of a group."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        members = grp.getgrgid(group).gr_mem
    except KeyError:
        return False
    alike = {each.pw_uid for each in pwd.getpwall() if each.pw_gid == group}
    return alike == {user.pw_uid} and set(members) <= {user.pw_name}


def _has_access_list(place: str | int) -> bool:
    """Return True if an access list of Linux may let further users write."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(place, "system.posix_acl_access")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True
