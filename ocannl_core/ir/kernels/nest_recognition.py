"""Recognition of nests in loops: axes, reduction and epilogue, and the proof of independent cells.

A reduction is an accumulation in memory, or one that is inlined into its use, which becomes the
epilogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import VarIndex, variables
from ocannl_core.ir.kernels.nest import (
    LoopAxis,
    Nest,
    Reduction,
    flat_statements,
    is_independent,
    with_flat_computations,
    with_value,
    writes_cells_once,
)
from ocannl_core.ir.kernels.speculation import is_unconditional
from ocannl_core.ir.kernels.transforms import AXIS_LETTERS
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import contains, free_variables, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, Kind
from ocannl_core.ir.numbers.primitives import REORDERED, BinaryOp, TernaryOp, UnaryOp

_LIMITS_OF_TRUTHS = {BinaryOp.OR: BinaryOp.MAX, BinaryOp.AND: BinaryOp.MIN}
"""The operation on truths, 0 or 1, that combines them as a logical one combines any numbers."""


_COMMUTATIVE = REORDERED | _LIMITS_OF_TRUTHS.keys()


def kernel_nest(body: ir.Block, nodes: Mapping[TensorNode, NodeInfo] | None = None) -> Nest | None:
    """Return the nest that a block consists of; None if its iterations depend on each other.

    Without outer loops, stores around an inlined reduction are a nest of one cell.

    Args:
        nodes: Extents of its nodes, by which reductions behind conditions on positions are proven
            to be defined for all cells; None to recognize none of them.
    """
    loops, inner = perfect_loops(body)
    if len(loops) > len(AXIS_LETTERS):
        return None
    if loops:
        found = _accumulation(loops, inner) or _inlined(loops, inner, nodes) or _stores(inner)
    else:
        found = _inlined([], inner, nodes)
    if found is None:
        return None
    reduction, inner_loops, epilogue = found
    cell_vars = {each.var for each in loops}
    if reduction is not None and not inner_loops:  # else every loop is one over cells
        cell_vars &= {var for store in epilogue for var in free_variables(store)}
    all_loops = [*loops, *inner_loops]
    if len(all_loops) > len(AXIS_LETTERS) or not all(map(_has_plain_bound, all_loops)):
        return None
    axes = tuple(
        LoopAxis(
            name,
            each.var,
            each.start,
            max(0, each.stop - each.start),
            each.var not in cell_vars,
            bound=each.bound,
        )
        for name, each in zip(AXIS_LETTERS, all_loops, strict=False)
    )
    nest = _with_shifts(Nest(axes, reduction, epilogue))
    if reduction is not None and not nest.reduced and (stores := _stores(inner)) is not None:
        nest = Nest(axes, None, stores[2])  # every cell is combined with one number only
    return nest if is_independent(nest) else None


def _has_plain_bound(loop: ir.For) -> bool:
    """Return True if the end of a loop at run time depends on no other loop."""
    return loop.bound is None or loop.bound.index == VarIndex(loop.var)


def _with_shifts(nest: Nest) -> Nest:
    """Return a nest in which axes that move windows of the result count as reduced."""
    if not nest.is_resumable:
        return nest
    (store,) = nest.epilogue
    while not writes_cells_once(nest, store):
        windows = [set(variables(index)) for index in store.indices]
        overlapping = [
            axis
            for axis in nest.output_axes
            if any(
                axis.var in window
                and any(other.var in window - {axis.var} for other in nest.output_axes)
                for window in windows
            )
        ]
        if not overlapping:
            return nest
        shortest = min(overlapping, key=lambda axis: axis.extent)
        shifting = replace(shortest, is_reduced=True, is_shifting=True)
        nest = replace(
            nest, axes=tuple(shifting if axis is shortest else axis for axis in nest.axes)
        )
    return nest


_Found = tuple[Reduction | None, list[ir.For], tuple[ir.Store, ...]]


def perfect_loops(block: ir.Block) -> tuple[list[ir.For], tuple[ir.Stmt, ...]]:
    """Return perfectly nested loops, outermost first, and the statements inside them."""
    loops: list[ir.For] = []
    stmts = flat_statements(block)
    while len(stmts) == 1 and isinstance(stmts[0], ir.For):
        if stmts[0].kind.resource is ir.Resource.DEVICE:
            break
        loops.append(stmts[0])
        stmts = flat_statements(stmts[0].body)
    return loops, stmts


def _accumulation(loops: list[ir.For], stmts: tuple[ir.Stmt, ...]) -> _Found | None:
    """Return the parts of `cell = op(cell, term)`."""
    match stmts:
        case (ir.Store(node, indices, value) as store,):
            cell = ir.Load(node, indices, value.dtype)
        case _:
            return None
    parts = match_accumulation(value, cell)
    if parts is None or contains(parts[1], ir.For):
        return None  # w -= rate * total is the epilogue of the inlined total
    result = _new_local((store,), value.dtype)
    reduction = _of_truths(Reduction(*parts, initial=cell, result=result), loops)
    if reduction is None:
        return None
    return reduction, [], (replace(store, value=ir.LocalRead(result)),)


def _inlined(
    around: list[ir.For], stmts: tuple[ir.Stmt, ...], nodes: Mapping[TensorNode, NodeInfo] | None
) -> _Found | None:
    """Return the parts of stores around one inlined reduction.

    { total = 0.0; for k: total += term; } out = f(total)
    """
    if not stmts or not all(isinstance(stmt, ir.Store) for stmt in stmts):
        return None
    if not any(contains(stmt, ir.Scoped) for stmt in stmts):
        return None
    stores = [with_flat_computations(stmt) for stmt in stmts if isinstance(stmt, ir.Store)]
    inlined = {expr for store in stores for expr in walk(store) if isinstance(expr, ir.Scoped)}
    if len(inlined) != 1 or not all(is_unconditional(each, around, nodes) for each in stores):
        return None
    (scoped,) = inlined
    match flat_statements(scoped.body):
        case (ir.SetLocal(first, initial), ir.For() as outer) | (
            ir.DeclareLocal(),
            ir.SetLocal(first, initial),
            ir.For() as outer,
        ) if first == scoped.local:
            loops, inner = perfect_loops(ir.Block((outer,)))
        case _:
            return None
    match inner:
        case (ir.SetLocal(second, value),) if second == scoped.local:
            parts = match_accumulation(value, ir.LocalRead(scoped.local))
        case _:
            return None
    if parts is None or contains(parts[1], ir.Scoped):
        return None
    result = _new_local(stmts, scoped.dtype)
    epilogue = tuple(with_value(store, scoped, ir.LocalRead(result)) for store in stores)
    reduction = _of_truths(Reduction(*parts, initial=initial, result=result), loops)
    return None if reduction is None else (reduction, loops, epilogue)


def _of_truths(reduction: Reduction, loops: Iterable[ir.For]) -> Reduction | None:
    """Return a logical reduction as the greatest or least of truths, others as they are; None if a
    logical one may have no term.

    cell or= term  -->  cell = max(cell != 0, term != 0)
    """
    op = _LIMITS_OF_TRUTHS.get(reduction.op)
    if op is None:
        return reduction
    if any(loop.stop <= loop.start or loop.bound is not None for loop in loops):
        return None

    def truth(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Const):
            return ir.Const(float(expr.value != 0), reduction.dtype)
        return ir.Binary(BinaryOp.NE, expr, ir.Const(0, expr.dtype), reduction.dtype)

    return replace(reduction, op=op, term=truth(reduction.term), initial=truth(reduction.initial))


def _stores(stmts: tuple[ir.Stmt, ...]) -> _Found | None:
    if not stmts or not all(isinstance(stmt, ir.Store) for stmt in stmts):
        return None
    stores = tuple(with_flat_computations(stmt) for stmt in stmts if isinstance(stmt, ir.Store))
    if any(contains(store, ir.Scoped) for store in stores):
        return None
    return None, [], stores


def match_accumulation(value: ir.Expr, cell: ir.Expr) -> tuple[BinaryOp, ir.Expr] | None:
    """Return the operation and the term by which a value combines a cell with something else.

    cell + a * b     -->  ADD, a * b
    fma(a, b, cell)  -->  ADD, a * b
    cell - a         -->  ADD, -a
    """
    dtype = value.dtype
    if dtype.kind is Kind.WORD:
        return None
    match value:
        case ir.Binary(op, left, right) if op in _COMMUTATIVE and left == cell:
            parts = op, right
        case ir.Binary(op, left, right) if op in _COMMUTATIVE and right == cell:
            parts = op, left
        case ir.Binary(BinaryOp.SUB, left, right) if left == cell and dtype.kind is not Kind.BOOL:
            parts = BinaryOp.ADD, ir.Unary(UnaryOp.NEG, right, dtype)
        case ir.Ternary(TernaryOp.FMA, first, second, third) if third == cell:
            parts = BinaryOp.ADD, ir.Binary(BinaryOp.MUL, first, second, dtype)
        case _:
            return None
    op = _LIMITS_OF_TRUTHS.get(parts[0], parts[0])
    is_limit = op in (BinaryOp.MAX, BinaryOp.MIN) and not dtype.is_float
    if is_limit and dtype.nbytes > 4:
        return None  # constants are floats, which cannot say the limits of these integers
    if any(each == cell for each in walk(parts[1])):
        return None
    return parts


def _new_local(stmts: tuple[ir.Stmt, ...], dtype: DType) -> ir.Local:
    used = [
        node.local.id
        for stmt in stmts
        for node in walk(stmt)
        if isinstance(node, ir.LocalRead | ir.Scoped | ir.SetLocal | ir.DeclareLocal)
    ]
    return ir.Local(max(used, default=-1) + 1, dtype)
