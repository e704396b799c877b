"""The dialect of C for processors."""

from __future__ import annotations

from ocannl_core.backend_api import Kernel, Target, replace
from ocannl_core.backend_api.c_family import UNFUSED, Dialect
from ocannl_core.backend_api.rendering import RenderState
from ocannl_cpu_c.amx import AmxLoops
from ocannl_cpu_c.matrix_units import TILE_HELPERS


class ThreadedC(Dialect):
    """C whose large kernels several threads share."""

    partitions_loops = True
    reports_failures = True
    replaces_doubles = True
    signed_wraps = True
    words = replace(Dialect.words, files=(TILE_HELPERS,))

    def device_loops(self, kernel: Kernel, state: RenderState) -> AmxLoops:
        return AmxLoops(self, state)


DIALECT = ThreadedC()


def dialect_of(target: Target) -> Dialect:
    """Return the dialect for a device."""
    return DIALECT if target.has_fma else DIALECT.varied(required_helpers=frozenset({UNFUSED}))
