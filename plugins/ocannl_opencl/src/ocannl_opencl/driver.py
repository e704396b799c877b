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

from ocannl_core.backend_api import settings
from ocannl_core.backend_api.files import unfinished_directory

_NO_CACHE = "PYOPENCL_NO_CACHE"
_POCL = "POCL_CACHE_DIR"


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


def _open_drivers() -> None:
    """Let PoCL read the place of its cache, which it does once."""
    stack = ExitStack()
    try:
        directory = stack.enter_context(unfinished_directory(settings.cache_directory(), "opencl"))
    except OSError:  # without any place for files, PoCL refuses programs
        return
    atexit.register(_remove, stack, os.getpid())
    with _variable(_POCL, str(directory.path)), suppress(cl.Error):
        for platform in cl.get_platforms():
            platform.get_devices()


_open_drivers()

__all__ = ["cl"]
