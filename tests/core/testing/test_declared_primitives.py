"""The conformance suite gives a backend no primitive that its device does not declare."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import ocannl_interp
from ocannl_core.backend import manager
from ocannl_core.backend_api import Kernel
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp, VectorOp
from ocannl_core.testing.conformance import BackendConformance
from tests.support.limited_backend import all_but, limited

LACKING = frozenset({UnaryOp.TANH, UnaryOp.RELU, BinaryOp.MAX, TernaryOp.FMA, VectorOp.UNIFORM})


def ocannl_generate(kernels: Any) -> Any:
    plan = kernels.plan()
    for step in plan.kernels:
        for node in walk(step.body) if isinstance(step, Kernel) else ():
            assert getattr(node, "op", None) not in LACKING
            assert not isinstance(node, ir.StoreVector)
    return ocannl_interp.ocannl_generate(kernels, None)


class TestLimited(BackendConformance):
    oracle_name: ClassVar[str] = "interp"

    @pytest.fixture
    def target(self) -> str:
        if "declared" not in {entry.name for entry in manager.backend_entries()}:
            limited(
                "declared", primitives=all_but(*LACKING), hooks={"ocannl_generate": ocannl_generate}
            )
        return "declared"
