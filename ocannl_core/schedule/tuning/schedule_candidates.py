"""Candidates of the search for a reduction's schedule: neighbors in the space of tiling
parameters.

A search starts from the parameters that the cost model chooses, times all that differ in one of
them, continues from the fastest, and ends where none is faster. The parameters are those of
`TilingParameters`: the vector axis, the register tile, the blocks of a long reduction, the packed
operands and their layouts, and the outer loop over blocks. `plain loops`, the empty schedule, is a
candidate, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.target import Target
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.rules.amx_schedules import amx_schedules, find_amx_schedule
from ocannl_core.schedule.rules.block_rules import block_schedule, block_schedules
from ocannl_core.schedule.rules.reduction_model import ReductionModel
from ocannl_core.schedule.rules.tiling_parameters import (
    CHOSEN_BY_MODEL,
    PackingLayout,
    TilingParameters,
)
from ocannl_core.schedule.rules.vector_reductions import (
    find_model,
    schedule_reduction,
    vector_axis_candidates,
)

_MAX_VECTORS = 6
_MAX_VECTOR_AXES = 3
_REDUCTION_BLOCKS = (1, 2, 3, 4, 6, 8)
_VECTOR_BLOCKS = (1, 2, 4, 8)
_CHAINS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class ScheduleCandidate:
    """A schedule to time."""

    schedule: Schedule
    parameters: TilingParameters | None
    """The parameters of the schedule; None for plain loops and for tiles."""


def first_candidates(nest: Nest, nodes: NodeInfos, target: Target) -> tuple[ScheduleCandidate, ...]:
    """Return the default schedule, others that the search does not reach from it, and plain loops;
    nothing for a nest that has one schedule.

    If the default has tiles of a matrix unit, the others are the schedule in vectors, and tiles
    along other axes.
    """
    if target.thread_blocks is not None:
        schedule = block_schedule(nest, nodes, target)
        if not schedule or nest.reduction is None:
            return ()
        return ScheduleCandidate(schedule, None), ScheduleCandidate((), None)
    model = find_model(nest, nodes, target)
    if isinstance(model, Obstacle):
        return ()
    vectors = ScheduleCandidate(schedule_reduction(model, CHOSEN_BY_MODEL), CHOSEN_BY_MODEL)
    plain = ScheduleCandidate((), None)
    tiled = find_amx_schedule(nest, nodes, target)
    if isinstance(tiled, Obstacle):
        return vectors, plain
    others = [each for each in amx_schedules(nest, nodes, target) if each != tiled]
    tiles = [ScheduleCandidate(each, None) for each in others if is_applicable(nest, each)]
    return ScheduleCandidate(tiled, None), vectors, *tiles, plain


def neighbors(
    nest: Nest, nodes: NodeInfos, target: Target, candidate: ScheduleCandidate
) -> Iterator[ScheduleCandidate]:
    """Yield the candidates that differ from one in one parameter, likely ones first; on thread
    blocks all others.

    Each is applicable to the nest. The results of a nest are independent of each other, so every
    applicable schedule is safe. A schedule that several parameters give is yielded once.
    """
    if target.thread_blocks is not None:
        for schedule in block_schedules(nest, nodes, target):
            if schedule != candidate.schedule and is_applicable(nest, schedule):
                yield ScheduleCandidate(schedule, None)
        return
    model = find_model(nest, nodes, target)
    if isinstance(model, Obstacle) or candidate.parameters is None:
        return
    seen = {candidate.schedule}
    for parameters in _vary_parameters(model, candidate.parameters):
        schedule = schedule_reduction(model, parameters)
        if schedule not in seen and is_applicable(nest, schedule):
            seen.add(schedule)
            yield ScheduleCandidate(schedule, parameters)


def is_applicable(nest: Nest, schedule: Schedule) -> bool:
    """Return True if a schedule can be applied to a nest."""
    try:
        apply_schedule(nest, schedule)
    except UsageError:
        return False
    return True


def _vary_parameters(
    model: ReductionModel, parameters: TilingParameters
) -> Iterator[TilingParameters]:
    vector_axis = parameters.vector_axis or vector_axis_candidates(model)[0]
    if vector_axis in model.reduced_axes:
        for chains in _CHAINS:
            yield replace(parameters, vectors=chains)
        for rows in range(1, 1 + max(4, model.machine.registers // 8)):
            yield replace(parameters, rows=rows)
    else:
        yield from _vary_layouts(model, parameters)
        yield from _vary_tiles(model, vector_axis, parameters)
        for vector_blocks in (*_VECTOR_BLOCKS, model.extents[vector_axis]):
            yield replace(parameters, vector_blocks=vector_blocks)
        yield from (replace(parameters, prefetches=each) for each in (True, False))
        for outer_reductions in range(len(model.reduced_axes)):
            yield replace(parameters, outer_reductions=outer_reductions)
        for reduction_blocks in _REDUCTION_BLOCKS:
            yield replace(parameters, reduction_blocks=reduction_blocks)
    for other in vector_axis_candidates(model)[:_MAX_VECTOR_AXES]:
        if other != vector_axis:
            yield TilingParameters(vector_axis=other)


def _vary_layouts(
    model: ReductionModel, parameters: TilingParameters
) -> Iterator[TilingParameters]:
    for operand in model.operands:
        others = tuple(pair for pair in parameters.layouts if pair[0] != operand.position)
        for layout in PackingLayout:
            yield replace(parameters, layouts=(*others, (operand.position, layout)))


def _vary_tiles(
    model: ReductionModel, vector_axis: str, parameters: TilingParameters
) -> Iterator[TilingParameters]:
    """Yield register tiles: the largest of each width, smaller ones, and divisors of the rows."""
    rows = model.iterations(model.tile_row_axes(vector_axis))
    width = ceil_div(model.extents[vector_axis], model.lanes)
    for vectors in range(1, min(_MAX_VECTORS, width) + 1):
        max_rows = min(rows, max(1, (model.machine.registers - vectors - 1) // vectors))
        counts = {max_rows, max_rows - 1, max_rows - 2, max_rows * 3 // 4, max_rows // 2}
        counts |= {
            count for count in range(max_rows // 2, max_rows + 1) if count and rows % count == 0
        }
        for count in sorted(counts, reverse=True):
            if count > 0:
                yield replace(parameters, vectors=vectors, rows=count)
