"""The results that one thread accumulates."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import AxisIndex
from ocannl_core.ir.kernels.nest import Reduction
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.schedule.apply.block_axes import BlockAxes, Numbers


@dataclass(frozen=True, slots=True)
class ThreadAccumulator:
    """The results of one thread: an array, or a variable for a single cell.

    Attributes:
        node: The array; None for a variable.
    """

    axes: BlockAxes
    reduction: Reduction
    node: TensorNode | None
    cells: tuple[str, ...]
    local: ir.Local

    @property
    def declaration(self) -> tuple[ir.Stmt, ...]:
        if self.node is None:
            return (ir.DeclareLocal(self.local),)
        return (ir.Allocate(self.node, ir.Scope.THREAD),)

    def _indices(self, numbers: Numbers) -> tuple[AxisIndex, ...]:
        return tuple(numbers[name] for name in self.cells)

    def value(self, numbers: Numbers) -> ir.Expr:
        """Return the result of a cell."""
        if self.node is None:
            return ir.LocalRead(self.local)
        return ir.Load(self.node, self._indices(numbers), self.reduction.dtype)

    def set(self, numbers: Numbers, value: ir.Expr) -> ir.Stmt:
        """Return the statement that sets the result of a cell."""
        if self.node is None:
            return ir.SetLocal(self.local, value)
        return ir.Store(self.node, self._indices(numbers), value)

    def add(self, numbers: Numbers, term: ir.Expr, *, is_fused: bool) -> ir.Stmt:
        """Return the statement that combines a term with the result of a cell."""
        total, op, dtype = self.value(numbers), self.reduction.op, self.reduction.dtype
        match term:
            case ir.Binary(BinaryOp.MUL, left, right) if is_fused and op is BinaryOp.ADD:
                return self.set(numbers, ir.Ternary(TernaryOp.FMA, left, right, total, dtype))
            case _:
                return self.set(numbers, ir.Binary(op, total, term, dtype))
