"""Every installed backend passes the suite that the core ships for plugin authors."""

from __future__ import annotations

from ocannl_core.testing.conformance import BackendConformance


class TestEveryBackend(BackendConformance):
    oracle_name = "interp"
