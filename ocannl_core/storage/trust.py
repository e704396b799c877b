"""Opening of files and directories that only the user can have written.

A path is walked from the root of the file system, one component after the other, each relative to
the descriptor of the one before, so that nothing can be exchanged between the check and the use.
Every directory on the way must belong to the user or to root, and must not be writable by others,
unless it is sticky, as `/tmp` is: there, only the owner of an entry replaces it. Symbolic links are
followed if they belong to the user or to root.

A group is as good as the user if the user is its only member, as in systems where everybody has a
group of their own. On systems without user ids or without relative paths, nothing is checked.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

IS_CHECKED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
"""Support of the checks by this system."""

_MOST_LINKS = 40
_MOST_AT_ONCE = 1 << 24
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_READ = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


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
    with _walk(path, create=create) as (parent, name):
        found = os.open(name or ".", _READ | _NO_LINK, dir_fd=parent)
    try:
        check_private(found, path)
    except BaseException:
        os.close(found)
        raise
    return found


def read_file(path: str, limit: int) -> bytes:
    """Return the content of a file that only the user can have written.

    Args:
        path: The file.
        limit: The largest size in bytes.

    Raises:
        UntrustedError: if others can have written it.
        OSError: if it cannot be read.
    """
    if not IS_CHECKED:
        with open(path, "rb") as file:
            return _check_size(file.read(limit + 1), limit, path)
    with _walk(path) as (parent, name):
        descriptor = os.open(name, _FILE | _NO_LINK, dir_fd=parent)
        try:
            status = _regular(descriptor, path)
            _check_owner(status, path)
            _check_closed(descriptor, status, path)
            # in a directory that all users can write to, others can link a file of the user
            if status.st_nlink > 1 and os.fstat(parent).st_mode & _OTHERS:
                raise UntrustedError(path, "it has several names")
            return _check_size(read_all(descriptor, limit), limit, path)
        finally:
            os.close(descriptor)


def check_private(descriptor: int, path: str) -> None:
    """Check that only the user can have written to a directory.

    Raises:
        UntrustedError: if others can write to it, or it belongs to one of them.
    """
    status = os.fstat(descriptor)
    _check_own(status, path)
    _check_closed(descriptor, status, path)


def check_own_file(descriptor: int, path: str) -> os.stat_result:
    """Return the status of a regular file of the user in a private directory.

    Raises:
        UntrustedError: if it belongs to another user, others can write to it, it has a second
            name, or is no regular file.
    """
    status = _regular(descriptor, path)
    _check_own(status, path)
    _check_closed(descriptor, status, path)
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


# ----- walking ------------------------------------------------------------------------------------


@contextmanager
def _walk(path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the trusted directory at the end of a path, and the last component, which is no
    link.
    """
    walk = _Walk(os.path.abspath(path), create)
    try:
        walk.run()
        yield walk.descriptors[-1], walk.name
    finally:
        for each in walk.descriptors:
            os.close(each)


class _Walk:
    """A walk along a path.

    Attributes:
        descriptors: The descriptors of the directories from the root to the current one.
        name: The last component; empty for the root itself.
    """

    def __init__(self, path: str, create: bool) -> None:
        self.descriptors = [os.open("/", _SEARCH | _NO_LINK)]
        self.name = ""
        self._names = ["/"]
        self._create = create
        self._left = _components(path)
        self._links = 0

    def run(self) -> None:
        """Walk to the directory that holds the last component.

        Raises:
            UntrustedError: if others can redirect a component.
            OSError: if there is no such directory.
        """
        self._check(self.descriptors[0])
        while self._left:
            name = self._left.pop()
            if name == "..":
                self._leave()
            elif not self._follow(name):
                if not self._left:
                    self.name = name
                    return
                self._enter(name)

    def _follow(self, name: str) -> bool:
        """Replace a symbolic link by its target; return False for anything else."""
        try:
            status = os.stat(name, dir_fd=self.descriptors[-1], follow_symlinks=False)
        except FileNotFoundError:
            if not self._create:
                raise
            # another process may create it at the same time
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.descriptors[-1])
            return False
        if not stat.S_ISLNK(status.st_mode):
            return False
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path(name))
        _check_owner(status, self._path(name))
        target = os.readlink(name, dir_fd=self.descriptors[-1])
        if target.startswith("/"):
            while len(self.descriptors) > 1:
                self._leave()
        self._left += _components(target)
        return True

    def _enter(self, name: str) -> None:
        found = os.open(name, _SEARCH | _NO_LINK, dir_fd=self.descriptors[-1])
        self.descriptors.append(found)
        self._names.append(name)
        self._check(found)

    def _leave(self) -> None:
        if len(self.descriptors) > 1:
            os.close(self.descriptors.pop())
            self._names.pop()

    def _check(self, descriptor: int) -> None:
        """Check that no other user can exchange the entries of a directory."""
        status, path = os.fstat(descriptor), self._path("")
        _check_owner(status, path)
        if not status.st_mode & stat.S_ISVTX:
            _check_closed(descriptor, status, path)

    def _path(self, name: str) -> str:
        return os.path.join(*self._names, name) if name else os.path.join(*self._names)


def _components(path: str) -> list[str]:
    """Return the components of a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


# ----- owners -------------------------------------------------------------------------------------


def _check_owner(status: os.stat_result, path: str) -> None:
    """Check that something belongs to the user or to root."""
    if status.st_uid != 0:
        _check_own(status, path)


def _check_own(status: os.stat_result, path: str) -> None:
    if status.st_uid != os.geteuid():
        raise UntrustedError(path, f"it belongs to user {status.st_uid}")


def _regular(descriptor: int, path: str) -> os.stat_result:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedError(path, "it is no regular file")
    return status


def _check_closed(descriptor: int, status: os.stat_result, path: str) -> None:
    """Check that no other user can write to a file or directory."""
    if status.st_mode & stat.S_IWOTH:
        raise UntrustedError(path, "every user can write to it")
    if status.st_mode & stat.S_IWGRP and not (
        _has_one_member(status.st_gid) and not _has_access_list(descriptor)
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


def _has_access_list(descriptor: int) -> bool:
    """Return True if an access list of Linux may let further users write."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        os.getxattr(f"/proc/self/fd/{descriptor}", "system.posix_acl_access")
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True
