"""The schedules that a search tries for a reduction: neighbours in the space that the contraction
schedule draws from.

A search starts from the form that the model chooses, tries all forms that differ in one respect,
goes on from the fastest, and ends where none is faster. The respects are those of
`TilingParameters`: the vectorised axis, the register tile, the parts of a long sum, the packed
operands and their layouts, and the outer loop over blocks. `plain loops` is a candidate, too: the
empty schedule.
"""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.errors import UsageError
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.heuristics.contraction import (
    lane_candidates,
    model_reduction,
    schedule_of,
)
from ocannl_core.schedule.heuristics.cost_model import ReductionModel
from ocannl_core.schedule.heuristics.matrix_tiles import tile_schedule
from ocannl_core.schedule.heuristics.tiling_parameters import (
    BY_MODEL,
    PackedOperand,
    TilingParameters,
)
from ocannl_core.target import Target

_MOST_VECTORS = 6
_MOST_LANE_AXES = 3
_PIECES = (1, 2, 3, 4, 6, 8)
_TOGETHER = (1, 2, 4, 8)
_CHAINS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to try.

    Attributes:
        schedule: The schedule; empty for plain loops.
        form: What it was made from; None for plain loops and for tiles.
    """

    schedule: Schedule
    form: TilingParameters | None


def first_candidates(nest: KernelNest, nodes: NodeInfos, target: Target) -> tuple[Candidate, ...]:
    """Returns the default's schedule, those without tiles and plain loops; nothing for a nest that
    has one schedule.
    """
    model = model_reduction(nest, nodes, target)
    if model is None:
        return ()
    tiled = tile_schedule(nest, nodes, target)
    first = () if tiled is None else (Candidate(tiled, None),)
    return (*first, Candidate(schedule_of(model, BY_MODEL), BY_MODEL), Candidate((), None))


def neighbours(
    nest: KernelNest, nodes: NodeInfos, target: Target, candidate: Candidate
) -> Iterator[Candidate]:
    """Yields the candidates that differ from one in one respect, likely ones first.

    Each fits the nest: applying it has been tried. The cells of a nest are independent, so that
    every schedule that fits is safe. Different forms may have one schedule, which comes once.
    """
    model = model_reduction(nest, nodes, target)
    if model is None or candidate.form is None:
        return
    seen = {candidate.schedule}
    for form in _forms(model, candidate.form):
        schedule = schedule_of(model, form)
        if schedule not in seen and fits(nest, schedule):
            seen.add(schedule)
            yield Candidate(schedule, form)


def fits(nest: KernelNest, schedule: Schedule) -> bool:
    """True if a schedule can be applied to a nest."""
    try:
        apply_schedule(nest, schedule)
    except UsageError:
        return False
    return True


def _forms(model: ReductionModel, form: TilingParameters) -> Iterator[TilingParameters]:
    lane = form.lane or lane_candidates(model)[0]
    if lane in model.reduced:
        for chains in _CHAINS:
            yield replace(form, vectors=chains)
        for rows in range(1, 1 + max(4, model.registers // 8)):
            yield replace(form, rows=rows)
    else:
        yield from _copies(model, form)
        yield from _blocks(model, lane, form)
        for together in (*_TOGETHER, model.extents[lane]):
            yield replace(form, together=together)
        yield from (replace(form, fetching=each) for each in (True, False))
        for outside in range(len(model.reduced)):
            yield replace(form, outside=outside)
        for pieces in _PIECES:
            yield replace(form, pieces=pieces)
    for other in lane_candidates(model)[:_MOST_LANE_AXES]:
        if other != lane:
            yield TilingParameters(lane=other)


def _copies(model: ReductionModel, form: TilingParameters) -> Iterator[TilingParameters]:
    for operand in model.operands:
        others = tuple(pair for pair in form.copies if pair[0] != operand.position)
        for copy in PackedOperand:
            yield replace(form, copies=(*others, (operand.position, copy)))


def _blocks(model: ReductionModel, lane: str, form: TilingParameters) -> Iterator[TilingParameters]:
    """Yields blocks of registers: the largest of each width, somewhat smaller ones, and such that
    all are equally large.
    """
    rows = model.size(model.tile_rows(lane))
    width = -(-model.extents[lane] // model.lanes)
    for vectors in range(1, min(_MOST_VECTORS, width) + 1):
        most = min(rows, max(1, (model.registers - vectors - 1) // vectors))
        counts = {most, most - 1, most - 2, most * 3 // 4, most // 2}
        counts |= {count for count in range(most // 2, most + 1) if count and rows % count == 0}
        for count in sorted(counts, reverse=True):
            if count > 0:
                yield replace(form, vectors=vectors, rows=count)
