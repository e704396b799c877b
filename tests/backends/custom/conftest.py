"""Every test of user-written operations has a session and a context of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ocannl_core as oc


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=1) as session:
        yield session


@pytest.fixture
def ctx(target: str) -> oc.Context:
    return oc.Context(target)
