"""Iterations of a parallel kernel that several threads may share, and threads that do."""

from ocannl_core.backend.thread_team import ThreadTeam
from ocannl_core.passes.kernels.parallel_loops import (
    ParallelIterations,
    UniformIterations,
    parallel_iterations,
)
from ocannl_core.schedule.machine_model import MIN_THREAD_CYCLES

# fmt: off
__all__ = [
    "MIN_THREAD_CYCLES", "ParallelIterations", "ThreadTeam", "UniformIterations",
    "parallel_iterations",
]
# fmt: on
