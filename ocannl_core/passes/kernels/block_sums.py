"""Long sums in blocks, whose partial sums are added up.

    for i in range(100000):         for block in range(25):
        c[0] += f(i)         -->        partial = 0.0
                                        for i in range(4096), while 4096 * block + i < 100000:
                                            partial += f(4096 * block + i)
                                        c[0] += partial

One accumulator of float32 takes no more terms once it is 2**24 times as large as each of them. Here
none takes more than a block of terms; where there are many blocks, their sums are a long sum again.
On every target this is the first pass over a scheduled kernel, for sums whose terms the schedule
has not divided. The order depends on extents alone, so that all targets have the same bits.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.indexing import AxisIndex, IndexVar, affine, fresh_var, substitute, variables
from ocannl_core.ir.kernels.nest_recognition import match_accumulation
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.loops.local_variables import Fresh, fresh_locals
from ocannl_core.schedule.machine_model import MAX_BLOCK_TERMS

_Target = ir.LocalRead | ir.Load
"""A scalar or a cell that a loop adds to, as the expression that reads it."""


def block_long_sums(kernel: Kernel) -> Kernel:
    """Return a kernel none of whose accumulators adds up more terms than a block has."""
    if kernel.schedule or not any(map(_is_long, traverse.walk(kernel.body))):
        return kernel
    blocks = _Blocks(fresh_locals(kernel.body))
    body = traverse.map_stmts(kernel.body, blocks.divide)
    return kernel if body == kernel.body else replace(kernel, body=body)


def _is_long(node: traverse.Node) -> bool:
    """Return True for a nest of loops with more iterations than a block has terms."""
    count = 1
    while isinstance(node, ir.For):
        count *= node.stop - node.start
        stmts = [each for each in node.body.stmts if isinstance(each, ir.For)]
        if len(stmts) != 1:
            break
        (node,) = stmts
    return count > MAX_BLOCK_TERMS


@dataclass(frozen=True, slots=True)
class _Blocks:
    fresh: Fresh

    def divide(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return a loop in blocks, if it adds up many terms; loops inside it are divided."""
        if not isinstance(stmt, ir.For) or stmt.kind is not ir.AxisKind.SERIAL:
            return stmt
        extent, sums = stmt.stop - stmt.start, _additions(stmt)
        long = {target: count for target, count in sums.items() if extent * count > MAX_BLOCK_TERMS}
        if not long:
            return stmt
        size = max(1, MAX_BLOCK_TERMS // max(long.values()))
        if stmt.bound is not None:  # it ends the iterations of the last block
            size = next(each for each in range(size, 0, -1) if extent % each == 0)
        if extent <= size or (size == 1 and max(long.values()) == 1):
            return stmt
        return self.divide(self._blocks_of(stmt, size, tuple(long)))

    def _blocks_of(self, loop: ir.For, size: int, targets: tuple[_Target, ...]) -> ir.For:
        """Return the loop over blocks of iterations, with a partial sum for each target."""
        block, inner = fresh_var("block"), fresh_var(loop.var.hint)
        position = affine([(size, block), (1, inner)], loop.start)
        partial = {target: self.fresh(target) for target in targets}

        def on_expr(expr: ir.Expr) -> ir.Expr:
            found = partial.get(expr) if isinstance(expr, ir.LocalRead | ir.Load) else None
            return expr if found is None else ir.LocalRead(found)

        def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
            match stmt:
                case ir.SetLocal(local, value) if ir.LocalRead(local) in partial:
                    return ir.SetLocal(partial[ir.LocalRead(local)], value)
                case ir.Store(node, indices, value) if ir.Load(node, indices, float32) in partial:
                    return ir.SetLocal(partial[ir.Load(node, indices, float32)], value)
                case _:
                    return stmt

        values: dict[IndexVar, AxisIndex] = {loop.var: position}
        body = traverse.substitute_in_stmt(traverse.rewrite(loop.body, on_stmt, on_expr), values)
        extent = loop.stop - loop.start
        bound = ir.LoopBound(position, loop.stop) if extent % size else None
        if loop.bound is not None:
            bound = replace(loop.bound, index=substitute(loop.bound.index, values))
        stmts: list[ir.Stmt] = []
        for local in partial.values():
            stmts += [ir.DeclareLocal(local), ir.SetLocal(local, ir.Const(0.0, float32))]
        stmts.append(ir.For(inner, 0, size, body, bound=bound))
        for target, local in partial.items():
            total = ir.Binary(BinaryOp.ADD, target, ir.LocalRead(local), float32)
            if isinstance(target, ir.LocalRead):
                stmts.append(ir.SetLocal(target.local, total))
            else:
                stmts.append(ir.Store(target.node, target.indices, total))
        return ir.For(block, 0, ceil_div(extent, size), ir.Block(tuple(stmts)))


def _additions(loop: ir.For) -> dict[_Target, int]:
    """Return the float32 accumulators of a loop, with the terms that an iteration adds."""
    terms: Counter[_Target] = Counter()
    statements: Counter[_Target] = Counter()
    touched: Counter[ir.Local | TensorNode] = Counter(
        each.node for each in traverse.accesses(loop.body)
    )
    own: set[ir.Local | TensorNode] = set()
    for node, loops in traverse.walk_in_loops(loop.body):
        count = prod(max(0, each.stop - each.start) for each in loops)
        match node:
            case ir.DeclareLocal(local) | ir.Scoped(local):
                own.add(local)
            case ir.Allocate(array):
                own.add(array)
            case ir.LocalRead(local):
                touched[local] += 1
            case ir.SetLocal(local, value):
                touched[local] += 1
                if _is_addition(value, ir.LocalRead(local)):
                    terms[ir.LocalRead(local)] += count
                    statements[ir.LocalRead(local)] += 1
            case ir.Store(array, indices, value):
                cell = ir.Load(array, indices, float32)
                used = {var for index in indices for var in variables(index)}
                inside = (loop, *loops)
                if used.isdisjoint(each.var for each in inside) and _is_addition(value, cell):
                    terms[cell] += count
                    statements[cell] += 1

    def is_only_added_to(target: _Target) -> bool:
        held = target.local if isinstance(target, ir.LocalRead) else target.node
        # each addition reads and writes it
        return held not in own and touched[held] == 2 * statements[target]

    return {target: count for target, count in terms.items() if is_only_added_to(target)}


def _is_addition(value: ir.Expr, target: _Target) -> bool:
    found = match_accumulation(value, target) if value.dtype is float32 else None
    return found is not None and found[0] is BinaryOp.ADD
