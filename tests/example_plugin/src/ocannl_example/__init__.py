"""A backend in two small files: memory and hooks here, the evaluation of programs in `evaluate`.

It supports plain loops over stored nodes, and rejects the rest with a CodegenError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocannl_core.backend_api import (
    Buffer,
    Done,
    Event,
    HostBuffer,
    HostCall,
    KernelStream,
    Launcher,
    NodeInfo,
    Plan,
    Target,
    TargetReport,
    TensorNode,
    hookimpl,
)
from ocannl_core.backend_api.host_calls import host_call
from ocannl_core.backend_api.loops import IndexVar
from ocannl_example.evaluate import check, run

OCANNL_API = (1, 0)
DEVICE = Target("example", description="this Python process, slowly", priority=-10)


@dataclass(frozen=True)
class Memory:
    """Cells of this backend's only device."""

    array: np.ndarray[Any, Any]
    info: NodeInfo
    target: Target


@dataclass(frozen=True)
class Program:
    """A plan that `check` has accepted: source and executable at once, because nothing is
    compiled.
    """

    plan: Plan
    language: str = "plan"

    @property
    def text(self) -> str:
        return "\n".join(repr(step) for step in self.plan.steps)

    def link(self, buffers: Mapping[TensorNode, Buffer]) -> Launcher:
        memory = dict(buffers)
        for node in self.plan.scratch:
            memory[node] = ocannl_allocate(self.plan.nodes[node], DEVICE)
        arrays = {node: each.array for node, each in memory.items() if isinstance(each, Memory)}
        calls = {
            position: host_call(step.call, memory, ocannl_transfer)
            for position, step in enumerate(self.plan.steps)
            if isinstance(step, HostCall)
        }

        def launch(values: Sequence[int]) -> None:
            env: dict[IndexVar, int] = dict(zip(self.plan.indices, values, strict=True))
            for position, step in enumerate(self.plan.steps):
                if position in calls:
                    calls[position]()
                else:
                    run(step, arrays, env)

        return launch


@hookimpl
def ocannl_targets() -> TargetReport:
    return TargetReport((DEVICE,), details=("walks loop programs in Python",))


@hookimpl
def ocannl_generate(kernels: KernelStream) -> Program:
    plan = kernels.plan()
    for step in plan.steps:
        check(step)
    return Program(plan)


@hookimpl
def ocannl_compile(source: Program) -> Program:
    return source


@hookimpl
def ocannl_allocate(info: NodeInfo, target: Target) -> Memory:
    return Memory(np.zeros(info.buffer_dims, info.dtype.numpy), info, target)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    known = (Memory, HostBuffer)
    if not isinstance(destination, known) or not isinstance(source, known):
        return None
    np.copyto(destination.array, source.array)
    return Done()
