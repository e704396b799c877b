"""The texts of loop programs."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.ir.indexing import FixedIndex, LoopVar, StaticIndex, VarIndex, affine
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    CallExternal,
    Const,
    ConstBits,
    DeclareLocal,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    LoopProgram,
    Prefetch,
    Remark,
    Scope,
    Scoped,
    SetLocal,
    Store,
    StoreVector,
    Ternary,
    Unary,
    Verbatim,
)
from ocannl_core.ir.loops.printer import TextPrinter, to_c_like, to_text
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float16, float32, int32, uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp

A, A2, C, S, T, W = (
    TensorNode(n, (name,)) for n, name in enumerate(["a", "a", "c", "s", "t", "w"])
)
I, I2, J = LoopVar(-1, "i"), LoopVar(-2, "i"), LoopVar(-3, "j")  # noqa: E741
STEP = StaticIndex("step", 10)
V, U = Local(7, float32, A), Local(3, float32)


class _SortCall:
    name = "sort"

    def perform(self, inputs: object, outputs: object) -> None:
        return


def load(node: TensorNode, *variables: LoopVar) -> Load:
    return Load(node, tuple(map(VarIndex, variables)), float32)


def add(left: Expr, right: Expr) -> Binary:
    return Binary(BinaryOp.ADD, left, right, float32)


def everything() -> LoopProgram:
    inner = Scoped(U, Block((SetLocal(U, Const(2.0, float32)),)))
    reduced = Scoped(
        V,
        Block(
            (
                SetLocal(V, Const(0.0, float32)),
                For(J, 0, 3, Block((SetLocal(V, add(LocalRead(V), load(A, I, J))),))),
                SetLocal(V, Binary(BinaryOp.MUL, LocalRead(V), inner, float32)),
            )
        ),
    )
    guard = Binary(BinaryOp.LE, IndexValue(VarIndex(I), int32), Const(2, int32), float32)
    chosen = Ternary(TernaryOp.WHERE, guard, reduced, Const(-1.0, float32), float32)
    body = Block(
        (
            Remark("first\nsecond"),
            Allocate(T, Scope.ROUTINE),
            Fill(T, 0.1),
            For(
                I,
                0,
                4,
                Block((Store(C, (VarIndex(I),), add(load(C, I), chosen)),)),
                AxisKind.PARALLEL,
            ),
            For(I2, 1, 4, Block((Store(C, (affine([(-1, I2)], 4),), load(A2, I2)),)), traced=False),
            Block(
                (
                    DeclareLocal(U),
                    SetLocal(U, Unary(UnaryOp.NEG, LoadMerge(S, (), float32), float32)),
                )
            ),
            Store(S, (), Unary(UnaryOp.IDENTITY, Const(2.5, float16), float32)),
            Store(S, (), Gather(A, (VarIndex(STEP), FixedIndex(0)), 1, load(S), float32)),
            StoreVector(C, (FixedIndex(0),), 4, Load(W, (), uint4x32)),
            Store(W, (), ConstBits(42, uint4x32)),
            For(
                I, 0, 2, Block((For(J, 0, 2, Block((Barrier(),)), AxisKind.BLOCK),)), AxisKind.GRID
            ),
            Prefetch(C, (FixedIndex(9),)),
            CallExternal(_SortCall(), (A, S), (C,)),
            Verbatim("c", "c[0] = 1;", Block((Fill(C, 1.0),))),
            For(I, 0, 2, Block(())),
        )
    )
    nodes = {
        A: NodeInfo(float32, (10, 3)),
        A2: NodeInfo(float32, (4,)),
        C: NodeInfo(float32, (4,)),
        S: NodeInfo(float32, ()),
        W: NodeInfo(uint4x32, ()),
        T: NodeInfo(float32, (5,)),
    }
    return LoopProgram("demo", (A, A2, C, S, W), (STEP,), nodes, body)


def test_every_statement_in_the_notation_of_user_code() -> None:
    assert to_text(everything()) == snapshot("""\
