"""The memory of this machine, for backends whose devices use it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from ocannl_core.backend.protocols import MemoryStatistics


def host_memory_statistics() -> MemoryStatistics | None:
    """Return the memory of this machine and the part of this process; None if unknown."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(f"SC_{each}PHYS_PAGES") for each in ("", "AV"))
    except (AttributeError, OSError, ValueError):
        return None
    with suppress(OSError, ValueError, KeyError):  # files of Linux
        with open("/proc/meminfo", encoding="ascii") as file:
            kibibytes = dict(line.split(":") for line in file)
        free = 1024 * int(kibibytes["MemAvailable"].split()[0])
    return MemoryStatistics(total, min(free, total), _resident(page), _peak())


def _resident(page: int) -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return page * int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _peak() -> int | None:
    try:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except ImportError:  # on Windows
        return None
    return most if sys.platform == "darwin" else 1024 * most
