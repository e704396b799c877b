"""What vector registers can compute: the part of the loop language that vector loops express."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from ocannl_core.loopir.nodes import (
    Binary,
    Const,
    ConstBits,
    Expr,
    IndexValue,
    Load,
    LocalRead,
    Ternary,
    Unary,
)
from ocannl_core.loopir.traverse import Node, walk
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import LOGICAL, BinaryOp, TernaryOp, UnaryOp
from ocannl_core.schedule.cells import CellNest

VECTOR_FORMATS = frozenset({float32, float64, int32, uint32, int64, uint64})
"""Formats of which vectors are made."""

_FLOAT_UNARY = frozenset(UnaryOp) - {UnaryOp.WORD, UnaryOp.UNIFORM}
_INTEGER_BINARY = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN})
_FLOAT_BINARY = _INTEGER_BINARY | {
    BinaryOp.DIV,
    BinaryOp.RELU_GATE,
    BinaryOp.SAT01_GATE,
}


def has_lanes(nest: CellNest, nodes: Mapping[TensorNode, NodeInfo]) -> bool:
    """True if all that a nest computes can be computed in the lanes of vectors."""
    roots: list[Node] = list(nest.finish)
    if nest.reduction is not None:
        roots += [nest.reduction.term, nest.reduction.initial]
    formats = {nodes[store.node].dtype for store in nest.finish}
    return formats <= VECTOR_FORMATS and all(
        _is_expressible(each) for root in roots for each in walk(root) if isinstance(each, Expr)
    )


def _is_expressible(expr: Expr) -> bool:
    dtype: DType = expr.dtype
    if dtype not in VECTOR_FORMATS:
        return False
    match expr:
        case Load() | LocalRead() | Const() | ConstBits():
            return True
        case Unary(UnaryOp.IDENTITY, arg):
            return arg.dtype is dtype or not arg.dtype.is_float or dtype.is_float
        case Unary(op, arg):
            return op in _FLOAT_UNARY and arg.dtype.is_float
        case Binary(BinaryOp.FIRST | BinaryOp.SECOND):
            return True
        case Binary(BinaryOp.POW, _, right):
            return dtype is float32 or right in (Const(2.0, dtype), Const(-1.0, dtype))
        case Binary(op, left) if op in LOGICAL:
            return left.dtype.nbytes == dtype.nbytes
        case Binary(op):
            return op in (_FLOAT_BINARY if dtype.is_float else _INTEGER_BINARY)
        case Ternary(TernaryOp.FMA):
            return dtype.is_float
        case Ternary(TernaryOp.WHERE) | IndexValue():
            return False  # guards stay with plain loops, whose branches are not all evaluated
        case _:
            return False


def widest(nest: CellNest, nodes: Mapping[TensorNode, NodeInfo]) -> int:
    """Returns the size of the largest number that a nest computes with."""
    roots: list[Node] = list(nest.finish)
    sizes = [nodes[store.node].dtype.nbytes for store in nest.finish]
    if nest.reduction is not None:
        roots += [nest.reduction.term, nest.reduction.initial]
        sizes.append(nest.reduction.dtype.nbytes)
    sizes += [each.dtype.nbytes for root in roots for each in walk(root) if isinstance(each, Expr)]
    return max(sizes)
