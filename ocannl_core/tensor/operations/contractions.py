"""Operations that reduce or rearrange axes: composition, einsum, maxima, slices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.translation.einsum import operand_name
from ocannl_core.shape.translation.logic import Slice
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.assignment import neutral
from ocannl_core.tensor.graph.definitions import Declared
from ocannl_core.tensor.graph.slots import Slot, SlotApplication, slot_application
from ocannl_core.tensor.graph.subscript_keys import key_text, parse_keys, parts_of
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.dimension import Capture
from ocannl_core.tensor.primitives.operation import Operation, define_operation
from ocannl_core.tensor.primitives.pointwise_operations import (
    add,
    first,
    identity,
    lift,
    primitive_gradient,
)
from ocannl_core.tensor.primitives.pointwise_operations import where as where_pointwise
from ocannl_core.tensor.primitives.specifications import composite_operation, covers_result


def _sum_of_triple_products(v: Any, v1: Any, v2: Any, v3: Any) -> None:
    v[neutral] += v1 * v2 * v3


def _triple_product_gradient(g: Any, g1: Any, g2: Any, g3: Any, v1: Any, v2: Any, v3: Any) -> None:
    g1 += g * v2 * v3
    g2 += g * v1 * v3
    g3 += g * v1 * v2


def _outer_sum_gradient(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    # once for every pair of cells: the other operand determines the pairs
    g1 += first(g, v2)
    g2 += first(g, v1)


def selected_gradient(g: Any, g1: Any, selected: Any) -> None:
    """Add the gradient of a maximum or minimum to the gradients of the selected cells."""
    g1 += where_pointwise(selected, g, 0.0)


def _maximum_of_sums_gradient(g: Any, g1: Any, g2: Any, selected: Any) -> None:
    g1 += where_pointwise(selected, g, 0.0)
    g2 += where_pointwise(selected, g, 0.0)


def _fma_gradient(g: Any, g1: Any, g2: Any, g3: Any, v1: Any, v2: Any) -> None:
    g1 += g * v2
    g2 += g * v1
    g3 += g


def _concatenate(v: Any, vs: Any) -> None:
    for operand in vs:
        v[:] = operand


def _concatenate_among_zeros(v: Any, vs: Any) -> None:
    v[:] = 0.0
    _concatenate(v, vs)


def _concatenate_gradient(g: Any, gs: Any) -> None:
    for operand in gs:
        operand += g


def _sum_of(name: str, primitive: Op, logic: str | None = None) -> Operation:
    """Return the sum of a primitive's values, with the gradient of the primitive for each term."""
    gradient = primitive_gradient(primitive)
    return lift(name, primitive, gradient, combine=BinaryOp.ADD, logic=logic)


matmul = _sum_of("matmul", BinaryOp.MUL, "@")
exchange_rows = lift("transpose", UnaryOp.IDENTITY, identity.gradient, logic="T")
sum_along = _sum_of("einsum", UnaryOp.IDENTITY)
_einsum_of_three = define_operation(
    "einsum",
    forward=_sum_of_triple_products,
    gradient=_triple_product_gradient,
    combine=BinaryOp.ADD,
)
_EINSUMS = (sum_along, _sum_of("einsum", BinaryOp.MUL), _einsum_of_three)
_outer_sum = lift("outer_sum", BinaryOp.ADD, _outer_sum_gradient, combine=BinaryOp.ADD)
_tropical = lift("tropical", BinaryOp.ADD, _maximum_of_sums_gradient, combine=BinaryOp.MAX)
maximum_along = lift("einmax", UnaryOp.IDENTITY, selected_gradient, combine=BinaryOp.MAX)
where_along = _sum_of("where", TernaryOp.WHERE)
_fma = lift("fma", TernaryOp.FMA, _fma_gradient)
_slice = lift("slice", UnaryOp.IDENTITY, identity.gradient)


