"""The `target` fixture: every device of every installed backend."""

from __future__ import annotations

import pytest

from tests.support.targets import parametrize_targets


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize_targets(metafunc)
