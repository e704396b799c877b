"""Rendering of DOT loops in vector loops as instructions: on two terms of narrow floats
(VDPBF16PS), or on four terms of bytes (VPDPBUSD).

The formats are those that have the helpers of pairs (`prelude/narrow_vectors.py`), or of quads of
bytes (`prelude/short_integers.py`).

    for l in vector(16):                            c = float32x16_dot_bfloat16(
        for p in dot(2):                     -->        c, float32x16_pair_bfloat16(&a[k, 0]),
            c[l] = fma(a[k, p], b[k, l, p], c[l])       float32x16_pairs_bfloat16(&b[k, 0, 0], 16));

Packing for these instructions uses the same loops.
"""

from __future__ import annotations

from ocannl_core.codegen.prelude.narrow_vectors import has_pairs
from ocannl_core.codegen.rendering.render_state import NotVectorizedError
from ocannl_core.codegen.rendering.short_formats import match_narrow_load
from ocannl_core.codegen.rendering.vector_loops import VectorLoop
from ocannl_core.codegen.text.precedence import CExpr, call
from ocannl_core.codegen.text.scalar_replacement import stride_along
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.conversions import unwidened
from ocannl_core.ir.numbers.dtypes import DType, float32, int8, int32, uint8
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp

_BYTES = frozenset({int8, uint8})
"""The formats of which instructions multiply four numbers for each lane of int32."""


class DotProductLoop(VectorLoop):
    """Renders the body of one vector loop that may contain DOT loops."""

    def _write_other(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.For(
                start=start, stop=stop, body=ir.Block((ir.Store() as store,)), kind=ir.AxisKind.DOT
            ):
                if stop - start == _terms(store):
                    self._write_dot(stmt, store)
                else:  # the last terms of a sum
                    for at in range(start, stop):
                        with self._names.bind(stmt.var, at):
                            self._write_store(store)
            case _:
                raise NotVectorizedError

    def _write_dot(self, dot: ir.For, store: ir.Store) -> None:
        match store.value:
            case ir.Ternary(TernaryOp.FMA, left, right, ir.Load(node, indices), dtype) if (
                dtype is float32
                and (node, indices) == (store.node, store.indices)
                and node in self._names.registers
            ):
                narrow = _format_of_terms(left, right)
                factors = [self._load_terms(dot, each, narrow) for each in (left, right)]
                total = self._value(store.value.third)
                self._write_assignment(store, self._call("dot", narrow, total, *factors))
            case ir.Binary(
                BinaryOp.ADD,
                ir.Load(node, indices) as total,
                ir.Binary(BinaryOp.MUL, left, right),
                dtype,
            ) if (
                dtype is int32
                and (node, indices) == (store.node, store.indices)
                and node in self._names.registers
            ):
                formats = [_narrow_format(each) for each in (left, right)]
                if not _BYTES.issuperset(formats):
                    raise NotVectorizedError
                factors = [
                    self._load_terms(dot, each, narrow)
                    for each, narrow in zip((left, right), formats, strict=True)
                ]
                verb, narrow = ("dot", formats[0]) if len(set(formats)) == 1 else ("mixed", uint8)
                if verb == "mixed" and formats[0] is int8:
                    factors.reverse()
                added = self._call(verb, narrow, self._value(total), *factors)
                self._write_assignment(store, added)
            case _:
                self._write_interleaved(dot, store)

    def _load_terms(self, dot: ir.For, factor: ir.Expr, narrow: DType) -> CExpr:
        """Return the values of a factor in all iterations, beside each other in each lane."""
        cell = _narrow_load(factor)
        if cell is not None:
            position, stride = self._position(cell.node, cell.indices)
            if stride_along(position, dot.var) == 1 and stride in (0, dot.stop - dot.start):
                with self._names.bind(dot.var, dot.start):
                    address = CExpr(f"&{self._cell(cell.node, position)}")
                words = f"uint32x{self._lanes}"
                self._writer.helpers.add(words)
                count = () if stride == 0 else (CExpr(str(self._count)),)
                verb = ("quad" if narrow in _BYTES else "pair") + "s" * len(count)
                return CExpr(self._cache_value(words, self._call(verb, narrow, address, *count)))
        return self._call("joined", narrow, *self._unroll(dot, factor))

    def _unroll(self, dot: ir.For, expr: ir.Expr) -> list[CExpr]:
        """Return the values of an expression in all iterations."""
        values = []
        for at in range(dot.start, dot.stop):
            with self._names.bind(dot.var, at):
                values.append(self._value(expr))
        return values

    def _write_interleaved(self, dot: ir.For, store: ir.Store) -> None:
        """Write a copy of the values of all iterations to adjacent cells."""
        position, stride = self._position(store.node, store.indices)
        is_beside = stride_along(position, dot.var) == 1 and stride == dot.stop - dot.start
        narrow = _format_of_terms(store.value)
        if not is_beside or store.value.dtype is not narrow:
            raise NotVectorizedError
        if store.node in self._names.registers:
            raise NotVectorizedError
        self._state.written.add(store.node)
        values = self._unroll(dot, store.value)
        with self._names.bind(dot.var, dot.start):
            address = CExpr(f"&{self._cell(store.node, position)}")
        count = CExpr(str(self._count))
        self._writer.line(f"{self._call('interleave', narrow, address, *values, count)};")
        self._writer.forget()

    def render_square_of_terms(self, inner: ir.For, dot: ir.For) -> None:
        """Write a transposing copy of a square of pairs or quads, as `render_square` of cells."""
        match dot.body.stmts:
            case (ir.Store(value=ir.Load() as value) as store,):
                pass
            case _:
                raise NotVectorizedError
        if dot.stop - dot.start != _terms(store):
            raise NotVectorizedError
        narrow = _format_of_terms(value)
        kind = f"quads_{narrow}" if narrow in _BYTES else "pairs"
        function = f"uint32x{self._lanes}_transpose_{kind}"
        self._writer.helpers.add(function)
        self._write_transpose(function, value, store, inner, dot)

    def _call(self, verb: str, narrow: DType, *arguments: CExpr) -> CExpr:
        return call(
            self._helper(narrow.in_lanes if narrow in _BYTES else float32, f"{verb}_{narrow.name}"),
            *arguments,
        )


def _format_of_terms(*values: ir.Expr) -> DType:
    """Return the narrow format of some values, of which instructions take pairs or quads."""
    formats = {_narrow_format(each) for each in values}
    narrow = formats.pop()
    if formats or not (has_pairs(narrow) or narrow in _BYTES):
        raise NotVectorizedError
    return narrow


def _terms(store: ir.Store) -> int:
    """Return the terms that one instruction adds, or that a copy has beside each other."""
    value = store.value
    if value.dtype in _BYTES or value.dtype is int32:
        return 4
    return 2


def _narrow_load(expr: ir.Expr) -> ir.Load | None:
    """Return the load of a cell of a narrow format, which may be widened; None for others."""
    match unwidened(expr):
        case ir.Load() as load if load.dtype in _BYTES:
            return load
        case _:
            return match_narrow_load(expr)


def _narrow_format(expr: ir.Expr) -> DType:
    """Return the format of a value before it is widened."""
    cell = match_narrow_load(expr)
    return unwidened(expr).dtype if cell is None else cell.dtype
