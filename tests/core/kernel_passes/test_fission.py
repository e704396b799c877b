"""Several inlined reductions in one store, and large nodes that are computed again."""

from __future__ import annotations

import numpy as np
import pytest

from ocannl_core.dtypes import float32
from ocannl_core.indexing import fresh_var
from ocannl_core.kernel_passes.fission import split_inlined_reductions
from ocannl_core.kernel_passes.recognise_nests import recognise_nests
from ocannl_core.kernel_passes.rematerialisation import rematerialise
from ocannl_core.kernel_passes.split_kernels import split_kernels
from ocannl_core.kernels.nest import kernel_nest
from ocannl_core.kernels.nest_plan import mentioned
from ocannl_core.kernels.nodes import Kernel, Plan
from ocannl_core.loopir.nodes import (
    Allocate,
    Binary,
    Block,
    Const,
    Expr,
    Local,
    LocalRead,
    LoopProgram,
    Scope,
    Scoped,
    SetLocal,
    Unary,
)
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.testing.drafts import Draft, loop
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


# ----- computed again -----------------------------------------------------------------------------


class Differences:
    """`d = x - m`, `v = the sum of d * d over rows`, `y = d * s`."""

    def __init__(self, cost: UnaryOp | None = None) -> None:
        draft = self.draft = Draft("differences")
        self.x, self.y = (draft.node(name, float32, ROWS, LENGTH) for name in "xy")
        self.m, self.s, self.v = (draft.node(name, float32, LENGTH) for name in "msv")
        self.d = draft.scratch("d", float32, ROWS, LENGTH)
        cell = draft.load(self.d, I, K)
        value: Expr = Binary(BinaryOp.SUB, draft.load(self.x, I, K), draft.load(self.m, K), float32)
        if cost is not None:
            value = Unary(cost, value, float32)
        square = Binary(BinaryOp.MUL, cell, cell, float32)
        scaled = Binary(BinaryOp.MUL, cell, draft.load(self.s, K), float32)
        self.stmts = [
            draft.store(self.d, I, K, value=value),
            draft.accumulate(self.v, K, op=BinaryOp.ADD, value=square),
            draft.store(self.y, I, K, value=scaled),
        ]

    def plan(self) -> Plan:
        body = [loop(I, ROWS, loop(K, LENGTH, each)) for each in self.stmts]
        return split_kernels(self.draft.program(Allocate(self.d, Scope.ROUTINE), *body))

    def nodes_left(self, cache: int) -> frozenset[TensorNode]:
        """Return the nodes that the kernels mention."""
        found = rematerialise(recognise_nests(self.plan()), cache)
        return frozenset(node for step in found.steps for node in mentioned(step))


def test_a_large_node_that_is_cheap_is_computed_by_its_readers() -> None:
    differences = Differences()
    assert differences.d not in differences.nodes_left(cache=4 * ROWS * LENGTH - 1)


def test_a_node_that_a_cache_holds_is_stored() -> None:
    differences = Differences()
    assert differences.d in differences.nodes_left(cache=4 * ROWS * LENGTH)


def test_costly_nodes_are_stored() -> None:
    differences = Differences(UnaryOp.EXP)
    assert differences.d in differences.nodes_left(cache=1)


@pytest.mark.parametrize("changed", ["x", "m"])
def test_a_node_is_stored_if_its_operands_change(changed: str) -> None:
    differences = Differences()
    draft, node = differences.draft, {"x": differences.x, "m": differences.m}[changed]
    places = (I, K) if changed == "x" else (K,)
    zero = draft.store(node, *places, value=Const(0.0, float32))
    differences.stmts.insert(2, zero)
    assert differences.d in differences.nodes_left(cache=1)


def test_a_node_is_stored_if_its_readers_would_load_more() -> None:
    differences = Differences()
    draft = differences.draft
    others = [draft.node(name, float32, ROWS, LENGTH) for name in "abc"]
    value = draft.load(differences.x, I, K)
    sums: Expr = value
    for other in others:
        sums = Binary(BinaryOp.ADD, sums, draft.load(other, I, K), float32)
    differences.stmts[0] = draft.store(differences.d, I, K, value=sums)
    assert differences.d in differences.nodes_left(cache=1)
