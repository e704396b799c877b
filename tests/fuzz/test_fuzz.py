"""Random programs of tensors run and agree with a reference that knows the notation only from its
grammar, or are refused with a reason.
"""

from __future__ import annotations

import pytest

from .programs import FORMULAS
from .run import examined, report

PROGRAMS = 300
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_agree_with_the_reference_or_are_refused(part: int) -> None:
    for number in range(part, PROGRAMS, PARTS):
        outcome = examined(0, number, "interp", FORMULAS)
        assert not outcome.is_failure, report(0, number, outcome, "interp", FORMULAS)


def test_most_random_programs_are_not_refused() -> None:
    kinds = [examined(0, number, "interp", FORMULAS).kind for number in range(60)]
    assert kinds.count("agrees") >= 30
