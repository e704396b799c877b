"""Every invariant of the loop language, broken once."""

from __future__ import annotations

import re

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import VerifyError
from ocannl_core.ir.indexing import (
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    LoopVar,
    StaticIndex,
    SubAxis,
    VarIndex,
    affine,
    fresh_var,
)
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    CheckPositions,
    Const,
    ConstBits,
    DeclareLocal,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    Local,
    LocalRead,
    LoopProgram,
    Prefetch,
    Remark,
    Scatter,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
    SubgroupReduce,
    Ternary,
    Unary,
    Verbatim,
)
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, float64, int32, uint4x32, uint8
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp

A, C, S, W, D, E = (TensorNode(n, (name,)) for n, name in enumerate("acswde"))
NODES = {
    A: NodeInfo(float32, (4,)),
    C: NodeInfo(float32, (4,)),
    S: NodeInfo(float32, ()),
    W: NodeInfo(uint4x32, (4,)),
    D: NodeInfo(float64, (2, 3)),
    E: NodeInfo(float32, (4,)),
}
I, J = fresh_var("i"), fresh_var("j")  # noqa: E741
STEP, OTHER = StaticIndex("step", 9), StaticIndex("other")
V = Local(0, float32)
ONE = Const(1.0, float32)
WORD = ConstBits(1, uint4x32)


def load(node: TensorNode, *at: AxisIndex) -> Load:
    return Load(node, at, NODES[node].dtype)


def program(*stmts: Stmt) -> LoopProgram:
    return LoopProgram("broken", (A, C, S, W, D), (STEP,), NODES, Block(stmts))


def loop(var: LoopVar, stop: int, *body: Stmt, kind: AxisKind = AxisKind.SERIAL) -> For:
    return For(var, 0, stop, Block(body), kind)


FIRST = FixedIndex(0)


def store(value: Expr, at: AxisIndex = FIRST, node: TensorNode = C) -> Store:
    return Store(node, (at,), value)


def problems(*stmts: Stmt) -> list[str]:
    with pytest.raises(VerifyError) as caught:
        verify(program(*stmts))
    return caught.value.found.splitlines()


GUARD = Binary(BinaryOp.LT, IndexValue(VarIndex(I), int32), Const(4, int32), float32)
VALID: dict[str, tuple[Stmt, ...]] = {
    "nothing": (),
    "loop": (loop(I, 4, store(load(A, VarIndex(I)), VarIndex(I))),),
    "one variable in two loops": (
        loop(I, 4, store(ONE, VarIndex(I))),
        loop(I, 2, store(ONE, VarIndex(I))),
    ),
    "allocation": (Allocate(E, Scope.ROUTINE), Fill(E, 0.0), store(load(E, FixedIndex(3)))),
    "guarded load out of range": (
        loop(
            I, 9, Store(S, (), Ternary(TernaryOp.WHERE, GUARD, load(A, VarIndex(I)), ONE, float32))
        ),
    ),
    "loop without iterations": (For(I, 7, 7, Block((store(ONE, VarIndex(I)),))),),
    "static index that may lead outside": (store(ONE, VarIndex(STEP)),),
    "local": (DeclareLocal(V), SetLocal(V, ONE), store(LocalRead(V))),
    "inlined computation": (store(Scoped(V, Block((SetLocal(V, ONE),)))),),
    "one local inlined twice": (
        store(Scoped(V, Block((SetLocal(V, ONE),)))),
        store(Scoped(V, Block((SetLocal(V, ONE),)))),
    ),
    "conversion": (store(Unary(UnaryOp.IDENTITY, load(D, *[FixedIndex(1)] * 2), float32)),),
    "comparison": (
        store(Binary(BinaryOp.LT, Const(1, int32), Const(2, int32), float32)),
        store(ONE),
    ),
    "random word": (
        Store(W, (FixedIndex(0),), Binary(BinaryOp.THREEFRY4X32, WORD, WORD, uint4x32)),
        store(Unary(UnaryOp.UNIFORM, load(W, FixedIndex(0)), float32)),
    ),
    "vector": (StoreVector(C, (FixedIndex(0),), 4, load(W, FixedIndex(0))),),
    "vector across axes": (
        loop(I, 3, StoreVector(D, (SubAxis(), affine([(2, I)])), 2, load(W, VarIndex(I)))),
    ),
    "prefetch": (loop(I, 9, Prefetch(D, (VarIndex(I), affine([(2, I)])))),),
    "barrier": (loop(I, 2, loop(J, 2, Barrier(), kind=AxisKind.BLOCK), kind=AxisKind.GRID),),
    "reduction across iterations": (
        DeclareLocal(V),
        SubgroupReduce(V, ONE, BinaryOp.ADD, 4),
        store(LocalRead(V)),
    ),
    "gather": (store(Gather(A, (FixedIndex(0),), 0, Const(99.0, float32), float32)),),
    "verbatim": (Verbatim("c", "c[0] = 1;", Block((store(ONE),))), Remark("text")),
}


@pytest.mark.parametrize("name", VALID)
def test_a_valid_program_passes(name: str) -> None:
    verify(program(*VALID[name]))


