"""The `target` fixture: every device of every installed backend."""

from __future__ import annotations

import pytest

from ocannl_core.testing.subject import installed_targets


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        metafunc.parametrize("target", installed_targets())
