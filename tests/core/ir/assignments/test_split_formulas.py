"""Programs whose formulas are split into assignments of one primitive each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.assignments import (
    Accumulate,
    Assignment,
    Formula,
    Leaf,
    RepeatedAssignments,
    leaves,
    split_formulas,
    targets,
)
from ocannl_core.passes.lower import lower
from ocannl_core.testing.subject import subject_named


def gates() -> oc.Computation:
    x = oc.placeholder("x", batch=[4], output=[3])
    w = oc.param("w", input=[3], output=[3])
    return oc.train.Adam(learning_rate=0.1).minimize(oc.sum(oc.sigmoid(oc.gelu(w @ x))))


def loop_over_time() -> oc.Computation:
    x = oc.placeholder("x", batch=[5, 2], output=[3])
    w = oc.param("w", input=[3], output=[3])

    def step(h: oc.Tensor, v: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        h = oc.sigmoid(w @ h + v)
        return h, h

    _, states = oc.scan(step, oc.zeros(batch=[2], output=[3]), x)
    return oc.train.grad_update(oc.sum(oc.gelu(states)))


def every(body: Sequence[Assignment]) -> Iterator[Leaf]:
    for each in leaves(body):
        yield each
        if isinstance(each, RepeatedAssignments):
            yield from every(each.body)


@pytest.mark.parametrize("code", [gates, loop_over_time])
def test_each_assignment_of_a_split_program_applies_one_primitive(code) -> None:  # type: ignore[no-untyped-def]
    program = code().resolve()
    split = split_formulas(program)
    assert any(isinstance(a, Accumulate) and isinstance(a.op, Formula) for a in every(program.body))
    assert not any(
        isinstance(a, Accumulate) and isinstance(a.op, Formula) for a in every(split.body)
    )
    written = {node for each in every(split.body) for node in targets(each)}
    assert written <= split.nodes.keys()
    assert split_formulas(split) == split


def test_a_split_program_has_the_bits_of_its_formulas() -> None:
    pytest.importorskip("ocannl_interp")
    program = gates().resolve()
    rng = np.random.default_rng(0)
    whole, split = lower(program), lower(split_formulas(program))
    arrays = {
        node: rng.uniform(0.1, 1.0, info.dims).astype(info.dtype.numpy)
        for node, info in program.nodes.items()
    }
    subject = subject_named("interp")
    wanted = subject.run(whole, arrays)
    found = subject.run(split, arrays)
    for node in program.results:
        assert found[node].tobytes() == wanted[node].tobytes()
