"""Prefetches of cells during a reduction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import IndexVar, fresh_var, value_of
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_accesses import epilogue_loads
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import parse_schedule
from ocannl_core.ir.loops.nodes import Binary, Block, For, Load, Prefetch, Stmt
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, loop


def product(draft: Draft, rows: int, terms: int, columns: int, *, turned: bool = False) -> Nest:
    """Return `c[i, j] += a[i, k] * b[k, j]`, or with the result's axes the other way round."""
    i, j, k = (fresh_var(name) for name in "ijk")
    a, b = draft.node("a", float32, rows, terms), draft.node("b", float32, terms, columns)
    c = draft.node("c", float32, *((columns, rows) if turned else (rows, columns)))
    term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
    cell = (j, i) if turned else (i, j)
    update = draft.accumulate(c, *cell, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(i, rows, loop(j, columns, loop(k, terms, update))),)))
    assert nest is not None
    return nest


BLOCKS = (
    "split i 6 evenly; split j 32; split j1 16; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; "
    "vectorize j11; "
)


def scheduled(nest: Nest, options: str) -> Block:
    return apply_schedule(nest, parse_schedule(f"{BLOCKS}accumulate over k {options}")).body


def fetched(stmt: Stmt, env: Mapping[IndexVar, int]) -> Iterator[tuple[int, ...]]:
    """Yield the cells that a statement prefetches, running its loops."""
    match stmt:
        case For(var, start, stop, body):
            for value in range(start, stop):
                yield from fetched(body, {**env, var: value})
        case Block(stmts):
            for each in stmts:
                yield from fetched(each, env)
        case Prefetch(_, indices):
            yield tuple(value_of(index, env) for index in indices)
        case _:
            pass


def test_each_line_of_the_blocks_after_the_first_ones_is_prefetched_once() -> None:
    body = scheduled(product(Draft("product"), 48, 12, 64), "prefetch")
    lines = list(fetched(body, {}))
    found = {(row, column // 16) for row, column in lines}
    assert found >= {(row, line) for row in range(6, 48) for line in range(4)}
    assert len(lines) == len(set(lines))


def test_each_line_of_an_operand_that_is_packed_next_is_prefetched_once() -> None:
    draft = Draft("product")
    i, j, k = (fresh_var(name) for name in "ijk")
    a, b = draft.node("a", float32, 24, 128), draft.node("b", float32, 96, 128)
    c = draft.node("c", float32, 96, 24)  # its lanes are strided: none is prefetched
    term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, j, k), float32)
    update = draft.accumulate(c, j, i, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(i, 24, loop(j, 96, loop(k, 128, update))),)))
    assert nest is not None
    text = f"{BLOCKS}pack 1 inside j0 as k j1; "
    schedule = parse_schedule(f"{text}accumulate over k fused prefetch")
    lines = [
        cell // 16 for _, cell in fetched(apply_schedule(nest, schedule, draft.nodes).body, {})
    ]
    assert sorted(lines) == list(range(32 * 128 // 16, (96 + 32) * 128 // 16))


def test_parts_of_the_sum_begin_with_a_few_lines() -> None:
    draft = Draft("product")
    nest = product(draft, 48, 48, 32)
    result = apply_schedule(nest, parse_schedule(f"{BLOCKS}accumulate over k fused prefetch"))
    program = replace(draft.program(), nodes={**draft.nodes, **result.nodes}, body=result.body)
    assert to_text(program) == snapshot("""\
routine product(a: float32[48, 48], b: float32[48, 32], c: float32[48, 32]):
    for i in range(8):
        block:
            thread sums: float32[6, 2, 16]
            for i1 in unrolled(6):
                for j in unrolled(2):
                    for j1 in vector(16):
                        sums[i1, j, j1] = 0.0
            for k in range(6):
                prefetch c[6*i + k + 6, 0]
                prefetch c[6*i + k + 6, 16]
                prefetch c[6*i + k + 6, 31]
                for k1 in range(8):
                    for i1 in unrolled(6):
                        for j in unrolled(2):
                            for j1 in vector(16):
                                sums[i1, j, j1] = fma(a[6*i + i1, 8*k + k1], b[8*k + k1, 16*j + j1], sums[i1, j, j1])
            for i1 in unrolled(6):
                for j in unrolled(2):
                    for j1 in vector(16):
                        c[6*i + i1, 16*j + j1] += sums[i1, j, j1]\
""")


def test_few_blocks_prefetch_their_own_lines() -> None:
    lines = list(fetched(scheduled(product(Draft("product"), 18, 12, 32), "prefetch"), {}))
    assert {(row, column // 16) for row, column in lines} == {
        (row, line) for row in range(18) for line in range(2)
    }


@pytest.mark.parametrize("turned", [True, False])
def test_cells_that_are_apart_along_the_lanes_are_left_alone(turned: bool) -> None:
    body = scheduled(product(Draft("product"), 48, 12, 64, turned=turned), "prefetch")
    assert bool(list(fetched(body, {}))) is not turned


def test_operands_shared_by_all_rows_are_not_prefetched() -> None:
    draft = Draft("product")
    nest = product(draft, 48, 12, 64)
    (store,) = nest.epilogue
    bias, before = draft.node("bias", float32, 64), draft.node("before", float32, 48, 64)
    addends = [Load(bias, store.indices[1:], float32), Load(before, store.indices, float32)]
    value = store.value
    for each in addends:
        value = Binary(BinaryOp.ADD, value, each, float32)
    nest = replace(nest, epilogue=(replace(store, value=value),))
    assert [load.node.name for load in epilogue_loads(nest)] == ["c", "before"]
