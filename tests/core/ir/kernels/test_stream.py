"""Streams of kernels compute each step once, on demand, and end with the plan."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from ocannl_core.ir.kernels.nodes import FinishedStep, Kernel, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import Block, Fill
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32

NODE = TensorNode(0, ("x",))
NODES = {NODE: NodeInfo(float32, (4,))}
STEPS = tuple(Kernel(Block((Fill(NODE, number),)), (NODE,), ()) for number in (1.0, 2.0))
PLAN = Plan("p", STEPS, (NODE,), (), (), NODES)


def counted(computed: list[Kernel]) -> KernelStream:
    def steps() -> Generator[FinishedStep, None, Plan]:
        for step in STEPS:
            computed.append(step)
            yield step, NODES
        return PLAN

    return KernelStream(steps())


def test_a_step_is_computed_when_it_is_requested_and_once() -> None:
    computed: list[Kernel] = []
    stream = counted(computed)
    assert computed == []
    assert next(iter(stream)) == (STEPS[0], NODES)
    assert len(computed) == 1
    assert stream.plan() is PLAN
    assert [step for step, _ in stream] == list(STEPS)
    assert len(computed) == 2


def test_a_plan_is_a_stream_of_its_steps() -> None:
    stream = KernelStream.of(PLAN)
    assert [step for step, _ in stream] == list(PLAN.steps)
    assert stream.plan() == PLAN


def test_a_failure_is_not_the_end_of_a_stream() -> None:
    def steps() -> Generator[FinishedStep, None, Plan]:
        yield STEPS[0], NODES
        raise ValueError("no schedule")

    stream = KernelStream(steps())
    with pytest.raises(ValueError, match="no schedule"):
        list(stream)
    with pytest.raises(RuntimeError, match="scheduling has failed"):
        list(stream)
