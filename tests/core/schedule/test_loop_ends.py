"""Schedules of nests whose axes end at run time, by the reference interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import StaticExtent, VarIndex
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import axes_of_kind, parse_schedule, schedule_text
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import Block, For, LoopBound, LoopProgram, Stmt
from ocannl_core.ir.loops.traverse import map_stmts
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import loop
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.core.schedule.test_apply import scheduled
from tests.support.example_count import example_count
from tests.support.reductions import fitting_schedules, random_reductions


def nest_of(program: LoopProgram) -> Nest:
    nest = kernel_nest(program.body)
    assert nest is not None
    return nest


def with_ends(program: LoopProgram, extents: dict[object, StaticExtent]) -> LoopProgram:
    """Return a program in which some loops, by their variables, end at extents."""

    def end(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.var in extents:
            return replace(stmt, bound=LoopBound(VarIndex(stmt.var), extents[stmt.var]))
        return stmt

    body = map_stmts(program.body, end)
    return replace(program, indices=(*program.indices, *extents.values()), body=body)


@settings(
    max_examples=example_count(75),
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    example=random_reductions(most_steps=400) | random_reductions(float32, most_steps=400),
    data=st.data(),
)
def test_a_schedule_changes_no_result_before_the_ends(
    example: Example, data: st.DataObject
) -> None:
    plain = nest_of(example.program)
    assume(not any(axis.is_shifting for axis in plain.axes))
    (store,) = plain.epilogue
    able = [
        axis
        for axis in plain.axes
        if axis.extent > 1 and (axis.is_reduced or VarIndex(axis.var) in store.indices)
    ]
    chosen = [axis for axis in able if data.draw(st.booleans())]
    extents = {a.var: StaticExtent(f"n{a.name}", a.start + a.extent + 1) for a in chosen}
    program = with_ends(example.program, dict(extents))
    sizes = [data.draw(st.integers(0, each.maximum)) for each in extents.values()]
    nest = nest_of(program)
    schedule = data.draw(fitting_schedules(nest))
    assume(not axes_of_kind(schedule, AxisKind.DOT))
    changed = scheduled(program, schedule)
    verify(changed)
    interp = subject_named("interp")
    before = interp.run(program, example.arrays, sizes)
    after = interp.run(changed, example.arrays, sizes)
    for node in program.params:
        inside: list[slice] = [slice(None)] * after[node].ndim
        if node is store.node:
            for (var, _), size in zip(extents.items(), sizes, strict=True):
                if VarIndex(var) in store.indices:
                    inside[store.indices.index(VarIndex(var))] = slice(0, size)
        at = tuple(inside)
        np.testing.assert_array_equal(after[node][at], before[node][at], schedule_text(schedule))


PRODUCT = """\
routine product(a: float32[20, 12], b: float32[12, 40], c: float32[20, 40], static n <= 20, static k <= 12):
    for i in range(20) while i < n:
        for j in range(40):
            for l in range(12) while l < k:
                c[i, j] += a[i, l] * b[l, j]"""


@pytest.mark.parametrize(
    "text",
    [
        "split i 6; order i0 k i1 j; unroll i1; vectorize j; accumulate over k fused",
        "split i 6 evenly; split j 16; order j0 i0 k i1 j1; unroll i1; vectorize j1; "
        "pack 1 inside j0 as k j1; accumulate over k fused",
        "split k 5; split j 8; order k0 i j0 k1 j1; vectorize j1; accumulate over k1",
        "split k 4; order i j k0 k1; vectorize k1; accumulate over k0",
        "split k 8; split k1 4; order i j k0 k10 k11; unroll k10; vectorize k11; accumulate over k0",
    ],
)
def test_blocks_run_as_long_as_a_row_is_left_and_terms_to_the_end(text: str) -> None:
    program = parse(PRODUCT)
    changed = scheduled(program, parse_schedule(text))
    verify(changed)
    a, b, c = program.params
    random = np.random.default_rng(0)
    arrays = {
        node: random.integers(-3, 4, program.nodes[node].dims).astype(np.float32) for node in (a, b)
    }
    for name in ("interp", "cpu_c"):
        subject = subject_named(name)
        for n, k in ((20, 12), (13, 7), (1, 1), (6, 0), (0, 5)):
            found = subject.run(changed, arrays, (n, k))[c]
            np.testing.assert_array_equal(found[:n], arrays[a][:n, :k] @ arrays[b][:k])


def test_terms_that_end_at_run_time_are_not_paired() -> None:
    nest = nest_of(parse(PRODUCT))
    text = "split k 2; order i k0 j k1; vectorize j; dot k1; accumulate over k0 fused"
    with pytest.raises(UsageError, match="An axis that ends at run time is reduced term by term"):
        apply_schedule(nest, parse_schedule(text))


def test_a_nest_is_read_with_the_ends_of_its_loops() -> None:
    i, j, k = nest_of(parse(PRODUCT)).axes
    assert [axis.bound is not None for axis in (i, j, k)] == [True, False, True]
    assert i.domain != j.domain
    assert k.is_reduced


def test_a_loop_that_ends_with_another_one_is_no_axis() -> None:
    text = PRODUCT.replace("while l < k", "while i + l < k")
    assert kernel_nest(parse(text).body) is None
    assert kernel_nest(Block((loop(nest_of(parse(PRODUCT)).axes[0].var, 3),))) is None
