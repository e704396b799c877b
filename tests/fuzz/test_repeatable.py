"""Generated code depends on the program alone, not on what its process did before."""

from __future__ import annotations

import pytest

from . import repeatable


@pytest.mark.slow
def test_random_programs_have_one_text_in_every_process() -> None:
    assert repeatable.differences(0, range(12), alone=(5,)) == []


def test_a_text_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = iter([{1: "a;\nb;", 2: "c;"}, {1: "a;\nB;", 2: "c;"}, {2: "c;"}])
    monkeypatch.setattr(repeatable, "texts_in_a_new_process", lambda seed, numbers: next(texts))
    (report,) = repeatable.differences(0, [1, 2], alone=[2])
    assert report.startswith("# ----- program 1 of seed 0 differs")
    assert "-b;\n+B;" in report
