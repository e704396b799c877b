"""OpenCL C expresses all of the loop language: no test of the suite is expected to fail."""

from __future__ import annotations

import pytest

from ocannl_core.testing.conformance import BackendConformance


class TestOpenCL(BackendConformance):
    oracle_name = "interp"

    @pytest.fixture
    def target(self) -> str:
        return "opencl"
