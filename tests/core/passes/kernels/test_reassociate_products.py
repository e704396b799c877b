"""Sum of products of several factors, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestReplacement
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.loops.nodes import Allocate, Binary, Block, Expr, LoopProgram, Scope, Stmt
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.reassociate_products import reassociate_nest
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from tests.support.reductions import random_reductions

Interpret = Callable[..., dict[TensorNode, Any]]


def contraction(spec: str, extents: Mapping[str, int]) -> tuple[LoopProgram, dict[TensorNode, Any]]:
    """Return the sum of products that NumPy calls `spec`, and arrays of small integers."""
    inputs, output = spec.split("->")
    draft, variables = Draft("contraction"), {name: fresh_var(name) for name in extents}
    numbers = np.random.default_rng(0)
    arrays: dict[TensorNode, Any] = {}
    factors: list[Expr] = []
    for names in inputs.split(","):
        size = [extents[name] for name in names]
        node = draft.node("x", int32, *size)
        arrays[node] = numbers.integers(-2, 3, size).astype(np.int32)
        factors.append(draft.load(node, *(variables[name] for name in names)))
    result = draft.node("result", int32, *(extents[name] for name in output))
    cell = [variables[name] for name in output]
    body: Stmt = draft.accumulate(result, *cell, op=BinaryOp.ADD, value=reduce(_times, factors))
    for name in reversed([*output, *(each for each in extents if each not in output)]):
        body = loop(variables[name], extents[name], body)
    return draft.program(body), arrays


def _times(left: Expr, right: Expr) -> Expr:
    return Binary(BinaryOp.MUL, left, right, int32)


def stages(spec: str, **extents: int) -> list[tuple[str, str]] | None:
    """Return the axes of cells, and those that are summed over, of each stage."""
    program, _ = contraction(spec, extents)
    nest = kernel_nest(program.body)
    assert nest is not None
    found = reassociate_nest(nest, program.nodes)
    if found is None:
        return None

    def names(axes: Any) -> str:
        return "".join(sorted(axis.var.hint for axis in axes))

    return [(names(each.output_axes), names(each.reduced)) for each in found.nests]


def test_the_cheapest_order_of_a_chain_is_taken() -> None:
    chain = "ij,jk,kl->il"
    assert stages(chain, i=64, j=64, k=64, l=8) == [("jl", "k"), ("il", "j")]
    assert stages(chain, i=8, j=64, k=64, l=64) == [("ik", "j"), ("il", "k")]
    assert stages("ij,jk,kl,lm->im", i=64, j=64, k=64, l=64, m=4) == [
        ("km", "l"),
        ("jm", "k"),
        ("im", "j"),
    ]


def test_factors_with_a_common_axis_are_contracted_with_one_another() -> None:
    assert stages("bi,ij,bj->b", b=64, i=48, j=48) == [("bj", "i"), ("b", "j")]
    assert stages("abc,ai,bj->ijc", a=16, b=16, c=16, i=16, j=16) in (
        [("bci", "a"), ("cij", "b")],
        [("acj", "b"), ("cij", "a")],
    )


def test_factors_without_summed_axes_are_multiplied_last() -> None:
    assert stages("i,ij,jk->ik", i=64, j=64, k=64) == [("ik", "j"), ("ik", "once")]


def test_a_sum_that_is_spread_is_computed_once() -> None:
    assert stages("ik,ij->ij", i=64, j=64, k=64) == [("i", "k"), ("ij", "once")]


@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij,ij,ij->i", "ai,bi,ci->abc", "ij,j,jk->ik"])
def test_products_without_savings_by_stages_stay_whole(spec: str) -> None:
    names = sorted(set(spec) - set(",->"))
    assert stages(spec, **dict.fromkeys(names, 32)) is None


def test_little_work_stays_whole() -> None:
    assert stages("ij,jk,kl->il", i=8, j=8, k=8, l=8) is None


def test_short_sums_across_the_lanes_of_vectors_stay_whole() -> None:
    scaled = "bk,nbk,nb->n"
    assert stages(scaled, n=64, b=32, k=32) is None
    assert stages(scaled, n=64, b=2, k=1024) == [("bn", "k"), ("n", "b")]
    assert stages("bk,bkn,bn->n", n=64, b=32, k=32) == [("bn", "k"), ("n", "b")]
    assert stages("mbk,nbk,nb->mn", m=16, n=64, b=32, k=32) == [("bmn", "k"), ("mn", "b")]


def joined(program: LoopProgram, found: NestReplacement) -> LoopProgram:
    """Return stages as a program."""
    stmts: list[Stmt] = [Allocate(node, Scope.ROUTINE) for node in found.made]
    nodes: dict[TensorNode, NodeInfo] = {**program.nodes, **found.made}
    for each in found.nests:
        result = apply_schedule(each, ())
        stmts.append(result.body)
        nodes.update(result.nodes)
    return LoopProgram(program.name, program.params, (), nodes, Block(tuple(stmts)))


def always(nest: Nest | None, program: LoopProgram) -> NestReplacement | None:
    """Return the best stages even where one nest is better."""
    if nest is None:
        return None
    return reassociate_nest(nest, program.nodes, least_saved=-(1 << 62), most_left=float("inf"))


@pytest.mark.parametrize(
    "spec", ["ij,jk,kl->il", "ai,bj,ab,ij->", "bi,kij,bj->bk", "i,ij,jk->ki", "ik,ij->ij"]
)
def test_staged_sums_agree_with_one_sum(spec: str, interpret: Interpret) -> None:
    extents = {name: 3 + number for number, name in enumerate(sorted(set(spec) - set(",->")))}
    program, arrays = contraction(spec, extents)
    found = always(kernel_nest(program.body), program)
    assert found is not None
    after = interpret(joined(program, found), arrays)
    expected = np.einsum(spec, *arrays.values(), optimize=True)
    (result,) = (node for node in program.params if node not in arrays)
    np.testing.assert_array_equal(after[result], expected)


def test_staged_reductions_agree_with_the_whole(interpret: Interpret) -> None:
    staged_nests = 0

    @settings(
        max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(random_reductions(int32, (1, 2, 3, 4, 7)))
    def check(example: Example) -> None:
        """Compare with exact results: small integers add and multiply exactly in any order."""
        nonlocal staged_nests
        program = example.program
        found = always(kernel_nest(program.body), program)
        if found is None:
            return
        staged_nests += len(found.nests) > 1
        before = interpret(program, example.arrays)
        after = interpret(joined(program, found), example.arrays)
        for node, cells in before.items():
            np.testing.assert_array_equal(after[node], cells)

    check()
    assert staged_nests > 15
