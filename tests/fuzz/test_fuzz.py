"""Random programs of tensors agree with a reference that is written from the grammar alone, or are
refused with a reason.
"""

from __future__ import annotations

from random import Random

import pytest

from .notation import Context
from .programs import FORMULAS, Leaf, Program, Step
from .run import examined, outcome_of, report

PROGRAMS = 180
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_agree_with_the_reference_or_are_refused(part: int) -> None:
    for number in range(part, PROGRAMS, PARTS):
        outcome = examined(0, number, "interp", FORMULAS)
        assert not outcome.is_failure, report(0, number, outcome, "interp", FORMULAS)


def _given(**values: int) -> Context:
    return Context(values=tuple(values.items()))


CROSSING = Program(
    (
        Leaf("x0", "param", ((), None, None), 155800),
        Step(
            "x1",
            "einsum",
            ("x0", "x0", "x0"),
            "...,->channels, ...,;j^width, -> depth^m^k1,;..., _, | =>..., |  -> m, channels, ...,",
            context=_given(depth=1, j=1, k1=1, m=1),
        ),
        Step("x2", "clamp", ("x1",)),
        Step("x3", "neg", ("x1",)),
        Step(
            "x4",
            "einsum",
            ("x0",),
            "out, ...,->out, 2*channels<+1+height,=>0, 3*out+1, 2*channels, | ..., 0,->0,",
            context=_given(channels=1),
        ),
        Step("x5", "clamp", ("x4",)),
        Step(
            "x6",
            "einsum",
            ("x2", "x5"),
            "|out,->m, m,; ..., |  -> k1, m,=>..., | m, out, -> ",
            context=_given(out=3),
        ),
        Step("x7", "clamp", ("x6",)),
        Step("x8", "einsum", ("x6", "x6"), "...dd; ->d...d => _d | 0"),
        Step("x9", "clamp", ("x8",)),
        Step("x10", "matmul", ("x1", "x8")),
        Step("x11", "clamp", ("x10",)),
        Step("x12", "einsum", ("x8",), "_, k1,=>k1, | ->"),
        Step("x13", "clamp", ("x12",)),
        Step(
            "x14",
            "outer_sum",
            ("x11", "x10"),
            "..rest.., | ...,;->out, => |out, ..rest.., -> ...,",
        ),
        Step("x15", "clamp", ("x14",)),
        Step("x16", "less", ("x12", "x7")),
        Step("x17", "einsum", ("x1", "x16"), ";0, -> channels, ...,=>channels, | ...,"),
        Step("x18", "einsum", ("x17", "x15"), "|; ..v.. -> h => ..v.. | ..v.."),
    )
)


def test_a_program_with_crossing_rows_closes_alike_in_every_order() -> None:
    outcomes = {outcome_of(CROSSING.reordered(Random(k)), None).shapes for k in range(8)}
    assert len(outcomes) == 1


def test_most_random_programs_are_not_refused() -> None:
    kinds = [examined(0, number, "interp", FORMULAS).kind for number in range(60)]
    assert kinds.count("agrees") >= 50
