"""The conformance suite as `ocannl check-backend` runs it.

A pytest plugin provides the fixtures `target` and `oracle_target`, the names of two devices.
"""

from __future__ import annotations

import pytest

from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import Op
from ocannl_core.testing.allowances import allowances_of
from ocannl_core.testing.compare import Tolerance
from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.contexts import ContextConformance
from ocannl_core.testing.subject import Subject, subject_named
from ocannl_core.testing.training import TrainingConformance


@pytest.fixture
def oracle(oracle_target: str) -> Subject:
    return subject_named(oracle_target)


class TestBackend(BackendConformance):
    """All tests, without expected failures, with the tolerances of the backend."""

    @pytest.fixture(autouse=True)
    def _read_allowances(self, subject: Subject) -> None:
        self._allowances = allowances_of(subject.backend)

    def tolerance_of(self, op: Op, dtype: DType) -> Tolerance:
        default = super().tolerance_of(op, dtype)
        return self._allowances.ulps(f"primitives/{op.value.name}/{dtype}", default)

    @pytest.fixture
    def oracle(self, oracle_target: str) -> Subject:
        return subject_named(oracle_target)


class TestContexts(ContextConformance):
    """Host access and copies right after calls."""


class TestTraining(TrainingConformance):
    """A network."""
