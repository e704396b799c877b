"""The instructions of compiled kernels, as the disassembler lists them; needs no device.

They show whether a schedule has its effect: the width of accesses of memory, numbers that are
exchanged without memory, matrix instructions, and arrays of threads that are not in registers.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ocannl_core.backend_api import dataclass, settings
from ocannl_core.backend_api.files import unfinished_directory
from ocannl_cuda.nvcc import Nvcc
from ocannl_cuda.nvrtc import Nvrtc
from plugins.ocannl_cuda.tests.resources import OPTION, Resources, parse

PACKAGE = "nvidia-cuda-nvdisasm"
_SECTION = re.compile(r"^\.text\.(\w+):$", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?!@!PT )(?:@!?U?P\w+ )?\s*([A-Z][A-Z0-9_.]*)", re.MULTILINE
)
"""An instruction that a thread may execute: those with the predicate `!PT` fill gaps."""
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
_ACCESSES = ("LDG", "LDGSTS", "STG", "LDS", "STS", "LDL", "STL")
_MATRIX = ("HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA", "QGMMA", "OMMA", "QMMA", "UTCHMMA")


@dataclass(frozen=True, slots=True)
class Assembly:
    """A compiled kernel.

    Attributes:
        resources: The resources that it takes.
        instructions: The number of instructions by their names without suffixes.
        widths: The number of accesses by instruction and bits, such as `("LDG", 128)`.
    """

    resources: Resources
    instructions: Mapping[str, int]
    widths: Mapping[tuple[str, int], int]

    @property
    def local_accesses(self) -> int:
        """The accesses of arrays of a thread that are in memory."""
        return sum(self.instructions.get(name, 0) for name in ("LDL", "STL"))

    @property
    def matrix_instructions(self) -> int:
        return sum(self.instructions.get(name, 0) for name in _MATRIX)

    def accesses(self, name: str) -> str:
        """Return the accesses by an instruction, such as `4x128 2x32`; `-` for none."""
        found = {bits: count for (each, bits), count in self.widths.items() if each == name}
        return " ".join(f"{found[bits]}x{bits}" for bits in sorted(found, reverse=True)) or "-"


def find_disassembler() -> Path | None:
    """Return `nvdisasm` of the wheel, else that on the path; None if there is neither."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for each in files:
        if each.name == "nvdisasm":
            return Path(str(each.locate()))
    found = shutil.which("nvdisasm")
    return None if found is None else Path(found)


def assemble(
    compiler: Nvrtc | Nvcc, disassembler: Path, text: str, architecture: str
) -> dict[str, Assembly]:
    """Return the kernels of a translation unit, compiled, by symbol.

    Raises:
        RejectedError: if the compiler rejects the text.
    """
    content, log = compiler.compile_and_report(text, architecture, "kernels.cu", OPTION)
    with unfinished_directory(settings.cache_directory(), "cuda") as directory:
        directory.create("kernels.cubin", content)
        run = directory.run([str(disassembler), "-c", "kernels.cubin"])
        run.check_returncode()
        listing = run.stdout
    resources = parse(log)
    return {
        symbol: _assembly(resources[symbol], part) for symbol, part in sections(listing).items()
    }


def sections(listing: str) -> dict[str, str]:
    """Return the parts of a listing by kernel."""
    _, *parts = _SECTION.split(listing)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _assembly(resources: Resources, listing: str) -> Assembly:
    instructions: Counter[str] = Counter()
    widths: Counter[tuple[str, int]] = Counter()
    for opcode in _INSTRUCTION.findall(listing):
        name, *suffixes = opcode.split(".")
        instructions[name] += 1
        if name in _ACCESSES:
            bits = next((_WIDTHS[each] for each in suffixes if each in _WIDTHS), 32)
            widths[name, bits] += 1
    return Assembly(resources, instructions, widths)
