"""The notation of schedules."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.kernels.transforms import (
    AccumulateAt,
    FuseRows,
    Order,
    Pack,
    Pipeline,
    Ring,
    SetKind,
    Split,
    StageForm,
    TileMatrix,
    parse_kernel_schedule,
    parse_schedule,
    schedule_text,
)
from ocannl_core.ir.loops.axis_kinds import AxisKind


def test_every_transform_parses_its_printed_form() -> None:
    schedule = (
        Split("j", 32),
        Split("j1", 16, evenly=True),
        Order(("i", "k", "j0", "j10", "j11")),
        SetKind(AxisKind.PARALLEL, ("i",)),
        SetKind(AxisKind.GRID, ("i", "j0")),
        SetKind(AxisKind.BLOCK, ("j11",)),
        SetKind(AxisKind.UNROLLED, ("j10",)),
        SetKind(AxisKind.VECTOR, ("j11",)),
        SetKind(AxisKind.DOT, ("k1",)),
        TileMatrix("i", "j11", "k0"),
        TileMatrix("i", "j11", "k0", parts=3),
        TileMatrix("i", "j11", "k0", shape=(8, 8, 64)),
        Pack(1, None, ("k", "j10", "j11")),
        Pack(0, "i", ("k",)),
        Pipeline("k0", 3),
        StageForm(0, 8, 40),
        StageForm(1, 0, 136),
        Ring("k10"),
        StageForm(1, 8, 40, skip=16, rows=8),
        AccumulateAt("k"),
        AccumulateAt("j0", fused=True),
        AccumulateAt("j1", prefetch=True),
        AccumulateAt("j1", fused=True, prefetch=True),
        FuseRows(("i",), threads=64),
    )
    text = schedule_text(schedule)
    assert text == snapshot(
        "split j 32; split j1 16 evenly; order i k j0 j10 j11; parallelize i; grid i j0; block j11; unroll j10; vectorize j11; dot k1; tile i j11 k0; tile i j11 k0 in 3 parts; tile i j11 k0 of 8 8 64; pack 1 as k j10 j11; pack 0 inside i as k; pipeline k0 in 3; stage 0 by 8 pitch 40; stage 1 pitch 136; ring k10; stage 1 by 8 pitch 40 skip 16 after 8; accumulate over k; accumulate over j0 fused; accumulate over j1 prefetch; accumulate over j1 fused prefetch; rows i on 64"
    )
    assert parse_kernel_schedule(text) == schedule
    assert parse_schedule(schedule_text(schedule[:-1])) == schedule[:-1]


@pytest.mark.parametrize("text", ["rows i", "walk i by 8", "fold 0", "inline 0", "stream 0"])
def test_the_schedule_of_one_nest_decides_nothing_about_others(text: str) -> None:
    assert schedule_text(parse_kernel_schedule(text)) == text
    with pytest.raises(UsageError, match="A schedule is made of"):
        parse_schedule(text)


def test_spaces_line_ends_and_empty_parts_do_not_matter() -> None:
    assert parse_schedule(" split  i 4 ;\n unroll i1;; ") == (
        Split("i", 4),
        SetKind(AxisKind.UNROLLED, ("i1",)),
    )
    assert parse_schedule("") == ()


def test_a_kind_is_given_to_several_axes_at_once() -> None:
    text = "unroll i1 j10; grid k"
    schedule = SetKind(AxisKind.UNROLLED, ("i1", "j10")), SetKind(AxisKind.GRID, ("k",))
    assert parse_schedule(text) == schedule
    assert schedule_text(schedule) == text


@pytest.mark.parametrize(
    "text",
    [
        "split i",
        "split i 0",
        "split I 4",
        "unroll",
        "pack as i",
        "accumulate k",
        "tile i j",
        "tile i j k of 8",
    ],
)
def test_malformed_transforms_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="A schedule is made of"):
        parse_schedule(text)


def test_the_refusal_shows_an_example() -> None:
    with pytest.raises(UsageError) as caught:
        parse_schedule("split i 4; cube j 3")
    assert str(caught.value) == snapshot("""\
A schedule is made of split, order, parallelize, vectorize, unroll, dot, grid, block, tile, shuffle, pack, pipeline, stage, ring and accumulate.
  found  'cube j 3'
  try    for example: split j 16; order i j0 k j1; vectorize j1; accumulate over k\
""")
