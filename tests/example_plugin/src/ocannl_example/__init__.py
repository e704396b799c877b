"""A backend in two small files: memory and hooks here, the evaluation of programs in `evaluate`.

It supports plain loops over stored nodes, and rejects the rest with a CodegenError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocannl_core.backend_api import (
    Buffer,
    Capability,
    Done,
    Event,
    HostBuffer,
    HostCall,
    Kernel,
    KernelStream,
    Launcher,
    NodeInfo,
    Plan,
    RepeatedSteps,
    Step,
    Target,
    TargetReport,
    TensorNode,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    hookimpl,
    int8,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from ocannl_core.backend_api.host_calls import host_call
from ocannl_example.evaluate import Arrays, Env, check, run

OCANNL_API = (1, 0)
DEVICE = Target(
    "example",
    description="this Python process, slowly",
    priority=-10,
    capabilities=(Capability.EXTERNAL_CALLS, Capability.REPETITIONS),
    formats=(bool_, uint8, int8, int32, uint32, int64, uint64, bfloat16, float16, float32, float64),
)


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
        for node in self.plan.own_nodes:
            memory[node] = ocannl_allocate(self.plan.nodes[node], DEVICE)
        arrays = {node: each.array for node, each in memory.items() if isinstance(each, Memory)}
        env: Env = {}
        actions = [self._action(step, memory, arrays, env) for step in self.plan.steps]

        def launch(values: Sequence[int]) -> None:
            env.update(zip(self.plan.indices, values, strict=True))
            for action in actions:
                action()

        return launch

    def _action(
        self, step: Step, memory: Mapping[TensorNode, Buffer], arrays: Arrays, env: Env
    ) -> Callable[[], None]:
        """Return a function that runs a step."""
        match step:
            case HostCall(call):
                return host_call(call, memory, ocannl_transfer)
            case Kernel():
                return lambda: run(step, arrays, env)
            case RepeatedSteps(index, steps=steps):
                actions = [self._action(each, memory, arrays, env) for each in steps]

                def repeat() -> None:
                    for env[index] in step.iterations:
                        for action in actions:
                            action()

                return repeat


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
    return Memory(np.zeros(info.memory_dims, info.memory_numpy), info, target)


@hookimpl
def ocannl_transfer(destination: Buffer, source: Buffer) -> Event | None:
    known = (Memory, HostBuffer)
    if not isinstance(destination, known) or not isinstance(source, known):
        return None
    np.copyto(destination.array, source.array)
    return Done()
