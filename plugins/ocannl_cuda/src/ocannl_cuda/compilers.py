"""The choice of a compiler: NVRTC from a wheel, NVRTC of the system, nvcc."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from ocannl_core.backend_api import CompileError, dataclass
from ocannl_cuda import nvcc, nvrtc, own_settings
from ocannl_cuda.compiler import CudaCompiler

_EMULATOR_MODULE = "ocannl_cuda_emulator.host_compiler"
INSTALL = "pip install 'ocannl-cuda[nvrtc]'"
"""The command that installs a compiler."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why there is no compiler.

    Attributes:
        tried: The outcome of the search for each kind, as sentences.
    """

    tried: tuple[str, ...]


def find(newest: int | None = None) -> CudaCompiler:
    """Return the compiler in use.

    Raises:
        CompileError: if there is none.
    """
    found = search(newest)
    if not isinstance(found, Missing):
        return found
    raise CompileError(
        "Code for CUDA devices needs a compiler of CUDA C++.",
        found="\n".join(found.tried),
        where="the setting `compiler` of cuda" if own_settings.current().compiler else "",
        fix=INSTALL,
    )


def search(newest: int | None = None) -> CudaCompiler | Missing:
    """Return the compiler that the setting `compiler` selects, by default the first one found;
    or the reason why there is none.

    Args:
        newest: The newest major version of CUDA that the driver supports; None without a driver.
    """
    tried: list[str] = []
    for found in _candidates(own_settings.current().compiler, newest):
        if not isinstance(found, str):
            return found
        tried.append(found)
    return Missing(tuple(tried))


def _candidates(chosen: str | None, newest: int | None) -> Iterator[CudaCompiler | str]:
    """Yield compilers, and sentences about those that do not work, in order of preference."""
    match chosen:
        case None:
            yield from nvrtc.find(newest)
            yield nvcc.find("nvcc", newest)
        case "nvrtc":
            yield from nvrtc.find(newest)
        case "emulator":
            yield _emulator()
        case _:
            yield nvcc.find(chosen, newest)


def _emulator() -> CudaCompiler | str:
    """Return the compiler for emulated devices, which is a distribution of its own; a sentence if
    it does not work.
    """
    try:
        module = import_module(_EMULATOR_MODULE)
    except ModuleNotFoundError as error:
        if _package(error.name or "") != _package(_EMULATOR_MODULE):
            raise
        return "there is no emulator: the repository has it in plugins/ocannl_cuda_emulator"
    found: CudaCompiler | str = module.find()
    return found


def _package(module: str) -> str:
    return module.partition(".")[0]
