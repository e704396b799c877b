"""Finding CUDA devices: each obstacle has its own words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ocannl_core.backend import manager
from ocannl_core.ir.launch_limits import LaunchLimits
from ocannl_cuda.compilers import Missing
from ocannl_cuda.driver_probe import DeviceFacts, Found, NotInstalled, Refused, probe
from ocannl_cuda.targets import architecture_in, is_emulated, report

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : INIT; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 70 + ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device == 70 ? "First GPU" : "Second GPU", length);
    return 0;
}
int cuDeviceTotalMem_v2(unsigned long *size, int device) { *size = 8ul << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    static const int values[98] = {
        [75] = 9, [16] = 132, [38] = 50 << 20, [1] = 1024, [2] = 1000, [3] = 1001, [4] = 64,
        [5] = 1 << 30, [6] = 65535, [7] = 65534, [8] = 49152, [97] = 50000, [12] = 65536,
    };
    *value = values[attribute];
    return 0;
}
"""


LIMITS = LaunchLimits(1024, (1000, 1001, 64), (1 << 30, 65535, 65534), 49152, 50000, 65536)
FIRST = DeviceFacts("First GPU", (9, 0), 8 << 30, 132, 50 << 20, LIMITS)
SECOND = DeviceFacts("Second GPU", (9, 0), 8 << 30, 132, 50 << 20, LIMITS)


class Compiler:
    """A compiler that is found."""

    name = "NVRTC 12.4 (libnvrtc.so.12)"
    identity = "nvrtc 12.4"
    is_emulator = False

    def compile(self, text: str, architecture: str, name: str) -> bytes:
        return b""


MISSING = Missing(("NVRTC is not installed as a wheel", "there is no program nvcc"))


def driver(folder: Path, code: str) -> str:
    """Compile a library that answers as a driver does; returns its path."""
    source, library = folder / "driver.c", folder / "libdriver.so"
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return str(library)


def test_a_missing_library_is_distinguished_from_a_failing_driver() -> None:
    result = probe("libcuda_that_is_nowhere.so.1")
    assert isinstance(result, NotInstalled)
    assert "libcuda_that_is_nowhere.so.1" in result.error


def test_devices_are_found_with_their_names_and_the_driver_version(tmp_path: Path) -> None:
    library = driver(tmp_path, DRIVER.replace("INIT", "0"))
    assert probe(library) == Found((12, 4), (FIRST, SECOND))


def test_a_driver_without_a_device_is_no_failure(tmp_path: Path) -> None:
    assert probe(driver(tmp_path, DRIVER.replace("INIT", "100"))) == Found((12, 4), ())


def test_a_failing_driver_call_is_named_with_its_code(tmp_path: Path) -> None:
    result = probe(driver(tmp_path, DRIVER.replace("INIT", "803")))
    assert isinstance(result, Refused)
    assert (result.call, result.code) == ("cuInit", 803)


def test_a_library_that_is_no_driver_is_not_called(tmp_path: Path) -> None:
    result = probe(driver(tmp_path, "int unrelated(void) { return 0; }"))
    assert isinstance(result, NotInstalled)
    assert "is no CUDA driver" in result.error


@pytest.mark.parametrize("pycuda_is_installed", [True, False])
@pytest.mark.parametrize("compiler", [Compiler(), MISSING])
def test_every_obstacle_is_one_sentence_with_a_way_out(
    pycuda_is_installed: bool, compiler: Compiler | Missing
) -> None:
    old = DeviceFacts("Old GPU", (7, 0), 8 << 30, 80, 6 << 20, LIMITS)
    answers = (
        NotInstalled("libcuda.so.1: cannot open shared object file"),
        Refused("cuInit", 803, "versions differ"),
        Found((12, 4), ()),
        Found((12, 4), (old,)),
        Found((12, 4), (FIRST,)),
    )
    for answer in answers:
        found = report(answer, compiler, pycuda_is_installed=pycuda_is_installed)
        is_usable = answer is answers[-1] and pycuda_is_installed and compiler is not MISSING
        assert bool(found.targets) == is_usable
        assert bool(found.reason) == bool(found.fix) == (not is_usable)
        assert "\n" not in found.reason


def test_with_a_device_the_first_obstacle_is_pycuda_and_the_second_the_compiler() -> None:
    found = Found((12, 4), (FIRST,))
    assert report(found, MISSING, pycuda_is_installed=False).reason == snapshot(
        "PyCUDA is not installed"
    )
    second = report(found, MISSING, pycuda_is_installed=True)
    assert (second.reason, second.fix) == snapshot(
        (
            "there is no compiler of CUDA C++: NVRTC is not installed as a wheel; there is no program nvcc",
            "pip install 'ocannl-cuda[nvrtc]'",
        )
    )
    # choosing another backend in its place warns
    assert second.priority > 50
    assert report(NotInstalled(""), MISSING, pycuda_is_installed=False).priority == 0


def test_a_usable_device_is_a_target_with_its_thread_blocks() -> None:
    found = report(Found((12, 4), (FIRST, SECOND)), Compiler(), pycuda_is_installed=True)
    first, second = found.targets
    assert (first.device, second.device) == (0, 1)
    assert first.description == "First GPU"
    assert first.thread_blocks is not None
    assert first.thread_blocks.processors == 132
    assert first.thread_blocks.local_bytes == 50000
    assert first.thread_blocks.max_threads == 1000
    assert first.thread_blocks.limits == LIMITS
    assert architecture_in(first) == "sm_90a"
    assert not is_emulated(first)
    assert found.details == snapshot(
        (
            "driver for CUDA 12.4",
            "device 0: First GPU, compute capability 9.0, 132 multiprocessors, 8.0 GiB",
            "device 1: Second GPU, compute capability 9.0, 132 multiprocessors, 8.0 GiB",
            "PyCUDA is installed",
            "compiler NVRTC 12.4 (libnvrtc.so.12)",
        )
    )


def test_the_backend_loads_on_every_machine() -> None:
    manager.refresh()
    found = manager.backend("cuda").targets()
    assert bool(found.targets) != bool(found.reason)


def test_importing_the_backend_imports_no_pycuda() -> None:
    code = "import ocannl_cuda, sys; assert 'pycuda' not in sys.modules"
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": paths})
