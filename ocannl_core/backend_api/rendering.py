"""Rendering of loops that instructions of a device execute as a whole, for dialects of C."""

from ocannl_core.base.renamed import find_old_names
from ocannl_core.codegen.dialect import DeviceLoops
from ocannl_core.codegen.rendering.render_state import NotVectorizedError, RenderState
from ocannl_core.codegen.text.addresses import Addresses
from ocannl_core.codegen.text.names import KernelNames
from ocannl_core.codegen.text.scalar_replacement import Position, stride_along
from ocannl_core.codegen.text.writer import KernelWriter

# fmt: off
__all__ = [
    "Addresses", "DeviceLoops", "KernelNames", "KernelWriter", "NotVectorizedError", "Position",
    "RenderState", "stride_along",
]
# fmt: on

__getattr__ = find_old_names(__name__)
