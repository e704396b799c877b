"""Vectorizable nests: the part of the loop language that vector loops express."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ocannl_core.ir.indexing import AxisIndex, LoopVar, joint_extents, variables
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import index_range
from ocannl_core.ir.loops.traverse import Node, children, free_variables, walk
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.primitives import HASHES, LOGICAL, BinaryOp, TernaryOp, UnaryOp

VECTOR_FORMATS = frozenset(
    each for each in (*dtypes.ALL, *dtypes.PACKED) if each.kind is not dtypes.Kind.WORD
)
"""Formats whose numbers vectors hold; narrow floats are float32 in registers, short integers int32.
"""

DRAWN_FORMATS = frozenset(
    {dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.int32, dtypes.uint32}
)
"""Formats of the random numbers that lanes draw, one from each word."""
HASHED_FORMATS = frozenset({dtypes.int32, dtypes.uint32})
"""Formats of the numbers that lanes make words of."""

_FLOAT_UNARY = frozenset(UnaryOp) - {UnaryOp.WORD, UnaryOp.UNIFORM, UnaryOp.BITCAST}
_INTEGER_UNARY = frozenset(
    {
        UnaryOp.NEG,
        UnaryOp.BIT_NOT,
        UnaryOp.RELU,
        UnaryOp.TRUNC,
        UnaryOp.FLOOR,
        UnaryOp.CEIL,
        UnaryOp.ROUND,
    }
)
_COMMON_BINARY = frozenset({BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN})
_INTEGER_BINARY = _COMMON_BINARY | {BinaryOp.BIT_AND, BinaryOp.BIT_OR, BinaryOp.BIT_XOR}
_FLOAT_BINARY = _COMMON_BINARY | {
    BinaryOp.DIV,
    *(op for op in BinaryOp if op.value.expansion is not None),
}


def is_vectorizable(nest: Nest, nodes: Mapping[TensorNode, NodeInfo]) -> bool:
    """Return True if every expression of a nest can be computed in vector lanes."""
    return has_vectorizable_terms(nest, nodes) and has_vectorizable_epilogue(nest, nodes)


def has_vectorizable_terms(nest: Nest, nodes: Mapping[TensorNode, NodeInfo]) -> bool:
    """Return True if the terms of the reduction of a nest can be computed in vector lanes."""
    if nest.reduction is None:
        return True
    return _are_vectorizable((nest.reduction.term, nest.reduction.initial), nest, nodes)


def has_vectorizable_epilogue(nest: Nest, nodes: Mapping[TensorNode, NodeInfo]) -> bool:
    """Return True if lanes can compute neighboring cells from the reduction's results."""
    formats = {nodes[store.node].dtype for store in nest.epilogue}
    if any(dtype.is_packed for dtype in formats) or not formats <= VECTOR_FORMATS:
        return False
    return _are_vectorizable([store.value for store in nest.epilogue], nest, nodes)


def _are_vectorizable(
    values: Iterable[ir.Expr], nest: Nest, nodes: Mapping[TensorNode, NodeInfo]
) -> bool:
    ranges = nest.ranges

    def is_inside(load: ir.Load | ir.Gather) -> bool:
        dims = joint_extents(load.indices, nodes[load.node].buffer_dims)
        return all(is_within(index, dim) for index, dim in zip(load.indices, dims, strict=True))

    def is_within(index: AxisIndex, dim: int) -> bool:
        at = index_range(index, ranges)
        if at is None:  # depends on loops outside of the nest; code generation checks it
            return ranges.keys().isdisjoint(variables(index))
        return at.is_within(dim)

    return all(_is_vectorizable_value(value, is_inside) for value in values)


def _is_vectorizable_value(value: Node, is_inside: Callable[[ir.Load | ir.Gather], bool]) -> bool:
    """Return True if lanes can compute a value, both sides of each choice included."""
    pending: list[Node] = [value]
    while pending:
        expr = pending.pop()
        match expr:
            case ir.Ternary(TernaryOp.WHERE, condition, first, second, dtype):
                sides = [*walk(first), *walk(second)]
                reads = (each for each in sides if isinstance(each, ir.Load | ir.Gather))
                if not all(map(is_inside, reads)):
                    return False
                is_short = isinstance(condition, ir.Load) and condition.dtype.is_short_integer
                if dtype.kind is dtypes.Kind.WORD:
                    return False
                if not is_short and lane_bytes(condition.dtype) != lane_bytes(dtype):
                    return False
                pending += [first, second] if is_short else [condition, first, second]
            case ir.Gather(dtype=dtype):
                if dtype not in VECTOR_FORMATS:
                    return False
            case _ if isinstance(expr, ir.Expr) and not _is_expressible(expr):
                return False
            case _:
                pending += children(expr)
    return True


