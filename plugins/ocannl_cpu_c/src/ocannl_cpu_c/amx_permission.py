"""Permission to use tile registers (AMX), once per process.

Linux saves them at context switches, which takes 8 kB for each thread; so a process requests them,
and all its threads and forks have them from then on.
"""

from __future__ import annotations

import os
import sys
from functools import cache

_ARCH_PRCTL = 158
_REQUEST_STATE = 0x1023
_TILE_DATA = 18


@cache
def request_tiles() -> str:
    """Request tile registers; return the reason for a refusal, or an empty string."""
    if sys.platform != "linux" or os.uname().machine != "x86_64" or sys.maxsize <= 2**32:
        return "only Linux is asked for them"
    import ctypes  # slow to import, and few processors have tiles

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    numbers = (ctypes.c_long(each) for each in (_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA))
    if call(*numbers) == 0:
        return ""
    return f"Linux refuses them: {os.strerror(ctypes.get_errno())}"
