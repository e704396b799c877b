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

from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.product_status import Obstacle
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.target import Target
from ocannl_core.schedule.machine_model import MIN_SCHEDULED_STEPS
from ocannl_core.schedule.rules.reduction_model import ReductionModel
from ocannl_core.schedule.rules.tiling_parameters import CHOSEN_BY_MODEL, TilingParameters
from ocannl_core.schedule.rules.vectorizable import has_vectorizable_terms
from ocannl_core.schedule.rules.vectorize_output import vectorize_output
from ocannl_core.schedule.rules.vectorize_reduction import vectorize_reduction


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
