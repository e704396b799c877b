"""The library in place of the NVIDIA driver, built for the installed PyCUDA."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ocannl_core.backend_api import CompileError, settings
from ocannl_core.backend_api.files import private_directory

SOURCE = Path(__file__).parent / "driver.c"
LIBRARY = "libcuda.so.1"
_NAME = re.compile(r"\bU (cu[A-Z]\w*)")


def environment(devices: int = 1) -> dict[str, str]:
    """Return the environment variables of programs that run on emulated devices.

    Raises:
        CompileError: if PyCUDA or a C compiler is missing.
    """
    folders = [str(build()), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
        "CUDA_EMULATOR_DEVICES": str(devices),
        "OCANNL_CUDA__COMPILER": "emulator",
    }


def build() -> Path:
    """Return the directory of the library, after building it unless it is there.

    Raises:
        CompileError: if PyCUDA or a C compiler is missing.
    """
    names = sorted(_needed_functions())
    stubs = "\n".join(f"__attribute__((weak)) int {name}(void) {{ return 801; }}" for name in names)
    code = SOURCE.read_text(encoding="utf-8")
    key = hashlib.sha256(f"{code}\n{stubs}".encode()).hexdigest()[:32]
    place = private_directory(settings.cache_directory(), "cuda_emulator").child(key)
    if LIBRARY in place.names():
        return place.path
    place.write("driver.c", code.encode())
    place.write("stubs.c", stubs.encode())
    temporary = f"{LIBRARY}.{os.getpid()}"
    flags = ["-O1", "-g", "-w", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-Wl,-Bsymbolic"]
    command = [_c_compiler(), *flags, "-o", temporary, "driver.c", "stubs.c", "-ldl", "-pthread"]
    run = place.run(command)
    if run.returncode:
        raise CompileError(
            "The emulated driver must compile.", found=run.stderr, where=str(place.path)
        )
    place.write(LIBRARY, place.read_unfinished(temporary) or b"")
    place.remove(temporary)
    return place.path


def _needed_functions() -> Iterator[str]:
    """Yield the functions of the driver that PyCUDA is linked with."""
    package = importlib.util.find_spec("pycuda")
    places = [] if package is None else package.submodule_search_locations or []
    libraries = [path for place in places for path in Path(place).glob("_driver*.so")]
    if not libraries:
        raise CompileError(
            "Emulated devices need PyCUDA.",
            found="it is not installed",
            fix="python tools/build_pycuda.py, which needs no GPU",
        )
    run = subprocess.run(
        ["nm", "-D", str(libraries[0])], capture_output=True, text=True, check=True
    )
    yield from _NAME.findall(run.stdout)


def _c_compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        raise CompileError("Emulated devices need a C compiler.", fix="apt-get install gcc")
    return found


def with_sanitizer(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program whose kernels run under the address sanitizer.

    Raises:
        CompileError: if the compiler has none.
    """
    # exceptions of PyCUDA need the library of C++ to be there when the sanitizer starts
    libraries = [_library_of_compiler(name) for name in ("libasan.so", "libstdc++.so")]
    if not all(map(os.path.isabs, libraries)):
        raise CompileError("The address sanitizer comes with g++.", found="g++ has none")
    return {
        **given,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        # the compiler itself is not watched
        "CUDA_EMULATOR_CXX": "env -u LD_PRELOAD g++ -fsanitize=address",
    }


def _library_of_compiler(name: str) -> str:
    """Return the path of a library of g++, or the name itself if there is none."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()