def both(op: BinaryOp, left: Expr, right: Expr, dtype: DType = float32) -> Store:
    return store(Binary(op, left, right, dtype))


BROKEN: dict[str, tuple[Stmt, ...]] = {
    "unbound variable": (store(ONE, VarIndex(I)),),
    "variable after its loop": (loop(I, 4), store(ONE, VarIndex(I))),
    "rebinding": (loop(I, 4, loop(I, 4)),),
    "unknown static index": (store(ONE, VarIndex(OTHER)),),
    "static index with no right value": (store(ONE, affine([(1, STEP)], 4)),),
    "rank": (Store(D, (FixedIndex(0),), Const(1.0, float64)),),
    "unknown node": (Fill(TensorNode(99, ("zzz",)), 0.0),),
    "not allocated": (store(load(E, FixedIndex(0))),),
    "allocation after its block": (
        Block((Allocate(E, Scope.KERNEL),)),
        store(load(E, FixedIndex(0))),
    ),
    "allocated twice": (Allocate(E, Scope.KERNEL), Allocate(E, Scope.KERNEL)),
    "parameter allocated": (Allocate(A, Scope.KERNEL),),
    "stored format": (store(Const(1.0, float64)),),
    "loaded format": (store(Load(D, (FixedIndex(0), FixedIndex(0)), float32)),),
    "operand format": (both(BinaryOp.ADD, ONE, Const(1.0, float64)),),
    "unary format": (store(Unary(UnaryOp.EXP, Const(1.0, float64), float32)),),
    "comparison formats": (both(BinaryOp.EQ, ONE, Const(1.0, float64)),),
    "comparison of words": (both(BinaryOp.EQ, WORD, WORD),),
    "branch format": (store(Ternary(TernaryOp.WHERE, ONE, ONE, Const(1, uint8), float32)),),
    "word as condition": (store(Ternary(TernaryOp.WHERE, WORD, ONE, ONE, float32)),),
    "word as number": (store(Unary(UnaryOp.IDENTITY, WORD, float32)),),
    "uniform of a number": (store(Unary(UnaryOp.UNIFORM, ONE, float32)),),
    "threefry of numbers": (both(BinaryOp.THREEFRY4X32, ONE, ONE),),
    "word of a word": (Store(W, (FixedIndex(0),), Unary(UnaryOp.WORD, WORD, uint4x32)),),
    "bits as a float": (store(ConstBits(1, float32)),),
    "undeclared variable": (store(LocalRead(V)),),
    "reduction into an undeclared variable": (SubgroupReduce(V, ONE, BinaryOp.ADD, 4),),
    "reduction over three lanes": (DeclareLocal(V), SubgroupReduce(V, ONE, BinaryOp.ADD, 3)),
    "reduction by a difference": (DeclareLocal(V), SubgroupReduce(V, ONE, BinaryOp.SUB, 4)),
    "assignment to an undeclared variable": (SetLocal(V, ONE),),
    "variable read before it is set": (DeclareLocal(V), store(LocalRead(V)), SetLocal(V, ONE)),
    "variable set by a loop that never runs": (
        DeclareLocal(V),
        loop(I, 0, SetLocal(V, ONE)),
        store(LocalRead(V)),
    ),
    "variable declared anew for each iteration": (
        loop(I, 4, DeclareLocal(V), store(LocalRead(V)), SetLocal(V, ONE)),
    ),
    "variable after its block": (Block((DeclareLocal(V),)), SetLocal(V, ONE)),
    "inlined variable afterwards": (
        store(Scoped(V, Block((SetLocal(V, ONE),)))),
        store(LocalRead(V)),
    ),
    "inlined computation without a value": (store(Scoped(V, Block(()))),),
    "declared twice": (DeclareLocal(V), DeclareLocal(V)),
    "variable's format": (DeclareLocal(V), SetLocal(V, Const(1.0, float64))),
    "beyond the end": (loop(I, 5, store(ONE, VarIndex(I))),),
    "before the beginning": (loop(I, 4, store(ONE, affine([(1, I)], -1))),),
    "vector beyond the end": (
        loop(I, 2, StoreVector(C, (affine([(4, I)]),), 4, load(W, VarIndex(I)))),
    ),
    "prefetch with a rank": (Prefetch(D, (FixedIndex(9),)),),
    "vector length": (StoreVector(C, (FixedIndex(0),), 2, WORD),),
    "vector of numbers": (StoreVector(C, (FixedIndex(0),), 4, ONE),),
    "fill of words": (Fill(W, 0.0),),
    "gather without a free place": (
        store(Gather(A, (FixedIndex(1),), 0, Const(0.0, float32), float32)),
    ),
    "scatter without a free place": (Scatter(C, (FixedIndex(1),), 0, ONE, ONE),),
    "scatter of another format": (Scatter(C, (FixedIndex(0),), 0, ONE, Const(1.0, float64)),),
    "check of floats": (CheckPositions(C, 4, "axis 0 of a"),),
    "check of a negative extent": (CheckPositions(C, -1, "axis 0 of a"),),
    "concatenated index": (loop(I, 2, loop(J, 2, store(ONE, ConcatIndex((I, J))))),),
    "computed index": (store(ONE, ComputedIndex(1, (FixedIndex(0),))),),
}


