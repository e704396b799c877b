"""The settings of groups of processes."""

from __future__ import annotations

from ocannl_core.backend_api import dataclass, settings


@dataclass(frozen=True, slots=True)
class MpiSettings:
    """The settings in force at one moment."""

    timeout: float = settings.setting(
        300.0,
        "the seconds after which a process that does not answer is given up",
        check=lambda seconds: seconds > 0,
        expected="a positive number of seconds",
        affects_code=False,
    )
    device_memory: bool | None = settings.setting(
        None,
        "whether the MPI library reads memory of CUDA devices; by default as the library states",
        kind=bool,
        affects_code=False,
    )


def current() -> MpiSettings:
    """Return the settings in force here and now."""
    return settings.of_plugin("mpi", MpiSettings)
