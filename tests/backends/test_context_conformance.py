"""Every device passes the suite about contexts, with a queue and without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ocannl_core.base.settings import overrides
from ocannl_core.testing.contexts import ContextConformance


class TestEveryDevice(ContextConformance):
    pass


class TestQueues(ContextConformance):
    """Devices of this process with a queue for each."""

    @pytest.fixture(autouse=True)
    def _asynchronous(self) -> Iterator[None]:
        with overrides(asynchronous=True):
            yield
