"""Inlined sums of narrow floats in kernels that are no nests."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nest_plan import NestPlan
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    IndexValue,
    Local,
    LocalRead,
    Scoped,
    SetLocal,
    Stmt,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float8_e4m3fn, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.passes.kernels.widen_accumulators import widen_scoped_sums, widen_sums
from ocannl_core.testing.drafts import Draft, loop

I, K, L = fresh_var("i"), fresh_var("k"), fresh_var("l")  # noqa: E741


def start(local: Local, value: float = 0.0) -> SetLocal:
    return SetLocal(local, Const(value, local.dtype))


def more(local: Local, term: Expr, op: BinaryOp = BinaryOp.ADD) -> SetLocal:
    return SetLocal(local, Binary(op, LocalRead(local), term, local.dtype))


class Sums:
    """Statements about `a`, `b` and `c`."""

    def __init__(self, dtype: DType = bfloat16) -> None:
        self.dtype = dtype
        self.draft = Draft("sums")
        self.a, self.b = (self.draft.node(name, dtype, 4, 6) for name in "ab")
        self.c = self.draft.node("c", dtype, 4)
        self.total = Local(0, dtype, self.c)

    def product(self) -> Expr:
        a, b = self.draft.load(self.a, I, K), self.draft.load(self.b, I, K)
        return Binary(BinaryOp.MUL, a, b, self.dtype)

    def text(self, *stmts: Stmt) -> str:
        body = widen_sums(Block(stmts))
        program = self.draft.program(*body.stmts)
        verify(program)
        return "\n".join(line for line in to_text(program).splitlines() if line[0] == " ")

    def is_unchanged(self, *stmts: Stmt) -> bool:
        body = Block(stmts)
        return widen_sums(body) is body


def test_a_sum_behind_a_condition_is_in_float32() -> None:
    sums = Sums()
    body = Block((start(sums.total), loop(K, 6, more(sums.total, sums.product()))))
    value = Ternary(
        TernaryOp.WHERE,
        IndexValue(VarIndex(I), bfloat16),
        Scoped(sums.total, body),
        Const(-1.0, bfloat16),
        bfloat16,
    )
    store = sums.draft.store(sums.c, I, value=value)
    assert sums.text(loop(I, 4, store)) == snapshot("""\
    for i in range(4):
        c[i] = where(bfloat16(i), bfloat16(c1), -1.0)
            where c1: float32
                c1 = 0.0
                for k in range(6):
                    c1 += float32(a[i, k]) * float32(b[i, k])\
""")


def test_a_fused_product_is_a_sum_of_products() -> None:
    sums = Sums()
    a, b = sums.draft.load(sums.a, I, K), sums.draft.load(sums.b, I, K)
    fused = Ternary(TernaryOp.FMA, a, b, LocalRead(sums.total), bfloat16)
    plain = Block((start(sums.total), loop(K, 6, more(sums.total, sums.product()))))
    other = Block((start(sums.total), loop(K, 6, SetLocal(sums.total, fused))))
    texts = [
        sums.text(loop(I, 4, sums.draft.store(sums.c, I, value=Scoped(sums.total, body))))
        for body in (plain, other)
    ]
    assert texts[0] == texts[1]


def test_each_of_nested_sums_is_rounded_once() -> None:
    sums = Sums()
    inner = Local(1, bfloat16)
    of_row = Block((start(inner), loop(L, 6, more(inner, sums.draft.load(sums.b, K, L)))))
    body = Block((start(sums.total), loop(K, 4, more(sums.total, Scoped(inner, of_row)))))
    store = sums.draft.store(sums.c, 0, value=Scoped(sums.total, body))
    assert sums.text(store) == snapshot("""\
    c[0] = bfloat16(c1)
        where c1: float32
            c1 = 0.0
            for k in range(4):
                c1 += float32(bfloat16(v))
                    where v: float32
                        v = 0.0
                        for l in range(6):
                            v += float32(b[k, l])\
""")


def test_a_hoisted_sum_is_rounded_where_it_is_read() -> None:
    sums = Sums()
    total = Local(0, bfloat16)
    half = Binary(BinaryOp.MUL, LocalRead(total), Const(0.5, bfloat16), bfloat16)
    assert sums.text(
        DeclareLocal(total),
        start(total),
        loop(K, 6, more(total, sums.draft.load(sums.a, 0, K))),
        more(total, sums.draft.load(sums.b, 0, 0)),
        SetLocal(total, half),
        loop(I, 4, sums.draft.store(sums.c, I, value=LocalRead(total))),
    ) == snapshot("""\
    v: float32
    v = 0.0
    for k in range(6):
        v += float32(a[0, k])
    v += float32(b[0, 0])
    v = float32(bfloat16(v) * 0.5)
    for i in range(4):
        c[i] = bfloat16(v)\
""")


def test_starts_are_numbers_of_the_narrow_format() -> None:
    sums = Sums(float8_e4m3fn)
    body = Block((start(sums.total, 0.3), loop(K, 6, more(sums.total, sums.product()))))
    store = sums.draft.store(sums.c, I, value=Scoped(sums.total, body))
    assert "= 0.3125\n" in sums.text(loop(I, 4, store))


def test_scoped_reductions_that_are_no_loop_sums_stay_unchanged() -> None:
    sums = Sums()
    once = Block((start(sums.total), more(sums.total, sums.draft.load(sums.a, I, 0))))
    assert sums.is_unchanged(
        loop(I, 4, sums.draft.store(sums.c, I, value=Scoped(sums.total, once)))
    )
    greatest = Block(
        (start(sums.total), loop(K, 6, more(sums.total, sums.product(), BinaryOp.MAX)))
    )
    assert sums.is_unchanged(
        loop(I, 4, sums.draft.store(sums.c, I, value=Scoped(sums.total, greatest)))
    )
    root = Unary(UnaryOp.SQRT, LocalRead(sums.total), bfloat16)
    again = Block((start(sums.total), loop(K, 6, SetLocal(sums.total, root))))
    assert sums.is_unchanged(
        loop(I, 4, sums.draft.store(sums.c, I, value=Scoped(sums.total, again)))
    )
    wide = Sums(float32)
    body = Block((start(wide.total), loop(K, 6, more(wide.total, wide.product()))))
    assert wide.is_unchanged(
        loop(I, 4, wide.draft.store(wide.c, I, value=Scoped(wide.total, body)))
    )


def test_steps_without_a_nest_are_widened() -> None:
    sums = Sums()
    body = Block((start(sums.total), loop(K, 6, more(sums.total, sums.product()))))
    block = Block((loop(I, 4, sums.draft.store(sums.c, I, value=Scoped(sums.total, body))),))
    plan = NestPlan("p", (Kernel(block, (), ()),), (), (), (), sums.draft.nodes)
    (found,) = widen_scoped_sums(plan).steps
    assert isinstance(found, Kernel)
    assert found.body == widen_sums(block)
