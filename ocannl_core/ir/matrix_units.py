"""Matrix units: instructions that add products of several numbers to sums, described as data.

A backend states the units of a device in `Target.matrix_units`; rules choose schedules by these
descriptions. Four kinds differ in the place of the operands, from which their schedules follow:

- `DotProduct`: lanes of vector registers (VDPBF16PS, VPDPBUSD);
- `TileProduct`: tile registers of a processor (AMX);
- `MatrixInstruction`: registers of the threads of a subgroup (`mma.sync`);
- `AsynchronousProduct`: shared memory (WGMMA).

Products are exact. Sums are float32; those of dot products of integers are int32, exact modulo
2**32. A factor whose format a unit does not multiply is cut into
parts, narrower numbers whose sum it is; the product is then a sum of products of parts. A kind
`flushes` if it takes numbers below 2**-126 for zero, in factors and in sums; it `widens` if factors
of two formats become float32 when they are copied to where it reads them.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar, TypeVar

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float16, float32

PART_PRODUCTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: ((0, 0),),
    2: ((1, 0), (0, 1), (0, 0)),
    3: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)),
}
"""The parts of two factors that are multiplied, by the number of parts, in order: all but those
whose products round away. From one product to the next, one factor stays.
"""

TILE_FORMATS: dict[tuple[DType, int], DType] = {
    (bfloat16, 1): bfloat16,
    (float16, 1): float16,
    (float32, 3): bfloat16,
}
"""The number format of a factor in tile registers, by its format in memory and its parts, which
together have all of its digits.
"""


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a number in a mixed radix; each count of it is a step along a matrix.

    Attributes:
        count: The values of the digit.
        rows: The step along the rows of the matrix.
        columns: The step along its columns; one of the two is 0.
    """

    count: int
    rows: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Fragment:
    """The cells of a small matrix that each thread of a subgroup has in registers.

    The digits of a thread's number, and the digits of a place among the cells of that thread, say
    which cell it is. Every cell has one thread and one place.

    Attributes:
        threads: The digits of a thread's number in its subgroup, the most significant one first.
        places: The digits of a place; neighboring places share a register where they fit into it.
    """

    threads: tuple[Digit, ...]
    places: tuple[Digit, ...]

    @property
    def digits(self) -> tuple[Digit, ...]:
        return (*self.threads, *self.places)

    @property
    def rows(self) -> int:
        return prod(each.count for each in self.digits if each.rows)

    @property
    def columns(self) -> int:
        return prod(each.count for each in self.digits if each.columns)

    def cell(self, thread: int, place: int) -> tuple[int, int]:
        """Return the row and the column of a cell."""
        row = column = 0
        for number, digits in ((thread, self.threads), (place, self.places)):
            for each in reversed(digits):
                number, value = divmod(number, each.count)
                row += value * each.rows
                column += value * each.columns
        return row, column


@dataclass(frozen=True, slots=True)
class DotProduct:
    """An instruction that adds the products of neighboring terms to each lane of a vector.

    Attributes:
        dtype: The number format of the factors, or of one of them.
        terms: The terms that it adds to a lane.
        least_terms: The terms of a sum from which on it pays.
        other: The number format of the other factor, of the same size.
        sum_dtype: The number format of the sums.
    """

    dtype: DType
    terms: int
    least_terms: int
    other: DType | None = None
    sum_dtype: DType = float32
    widens: ClassVar[bool] = False

    @property
    def formats(self) -> frozenset[DType]:
        """The number formats of the factors."""
        return frozenset({self.dtype, self.other or self.dtype})

    @property
    def flushes(self) -> bool:
        return self.sum_dtype.is_float


