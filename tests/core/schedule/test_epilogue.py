"""Epilogues of sums: for all accumulators at once, or one after the other from a copy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import parse_schedule
from ocannl_core.ir.loops.nodes import AxisKind, Binary, Block, Const, For, Load, Stmt, Store
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, loop

BLOCKS = "split j 16; split i 6; order i0 j0 k i1 j1; unroll i1; vectorize j1; accumulate over k"


def product(draft: Draft, terms: int, *, turned: bool = False) -> Nest:
    """Return `c[i, j] += a[i, k] * b[k, j]`, or with the result's axes the other way round."""
    i, j, k = (fresh_var(name) for name in "ijk")
    a, b = draft.node("a", float32, 48, terms), draft.node("b", float32, terms, 32)
    c = draft.node("c", float32, *((32, 48) if turned else (48, 32)))
    term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
    cell = (j, i) if turned else (i, j)
    update = draft.accumulate(c, *cell, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(i, 48, loop(j, 32, loop(k, terms, update))),)))
    assert nest is not None
    return nest


def with_update(draft: Draft, nest: Nest) -> Nest:
    """Return a nest that also moves a state along its result, as an optimizer does."""
    (store,) = nest.epilogue
    state = draft.node("state", float32, 48, 32)
    place = Load(state, store.indices, float32)
    result = Load(store.node, store.indices, float32)
    kept = Binary(BinaryOp.MUL, place, Const(0.9, float32), float32)
    moved = Store(state, store.indices, Binary(BinaryOp.ADD, kept, result, float32))
    weight = Load(draft.node("weight", float32, 48, 32), store.indices, float32)
    step = Binary(BinaryOp.MUL, Const(0.1, float32), place, float32)
    new = Binary(BinaryOp.SUB, weight, step, float32)
    stepped = Store(weight.node, store.indices, new)
    return replace(nest, epilogue=(store, moved, stepped))


def written_out(body: Block, node_name: str) -> bool:
    """Return True if the stores to a node are inside of unrolled loops."""

    def kinds(stmt: Stmt, around: tuple[AxisKind, ...]) -> set[bool]:
        match stmt:
            case Block(stmts):
                return {each for inner in stmts for each in kinds(inner, around)}
            case For(body=inner, kind=kind):
                return kinds(inner, (*around, kind))
            case Store(node) if node.name == node_name:
                return {AxisKind.UNROLLED in around}
            case _:
                return set()

    (found,) = kinds(body, ())
    return found


@pytest.mark.parametrize("terms", [64, 1024])
@pytest.mark.parametrize("updates", [False, True])
def test_long_sums_have_their_finish_written_once_if_it_is_much(terms: int, updates: bool) -> None:
    draft = Draft("product")
    nest = product(draft, terms)
    if updates:
        nest = with_update(draft, nest)
    body = apply_schedule(nest, parse_schedule(BLOCKS)).body
    assert written_out(body, "c") is not (updates and terms == 1024)


def test_cells_that_are_apart_are_much_text() -> None:
    draft = Draft("product")
    nest = product(draft, 1024, turned=True)
    body = apply_schedule(nest, parse_schedule(BLOCKS)).body
    assert not written_out(body, "c")
