"""The settings of the C backend."""

from __future__ import annotations

from ocannl_core.backend_api import dataclass, settings


def _is_processor(name: str) -> bool:
    return all(each.isalnum() or each in "_.+=-" for each in name)


@dataclass(frozen=True, slots=True)
class CSettings:
    """The settings in force at one moment."""

    cc: str | None = settings.setting(
        None,
        "the C compiler command, or `ziglang`, the package; by default the first one found",
        kind=str,
        needs_trust=True,
    )
    arch: str = settings.setting(
        "native",
        "the target processor of C code, as in -march=",
        check=_is_processor,
        expected="the name of a processor",
    )
    check_compiler: bool = settings.setting(
        True,
        "whether a C compiler must get kernels with known results right before its code is used; "
        "checked once for each compiler and its flags",
        affects_code=False,
    )


def current() -> CSettings:
    """Return the settings in force here and now."""
    return settings.of_plugin("cpu_c", CSettings)
