"""Junk as arguments of public callables ends in a reason."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.slow import long

from .junk import Door, call, doors, failures

PARTS = 4
CALLS = 3
"""Of each callable; `make fuzz ARGS=--junk` has more."""


@pytest.mark.parametrize("part", [0, *long(range(1, PARTS))])
def test_junk_is_refused_with_a_reason(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(failures(0, CALLS, doors()[part::PARTS]))
    assert not found, "\n".join(map(str, found))


def _door(function: Any) -> Door:
    def planted(x: Any) -> None:
        function(x)

    return Door("planted", lambda bench: planted, ())


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("AttributeError", lambda: object().size),  # type: ignore[attr-defined]
        ("TypeError", lambda: 1 + "a"),  # type: ignore[operator]
        ("AssertionError", lambda: (_ for _ in ()).throw(AssertionError())),
    ],
)
def test_calls_that_fail_without_a_reason_are_found(kind: str, function: Any) -> None:
    found = call(Door("planted", lambda bench: function, ()), Random(0))
    assert found is not None
    assert found.kind == kind


def test_the_callables_are_functions_classes_operations_blocks_and_methods() -> None:
    titles = {door.title for door in doors()}
    assert titles >= {
        "oc.reshape",
        "oc.relu",
        "oc.Context",
        "oc.nn.dense",
        "oc.train.AdamW",
        "oc.data.Loader",
        "oc.custom.Reduce",
        "oc.settings.overrides",
        "x.diff",
        "x.__getitem__",
        "context.assign",
        "routine.profile",
        "block.__call__",
    }
