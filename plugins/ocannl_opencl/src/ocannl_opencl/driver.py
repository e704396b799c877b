"""PyOpenCL, with the caches of other projects in a private directory or switched off.

PyOpenCL keeps pickles in the home directory, and PoCL objects, which it loads without a check. Here
PyOpenCL keeps nothing, and PoCL a directory that ends with the process; compiled programs are kept
in the cache of this project, with digests. The variables of the environment that choose otherwise
hold; and nothing changes for a driver that the program has used before.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ocannl_core.backend_api import CompileError, settings
from ocannl_core.backend_api.files import (
    PrivateDirectory,
    temporary_directory,
    unfinished_directory,
    unfinished_name,
)

_NO_CACHE = "PYOPENCL_NO_CACHE"
_POCL = "POCL_CACHE_DIR"
_ROOM = bytes(1 << 20)
"""About as many bytes as PoCL writes for a small kernel."""


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment that is not set, and unset it again."""
    is_set = name in os.environ
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if not is_set:
            del os.environ[name]


with _variable(_NO_CACHE, "1"):
    import pyopencl as cl

    if os.environ[_NO_CACHE] == "1":
        cl._PYOPENCL_NO_CACHE = True  # the program may have imported it before


def _remove(stack: ExitStack, process: int) -> None:
    if os.getpid() == process:  # not in forked children
        stack.close()


def _with_room(stack: ExitStack) -> PrivateDirectory:
    """Return a directory in which files can be written whole: PoCL ends the process if it cannot.

    Raises:
        CompileError: if a limit of the process is reached.
        OSError: if there is none.
    """
    root = settings.cache_directory()
    found = stack.enter_context(unfinished_directory(root, "opencl"))
    try:
        _fill(found)
    except OSError as error:
        found = temporary_directory(root, unfinished_name(), error=error)
        _fill(found)
    return found


def _fill(directory: PrivateDirectory) -> None:
    name = unfinished_name()
    try:
        directory.create(name, _ROOM)
    finally:
        directory.remove(name)


def _open_drivers() -> str:
    """Let PoCL read the place of its cache, which it does once.

    Returns:
        The reason why PoCL cannot write programs, with which it would end the process.
    """
    stack = ExitStack()
    try:
        directory = _with_room(stack)
    except (OSError, CompileError) as error:
        stack.close()
        reason = " ".join(str(error).split())
        return "" if _POCL in os.environ else f"no place for its files: {reason}"
    atexit.register(_remove, stack, os.getpid())
    with _variable(_POCL, str(directory.path)), suppress(cl.Error):
        for platform in cl.get_platforms():
            platform.get_devices()
    return ""


POCL_FAULT = _open_drivers()

__all__ = ["POCL_FAULT", "cl"]
