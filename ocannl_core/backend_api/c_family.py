"""Rendering of kernels in C and its dialects."""

import warnings

from ocannl_core.backend_api import launches
from ocannl_core.codegen.c_family import render_kernel, render_step
from ocannl_core.codegen.dialect import AddressSpace, BlockDialect, Dialect, KernelParameter
from ocannl_core.codegen.prelude.prelude import PreludeWords, headers_of, prelude
from ocannl_core.codegen.rendering.native import render_native
from ocannl_core.codegen.text.helper import MATH, UNFUSED
from ocannl_core.codegen.text.kernel_text import TensorMap, group_offsets
from ocannl_core.codegen.text.names import NameRole
from ocannl_core.codegen.text.precedence import CExpr, Precedence, call
from ocannl_core.codegen.text.routine_source import native_arguments, render_steps
from ocannl_core.ir.kernels.transforms import WalkTiles

# fmt: off
__all__ = [
    "MATH", "UNFUSED", "AddressSpace", "BlockDialect", "CExpr", "Dialect", "KernelParameter",
    "NameRole", "Precedence", "PreludeWords", "TensorMap", "WalkTiles", "call", "group_offsets",
    "headers_of", "native_arguments", "prelude", "render_kernel", "render_native", "render_step",
    "render_steps",
]
# fmt: on


def __getattr__(name: str) -> object:
    """Return a name that has moved to `launches`, with a warning."""
    if name not in launches.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} has moved to {launches.__name__}.", DeprecationWarning, stacklevel=2)
    return getattr(launches, name)
