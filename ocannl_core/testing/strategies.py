"""Hypothesis strategies for loop programs.

The programs are well-formed and defined: every access is inside its node, every cell and variable
is written before it is read, and only operations occur whose results are the same on every backend.
So two backends, or a program before and after a pass, must give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from ocannl_core.ir.loops.nodes import AxisKind, Block, LoopProgram, Stmt
from ocannl_core.ir.numbers.dtypes import DType, bool_, float32, float64, int8, int32, uint32
from ocannl_core.testing.author import Author
from ocannl_core.testing.programs import Example
from ocannl_core.testing.sequels import SequelAuthor

SOME_DTYPES = (float32, float64, int32, uint32, int8, bool_)
INDEPENDENT_KINDS = (AxisKind.SERIAL, AxisKind.PARALLEL, AxisKind.VECTOR, AxisKind.UNROLLED)


@st.composite
def random_programs(
    draw: st.DrawFn,
    dtypes: Sequence[DType] = SOME_DTYPES,
    kinds: Sequence[AxisKind] = INDEPENDENT_KINDS,
    depth: int = 3,
    max_nests: int = 3,
) -> Example:
    """Return programs over numbers of these formats, with the cells that they start from.

    Args:
        dtypes: The formats of nodes and intermediate values.
        kinds: The kinds of loops whose iterations do not depend on each other.
        depth: The largest depth of expressions.
        max_nests: The largest number of top-level loop nests.
    """
    author = Author(draw, tuple(dtypes), tuple(kinds))
    stmts: list[Stmt] = []
    for _ in range(draw(st.integers(1, max_nests))):
        stmts += author.nest(depth)
    return _example(draw, author, stmts)


@st.composite
def loop_programs(
    draw: st.DrawFn,
    dtypes: Sequence[DType] = SOME_DTYPES,
    kinds: Sequence[AxisKind] = INDEPENDENT_KINDS,
    depth: int = 2,
    max_nests: int = 4,
) -> Example:
    """Return programs for passes: nests as in `random_programs`, and nests that depend on earlier
    ones.

    Nodes, parameters included, are overwritten in full, in part, repeatedly and by recurrences;
    some have margins; computations repeat in one statement, in siblings and in later nests; loads
    are guarded; reductions select one entry of a table. Arguments are as for `random_programs`.
    """
    author = SequelAuthor(draw, tuple(dtypes), tuple(kinds))
    stmts: list[Stmt] = []
    for _ in range(draw(st.integers(1, max_nests))):
        stmts += author.sequel(depth)
    return _example(draw, author, stmts)


def _example(draw: st.DrawFn, author: Author, stmts: Sequence[Stmt]) -> Example:
    program = LoopProgram(
        "random", tuple(author.params), tuple(author.statics), author.nodes, Block(tuple(stmts))
    )
    indices = [draw(st.integers(0, (each.extent or 1) - 1)) for each in author.statics]
    return Example(program, author.arrays, indices)
