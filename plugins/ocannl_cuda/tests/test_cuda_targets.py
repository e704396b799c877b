"""Finding CUDA devices: each obstacle has its own words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from inline_snapshot import snapshot

import ocannl_cuda
from ocannl_core.hooks import manager
from ocannl_cuda.driver import Found, NotInstalled, Refused, probe

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
"""


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
    assert probe(library) == Found((12, 4), ("First GPU", "Second GPU"))


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
def test_every_obstacle_is_one_sentence_with_a_way_out(pycuda_is_installed: bool) -> None:
    answers = (
        NotInstalled("libcuda.so.1: cannot open shared object file"),
        Refused("cuInit", 803, "versions differ"),
        Found((12, 4), ()),
        Found((12, 4), ("First GPU",)),
    )
    reports = [
        ocannl_cuda.report(answer, pycuda_is_installed=pycuda_is_installed) for answer in answers
    ]
    assert all(report.targets == () and report.fix for report in reports)
    assert len({report.reason for report in reports}) == len(answers)


def test_with_a_device_the_first_obstacle_is_pycuda_and_the_second_this_version() -> None:
    found = Found((12, 4), ("First GPU",))
    missing = ocannl_cuda.report(found, pycuda_is_installed=False)
    present = ocannl_cuda.report(found, pycuda_is_installed=True)
    assert missing.reason == snapshot("PyCUDA is not installed")
    assert present.reason == snapshot(
        "this version of ocannl-cuda finds devices but generates no CUDA code"
    )
    assert present.details == snapshot(
        ("driver for CUDA 12.4", "device 0: First GPU", "PyCUDA is installed")
    )


def test_the_backend_loads_on_every_machine_and_offers_no_device() -> None:
    manager.refresh()
    report = manager.backend("cuda").targets()
    assert report.targets == ()
    assert report.reason
    assert report.fix
