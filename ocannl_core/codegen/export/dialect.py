"""C of an exported file: kernels are static functions, which one thread calls directly."""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.codegen.dialect import Dialect, KernelParameter
from ocannl_core.codegen.text.helper import UNFUSED
from ocannl_core.ir.target import Target


class ExportedC(Dialect):
    """C that compiles with any flags to the same results, as far as they state no other arithmetic."""

    reports_failures = True

    def opening(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return self.function_head(f"static void {symbol}", parameters)

    def closing(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return ["}"]


class UnfusedExportedC(ExportedC):
    """C of `ExportedC` for processors without fused multiply-add."""

    required_helpers = frozenset({UNFUSED})


def exported_dialect(target: Target) -> Dialect:
    """Return the dialect for a device."""
    return ExportedC() if target.has_fma else UnfusedExportedC()
