"""A Hypothesis strategy for products of matrices in all their forms."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, affine, as_affine, fresh_var
from ocannl_core.ir.loops.nodes import Binary, Expr, Stmt, Unary
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.testing.compare import Array
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example

_EXTENTS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 40, 65)


@st.composite
def random_products(draw: st.DrawFn, dtype: DType = float32, most_steps: int = 60000) -> Example:
    """Return a nest that adds products of two operands to the cells of a result.

    One operand has rows and the other one columns, both have terms, and perhaps a batch; the axes
    of each are in any order, apart, with offsets and in windows, and one of them may be computed.
    All numbers are small integers, whose sums are exact in `float32`.
    """
    names = ["i", "j", "k", *draw(st.lists(st.sampled_from("bmnp"), max_size=2, unique=True))]
    extents: dict[str, int] = {}
    room = most_steps
    for name in draw(st.permutations(names)):
        limits = (2, 65) if name in "ijk" else (1, 3)
        fitting = [each for each in _EXTENTS if limits[0] <= each <= min(max(room, 2), limits[1])]
        extents[name] = draw(st.sampled_from(fitting))
        room = max(1, room // extents[name])
    axes = {name: fresh_var(name) for name in names}
    # b is a batch, m a row and n a column beside the others, p a sum beside the terms
    of = {"left": "ikbmp", "right": "jkbnp", "result": "ijbmn"}
    draft = Draft("product")
    arrays: dict[TensorNode, Array] = {}
    numbers = np.random.default_rng(draw(st.integers(0, 99)))

    def places(label: str, *, windows: bool) -> tuple[AxisIndex, ...]:
        used = draw(st.permutations([name for name in names if name in of[label]]))
        indices = [
            affine([(draw(st.sampled_from([1, 1, 1, 2])), axes[name])], draw(st.integers(0, 1)))
            for name in used
        ]
        if windows and len(indices) > 1 and draw(st.booleans()):
            (first, start), (second, _) = (as_affine(index) for index in indices[:2])
            indices[:2] = [affine([*first, *second], start)]
        return tuple(indices) or (FixedIndex(0),)

    def node(label: str, indices: tuple[AxisIndex, ...]) -> TensorNode:
        sizes = {var: extents[name] for name, var in axes.items()}
        made = draft.node(label, dtype, *(_reach(index, sizes) for index in indices))
        dims = draft.nodes[made].buffer_dims
        arrays[made] = numbers.integers(-2, 3, dims).astype(dtype.numpy)
        return made

    factors: list[Expr] = []
    for label in draw(st.permutations(["left", "right"])):
        indices = places(label, windows=True)
        load: Expr = draft.load(node(label, indices), *indices)
        factors.append(Unary(UnaryOp.NEG, load, dtype) if draw(st.integers(0, 3)) == 0 else load)
    target = places("result", windows=False)
    result = node("result", target)
    term = Binary(BinaryOp.MUL, factors[0], factors[1], dtype)
    body: Stmt = draft.accumulate(result, *target, op=BinaryOp.ADD, value=term)
    for name in reversed(draw(st.permutations(names))):
        body = loop(axes[name], extents[name], body)
    return Example(draft.program(body), arrays)


def _reach(index: AxisIndex, extents: dict[LoopVar, int]) -> int:
    """Return how many cells hold every position."""
    terms, offset = as_affine(index)
    return (
        1
        + offset
        + sum(factor * (extents[var] - 1) for factor, var in terms if isinstance(var, LoopVar))
    )