def test_every_broken_invariant_is_reported() -> None:
    found = {name: problems(*stmts) for name, stmts in BROKEN.items()}
    numbers = {str(I.id): "1", str(J.id): "2"}
    found = {
        name: [re.sub(r"(?<=#)\d+", lambda number: numbers[number[0]], text) for text in texts]
        for name, texts in found.items()
    }
    assert found == snapshot(
        {
            "unbound variable": ["store to c: loop variable i#1 is not bound"],
            "variable after its loop": ["store to c: loop variable i#1 is not bound"],
            "rebinding": ["loop variable i#1 is bound again inside its loop"],
            "unknown static index": ["store to c: static index other is not one of the program"],
            "static index with no right value": ["store to c: axis 0 reaches 4..12, outside 0..3"],
            "rank": ["store to d: 1 indices for 2 axes"],
            "unknown node": ["fill of <node 99 zzz>, which is not in the table of nodes"],
            "not allocated": ["load from <node 5 e>, which is no parameter and not allocated yet"],
            "allocation after its block": [
                "load from <node 5 e>, which is no parameter and not allocated yet"
            ],
            "allocated twice": ["<node 5 e> is allocated although it has memory"],
            "parameter allocated": ["<node 0 a> is allocated although it has memory"],
            "stored format": ["value stored to c: float64 where float32 is needed"],
            "loaded format": ["value loaded from d: float32 where float64 is needed"],
            "operand format": ["operand or result of add: float64 where float32 is needed"],
            "unary format": ["operand of exp: float64 where float32 is needed"],
            "comparison formats": ["right operand of eq: float64 where float32 is needed"],
            "comparison of words": ["operand of eq: a word where a number is needed"],
            "branch format": ["operand of where: uint8 where float32 is needed"],
            "word as condition": ["condition of where: a word where a number is needed"],
            "word as number": ["operand of a conversion: a word where a number is needed"],
            "uniform of a number": ["operand of uniform: float32 where uint4x32 is needed"],
            "threefry of numbers": [
                "operand or result of threefry4x32: float32 where uint4x32 is needed"
            ],
            "word of a word": ["operand of word: a word where a number is needed"],
            "bits as a float": ["a bit pattern has the format float32"],
            "undeclared variable": ["variable 0 is read outside its scope"],
            "reduction into an undeclared variable": ["variable 0 is reduced outside its scope"],
            "reduction over three lanes": ["variable 0 is reduced by add over 3 lanes"],
            "reduction by a difference": ["variable 0 is reduced by sub over 4 lanes"],
            "assignment to an undeclared variable": ["variable 0 is assigned outside its scope"],
            "variable read before it is set": ["variable 0 is read before it is set"],
            "variable set by a loop that never runs": ["variable 0 is read before it is set"],
            "variable declared anew for each iteration": ["variable 0 is read before it is set"],
            "variable after its block": ["variable 0 is assigned outside its scope"],
            "inlined variable afterwards": ["variable 0 is read outside its scope"],
            "inlined computation without a value": [
                "an inlined computation never sets its variable 0"
            ],
            "declared twice": ["variable 0 is declared again inside its scope"],
            "variable's format": ["value of variable 0: float64 where float32 is needed"],
            "beyond the end": ["store to c: axis 0 reaches 0..4, outside 0..3"],
            "before the beginning": ["store to c: axis 0 reaches -1..2, outside 0..3"],
            "vector beyond the end": ["a vector store to c leaves its 4 cells"],
            "prefetch with a rank": ["prefetch of d: 1 indices for 2 axes"],
            "vector length": ["a vector store to c writes 2 cells; a word holds 4 of float32"],
            "vector of numbers": ["word stored to c: float32 where uint4x32 is needed"],
            "fill of words": ["a fill of w, whose cells are words and not numbers"],
            "gather without a free place": ["a gather from a has no free place at axis 0"],
            "scatter without a free place": ["a scatter to c has no free place at axis 0"],
            "scatter of another format": ["value scattered to c: float64 where float32 is needed"],
            "check of floats": ["a check of positions c that are no integers"],
            "check of a negative extent": [
                "a check of positions c that are no integers",
                "a check of positions c of a negative extent",
            ],
            "concatenated index": [
                "store to c: a concatenated index, which lowering should have removed"
            ],
            "computed index": ["store to c: a computed index, which lowering should have removed"],
        }
    )


def test_all_problems_are_listed_and_the_routine_is_named() -> None:
    with pytest.raises(VerifyError) as caught:
        verify(program(store(LocalRead(V)), Fill(W, 0.0), Allocate(A, Scope.KERNEL)))
    assert len(caught.value.found.splitlines()) == 3
    assert "routine broken" in str(caught.value)


def test_an_expression_of_any_depth_is_checked() -> None:
    value: Expr = Const(1.0, float64)
    for _ in range(3000):
        value = Unary(UnaryOp.IDENTITY, value, float32)
        value = Unary(UnaryOp.NEG, value, float32)
    verify(program(store(value)))
