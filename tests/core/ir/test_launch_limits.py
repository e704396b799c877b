"""Limits of launches: comparison of a launch with those of a device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.ir.launch_limits import LaunchLimits, LaunchNeeds, Limit, check_launch, exceeded

LIMITS = LaunchLimits(100, (80, 40, 20), (1000, 50, 60), 4000, 5000, 600)
EXTENTS = st.lists(st.integers(1, 120), max_size=3).map(tuple)
NEEDS = st.builds(
    LaunchNeeds, EXTENTS, EXTENTS, st.integers(0, 6000), st.integers(0, 6000), st.integers(0, 20)
)


def test_the_table_has_every_limit_once() -> None:
    assert [limit for limit, _ in LIMITS.table()] == list(Limit)
    unknown = LaunchLimits(100, (80, 40, 20), (1000, 50, 60), 4000, 5000)
    assert [limit for limit, _ in unknown.table()] == [*Limit][:-1]


@given(NEEDS)
def test_a_launch_is_refused_exactly_if_some_quantity_exceeds_its_limit(needs: LaunchNeeds) -> None:
    block, grid = ((*each, 1, 1, 1)[:3] for each in (needs.block, needs.grid))
    threads = block[0] * block[1] * block[2]
    fits = (
        threads <= 100
        and all(a <= b for a, b in zip(block, (80, 40, 20), strict=True))
        and all(a <= b for a, b in zip(grid, (1000, 50, 60), strict=True))
        and needs.declared_bytes <= 4000
        and needs.shared_bytes <= 5000
        and needs.registers * threads <= 600
    )
    assert (not list(exceeded(needs, LIMITS))) == fits


@pytest.mark.parametrize("limit", Limit)
def test_each_limit_alone_is_found(limit: Limit) -> None:
    values = dict(LIMITS.table())
    at = list(Limit).index(limit)
    block = [1, 1, 1]
    grid = [1, 1, 1]
    declared = shared = registers = 0
    if limit is Limit.THREADS:
        block = [51, 2, 1]
    elif limit.name.startswith("BLOCK"):
        block[at - 1] = values[limit] + 1
    elif limit.name.startswith("GRID"):
        grid[at - 4] = values[limit] + 1
    elif limit is Limit.DECLARED_BYTES:
        declared = 4001
    elif limit is Limit.SHARED_BYTES:
        shared = 5001
    else:
        registers = 601
    needs = LaunchNeeds(tuple(grid), tuple(block), declared, shared, registers)
    assert [each for each, *_ in exceeded(needs, LIMITS)] == [limit]


def test_the_error_names_every_limit_that_is_exceeded() -> None:
    with pytest.raises(oc.LaunchLimitError) as caught:
        check_launch(LaunchNeeds((1, 51), (101,)), LIMITS, "gpu:0", "kernel k", is_stated=True)
    assert str(caught.value) == snapshot("""\
A launch of a kernel stays within the limits of its device.
  found  101 threads of a block, of which gpu:0 has at most 100
         101 threads along axis x of a block, of which gpu:0 has at most 80
         51 blocks along axis y of the grid, of which gpu:0 has at most 50
  where  kernel k
  try    launch fewer threads in a block, and more blocks; distribute the blocks along axis x of the grid\
""")
    check_launch(LaunchNeeds((1, 51), (101,)), None, "gpu:0", "kernel k")
