"""Hypothesis strategies for reductions over affine index maps, and for schedules that fit them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import AxisIndex, LoopVar, affine, as_affine, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.transforms import (
    AccumulateAt,
    Order,
    Pack,
    Schedule,
    SetKind,
    Split,
    Transform,
)
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import (
    Binary,
    Const,
    Expr,
    IndexValue,
    LocalRead,
    Scoped,
    Stmt,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.traverse import map_exprs
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.schedule.apply.axis_tree import AxisTree
from ocannl_core.schedule.apply.nest_state import apply_transforms
from ocannl_core.testing.compare import Array
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example

Axes = Sequence[tuple[LoopVar, int]]

EXTENTS = (0, 1, 2, 3, 4, 5, 7, 9, 17)


@st.composite
def random_reductions(
    draw: st.DrawFn, dtype: DType = int32, extents: Sequence[int] = EXTENTS, most_steps: int = 3000
) -> Example:
    """Return a nest that combines products of operands into the cells of a result.

    The operands are addressed with strides, dilations, offsets and repeated axes, some do not
    depend on some axes, and some are guarded. All numbers are small integers, whose sums and
    products are exact in every format of 32 bits.
    """
    count = draw(st.integers(1, 5))
    axes: list[tuple[LoopVar, int]] = []
    for _ in range(count):
        room = most_steps // max(1, prod(extent for _, extent in axes))
        choices = [extent for extent in extents if extent <= max(1, room)]
        axes.append((fresh_var("i"), draw(st.sampled_from(choices))))
    is_reduced = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    draft = Draft("reduction")
    arrays: dict[TensorNode, Array] = {}
    numbers = np.random.default_rng(draw(st.integers(0, 99)))

    def node(label: str, indices: Sequence[AxisIndex]) -> TensorNode:
        made = draft.node(label, dtype, *_dims(draw, indices, axes))
        size = draft.nodes[made].buffer_dims
        arrays[made] = numbers.integers(-2, 3, size).astype(dtype.numpy)
        return made

    factors = []
    for _ in range(draw(st.integers(1, 3))):
        places = [_index(draw, axes) for _ in range(draw(st.integers(0, 3)))]
        factors.append(_guarded(draw, draft.load(node("x", places), *places), axes))
    op = draw(st.sampled_from([BinaryOp.ADD, BinaryOp.ADD, BinaryOp.MAX]))
    term = _product(factors, dtype)
    cells = [var for (var, _), reduced in zip(axes, is_reduced, strict=True) if not reduced]
    target = [
        affine([(draw(st.sampled_from([1, 1, 1, 2])), var)], draw(st.integers(0, 1)))
        for var in draw(st.permutations(cells))
    ]
    if len(target) > 1 and draw(st.integers(0, 3)) == 0:
        # written through windows: one axis shifts another one
        (first, _), (second, _) = (as_affine(index) for index in target[:2])
        target[:2] = [affine([*first, *second])]
    result = node("result", target)
    body: Stmt
    if op is BinaryOp.ADD and draw(st.booleans()) and len(factors) > 1:
        fused = Ternary(
            TernaryOp.FMA,
            factors[0],
            _product(factors[1:], dtype),
            draft.load(result, *target),
            dtype,
        )
        body = draft.store(result, *target, value=fused)
    else:
        body = draft.accumulate(result, *target, op=op, value=term)
    for var, extent in reversed(axes):
        body = loop(var, extent, body)
    return Example(draft.program(body), arrays)


def in_format(example: Example, dtype: DType) -> Example:
    """Return a program that computes in another number format all that is float32 in it."""

    def changed(expr: Expr) -> Expr:
        match expr:
            case LocalRead() | Scoped():
                return expr
            case _:
                return replace(expr, dtype=dtype) if expr.dtype is float32 else expr

    program = example.program
    nodes = {
        node: replace(info, dtype=dtype) if info.dtype is float32 else info
        for node, info in program.nodes.items()
    }
    arrays = {node: cells.astype(nodes[node].dtype.numpy) for node, cells in example.arrays.items()}
    body = map_exprs(program.body, changed)
    return replace(example, program=replace(program, nodes=nodes, body=body), arrays=arrays)


def _product(factors: Sequence[Expr], dtype: DType) -> Expr:
    term = factors[0]
    for factor in factors[1:]:
        term = Binary(BinaryOp.MUL, term, factor, dtype)
    return term


def _index(draw: st.DrawFn, axes: Axes) -> AxisIndex:
    """Return a sum of a few axes times small numbers, never negative."""
    used = draw(st.lists(st.sampled_from(axes), min_size=0, max_size=2))
    terms = [(draw(st.sampled_from([1, 1, 1, 2, 3, -1])), var) for var, _ in used]
    extents = dict(axes)
    parts, _ = as_affine(affine(terms))
    least = sum(
        min(0, c * (max(extents[var], 1) - 1)) for c, var in parts if isinstance(var, LoopVar)
    )
    return affine(terms, draw(st.integers(0, 1)) - least)


def _dims(draw: st.DrawFn, indices: Sequence[AxisIndex], axes: Axes) -> list[int]:
    """Return extents that hold every position, and sometimes more."""
    extents = dict(axes)
    dims = []
    for index in indices:
        terms, offset = as_affine(index)
        reach = offset + sum(
            max(0, c * (max(extents[var], 1) - 1)) for c, var in terms if isinstance(var, LoopVar)
        )
        dims.append(reach + 1 + draw(st.integers(0, 1)))
    return dims


def _guarded(draw: st.DrawFn, load: Expr, axes: Axes) -> Expr:
    """Return a value as it is, through a function, or only where an axis is far enough."""
    match draw(st.integers(0, 5)):
        case 0:
            var, extent = draw(st.sampled_from(axes))
            bound = Const(draw(st.integers(0, max(extent, 1))), load.dtype)
            place = IndexValue(affine([(1, var)]), load.dtype)
            condition = Binary(BinaryOp.LT, place, bound, load.dtype)
            return Ternary(TernaryOp.WHERE, condition, load, Const(0, load.dtype), load.dtype)
        case 1 if load.dtype is float32:
            return Unary(UnaryOp.RELU, load, load.dtype)
        case _:
            return load


@st.composite
def fitting_schedules(draw: st.DrawFn, nest: Nest) -> Schedule:
    """Return a schedule that fits a nest, good or bad."""
    schedule: list[Transform] = []
    names = [axis.name for axis in nest.axes]
    for name in names:
        for part in (name, f"{name}1"):
            if not draw(st.booleans()):
                break
            schedule.append(
                Split(part, draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.booleans()))
            )
    tree = apply_transforms(nest, tuple(schedule)).tree
    order = _order(draw, tree, names)
    schedule.append(Order(order))
    inner = draw(st.integers(0, min(3, len(order))))
    for name in order[len(order) - inner : -1]:
        if draw(st.booleans()):
            schedule.append(SetKind(AxisKind.UNROLLED, (name,)))
    if draw(st.booleans()) and order:
        schedule.append(SetKind(AxisKind.VECTOR, (order[-1],)))
    if nest.reduction is None:
        return tuple(schedule)
    for position, factor in enumerate(nest.reduction.factors):
        if not draw(st.booleans()):
            continue
        roots = tree.axes_of(factor)
        cut = draw(st.integers(0, len(order)))
        needed = [leaf for leaf in order[cut:] if leaf[0] in roots]
        inside = order[cut - 1] if cut else None
        if needed:
            axes = draw(st.permutations(needed))
            schedule.append(Pack(position, inside, tuple(axes)))
    reduced = [at for at, name in enumerate(order) if tree.is_reduced(name)]
    first = reduced[0] if reduced else len(order) - 1
    last = len(order) - 1 if nest.holds_partial_results else first
    shifting = {axis.name for axis in nest.axes if axis.is_shifting}
    least = max((at + 1 for at, name in enumerate(order) if name[0] in shifting), default=0)
    if least < len(order):
        over = order[draw(st.integers(least, max(least, last)))]
        schedule.append(AccumulateAt(over, draw(st.booleans()), draw(st.booleans())))
    return tuple(schedule)


def _order(draw: st.DrawFn, tree: AxisTree, names: Sequence[str]) -> tuple[str, ...]:
    """Return the leaves in an order in which the number of a block comes before the block."""
    left = {name: list(tree.leaves(name)) for name in names}
    order: list[str] = []
    while any(left.values()):
        name = draw(st.sampled_from([name for name in names if left[name]]))
        order.append(left[name].pop(0))
    return tuple(order)
