"""Status of products: the units that compute the products of a plan, and why no faster unit does.

A product is a sum of products of two factors that vary along different axes: a product of matrices
or vectors, or a convolution. The rule that chooses the schedule of a nest tries units from the
fastest one on; each that it passes over leaves its obstacle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp

if TYPE_CHECKING:
    from ocannl_core.ir.kernels.nest import Nest


class ProductUnit(Enum):
    """A way to compute a product, the fastest one first; the value is its name for people."""

    ASYNCHRONOUS_PRODUCTS = "asynchronous products"
    MATRIX_INSTRUCTIONS = "matrix instructions"
    REGISTER_TILES = "register tiles"
    SCALAR = "scalar code"


COMMON_UNITS = (ProductUnit.MATRIX_INSTRUCTIONS, ProductUnit.REGISTER_TILES)
"""Units whose absence is an obstacle, too: asynchronous products are a kind of the former."""


class Obstacle(Enum):
    """The reason why a unit does not compute a product; the value is a sentence for people."""

    ABSENT = "the device has none"
    SETTING = "the setting `asynchronous_products` is off"
    ACCUMULATION = "the setting `accumulation` excludes their rounding"
    FORMAT = "none takes these number formats"
    TERM = "a factor is a gather or an inner sum"
    AXES = "no factor has rows and the other one columns, with common terms"
    SHIFTING = "the nest adds to overlapping windows of its result"
    EXTENT = "the end of an axis is known at run time only"
    SIZE = "there are too few rows, columns or terms"
    ALIGNMENT = "the rows of a factor are not aligned in memory for copies"
    RESOURCES = "no tile fits into registers and shared memory"
    ORDER = "narrow sums keep their order"
    EXPRESSION = "some expression has no vector form"
    COST = "other code takes fewer cycles"
    ROWS = "threads compute each row together"
    TUNED = "tuning found another schedule"


Refusal = tuple[ProductUnit, Obstacle]
"""A unit that is passed over, with the reason."""


@dataclass(frozen=True, slots=True)
class ProductStatus:
    """The unit that computes a product."""

    result: TensorNode
    unit: ProductUnit
    refusals: tuple[Refusal, ...] = ()
    """The faster units, each with the reason why it does not."""

    @property
    def obstacle(self) -> Obstacle | None:
        """The reason why the next faster unit does not compute it; None for the fastest unit."""
        return self.refusals[-1][1] if self.refusals else None

    def __str__(self) -> str:
        refusals = "".join(
            f"; no {unit.value}: {why.value}"
            for unit, why in self.refusals
            if why is not Obstacle.ABSENT
        )
        return f"{self.result.name} by {self.unit.value}{refusals}"


def is_product(nest: Nest) -> bool:
    """Return True if a nest is a sum of products of two factors that vary along different axes."""
    reduction = nest.reduction
    if reduction is None or reduction.op is not BinaryOp.ADD or len(reduction.factors) != 2:
        return False
    first, second = nest.factor_variables
    reduced = {axis.var for axis in nest.reduced if axis.extent > 1}
    return first != second and not reduced.isdisjoint(first) and not reduced.isdisjoint(second)


def unit_of(schedule: transforms.Schedule | None) -> ProductUnit:
    """Return the unit by which a product has a schedule; None for plain loops."""
    kinds = frozenset(map(type, schedule or ()))
    if transforms.Ring in kinds:
        return ProductUnit.ASYNCHRONOUS_PRODUCTS
    if transforms.TileMatrix in kinds:
        return ProductUnit.MATRIX_INSTRUCTIONS
    # the threads of a block share the operands of their register tiles
    threads, lanes = (
        transforms.axes_of_kind(schedule or (), kind) for kind in (AxisKind.BLOCK, AxisKind.VECTOR)
    )
    has_tiles = transforms.Pack in kinds if threads else bool(lanes)
    return ProductUnit.REGISTER_TILES if has_tiles else ProductUnit.SCALAR


def product_counts(statuses: Iterable[ProductStatus]) -> Counter[ProductUnit]:
    """Return the number of products by unit; 0 for each other unit."""
    return Counter(each.unit for each in statuses)
