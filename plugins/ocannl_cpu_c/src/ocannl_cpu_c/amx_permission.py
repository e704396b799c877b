"""Tile registers need the operating system's permission, once per process.

Linux saves them when it switches between threads, which takes 8 kB for each; so a process asks for
them, and all its threads and forks have them from then on.
"""

from __future__ import annotations

import os
import sys
from functools import cache

_ARCH_PRCTL = 158
_REQUEST_STATE = 0x1023
_TILE_DATA = 18


@cache
def refusal() -> str:
    """Ask for tile registers; returns why this process has none, or nothing if it has them."""
    if sys.platform != "linux" or os.uname().machine != "x86_64" or sys.maxsize <= 2**32:
        return "only Linux is asked for them"
    import ctypes  # takes longer than the rest, and few processors have tiles

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    numbers = (ctypes.c_long(each) for each in (_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA))
    if call(*numbers) == 0:
        return ""
    return f"Linux refuses them: {os.strerror(ctypes.get_errno())}"
