"""Routines whose own nodes share memory give the bits of the interpreter, where none do."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ocannl_core.passes.memory import allocate_scratch, independent_nodes
from ocannl_core.schedule.memory import memory_plan, sink_fills
from ocannl_core.schedule.split import split
from ocannl_core.testing.compare import assert_same
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import loop_programs
from ocannl_core.testing.subject import subject_named


def test_random_programs_with_shared_memory_give_the_bits_of_the_oracle(target: str) -> None:
    pytest.importorskip("ocannl_interp")
    subject, sharing = subject_named(target), 0

    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(loop_programs(), st.data())
    def check(example: Example, data: st.DataObject) -> None:
        nonlocal sharing
        program = example.program
        candidates = sorted(independent_nodes(program), key=lambda node: node.id)
        own = {node for node in candidates[:-1] if data.draw(st.booleans(), label=node.name)}
        kept = [node for node in program.params if node not in own]
        packed = allocate_scratch(program, kept)
        plan = sink_fills(split(packed))
        found = memory_plan(plan)
        sharing += found.nbytes < found.nbytes_unshared
        buffers = {
            node: subject.upload(example.arrays[node], program.nodes[node])
            if node in example.arrays
            else subject.backend.allocate(program.nodes[node], subject.target)
            for node in packed.params
        }
        source = subject.backend.generate(plan, subject.target)
        launch = subject.backend.compile(source, subject.target).link(buffers)
        expected = subject_named("interp").run(program, example.arrays, example.indices)
        launch(example.indices)
        for node, buffer in buffers.items():
            assert_same(
                subject.download(buffer), expected[node], program.nodes[node].dtype, what=node.name
            )

    check()
    assert sharing > 0
