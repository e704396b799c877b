"""The backend passes the suites that every backend passes."""

import pytest

from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.contexts import ContextConformance

pytest.importorskip("llvmlite")


@pytest.fixture
def target():
    return "llvm"


class TestLlvm(BackendConformance):
    oracle_name = "interp"


class TestContexts(ContextConformance):
    pass
