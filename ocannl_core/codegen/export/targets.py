"""Processors that exported code can be generated for without having one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.target import Target

_CACHES = (32 << 10, 512 << 10)

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "portable": Target("", description="any processor"),
        "x86-64": Target(
            "", description="x86-64", vector_bytes=16, vector_registers=16, cache_bytes=_CACHES
        ),
        "x86-64-v3": Target(
            "",
            description="x86-64 with AVX2",
            vector_bytes=32,
            vector_registers=16,
            has_fma=True,
            cache_bytes=_CACHES,
        ),
        "aarch64": Target(
            "",
            description="aarch64",
            vector_bytes=16,
            vector_registers=32,
            has_fma=True,
            cache_bytes=_CACHES,
        ),
        "wasm32": Target(
            "",
            description="WebAssembly with vectors of 128 bits",
            vector_bytes=16,
            vector_registers=16,
            cache_bytes=_CACHES,
        ),
    }
)
"""Descriptions of processors, by the names that users state."""


def target_named(name: str, backend: str) -> Target:
    """Return the description of a processor.

    Args:
        backend: The backend whose passes compile for it.
    """
    if name not in TARGETS:
        raise UsageError(
            "Exported code is for a processor that is described.",
            found=f"target={name!r}",
            fix=f"one of {', '.join(TARGETS)}, or a Target; None for the processor of the routine",
        )
    return replace(TARGETS[name], backend=backend)
