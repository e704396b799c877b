"""Calling routines: static indices, dumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.base.errors import SettingsError, UsageError
from ocannl_core.ir.indexing import FixedIndex, StaticIndex, affine
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.runtime.context import Context
from ocannl_core.runtime.routine import Routine

if TYPE_CHECKING:
    from conftest import Toy, ToyComputation

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def row_of(toy: Toy, index: StaticIndex) -> tuple[ToyComputation, Any]:
    """Return code that copies one row of a table, and the row."""
    table, row = toy.literal("table", ROWS), toy.tensor("row", 3)
    statement = toy.statement("si->i", row, UnaryOp.IDENTITY, table, s=index)
    return toy.code(statement, uses=[table], defines=[row], name="pick"), row


def refusal(routine: Routine, **indices: Any) -> str:
    with pytest.raises(UsageError) as caught:
        routine(**indices)
    return str(caught.value)


def test_a_static_index_selects_at_every_call(context: Context, toy: Toy) -> None:
    index = StaticIndex("i", 4)
    code, row = row_of(toy, index)
    pick = context.compile(code, [index])
    assert pick.bindings == (index,)
    for at in (2, 0, np.int64(3)):
        pick(i=at)
        assert context[row].tolist() == ROWS[at].tolist()


def test_calls_give_exactly_the_bound_indices(context: Context, toy: Toy) -> None:
    index = StaticIndex("i", 4)
    pick = context.compile(row_of(toy, index)[0], [index])
    assert refusal(pick) == snapshot("""\
A call gives a value to every static index that the routine was compiled with.
  found  missing: i
  where  running pick, at test_routine.py:36: routine(**indices)
  try    pick(i=...)\
""")
    assert refusal(pick, i=1, j=2) == snapshot("""\
A call gives a value to every static index that the routine was compiled with.
  found  unknown: j
  where  running pick, at test_routine.py:36: routine(**indices)
  try    pick(i=...); ctx[x] = array gives data\
""")


def test_a_routine_without_bindings_takes_no_index(context: Context, toy: Toy) -> None:
    y = toy.tensor("y", 2)
    routine = context.compile(toy.code(toy.fill(y, 1.0), uses=[], defines=[y]))
    assert refusal(routine, i=1) == snapshot("""\
A call gives a value to every static index that the routine was compiled with.
  found  unknown: i
  where  running routine, at test_routine.py:36: routine(**indices)
  try    routine(); ctx[x] = array gives data; indices are bound with ctx.compile(..., bindings=[i])\
""")
    routine()
    assert context[y].tolist() == [1, 1]
    assert refusal(routine, i=1)


@pytest.mark.parametrize("value", [-1, 4, 2**70])
def test_an_index_outside_its_range_is_refused(context: Context, toy: Toy, value: int) -> None:
    index = StaticIndex("i", 4)
    pick = context.compile(row_of(toy, index)[0], [index])
    with pytest.raises(UsageError):
        pick(i=value)


def test_the_refusal_names_the_range(context: Context, toy: Toy) -> None:
    index = StaticIndex("i", 3)
    pick = context.compile(row_of(toy, index)[0], [index])
    assert refusal(pick, i=3) == snapshot("""\
A static index stays in its range: i in range(3).
  found  i = 3
  where  running pick; its range is declared so, at test_routine.py:36: routine(**indices)
  try    give i from 0 to 2\
""")
    assert refusal(pick, i=1.5) == snapshot("""\
The value of a static index is an integer.
  found  i = 1.5
  where  running pick, at test_routine.py:36: routine(**indices)\
""")


def test_an_index_without_a_declared_range_is_bounded_by_its_uses(
    context: Context, toy: Toy
) -> None:
    index = StaticIndex("i")
    code, row = row_of(toy, index)
    pick = context.compile(code, [index])
    pick(i=3)
    assert context[row].tolist() == ROWS[3].tolist()
    assert refusal(pick, i=4) == snapshot("""\
A static index stays in its range: i in range(4).
  found  i = 4
  where  running pick; other values leave axis 0 of table, at test_routine.py:36: routine(**indices)
  try    give i from 0 to 3\
""")


def test_a_binding_that_nothing_uses_is_still_given(context: Context, toy: Toy) -> None:
    index, unused = StaticIndex("i", 4), StaticIndex("epoch", 10)
    code, row = row_of(toy, index)
    pick = context.compile(code, [unused, index])
    pick(i=1, epoch=9)
    assert context[row].tolist() == ROWS[1].tolist()
    assert refusal(pick, i=1)
    assert refusal(pick, i=1, epoch=10)


def test_indices_that_code_uses_are_bound(context: Context, toy: Toy) -> None:
    with pytest.raises(UsageError) as caught:
        context.compile(row_of(toy, StaticIndex("i", 4))[0])
    assert str(caught.value) == snapshot("""\
Every static index that code uses is bound when it is compiled.
  found  unbound: i
  where  compiling pick, at test_routine.py:133: context.compile(row_of(toy, StaticIndex("i", 4))[0])
  try    ctx.compile(..., bindings=[i])\
""")


def test_bindings_have_different_names(context: Context, toy: Toy) -> None:
    index = StaticIndex("i", 4)
    with pytest.raises(UsageError) as caught:
        context.compile(row_of(toy, index)[0], [index, StaticIndex("i", 2)])
    assert str(caught.value) == snapshot("""\
