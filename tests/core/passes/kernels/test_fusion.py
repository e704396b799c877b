"""Joining fills and neighbors: fewer kernels, the same bits."""

from __future__ import annotations

from hypothesis import given, settings
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import affine, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Binary, Fill, Stmt, Unary
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import subject_named
from tests.support.schedules import schedule_by_rule

I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741


def joined(plan: Plan, target: Target | None = None) -> Plan:
    """Joins kernels and gives none a schedule."""
    return schedule_by_rule(plan, lambda nest, nodes: None)


def kernels(draft: Draft, *stmts: Stmt) -> list[str]:
    """Return the kernels of statements as text."""
    plan = joined(split_kernels(draft.program(*stmts)))
    found = []
    for step in plan.steps:
        assert isinstance(step, Kernel)
        draft.nodes.update(plan.nodes)
        text = to_text(draft.program(*step.body.stmts))
        found.append("\n".join(line for line in text.splitlines() if line.startswith("  ")))
    return found


def test_a_fill_and_an_activation_join_the_sum_between_them() -> None:
    draft = Draft("layer")
    a, b = draft.node("a", float32, 4, 6), draft.node("b", float32, 6, 5)
    c, r = draft.node("c", float32, 4, 5), draft.node("r", float32, 4, 5)
    product = Binary(BinaryOp.MUL, draft.load(a, I, K), draft.load(b, K, J), float32)
    update = draft.accumulate(c, I, J, op=BinaryOp.ADD, value=product)
    relu = draft.store(r, I, J, value=Unary(UnaryOp.RELU, draft.load(c, I, J), float32))
    found = kernels(
        draft,
        Fill(c, 0.0),
        loop(I, 4, loop(J, 5, loop(K, 6, update))),
        loop(I, 4, loop(J, 5, relu)),
    )
    assert "\n---\n".join(found) == snapshot("""\
    for i in range(4):
        for j in range(5):
            block:
                thread sums: float32[]
                sums = 0.0
                for k in range(6):
                    sums += a[i, k] * b[k, j]
                c[i, j] = sums
                r[i, j] = relu(c[i, j])\
""")


def test_a_fill_stays_where_cells_beyond_the_sum_need_it() -> None:
    draft = Draft("partly")
    a, c = draft.node("a", float32, 4, 6), draft.node("c", float32, 5)
    update = draft.accumulate(c, I, op=BinaryOp.ADD, value=draft.load(a, I, K))
    assert len(kernels(draft, Fill(c, 0.0), loop(I, 4, loop(K, 6, update)))) == 2


def test_a_neighbor_that_reads_other_cells_waits() -> None:
    draft = Draft("shift")
    a, b, c = (draft.node(name, float32, 6) for name in "abc")
    copy = draft.store(b, I, value=draft.load(a, I))
    shifted = draft.store(c, J, value=draft.load(b, affine([(1, J)], 1)))
    assert len(kernels(draft, loop(I, 5, copy), loop(J, 5, shifted))) == 2


def test_a_kernel_that_overwrites_cells_of_other_iterations_is_not_fused() -> None:
    draft = Draft("overwrite")
    a, b, c = (draft.node(name, float32, 6) for name in "abc")
    shifted = draft.store(b, I, value=draft.load(a, affine([(1, I)], 1)))
    overwrite = draft.store(a, J, value=draft.load(c, J))
    assert len(kernels(draft, loop(I, 5, shifted), loop(J, 5, overwrite))) == 2


def test_a_neighbor_over_another_domain_waits() -> None:
    draft = Draft("domains")
    a, b = draft.node("a", float32, 6), draft.node("b", float32, 6)
    first = draft.accumulate(a, I, op=BinaryOp.MUL, value=draft.load(b, I))
    second = draft.accumulate(b, J, op=BinaryOp.ADD, value=draft.load(b, J))
    assert len(kernels(draft, loop(I, 5, first), loop(J, 6, second))) == 2


@settings(max_examples=40, deadline=None)
@given(example=random_programs(max_nests=5))
def test_joining_changes_no_bit(example: Example) -> None:
    interp = subject_named("interp")
    before = interp.run(example.program, example.arrays, example.indices)
    after = interp.run(example.program, example.arrays, example.indices, joined)
    for node in example.program.params:
        assert before[node].tobytes() == after[node].tobytes(), node.name
