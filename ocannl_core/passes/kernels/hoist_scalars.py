"""Hoist scalars out of all loops of a kernel: the values that none of its loops changes.

    for i in range(1000):           v = f(s)
      x[i] = g(f(s), i)     -->     for i in range(1000):
                                      x[i] = g(v, i)

This is the inverse of `sink_scalars`, for kernels whose schedule is chosen: each thread that takes
a part of the loops computes the scalars once for it.
"""

from __future__ import annotations

from typing import ClassVar

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import FixedIndex, LoopVar, variables
from ocannl_core.ir.kernels.nest import flat_statements
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.loops.licm import Hoister
from ocannl_core.passes.loops.local_variables import fresh_locals
from ocannl_core.schedule.machine_model import MIN_HOISTED_COST


def hoist_scalars(kernel: Kernel, nodes: NodeInfos) -> Kernel:
    """Return a kernel that computes costly values which no loop changes in front of its loops.

    Cheap ones stay: C compilers hoist them.
    """
    stmts = flat_statements(kernel.body)
    if traverse.contains(kernel.body, (ir.Barrier, ir.Verbatim)):
        return kernel
    written = frozenset(traverse.writes(kernel.body))
    hoister = _KernelHoister(MIN_HOISTED_COST, fresh_locals(kernel.body), written, nodes)
    rest = [hoister.without_scalars(each) if isinstance(each, ir.For) else each for each in stmts]
    if not hoister.before:
        return kernel
    return replace(kernel, body=ir.Block((*hoister.before, *rest)))


@dataclass(slots=True)
class _KernelHoister(Hoister):
    """The loops of one kernel, to hoist scalars from."""

    hoists_from_branches: ClassVar[bool] = True
    """An expression that does not vary has a value under any condition."""

    written: frozenset[TensorNode]
    nodes: NodeInfos

    def without_scalars(self, loop: ir.For) -> ir.Stmt:
        body = traverse.map_stmts(loop, self.rewritten)
        return body.stmts[0] if len(body.stmts) == 1 else body

    def rewritten(self, stmt: ir.Stmt) -> ir.Stmt:
        return self.hoist_from_assignment(stmt) if isinstance(stmt, traverse.Assignment) else stmt

    def varies_at(self, node: traverse.Node) -> bool:
        match node:
            case ir.Const() | ir.ConstBits() | ir.Unary() | ir.Binary() | ir.Ternary():
                return False
            case ir.IndexValue(index):
                return any(isinstance(var, LoopVar) for var in variables(index))
            case ir.Load(array, indices):
                is_fixed = all(isinstance(index, FixedIndex) for index in indices)
                return not is_fixed or array in self.written or not self.nodes[array].size
            case _:
                return True
