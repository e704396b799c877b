"""The cost model: estimates of the time that expressions and statements take.

The numbers are those of `machine_model`. They do not depend on the machine, and operations not on
the number format, so that the same decisions fall everywhere. The estimates, and their users:

- `cost`: the operations of an expression. Hoisting, sharing, broadcast products of inlining,
  recomputation within a budget, epilogues.
- `estimated_cycles`: the cycles of a statement with its transfers. Threads, and searches.
- `is_cheap`: is computing a value again as fast as loading it? In kernels, where a row of operands
  is loaded anyway: a few operations are hidden behind the loads.
- `classify_cost`: does a value take more than a load? In loops before kernels are known, where an
  operation more in the term of a sum is repeated for every term: no operation on a loaded number is
  hidden.
- `repeated_cost`, `is_faster_to_recompute`: the same for divisions and functions, and for products
  of matrices.

The reduction with its register tiles has a model of its own, for a given processor
(`rules.reduction_model`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from math import prod
from operator import or_

from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import unconverted
from ocannl_core.ir.loops.ranges import Range, include_loop
from ocannl_core.ir.loops.traverse import Access, Node, accesses_at, children, contains, fold, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import COMPARISONS
from ocannl_core.schedule import machine_model


def own_cost(node: Node, inside: Sequence[int]) -> int:
    """Return the operations of a node, from the operations of its children; a loop has the
    operations of all iterations. Accesses to memory count as operations.
    """
    match node:
        case ir.LocalRead() | ir.Const() | ir.ConstBits() | ir.IndexValue():
            return 0
        case ir.For(_, start, stop):
            return max(0, stop - start) * sum(inside)
        case ir.Unary(op) | ir.Binary(op):
            return machine_model.OPERATION_COSTS[op] + sum(inside)
        case _:
            return 1 + sum(inside)


def cost(root: Node) -> int:
    """Return the operations of computing an expression once, or of running a statement."""
    return fold(root, own_cost)


def is_cheap(expr: ir.Expr) -> bool:
    """Return True if computing an expression again takes no longer than loading its value: a few
    operations on numbers that are loaded anyway, none of them a division or a function.
    """
    operations = 0
    for each in walk(expr):
        match each:
            case ir.Load() | ir.LocalRead() | ir.Const() | ir.ConstBits() | ir.IndexValue():
                pass
            case ir.Unary() | ir.Binary() | ir.Ternary() if own_cost(each, ()) == 1:
                operations += 1
            case _:
                return False
    return operations <= machine_model.MAX_RECOMPUTED_OPERATIONS


def repeated_cost(values: Iterable[ir.Expr], times: int) -> int:
    """Return the operations of computing values several times instead of once, as far as their
    divisions and functions are not hidden behind loads.
    """
    return (times - 1) * sum(cost(value) for value in values if not is_cheap(value))


def is_faster_to_recompute(products: float, nbytes: int, rate: int) -> bool:
    """Return True if products take no longer to compute again than bytes to load and store.

    Args:
        rate: The products in the time of a byte: `VECTOR_PRODUCTS_PER_BYTE`, on thread blocks
            `PRODUCTS_PER_BYTE`, or `TILE_PRODUCTS_PER_BYTE`.
    """
    return products <= rate * nbytes


READS, LOADS, COMPUTES = 1, 2, 4
"""The parts of a cost class, a sum of those that apply to an expression or statement: it reads
memory or scalars; it reads memory; it applies a primitive to those, or contains loops.

Comparing a position with a value does not count as a computation: it costs no more than a load.
"""


def classify_cost(node: Node, inside: int, own: TensorNode | None) -> int:
    """Return the cost class of a node of the loop language.

    Args:
        inside: The union of the cost classes of its children.
    """
    match node:
        case ir.Load(loaded):
            return 0 if loaded is own else READS | LOADS
        case ir.Block() | ir.Store():
            return inside
        case ir.LoadMerge():
            return READS | LOADS
        case ir.LocalRead():
            return READS
        case ir.Binary(_, ir.Load(loaded), _) if loaded is own:
            return inside
        case ir.Binary(op, left, right) if op in COMPARISONS and (
            isinstance(unconverted(left), ir.IndexValue)
            or isinstance(unconverted(right), ir.IndexValue)
        ):
            # a flag costs no more than a load, and a known flag turns a reduction into a selection
            is_plain = all(
                isinstance(unconverted(each), ir.Load | ir.IndexValue) for each in (left, right)
            )
            return inside & ~COMPUTES if is_plain else inside
        case ir.Unary() | ir.Binary() | ir.Ternary():
            return inside | COMPUTES if inside & READS else inside
        case ir.For():
            return inside | COMPUTES
        case ir.Gather():  # at every read it would keep schedules from blocks of loads
            return inside | READS | LOADS | COMPUTES
        case ir.Scoped(_, body) if not inside & LOADS and not contains(body, ir.For):
            return 0  # constant, at any cost of its scalars
        case _:
            return inside


def has_computation(value: ir.Expr, own: TensorNode) -> bool:
    """Return True if a value applies a primitive to a loaded number, or contains loops.

    Combining the node's own cell with a value does not count. That is right only if the cell holds
    a constant, which the caller checks.
    """
    found = fold(value, lambda each, inner: classify_cost(each, reduce(or_, inner, 0), own))
    return bool(found & COMPUTES)


def is_access(node: Node, own: TensorNode) -> bool:
    """Return True for a read of a scalar, or of memory other than a node's own cells."""
    match node:
        case ir.Load(loaded):
            return loaded is not own
        case ir.LoadMerge() | ir.Gather() | ir.LocalRead():
            return True
        case _:
            return False


