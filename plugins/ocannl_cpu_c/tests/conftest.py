"""Running plans that tests of the CPU backend build by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import ocannl_cpu_c as backend
from ocannl_core.backend.protocols import HostBuffer
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target

Array = np.ndarray[Any, Any]
Run = Callable[..., dict[TensorNode, Array]]
TARGET = Target("cpu_c")


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a plan once over new memory."""
    return run_plan


def run_plan(
    plan: Plan, inputs: Mapping[TensorNode, Array], values: Sequence[int] = ()
) -> dict[TensorNode, Array]:
    """Return the cells of every parameter after one run; those not given start at zero."""
    executable = backend.ocannl_compile(
        backend.ocannl_generate(KernelStream.of(plan), TARGET), TARGET
    )
    buffers = {node: backend.ocannl_allocate(plan.nodes[node], TARGET) for node in plan.params}
    for node, array in inputs.items():
        backend.ocannl_transfer(buffers[node], HostBuffer(array, plan.nodes[node]))
    executable.link(buffers)(values)
    results = {}
    for node, buffer in buffers.items():
        host = HostBuffer(np.empty(buffer.info.buffer_dims, buffer.info.dtype.numpy), buffer.info)
        backend.ocannl_transfer(host, buffer)
        results[node] = host.array
    return results
