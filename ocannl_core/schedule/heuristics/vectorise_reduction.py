"""Schedules of reductions with lanes along a reduced axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ocannl_core.kernels.transforms import AccumulateAt, Order, Pack, Schedule, Transform
from ocannl_core.schedule.heuristics.cost_model import LATENCY, PER_CYCLE, ReductionModel
from ocannl_core.schedule.heuristics.tiling_parameters import (
    PackedOperand,
    TilingParameters,
    blocks_of,
    kinds_of,
    lane_loops,
)


def vectorise_reduction(model: ReductionModel, lane: str, form: TilingParameters) -> Schedule:
    """Returns a schedule in which every cell has a vector of accumulators."""
    splits: list[Transform] = []
    sizes = _shared_rows(model, form.rows)
    rows = {
        name: blocks_of(splits, model, name, size, evenly=False) for name, size in sizes.items()
    }
    width = min(model.lanes, model.extents[lane])
    made = prod(sizes.values())
    wanted = form.vectors or int(LATENCY * PER_CYCLE) // made
    chains = max(1, min(wanted, model.extents[lane] // (2 * width)))
    along = blocks_of(splits, model, lane, width * chains, evenly=False)
    lanes = lane_loops(splits, along.inner, min(width * chains, model.extents[lane]), width)
    kept = [*(rows[name].inner for name in model.cells if name in rows), *lanes]
    cells = [rows[name].number if name in rows else name for name in model.cells]
    reduced = [name for name in model.reduced if name != lane]
    reduced += [along.number] if along.number is not None else []
    order = (*(n for n in cells if n is not None), *model.shifting, *reduced, *kept)
    return (
        *splits,
        Order(order),
        *kinds_of(model, kept),
        *_packs_along_reduced(model, lane, order, form),
        AccumulateAt((reduced or kept)[0], model.is_fused),
    )


def _packs_along_reduced(
    model: ReductionModel, lane: str, order: Sequence[str], form: TilingParameters
) -> Iterator[Transform]:
    """Yields the packing of operands that are used often and not contiguous along the lanes."""
    for operand in model.operands:
        decided = form.copy(operand.position)
        is_spread = lane in operand.axes and operand.stride(lane) != 1
        is_packed = is_spread and model.is_gathered_once(operand)
        if is_packed if decided is None else decided is not PackedOperand.NONE:
            leaves = [name for name in order if name[0] in operand.axes]
            yield Pack(
                operand.position, None, tuple(sorted(leaves, key=lambda name: name[0] == lane))
            )


def _shared_rows(model: ReductionModel, rows: int | None) -> dict[str, int]:
    """Returns the axes of cells that share loads, one for each operand, and the rows of a block."""
    chosen: dict[str, int] = {}
    most = rows or (4 if model.registers >= 32 else 3)
    for operand in model.operands[:2]:
        shared = [
            name
            for name in model.cells
            if model.extents[name] > 1 and name not in operand.axes and name not in chosen
        ]
        if shared:
            chosen[shared[-1]] = min(most, model.extents[shared[-1]])
    return chosen
