"""Contractions whose results are used block by block: attention without a matrix of scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.transforms import FuseRows, Pack, parse_kernel_schedule
from ocannl_core.ir.loops.nodes import Allocate, Binary, Block, Expr, Fill, LoopProgram, Scope, Stmt
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import schedule_for
from ocannl_core.passes.kernels.rows.buffer_reuse import reuse_buffers
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.compare import Array
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.blocks import block_program, random_block_programs
from tests.support.row_fusions import fuse_rows

BATCH, HEADS, KEYS, DEPTH = 4, 3, 8, 5


class Attention:
    """Products of queries and keys, less their maximum in each row, times values."""

    def __init__(self, queries: int, *, keeps_scores: bool = False) -> None:
        draft = self.draft = Draft("attention")
        self.queries = queries
        b, s, h, t, d = (fresh_var(name) for name in "bshtd")
        q = draft.node("q", float32, BATCH, queries, HEADS, DEPTH)
        k, v = (draft.node(name, float32, BATCH, KEYS, HEADS, DEPTH) for name in "kv")
        self.out = draft.node("out", float32, BATCH, queries, HEADS, DEPTH)
        new = draft.node if keeps_scores else draft.scratch
        scores = new("scores", float32, BATCH, queries, HEADS, KEYS)
        limits = draft.scratch("limits", float32, BATCH, queries, HEADS, 1)
        rest = draft.scratch("rest", float32, BATCH, queries, HEADS, KEYS)
        self.scratch = [node for node in (scores, limits, rest) if node not in draft.params]
        cell = draft.load(scores, b, s, h, t)
        product = Binary(
            BinaryOp.MUL, draft.load(q, b, s, h, d), draft.load(k, b, t, h, d), float32
        )
        limit = Binary(BinaryOp.SUB, cell, draft.load(limits, b, s, h, 0), float32)
        value = Binary(
            BinaryOp.MUL, draft.load(rest, b, s, h, t), draft.load(v, b, t, h, d), float32
        )

        def over(stmt: Stmt) -> Stmt:
            return loop(b, BATCH, loop(s, queries, loop(h, HEADS, stmt)))

        self.nests = [
            over(
                loop(
                    t,
                    KEYS,
                    loop(
                        d,
                        DEPTH,
                        draft.accumulate(scores, b, s, h, t, op=BinaryOp.ADD, value=product),
                    ),
                )
            ),
            over(loop(t, KEYS, draft.accumulate(limits, b, s, h, 0, op=BinaryOp.MAX, value=cell))),
            over(loop(t, KEYS, draft.store(rest, b, s, h, t, value=limit))),
            over(
                loop(
                    d,
                    DEPTH,
                    loop(
                        t,
                        KEYS,
                        draft.accumulate(self.out, b, s, h, d, op=BinaryOp.ADD, value=value),
                    ),
                )
            ),
        ]
        fills = {scores: 0.0, limits: -np.inf, self.out: 0.0}
        self.stmts: list[Stmt] = [Allocate(node, Scope.ROUTINE) for node in self.scratch]
        for nest, filled in zip(self.nests, [scores, limits, None, self.out], strict=True):
            self.stmts += [] if filled is None else [Fill(filled, fills[filled])]
            self.stmts.append(nest)
        random = np.random.default_rng(3)
        self.arrays: dict[TensorNode, Array] = {
            node: random.integers(-3, 4, draft.nodes[node].dims).astype(np.float32)
            for node in (q, k, v)
        }

    @property
    def program(self) -> LoopProgram:
        return self.draft.program(*self.stmts)


def by_blocks(plan: Plan, target: Target) -> Plan:
    wide = replace(target, vector_bytes=64, vector_registers=32, has_fma=True)
    return schedule_for(plan, replace(wide, cache_bytes=(256, 1024, 1 << 20))).plan()


def joined_kernels(attention: Attention) -> list[Kernel]:
    """Return the kernels of several nests."""
    plan = by_blocks(split_kernels(attention.program), subject_named("interp").target)
    steps = [step for step in plan.steps if isinstance(step, Kernel)]
    return [step for step in steps if sum(isinstance(t, FuseRows) for t in step.schedule) > 1]


def test_scores_exist_for_one_block_at_a_time() -> None:
    attention = Attention(queries=2)
    (kernel,) = joined_kernels(attention)
    assert kernel.schedule[0] == FuseRows(("i", "k", "j"), 2)
    assert set(attention.scratch).isdisjoint(kernel.arguments)


def test_contractions_stay_apart_where_scores_are_kept() -> None:
    kernels = joined_kernels(Attention(queries=2, keeps_scores=True))
    assert all("out" not in step.title for step in kernels)


@pytest.mark.parametrize("queries", [1, 2, 7, 64])
def test_attention_by_blocks_is_attention(queries: int) -> None:
    attention = Attention(queries)
    interp = subject_named("interp")
    before = interp.run(attention.program, attention.arrays)
    after = interp.run(attention.program, attention.arrays, (), by_blocks)
    np.testing.assert_array_equal(after[attention.out], before[attention.out])


def test_any_block_of_queries_is_right() -> None:
    attention = Attention(queries=6)
    nests = [kernel_nest(Block((stmt,))) for stmt in attention.nests]
    schedule = parse_kernel_schedule("rows i k j by 3; rows i k j; rows i k j; rows i k j")
    draft = attention.draft
    known = [nest for nest in nests if nest is not None]
    result = fuse_rows(known, schedule, draft.nodes)
    fills = [stmt for stmt in attention.stmts if isinstance(stmt, Fill | Allocate)]
    nodes = {**draft.nodes, **result.nodes}
    body = Block((*fills, *result.body.stmts))
    together = LoopProgram("together", tuple(draft.params), (), nodes, body)
    interp = subject_named("interp")
    before = interp.run(attention.program, attention.arrays)
    after = interp.run(together, attention.arrays)
    np.testing.assert_array_equal(after[attention.out], before[attention.out])


def planned(example: Example) -> Plan:
    return by_blocks(split_kernels(example.program), subject_named("interp").target)


def in_blocks(plan: Plan) -> list[Kernel]:
    """Return the kernels that run together a block of rows at a time."""
    steps = [step for step in plan.steps if isinstance(step, Kernel) and step.schedule]
    return [s for s in steps if isinstance(s.schedule[0], FuseRows) and s.schedule[0].size > 1]


@settings(
    max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(example=random_block_programs())
def test_gradients_by_blocks_are_those_of_the_whole(example: Example) -> None:
    interp = subject_named("interp")
    before = interp.run(example.program, example.arrays)
    after = interp.run(example.program, example.arrays, (), by_blocks)
    for node in example.program.params:
        np.testing.assert_array_equal(after[node], before[node])


@pytest.mark.parametrize("is_masked", [False, True])
def test_no_matrix_of_a_gradient_is_stored(is_masked: bool) -> None:
    example = block_program((2, 4), 96, 8, 3, is_masked=is_masked)
    plan = planned(example)
    (kernel,) = in_blocks(plan)
    assert kernel.schedule[0] == FuseRows(("i", "k", "j"), 48)
    assert [rows.axes for rows in kernel.schedule if isinstance(rows, FuseRows)].count(
        ("i", "k", "n")
    ) == 2, "sums over the rows of blocks"
    used = {node for step in plan.steps if isinstance(step, Kernel) for node in step.arguments}
    assert used.isdisjoint(plan.scratch)
    before = subject_named("interp").run(example.program, example.arrays)
    after = subject_named("interp").run(example.program, example.arrays, (), by_blocks)
    for node in example.program.params:
        np.testing.assert_array_equal(after[node], before[node])


def test_copies_that_all_blocks_use_are_made_once() -> None:
    (kernel,) = in_blocks(planned(block_program((2, 4), 96, 8, 3, gradients=())))
    packs = [each for each in kernel.schedule if isinstance(each, Pack)]
    assert packs
    assert all(pack.inside is None for pack in packs)


def test_a_few_sums_over_rows_are_left_to_kernels_of_their_own() -> None:
    """They would keep all but one or two threads waiting."""
    plan = planned(block_program((1, 2), 480, 33, 3, gradients=("keys",)))
    together = in_blocks(plan)
    assert together
    assert all("keys_grad" not in step.title for step in together)


def test_nodes_reuse_the_memory_of_dead_ones() -> None:
    draft = Draft("places")
    i, j = fresh_var("i"), fresh_var("j")
    a, b, c, d = (draft.scratch(name, float32, 3, 4) for name in "abcd")
    out, x = draft.node("out", float32, 3, 4), draft.node("x", float32, 3, 4)

    def nest(target: TensorNode, *sources: TensorNode) -> Nest:
        value: Expr = draft.load(sources[0], i, j)
        for source in sources[1:]:
            value = Binary(BinaryOp.ADD, value, draft.load(source, i, j), float32)
        found = kernel_nest(
            Block((loop(i, 3, loop(j, 4, draft.store(target, i, j, value=value))),))
        )
        assert found is not None
        return found

    def turned(target: TensorNode, source: TensorNode) -> Nest:
        store = draft.store(target, i, j, value=draft.load(source, j, i))
        found = kernel_nest(Block((loop(i, 3, loop(j, 3, store)),)))
        assert found is not None
        return found

    def places(*nests: Nest) -> dict[TensorNode, TensorNode]:
        return reuse_buffers(nests, (a, b, c, d), draft.nodes)

    assert places(nest(a, x), nest(b, a), nest(c, b), nest(out, c)) == {b: a, c: a}
    assert places(nest(a, x), nest(b, a), nest(out, a, b)) == {}  # a is still read
    assert places(nest(a, x), nest(b, x), nest(c, a, b), nest(out, c)) == {c: a}
    assert places(nest(a, x), turned(b, a), nest(out, b)) == {}  # at other cells
    assert places(nest(a, x), nest(b, a), nest(b, x), nest(out, b)) == {b: a}
