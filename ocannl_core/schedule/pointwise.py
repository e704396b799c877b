"""The schedule of nests without a reduction whose functions are computed faster in vectors.

C compilers make vectors of plain arithmetic by themselves, but call functions number by number.
"""

from __future__ import annotations

from math import prod

from ocannl_core.dtypes import float32
from ocannl_core.loopir.nodes import Unary
from ocannl_core.loopir.traverse import walk
from ocannl_core.ops import UnaryOp
from ocannl_core.schedule.cells import CellNest
from ocannl_core.schedule.lanes import has_lanes, widest
from ocannl_core.schedule.model import Infos, accesses_of, strides_of
from ocannl_core.schedule.transforms import Order, Schedule, Split, Transform, Vectorise
from ocannl_core.target import Target

_FUNCTIONS = frozenset({UnaryOp.EXP, UnaryOp.LOG, UnaryOp.TANH})
_LEAST_WORK = 64


def pointwise_schedule(nest: CellNest, nodes: Infos, target: Target) -> Schedule | None:
    """Returns the schedule of a nest without a reduction, or None where plain loops do as well.

    Args:
        nest: The nest.
        nodes: Extents and formats of its nodes.
        target: The processor.
    """
    extents = {axis.name: axis.extent for axis in nest.axes}
    if nest.reduction is not None or prod(extents.values()) < _LEAST_WORK:
        return None
    if target.vector_bytes == 0 or not _calls_functions(nest) or not has_lanes(nest, nodes):
        return None
    strides = [strides_of(nest.axes, (access,), nodes) for access in accesses_of(nest)]
    lanes = target.vector_bytes // widest(nest, nodes)
    for lane in reversed(extents):
        if extents[lane] > 1 and all(found.get(lane, 0) in (0, 1) for found in strides):
            break
    else:
        return None
    transforms: list[Transform] = []
    loops = [lane]
    if extents[lane] > lanes:
        transforms.append(Split(lane, lanes))
        loops = [f"{lane}0", f"{lane}1"]
    others = [name for name in extents if name != lane]
    return (*transforms, Order((*others, *loops)), Vectorise(loops[-1]))


def _calls_functions(nest: CellNest) -> bool:
    return any(
        isinstance(each, Unary) and each.op in _FUNCTIONS and each.dtype is float32
        for store in nest.finish
        for each in walk(store)
    )