def fma(
    a: Any,
    b: Any,
    c: Any,
    *,
    logic: str = "@",
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return `a @ b + c`; with `logic="."`, and inside the code of an operation, the fused
    primitive `a * b + c`, which rounds once.
    """
    if any(isinstance(each, Slot | SlotApplication) for each in (a, b, c)):
        return slot_application(TernaryOp.FMA, (a, b, c))
    if logic == "@":
        product = matmul(a, b, dtype=dtype)
        return add(product, c, label=label, dtype=dtype, requires_grad=requires_grad)
    return _fma(a, b, c, logic=logic, label=label, dtype=dtype, requires_grad=requires_grad)


def _along(
    operation: Operation,
    operands: tuple[Any, ...],
    spec: str,
    padded: bool | None,
    values: Mapping[str, int] | None,
    capture: Capture,
    label: str | None,
    dtype: DType | str | None,
    requires_grad: bool | None,
) -> Any:
    """Return an operation applied along a specification."""
    return operation(
        *operands,
        logic=spec,
        padded=padded,
        values=values,
        capture=capture,
        label=label,
        dtype=dtype,
        requires_grad=requires_grad,
    )


def where(
    condition: Any,
    a: Any,
    b: Any,
    *,
    logic: str | None = None,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
    projections: str | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return `a` where the condition is not 0, and `b` elsewhere.

        oc.where(x > 0, x, 0.0)

    The gradient of a cell flows to the operand that it is taken from. With a specification,
    `oc.where(c, a, b, logic="i; ij; j => i")`, cells are selected first and then summed over the
    axes that are not in the result. In recorded code the assignment states the reduction.

    Args:
        condition: A tensor of any number format, NaN being not 0. It has no part in the format of
            the result.
        a: A tensor or a number; the three operands broadcast row by row.
        b: A tensor or a number.
        logic: The correspondence of axes; the other arguments are as for all operations on cells,
            such as `add`.

    Raises:
        ShapeError: if the shapes do not fit.
    """
    operands = (condition, a, b)
    is_slot = any(isinstance(each, Slot | SlotApplication) for each in operands)
    is_recorded = sessions.current().recorder is not None
    if logic is None or logic == "." or is_slot or is_recorded:
        return where_pointwise(
            *operands,
            logic=logic,
            padded=padded,
            values=values,
            projections=projections,
            capture=capture,
            label=label,
            dtype=dtype,
            requires_grad=requires_grad,
        )
    options = padded, values, capture, label, dtype, requires_grad
    return _along(where_along, operands, logic, *options)


def einsum(
    spec: str,
    *operands: Any,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return the sum of the products of the operands' cells, lined up by a specification.

        oc.einsum("ij;jk=>ik", a, b)         # a product of matrices written as rows of output axes
        oc.einsum("...|... => 0", a)         # the sum of all cells
        oc.einsum("...|c => ...|0", a)       # the sum over the last output axis
        oc.einsum("i=+k; k => i", a, b)      # a convolution that keeps the size

    Operands come first, the result last. A row is written `batch|input->output`; `...` stands for
    all further axes of its kind, `..name..` for axes shared across kinds, an integer for a
    position, `_` for an axis that lines up with nothing. Axes that are not in the result are
    summed. `2*i+3*k` is a window: its positions `i` are 2 apart (the stride), its cells `k` are 3
    apart (the dilation). Marked `2*i<+3*k` it stays inside the axis; marked `2*i=+3*k` it is padded
    with zeros on both sides.

    Args:
        spec: The specification, with one entry for each operand.
        operands: One to three tensors.
        padded: True to pad windows without a mark.
        values: Numbers for names in the specification: for coefficients, and sizes of axes.
        capture: Dimensions made by `oc.dim`, to stand for the sizes of names in the specification.
        label: A name for the result.
        dtype: The number format of the result and its sums; by default that of the operands.
        requires_grad: True for a result with a gradient; by default if an operand has one.

    Raises:
        SpecError: if the specification is malformed or has another number of operands.
        ShapeError: if the operands' shapes do not fit it.
    """
    if not 1 <= len(operands) <= len(_EINSUMS):
        raise UsageError.at_caller(
            "einsum takes one to three tensors after the specification.",
            found=f"{len(operands)} tensors with {spec!r}",
            fix="contract step by step, two or three tensors at a time",
        )
    options = padded, values, capture, label, dtype, requires_grad
    return _along(_EINSUMS[len(operands) - 1], operands, spec, *options)


def einmax(
    spec: str,
    operand: Any,
    *,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return the maximum of the operand's cells over the axes that are not in the specification's
    result.

    `oc.einmax("2*i<+k => i", x, values={"k": 2})` is max pooling. Padding never is the maximum. The
    gradient goes to the maximum, or to the first of equal cells. Arguments are as for `einsum`.
    """
    options = padded, values, capture, label, dtype, requires_grad
    return _along(maximum_along, (operand,), spec, *options)


def outer_sum(
    spec: str,
    a: Any,
    b: Any,
    *,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return sums of the operands' cells, lined up by a specification: `i;j=>ij` is `a[i] + b[j]`.

    Axes that are not in the result are summed. Arguments are as for `einsum`.
    """
    options = padded, values, capture, label, dtype, requires_grad
    return _along(_outer_sum, (a, b), spec, *options)


def tropical(
    spec: str,
    a: Any,
    b: Any,
    *,
    padded: bool | None = None,
    values: Mapping[str, int] | None = None,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Return the maximum of sums of the operands' cells over the axes that are not in the
    specification's result.

    This is einsum in the max-plus semiring. With zeros as the second operand, which fix the size of
    windows, it is max pooling. The gradient goes to the pair of cells whose sum is the maximum, or
    to the first of equal sums.
    """
    options = padded, values, capture, label, dtype, requires_grad
    return _along(_tropical, (a, b), spec, *options)


@cache
def _concat_of(operands: int, covers_all: bool) -> Operation:
    made = define_operation(
        "concat",
        forward=_concatenate if covers_all else _concatenate_among_zeros,
        gradient=_concatenate_gradient,
        operands=operands,
    )
    return replace(made, moves_cells=True)


def concat(spec: str, *operands: Any, **options: Any) -> Any:
    """Return the operands one after the other along axes `a^b^...` of the specification's result;
    options are as for `einsum`.
    """
    if not operands:
        raise UsageError.at_caller(
            "concat takes tensors after the specification.", found=f"none with {spec!r}"
        )
    covers_all = covers_result(parse_spec(spec), str(Origin("concat", caller_location())))
    return _concat_of(len(operands), covers_all)(*operands, logic=spec, **options)


_NEW_AXIS = {
    "batch": "...|...->... => {},...|...->...",
    "input": "...|...->... => ...|{},...->...",
    "output": "...|...->... => ...|...->{},...",
}


def stack(
    *operands: Any, axis: str = "output", label: str | None = None, dtype: DType | str | None = None
) -> Any:
    """Return the operands along a new axis of a kind, the leftmost one, after broadcasting them to
    a common shape.
    """
    if axis not in _NEW_AXIS or not operands:
        raise UsageError.at_caller(
            "stack takes tensors, and the kind of the new axis.",
            found=f"{len(operands)} tensors, axis={axis!r}",
            fix="axis is one of " + ", ".join(map(repr, _NEW_AXIS)),
        )
    return _stack_along("stack", operands, axis, label, dtype)


def _stack_along(
    name: str, operands: tuple[Any, ...], axis: str, label: str | None, dtype: DType | str | None
) -> Any:
    """Return a stack, as a part of the named composite operation."""
    single, stacked = (side.strip() for side in _NEW_AXIS[axis].split("=>"))
    widening = f"{single} => {stacked.format(0)}"
    if len(operands) == 1:
        with composite_operation(f"{operand_name(0)} of {name}", operands):
            return einsum(widening, *operands, label=label, dtype=dtype)
    widened: list[Any] = []
    for position, operand in enumerate(operands):
        with composite_operation(f"{operand_name(position)} of {name}", operands):
            widened.append(einsum(widening, operand))
    parts = [f"part{i}" for i in range(len(operands))]
    spec = (
        f"{'; '.join(stacked.format(part) for part in parts)} => {stacked.format('^'.join(parts))}"
    )
    with composite_operation(name, operands):
        return concat(spec, *widened, label=label, dtype=dtype)


def interleave(
    a: Any, b: Any, *, label: str | None = None, dtype: DType | str | None = None
) -> Any:
    """Return a tensor whose last output axis alternates between the cells of two tensors.

    The first operand is at the even positions, extracted again by `oc.einsum("..., 2*i => ..., i",
    x)`; the second at the odd ones, `oc.einsum("..., 2*i+1 => ..., i", x)`.
    """
    spec = "...|...->parity,...,i => ...|...->...,2*i<+parity"
    stacked = _stack_along("interleave", (a, b), "output", None, dtype)
    with composite_operation("interleave", (a, b)):
        return einsum(spec, stacked, label=label, dtype=dtype)


def subscript(tensor: Tensor, key: object) -> Tensor:
    """Return the cells of a tensor that keys address."""
    parts = parts_of(key)
    text = f"{tensor.label[0] if tensor.label else 'x'}[{key_text(key)}]"
    # A tensor of integers among the parts selects positions along its axis; `parse_keys` refuses
    # it until gathers are an operation.
    keys = parse_keys(parts, text)
    origin = Origin(text, caller_location())
    environment = tensor.session.environment
    is_declared = isinstance(tensor.definition, Declared)  # its shape follows from later code
    ranks = None if is_declared else environment.implied_ranks(tensor.terms)
    if ranks is not None:  # the keys count these, and uses that follow add none
        environment.set_ranks(tensor.terms, ranks, origin)
    return _slice.tensor((tensor,), Slice(keys), origin=origin)
