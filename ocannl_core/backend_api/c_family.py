"""Rendering of kernels in C and its dialects."""

from ocannl_core.codegen.c_family import CODEGEN_VERSION, render_kernel
from ocannl_core.codegen.dialect import AddressSpace, BlockDialect, Dialect, KernelParameter
from ocannl_core.codegen.prelude.prelude import PreludeWords, headers_of, prelude
from ocannl_core.codegen.rendering.native import native_arguments, render_native
from ocannl_core.codegen.routine_source import (
    Launch,
    RoutineSource,
    RunStep,
    render_step,
    render_steps,
)
from ocannl_core.codegen.text.helper import EMULATED_TILES, MATH, UNFUSED
from ocannl_core.codegen.text.kernel_text import (
    CompilerVectorisation,
    KernelText,
    TensorMap,
    group_offsets,
)
from ocannl_core.codegen.text.names import NameRole
from ocannl_core.codegen.text.precedence import CExpr, Precedence, call
from ocannl_core.ir.kernels.transforms import WalkTiles

# fmt: off
__all__ = [
    "CODEGEN_VERSION", "EMULATED_TILES", "MATH", "UNFUSED", "AddressSpace", "BlockDialect", "CExpr",
    "CompilerVectorisation", "Dialect", "KernelParameter", "KernelText", "Launch", "NameRole",
    "Precedence", "PreludeWords", "RoutineSource", "RunStep", "TensorMap", "WalkTiles", "call",
    "group_offsets", "headers_of", "native_arguments", "prelude", "render_kernel", "render_native",
    "render_step", "render_steps",
]
# fmt: on
