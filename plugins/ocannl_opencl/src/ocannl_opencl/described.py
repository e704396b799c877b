"""Devices that this machine need not have: code for them needs neither PyOpenCL nor a driver."""

from __future__ import annotations

from ocannl_core.backend_api import Capability, LaunchLimits, Target, ThreadBlocks, replace
from ocannl_opencl.dialect import DIALECT


def _described(name: str, *, threads: int, subgroup: int, processors: int) -> Target:
    grid = ((1 << 31) - 1,) * 3
    limits = LaunchLimits(threads, (threads,) * 3, grid, 32 << 10, 32 << 10)
    blocks = ThreadBlocks(
        max_threads=threads,
        threads=min(threads, 256 if subgroup > 1 else 64),
        local_bytes=limits.shared_bytes,
        processors=processors,
        subgroup=subgroup,
        vector_bytes=DIALECT.vector_bytes,
        has_conditional_barriers=subgroup > 1,
        limits=limits,
    )
    return Target(
        "opencl",
        description=f"an OpenCL {name}",
        cores=processors,
        has_fma=True,
        cache_bytes=(1 << 20,),
        compiler=f"described {name}",
        thread_blocks=blocks,
        capabilities=tuple(Capability),
        has_device=False,
    )


_GPU = _described("gpu", threads=256, subgroup=32, processors=32)
DESCRIBED = {
    "gpu": _GPU,
    "gpu-without-fma": replace(_GPU, has_fma=False, compiler="described gpu without fma"),
    "cpu": _described("cpu", threads=4096, subgroup=1, processors=8),
}
"""Devices with the least limits that are usual, by name."""
