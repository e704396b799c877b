"""Motion of kernels to those whose results they read, and elimination of dead stores."""

from __future__ import annotations

from hypothesis import given, settings
from inline_snapshot import snapshot

from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Allocate, Binary, Const, Fill, Scope, Stmt, Unary
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count
from tests.support.schedules import schedule_by_rule

I, J, K = fresh_var("i"), fresh_var("j"), fresh_var("k")  # noqa: E741


def joined(plan: Plan, target: Target | None = None) -> Plan:
    """Fuse kernels without schedules."""
    return schedule_by_rule(plan, lambda nest, nodes: None)


def kernels(draft: Draft, *stmts: Stmt) -> list[str]:
    """Return the kernels of statements as text, only the lines that store something."""
    program = draft.program(*stmts)
    plan = joined(split_kernels(program))
    found = []
    for step in plan.steps:
        assert isinstance(step, Kernel)
        draft.nodes.update(plan.nodes)
        lines = to_text(draft.program(*step.body.stmts)).splitlines()[1:]
        found.append(" | ".join(line.strip() for line in lines if "=" in line))
    return found


class TrainingNests:
    """A weight's gradient, a use of the weight, the weight's update, as statements."""

    def __init__(self, *, is_kept: bool = False) -> None:
        self.draft = draft = Draft("step")
        self.a, self.b = draft.node("a", float32, 4, 6), draft.node("b", float32, 6, 4)
        self.w, self.e = draft.node("w", float32, 4, 4), draft.node("e", float32, 4, 4)
        made = draft.node if is_kept else draft.scratch
        self.g = made("g", float32, 4, 4)
        self.start: list[Stmt] = [] if is_kept else [Allocate(self.g, Scope.ROUTINE)]
        self.start.append(Fill(self.g, 0.0))

    def gradient(self) -> Stmt:
        return self.product(self.g, self.a, self.b, 6)

    def use(self) -> Stmt:
        return self.product(self.e, self.w, self.w, 4)

    def product(self, result: TensorNode, left: TensorNode, right: TensorNode, size: int) -> Stmt:
        load = self.draft.load
        term = Binary(BinaryOp.MUL, load(left, I, K), load(right, K, J), float32)
        update = self.draft.accumulate(result, I, J, op=BinaryOp.ADD, value=term)
        return loop(I, 4, loop(J, 4, loop(K, size, update)))

    def update(self) -> Stmt:
        load = self.draft.load
        scaled = Binary(BinaryOp.MUL, load(self.g, I, J), Const(0.5, float32), float32)
        value = Binary(BinaryOp.SUB, load(self.w, I, J), scaled, float32)
        return loop(I, 4, loop(J, 4, self.draft.store(self.w, I, J, value=value)))


def test_a_gradient_moves_behind_a_use_of_its_weight_to_the_update() -> None:
    step = TrainingNests(is_kept=True)
    found = kernels(step.draft, *step.start, step.gradient(), step.use(), step.update())
    assert found == snapshot(
        [
            "e[i, j] += w[i, k] * w[k, j]",
            "sums = 0.0 | sums += a[i, k] * b[k, j] | g[i, j] = sums | w[i, j] -= g[i, j] * 0.5",
        ]
    )


def test_an_update_moves_up_where_nothing_uses_the_weight_before() -> None:
    step = TrainingNests(is_kept=True)
    other = step.product(step.e, step.a, step.b, 6)
    found = kernels(step.draft, *step.start, step.gradient(), other, step.update())
    assert found == snapshot(
        [
            "sums = 0.0 | sums += a[i, k] * b[k, j] | g[i, j] = sums | w[i, j] -= g[i, j] * 0.5",
            "e[i, j] += a[i, k] * b[k, j]",
        ]
    )


def test_kernels_stay_where_a_move_would_violate_a_dependence() -> None:
    step = TrainingNests(is_kept=True)
    reader = step.product(step.e, step.g, step.w, 4)
    found = kernels(step.draft, *step.start, step.gradient(), reader, step.update())
    assert len(found) == 3


def test_a_number_that_one_kernel_alone_reads_is_not_stored() -> None:
    step = TrainingNests()
    found = kernels(step.draft, *step.start, step.gradient(), step.update())
    assert found == snapshot(["sums = 0.0 | sums += a[i, k] * b[k, j] | w[i, j] -= sums * 0.5"])


def test_a_number_that_another_kernel_reads_is_stored() -> None:
    step = TrainingNests()
    reader = step.product(step.e, step.g, step.g, 4)
    found = kernels(step.draft, *step.start, step.gradient(), step.update(), reader)
    assert "g[i, j] = " in found[0]


def test_a_number_is_stored_if_its_operands_change_before_it_is_read() -> None:
    draft = Draft("order")
    a, c = draft.node("a", float32, 4), draft.node("c", float32, 4)
    g = draft.scratch("g", float32, 4)
    copy = draft.store(g, I, value=draft.load(a, I))
    change = draft.store(a, I, value=Const(1.0, float32))
    both = Binary(BinaryOp.ADD, draft.load(g, I), draft.load(a, I), float32)
    late = draft.store(c, I, value=both)
    found = kernels(
        draft, Allocate(g, Scope.ROUTINE), *(loop(I, 4, s) for s in (copy, change, late))
    )
    assert found == snapshot(["g[i] = a[i] | a[i] = 1.0 | c[i] = g[i] + a[i]"])


def test_a_number_that_costs_much_is_computed_once() -> None:
    draft = Draft("twice")
    a, b, c = (draft.node(name, float32, 4) for name in "abc")
    g = draft.scratch("g", float32, 4)
    costly = draft.store(g, I, value=Unary(UnaryOp.EXP, draft.load(a, I), float32))
    first = draft.store(b, I, value=draft.load(g, I))
    second = draft.store(c, I, value=draft.load(g, I))
    start = Allocate(g, Scope.ROUTINE)
    once = kernels(draft, start, loop(I, 4, costly), loop(I, 4, first))
    twice = kernels(draft, start, loop(I, 4, costly), loop(I, 4, first), loop(I, 4, second))
    assert "g[" not in "".join(once)
    assert "g[" in "".join(twice)


@settings(max_examples=example_count(30), deadline=None)
@given(example=random_programs(dtypes=(int32, float32), max_nests=8))
def test_moving_and_forwarding_change_no_bit(example: Example) -> None:
    interp = subject_named("interp")
    before = interp.run(example.program, example.arrays, example.indices)
    after = interp.run(example.program, example.arrays, example.indices, joined)
    for node in example.program.params:
        assert before[node].tobytes() == after[node].tobytes(), node.name
