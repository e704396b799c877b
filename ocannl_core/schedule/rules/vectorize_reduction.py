"""Vectorize a reduction along a reduced axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ocannl_core.ir.kernels import transforms
from ocannl_core.schedule.machine_model import ACCUMULATOR_CHAINS
from ocannl_core.schedule.rules.reduction_model import ReductionModel
from ocannl_core.schedule.rules.tiling_parameters import (
    PackingLayout,
    TilingParameters,
    split_axis,
    split_lanes,
    unroll_tile,
)


def vectorize_reduction(
    model: ReductionModel, vector_axis: str, parameters: TilingParameters
) -> transforms.Schedule:
    """Return a schedule in which every result has a vector of accumulators."""
    splits = transforms.Splits()
    extents = _tile_extents(model, parameters.rows)
    width = min(model.lanes, model.extents[vector_axis])
    wanted_chains = parameters.vectors or ACCUMULATOR_CHAINS // prod(extents.values())
    chains = max(1, min(wanted_chains, model.extents[vector_axis] // (2 * width)))
    if not parameters.rows:
        extents |= _independent_rows(model, extents, wanted_chains // chains)
    rows = {
        name: split_axis(splits, model, name, size, evenly=False) for name, size in extents.items()
    }
    block = split_axis(splits, model, vector_axis, width * chains, evenly=False)
    lanes = split_lanes(splits, block.inner, min(width * chains, model.extents[vector_axis]), width)
    tile_loops = [*(rows[name].inner for name in model.output_axes if name in rows), *lanes]
    outer = [rows[name].outer if name in rows else name for name in model.output_axes]
    reduced = [name for name in model.reduced_axes if name != vector_axis]
    reduced += [block.outer] if block.outer is not None else []
    order = (
        *(name for name in outer if name is not None),
        *model.shifting_axes,
        *reduced,
        *tile_loops,
    )
    return (
        *splits,
        transforms.Order(order),
        *unroll_tile(model, tile_loops),
        *_pack_operands(model, vector_axis, order, parameters),
        transforms.AccumulateAt((reduced or tile_loops)[0], model.is_fused),
    )


def _pack_operands(
    model: ReductionModel, vector_axis: str, order: Sequence[str], parameters: TilingParameters
) -> Iterator[transforms.Transform]:
    """Yield the packing of reused operands that are not contiguous along the vector axis."""
    for operand in model.operands:
        decided = parameters.layout(operand.position)
        is_spread = vector_axis in operand.axes and operand.stride(vector_axis) != 1
        is_packed = is_spread and model.is_worth_gathering(operand)
        if is_packed if decided is None else decided is not PackingLayout.NONE:
            leaves = [name for name in order if transforms.root_of(name) in operand.axes]
            yield transforms.Pack(
                operand.position,
                None,
                tuple(sorted(leaves, key=lambda name: transforms.root_of(name) == vector_axis)),
            )


def _independent_rows(
    model: ReductionModel, extents: Mapping[str, int], most: int
) -> dict[str, int]:
    """Return the output axis of more results that are accumulated at a time, and their number,
    where the terms of one result are too few for several chains of additions.
    """
    axes = [each for each in model.output_axes if each not in extents and model.extents[each] > 1]
    if most < 2 or not axes:
        return {}
    nearest = min(axes, key=lambda name: max(each.stride(name) for each in model.operands))
    count = next(n for n in range(most, 0, -1) if model.extents[nearest] % n == 0)
    return {nearest: count} if count > 1 else {}


def _tile_extents(model: ReductionModel, rows: int | None) -> dict[str, int]:
    """Return a register tile's output axes and extents, one along which each operand is reused."""
    extents: dict[str, int] = {}
    limit = rows or model.machine.reduction_tile_extent
    for operand in model.operands[:2]:
        sharing = [
            name
            for name in model.output_axes
            if model.extents[name] > 1 and name not in operand.axes and name not in extents
        ]
        if sharing:
            extents[sharing[-1]] = min(limit, model.extents[sharing[-1]])
    return extents
