"""Every schedule of a nest computes what the nest computes, by the reference interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ocannl_core.dtypes import float32
from ocannl_core.indexing import fresh_var
from ocannl_core.loopir.nodes import Block, LoopProgram
from ocannl_core.loopir.verify import verify
from ocannl_core.schedule.apply import apply
from ocannl_core.schedule.cells import cell_nest
from ocannl_core.schedule.transforms import Schedule, parse, to_text
from ocannl_core.testing.drafts import loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.reductions import fitting_schedules, random_reductions
from ocannl_core.testing.subject import subject_named


def scheduled(program: LoopProgram, schedule: Schedule) -> LoopProgram:
    nest = cell_nest(program.body)
    assert nest is not None
    result = apply(nest, schedule)
    # inside a loop, blocks keep their own memory when the program is cut into kernels
    body = Block((loop(fresh_var(), 1, result.body),))
    return replace(program, nodes={**program.nodes, **result.nodes}, body=body)


@settings(
    max_examples=150,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    example=random_reductions(most_steps=400) | random_reductions(float32, most_steps=400),
    data=st.data(),
)
def test_a_schedule_changes_no_result(example: Example, data: st.DataObject) -> None:
    nest = cell_nest(example.program.body)
    assert nest is not None
    schedule = data.draw(fitting_schedules(nest))
    assert parse(to_text(schedule)) == schedule
    program = scheduled(example.program, schedule)
    verify(program)
    interp = subject_named("interp")
    before = interp.run(example.program, example.arrays)
    after = interp.run(program, example.arrays)
    for node in example.program.params:
        np.testing.assert_array_equal(after[node], before[node], to_text(schedule))
