"""Random programs of tensors agree with a reference that is written from the grammar alone, or are
refused with a reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests.support.slow import slow

from .author import ProgramLimits
from .captures import is_row
from .notation import Position, SpecContext, axes_of, parse
from .programs import BEFORE, RUNNING, Index, Leaf, Link, Program, Step, pool_spec
from .reference import CONTRACTIONS
from .run import Outcome, examined, examined_program, outcome_of, program_of, report
from .smaller import smaller

PROGRAMS = 180
COUNTED = 100
"""The first programs, whose features are counted."""
PARTS = 6
SCOPE = ProgramLimits(longest=150)


@pytest.mark.parametrize("part", [0, *slow(range(1, PARTS))])
def test_random_programs_agree_with_the_reference_or_are_refused(part: int) -> None:
    for number in range(COUNTED + part, PROGRAMS, PARTS):
        outcome = examined(0, number, "interp", SCOPE)
        assert not outcome.is_failure, report(0, number, outcome, "interp", SCOPE)


def _given(**values: int) -> SpecContext:
    return SpecContext(values=tuple(values.items()))


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
            "x14", "outer_sum", ("x11", "x10"), "..rest.., | ...,;->out, => |out, ..rest.., -> ...,"
        ),
        Step("x15", "clamp", ("x14",)),
        Step("x16", "less", ("x12", "x7")),
        Step("x17", "einsum", ("x1", "x16"), ";0, -> channels, ...,=>channels, | ...,"),
        Step("x18", "einsum", ("x17", "x15"), "|; ..v.. -> h => ..v.. | ..v.."),
    )
)


def test_a_program_with_crossing_rows_closes_equally_in_every_order() -> None:
    outcomes = {outcome_of(CROSSING.reordered(Random(k)), None).shapes for k in range(8)}
    assert len(outcomes) == 1


def test_other_operations_stay_on_their_side_of_a_slice_of_a_computed_tensor() -> None:
    above, cell = Step("x1", "neg", ("x0",)), Step("x2", "slice", ("x1",), indices=(Index(0),))
    program = Program((PARAM, above, cell, Step("x3", "neg", ("x1",)), Step("x4", "neg", ("x0",))))
    found = {tuple(s.name for s in program.reordered(Random(k)).statements) for k in range(20)}
    assert found == {("x0", "x1", "x2", "x3", "x4"), ("x0", "x1", "x2", "x4", "x3")}


def features(program: Program, outcome: Outcome) -> set[str]:
    """Return the features of a program that agrees with the reference."""
    found = {f"tie in {name}" for name in outcome.ties}
    found |= {"tie"} if outcome.ties else set()
    found |= {"gradients"} if outcome.losses else set()
    found |= {"several losses"} if len(set(outcome.losses)) > 1 else set()
    found |= {"required"} if program.requires else set()
    for step in program.steps:
        found |= {step.operation} & {"chain", "max_pool2d"}
        found |= {"captured row" for name, _ in step.capture if is_row(name, step.spec)}
        if step.operation in CONTRACTIONS:
            patterns, result = parse(step.spec, step.context)
            axes = [axis for rows in (*patterns, result) for axis in axes_of(rows)]
            found |= {"position" for axis in axes if isinstance(axis, Position) and axis.index}
    return found


@pytest.mark.slow
def test_random_programs_cover_their_features() -> None:
    found: Counter[str] = Counter()
    for number in range(COUNTED):
        program = program_of(0, number, SCOPE)
        outcome = examined_program(program, number, "interp")
        assert not outcome.is_failure, report(0, number, outcome, "interp", SCOPE)
        if outcome.kind == "agrees":
            found.update(["agrees", *features(program, outcome)])
    least = {
        "agrees": 80, "gradients": 30, "several losses": 10, "tie": 5, "max_pool2d": 10,
        "position": 6, "required": 3, "captured row": 2, "chain": 1,
    }  # fmt: skip
    assert {name: found[name] for name in least if found[name] < least[name]} == {}
    assert len([name for name in found if name.startswith("tie in")]) >= 3


PARAM = Leaf("x0", "param", ((), (4,), ()), 0)
LINKS = (Link("maximum", (RUNNING, BEFORE)), Link("neg"), Link("sub", (1, RUNNING)), Link("clamp"))


@pytest.mark.parametrize("operation", ["einmax", "maximum", "max_pool2d"])
def test_ties_that_decide_a_gradient_are_reported(operation: str) -> None:
    rows = ((), (2, 2, 1), ()) if operation == "max_pool2d" else PARAM.rows
    leaf = replace(PARAM, rows=rows, seed=15)  # the cells are equal
    step = Step("x1", operation, ("x0", "x0"))
    if operation != "maximum":
        spec = "..., => 0" if operation == "einmax" else pool_spec((1, 1), (2, 2), padded=True)
        context = _given(kh=2, kw=2) if operation == "max_pool2d" else _given()
        step = Step("x1", operation, ("x0",), spec, context=context)
    outcome = outcome_of(Program((leaf, step)), losses=1)
    assert outcome.kind == "agrees"
    assert outcome.ties == {operation}


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_deep_chain_agrees_with_the_reference(backend: str) -> None:
    other = replace(PARAM, name="x1", seed=1)
    chain = Step("x2", "chain", ("x0", "x1"), links=LINKS, rounds=60)
    outcome = outcome_of(Program((PARAM, other, chain)), backend, losses=1)
    assert (outcome.kind, outcome.losses) == ("agrees", ("x2",))


class Wrong(Step):
    """A chain with another operation in its source than in the reference."""

    def source(self) -> str:
        return super().source().replace("oc.subtract(", "oc.add(")


def test_a_wrong_link_of_a_chain_is_reported() -> None:
    other = replace(PARAM, name="x1", seed=1)
    chain = Wrong("x2", "chain", ("x0", "x1"), links=LINKS, rounds=5)
    assert outcome_of(Program((PARAM, other, chain))).kind == "value"


def test_a_chain_shrinks_to_one_of_its_links() -> None:
    program = Program(
        (
            PARAM,
            replace(PARAM, name="x1"),
            Step("x2", "chain", ("x0", "x1"), links=LINKS, rounds=90),
        )
    )
    for _ in range(40):
        fitting = [
            each
            for each in smaller(program)
            if any("sub" in step.operations for step in each.steps)
        ]
        if not fitting:
            break
        program = fitting[0]
    assert [step.source() for step in program.steps] == ["x2 = oc.subtract(x1, x0)"]


def test_a_pool_is_written_as_a_call() -> None:
    step = Step(
        "x1",
        "max_pool2d",
        ("x0",),
        pool_spec((2, 1), (3, 2), padded=True),
        context=_given(kh=3, kw=2),
    )
    assert step.source() == "x1 = oc.nn.max_pool2d(x0, window=(3, 2), stride=(2, 1), padded=True)"


@pytest.mark.parametrize("apart", [False, True])
def test_gradients_of_several_losses_are_those_of_their_sum(apart: bool) -> None:
    square = Step("x1", "mul", ("x0", "x0"))
    leaf = replace(PARAM, seed=1)
    program = Program((leaf, square, Step("x2", "neg", ("x1",)), Step("x3", "twice", ("x0",))))
    outcome = outcome_of(program, losses=4, apart=apart)
    assert (outcome.kind, outcome.losses) == ("agrees", ("x2", "x3", "x1", "x2"))
