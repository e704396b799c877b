"""The schedule of reductions on processors with vector registers: one rule for matrix products,
convolutions, sums, maxima, and the gradients of all of them.

What the operands' index maps say about the axes decides everything:

- the *lanes* run along an axis on which most operands and the result are contiguous, or do not
  depend; the *vector operands* are those that depend on it;
- the *rows* are axes on which some vector operand does not depend, so that a loaded vector serves
  several accumulators; they and a few vectors of lanes make a block of registers;
- *outer* axes, on which the vector operands depend as well, run outside of everything;
- an operand that is read again and again, and not in the order of the loops, is packed;
- where the operands that are spread over lanes come from afar, blocks of lanes are taken together
  inside of each block of rows;
- of a very long sum, pieces run outside, so that what they read stays in the cache; several
  threads have shares of the rows, outside of the pieces.

The axis and the block that need the fewest cycles by a model of the processor win.

    c[i, j] += a[i, k] * b[k, j]  -->  split j 64; split j1 16; split i 6;
                                       order j0 i0 k i1 j10 j11; unroll i1; unroll j10;
                                       vectorise j11; pack 1 inside j0 as k j1;
                                       accumulate over k fused
"""

from __future__ import annotations

from ocannl_core.kernels.nest import KernelNest
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.kernels.transforms import Schedule
from ocannl_core.machine_model import MIN_SCHEDULED_STEPS
from ocannl_core.schedule.heuristics.cost_model import ReductionModel
from ocannl_core.schedule.heuristics.tiling_parameters import CHOSEN_BY_MODEL, TilingParameters
from ocannl_core.schedule.heuristics.vectorisable import is_vectorisable
from ocannl_core.schedule.heuristics.vectorise_output import OutputVectoriser
from ocannl_core.schedule.heuristics.vectorise_reduction import vectorise_reduction
from ocannl_core.target import Target


def model_reduction(nest: KernelNest, nodes: NodeInfos, target: Target) -> ReductionModel | None:
    """Returns a reduction as a processor sees it, or None where plain loops do as well."""
    if nest.reduction is None or not is_vectorisable(nest, nodes):
        return None
    model = ReductionModel(nest, nest.reduction, nodes, target)
    is_long = model.iterations(model.extents) >= MIN_SCHEDULED_STEPS
    return model if is_long and vector_axis_candidates(model) else None


def vector_axis_candidates(model: ReductionModel) -> list[str]:
    """Returns the axes that lanes may run along, the one of the fewest cycles first."""
    names = [name for name in (*model.output_axes, *model.reduced_axes) if model.extents[name] > 1]
    return sorted(names, key=model.cycles)


def contraction_schedule(
    nest: KernelNest,
    nodes: NodeInfos,
    target: Target,
    parameters: TilingParameters = CHOSEN_BY_MODEL,
) -> Schedule | None:
    """Returns the schedule of a reduction, or None where plain loops do as well.

    Args:
        nest: The nest.
        nodes: Extents and formats of its nodes.
        target: The processor.
        form: What is not left to the model.
    """
    model = model_reduction(nest, nodes, target)
    return schedule_reduction(model, parameters) if model is not None else None


def schedule_reduction(model: ReductionModel, parameters: TilingParameters) -> Schedule:
    """Returns the schedule of a form; what does not fit the nest is left out."""
    vector_axis = parameters.vector_axis or vector_axis_candidates(model)[0]
    if vector_axis in model.reduced_axes:
        return vectorise_reduction(model, vector_axis, parameters)
    return OutputVectoriser(model, vector_axis, parameters).schedule()
