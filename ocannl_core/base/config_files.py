"""Discovery of configuration files, and checks of their owners.

The user's own file is `ocannl/ocannl.toml` in the user's configuration directory. The project's is
the nearest `ocannl.toml`, or `pyproject.toml` with a table `[tool.ocannl]`, going up from the
working directory; in one directory the former takes precedence. A file that other users can have
written is skipped, after a warning, unless the user trusts its directory.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from functools import lru_cache

from ocannl_core.base.errors import SettingsError, warn_once
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files import trust

_NAMES = ("ocannl.toml", "pyproject.toml")
_LARGEST = 1 << 20
_TABLE = rb"""ocannl["']?\s*[\].=]"""
"""A pattern that every `pyproject.toml` with a table `[tool.ocannl]` matches in any spelling."""

Signature = tuple[int, ...]
"""Metadata of a file that change when it is edited or exchanged."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The settings of one file."""

    path: str
    where: str
    """The file, and the table in it, for messages."""
    values: Mapping[str, object]
    """Its settings, as TOML values."""
    is_trusted: bool
    """True if it may set commands, plugins and directories."""
    is_project: bool = False
    """True for a `pyproject.toml`, whose settings stand in a table."""


def user_path() -> str:
    """Return the path of the user's own file; an empty path without a home directory."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return os.path.join(base, "ocannl", "ocannl.toml") if os.path.isabs(base) else ""


def user_file() -> ConfigFile | None:
    """Return the user's own file; None if it does not exist, or other users can have written it.

    Raises:
        SettingsError: if it cannot be read.
    """
    path = user_path()
    return _load(path, (), is_own=True) if path else None


def project_file(trusted: tuple[str, ...]) -> ConfigFile | None:
    """Return the nearest file going up from the working directory, or None.

    Args:
        trusted: Directories in and below which the user trusts all files.

    Raises:
        SettingsError: if it cannot be read.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the working directory was deleted
        return None
    own = user_path()
    while True:
        for name in _NAMES:
            path = os.path.join(folder, name)
            found = None if path == own else _load(path, trusted)
            if found is not None:
                return found
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _load(path: str, trusted: tuple[str, ...], *, is_own: bool = False) -> ConfigFile | None:
    """Return a file with settings; None if it does not exist, or must not be used."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    # what changes when it is edited, exchanged, or opened to others
    signature = (*status[:6], status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    content, doubt = _read(path, signature)
    is_project = path.endswith(_NAMES[1])
    if is_project and not re.search(_TABLE, content.replace(b"\0", b"")):
        return None
    is_trusted = is_own or _is_below(os.path.dirname(path), trusted)
    if doubt and (is_own or not is_trusted):
        remedy = (
            "Let only yourself write to it, and to the directory that it is in."
            if is_own
            else "If you trust it, add its directory to trusted_directories, as in "
            f"OCANNL_TRUSTED_DIRECTORIES={os.path.dirname(path)}."
        )
        warn_once(
            f"The configuration file {path} is not used: another user may have written it "
            f"({doubt}). {remedy}"
        )
        return None
    values = _parse(path, signature)
    where = f"{path}, table [tool.ocannl]" if is_project else path
    return None if values is None else ConfigFile(path, where, values, is_trusted, is_project)


def warn_refused(file: ConfigFile, name: str, variable: str) -> None:
    """Warn once that a setting of a project's file is ignored."""
    folder = os.path.dirname(file.path)
    warn_once(
        f"The setting {name} of {file.where} is not used: a file that is found on the way up does "
        "not choose commands, plugins or directories. "
        f"Set {variable}, or write it in {user_path() or 'a file of your own'}; or, if you trust "
        f"{folder}, add it to trusted_directories, as in OCANNL_TRUSTED_DIRECTORIES={folder}."
    )


@lru_cache(maxsize=32)
def _is_below(folder: str, trusted: tuple[str, ...]) -> bool:
    """Return True if a directory is one of `trusted`, or inside one."""
    real = os.path.realpath(folder)
    each = [os.path.realpath(os.path.expanduser(each)) for each in trusted]
    return any(os.path.join(real, "").startswith(os.path.join(other, "")) for other in each)


@lru_cache(maxsize=32)
def _read(path: str, signature: Signature) -> tuple[bytes, str]:
    """Return the content of a file, empty if it is no regular file, and the reason why other users
    may have written or made it; empty if they cannot.
    """
    content, doubt = b"", ""
    folder, name = os.path.split(path)
    try:
        with (
            trust.opened(folder) as (directory, prefix),
            trust.open_file(prefix + name, directory, follows_links=True) as file,
        ):
            content = file.read(_LARGEST + 1)
            trust.check(directory, folder, or_root=True)
            trust.check(file.fileno(), path, or_root=True)
            if len(content) > _LARGEST:
                raise OSError(errno.EFBIG, f"it is larger than {_LARGEST} bytes")
    except trust.UntrustedError as error:
        doubt = str(error)
    except OSError as error:
        raise SettingsError(
            "A configuration file must be readable.", found=str(error), where=path
        ) from error
    return content, doubt


@lru_cache(maxsize=32)
def _parse(path: str, signature: Signature) -> Mapping[str, object] | None:
    """Return the settings of a file; None for a project's file without a table of settings."""
    import tomllib  # most programs have no configuration file

    try:
        text = _read(path, signature)[0].decode("utf-8-sig")  # editors on Windows write a mark
        content = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            "A configuration file must be TOML.", found=str(error), where=path
        ) from error
    if path.endswith(_NAMES[0]):
        return content
    tool = content.get("tool", {})
    table = tool.get("ocannl") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise SettingsError(
            "The settings of a project are a table, [tool.ocannl].", found=repr(table), where=path
        )
    return table
