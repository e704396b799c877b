"""Products as backends see them that call libraries of vendors.

    result[i, j] = sum over k of left[i, k] * right[k, j]       a product of matrices
    result[y, x, o] = sum over v, u, c of image[y + v, x + u, c] * weights[o, v, u, c]

A product has axes, and for each operand the position along each of its axes as a sum of multiples
of them: batches of products, transposed operands, strides and convolutions have the same form.
"""

from __future__ import annotations

from collections.abc import Callable

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.loops.nodes import Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType


@dataclass(frozen=True, slots=True)
class ProductAxis:
    """An axis of a product; its positions count from 0.

    Attributes:
        name: A letter.
        is_contracted: True for an axis of terms, which the result does not have.
    """

    name: str
    extent: int
    is_contracted: bool


@dataclass(frozen=True, slots=True)
class ProductPosition:
    """A position along one axis of an operand: a sum of multiples of positions along axes of the
    product, and a constant.

    Attributes:
        terms: The names of the axes of the product, each with its factor.
        offset: The constant; below 0 in a margin, whose cells hold zeros.
    """

    terms: tuple[tuple[str, int], ...]
    offset: int

    @property
    def axis(self) -> str:
        """The axis of the product that it equals; empty if it is another position."""
        return self.terms[0][0] if self.offset == 0 and self._is_axis else ""

    @property
    def _is_axis(self) -> bool:
        return len(self.terms) == 1 and self.terms[0][1] == 1


@dataclass(frozen=True, slots=True)
class ProductOperand:
    """A factor or the result of a product.

    Attributes:
        info: Its format, extents and margins: cells are in row-major order.
        positions: The position along each of its axes.
    """

    node: TensorNode
    info: NodeInfo
    positions: tuple[ProductPosition, ...]

    @property
    def axes(self) -> str:
        """The axes of the product along its own axes, as letters of an einsum; empty if a position
        is none of them, as in a convolution.
        """
        names = [each.axis for each in self.positions]
        return "".join(names) if all(names) else ""


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """A sum of products of two operands, for every cell of the result.

    Attributes:
        result: The result, every cell of which is overwritten.
        dtype: The format of the sum.
        epilogue: Stores that follow for each cell, which read the sum as a variable; empty if the
            result is the sum.
        operands: The nodes that the epilogue reads.
        outputs: The nodes that the epilogue writes.
        title: A description for readers.
    """

    axes: tuple[ProductAxis, ...]
    left: ProductOperand
    right: ProductOperand
    result: ProductOperand
    dtype: DType
    epilogue: tuple[Store, ...] = ()
    operands: tuple[TensorNode, ...] = ()
    outputs: tuple[TensorNode, ...] = ()
    title: str = ""

    @property
    def batch(self) -> tuple[ProductAxis, ...]:
        """The axes that both factors and the result have."""
        return tuple(
            axis
            for axis in self.axes
            if not axis.is_contracted and _has(self.left, axis) and _has(self.right, axis)
        )

    @property
    def contracted(self) -> tuple[ProductAxis, ...]:
        """The axes of the terms."""
        return tuple(axis for axis in self.axes if axis.is_contracted)

    @property
    def einsum(self) -> str:
        """The product in the notation of `numpy.einsum`; empty for convolutions."""
        parts = self.left.axes, self.right.axes, self.result.axes
        return f"{parts[0]},{parts[1]}->{parts[2]}" if all(parts) else ""


def _has(operand: ProductOperand, axis: ProductAxis) -> bool:
    return any(axis.name == name for each in operand.positions for name, _ in each.terms)


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """The call of a library in the place of a product.

    Attributes:
        op: Gets the arrays of the factors, left and right, and overwrites that of the result.
        has_epilogue: True if it computes the epilogue, too: its inputs are then the factors and
            `LibraryProduct.operands`, and its outputs `LibraryProduct.outputs`.
    """

    op: ExternalOp
    has_epilogue: bool = False


OfferProduct = Callable[[LibraryProduct], LibraryCall | None]
"""A function that returns the call of a library for a product; None to compute it by kernels."""
