"""Reductions along axes that `axis=` counts, as in NumPy.

`axis` is an integer, several, or None for all; negative ones count from the end. `keepdims=True`
leaves axes of size 1. A sum over no cells is 0, a maximum minus infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.assignments.nodes import Constant, EmbedIndex
from ocannl_core.ir.indexing import variables
from ocannl_core.ir.numbers.dtypes import DType, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.shape.language.shape_terms import closed_shape
from ocannl_core.shape.projections.projections import project
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.assignment import neutral
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations import contractions
from ocannl_core.tensor.operations.activations import as_float, formats_of
from ocannl_core.tensor.operations.axes import (
    AxisArgument,
    apply,
    axes_of,
    operand,
    require_shapes,
    sized_axes_of,
    write_shape,
)
from ocannl_core.tensor.operations.literals import offsets
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.dimension import count
from ocannl_core.tensor.primitives.operands import as_tensor, constant, fill_tensor
from ocannl_core.tensor.primitives.operation import Operation


def product_gradient(g: Any, g1: Any, v1: Any, zeros_lhs: Any, rest_lhs: Any) -> None:
    """Add the gradient of a product to the gradients of its factors, zeros among them."""
    zeros_lhs[neutral] += pointwise.equal(v1, 0.0)
    rest_lhs[neutral, pointwise.mul] = pointwise.where(v1 == 0.0, 1.0, v1)
    of_others = pointwise.where(zeros_lhs == 0.0, rest_lhs / v1, 0.0)
    of_zero = pointwise.where(zeros_lhs == 1.0, rest_lhs, 0.0)
    g1 += g * pointwise.where(v1 == 0.0, of_zero, of_others)


_sum = contractions.sum_along
_greatest = contractions.maximum_along
_least = pointwise.lift(
    "min", UnaryOp.IDENTITY, contractions.selected_gradient, combine=BinaryOp.MIN
)
_disjunction = pointwise.lift("any", UnaryOp.IDENTITY, combine=BinaryOp.OR)
_conjunction = pointwise.lift("all", UnaryOp.IDENTITY, combine=BinaryOp.AND)

_ALL = "...|...->... => |->"
"""All cells, of any number of axes, to one; it is broadcast like a kept axis."""


@dataclass(frozen=True, slots=True)
class AxisReduction:
    """A reduction along some axes of a tensor; `kept` leaves axes of size 1."""

    name: str
    x: Tensor
    spec: str
    kept: str

    def __call__(
        self, operation: Operation, x: Tensor, *, kept: bool = False, dtype: DType | None = None
    ) -> Tensor:
        """Return a tensor of the same axes, reduced."""
        spec = self.kept if kept else self.spec
        return apply(operation, (x,), spec, name=self.name, dtype=dtype)


def _reduction(name: str, x: Any, axis: AxisArgument, keepdims: bool) -> AxisReduction:
    given = operand(x, name)
    if axis is None and not keepdims:
        return AxisReduction(name, given, _ALL, _ALL)
    axes = axes_of(given, name)
    positions = axes.positions(axis)
    kept = f"{axes.spec} => {axes.replaced(dict.fromkeys(positions, '0'))}"
    dropped = f"{axes.spec} => {axes.replaced(dict.fromkeys(positions))}"
    return AxisReduction(name, given, kept if keepdims else dropped, kept)


def count_terms(total: Tensor, check: Callable[[int], None] | None = None) -> Tensor:
    """Return the number of terms of each cell of a sum: a constant once shapes are closed, unless
    an extent at run time is among them.

    Args:
        check: A function that refuses a constant number by an error.
    """
    definition = total.definition
    assert isinstance(definition, Applied)
    logic, operands, origin = definition.logic, definition.operands, total.origin

    def terms() -> Constant | EmbedIndex:
        found = project(logic, total.shape, [operand.shape for operand in operands], origin)
        kept = {var for index in found.lhs for var in variables(index)}
        reduced = [(var, extent) for var, extent in found.domain if var not in kept]
        size = math.prod(extent for _, extent in reduced)
        extents = [var.size for var, _ in reduced if var.size is not None]
        if extents:
            return count(size, extents)
        if check is not None:
            check(size)
        return Constant(float(size))

    return fill_tensor(total.session, terms, closed_shape(), total.dtype, "count")


def in_format_of(x: Tensor, result: Tensor) -> Tensor:
    """Return a result that was computed in `float32` in the format of its operand."""
    return pointwise.cast(result, x.dtype) if x.dtype.is_narrow else result


def sum(
    x: Any, axis: AxisArgument = None, *, keepdims: bool = False, dtype: DType | str | None = None
) -> Any:
    """Return the sum of cells along axes.

        oc.sum(x)                           # all cells: one number
        oc.sum(x, axis=-1)                  # along the last axis: b|n to b|
        oc.sum(x, axis=(0, 1), keepdims=True)

    Args:
        x: A tensor, whose number of axes is known.
        axis: The axes, counted in buffer order (batch, output, input), from the end if negative;
            all when not given.
        keepdims: True to leave axes of size 1.
        dtype: The number format of the sum, in which it is accumulated. When not given it is the
            format of `x`; `int32` or `uint32` for integers of less than 32 bits and for `bool`.

    Raises:
        UsageError: if there is no such axis, or the number of axes is not known.
    """
    found = _reduction("sum", x, axis, keepdims)
    return apply(_sum, (found.x,), found.spec, name="sum", dtype=dtype)


def mean(
    x: Any, axis: AxisArgument = None, *, keepdims: bool = False, logic: str | None = None
) -> Any:
    """Return the mean of cells along axes; the mean of integers is a float.

        oc.mean(x, axis=-1)
        oc.mean(x, logic="...|... => ...|0")         # over the output axes: shape b|n --> b|1

    The number of cells follows from the inferred shape. It is a constant of the compiled program,
    or, for an axis whose extent is known at run time, the value of the call.

    Args:
        axis: The axes; all when not given.
        keepdims: True to leave axes of size 1.
        logic: In place of `axis`, a specification that sums the cells.
    """
    if logic is not None:
        _check_logic("mean", axis, None, keepdims=keepdims)
        return mean_along(logic, as_float(operand(x, "mean")))
    found = _reduction("mean", x, axis, keepdims)
    cells = as_float(found.x)
    total = found(_sum, cells, dtype=formats_of(cells)[0])
    return in_format_of(cells, total / count_terms(total))


def var(x: Any, axis: AxisArgument = None, *, keepdims: bool = False, ddof: float = 0) -> Any:
    """Return the variance of cells along axes: the mean squared distance from the mean.

    Args:
        axis: The axes; all when not given.
        keepdims: True to leave axes of size 1.
        ddof: The number subtracted from the count in the divisor: 1 for an unbiased estimate.
    """
    reduction = _reduction("var", x, axis, keepdims)
    cells = as_float(reduction.x)
    return in_format_of(cells, _variance(reduction, cells, ddof))


def std(x: Any, axis: AxisArgument = None, *, keepdims: bool = False, ddof: float = 0) -> Any:
    """Return the square root of the variance, with gradient 0 at 0; arguments as for `var`."""
    reduction = _reduction("std", x, axis, keepdims)
    cells = as_float(reduction.x)
    return in_format_of(cells, _root(_variance(reduction, cells, ddof), 0.5))


def _variance(reduction: AxisReduction, cells: Tensor, ddof: float) -> Tensor:
    wide, _ = formats_of(cells)
    center = reduction(_sum, cells, kept=True, dtype=wide)
    distance = pointwise.sub(cells, center / count_terms(center), dtype=wide)
    total = reduction(_sum, distance * distance)
    count = count_terms(total)
    result: Tensor = total / (count if ddof == 0 else count - ddof)
    return result


def max(x: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the greatest cell along axes, NaN if one is NaN. The gradient goes to the first of
    equal cells. Arguments are as for `sum`.
    """
    found = _reduction("max", x, axis, keepdims)
    return found(_greatest, found.x)


