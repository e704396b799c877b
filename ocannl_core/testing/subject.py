"""Execution of loop programs on a backend, from arrays to arrays, as in the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ocannl_core.backend import manager
from ocannl_core.backend.manager import Backend
from ocannl_core.backend.protocols import Buffer, Executable, Source
from ocannl_core.ir.kernels.nodes import Plan, unchanged
from ocannl_core.ir.kernels.stream import map_steps
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import Op, VectorOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.decompose import with_decomposition
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.passes.loops.pipeline import run_passes
from ocannl_core.runtime import values
from ocannl_core.testing.compare import Array

Scheduler = Callable[[Plan, Target], Plan]
"""A function that reorders a plan."""


def keep_plan(plan: Plan, target: Target) -> Plan:
    """Return the plan as it is."""
    return plan


@dataclass(frozen=True, slots=True)
class Subject:
    """One device of one backend that runs loop programs."""

    backend: Backend
    target: Target

    def __str__(self) -> str:
        return str(self.target)

    def has_primitive(self, op: Op | VectorOp) -> bool:
        """Return True if the device declares a primitive."""
        declared = self.target.primitives
        return declared is None or op in declared

    def generate(self, program: LoopProgram, schedule: Scheduler = keep_plan) -> Source:
        """Return the backend's code for a program, scheduled by a function of the plan; primitives
        that the device lacks are decomposed, as in the runtime.
        """
        plan = split_kernels(run_passes(program, self.backend.passes(self.target)))
        rule = with_decomposition(unchanged, self.target)
        plan = plan if rule is unchanged else map_steps(plan, rule)
        return self.backend.generate(schedule(plan, self.target), self.target)

    def compile(self, program: LoopProgram, schedule: Scheduler = keep_plan) -> Executable:
        """Return the compiled program for buffers of this device."""
        return self.backend.compile(self.generate(program, schedule), self.target)

    def upload(self, array: Array, info: NodeInfo) -> Buffer:
        """Return new memory of the device with these cells; the array includes margins."""
        buffer = self.backend.allocate(info, self.target)
        whole = np.ascontiguousarray(array, info.dtype.numpy).reshape(info.buffer_dims)
        values.upload(self.backend, buffer, whole).wait()
        return buffer

    def download(self, buffer: Buffer) -> Array:
        """Return a copy of a buffer's cells, margins included, once all work has finished."""
        self.backend.synchronize(self.target)
        return values.download(self.backend, buffer)

    def run(
        self,
        program: LoopProgram,
        arrays: Mapping[TensorNode, Array] | None = None,
        indices: Sequence[int] = (),
        schedule: Scheduler = keep_plan,
    ) -> dict[TensorNode, Array]:
        """Return the cells of all parameters after one run.

        Args:
            arrays: Cells of parameters before the run, margins included; the others are zero.
        """
        executable = self.compile(program, schedule)
        buffers = {
            node: self.upload(arrays[node], program.nodes[node])
            if arrays is not None and node in arrays
            else self.backend.allocate(program.nodes[node], self.target)
            for node in program.params
        }
        self.backend.link(executable, buffers)(indices)
        return {node: self.download(buffer) for node, buffer in buffers.items()}


def subject_named(name: str) -> Subject:
    """Return a device by the name of its backend, or as `NAME:DEVICE`.

    Raises:
        BackendNotFoundError: if the backend is not installed, is broken, or has no such device.
    """
    return Subject(*manager.select(name))
