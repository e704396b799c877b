"""Nodes, and decisions about their placement."""

from __future__ import annotations

import itertools

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import LinkError
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode

M = MemoryMode
NODE = TensorNode(0, ("t",))
PAIRS = list(itertools.product(M, M))


def refined(first: MemoryMode, second: MemoryMode) -> MemoryMode | None:
    """Return the mode after two decisions, or None if they exclude each other."""
    try:
        return Placement(first).refine(Placement(second), NODE).mode
    except LinkError:
        return None


def test_the_documented_refinements() -> None:
    found = {(a.value, b.value): mode.value for a, b in PAIRS if (mode := refined(a, b))}
    assert found["undecided", "virtual"] == "virtual"
    assert found["virtual", "effectively constant"] == "virtual"
    assert found["effectively constant", "virtual"] == "virtual"
    assert found["effectively constant", "never virtual"] == "materialized"
    assert found["effectively constant", "materialized"] == "materialized"
    assert found["effectively constant", "on device"] == "on device"
    assert found["never virtual", "local"] == "local"
    assert found["never virtual", "device only"] == "device only"
    assert found["device only", "local"] == "local"
    assert found["device only", "on device"] == "on device"
    assert found["device only", "materialized"] == "on device"
    assert found["materialized", "on device"] == "on device"
    assert found["materialized", "hosted"] == "hosted"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (M.VIRTUAL, M.NEVER_VIRTUAL),
        (M.NEVER_VIRTUAL, M.VIRTUAL),
        (M.VIRTUAL, M.MATERIALIZED),
        (M.LOCAL, M.MATERIALIZED),
        (M.LOCAL, M.ON_DEVICE),
    ],
)
def test_decisions_that_exclude_each_other(first: MemoryMode, second: MemoryMode) -> None:
    assert refined(first, second) is None


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_order_of_two_decisions_does_not_matter(first: MemoryMode, second: MemoryMode) -> None:
    assert refined(first, second) is refined(second, first)


@pytest.mark.parametrize("mode", M)
def test_deciding_the_same_twice_changes_nothing(mode: MemoryMode) -> None:
    placement = Placement(mode, Reason.KEPT)
    assert placement.refine(Placement(mode, Reason.DECLARED), NODE) is placement
    assert refined(M.UNDECIDED, mode) is mode


def test_three_decisions_may_come_in_any_order() -> None:
    for a, b, c in itertools.product(M, repeat=3):
        left, right = refined(a, b), refined(b, c)
        assert (left and refined(left, c)) == (right and refined(a, right))


def test_undecided_placements_settle_at_the_most_local_place() -> None:
    settled = {mode.value: Placement(mode).settled().mode.value for mode in M}
    assert settled == snapshot(
        {
            "undecided": "virtual",
            "virtual": "virtual",
            "never virtual": "local",
            "effectively constant": "virtual",
            "local": "local",
            "device only": "local",
            "materialized": "on device",
            "on device": "on device",
            "hosted": "hosted",
        }
    )


def test_a_conflict_gives_both_reasons() -> None:
    virtual = Placement(MemoryMode.VIRTUAL, Reason.INLINED)
    with pytest.raises(LinkError) as caught:
        virtual.refine(Placement(MemoryMode.MATERIALIZED, Reason.KEPT), NODE)
    assert str(caught.value) == snapshot("""\
A memory mode can be refined but not reversed: t cannot become materialized.
  found  it is already virtual because those that read it compute its cells themselves (152); materialized is requested because it was named in keep=, or is a result or a parameter's gradient that is kept by default (201)
  try    name it in keep= to store it
         leave it out of keep=; keep=() keeps no results\
""")
