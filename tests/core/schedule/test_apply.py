"""Schedules preserve the results of a nest, by the reference interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import FixedIndex, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import Schedule, parse_schedule, schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block, Const, LoopProgram
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count
from tests.support.reductions import fitting_schedules, random_reductions


def scheduled(program: LoopProgram, schedule: Schedule) -> LoopProgram:
    nest = kernel_nest(program.body)
    assert nest is not None
    result = apply_schedule(nest, schedule, program.nodes)
    # inside a loop, blocks keep their own memory when the program is cut into kernels
    body = Block((loop(fresh_var(), 1, result.body),))
    return replace(program, nodes={**program.nodes, **result.nodes}, body=body)


@settings(
    max_examples=150,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    example=random_reductions(most_steps=400) | random_reductions(float32, most_steps=400),
    data=st.data(),
)
def test_a_schedule_changes_no_result(example: Example, data: st.DataObject) -> None:
    nest = kernel_nest(example.program.body)
    assert nest is not None
    schedule = data.draw(fitting_schedules(nest))
    assert parse_schedule(schedule_text(schedule)) == schedule
    program = scheduled(example.program, schedule)
    verify(program)
    interp = subject_named("interp")
    before = interp.run(example.program, example.arrays)
    after = interp.run(program, example.arrays)
    for node in example.program.params:
        np.testing.assert_array_equal(after[node], before[node], schedule_text(schedule))


def _with_other_ends(nest: Nest, number: float | None, additions: int) -> Nest:
    """Return a nest whose sums start from a number, and with additions in its epilogue."""
    assert nest.reduction is not None
    reduction, (store,) = nest.reduction, nest.epilogue
    if number is not None:
        reduction = replace(reduction, initial=Const(number, reduction.dtype))
    value = store.value
    for _ in range(additions):
        value = Binary(BinaryOp.ADD, value, Const(1, value.dtype), value.dtype)
    return replace(nest, reduction=reduction, epilogue=(replace(store, value=value),))


@settings(
    max_examples=example_count(50),
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    example=random_reductions(most_steps=400) | random_reductions(float32, most_steps=400),
    number=st.sampled_from([None, 0, 3]),
    additions=st.sampled_from([0, 1, 12]),
    data=st.data(),
)
def test_sums_start_and_finish_as_they_should_by_every_schedule(
    example: Example, number: float | None, additions: int, data: st.DataObject
) -> None:
    nest = kernel_nest(example.program.body)
    assert nest is not None
    # cells that shift are added to more than once
    assume(nest.reduction is not None and not any(axis.is_shifting for axis in nest.axes))
    changed = _with_other_ends(nest, number, additions)
    schedule = data.draw(fitting_schedules(changed))
    found = []
    for each in ((), schedule):
        result = apply_schedule(changed, each, example.program.nodes)
        nodes = {**example.program.nodes, **result.nodes}
        body = Block((loop(fresh_var(), 1, result.body),))
        program = replace(example.program, nodes=nodes, body=body)
        verify(program)
        found.append(subject_named("interp").run(program, example.arrays))
    for node in example.program.params:
        np.testing.assert_array_equal(found[1][node], found[0][node], schedule_text(schedule))


def _result_of(nest: Nest, draft: Draft, schedule: str) -> object:
    """Return the cells of `c` after a nest over ones."""
    result = apply_schedule(nest, parse_schedule(schedule))
    nodes = {**draft.nodes, **result.nodes}
    body = Block((loop(fresh_var(), 1, result.body),))
    program = replace(draft.program(), nodes=nodes, body=body)
    arrays = {node: np.ones(draft.nodes[node].dims, np.float32) for node in draft.params}
    return subject_named("interp").run(program, arrays)[draft.params[2]].tolist()


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "split k 2; order k0 i j k1; accumulate over k1",
        "split i 4; order i0 j k i1; unroll i1",
        "split i 4; order i0 j k i1; unroll k i1",
        "unroll i1; order i0 j k i1; split i 4",
    ],
)
def test_sums_of_ones_are_initial_value_plus_count_plus_epilogue(schedule: str) -> None:
    draft = Draft("product")
    nest = product(draft=draft)
    started = _with_other_ends(nest, 3, 0)
    assert _result_of(started, draft, schedule) == [[10.0] * 5] * 6
    if "k0" not in schedule:
        finished = _with_other_ends(nest, 3, 12)
        assert _result_of(finished, draft, schedule) == [[22.0] * 5] * 6


def product(rows: int = 6, terms: int = 7, columns: int = 5, draft: Draft | None = None) -> Nest:
    """Return `c[i, j] += a[i, k] * b[k, j]`."""
    draft = draft if draft is not None else Draft("product")
    i, j, k = (fresh_var(name) for name in "ijk")
    a, b = draft.node("a", float32, rows, terms), draft.node("b", float32, terms, columns)
    c = draft.node("c", float32, rows, columns)
    term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
    update = draft.accumulate(c, i, j, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(i, rows, loop(j, columns, loop(k, terms, update))),)))
    assert nest is not None
    return nest


@pytest.mark.parametrize(
    ("schedule", "rule"),
    [
        ("split m 2", "An axis, or the inside of its blocks, is split once"),
        ("split i 2; split i0 2", "An axis, or the inside of its blocks, is split once"),
        ("order i j", "An order has the axes i j k, each once"),
        ("split i 2; order i1 i0 j k", "The loop over blocks runs outside of the blocks"),
        ("unroll i0", "The axes after all splits are i j k"),
        ("vectorize i", "The innermost axis alone is vectorized"),
        ("parallelize k", "Reduced axes do not run in parallel"),
        ("pack 2 as i", "Operands of this nest are numbered from 0 to 1"),
        ("pack 0 as i", "A packed buffer has the axes of the operand inside its loop"),
        ("pack 0 inside i as i k", "A packed buffer has the axes of the operand inside its loop"),
        ("pack 0 as i k; pack 0 as k i", "An operand is packed once"),
        ("accumulate over k0", "The axes after all splits are i j k"),
        ("shuffle 32", "A schedule for a processor has no such transform"),
        ("pipeline k in 2", "A schedule for a processor has no such transform"),
        ("grid i; parallelize j", "On thread blocks, a schedule does not parallelize"),
        ("grid i; block i", "An axis is mapped to the grid or to a block once"),
        ("grid k", "Reduced axes do not run in parallel"),
        ("block i; tile i j k", "A schedule has one pipeline"),
        ("block j; pack 0 inside i as j", "A packed buffer has the axes of the operand inside"),
        ("block j; pack 0 as i k", "A factor of the term is packed inside of a serial loop"),
        ("grid i; vectorize i", "A thread loads and stores neighboring iterations of one axis"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(schedule: str, rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        apply_schedule(product(), parse_schedule(schedule))


def test_axes_that_run_along_memory_together_are_packed_in_one_row_of_squares() -> None:
    draft = Draft("product")
    i, j, c, k = (fresh_var(name) for name in "ijck")
    x, w = draft.node("x", float32, 7, 3, 5), draft.node("w", float32, 8, 3, 5, 1)
    y = draft.node("y", float32, 7, 8)
    term = Binary(
        BinaryOp.MUL, draft.load(x, i, c, k), draft.load(w, j, c, k, FixedIndex(0)), float32
    )
    update = draft.accumulate(y, i, j, op=BinaryOp.ADD, value=term)
    nest = kernel_nest(Block((loop(i, 7, loop(j, 8, loop(c, 3, loop(k, 5, update)))),)))
    assert nest is not None
    schedule = (
        "split j 4; order j0 i k m j1; vectorize j1; pack 1 inside j0 as k m j1; accumulate over k"
    )
    result = apply_schedule(nest, parse_schedule(schedule), draft.nodes)
    program = replace(draft.program(), nodes={**draft.nodes, **result.nodes}, body=result.body)
    verify(program)
    text = to_text(program)
    assert text[text.index("kernel") : text.index("for i in")].rstrip() == snapshot("""\
kernel packed1: float32[3, 5, 4]
        for c in range(3):
            for c1 in vector(4):
                for j1 in vector(4):
                    packed1[_, 4*c + c1, j1] = w[4*j + j1, _, _, 4*c + c1]
        for c in range(12, 15):
            for j1 in vector(4):
                packed1[_, c, j1] = w[4*j + j1, _, _, c]\
""")
    rng = np.random.default_rng(0)
    arrays = {
        node: rng.integers(-9, 9, draft.nodes[node].dims).astype(np.float32)
        for node in draft.params
    }
    found = subject_named("interp").run(program, arrays)[y]
    expected = arrays[y] + np.einsum("ick,jckl->ij", arrays[x], arrays[w])
    np.testing.assert_array_equal(found, expected)


def test_rows_of_a_packed_buffer_do_not_compete_for_places_of_the_cache() -> None:
    result = apply_schedule(product(8, 512, 8), parse_schedule("pack 0 as i k; accumulate over k"))
    packed = next(node for node in result.nodes if node.name.startswith("packed"))
    assert result.nodes[packed].dims == (8, 528)
