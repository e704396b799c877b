"""The driver takes a program through all stages, and again with other schedules."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.compile.driver import compile_again
from ocannl_core.compile.dump_folder import open_dump


def test_stages_follow_each_other() -> None:
    with oc.Session():
        x = oc.tensor([1.0, 2.0, 3.0])
        y = oc.exp(x) + 1.0
        context = oc.Context("interp")
        routine = context.compile(oc.train.forward(y))
        build = routine._build
        assert build.assignments.name == build.optimised.name == build.plan.name
        assert build.source.text
        again = compile_again(build)
        assert again.plan == build.plan
        assert again.source.text == build.source.text
        routine()
        np.testing.assert_allclose(context[y], np.exp([1, 2, 3]) + 1, rtol=1e-6)


def test_without_a_folder_nothing_is_dumped(tmp_path: Path) -> None:
    closed = open_dump("routine")
    assert not closed.is_open
    closed.text("stage", "text")
    with settings.overrides(dump_dir=str(tmp_path)):
        dump = open_dump("a routine")
    assert dump.is_open
    dump.text("stage 1", "text")
    assert [path.name for path in (tmp_path / "a_routine").iterdir()] == ["00_stage_1.txt"]