The static indices of a routine have different names: they are its keyword arguments.
  found  several named i
  where  compiling pick, at test_routine.py:145: context.compile(row_of(toy, index)[0], [index, StaticIndex("i", 2)])
  try    give each its own name: oc.static_index("row"), oc.static_index("column")\
""")


def test_values_reach_the_indices_that_they_are_named_for(context: Context, toy: Toy) -> None:
    first, second = StaticIndex("first", 4), StaticIndex("second", 3)
    table, cell = toy.literal("table", ROWS), toy.tensor("cell")
    code = toy.code(
        toy.statement("ab->", cell, UnaryOp.IDENTITY, table, a=first, b=second),
        uses=[table],
        defines=[cell],
    )
    for bindings in ([first, second], [second, first]):
        pick = context.compile(code, bindings)
        pick(second=1, first=3)
        assert context.item(cell) == ROWS[3, 1]


def test_indices_that_address_one_axis_together_are_checked_together(
    context: Context, toy: Toy
) -> None:
    first, second = StaticIndex("first"), StaticIndex("second", 3)
    table, cell = toy.literal("table", ROWS), toy.tensor("cell")
    statement = toy.statement("ab->", cell, UnaryOp.IDENTITY, table, a=first, b=second)
    together = affine([(2, first), (1, second)])
    shifted = replace(statement.projections, rhs=((together, FixedIndex(1)),))
    code = toy.code(replace(statement, projections=shifted), uses=[table], defines=[cell])
    pick = context.compile(code, [first, second])
    pick(first=1, second=1)
    assert context.item(cell) == ROWS[3, 1]
    pick(first=0, second=2)
    assert context.item(cell) == ROWS[2, 1]
    assert refusal(pick, first=1, second=2) == snapshot("""\
Static indices that address an axis together stay inside it: 2*first + second in range(0, 4).
  found  first = 1, second = 2
  where  running routine; other values leave axis 0 of table, at test_routine.py:36: routine(**indices)\
""")


def test_a_refused_call_does_not_run(context: Context, toy: Toy) -> None:
    index = StaticIndex("i", 4)
    total = toy.declared("total", 3)
    table = toy.literal("table", ROWS)
    add = context.compile(
        toy.code(
            toy.statement("si->i", total, UnaryOp.IDENTITY, table, combine=BinaryOp.ADD, s=index),
            uses=[table, total],
        ),
        [index],
    )
    refusal(add, i=7)
    assert context[total].tolist() == [0, 0, 0]


def test_every_stage_is_left_in_a_folder_of_its_own(
    context: Context, toy: Toy, tmp_path: Path
) -> None:
    index = StaticIndex("i", 4)
    code, _ = row_of(toy, index)
    with settings.overrides(dump_dir=str(tmp_path / "dump")):
        routine = context.compile(code, [index])
        context.compile(code, [index])
    assert sorted(p.name for p in (tmp_path / "dump").iterdir()) == ["pick", "pick-2"]
    folder = tmp_path / "dump" / "pick"
    stages = sorted(p.name for p in folder.glob("[0-9]*.txt"))
    assert stages[:2] == ["00_assignments.txt", "01_lower.txt"]
    first = next(at for at, name in enumerate(stages) if name.endswith("_split_kernels.txt"))
    assert first > 2
    assert stages[-1].endswith("_schedule_kernels.txt")
    (source,) = folder.glob("source.*")
    assert source.read_text(encoding="utf-8") == routine.source
    loops = (folder / stages[first - 1]).read_text(encoding="utf-8")
    assert loops.rstrip() == routine.loop_ir.rstrip()
    for stage in stages[first:]:
        assert (folder / stage).read_text(encoding="utf-8").startswith("plan pick(")
    assert (folder / stages[0]).read_text(encoding="utf-8").rstrip() == routine.assignments.rstrip()


def test_a_dump_has_placements_and_the_times_of_stages(
    context: Context, toy: Toy, tmp_path: Path
) -> None:
    index = StaticIndex("i", 4)
    with settings.overrides(dump_dir=str(tmp_path)):
        context.compile(row_of(toy, index)[0], [index])
    memory = (tmp_path / "pick" / "memory.txt").read_text(encoding="utf-8")
    assert memory == snapshot("""\
table: float32 [4, 3], hosted because its cells come from the host (202)
row: float32 [3], on device because it was named in keep=, or is a result or a parameter's gradient that is kept by default (201)
""")
    seconds = (tmp_path / "pick" / "seconds.txt").read_text(encoding="utf-8").splitlines()
    stages = [line.split(" ", 1)[1] for line in seconds]
    assert {"inline", "simplify", "allocate scratch"} <= set(stages)
    assert stages[-2:] == ["split and generate", "compile generated code"]
    assert all(float(line.split(" ")[0]) >= 0 for line in seconds)


def test_nothing_is_dumped_by_default(
    context: Context, toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    index = StaticIndex("i", 4)
    context.compile(row_of(toy, index)[0], [index])
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_dump_directory_is_an_error(context: Context, toy: Toy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    index = StaticIndex("i", 4)
    with (
        settings.overrides(dump_dir=str(tmp_path / "file")),
        pytest.raises(SettingsError, match="dump_dir"),
    ):
        context.compile(row_of(toy, index)[0], [index])


def test_the_repr_of_a_plan_is_one_line() -> None:
    with oc.Session():
        x = oc.tensor([[1.0, 2.0], [3.0, 4.0]])
        plan = oc.Context("interp").compile(oc.train.forward(oc.relu(x)), name="step").plan
    assert repr(plan) == "Plan('step', 1 steps, 2 params, 0 scratch nodes)"
