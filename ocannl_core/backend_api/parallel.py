"""Iterations of a parallel kernel that several threads may share."""

from ocannl_core.kernel_passes.parallelise import (
    LEAST_WORK,
    ParallelIterations,
    UniformIterations,
    parallel_iterations,
)

__all__ = [
    "LEAST_WORK",
    "ParallelIterations",
    "UniformIterations",
    "parallel_iterations",
]
