"""Kernels that a device does not support run on the processor, and their nodes are copied."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest

import ocannl_core as oc
import ocannl_opencl
from ocannl_core.backend import manager
from ocannl_core.backend.protocols import TargetReport
from ocannl_core.backend.specs import hookimpl
from ocannl_core.ir.numbers.primitives import EVERY_PRIMITIVE, UnaryOp


@pytest.fixture
def far(fresh_plugins: None) -> str:
    """Register OpenCL devices without a hyperbolic tangent."""
    primitives = tuple(op for op in EVERY_PRIMITIVE if op is not UnaryOp.TANH)

    @hookimpl
    def ocannl_targets() -> TargetReport:
        targets = (
            dataclasses.replace(each, backend="far", primitives=primitives)
            for each in ocannl_opencl.ocannl_targets().targets
        )
        return TargetReport(tuple(targets))

    module = ModuleType("far")
    vars(module).update(vars(ocannl_opencl))
    vars(module)["ocannl_targets"] = ocannl_targets
    manager.register("far", module)
    return "far"


@pytest.mark.parametrize("fallback", ["cpu_c", "interp"])
def test_a_device_with_a_queue_waits_for_the_processor(far: str, fallback: str) -> None:
    losses = []
    for context in (oc.Context(far, fallback=fallback), oc.Context("interp")):
        with oc.Session():
            x = oc.tensor(np.linspace(-1, 1, 40).reshape(8, 5), batch_axes=1)
            w, u = oc.param("w", output=[16]), oc.param("u", output=[16], input=[16])

            def step(h: oc.Tensor, entry: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
                h = oc.tanh(w @ entry + u @ h)  # noqa: B023
                return h, oc.exp(h)

            values, _ = oc.scan(step, oc.tensor(np.zeros(16)), x)
            loss = oc.einsum("...|...->... => 0", values * values)
            context.init_params(loss)
            code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.01)
            routine = context.compile(code)
            for _ in range(5):
                routine()
            losses.append(context.item(loss))
            if context.target.backend == far:
                described = "\n".join(routine.devices)
                assert f"on {fallback}:0" in described
                assert f"from far:0 to {fallback}:0" in described
                assert f"from {fallback}:0 to far:0" in described
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
