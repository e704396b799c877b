"""Rendering of pairs in vector loops as dot-product instructions on two terms (VDPBF16PS).

    for l in vector(16):                            c = float32x16_dot_bfloat16(
        for p in pair(2):                    -->        c, float32x16_pair_bfloat16(&a[k, 0]),
            c[l] = fma(a[k, p], b[k, l, p], c[l])       float32x16_pairs_bfloat16(&b[k, 0, 0], 16));

Packing into buffers of pairs uses the same loops.
"""

from __future__ import annotations

from ocannl_core.codegen.rendering.render_state import NotVectorizedError
from ocannl_core.codegen.rendering.short_formats import match_narrow_load
from ocannl_core.codegen.rendering.vector_loops import VectorLoop
from ocannl_core.codegen.text.precedence import CExpr, call
from ocannl_core.codegen.text.scalar_replacement import stride_along
from ocannl_core.ir.loops.nodes import AxisKind, Block, Expr, For, Load, Stmt, Store, Ternary, Unary
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float32
from ocannl_core.ir.numbers.primitives import TernaryOp, UnaryOp


class DotProductLoop(VectorLoop):
    """Renders the body of one vector loop that may contain pair loops."""

    def _write_other(self, stmt: Stmt) -> None:
        match stmt:
            case For(start=start, stop=stop, body=Block((Store() as store,)), kind=AxisKind.PAIR):
                if stop - start != 2:
                    raise NotVectorizedError
                self._write_pair(stmt, store)
            case _:
                raise NotVectorizedError

    def _write_pair(self, pair: For, store: Store) -> None:
        match store.value:
            case Ternary(TernaryOp.FMA, left, right, Load(node, indices), dtype) if (
                dtype is float32
                and (node, indices) == (store.node, store.indices)
                and node in self._names.registers
            ):
                factors = [self._load_pairs(pair, each) for each in (left, right)]
                total = self._value(store.value.third)
                dot = self._helper(float32, "dot_bfloat16")
                self._write_assignment(store, call(dot, total, *factors))
            case _:
                self._write_interleaved(pair, store)

    def _load_pairs(self, pair: For, factor: Expr) -> CExpr:
        """Return the values of a factor in both iterations, two in each lane."""
        cell = match_narrow_load(factor)
        if cell is not None and cell.dtype is bfloat16:
            position, stride = self._place(cell.node, cell.indices)
            if stride_along(position, pair.var) == 1 and stride in (0, 2):
                with self._names.bind(pair.var, pair.start):
                    place = CExpr(f"&{self._cell(cell.node, position)}")
                words = f"uint32x{self._lanes}"
                self._writer.helpers.add(words)
                if stride == 0:
                    return CExpr(self._cache_value(words, self._call("pair", place)))
                return CExpr(
                    self._cache_value(words, self._call("pairs", place, CExpr(str(self._count))))
                )
        return self._call("joined", *self._unroll_pair(pair, factor))

    def _unroll_pair(self, pair: For, expr: Expr) -> list[CExpr]:
        """Return the values of an expression in both iterations."""
        if _narrow_format(expr) is not bfloat16:
            raise NotVectorizedError
        values = []
        for at in (pair.start, pair.start + 1):
            with self._names.bind(pair.var, at):
                values.append(self._value(expr))
        return values

    def _write_interleaved(self, pair: For, store: Store) -> None:
        """Write a copy of two values to adjacent cells."""
        position, stride = self._place(store.node, store.indices)
        is_beside = stride_along(position, pair.var) == 1 and stride == 2
        if not is_beside or store.value.dtype is not bfloat16:
            raise NotVectorizedError
        if store.node in self._names.registers:
            raise NotVectorizedError
        self._state.written.add(store.node)
        values = self._unroll_pair(pair, store.value)
        with self._names.bind(pair.var, pair.start):
            place = CExpr(f"&{self._cell(store.node, position)}")
        self._writer.line(f"{self._call('interleave', place, *values, CExpr(str(self._count)))};")
        self._writer.forget()

    def render_square_of_pairs(self, inner: For, pair: For) -> None:
        """Write a transposing copy of a square of pairs, as `render_square` does of cells."""
        match pair.body.stmts:
            case (Store(value=Load() as value) as store,):
                pass
            case _:
                raise NotVectorizedError
        if value.dtype is not bfloat16:
            raise NotVectorizedError
        function = f"uint32x{self._lanes}_transpose_pairs"
        self._writer.helpers.add(function)
        self._write_transpose(function, value, store, inner, pair)

    def _call(self, function: str, *arguments: CExpr) -> CExpr:
        return call(self._helper(float32, f"{function}_bfloat16"), *arguments)


def _narrow_format(expr: Expr) -> DType:
    """Return the format of a value before it is widened."""
    cell = match_narrow_load(expr)
    if cell is not None:
        return cell.dtype
    match expr:
        case Unary(UnaryOp.IDENTITY, arg) if arg.dtype.is_narrow:
            return arg.dtype
        case _:
            return expr.dtype
