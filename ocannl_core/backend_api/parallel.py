"""Iterations of a parallel kernel that several threads may share."""

from ocannl_core.kernel_passes.parallelise import (
    ParallelIterations,
    UniformIterations,
    parallel_iterations,
)
from ocannl_core.machine_model import MIN_THREAD_CYCLES

__all__ = [
    "MIN_THREAD_CYCLES",
    "ParallelIterations",
    "UniformIterations",
    "parallel_iterations",
]
