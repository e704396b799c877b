"""Plans for large devices, run by the emulation of their kernels in this process, without a driver."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ocannl_core.codegen.text.routine_source import Launch
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.subject import Scheduler
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.source import generate
from plugins.ocannl_cuda.tests.emulated_kernels import Array, launcher

Arrays = dict[TensorNode, Array]

SMALL = Target(
    "cuda",
    has_fma=True,
    thread_blocks=ThreadBlocks(
        max_threads=256,
        threads=128,
        local_bytes=48 << 10,
        registers=128,
        subgroup=32,
        processors=1,
        vector_bytes=16,
        has_shuffles=True,
    ),
)
"""A device that small programs fill."""


def planned_for(target: Target) -> Scheduler:
    """Return a scheduler that ignores the device that runs the plan."""

    def schedule(plan: Plan, runs_on: Target) -> Plan:
        return schedule_for(plan, target, finish_for(target)).plan()

    return schedule


def memory(info: NodeInfo, cells: Array | None = None, shift: int = 0) -> Array:
    """Return zeroed memory of a node that begins at a multiple of 256 bytes, and of a shift."""
    dtype = np.dtype(info.memory_numpy)
    count = int(np.prod(info.memory_dims, dtype=np.int64))
    raw = np.zeros(count * dtype.itemsize + 512, np.uint8)
    start = -raw.ctypes.data % 256 + shift
    found = raw[start : start + count * dtype.itemsize].view(dtype).reshape(info.memory_dims)
    if cells is not None:
        found[...] = np.asarray(cells).reshape(info.memory_dims)
    return found


class FaultError(Exception):
    """A fault that the emulation of devices reports."""


def run(
    program: LoopProgram, arrays: Mapping[TensorNode, Array], target: Target = SMALL, shift: int = 0
) -> Arrays:
    """Return the cells of all parameters after one run of a program's kernels for a device.

    Args:
        program: The program; its kernels do not repeat, and call no operations.
        arrays: Cells of parameters before the run; the others are zero.
        target: The device.
        shift: The bytes by which memory is misplaced.
    """
    plan = planned_for(target)(split_kernels(program), target)
    source = generate(KernelStream.of(plan))
    text = DIALECT.unit(source.kernels)
    cells = {
        node: memory(plan.nodes[node], arrays.get(node), shift)
        for node in (*plan.params, *plan.scratch)
    }
    for launch in source.steps:
        assert isinstance(launch, Launch)
        kernel = launch.text
        given = (cells[node] for node in launch.arguments)
        status, message = launcher(text, kernel.symbol)(kernel.grid, kernel.block, *given)
        if status:
            raise FaultError(message)
    return {node: cells[node] for node in program.params}
