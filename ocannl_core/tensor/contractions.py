"""Operations that reduce or rearrange axes: composition, einsum, maxima, slices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ocannl_core.dtypes import DType
from ocannl_core.errors import UsageError
from ocannl_core.indexing import StaticIndex
from ocannl_core.ops import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.einsum import operand_name
from ocannl_core.shape.einsum_parser import parse_spec
from ocannl_core.shape.logic import BatchSlice
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.assignment import neutral
from ocannl_core.tensor.capture import Capture
from ocannl_core.tensor.operation import Operation, as_tensor, define_operation
from ocannl_core.tensor.placement import covers_result
from ocannl_core.tensor.pointwise import add, first, lift, maximum
from ocannl_core.tensor.pointwise import where as where_pointwise
from ocannl_core.tensor.registry import operations
from ocannl_core.tensor.slots import Slot, SlotApplication, slot_application
from ocannl_core.tensor.specifications import composing


def _sum_of_products(v: Any, v1: Any, v2: Any) -> None:
    v[neutral] += v1 * v2


def _sum(v: Any, v1: Any) -> None:
    v[neutral] += v1


def _sum_of_triple_products(v: Any, v1: Any, v2: Any, v3: Any) -> None:
    v[neutral] += v1 * v2 * v3


def _triple_products(g: Any, g1: Any, g2: Any, g3: Any, v1: Any, v2: Any, v3: Any) -> None:
    g1 += g * v2 * v3
    g2 += g * v1 * v3
    g3 += g * v1 * v2


def _sum_of_sums(v: Any, v1: Any, v2: Any) -> None:
    v[neutral] += v1 + v2


def _spread_to_both(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    # once for every pair of cells: the other operand says which pairs there are
    g1 += first(g, v2)
    g2 += first(g, v1)


def _products(g: Any, g1: Any, g2: Any, v1: Any, v2: Any) -> None:
    g1 += g * v2
    g2 += g * v1


def _spread(g: Any, g1: Any) -> None:
    g1 += g


def _copy(v: Any, v1: Any) -> None:
    v[:] = v1


def _greatest(v: Any, v1: Any) -> None:
    v[neutral, maximum] = v1


def _greatest_gradient(g: Any, g1: Any, selected: Any) -> None:
    g1 += where_pointwise(selected, g, 0.0)


def _greatest_sum(v: Any, v1: Any, v2: Any) -> None:
    v[neutral, maximum] = v1 + v2


def _greatest_sum_gradient(g: Any, g1: Any, g2: Any, selected: Any) -> None:
    g1 += where_pointwise(selected, g, 0.0)
    g2 += where_pointwise(selected, g, 0.0)


def _sum_of_chosen(v: Any, v1: Any, v2: Any, v3: Any) -> None:
    v[neutral] += where_pointwise(v1, v2, v3)


def _chosen(g: Any, g2: Any, g3: Any, v1: Any) -> None:
    g2 += where_pointwise(v1, g, 0.0)
    g3 += where_pointwise(v1, 0.0, g)


def _fused(g: Any, g1: Any, g2: Any, g3: Any, v1: Any, v2: Any) -> None:
    g1 += g * v2
    g2 += g * v1
    g3 += g


def _place_all(v: Any, vs: Any) -> None:
    for operand in vs:
        v[:] = operand


def _place_all_among_zeros(v: Any, vs: Any) -> None:
    v[:] = 0.0
    _place_all(v, vs)


def _take_from_each(g: Any, gs: Any) -> None:
    for operand in gs:
        operand += g


matmul = define_operation(
    "matmul",
    logic="@",
    forward=_sum_of_products,
    gradient=_products,
    primitive=BinaryOp.MUL,
    combine=BinaryOp.ADD,
)
transpose = define_operation(
    "transpose", logic="T", forward=_copy, gradient=_spread, primitive=UnaryOp.IDENTITY
)
_einsum_of_one = define_operation(
    "einsum",
    forward=_sum,
    gradient=_spread,
    primitive=UnaryOp.IDENTITY,
    combine=BinaryOp.ADD,
)
_einsum_of_two = define_operation(
    "einsum",
    forward=_sum_of_products,
    gradient=_products,
    primitive=BinaryOp.MUL,
    combine=BinaryOp.ADD,
)
_einsum_of_three = define_operation(
    "einsum",
    forward=_sum_of_triple_products,
    gradient=_triple_products,
    combine=BinaryOp.ADD,
)
_EINSUMS = (_einsum_of_one, _einsum_of_two, _einsum_of_three)
_outer_sum = define_operation(
    "outer_sum",
    forward=_sum_of_sums,
    gradient=_spread_to_both,
    primitive=BinaryOp.ADD,
    combine=BinaryOp.ADD,
)
_tropical = define_operation(
    "tropical",
    forward=_greatest_sum,
    gradient=_greatest_sum_gradient,
    primitive=BinaryOp.ADD,
    combine=BinaryOp.MAX,
)
_einmax = define_operation(
    "einmax",
    forward=_greatest,
    gradient=_greatest_gradient,
    primitive=UnaryOp.IDENTITY,
    combine=BinaryOp.MAX,
)
_slice = define_operation("slice", forward=_copy, gradient=_spread, primitive=UnaryOp.IDENTITY)
_sum_of_where = define_operation(
    "where",
    forward=_sum_of_chosen,
    gradient=_chosen,
    primitive=TernaryOp.WHERE,
    combine=BinaryOp.ADD,
)
_fma = lift("fma", TernaryOp.FMA, _fused)


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
    """Returns `a @ b + c`; with `logic="."`, and inside the code of an operation, the fused
    primitive `a * b + c`, which rounds once.
    """
    if any(isinstance(each, Slot | SlotApplication) for each in (a, b, c)):
        return slot_application(TernaryOp.FMA, (a, b, c))
    if logic == "@":
        product = matmul(a, b, dtype=dtype)
        return add(product, c, label=label, dtype=dtype, requires_grad=requires_grad)
    return _fma(a, b, c, logic=logic, label=label, dtype=dtype, requires_grad=requires_grad)


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
    """Returns `a` where the condition is not 0, and `b` elsewhere.

    With a specification, `oc.where(c, a, b, logic="i; ij; j => i")`, cells are chosen first and
    then summed over the axes that the result does not mention. In recorded code the assignment says
    how they are reduced.
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
    return _sum_of_where(
        *operands,
        logic=logic,
        padded=padded,
        values=values,
        capture=capture,
        label=label,
        dtype=dtype,
        requires_grad=requires_grad,
    )


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
    """Returns the sum of the products of the operands' cells, lined up by a specification.

        oc.einsum("ij;jk=>ik", a, b)         # a product of matrices written as rows of output axes
        oc.einsum("...|... => 0", a)         # the sum of all cells
        oc.einsum("...|c => ...|0", a)       # the sum over the last output axis
        oc.einsum("i=+k; k => i", a, b)      # a convolution that keeps the size

    Operands come first, the result last. A row is written `batch|input->output`; `...` stands for
    all further axes of its kind, `..name..` for axes shared across kinds, an integer for a
    position, `_` for an axis that lines up with nothing. Axes that the result does not mention are
    summed. `2*i+3*k` is a window: its positions `i` are 2 apart (the stride), its cells `k` are 3
    apart (the dilation). Marked `2*i<+3*k` it stays inside the axis; marked `2*i=+3*k` it may leave
    the axis on both sides, where it finds zeros.

    Args:
        spec: The specification, with as many operands as are given.
        operands: One to three tensors.
        padded: Whether windows without a mark may leave their axis.
        values: Numbers for names in the specification: for coefficients, and sizes of axes.
        capture: Dimensions made by `oc.dim`, to stand for the sizes of names in the specification.
        label: A name for the result.
        dtype: The number format of the result and of its sums; it follows from the operands when
            not given.
        requires_grad: Whether the result has a gradient; by default it has where an operand has.

    Raises:
        SpecError: if the specification does not follow the notation or has another number of
            operands.
        ShapeError: if the operands' shapes do not fit it.
    """
    if not 1 <= len(operands) <= len(_EINSUMS):
        raise UsageError(
            "einsum takes one to three tensors after the specification.",
            found=f"{len(operands)} tensors with {spec!r}",
            where=str(caller_location() or ""),
            fix="contract step by step, two or three tensors at a time",
        )
    return _EINSUMS[len(operands) - 1](
        *operands,
        logic=spec,
        padded=padded,
        values=values,
        capture=capture,
        label=label,
        dtype=dtype,
        requires_grad=requires_grad,
    )


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
    """Returns the greatest cells of the operand over the axes that the specification's result does
    not mention.

    `oc.einmax("2*i<+k => i", x, values={"k": 2})` is max pooling. Windows that leave an axis find
    nothing there. The gradient goes to the greatest cell, the first one of equal cells.

    Args:
        spec: A specification with one operand.
        operand: The tensor.
        padded: Whether windows without a mark may leave their axis.
        values: Numbers for names in the specification: for coefficients, and sizes of axes.
        capture: Dimensions made by `oc.dim`, to stand for the sizes of names in the specification.
    """
    return _einmax(
        operand,
        logic=spec,
        padded=padded,
        values=values,
        capture=capture,
        label=label,
        dtype=dtype,
        requires_grad=requires_grad,
    )


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
    """Returns sums of the operands' cells, lined up by a specification: `i;j=>ij` is `a[i] + b[j]`.

    Axes that the result does not mention are summed. Arguments are those of `einsum`.
    """
    return _outer_sum(
        a,
        b,
        logic=spec,
        padded=padded,
        values=values,
        capture=capture,
        label=label,
        dtype=dtype,
        requires_grad=requires_grad,
    )


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
    """Returns the greatest sums of the operands' cells over the axes that the specification's
    result does not mention.

    This is einsum with maxima for sums and sums for products. With zeros as the second operand,
    which fix the size of windows, it is max pooling. The gradient goes to the pair of cells whose
    sum is the maximum, the first one of equal sums.
    """
    return _tropical(
        a,
        b,
        logic=spec,
        padded=padded,
        values=values,
        capture=capture,
        label=label,
        dtype=dtype,
        requires_grad=requires_grad,
    )


