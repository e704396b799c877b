"""Schedules with a ring of stages: their meaning on any device, and schedules that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import parse_schedule, schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.parser.loops import parse

RING = (
    "split i 8; split i1 4; split i11 2; split j 8; split j1 4; split j11 2; split k 12; "
    "split k1 4; grid i0 j0; block i10 i110 j110; order i0 j0 i10 i110 j110 k0 k10 j10 i111 j111 "
    "k11; unroll j10; unroll i111; unroll j111; tile i111 j111 k11; pack 0 inside k10 as i1 k11; "
    "pack 1 inside k10 as k11 j1; ring k10; accumulate over k0 fused"
)
"""Stages of 8 x 4 and 4 x 8 cells, three of them; 8 threads have 2 x 2 cells of 2 tiles each."""


def product(rows: int, terms: int, columns: int) -> tuple[Draft, Nest]:
    """Return `c[i, j] += a[i, k] * b[k, j]`."""
    draft = Draft("product")
    i, j, k = (fresh_var(name) for name in "ijk")
    a, b = draft.node("a", float32, rows, terms), draft.node("b", float32, terms, columns)
    c = draft.node("c", float32, rows, columns)
    term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
    body = draft.accumulate(c, i, j, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(i, rows, loop(j, columns, loop(k, terms, body))),)))
    assert nest is not None
    return draft, nest


@pytest.mark.parametrize("sizes", [(8, 12, 8), (16, 24, 8), (9, 13, 11), (5, 3, 7), (8, 32, 16)])
def test_a_ring_has_the_results_of_the_plain_product(
    sizes: tuple[int, int, int], interpret: Callable[..., dict[TensorNode, Any]]
) -> None:
    rows, terms, columns = sizes
    draft, nest = product(rows, terms, columns)
    a, b, c = draft.nodes
    scheduled = apply_schedule(nest, parse_schedule(RING))
    draft.nodes.update(scheduled.nodes)
    program = draft.program(*scheduled.body.stmts)
    verify(program)
    text = to_text(program)
    assert to_text(parse(text)) == text
    numbers = np.random.default_rng(0)
    left = numbers.integers(-8, 9, (rows, terms)).astype(np.float32)
    right = numbers.integers(-8, 9, (terms, columns)).astype(np.float32)
    start = numbers.integers(-8, 9, (rows, columns)).astype(np.float32)
    found = interpret(program, {a: left, b: right, c: start})
    np.testing.assert_array_equal(found[c], start + left @ right)


def test_the_notation_of_a_ring_is_complete() -> None:
    assert schedule_text(parse_schedule(RING)) == RING


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("ring k10", "ring k0", "A schedule has one ring, along the stages of blocks of terms"),
        ("ring k10", "ring k10; ring k10", "A schedule has one pipeline or ring"),
        ("split k 12", "split k 4", "A ring has two stages or more"),
        ("inside k10 as k11 j1", "inside k10 as k11 j10 j11", "Both factors are packed along two"),
        ("pack 0 inside k10", "pack 0 inside k0", "A packed buffer has the axes of the operand"),
        ("tile i111 j111 k11", "tile j111 i111 k11", "Rows, columns and terms of a tile are the"),
        ("; tile i111 j111 k11", "", "Rows, columns and terms of a tile are the innermost"),
        ("k0 k10 j10", "j10 k0 k10", "Rows, columns and terms of a tile are the innermost"),
    ],
)
def test_a_schedule_that_describes_no_ring_is_refused(old: str, new: str, rule: str) -> None:
    assert old in RING
    _, nest = product(16, 24, 16)
    with pytest.raises(UsageError, match=rule):
        apply_schedule(nest, parse_schedule(RING.replace(old, new)))
