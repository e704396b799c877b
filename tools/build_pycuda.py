"""Build a wheel of PyCUDA on a machine without a GPU, a driver or the whole toolkit.

    python tools/build_pycuda.py            # prints the path of the wheel
    python tools/build_pycuda.py --install  # also installs it beside this Python

PyCUDA has no wheels, and its own build needs a toolkit with stubs of the driver. This one needs the
headers of the driver only, from the toolkit of `nvcc` or else from wheels, and makes the stubs
itself. The wheel is kept in the user's cache directory, so that it is built once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

VERSION = "2026.1"
HEADER_WHEELS = ("nvidia-cuda-runtime>=13,<14", "nvidia-cuda-profiler-api>=13,<14")
_FUNCTION = re.compile(r"\b(cu[A-Z]\w*)\s*\(")
_ROOT = re.compile(r"^#\$ TOP=(.*)$", re.MULTILINE)
_STUB_RESULT = 34
"""CUDA_ERROR_STUB_LIBRARY."""


def main() -> None:
    """Build or find the wheel, and print its path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--install", action="store_true", help="install it beside this Python")
    arguments = parser.parse_args()
    wheel = find() or build()
    if arguments.install:
        pip("install", "--quiet", str(wheel))
    print(wheel)


def folder() -> Path:
    """Return the directory of wheels for this version of Python."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "ocannl-pycuda" / f"{VERSION}-{sys.implementation.cache_tag}"


def find() -> Path | None:
    """Return the wheel that was built before; None if there is none."""
    return next(iter(folder().glob("pycuda-*.whl")), None)


def build() -> Path:
    """Return a new wheel."""
    with tempfile.TemporaryDirectory(prefix="pycuda-") as name:
        work = Path(name)
        root = toolkit(work)
        stubs(root / "include", work / "libcuda.so")
        # the only configuration that its build reads, besides one inside the source
        home = work / "home"
        home.mkdir()
        (home / ".aksetup-defaults.py").write_text(
            f"CUDA_ROOT = {str(root)!r}\nCUDA_ENABLE_CURAND = False\n"
            f"CUDADRV_LIB_DIR = [{str(work)!r}]\n"
        )
        pip("wheel", "--quiet", "--no-deps", "--wheel-dir", name, f"pycuda=={VERSION}", home=home)
        (wheel,) = work.glob("pycuda-*.whl")
        folder().mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder() / wheel.name))


def toolkit(work: Path) -> Path:
    """Return a directory whose folder `include` has the headers of the driver."""
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        command = [nvcc, "--dryrun", "-c", "-x", "cu", os.devnull]
        found = _ROOT.search(subprocess.run(command, capture_output=True, text=True).stderr)
        if found is not None and (Path(found[1]) / "include" / "cudaProfiler.h").is_file():
            return Path(found[1]).resolve()
    pip("download", "--quiet", "--no-deps", "--dest", str(work / "headers"), *HEADER_WHEELS)
    for wheel in (work / "headers").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "headers")
    (include,) = (path.parent for path in (work / "headers").rglob("cuda.h"))
    for header in (work / "headers").rglob("cudaProfiler.h"):
        if header.parent != include:
            shutil.copy(header, include)
    return include.parent


def stubs(include: Path, library: Path) -> None:
    """Build a library with every function of the driver, for the linker.

    Without the functions the linker would leave the library out of those that the extension needs.
    """
    both = "#include <cuda.h>\n#include <cudaProfiler.h>\n"
    command = ["cc", "-E", f"-I{include}", "-x", "c", "-"]
    text = subprocess.run(command, input=both, capture_output=True, text=True, check=True).stdout
    names = sorted(set(_FUNCTION.findall(text)))
    code = "".join(f"int {name}(void) {{ return {_STUB_RESULT}; }}\n" for name in names)
    flags = ["-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c"]
    subprocess.run(["cc", *flags, "-o", str(library), "-"], input=code, text=True, check=True)


def pip(*arguments: str, home: Path | None = None) -> None:
    """Run pip."""
    env = os.environ if home is None else os.environ | {"HOME": str(home)}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env=env, stdout=sys.stderr)


if __name__ == "__main__":
    main()
