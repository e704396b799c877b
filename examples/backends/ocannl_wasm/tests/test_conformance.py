"""The backend passes the suites that every backend passes."""

import pytest

from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.contexts import ContextConformance

pytest.importorskip("wasmtime")
pytest.importorskip("ziglang")


@pytest.fixture
def target():
    return "wasm"


class TestWasm(BackendConformance):
    oracle_name = "interp"


class TestContexts(ContextConformance):
    pass
