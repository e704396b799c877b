"""Rendering of loops that instructions of a device execute as a whole, for dialects of C."""

from ocannl_core.codegen.dialect import DeviceLoops
from ocannl_core.codegen.text.addresses import Addresses
from ocannl_core.codegen.text.names import KernelNames
from ocannl_core.codegen.text.scalar_replacement import Position
from ocannl_core.codegen.text.writer import KernelWriter

__all__ = ["Addresses", "DeviceLoops", "KernelNames", "KernelWriter", "Position"]
