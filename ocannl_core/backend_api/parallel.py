"""Iterations of a parallel kernel that several threads may share, and threads that do."""

from ocannl_core.kernel_passes.parallelise import (
    ParallelIterations,
    UniformIterations,
    parallel_iterations,
)
from ocannl_core.machine_model import MIN_THREAD_CYCLES
from ocannl_core.thread_team import ThreadTeam

__all__ = [
    "MIN_THREAD_CYCLES",
    "ParallelIterations",
    "ThreadTeam",
    "UniformIterations",
    "parallel_iterations",
]
