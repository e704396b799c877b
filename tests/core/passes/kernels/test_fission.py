"""Fission of kernels with several reductions or nests; large nodes that are computed again."""

from __future__ import annotations

import numpy as np
import pytest

from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.printer import to_text
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    Const,
    Expr,
    Local,
    LocalRead,
    LoopProgram,
    Scoped,
    SetLocal,
    Unary,
)
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.kernels.fission import distribute_rows, split_inlined_reductions
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.subject import subject_named

ROWS, LENGTH = 5, 7
I, K = fresh_var("i"), fresh_var("k")  # noqa: E741


def total(number: int, term: Expr) -> Scoped:
    """Return the sum of a term over k, inlined."""
    local = Local(number, float32)
    more = SetLocal(local, Binary(BinaryOp.ADD, LocalRead(local), term, float32))
    start = SetLocal(local, Const(0.0, float32))
    return Scoped(local, Block((start, loop(K, LENGTH, more))))


class TwoSums:
    """`y[i] = log(sum of exp(x[i, k])) - sum of x[i, k] * t[i, k]`."""

    def __init__(self) -> None:
        draft = self.draft = Draft("two_sums")
        self.x, self.t = (draft.node(name, float32, ROWS, LENGTH) for name in "xt")
        self.y = draft.node("y", float32, ROWS)
        x, t = draft.load(self.x, I, K), draft.load(self.t, I, K)
        first = Unary(UnaryOp.LOG, total(0, Unary(UnaryOp.EXP, x, float32)), float32)
        second = total(0, Binary(BinaryOp.MUL, x, t, float32))
        self.value = Binary(BinaryOp.SUB, first, second, float32)

    def program(self, value: Expr | None = None) -> LoopProgram:
        store = self.draft.store(self.y, I, value=value or self.value)
        return self.draft.program(loop(I, ROWS, store))


def test_each_of_several_reductions_has_a_kernel() -> None:
    program = TwoSums().program()
    assert kernel_nest(program.body) is None
    found = split_inlined_reductions(split_kernels(program))
    assert [found.nodes[node].dims for node in found.scratch] == [(ROWS,), (ROWS,)]
    nests = [kernel_nest(step.body) for step in found.steps if isinstance(step, Kernel)]
    assert [nest is not None and nest.reduction is not None for nest in nests] == [
        True,
        True,
        False,
    ]


def test_reductions_without_outer_loops_have_kernels_as_well() -> None:
    draft = Draft("products")
    x, y = draft.node("x", float32, LENGTH), draft.node("y", float32, 1)
    first, second = (total(0, term) for term in (draft.load(x, K), Const(2.0, float32)))
    store = draft.store(y, 0, value=Binary(BinaryOp.MUL, first, second, float32))
    found = split_inlined_reductions(split_kernels(draft.program(store)))
    assert [found.nodes[node].dims for node in found.scratch] == [(), ()]
    nests = [kernel_nest(step.body) for step in found.steps if isinstance(step, Kernel)]
    assert [nest is not None for nest in nests] == [True, True, False]


def test_one_reduction_stays_where_it_is() -> None:
    sums = TwoSums()
    one = total(0, sums.draft.load(sums.x, I, K))
    plan = split_kernels(sums.program(Binary(BinaryOp.MUL, one, one, float32)))
    assert split_inlined_reductions(plan) == plan


def test_reductions_of_nodes_that_the_kernel_writes_are_not_moved() -> None:
    sums = TwoSums()
    of_result = total(0, sums.draft.load(sums.y, K))
    plan = split_kernels(sums.program(Binary(BinaryOp.SUB, sums.value, of_result, float32)))
    assert split_inlined_reductions(plan) == plan


def test_separate_reductions_give_the_same_bits() -> None:
    sums, interp = TwoSums(), subject_named("interp")
    random = np.random.default_rng(0)
    arrays = {
        sums.x: random.standard_normal((ROWS, LENGTH), dtype=np.float32),
        sums.t: random.standard_normal((ROWS, LENGTH), dtype=np.float32),
        sums.y: np.zeros(ROWS, np.float32),
    }
    program = sums.program()

    before = interp.run(program, arrays)
    after = interp.run(program, arrays, (), lambda plan, target: split_inlined_reductions(plan))
    np.testing.assert_array_equal(after[sums.y], before[sums.y])


def rows(first: str, second: str) -> Plan:
    return split_kernels(
        parse(
            f"""routine test(x: float32[8, 8], y: float32[8, 8]):
    for i in range(8):
        for j in range(3):
            {first}
        for j in range(3, 8):
            {second}"""
        )
    )


def test_loops_are_distributed_among_their_nests() -> None:
    found = distribute_rows(rows("y[i, j] = 0.0", "y[i, j] = exp(x[i, j - 3])"))
    assert len(found.steps) == 2
    assert all(
        isinstance(each, Kernel) and kernel_nest(each.body) is not None for each in found.steps
    )
    assert to_text(found).count("for i in range(8)") == 2


def test_loops_inside_are_distributed_and_stores_beside_them() -> None:
    plan = split_kernels(
        parse(
            """routine test(x: float32[8, 8, 8], y: float32[8, 8, 8]):
    for i in range(8):
        for j in range(8):
            y[i, 0, j] = 0.0
        for j in range(1, 8):
            y[i, j, 0] = 0.0
            for k in range(1, 8):
                y[i, j, k] = exp(x[i, j - 1, k - 1])"""
        )
    )
    found = distribute_rows(plan)
    assert len(found.steps) == 3
    assert all(
        isinstance(each, Kernel) and kernel_nest(each.body) is not None for each in found.steps
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("y[i, j] = 0.0", "y[i, j] = x[i, j - 3]"),
        ("y[i, j] = exp(x[i, j])", "y[i, j] = y[7 - i, 0]"),
        ("y[0, j] = exp(x[i, j])", "y[i, j] = x[i, j]"),
    ],
    ids=["which compilers vectorize", "read from another row", "written in every row"],
)
def test_other_loops_stay_together(first: str, second: str) -> None:
    plan = rows(first, second)
    assert to_text(distribute_rows(plan)) == to_text(plan)