def min(x: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the least cell along axes, NaN if one is NaN. The gradient goes to the first of equal
    cells. Arguments are as for `sum`.
    """
    found = _reduction("min", x, axis, keepdims)
    return found(_least, found.x)


def prod(x: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the product of cells along axes; of integers of less than 32 bits in `int32` or
    `uint32`. Arguments are as for `sum`.
    """
    found = _reduction("prod", x, axis, keepdims)
    positions = None if found.spec == _ALL else axes_of(found.x, "prod").positions(axis)
    return found(_product_along(positions, keepdims), found.x)


@lru_cache(maxsize=256)
def _product_along(positions: tuple[int, ...] | None, keepdims: bool) -> Operation:
    """Return the product along axes, with its gradient as an expression.

    Backpropagation divides the product by each cell, in one pass. The derivative of that is wrong
    beside a cell of 0, so the expression, which may be differentiated, divides by none.
    """

    def gradient(x: Tensor, g: Tensor) -> tuple[Tensor]:
        axes = axes_of(x, "prod")
        reduced = axes.positions(positions)
        others, product = constant(1.0, x.session, dtype=x.dtype), x
        for position in reduced:
            is_line = axes.extent(position) is None
            of_others = functions["products_of_others"] if is_line else _products_of_others
            others = others * of_others(product, position)
            product = prod(product, position, keepdims=True)
        left = axes.replaced(dict.fromkeys(reduced, "0" if keepdims else None))
        spec = f"{axes.spec}; {left} => {axes.spec}"
        return (apply(pointwise.mul, (others, g), spec, name="prod"),)

    made = pointwise.lift("prod", UnaryOp.IDENTITY, product_gradient, combine=BinaryOp.MUL)
    return replace(made, gradient_expression=gradient)


def _products_of_others(x: Tensor, position: int) -> Tensor:
    """Return, for each cell, the product of the other cells along an axis of an extent at run time.

    It multiplies all pairs of cells, because running products from the end begin at the maximum.
    """
    own = axes_of(x, "prod")
    cell, other = own.names[position], "other"
    along, pairs = (write_shape(names, (0, len(names), 0)) for names in ([cell], [cell, other]))
    places = offsets(dtype=int32, output=[...])
    require_shapes(f"{own.spec}; {along}", x, places)
    spec = f"{along}; {along.replace(cell, other)} => {pairs}"
    is_same = apply(pointwise.equal, (places, places), spec, name="prod")
    wide = own.replaced({position: f"{cell}, {other}"})
    spec = f"{pairs}; |->; {own.replaced({position: other})} => {wide}"
    one = constant(1.0, x.session, dtype=x.dtype)
    result: Tensor = prod(
        apply(pointwise.where, (is_same, one, x), spec, name="prod"), position + 1
    )
    return result


def any(x: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return 1 where a cell along the axes is not 0, else 0, in the format of `x`. Arguments are as
    for `sum`.
    """
    found = _reduction("any", x, axis, keepdims)
    return found(_disjunction, found.x)


def all(x: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return 1 where no cell along the axes is 0, else 0, in the format of `x`. Arguments are as
    for `sum`.
    """
    found = _reduction("all", x, axis, keepdims)
    return found(_conjunction, found.x)


def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the position of the greatest cell along an axis, as an integer of 32 bits: the first
    of equal cells, or the first NaN, if any.

    Args:
        axis: The axis; when not given, the position counts all cells in row-major order.
        keepdims: True to leave an axis of size 1.
    """
    return _position("argmax", _greatest, x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the position of the least cell along an axis; arguments are as for `argmax`."""
    return _position("argmin", _least, x, axis, keepdims)


def _position(name: str, extreme: Operation, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    reduction = _reduction(name, x, axis, keepdims)
    cells = reduction.x
    is_chosen = pointwise.equal(cells, reduction(extreme, cells, kept=True))
    if cells.dtype.is_float:
        is_chosen = pointwise.logical_or(is_chosen, pointwise.not_equal(cells, cells))
    last = constant(2**31 - 1, cells.session, dtype=int32)
    if axis is None:
        chosen = pointwise.where(is_chosen, offsets(dtype=int32), last)
        return reduction(_least, chosen)
    axes = sized_axes_of(cells, name)
    position = axes.position(axis)
    along = write_shape([axes.names[position]], (0, 1, 0))
    spec = f"{axes.spec}; {along}; |-> => {axes.spec}"
    places = offsets(dtype=int32, output=[...])
    if axes.size(position) is not None:
        require_shapes(f"{axes.spec}; {along}", cells, places)
    return reduction(_least, apply(pointwise.where, (is_chosen, places, last), spec, name=name))


def _shifted(reduction: AxisReduction, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return cells less their maximum, so that no exponential overflows, and the maximum, or 0
    where it is infinite. The maximum passes no gradient on, as results do not depend on it.
    """
    greatest = pointwise.stop_gradient(reduction(_greatest, x, kept=True))
    is_finite = pointwise.equal(greatest - greatest, 0.0)  # also in formats without infinities
    subtracted = pointwise.where(is_finite, greatest, 0.0)
    return pointwise.sub(x, subtracted, dtype=formats_of(x)[0]), subtracted


def _divide_by_sum(reduction: AxisReduction, x: Tensor, scale: float) -> Tensor:
    wide, narrow = formats_of(x)
    scores = x if scale == 1 else pointwise.mul(x, scale, dtype=wide)
    exponentials = pointwise.exp(_shifted(reduction, scores)[0])
    # the maximum alone makes the sum 1, or a little less where it is rounded
    total = pointwise.maximum(reduction(_sum, exponentials, kept=True), 0.5)
    result: Tensor = pointwise.div(exponentials, total, dtype=narrow)
    return result


def softmax(
    x: Any, axis: AxisArgument = -1, *, logic: str | None = None, scale: float = 1.0
) -> Any:
    """Return `exp(scale * x)` divided by its sum along axes, in the shape of `x`.

        oc.softmax(scores)                                                # along the last axis
        oc.softmax(scores, logic="... s | t -> h => ... s | 0 -> h")      # along the axis t

    The maximum is subtracted first, so that no exponential overflows. The result does not depend on
    it, and so no gradient flows through it. Cells of minus infinity have weight 0. Where all cells
    are minus infinity, all weights are 0, and so are the gradients.

    Args:
        axis: The axes that are counted.
        logic: In place of `axis`, a reduction of one operand, with 0 in the result for the axes
            that are summed.
        scale: A factor; the inverse of the temperature.
    """
    if logic is not None:
        _check_logic("softmax", axis, -1)
        return softmax_along(logic, x, scale)
    reduction = _reduction("softmax", x, axis, keepdims=False)
    return _divide_by_sum(reduction, as_float(reduction.x), scale)


def _check_logic(
    name: str, axis: AxisArgument, default: AxisArgument, *, keepdims: bool = False
) -> None:
    if axis != default or keepdims:
        raise UsageError.at_caller(
            "Axes are counted, or named by a specification.",
            found=f"oc.{name} with logic= beside "
            + ("keepdims=" if keepdims else f"axis={axis!r}"),
            fix="leave out one of them; a 0 in the result of the specification keeps an axis",
        )


def wide_mean(spec: str, x: Tensor) -> Tensor:
    """Return `mean_along(spec, x)`, in `float32` where `x` is a narrow float."""
    total = as_tensor(contractions.einsum(spec, x, dtype=formats_of(x)[0]), sessions.current())
    mean: Tensor = total / count_terms(total)
    return mean


def mean_along(spec: str, x: Tensor) -> Tensor:
    """Return the mean of the cells that a specification sums up.

        mean("...|... => ...|0", x)          # over the output axes: shape b|n --> b|1

    The number of cells follows from the inferred shape. It is a constant of the compiled program,
    or, for an axis whose extent is known at run time, the value of the call.
    """
    return in_format_of(x, wide_mean(spec, x))


def softmax_along(spec: str, x: Tensor, scale: float) -> Tensor:
    """Return `exp(scale * x)` divided by its sum along a specification that leaves axes of size
    1.
    """
    return _divide_by_sum(AxisReduction("softmax", x, spec, spec), x, scale)


def log_softmax(x: Any, axis: AxisArgument = -1) -> Any:
    """Return the logarithm of `softmax(x, axis)`, without rounding small weights to 0."""
    reduction = _reduction("log_softmax", x, axis, keepdims=False)
    cells = as_float(reduction.x)
    shifted, _ = _shifted(reduction, cells)
    total = pointwise.maximum(reduction(_sum, pointwise.exp(shifted), kept=True), 0.5)
    return pointwise.sub(shifted, pointwise.log(total), dtype=formats_of(cells)[1])


def logsumexp(x: Any, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the logarithm of the sum of `exp(x)` along axes, without overflow. Arguments are as
    for `sum`.
    """
    reduction = _reduction("logsumexp", x, axis, keepdims)
    cells = as_float(reduction.x)
    shifted, subtracted = _shifted(reduction, cells)
    total = reduction(_sum, pointwise.exp(shifted))
    # one cell of each sum is 1 unless all cells are minus infinity
    logarithm = pointwise.log(pointwise.maximum(total, 0.5))
    logarithm = pointwise.where(pointwise.equal(total, 0.0), -math.inf, logarithm)
    greatest = reduction(_greatest, subtracted)
    return pointwise.add(logarithm, greatest, dtype=formats_of(cells)[1])


def norm(x: Any, ord: float = 2, axis: AxisArgument = None, *, keepdims: bool = False) -> Any:
    """Return the norm of the cells along axes, taken as a vector.

    Args:
        ord: 2 for the square root of the sum of squares; 1 for the sum of sizes; `math.inf` and
            `-math.inf` for the greatest and the least size; `p` for `sum(|x|**p)**(1/p)`. The
            gradient is 0 for cells of 0.
        axis: The axes; all when not given.
        keepdims: True to leave axes of size 1.
    """
    if not isinstance(ord, Real) or ord != ord or ord == 0:
        raise UsageError.at_caller(
            "The order of a norm is a number, not 0, or an infinity.",
            found=f"ord={ord!r}",
            fix="ord=2 is the square root of the sum of squares, of a matrix, too",
        )
    reduction = _reduction("norm", x, axis, keepdims)
    given = as_float(reduction.x)
    return in_format_of(given, _norm(reduction, given, ord))


def _norm(reduction: AxisReduction, cells: Tensor, ord: float) -> Tensor:
    wide, _ = formats_of(cells)
    if ord == 2:
        return _root(reduction(_sum, pointwise.mul(cells, cells, dtype=wide)), 0.5)
    sizes = pointwise.abs(cells)
    if math.isinf(ord):
        return reduction(_greatest if ord > 0 else _least, sizes)
    if ord == 1:
        return reduction(_sum, sizes, dtype=wide)
    # below order 1 the slope at 0 is infinite; it counts as 0
    is_zero = pointwise.equal(sizes, 0.0)
    powers = pointwise.power_primitive(pointwise.where(is_zero, 1.0, sizes), ord, dtype=wide)
    powers = pointwise.where(is_zero, 0.0 if ord > 0 else math.inf, powers)
    return _root(reduction(_sum, powers), 1 / ord)


def _root(total: Tensor, exponent: float) -> Tensor:
    """Return a power of a sum; where the sum is 0, so is the gradient."""
    is_zero = pointwise.equal(total, 0.0)
    inside = pointwise.where(is_zero, 1.0, total)
    root = (
        pointwise.sqrt(inside) if exponent == 0.5 else pointwise.power_primitive(inside, exponent)
    )
    result: Tensor = pointwise.where(is_zero, total, root)
    return result