def _is_expressible(expr: ir.Expr) -> bool:
    dtype: dtypes.DType = expr.dtype
    if dtype.kind is dtypes.Kind.WORD:
        return _is_expressible_word(expr)
    if dtype not in VECTOR_FORMATS:
        return False
    match expr:
        case ir.Unary(UnaryOp.UNIFORM):
            return dtype in DRAWN_FORMATS
        case ir.Load() | ir.LocalRead() | ir.Const() | ir.ConstBits():
            return True
        case ir.Unary(UnaryOp.IDENTITY, arg):
            if dtype is dtypes.bool_:
                return lane_bytes(arg.dtype) == lane_bytes(dtype)
            is_truncated = arg.dtype.is_float and not dtype.is_float
            return not is_truncated or truncates_lanes(arg.dtype, dtype)
        case ir.Unary(UnaryOp.NOT, arg):
            return lane_bytes(arg.dtype) == lane_bytes(dtype)
        case ir.Unary(UnaryOp.NEG) if not dtype.is_float:
            return dtype is not dtypes.bool_
        case ir.Unary(op, arg):
            return op in (_FLOAT_UNARY if arg.dtype.is_float else _INTEGER_UNARY)
        case ir.Binary(BinaryOp.FIRST | BinaryOp.SECOND):
            return True
        case ir.Binary(op) if op.value.has_vector_code:
            is_exact = op.value.ulps == 0
            is_single = (dtype.in_lanes if is_exact else dtype) is dtypes.float32
            return is_single or is_simple_power(expr)
        case ir.Binary(op, left) if op in LOGICAL:
            return lane_bytes(left.dtype) == lane_bytes(dtype)
        case ir.Binary(op):
            return op in (_FLOAT_BINARY if dtype.is_float else _INTEGER_BINARY)
        case ir.Ternary(TernaryOp.FMA):
            return dtype.is_float
        case ir.IndexValue(index):
            # floats cannot represent every position; a static index is the same in all lanes
            return dtype.is_integer or not any(isinstance(v, LoopVar) for v in variables(index))
        case _:
            return False


def _is_expressible_word(expr: ir.Expr) -> bool:
    """Return True of a word, the same in all lanes, and of those made of lanes of numbers."""
    match expr:
        case ir.Load(indices=indices):
            return not any(isinstance(v, LoopVar) for each in indices for v in variables(each))
        case ir.LocalRead() | ir.Const() | ir.ConstBits():
            return True
        case ir.Unary(UnaryOp.WORD, arg):
            return arg.dtype in HASHED_FORMATS or not free_variables(arg)
        case ir.Binary(op):
            return op in HASHES
        case _:
            return False


def truncates_lanes(source: dtypes.DType, dtype: dtypes.DType) -> bool:
    """Return True if lanes convert floats to integers, both of 32 bits in lanes."""
    is_integer = dtype.in_lanes in (dtypes.int32, dtypes.uint32) and dtype is not dtypes.bool_
    return source.in_lanes is dtypes.float32 and is_integer


def is_simple_power(expr: ir.Expr) -> bool:
    """Return True for squares and reciprocals, which need no function."""
    match expr:
        case ir.Binary(BinaryOp.POW, _, ir.Const(value)):
            return value in (2.0, -1.0)
        case _:
            return False


def widest_lane_bytes(
    nest: Nest, nodes: Mapping[TensorNode, NodeInfo], *, has_epilogue: bool = True
) -> int:
    """Return the size of the widest lane of a nest, with its epilogue or only with its terms."""
    epilogue = nest.epilogue if has_epilogue else ()
    roots: list[Node] = list(epilogue)
    sizes = [lane_bytes(nodes[store.node].dtype) for store in epilogue]
    if nest.reduction is not None:
        roots += [nest.reduction.term, nest.reduction.initial]
        sizes.append(lane_bytes(nest.reduction.dtype))
    pending = roots
    while pending:
        each = pending.pop()
        if isinstance(each, ir.Expr):
            sizes.append(lane_bytes(each.dtype))
        match each:
            case ir.Unary(UnaryOp.WORD, arg) if arg.dtype not in HASHED_FORMATS:
                pass  # the same in all lanes
            case ir.Gather():
                pass  # its position is computed for each lane alone, unless it is as wide
            case _:
                pending += children(each)
    return max(sizes)


def lane_bytes(dtype: dtypes.DType) -> int:
    """Return the size of a lane that holds a number of a format, or a quarter of a word."""
    return dtype.in_lanes.nbytes if dtype.kind is not dtypes.Kind.WORD else dtypes.uint32.nbytes
