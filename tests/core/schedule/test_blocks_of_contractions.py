"""Contractions whose results are used block by block: attention without its matrix of scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ocannl_core.dtypes import float32
from ocannl_core.indexing import fresh_var
from ocannl_core.loopir.nodes import Allocate, Binary, Block, Fill, LoopProgram, Scope, Stmt
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp
from ocannl_core.schedule.cells import cell_nest
from ocannl_core.schedule.default import scheduled
from ocannl_core.schedule.grouping.frame import joined
from ocannl_core.schedule.plan import Nest, Plan
from ocannl_core.schedule.split import split
from ocannl_core.schedule.transforms import Rows, parse
from ocannl_core.target import Target
from ocannl_core.testing.compare import Array
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.subject import subject_named

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
    return scheduled(plan, replace(wide, cache_bytes=(256, 1024, 1 << 20)))


def joined_kernels(attention: Attention) -> list[Nest]:
    """Returns the kernels of several nests."""
    plan = by_blocks(split(attention.program), subject_named("interp").target)
    steps = [step for step in plan.steps if isinstance(step, Nest)]
    return [step for step in steps if sum(isinstance(t, Rows) for t in step.schedule) > 1]


def test_scores_exist_for_one_block_at_a_time() -> None:
    attention = Attention(queries=2)
    (kernel,) = joined_kernels(attention)
    assert kernel.schedule[0] == Rows(("i", "k", "j"), 2)
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
    nests = [cell_nest(Block((stmt,))) for stmt in attention.nests]
    schedule = parse("rows i k j by 3; rows i k j; rows i k j; rows i k j")
    draft = attention.draft
    known = [nest for nest in nests if nest is not None]
    result = joined(known, schedule, draft.nodes)
    fills = [stmt for stmt in attention.stmts if isinstance(stmt, Fill | Allocate)]
    nodes = {**draft.nodes, **result.nodes}
    body = Block((*fills, *result.body.stmts))
    together = LoopProgram("together", tuple(draft.params), (), nodes, body)
    interp = subject_named("interp")
    before = interp.run(attention.program, attention.arrays)
    after = interp.run(together, attention.arrays)
    np.testing.assert_array_equal(after[attention.out], before[attention.out])
