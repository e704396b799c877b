"""The schedule of nests without a reduction: the lanes that they run in.

Compilers vectorise plain loops, too, but take several times as long as for registers that are
written out; and they do not compute elementary functions, convert narrow floats, or store registers
past the caches in the way that suits a whole register.

    for i, j: y[i, j] = exp(x[i, j])   -->   split j 16; vectorise j1
"""

from __future__ import annotations

from ocannl_core.loopir.nodes import Load, Store
from ocannl_core.loopir.traverse import walk
from ocannl_core.schedule.cells import Axis, CellNest
from ocannl_core.schedule.choosing.lanes import has_lanes, widest
from ocannl_core.schedule.choosing.model import strides
from ocannl_core.schedule.plan import Infos
from ocannl_core.schedule.transforms import Order, Schedule, Split, Vectorise
from ocannl_core.target import Target


def pointwise_schedule(nest: CellNest, nodes: Infos, target: Target) -> Schedule | None:
    """Returns the schedule of a nest without a reduction, or None if it has no lanes."""
    if nest.reduction is not None or not has_lanes(nest, nodes):
        return None
    lanes = target.vector_bytes // widest(nest, nodes)
    lane = _lane(nest, nodes)
    if lane is None or lanes < 2:
        return None
    others = [axis.name for axis in nest.axes if axis.name != lane.name]
    if lane.extent <= lanes:
        return (Order((*others, lane.name)), Vectorise(lane.name))
    parts = (f"{lane.name}0", f"{lane.name}1")
    return (Split(lane.name, lanes), Order((*others, *parts)), Vectorise(parts[1]))


def _lane(nest: CellNest, nodes: Infos) -> Axis | None:
    """Returns the axis along which all cells written lie together, and all read, or are one."""
    read = [each for store in nest.finish for each in walk(store) if isinstance(each, Load)]
    accesses: list[Load | Store] = [*nest.finish, *read]
    steps = [strides(nest.axes, (each,), nodes) for each in accesses]
    stored = len(nest.finish)
    wide = [axis for axis in nest.axes if axis.extent > 1]
    for axis in reversed(wide or nest.axes):
        apart = [each[axis.name] for each in steps]
        if set(apart[:stored]) == {1} and set(apart[stored:]) <= {0, 1}:
            return axis
    return None
