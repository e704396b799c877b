"""The settings of the CUDA backend."""

from __future__ import annotations

from ocannl_core.backend_api import dataclass, settings


@dataclass(frozen=True, slots=True)
class CudaSettings:
    """The settings in force at one moment."""

    compiler: str | None = settings.setting(
        None,
        "the compiler of CUDA C++: `nvrtc`, the path of nvcc, or `emulator` for emulated devices; "
        "by default the first one found",
        kind=str,
        needs_trust=True,
    )
    graphs: bool = settings.setting(
        False,
        "whether consecutive kernels of a routine are replayed as one graph from its second run on",
        affects_code=False,
    )


def current() -> CudaSettings:
    """Return the settings in force here and now."""
    return settings.of_plugin("cuda", CudaSettings)
