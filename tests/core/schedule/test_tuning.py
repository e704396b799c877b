"""The schedules that a search tries, and how it remembers the fastest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.ir.canonical import canonical_text
from ocannl_core.ir.indexing import IndexVar, StaticIndex, affine, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import TuningResult
from ocannl_core.ir.kernels.transforms import Schedule, parse_schedule, schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block, Stmt
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, float64, int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.schedule_kernels import CachedRule
from ocannl_core.schedule.rules.decision import ScheduleDecision
from ocannl_core.schedule.tuning.schedule_candidates import (
    ScheduleCandidate,
    first_candidates,
    neighbors,
)
from ocannl_core.schedule.tuning.tuning_cache import TuningCache
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.example_count import example_count
from tests.support.reductions import random_reductions
from tests.support.schedules import contraction_schedule, schedule_by_rule

WIDE = Target(
    "wide", vector_bytes=64, vector_registers=32, has_fma=True, cache_bytes=(1 << 15, 1 << 20)
)
NARROW = Target("narrow", vector_bytes=16, vector_registers=16)
Nodes = dict[TensorNode, NodeInfo]


def product(
    *labels: str,
    rows: int = 40,
    dtype: DType = float32,
    op: BinaryOp = BinaryOp.ADD,
    start: int = 0,
) -> tuple[Nest, Nodes]:
    """Return `c[i, j] += a[i, k] * b[start + k, j]` over nodes of these labels."""
    draft, body = drafted(*labels, rows=rows, dtype=dtype, op=op, start=start)
    nest = kernel_nest(Block((body,)))
    assert nest is not None
    return nest, draft.nodes


def drafted(
    *labels: str, rows: int, dtype: DType, op: BinaryOp = BinaryOp.ADD, start: int = 0
) -> tuple[Draft, Stmt]:
    """Return the loops of a product and their nodes."""
    draft = Draft("product")
    first, second, result = labels or ("a", "b", "c")
    i, j, k = fresh_var(first), fresh_var("j"), fresh_var("k")
    a, b = draft.node(first, dtype, rows, 20), draft.node(second, dtype, 20 + start, 70)
    c = draft.node(result, dtype, rows, 70)
    place = affine([(1, k)], start)
    term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, place, j), dtype)
    body = loop(i, rows, loop(j, 70, loop(k, 20, draft.accumulate(c, i, j, op=op, value=term))))
    return draft, body


def measured(schedule: str) -> TuningResult:
    return TuningResult(parse_schedule(schedule), 1e-6, parse_schedule("split i 8"), 2e-6, 7)


@settings(max_examples=example_count(13), deadline=None)
@given(
    example=random_reductions(int32, (1, 2, 3, 5, 8, 17, 33), 2000),
    target=st.sampled_from([WIDE, NARROW]),
    data=st.data(),
)
def test_candidates_agree_with_the_plain_loops(
    example: Example, target: Target, data: st.DataObject
) -> None:
    nest = kernel_nest(example.program.body)
    assert nest is not None
    nodes = dict(example.program.nodes)
    first = first_candidates(nest, nodes, target)
    assume(first)
    chosen = first[0]
    for _ in range(data.draw(st.integers(1, 3))):  # so many steps away from the default
        near = list(neighbors(nest, nodes, target, chosen))
        assume(near)
        chosen = data.draw(st.sampled_from(near))
    subject = subject_named("interp")
    expected = subject.run(example.program, example.arrays)
    found = subject.run(
        example.program,
        example.arrays,
        (),
        lambda plan, target: schedule_by_rule(plan, lambda nest, nodes: chosen.schedule),
    )
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


def test_groups_of_blocks_agree_with_the_plain_loops() -> None:
    draft, body = drafted(rows=200, dtype=int32)
    nest = kernel_nest(Block((body,)))
    assert nest is not None
    caches = (1 << 8, 1 << 12, 1 << 14)
    tiny = Target("tiny", vector_bytes=16, vector_registers=32, cache_bytes=caches)
    schedule = contraction_schedule(nest, draft.nodes, tiny)
    assert schedule is not None
    assert schedule_text(schedule) == snapshot(
        "split j 24; split j1 12; split j11 4; split i 8; order j0 i0 j10 k i1 j110 j111; unroll i1; unroll j110; vectorize j111; pack 1 inside j0 as j10 k j11; accumulate over k prefetch"
    )
    program = draft.program(body)
    random = np.random.default_rng(5)
    arrays = {
        node: random.integers(-9, 10, info.dims).astype(np.int32)
        for node, info in draft.nodes.items()
    }
    found = subject_named("interp").run(
        program, arrays, (), lambda plan, target: schedule_by_rule(plan, lambda *_: schedule)
    )
    a, b, c = draft.nodes
    np.testing.assert_array_equal(found[c], arrays[c] + arrays[a] @ arrays[b])


def test_neighbors_differ_in_one_respect_and_all_are_distinct() -> None:
    nest, nodes = product()
    default, plain = first_candidates(nest, nodes, WIDE)
    assert default.schedule == contraction_schedule(nest, nodes, WIDE)
    assert plain == ScheduleCandidate((), None)
    found = [each.schedule for each in neighbors(nest, nodes, WIDE, default)]
    assert len(found) == len({default.schedule, *found}) - 1
    assert [schedule_text(each) for each in found[:3]] == snapshot(
        [
            "split j 48; split j1 16; split i 8; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; pack 0 as i0 k i1; accumulate over k fused",
            "split j 48; split j1 16; split i 8; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; pack 0 as i k; accumulate over k fused",
            "split j 48; split j1 16; split i 8; order j0 i0 k i1 j10 j11; unroll i1; unroll j10; vectorize j11; pack 1 inside j0 as k j1; accumulate over k fused",
        ]
    )
    assert list(neighbors(nest, nodes, WIDE, plain)) == []


def test_both_orders_of_blocks_and_packed_operands_are_among_the_candidates() -> None:
    nest, nodes = product()
    default, _ = first_candidates(nest, nodes, WIDE)
    texts = [schedule_text(each.schedule) for each in neighbors(nest, nodes, WIDE, default)]
    for part in ("order j0 i0", "order i0 j0", "pack 0", "pack 1", "split k 10", "vectorize i"):
        assert any(part in text for text in texts), part


def test_alpha_equivalent_kernels_have_one_text() -> None:
    assert canonical_text(*product("a", "b", "c")) == canonical_text(*product("x", "y", "z"))
    assert canonical_text(*product()) == snapshot("""\
