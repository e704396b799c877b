"""Random programs of tensors run and agree with a reference that knows the notation only from its
grammar, or are refused with a reason.
"""

from __future__ import annotations

from random import Random

import pytest

from .programs import FORMULAS
from .run import draft_of, examined, outcome_of, report

PROGRAMS = 180
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_agree_with_the_reference_or_are_refused(part: int) -> None:
    for number in range(part, PROGRAMS, PARTS):
        outcome = examined(0, number, "interp", FORMULAS)
        assert not outcome.is_failure, report(0, number, outcome, "interp", FORMULAS)


def test_a_random_program_with_crossing_rows_closes_alike_in_every_order() -> None:
    program = draft_of(2026, 3577)
    outcomes = {outcome_of(program.reordered(Random(k)), None).shapes for k in range(8)}
    assert len(outcomes) == 1


def test_most_random_programs_are_not_refused() -> None:
    kinds = [examined(0, number, "interp", FORMULAS).kind for number in range(60)]
    assert kinds.count("agrees") >= 50