routine demo(a: float32[10, 3], a1: float32[4], c: float32[4], s: float32[], w: uint4x32[], static step < 10):
    # first
    # second
    routine t: float32[5]
    t[:] = 0.1
    for i in parallel(4):
        c[i] += where((int32(i) <= 2):float32, a2, -1.0)
            where a2: float32
                a2 = 0.0
                for j in range(3):
                    a2 += a[i, j]
                a2 *= v
                    where v: float32
                        v = 2.0
    for i in range(1, 4) untraced:
        c[-i + 4] = a1[i]
    block:
        v: float32
        v = -s.merge
    s = float32(2.5:float16)
    s = gather(a[step, s])
    c[0]...4 = lanes(w)
    w = 0x2a
    for i in grid(2):
        for j in block(2):
            barrier()
    prefetch c[9]
    c = call sort(a, s)
    verbatim c:
        | c[0] = 1;
        c[:] = 1.0
    for i in range(2):
        pass\
""")


def test_every_statement_in_the_notation_of_c() -> None:
    assert to_c_like(everything()) == snapshot("""\
void demo(float32 a[10][3], float32 a1[4], float32 c[4], float32 s, uint4x32 w, int step) {
    // first
    // second
    routine float32 t[5];
    fill(t, 0.1f);
    for (int i = 0; i < 4; ++i) {  // parallel
        float32 a2;
        {
            a2 = 0.0f;
            for (int j = 0; j < 3; ++j) {
                a2 += a[i][j];
            }
            float32 v;
            {
                v = 2.0f;
            }
            a2 *= v;
        }
        c[i] += (int32)i <= 2 ? a2 : -1.0f;
    }
    for (int i = 1; i < 4; ++i) {
        c[-i + 4] = a1[i];
    }
    {  // block
        float32 v;
        v = -s_merge;
    }
    s = (float32)2.5f;
    s = gather(a[step][s]);
    store_lanes(&c[0], 4, w);
    w = 0x2a;
    for (int i = 0; i < 2; ++i) {  // grid
        for (int j = 0; j < 2; ++j) {  // block
            barrier();
        }
    }
    prefetch c[9];
    c = sort(a, s);
    {  // verbatim c
        fill(c, 1.0f);
    }
    for (int i = 0; i < 2; ++i) {
    }
}\
""")


def test_printing_does_not_depend_on_ids() -> None:
    assert to_text(everything()) == to_text(everything())
    assert "-1" not in to_text(everything()).replace("-1.0", "")


def test_parentheses_keep_the_order_of_evaluation() -> None:
    x, y, z = load(C, I), load(A2, I), load(S)

    def text(expr: Expr) -> str:
        return "\n".join(TextPrinter(everything()).lines(Store(S, (), expr))).removeprefix("s = ")

    sub = BinaryOp.SUB
    mul = BinaryOp.MUL
    pow_ = BinaryOp.POW
    negative = Unary(UnaryOp.NEG, x, float32)
    assert [
        text(each)
        for each in (
            add(add(x, y), z),
            add(x, add(y, z)),
            Binary(sub, x, Binary(sub, y, z, float32), float32),
            Binary(mul, add(x, y), z, float32),
            add(Binary(mul, x, y, float32), z),
            Binary(mul, x, Binary(mul, y, z, float32), float32),
            Binary(pow_, negative, Const(2.0, float32), float32),
            Unary(UnaryOp.NEG, Binary(mul, x, y, float32), float32),
            Binary(pow_, Binary(pow_, x, y, float32), z, float32),
            Binary(BinaryOp.LT, add(x, y), z, float32),
            Binary(BinaryOp.MAX, negative, Const(-1.0, float32), float32),
        )
    ] == snapshot(
        [
            "c[i] + a1[i] + s",
            "c[i] + (a1[i] + s)",
            "c[i] - (a1[i] - s)",
            "(c[i] + a1[i]) * s",
            "c[i] * a1[i] + s",
            "c[i] * (a1[i] * s)",
            "(-c[i]) ** 2.0",
            "-(c[i] * a1[i])",
            "(c[i] ** a1[i]) ** s",
            "c[i] + a1[i] < s",
            "max(-c[i], -1.0)",
        ]
    )


def test_an_expression_of_any_depth_is_printed() -> None:
    value: Expr = load(S)
    for _ in range(3000):
        value = Unary(UnaryOp.EXP, value, float32)
    assert "\n".join(TextPrinter(everything()).lines(Store(S, (), value))).count("exp(") == 3000