nest:
    axes i as v in range(40), j as v1 in range(70), reduce k as v2 in range(20)
    x3: float32 = x2[v, v1]
    x3 += x[v, v2] * x1[v2, v1]
    x2[v, v1] = x3
x: float32[40, 20]
x1: float32[20, 70]
x2: float32[40, 70]\
""")


def test_kernels_that_differ_have_different_texts() -> None:
    nests = [
        product(),
        product(rows=41),
        product(dtype=float64),
        product(op=BinaryOp.MAX),
        product(start=1),
    ]
    assert len({canonical_text(*each) for each in nests}) == len(nests)


def test_a_kernel_inside_of_loops_has_a_text_of_its_own() -> None:
    def row_sum(place: IndexVar) -> tuple[Nest, Nodes]:
        draft, k = Draft("sum"), fresh_var("k")
        x, total = draft.node("x", float32, 9, 30), draft.node("total", float32, 9)
        update = draft.accumulate(total, place, op=BinaryOp.ADD, value=draft.load(x, place, k))
        nest = kernel_nest(Block((loop(k, 30, update),)))
        assert nest is not None
        return nest, draft.nodes

    inside = canonical_text(*row_sum(fresh_var("i")))
    assert inside == canonical_text(*row_sum(fresh_var("row")))
    assert inside != canonical_text(*row_sum(StaticIndex("n", 9)))


def test_a_saved_schedule_is_found_for_alpha_equivalent_nests(tmp_path: Path) -> None:
    memory = TuningCache(tmp_path / "new")
    nest, nodes = product("a", "b", "c")
    assert memory.find(nest, nodes) is None
    memory.keep(nest, nodes, measured("split i 4; order i0 i1 j k"))
    assert memory.find(*product("x", "y", "z")) == measured("split i 4; order i0 i1 j k")
    assert memory.find(*product(rows=41)) is None
    assert [entry.measured for entry in memory.entries()] == [
        measured("split i 4; order i0 i1 j k")
    ]
    assert memory.forget() == 1
    assert memory.find(nest, nodes) is None


def test_an_entry_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    memory = TuningCache(tmp_path)
    nest, nodes = product()
    memory.keep(nest, nodes, measured("split i 4; order i0 i1 j k"))
    (path,) = tmp_path.glob("*.json")
    whole = json.loads(path.read_text())
    for broken in (
        "",
        "{",
        "[]",
        json.dumps({**whole, "version": 0}),
        json.dumps({**whole, "schedule": "spilt i 4"}),
        json.dumps({key: value for key, value in whole.items() if key != "seconds"}),
        json.dumps({**whole, "key": "another"}),
    ):
        path.write_text(broken)
        assert memory.find(nest, nodes) is None
    assert [entry.path for entry in memory.entries()] == [path]


def test_a_folder_that_cannot_be_looked_at_has_no_entries(tmp_path: Path) -> None:
    memory = TuningCache(tmp_path / ("n" * 300))  # too long a name, as forbidden to all users
    assert memory.find(*product()) is None
    assert memory.state() == ""
    assert memory.forget() == 0


def test_a_remembered_schedule_takes_the_place_of_the_rule(tmp_path: Path) -> None:
    memory = TuningCache(tmp_path)
    nest, nodes = product()
    decision = ScheduleDecision(parse_schedule("unroll k"))
    rule = CachedRule(memory, lambda nest, nodes: decision)
    assert rule(nest, nodes).schedule == parse_schedule("unroll k")
    memory.keep(nest, nodes, measured("split i 4; order i0 i1 j k"))
    found = rule(nest, nodes)
    assert found.schedule == parse_schedule("split i 4; order i0 i1 j k")
    assert found.measured == measured("split i 4; order i0 i1 j k")


def test_a_remembered_schedule_that_does_not_fit_is_not_used(tmp_path: Path) -> None:
    memory = TuningCache(tmp_path)
    nest, nodes = product()
    memory.keep(nest, nodes, measured("split i 4; order i0 i1 j"))
    default: Schedule = parse_schedule("unroll k")
    decision = CachedRule(memory, lambda nest, nodes: ScheduleDecision(default))(nest, nodes)
    assert decision.schedule == default
    found = decision.measured
    assert found is not None
    assert found.problem == snapshot("An order has the axes i0 i1 j k, each once.")
    assert replace(found, problem="") == measured("split i 4; order i0 i1 j")
