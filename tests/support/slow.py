"""Parameters of tests that take long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(values: Iterable[Any]) -> list[Any]:
    """Return parameters whose tests run in `make test-slow` alone."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def long(values: Iterable[Any]) -> list[Any]:
    """Return parameters whose tests run in `make test-long` alone."""
    return [pytest.param(value, marks=(pytest.mark.slow, pytest.mark.long)) for value in values]
