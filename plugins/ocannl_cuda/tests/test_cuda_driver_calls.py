"""Functions of the driver that are called through ctypes, beside the header of a toolkit."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ocannl_cuda.driver_calls import SIGNATURES, KernelNodeParams

TYPES = {
    ctypes.c_int: "int",
    ctypes.c_uint: "unsigned int",
    ctypes.c_ulonglong: "unsigned long long",
    ctypes.c_uint64: "unsigned long long",
    ctypes.c_size_t: "size_t",
    ctypes.c_void_p: "void *",
}
"""Types of parameters in C; handles are pointers."""


def include_folder() -> Path | None:
    """Return the folder of the toolkit's headers; None without a toolkit."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    command = [nvcc, "--dryrun", "-c", "-x", "cu", "/dev/null"]
    report = subprocess.run(command, capture_output=True, text=True).stderr
    found = re.search(r"^#\$ TOP=(.*)$", report, re.MULTILINE)
    folder = None if found is None else Path(found[1]) / "include"
    return folder if folder is not None and (folder / "cuda.h").is_file() else None


INCLUDE = include_folder()
needs_header = pytest.mark.skipif(
    INCLUDE is None or shutil.which("g++") is None, reason="needs cuda.h of a toolkit, and g++"
)

CHECK = """
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cstddef>
#include <type_traits>

// A parameter of ctypes fits one of C: integers and enumerations by size, pointers as they are.
template <class Ours, class Theirs>
constexpr bool fits = sizeof(Ours) == sizeof(Theirs) &&
                      std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <class... Ours, class... Theirs>
constexpr bool all_fit(CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs)) return false;
  else return (fits<Ours, Theirs> && ...);
}
"""


def rejected(lines: list[str]) -> str:
    """Return the messages of a compiler about assertions; empty if they hold."""
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{INCLUDE}", "-x", "c++", "-"]
    text = "\n".join([CHECK, *lines])
    return subprocess.run(command, input=text, capture_output=True, text=True).stderr


def signature(name: str) -> str:
    """Return the assertion about the parameters of a function."""
    ours = ", ".join(TYPES.get(each, "void *") for each in SIGNATURES[name])
    return f'static_assert(all_fit<{ours}>(&{name}), "{name}");'


@needs_header
def test_functions_have_the_parameters_of_the_header() -> None:
    # the newest header declares these two under other names
    hidden = {"cuEventDestroy_v2", "cuStreamGetCaptureInfo_v2"}
    assert rejected([signature(name) for name in SIGNATURES if name not in hidden]) == ""
    wrong = signature("cuGraphLaunch").replace("void *, void *", "void *")
    assert "static assertion failed: cuGraphLaunch" in rejected([wrong])


@needs_header
def test_the_launch_of_a_graph_has_the_layout_of_the_header() -> None:
    fields = {
        "func": "function",
        "gridDimX": "grid",
        "blockDimX": "block",
        "sharedMemBytes": "shared_bytes",
        "kernelParams": "parameters",
        "extra": "extra",
        "kern": "kernel",
        "ctx": "context",
    }
    kind = "CUDA_KERNEL_NODE_PARAMS_v2"
    lines = [
        f'static_assert(offsetof({kind}, {theirs}) == {getattr(KernelNodeParams, ours).offset}, "");'
        for theirs, ours in fields.items()
    ]
    lines.append(f'static_assert(sizeof({kind}) == {ctypes.sizeof(KernelNodeParams)}, "");')
    assert rejected(lines) == ""
    wrong = f"static_assert(offsetof({kind}, extra) == 0);"
    assert "static assertion failed" in rejected([wrong])
