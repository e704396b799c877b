"""Settings for code of other processors, of which this one runs what it has no instructions for.

On x86 with AVX2, instructions of AVX-512 are emulated (`avx512.h`). All tests run so with

    OCANNL_CPU_C__ARCH=x86-64-v3 OCANNL_CPU_C__CC="gcc -include plugins/ocannl_cpu_c/tests/avx512.h"
"""

from __future__ import annotations

import platform
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest

HEADER = Path(__file__).with_name("avx512.h")
_V2 = ("sse4_2", "ssse3", "popcnt")
_V3 = (*_V2, "avx2", "fma", "bmi2", "f16c")
_V4 = (*_V3, "avx512f", "avx512vl", "avx512bw", "avx512dq")
_NEEDED = {
    "x86-64": ("sse2",),
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V4,
    "cooperlake": (*_V4, "avx512_vnni", "avx512_bf16"),
}
"""The features that a processor needs for code of each target."""
_EMULATED: dict[str, tuple[str, ...]] = {
    "x86-64-v4": (),
    "cooperlake": ("-D__AVX512VNNI__", "-D__AVX512BF16__"),
}
"""The macros of the targets whose instructions are emulated."""


@cache
def _flags() -> frozenset[str]:
    """Return the features of the processor as Linux reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((each for each in lines if each.startswith("flags")), "").split())


def _runs(arch: str) -> bool:
    return arch == "native" or {*_NEEDED[arch]} <= _flags()


def emulating(arch: str) -> dict[str, str]:
    """Return the settings for code of a processor by GCC, with instructions as functions."""
    command = ["gcc", *_EMULATED[arch], "-include", str(HEADER)]
    return {"cpu_c__cc": shlex.join(command), "cpu_c__arch": "x86-64-v3"}


def settings_for(arch: str, command: str = "") -> dict[str, str]:
    """Return the settings for code of a processor, by a compiler or the one that is set.

    The test is skipped where the code would not run.
    """
    if _runs(arch):
        return {"cpu_c__arch": arch, **({"cpu_c__cc": command} if command else {})}
    is_gcc = command in ("", "gcc") and shutil.which("gcc") is not None
    if arch in _EMULATED and _runs("x86-64-v3") and is_gcc:
        return emulating(arch)
    return pytest.skip(f"this processor does not run code for {arch}")


def processors(*names: str) -> tuple[str, ...]:
    """Return the names of processors of this machine's architecture."""
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return tuple(each for each in names if is_x86 or each == "native")
