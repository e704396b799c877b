"""Every test starts with a session of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ocannl_core as oc


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=42) as session:
        yield session
