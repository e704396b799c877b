"""Kernels that check a compiler: of the shapes that are generated, with results that are known.

Operands are small integers, of which every sum and product is exact in any order, so that NumPy
states the right bits. They run once for each compiler and kind of loops (`checked_loops`), before
the first routine with such loops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from ocannl_core.backend_api import (
    DType,
    Kernel,
    NodeInfo,
    NodeInfos,
    TensorNode,
    dataclass,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from ocannl_core.backend_api.arithmetic import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.backend_api.c_family import render_kernel
from ocannl_core.backend_api.launches import CompilerVectorization, KernelText
from ocannl_core.backend_api.loops import (
    Allocate,
    AxisIndex,
    AxisKind,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
    Load,
    Local,
    LocalRead,
    LoopVar,
    Scope,
    SetLocal,
    Stmt,
    Store,
    Ternary,
    Unary,
    affine,
    fresh_var,
)
from ocannl_cpu_c.bindings import ffi
from ocannl_cpu_c.cache import TranslationUnit
from ocannl_cpu_c.dialect import DIALECT
from ocannl_cpu_c.loaded_objects import LoadedObject
from ocannl_cpu_c.translation_units import CHECK_VERSION, file_of, keys_text

Array = np.ndarray[Any, Any]

_UFUNCS: Mapping[BinaryOp, np.ufunc] = {
    BinaryOp.ADD: np.add,
    BinaryOp.MUL: np.multiply,
    BinaryOp.MAX: np.maximum,
    BinaryOp.MIN: np.minimum,
}
_LANES = 8


@dataclass(frozen=True, slots=True)
class CheckKernel:
    """A kernel with a known result.

    Attributes:
        title: Its description.
        kernel: The kernel. nodes: Extents and formats of its nodes.
        text: The kernel in C.
        arguments: The memory that it is given.
        expected: The same memory after it has run.
    """

    title: str
    kernel: Kernel
    nodes: NodeInfos
    text: KernelText
    arguments: tuple[Array, ...]
    expected: tuple[Array, ...]


@lru_cache(maxsize=len(CompilerVectorization))
def check_kernels(loops: CompilerVectorization) -> tuple[CheckKernel, ...]:
    """Return the kernels for a kind of loops: for plain ones only reductions and gates, since at
    the highest level of optimization a compiler takes three times as long, and others are checked
    as mixed loops.
    """
    if loops is CompilerVectorization.PLAIN:
        return (*_reductions(), *_gates())
    return (*_reductions(), *_gates(), _rounded_pair(), *_pointwise(), *_vectors())


@lru_cache(maxsize=len(CompilerVectorization))
def check_unit(loops: CompilerVectorization) -> TranslationUnit:
    """Return the file that defines the kernels, for a kind of loops to vectorize. It has one key:
    the kernels are loaded together.
    """
    file = file_of([each.text for each in check_kernels(loops)])
    content = f"{CHECK_VERSION}\n{loops.value}\n{file.text}"
    keys = (hashlib.sha256(content.encode()).hexdigest(),)
    text = file.text.replace(keys_text(file.keys), keys_text(keys))
    return TranslationUnit(keys, text, loops, file.libraries)


def failures(library: LoadedObject, loops: CompilerVectorization) -> list[str]:
    """Return the titles of the kernels in the compiled file of `check_unit` whose results are
    wrong.
    """
    wrong = []
    for position, each in enumerate(check_kernels(loops)):
        memory = [given.copy() for given in each.arguments]
        buffers = [ffi.from_buffer(cells) for cells in memory]
        library.code.ocannl_kernels[position](ffi.new("void *[]", buffers))
        pairs = zip(memory, each.expected, strict=True)
        if any(found.tobytes() != right.tobytes() for found, right in pairs):
            wrong.append(each.title)
    return wrong


_SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((7, 2), (2, -1), (0, 1)),
    ((4, 4), (-4, -1), (0, 1)),
    ((8, 4), (4, -1), (0, 1)),
    ((16, 16), (16, -1), (0, 1)),
    ((3, 9), (9, 1), (0, 1)),
    ((7, 2, 2), (4, 1, 2), (0, 1, 2)),
    ((16, 2, 8), (16, 8, -1), (0, 1, 2)),
    ((33,), (-1,), (0,)),
    ((17,), (2,), (0,)),
    ((2, 7, 3), (21, -3, -1), (0, 2)),
    ((5, 16), (-1, 5), (0,)),
    ((19, 6), (6, -1), (1,)),
)
"""Extents of loops, strides of the operand, and the loops that are reduced."""
_OPERATIONS = (
    (float32, BinaryOp.ADD),
    (float64, BinaryOp.ADD),
    (float32, BinaryOp.MUL),
    (float32, BinaryOp.MAX),
    (int32, BinaryOp.ADD),
    (int8, BinaryOp.ADD),
    (int64, BinaryOp.MIN),
)


@lru_cache(maxsize=1)
def _reductions() -> tuple[CheckKernel, ...]:
    found = []
    for first, (dtype, op) in enumerate(_OPERATIONS):
        # the order of other operations is free, so that fewer shapes are special
        step = 1 if op is BinaryOp.ADD and dtype is float32 else 4
        for position, shape in enumerate(_SHAPES[first % step :: step]):
            in_memory = (first + position) % 2 == 0
            found.append(_reduction(dtype, op, *shape, in_memory=in_memory))
    return tuple(found)


def _reduction(
    dtype: DType,
    op: BinaryOp,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    reduced: tuple[int, ...],
    *,
    in_memory: bool,
) -> CheckKernel:
    """Return a reduction of a strided operand."""
    axes = [fresh_var() for _ in extents]
    cells = [axis for axis in range(len(extents)) if axis not in reduced]
    x, c = (TensorNode(number, (name,)) for number, name in enumerate("xc"))
    place, positions = _strided(axes, extents, strides)
    steps = [int(np.prod([extents[a] for a in cells[n + 1 :]])) for n in range(len(cells))]
    target = affine([(step, axes[axis]) for step, axis in zip(steps, cells, strict=True)])
    term = Load(x, (place,), dtype)
    size = int(np.prod([extents[axis] for axis in cells], dtype=int))
    least = 1 if op is BinaryOp.MUL else 0
    given = _numbers(int(positions.max()) + 1, dtype, is_sign=op is BinaryOp.MUL)
    start = np.full(size, least, dtype.numpy)
    found = _UFUNCS[op].reduce(given[positions], axis=reduced, dtype=dtype.numpy).reshape(size)
    result = _UFUNCS[op](start, found).astype(dtype.numpy)
    before = Load(c, (target,), dtype)
    loops = [(axes[axis], extents[axis]) for axis in range(len(extents))]
    if in_memory:
        body = _nest(loops, Store(c, (target,), Binary(op, before, term, dtype)))
    else:
        total = Local(0, dtype)
        inner = _nest(
            [loops[axis] for axis in reduced],
            SetLocal(total, Binary(op, LocalRead(total), term, dtype)),
        )
        stmts = (
            DeclareLocal(total),
            SetLocal(total, before),
            inner,
            Store(c, (target,), LocalRead(total)),
        )
        body = _nest([loops[axis] for axis in cells], Block(stmts))
    where = "in memory" if in_memory else "in a variable"
    title = f"{op.name.lower()} of {dtype} over {reduced} of {extents}, strides {strides}, {where}"
    return _kernel(title, body, {x: given, c: start}, (given, result), dtype)


def _strided(
    axes: Sequence[LoopVar], extents: Sequence[int], strides: Sequence[int]
) -> tuple[AxisIndex, Array]:
    """Return a position with some strides, and its value at each iteration."""
    pairs = list(zip(extents, strides, strict=True))
    offset = sum(-stride * (extent - 1) for extent, stride in pairs if stride < 0)
    at = np.indices(extents)
    positions = offset + sum(stride * at[axis] for axis, stride in enumerate(strides))
    return affine(list(zip(strides, axes, strict=True)), offset), np.asarray(positions)


def _rounded_pair() -> CheckKernel:
    """Return a conversion of two numbers to another format and back."""
    i = fresh_var()
    x, c = (TensorNode(number, (name,)) for number, name in enumerate("xc"))
    place = (affine([(1, i)]),)
    given: Array = np.array([0.1, -0.7])
    rounded = Unary(UnaryOp.IDENTITY, Load(x, place, float64), float32)
    back = Unary(UnaryOp.IDENTITY, rounded, float64)
    total = Binary(BinaryOp.ADD, back, Load(x, place, float64), float64)
    right = given.astype(np.float32).astype(np.float64) + given
    body = _nest([(i, 2)], Store(c, place, total))
    memory = {x: given, c: np.zeros(2)}
    return _kernel("a pair of float64 by way of float32", body, memory, (given, right), float64)


@lru_cache(maxsize=1)
def _gates() -> tuple[CheckKernel, ...]:
    """Return rows whose loops a compiler unrolls, with loads behind conditions."""
    return _gated_rows(float64), _gated_rows(float32)


def _gated_rows(dtype: DType) -> CheckKernel:
    """Return a function of products, and gates that read what their loop has just written."""
    rows, columns = 32, 3
    i, j = fresh_var(), fresh_var()
    names = ("a", "b", "slopes", "y", "c")
    nodes = [TensorNode(number, (name,)) for number, name in enumerate(names)]
    a, b, slopes, y, c = nodes
    cell = (affine([(columns, i), (1, j)]),)
    left, right = Load(a, (affine([(1, j)]),), dtype), Load(b, (affine([(7, i)], 3),), dtype)
    slope = Binary(BinaryOp.ADD, Const(0.0, dtype), Load(slopes, cell, dtype), dtype)
    product = Binary(BinaryOp.MUL, left, right, dtype)
    gate = Binary(BinaryOp.RELU_GATE, Load(y, cell, dtype), slope, dtype)
    stmts = (
        Store(y, cell, Unary(UnaryOp.RELU, product, dtype)),
        Store(c, cell, Binary(BinaryOp.ADD, Const(0.0, dtype), gate, dtype)),
    )
    factors, others = _numbers(columns, dtype), _numbers(7 * rows, dtype)
    given = _numbers(columns * rows, dtype) + 4
    scores, zero = np.outer(others[3::7], factors).reshape(-1), dtype.numpy.type(0)
    expected = np.where(scores < 0, zero, scores), np.where(scores > 0, given, zero)
    body = _nest([(i, rows), (j, columns)], Block(stmts))
    before = factors, others, given, np.ones_like(scores), np.ones_like(scores)
    memory = dict(zip(nodes, before, strict=True))
    title = f"gates of {dtype} behind other conditions"
    return _kernel(title, body, memory, (factors, others, given, *expected), dtype)


def _pointwise() -> Iterator[CheckKernel]:
    for source, target in ((uint8, float32), (int32, float64), (float32, int8), (float64, float32)):
        yield _map(source, target, lambda a, b, to: Unary(UnaryOp.IDENTITY, a, to), lambda a, b: a)
    for dtype in (float32, float64, int32):
        yield _map(
            dtype,
            dtype,
            lambda a, b, to: Ternary(TernaryOp.WHERE, Binary(BinaryOp.LT, a, b, a.dtype), a, b, to),
            np.minimum,
        )
    yield _map(int32, int32, lambda a, b, to: Binary(BinaryOp.SUB, a, b, to), np.subtract)
    yield _map(float32, float32, lambda a, b, to: Binary(BinaryOp.MAX, a, b, to), np.maximum)
    yield _map(
        float32,
        float32,
        lambda a, b, to: Ternary(TernaryOp.FMA, a, b, Const(1.0, to), to),
        lambda a, b: a * b + 1,
    )


def _map(
    source: DType,
    target: DType,
    build: Callable[[Expr, Expr, DType], Expr],
    right: Callable[[Array, Array], Array],
) -> CheckKernel:
    """Return a function of cells of two rows, one of which runs backwards, for each row."""
    rows, columns = fresh_var(), fresh_var()
    a, b, c = (TensorNode(number, (name,)) for number, name in enumerate("abc"))
    forward, _ = _strided((rows, columns), (5, 21), (21, 1))
    back, positions = _strided((rows, columns), (5, 21), (21, -1))
    given, other = _numbers(105, source), _numbers(105, source)[::-1].copy()
    value = build(Load(a, (forward,), source), Load(b, (back,), source), target)
    body = _nest([(rows, 5), (columns, 21)], Store(c, (forward,), value))
    result = right(given, other[positions].reshape(105)).astype(target.numpy)
    assert isinstance(value, Unary | Binary | Ternary)
    title = f"{value.op.name.lower()} of {source} to {target}"
    start = np.zeros(105, target.numpy)
    expected = given, other, result
    return _kernel(title, body, {a: given, b: other, c: start}, expected, source, target)


def _vectors() -> Iterator[CheckKernel]:
    for dtype in (float32, float64, int32):
        yield _vector_sum(dtype)
    for dtype in (float32, float64):
        yield _register_tile(dtype)


def _vector_sum(dtype: DType) -> CheckKernel:
    """Return sums in the lanes of a register."""
    i, *lanes = (fresh_var() for _ in range(4))
    x, c, sums = (TensorNode(number, (name,)) for number, name in enumerate(("x", "c", "sums")))
    first, lane, last = ((affine([(1, each)]),) for each in lanes)
    zero: Expr = Const(0, dtype)
    place = (affine([(_LANES, i), (1, lanes[1])]),)
    total = Binary(BinaryOp.ADD, Load(sums, lane, dtype), Load(x, place, dtype), dtype)
    stmts = (
        Allocate(sums, Scope.THREAD),
        _vector(lanes[0], Store(sums, first, zero)),
        For(i, 0, 13, Block((_vector(lanes[1], Store(sums, lane, total)),))),
        _vector(lanes[2], Store(c, last, Load(sums, last, dtype))),
    )
    given = _numbers(13 * _LANES, dtype)
    right = given.reshape(13, _LANES).sum(axis=0, dtype=dtype.numpy)
    memory = {x: given, c: np.zeros(_LANES, dtype.numpy)}
    title = f"sums of {dtype} in lanes"
    return _kernel(title, Block(stmts), memory, (given, right), dtype, own=sums)


def _register_tile(dtype: DType) -> CheckKernel:
    """Return a product of matrices whose results are in registers."""
    k, *rows = (fresh_var() for _ in range(4))
    lanes = [fresh_var() for _ in range(3)]
    nodes = [TensorNode(number, (name,)) for number, name in enumerate(("a", "b", "c", "sums"))]
    a, b, c, sums = nodes
    cell = [(affine([(_LANES, u), (1, v)]),) for u, v in zip(rows, lanes, strict=True)]
    left = Load(a, (affine([(11, rows[1]), (-1, k)], 10),), dtype)
    right = Load(b, (affine([(_LANES, k), (1, lanes[1])]),), dtype)
    total = Ternary(TernaryOp.FMA, left, right, Load(sums, cell[1], dtype), dtype)

    def tile(number: int, store: Stmt) -> For:
        row = Block((_vector(lanes[number], store),))
        return For(rows[number], 0, 4, row, AxisKind.UNROLLED)

    stmts = (
        Allocate(sums, Scope.THREAD),
        tile(0, Store(sums, cell[0], Const(0, dtype))),
        For(k, 0, 11, Block((tile(1, Store(sums, cell[1], total)),))),
        tile(2, Store(c, cell[2], Load(sums, cell[2], dtype))),
    )
    x, y = _numbers(44, dtype), _numbers(11 * _LANES, dtype)
    result = (x.reshape(4, 11)[:, ::-1] @ y.reshape(11, _LANES)).reshape(-1)
    memory = {a: x, b: y, c: np.zeros(4 * _LANES, dtype.numpy)}
    title = f"a product of {dtype} in registers"
    return _kernel(title, Block(stmts), memory, (x, y, result), dtype, own=sums, size=4 * _LANES)


def _vector(var: LoopVar, stmt: Stmt) -> For:
    return For(var, 0, _LANES, Block((stmt,)), AxisKind.VECTOR)


def _nest(loops: Sequence[tuple[LoopVar, int]], stmt: Stmt) -> Block:
    """Return loops around a statement, the first one outermost."""
    return reduce(
        lambda body, loop: Block((For(loop[0], 0, loop[1], body),)),
        reversed(loops),
        stmt if isinstance(stmt, Block) else Block((stmt,)),
    )


def _numbers(size: int, dtype: DType, *, is_sign: bool = False) -> Array:
    """Return small integers, or only 1 and -1; no negative ones in a format without sign."""
    at = np.arange(size)
    mixed = (at * 7 + at // 3 * 5 + at // 11) % 7
    if is_sign:
        return np.where(mixed % 2 == 0, 1, -1).astype(dtype.numpy)
    return (mixed - (0 if dtype is uint8 else 3)).astype(dtype.numpy)


def _kernel(
    title: str,
    body: Block,
    memory: Mapping[TensorNode, Array],
    expected: tuple[Array, ...],
    *formats: DType,
    own: TensorNode | None = None,
    size: int = _LANES,
) -> CheckKernel:
    """Return a kernel over some memory.

    Args:
        title: Its description.
        body: Its statements.
        memory: Its arguments before it runs.
        expected: The contents of its arguments afterwards.
        formats: The format of its operands, and of its result if that differs.
        own: An array of its own.
        size: The cells of its own array.
    """
    *_, last = memory
    nodes = {
        node: NodeInfo(formats[-1 if node is last else 0], cells.shape)
        for node, cells in memory.items()
    }
    if own is not None:
        nodes[own] = NodeInfo(formats[0], (size,))
    kernel = Kernel(body, tuple(memory), ())
    text = render_kernel(kernel, nodes, DIALECT)
    return CheckKernel(title, kernel, nodes, text, tuple(memory.values()), expected)
