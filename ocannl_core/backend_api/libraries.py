"""Products that a library of a vendor computes, in the place of kernels."""

from ocannl_core.ir.kernels.library_product import (
    LibraryCall,
    LibraryProduct,
    ProductAxis,
    ProductOperand,
    ProductPosition,
)

__all__ = ["LibraryCall", "LibraryProduct", "ProductAxis", "ProductOperand", "ProductPosition"]