@cache
def _concat_of(operands: int, covers_all: bool) -> Operation:
    return define_operation(
        "concat",
        forward=_place_all if covers_all else _place_all_among_zeros,
        gradient=_take_from_each,
        operands=operands,
    )


def concat(
    spec: str,
    *operands: Any,
    capture: Capture = (),
    label: str | None = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Any:
    """Returns the operands one after the other along axes of the result.

    `oc.concat("...,a; ...,b => ...,a^b", x, y)` concatenates along the last output axis, and
    `oc.concat("i,k; j,l => i^j,k^l", x, y)` makes a matrix of blocks, with zeros where there is no
    operand. The parts of an axis are taken out by `oc.einsum("...,a^b => ...,a", xy)`.

    Args:
        spec: A specification whose result has an axis `a^b^...`.
        operands: As many tensors as the specification has operands.
        capture: As for `einsum`.

    Raises:
        SpecError: if an operand has an axis that the result has not, or two have the same place.
    """
    if not operands:
        raise UsageError(
            "concat takes tensors after the specification.",
            found=f"none with {spec!r}",
            where=str(caller_location() or ""),
        )
    covers_all = covers_result(parse_spec(spec), str(Origin("concat", caller_location())))
    return _concat_of(len(operands), covers_all)(
        *operands,
        logic=spec,
        capture=capture,
        label=label,
        dtype=dtype,
        requires_grad=requires_grad,
    )


_NEW_AXIS = {
    "batch": "...|...->... => {},...|...->...",
    "input": "...|...->... => ...|{},...->...",
    "output": "...|...->... => ...|...->{},...",
}


def stack(
    *operands: Any,
    axis: str = "output",
    label: str | None = None,
    dtype: DType | str | None = None,
) -> Any:
    """Returns the operands along a new axis, each repeated to the shape of the others as operands
    of a sum are.

    Args:
        operands: One tensor or more, or numbers.
        axis: The kind of the new axis, which becomes the leftmost of its kind: "batch", "input" or
            "output".
    """
    if axis not in _NEW_AXIS or not operands:
        raise UsageError(
            "stack takes tensors, and the kind of the new axis.",
            found=f"{len(operands)} tensors, axis={axis!r}",
            where=str(caller_location() or ""),
            fix="axis is one of " + ", ".join(map(repr, _NEW_AXIS)),
        )
    return _stacked("stack", operands, axis, label, dtype)


def _stacked(
    name: str, operands: tuple[Any, ...], axis: str, label: str | None, dtype: DType | str | None
) -> Any:
    """Returns a stack as a part of the operation of some name."""
    single, stacked = (side.strip() for side in _NEW_AXIS[axis].split("=>"))
    widening = f"{single} => {stacked.format(0)}"
    if len(operands) == 1:
        with composing(f"{operand_name(0)} of {name}", operands):
            return einsum(widening, *operands, label=label, dtype=dtype)
    widened: list[Any] = []
    for position, operand in enumerate(operands):
        with composing(f"{operand_name(position)} of {name}", operands):
            widened.append(einsum(widening, operand))
    parts = [f"part{i}" for i in range(len(operands))]
    spec = (
        f"{'; '.join(stacked.format(part) for part in parts)} => {stacked.format('^'.join(parts))}"
    )
    with composing(name, operands):
        return concat(spec, *widened, label=label, dtype=dtype)


def interleave(
    a: Any, b: Any, *, label: str | None = None, dtype: DType | str | None = None
) -> Any:
    """Returns a tensor whose last output axis alternates between the cells of two tensors.

    The first operand is at the even positions, which `oc.einsum("..., 2*i => ..., i", x)` takes out
    again; the second at the odd ones, `oc.einsum("..., 2*i+1 => ..., i", x)`.
    """
    spec = "...|...->parity,...,i => ...|...->...,2*i<+parity"
    stacked = _stacked("interleave", (a, b), "output", None, dtype)
    with composing("interleave", (a, b)):
        return einsum(spec, stacked, label=label, dtype=dtype)


def slice_batch(source: Any, *, indices: tuple[StaticIndex | int, ...]) -> Any:
    """Returns the part of a tensor at given positions of its leftmost batch axes.

    A static index is read when the routine runs; an integer is fixed.

    Raises:
        ShapeError: if there are fewer batch axes, or a position lies outside its axis.
    """
    for index in indices:
        if not isinstance(index, StaticIndex) and index < 0:
            raise UsageError(
                "Positions count from 0; sizes may not be known yet, so they cannot count from "
                "the end.",
                found=f"x[{index}]",
                where=str(caller_location() or ""),
            )
    tensor = as_tensor(source, sessions.current())
    return _slice.tensor((tensor,), BatchSlice(indices))


operations.update(matmul=matmul, transpose=transpose, slice=slice_batch)
