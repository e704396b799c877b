"""C of an exported file: kernels are static functions, called directly.

Where there is no library (`-ffreestanding`), builtins of the compiler stand for instructions of the
processor; only `memcpy` and `memset` may be called. Code that needs more, such as a power of
`float64`, does not link there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ocannl_core.codegen.dialect import Dialect, KernelParameter
from ocannl_core.codegen.text.helper import UNFUSED
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.ir.target import Target


class ExportedC(Dialect):
    """C that has the same results under all flags that keep the arithmetic of IEEE 754."""

    reports_failures = True
    replaces_doubles = True
    headers = ("<stdint.h>",)

    def prelude(self, helpers: Iterable[str]) -> str:
        return _WITHOUT_LIBRARY + super().prelude(helpers)

    def unit(self, kernels: Iterable[KernelText]) -> str:
        """Return the file without the headers that operations with C code of their own include and
        that the prelude has included where there is a library.
        """
        return _INCLUDED.sub("", super().unit(kernels))

    def opening(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return self.function_head(f"static void {symbol}", parameters)

    def closing(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return ["}"]


_INCLUDED = re.compile(r"^#include <(?:math|string)\.h>\n", re.MULTILINE)

_INSTRUCTIONS = (
    *("ceil", "copysign", "fabs", "floor", "fma", "fmax"),
    *("fmin", "rint", "round", "roundeven", "sqrt", "trunc"),
)
INSTRUCTION_FUNCTIONS = (*_INSTRUCTIONS, *(f"{name}f" for name in _INSTRUCTIONS))
"""Functions of <math.h> that processors have instructions for."""

_WITHOUT_LIBRARY = "\n".join(
    [
        "#if !__STDC_HOSTED__",
        '#define NAN __builtin_nanf("")',
        "#define INFINITY __builtin_inff()",
        *(f"#define {each} __builtin_{each}" for each in INSTRUCTION_FUNCTIONS),
        "#define memcpy __builtin_memcpy",
        "#define memset __builtin_memset",
        "#else",
        "#  include <math.h>",
        "#  include <string.h>",
        "#endif",
        "",
    ]
)


def exported_dialect(target: Target, *, threads: bool) -> Dialect:
    """Return the dialect for a device.

    Args:
        threads: True if several threads may share the work of a call.
    """
    required = frozenset[str]() if target.has_fma else frozenset({UNFUSED})
    return ExportedC().varied(partitions_loops=threads, required_helpers=required)
