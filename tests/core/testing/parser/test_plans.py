"""The parser of printed plans: round trips and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ocannl_core.base.errors import ParseError
from ocannl_core.ir.kernels.nest_plan import NestPlan
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.kernels.printer import to_text
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.target import Target
from ocannl_core.testing.parser.plans import parse
from ocannl_core.testing.programs import Example
from tests.support.example_count import example_count
from tests.support.plans import ANY_PROGRAM, HAND_MADE, TARGETS, plans
from tests.support.verify_plans import verify

EVERYTHING = """\
plan demo(a: float32[4, 6], b: float32[6, 5], c: float32[4, 5], k: float32[4, 6], static step < 10):
    scratch e: float32[4, 6]
    parallel kernel c = 0:
        schedule parallelize i; vectorize j
        for i in parallel(4):
            for j in vector(5):
                c[i, j] = 0.0
    host:
        e = call copy(a)
    fast nest c = a @ b:
        axes i in range(4), j in range(5), reduce k as k1 in range(1, 6)
        result: float32 = v
            where v: float32
                v = c[i, j]
        result += a[i, k1] * b[k1, j]
        c[i, j] = result
        c[i, j] += float32(step)
    rows:
        fold e
        stream k
        nest:
            rows i by 2 in 3
            axes i in range(4), j in range(6)
            e[i, j] = exp(a[i, j])
        nest k = -e:
            rows i along
            axes i in range(4), j in range(6)
            k[i, j] = -e[i, j]\
"""


def test_every_step_is_read_back() -> None:
    plan = parse(EVERYTHING)
    assert to_text(plan) == EVERYTHING
    assert isinstance(plan.steps[-1], RowFusion)
    verify(plan)


def test_a_text_without_nests_is_a_plan() -> None:
    assert parse("plan nothing():\n    pass") == Plan("nothing", (), (), (), (), {})


@pytest.mark.parametrize("make", HAND_MADE, ids=lambda make: make.__name__)
def test_plans_of_programs_made_by_hand_are_read_back(make: Callable[[], Example]) -> None:
    for plan in plans(make().program, TARGETS[0]):
        check(plan)


@settings(max_examples=example_count(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(example=ANY_PROGRAM, target=st.sampled_from(TARGETS))
def test_plans_are_read_back(example: Example, target: Target) -> None:
    for plan in plans(example.program, target):
        check(plan)


def check(plan: NestPlan) -> None:
    text = to_text(plan)
    again = parse(text)
    assert to_text(again) == text
    verify(again)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("routine r():", "no head of a plan"),
        ("plan p():\n    nests:", "no head of a step"),
        ("plan p(s: float32[]):\n    host:\n        s = 1.0", "a host step that is no call"),
        ("plan p(s: float32[]):\n    nest:\n        v: float32 = 1.0", "no accumulation"),
        (
            "plan p(s: float32[]):\n    nest:\n        barrier()",
            "an epilogue with other statements",
        ),
        ("plan p(s: float32[]):\n    rows:\n        nest:", "no nest with rows"),
        ("plan p():\n    rows:", "a row group without nests"),
    ],
)
def test_an_error_names_the_place(text: str, found: str) -> None:
    with pytest.raises(ParseError, match=found):
        parse(text)
