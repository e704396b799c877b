"""The conformance suite as `ocannl check-backend` runs it.

A pytest plugin provides the fixtures `target` and `oracle_target`, the names of two devices.
"""

from __future__ import annotations

import pytest

from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.contexts import ContextConformance
from ocannl_core.testing.subject import Subject, subject_named
from ocannl_core.testing.training import TrainingConformance


@pytest.fixture
def oracle(oracle_target: str) -> Subject:
    return subject_named(oracle_target)


class TestBackend(BackendConformance):
    """All tests, without expected failures."""

    @pytest.fixture
    def oracle(self, oracle_target: str) -> Subject:
        return subject_named(oracle_target)


class TestContexts(ContextConformance):
    """Host access and copies right after calls."""


class TestTraining(TrainingConformance):
    """A network."""