def estimated_cycles(stmt: ir.Stmt, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Return the approximate cycles of one execution of a statement on one thread.

    A rough number: operations at the rate of vector registers where loops use them, and bytes at
    the rate of the memory. It does not depend on the machine.
    """
    counter = _Counter(nodes)
    counted, _ = counter.count(stmt)
    cells: dict[TensorNode, int] = {}
    for access in dict.fromkeys(counter.touched):
        if access.node not in counter.own:
            count = _cells(access, nodes[access.node], counter.ranges)
            cells[access.node] = max(cells.get(access.node, 0), count)
    nbytes = sum(count * nodes[node].dtype.nbytes for node, count in cells.items())
    return max(counted // machine_model.OPERATIONS_PER_CYCLE, transfer_cycles(nbytes))


def program_cycles(body: ir.Block, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Return the approximate cycles of statements, of repetitions as often as they run."""
    repeats = [stmt for stmt in body.stmts if isinstance(stmt, ir.Repeat)]
    others = ir.Block(tuple(stmt for stmt in body.stmts if not isinstance(stmt, ir.Repeat)))
    repeated = sum(each.count * program_cycles(each.body, nodes) for each in repeats)
    return estimated_cycles(others, nodes) + repeated


def transfer_cycles(nbytes: int) -> int:
    """Return the cycles in which one thread transfers bytes between memory and a processor."""
    return nbytes // machine_model.MEMORY_BYTES_PER_CYCLE


class _Counter:
    """Counts operations and accesses to memory."""

    def __init__(self, nodes: Mapping[TensorNode, NodeInfo]) -> None:
        self._nodes = nodes
        self._registers: set[TensorNode] = set()
        self.touched: list[Access] = []
        self.own: set[TensorNode] = set()
        self.ranges: dict[indexing.IndexVar, Range] = {}

    def count(self, stmt: ir.Stmt) -> tuple[int, bool]:
        """Return the operations and accesses of a statement, and whether it has loops."""
        match stmt:
            case ir.Block(stmts):
                inside = [self.count(each) for each in stmts]
                return sum(each for each, _ in inside), any(has for _, has in inside)
            case ir.For(body=body):
                include_loop(self.ranges, stmt)
                counted, has_loops = self.count(body)
                return _times(stmt, has_loops) * counted, True
            case ir.Allocate(target, scope):
                self.own.add(target)
                if scope is ir.Scope.THREAD:
                    self._registers.add(target)
                return 0, False
            case ir.Store(target, _, value) if target in self._registers:
                # vectors that are loaded once serve a whole block of registers
                counted, has_loops = self._expression(value, has_loads=False)
                self.touched += accesses_at(stmt)
                return counted, has_loops
            case _:
                return self._expression(stmt, has_loads=True)

    def _expression(self, root: Node, *, has_loads: bool) -> tuple[int, bool]:
        """Return the same for a statement without statements inside, or an expression."""
        total, has_loops = 0, False
        pending: list[Node] = [root]
        while pending:
            node = pending.pop()
            match node:
                case ir.Block() | ir.For():  # of an inlined computation
                    counted, has_inner = self.count(node)
                    total += counted
                    has_loops |= has_inner
                    continue
                case ir.Load(target) if target in self._registers:
                    pass
                case ir.Load() | ir.LoadMerge() | ir.Gather():
                    total += has_loads
                case ir.Store() | ir.StoreVector() | ir.Scatter():
                    total += 1
                case ir.Fill(target):
                    total += ceil_div(self._nodes[target].size, machine_model.NOMINAL_LANES)
                case _:
                    total += own_cost(node, ())
            self.touched += accesses_at(node)
            pending += children(node)
        return total, has_loops


def _times(loop: ir.For, has_loops: bool) -> int:
    """Return the factor by which the body of a loop counts."""
    extent = max(0, loop.stop - loop.start)
    if loop.kind is ir.AxisKind.VECTOR:
        return ceil_div(extent, machine_model.NOMINAL_LANES)
    if (
        loop.kind is ir.AxisKind.TILE
    ):  # one instruction takes as long as the innermost of these loops
        inner = (each for each in loop.body.stmts if isinstance(each, ir.For))
        return 1 if any(each.kind is ir.AxisKind.TILE for each in inner) else extent
    return (
        extent
        if has_loops or loop.kind is ir.AxisKind.UNROLLED
        else ceil_div(extent, machine_model.AUTOVECTORIZED_LANES)
    )


def _cells(access: Access, info: NodeInfo, ranges: Mapping[indexing.IndexVar, Range]) -> int:
    """Return an upper bound on the cells that an access touches in all iterations together."""
    if access.indices is None:
        return info.size
    return prod(
        _positions(index, dim, ranges)
        for index, dim in zip(
            access.indices, indexing.joint_extents(access.indices, info.buffer_dims), strict=True
        )
    )


def _positions(
    index: indexing.AxisIndex, dim: int, ranges: Mapping[indexing.IndexVar, Range]
) -> int:
    """Return an upper bound on the positions of an index along an axis."""
    if isinstance(index, indexing.ConcatIndex | indexing.ComputedIndex):
        return dim
    terms, _ = indexing.as_affine(index)
    reach = sum(abs(factor) * (ranges[var].extent - 1) for factor, var in terms if var in ranges)
    return max(0, min(dim, 1 + reach))