@dataclass(frozen=True, slots=True)
class TileCosts:
    """The costs of products in tile registers, in cycles.

    Attributes:
        setup: To configure the registers for a kernel, and to release them.
        product: Of one product of tiles.
        copy: To copy one number of an operand, with its parts.
        transpose: In addition, for a number that is transposed while it is copied.
        store: To store one result.
        most_terms: The terms of a sum that runs in one piece: the tiles of a block of rows and of
            columns stay in the caches.
        block_rows: The rows of a block of partial results.
    """

    setup: float
    product: float
    copy: float
    transpose: float
    store: float
    most_terms: int
    block_rows: int


@dataclass(frozen=True, slots=True)
class TileProduct:
    """An instruction that adds a product of small matrices in tile registers to a third one.

    A tile of the first factor has rows of terms; a tile of the second factor has the terms in
    pairs: for each pair a row, with both terms of a column beside each other.

    Attributes:
        name: Its name, of a helper in generated code.
        dtype: The number format of the factors in memory.
        rows: The rows of a tile of sums.
        columns: The columns of a tile of sums.
        terms: The terms of an instruction.
        accumulators: The tile registers that hold sums; the others hold operands.
        costs: The cycles that it takes.
        parts: The narrower numbers that a factor is cut into, whose sum it is.
    """

    name: str
    dtype: DType
    rows: int
    columns: int
    terms: int
    accumulators: int
    costs: TileCosts
    parts: int = 1
    flushes: ClassVar[bool] = True
    widens: ClassVar[bool] = False
    sum_dtype: ClassVar[DType] = float32

    @property
    def shape(self) -> tuple[int, int, int]:
        """The rows, columns and terms of an instruction."""
        return self.rows, self.columns, self.terms

    @property
    def cell_bytes(self) -> int:
        """The bytes of a number in tiles, with all of its parts."""
        return self.parts * TILE_FORMATS[self.dtype, self.parts].nbytes


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """An instruction by which a subgroup of threads adds a product of small matrices to a third.

    Sums may be truncated.

    Attributes:
        name: Its name, part of the name of a helper in generated code.
        dtype: The number format of the factors in memory.
        left: The fragment of the first factor, of rows and terms.
        right: The fragment of the second factor, of terms and columns.
        sums: The fragment of the sums, of rows and columns; one digit of places along either.
        parts: The narrower numbers that a factor is cut into, whose sum it is.
    """

    name: str
    dtype: DType
    left: Fragment
    right: Fragment
    sums: Fragment
    parts: int = 1
    flushes: ClassVar[bool] = False
    widens: ClassVar[bool] = True
    sum_dtype: ClassVar[DType] = float32

    @property
    def terms(self) -> int:
        return self.left.columns


@dataclass(frozen=True, slots=True)
class AsynchronousProduct:
    """An instruction by which a group of threads adds a product of two small matrices in shared
    memory to a third one in registers, while the threads go on.

    Sums may be truncated. Both factors lie in shared memory in rows of `row_bytes`, whose parts a
    copy engine exchanges in a fixed way; rows run along the terms, or across them. The device has
    that copy engine.

    Attributes:
        name: Its name, part of the name of a helper in generated code.
        dtype: The number format of the factors.
        sums: The fragment of the sums, of all rows and the fewest columns; further columns are the
            same fragment again.
        columns: The numbers of columns that an instruction may have.
        terms: The terms of an instruction.
        row_bytes: The bytes of a row of a factor in shared memory.
    """

    name: str
    dtype: DType
    sums: Fragment
    columns: tuple[int, ...]
    terms: int
    row_bytes: int
    flushes: ClassVar[bool] = False
    widens: ClassVar[bool] = False
    sum_dtype: ClassVar[DType] = float32

    @property
    def depth(self) -> int:
        """The number of terms of a stage, which fill a row that runs along them."""
        return self.row_bytes // self.dtype.nbytes

    @property
    def threads(self) -> int:
        """The threads of a group."""
        return prod(each.count for each in self.sums.threads)


MatrixUnit = DotProduct | TileProduct | MatrixInstruction | AsynchronousProduct
Unit = TypeVar("Unit", DotProduct, TileProduct, MatrixInstruction, AsynchronousProduct)
