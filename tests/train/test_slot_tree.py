"""The tree of additions over slots: the same for every division among workers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.train.parallel_step import Receive, plan_joins
from ocannl_core.train.slot_tree import (
    Add,
    AddToRegister,
    Compute,
    CopyToRegister,
    Span,
    TreeSum,
    Work,
    largest_spans,
    share,
    work_of,
)


def pair(left: Any, right: Any) -> Any:
    return left, right


def sums_of(work: Work) -> dict[int, Any]:
    """Return the expressions in the registers of a worker after its work."""
    registers: dict[int, Any] = {}
    slot: Any = None
    for action in work.actions:
        match action:
            case Compute(number):
                slot = number
            case CopyToRegister(register):
                registers[register] = slot
            case AddToRegister(register):
                registers[register] = pair(registers[register], slot)
            case Add(left, right):
                registers[left] = pair(registers[left], registers.pop(right))
    return registers


def whole(slots: int) -> Any:
    """Return the expression of the sum on one worker."""
    return sums_of(work_of(slots, range(slots)))[0]


DIVISIONS = st.integers(1, 40).flatmap(
    lambda slots: st.tuples(st.just(slots), st.integers(1, slots))
)


@given(DIVISIONS, st.randoms(use_true_random=False))
def test_spans_that_arrive_in_any_order_give_one_expression(
    division: tuple[int, int], random: Any
) -> None:
    slots, workers = division
    works = [work_of(slots, share(slots, workers, k)) for k in range(workers)]
    found = [(span, sums_of(work)[register]) for work in works for span, register in work.sums]
    random.shuffle(found)
    tree = TreeSum(slots, pair)
    for span, value in found:
        tree.insert(span, value)
    assert tree.root == whole(slots)


@given(DIVISIONS)
def test_the_first_device_joins_all_sums_in_its_first_register(division: tuple[int, int]) -> None:
    slots, workers = division
    works = [work_of(slots, share(slots, workers, k)) for k in range(workers)]
    registers = [sums_of(work) for work in works]
    actions, sums = plan_joins(slots, works)
    own = dict(registers[0])
    for action in actions:
        match action:
            case Receive(worker, source, target):
                assert target not in own or target not in dict(works[0].sums).values()
                own[target] = registers[worker][source]
            case Add(left, right):
                own[left] = pair(own[left], own.pop(right))
    assert sums == ((Span(0, slots), 0),)
    assert own[0] == whole(slots)


@given(DIVISIONS)
def test_shares_are_equal_up_to_one_slot_and_cover_all(division: tuple[int, int]) -> None:
    slots, workers = division
    parts = [share(slots, workers, k) for k in range(workers)]
    assert [slot for part in parts for slot in part] == list(range(slots))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(DIVISIONS)
def test_a_worker_holds_few_sums(division: tuple[int, int]) -> None:
    slots, workers = division
    levels = slots.bit_length()
    for k in range(workers):
        work = work_of(slots, share(slots, workers, k))
        assert len(work.sums) <= 2 * levels
        assert work.registers <= 2 * levels + 1


def test_the_left_part_is_a_complete_tree() -> None:
    assert Span(0, 6).halves() == (Span(0, 4), Span(4, 6))
    assert Span(0, 8).halves() == (Span(0, 4), Span(4, 8))
    assert largest_spans(16, range(5, 11)) == (Span(5, 6), Span(6, 8), Span(8, 10), Span(10, 11))
