"""The schedule of a reduction on processors with vector registers: one rule for matrix products,
convolutions, sums, maxima, and the gradients of all of them.

The strides of the operands along the axes determine the schedule:

- the *vector axis* is one along which most operands and the result are contiguous or broadcast; the
  *vector operands* are those that depend on it;
- the *row axes* are output axes on which some vector operand does not depend, so that a loaded
  vector serves several accumulators; they and a few vectors make a register tile;
- the *outer axes*, on which the vector operands depend as well, are the outermost loops;
- an operand that is reused often, and not in the order of the loops, is packed;
- where broadcast operands exceed the second cache, several blocks of the vector axis run inside of
  each block of rows;
- a very long reduction is split into blocks, outside of the output axes, so that the operands of a
  block stay in the cache; threads take shares of the rows, outside of these blocks.

The vector axis and the register tile take the fewest cycles by the cost model.

    c[i, j] += a[i, k] * b[k, j]  -->  split j 64; split j1 16; split i 6;
                                       order j0 i0 k i1 j10 j11; unroll i1; unroll j10;
                                       vectorize j11; pack 1 inside j0 as k j1;
                                       accumulate over k fused
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.target import Target
from ocannl_core.schedule.machine_model import ACCUMULATOR_CHAINS, MIN_SCHEDULED_STEPS
from ocannl_core.schedule.rules.reduction_model import ReductionModel
from ocannl_core.schedule.rules.tiling_parameters import (
    CHOSEN_BY_MODEL,
    PackingLayout,
    TilingParameters,
    split_axis,
    split_lanes,
    unroll_tile,
)
from ocannl_core.schedule.rules.vectorizable import has_vectorizable_terms
from ocannl_core.schedule.rules.vectorize_output import vectorize_output


def find_model(nest: Nest, nodes: NodeInfos, target: Target) -> ReductionModel | Obstacle:
    """Return the cost model of a reduction, or the reason why plain loops are as fast."""
    if nest.reduction is None:
        return Obstacle.AXES
    if not has_vectorizable_terms(nest, nodes):
        return Obstacle.EXPRESSION
    model = ReductionModel(nest, nest.reduction, nodes, target)
    is_long = model.iterations(model.extents) >= MIN_SCHEDULED_STEPS
    return model if is_long and vector_axis_candidates(model) else Obstacle.SIZE


def find_vector_schedule(nest: Nest, nodes: NodeInfos, target: Target) -> Schedule | Obstacle:
    """Return the schedule of a reduction in vectors, or the reason why plain loops are as fast."""
    model = find_model(nest, nodes, target)
    return model if isinstance(model, Obstacle) else schedule_reduction(model, CHOSEN_BY_MODEL)


def vector_axis_candidates(model: ReductionModel) -> list[str]:
    """Return the axes that may be vectorized, in the order of their cycles."""
    least = {name: 2 for name in model.output_axes if model.has_vector_epilogue}
    least |= dict.fromkeys(model.reduced_axes, 2 if model.has_vector_epilogue else model.lanes)
    return sorted((each for each in least if model.extents[each] >= least[each]), key=model.cycles)


def schedule_reduction(model: ReductionModel, parameters: TilingParameters) -> Schedule:
    """Return the schedule of a reduction; parameters that do not fit are ignored."""
    vector_axis = parameters.vector_axis or vector_axis_candidates(model)[0]
    if vector_axis in model.reduced_axes:
        return vectorize_reduction(model, vector_axis, parameters)
    return vectorize_output(model, vector_axis, parameters)


def vectorize_reduction(
    model: ReductionModel, vector_axis: str, parameters: TilingParameters
) -> transforms.Schedule:
    """Return a schedule in which every result has a vector of accumulators."""
    splits = transforms.Splits()
    extents = model.reduction_tile(parameters.rows)
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
