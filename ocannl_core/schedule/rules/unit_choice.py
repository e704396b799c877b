"""The matrix unit that multiplies the factors of a sum, by the descriptions of the target."""

from __future__ import annotations

from ocannl_core.ir.kernels.nest import Reduction
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.loops.nodes import Gather, Scoped
from ocannl_core.ir.loops.traverse import contains
from ocannl_core.ir.matrix_units import DotProduct, MatrixUnit, Unit
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target


def find_unit(kind: type[Unit], reduction: Reduction, target: Target) -> Unit | Obstacle:
    """Return the unit of a kind that multiplies the factors of a sum, as far as its rounding is
    allowed; or the reason why there is none.
    """
    units = target.units(kind)
    if not units:
        return Obstacle.ABSENT
    if reduction.op is not BinaryOp.ADD or len(reduction.factors) != 2:
        return Obstacle.AXES
    units = tuple(each for each in units if each.sum_dtype is reduction.dtype)
    if not units:
        return Obstacle.FORMAT
    is_shared = target.thread_blocks is not None
    if is_shared and contains(reduction.term, (Gather, Scoped)):
        return Obstacle.TERM
    formats = {unwidened(factor).dtype for factor in reduction.factors}
    if len(formats) > 1 and kind.widens:
        formats = {float32}
    unit = next((each for each in units if _formats(each) == formats), None)
    if unit is None:
        return Obstacle.FORMAT
    if unit.sum_dtype.is_integer:  # exact modulo 2**32 in any order
        return unit
    rounds_alone = reduction.is_widened and unit.dtype.is_narrow and not unit.flushes
    return unit if reduction.is_fast or rounds_alone else Obstacle.ACCUMULATION


def _formats(unit: MatrixUnit) -> frozenset[DType]:
    """Return the number formats of the factors that a unit multiplies."""
    return unit.formats if isinstance(unit, DotProduct) else frozenset({unit.dtype})
