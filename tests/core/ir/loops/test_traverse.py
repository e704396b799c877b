"""Walks, folds and rewrites of the loop language."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    StaticIndex,
    VarIndex,
    affine,
    fresh_var,
)
from ocannl_core.ir.loops.nodes import (
    Allocate,
    Binary,
    Block,
    CallExternal,
    Const,
    Expr,
    Fill,
    For,
    IndexValue,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    LoopProgram,
    Remark,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.traverse import (
    accesses,
    allocated_nodes,
    clone_expr,
    clone_stmt,
    contains,
    fold,
    free_locals,
    free_variables,
    introduced_locals,
    locals_of,
    map_expr,
    map_exprs,
    map_stmts,
    merge_reads,
    nodes_of,
    operands_with_certainty,
    reads,
    remove_unused_nodes,
    rename_local,
    statements,
    static_indices,
    substitute_in_expr,
    substitute_in_stmt,
    walk,
    walk_up,
    with_children,
    writes,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, float64
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp

A, B, C = (TensorNode(number, (name,)) for number, name in enumerate("abc"))
I, J = fresh_var("i"), fresh_var("j")  # noqa: E741
V = Local(0, float32)


def load(node: TensorNode, *places: object) -> Load:
    return Load(node, tuple(places), float32)  # type: ignore[arg-type]


def total(extent: int = 3) -> For:
    """for i in range(3): c[i] = {v: v = 0; for j in range(2): v = v + a[i, j]} * b[i]."""
    step = Binary(BinaryOp.ADD, LocalRead(V), load(A, VarIndex(I), VarIndex(J)), float32)
    body = Block((SetLocal(V, Const(0.0, float32)), For(J, 0, 2, Block((SetLocal(V, step),)))))
    scoped = Scoped(V, body, (VarIndex(I),))
    value = Binary(BinaryOp.MUL, scoped, load(B, VarIndex(I)), float32)
    return For(I, 0, extent, Block((Store(C, (VarIndex(I),), value),)))


def test_parents_come_before_children_going_down_and_after_them_going_up() -> None:
    down, up = list(walk(total())), list(walk_up(total()))
    assert down[0] == total()
    assert up[-1] == total()
    assert sorted(map(repr, down)) == sorted(map(repr, up))
    kinds = [type(node).__name__ for node in up]
    assert kinds.index("Load") < kinds.index("Scoped") < kinds.index("Store") < len(kinds) - 1


def test_classes_are_found_inside_of_scopes_too() -> None:
    assert contains(total(), Scoped)
    assert contains(total().body, (Fill, For))
    assert not contains(total(), (Fill, Ternary))


def test_a_substitution_of_other_variables_changes_nothing() -> None:
    loop = total()
    other: dict[IndexVar, AxisIndex] = {fresh_var("k"): FixedIndex(0)}
    (same,) = substitute_in_stmt(loop, other).stmts
    assert same is loop


def test_a_fold_sees_the_results_of_the_children() -> None:
    assert fold(total(), lambda node, inner: 1 + sum(inner)) == len(list(walk(total())))


def test_reads_come_before_the_write_they_feed() -> None:
    assert [access.node for access in accesses(total())] == [A, B, C]
    assert reads(total()) == (A, B)
    assert writes(total()) == (C,)


def test_merge_buffers_are_distinguished_from_cells() -> None:
    stmt = Store(C, (), Binary(BinaryOp.ADD, load(C), LoadMerge(A, (), float32), float32))
    assert reads(stmt) == (C,)
    assert merge_reads(stmt) == (A,)
    assert nodes_of(stmt) == (C, A)


class _Nothing:
    name = "nothing"

    def perform(self, inputs: object, outputs: object) -> None:
        return


def test_an_external_call_reads_its_inputs_and_writes_its_outputs() -> None:
    call = CallExternal(_Nothing(), (A, B), (C,))
    assert reads(call) == (A, B)
    assert writes(call) == (C,)


def test_only_variables_without_a_loop_are_free() -> None:
    assert free_variables(total()) == ()
    assert free_variables(total().body) == (I,)
    inner = Store(C, (affine([(2, J), (1, I)]),), Const(0.0, float32))
    assert free_variables(inner) == (J, I)


def test_static_indices_are_found_in_values_and_places() -> None:
    s, t = StaticIndex("s"), StaticIndex("t")
    stmt = Store(C, (VarIndex(s),), IndexValue(affine([(1, t), (1, s)]), float32))
    assert static_indices(stmt) == (t, s)


def test_locals_and_allocations_are_listed_in_order() -> None:
    assert locals_of(total()) == (V,)
    assert allocated_nodes(Block((Allocate(B, Scope.KERNEL), Allocate(A, Scope.KERNEL)))) == (B, A)


def test_a_rewrite_that_changes_nothing_returns_the_same_object() -> None:
    body = Block((total(), Remark("text"), Fill(A, 0.0)))
    assert map_exprs(body, lambda expr: expr) is body
    assert map_stmts(body, lambda stmt: stmt) is body
    assert substitute_in_stmt(body, {fresh_var(): FixedIndex(0)}) is body
    value = Unary(UnaryOp.NEG, load(A), float32)
    assert map_expr(value) is value


def test_expressions_are_rewritten_inside_inlined_computations() -> None:
    def negate(expr: Expr) -> Expr:
        return Unary(UnaryOp.NEG, expr, float32) if isinstance(expr, Load) else expr

    rewritten = map_exprs(total(), negate)
    negated = [
        n.arg.node for n in walk(rewritten) if isinstance(n, Unary) and isinstance(n.arg, Load)
    ]
    assert negated == [A, B]


def test_statements_are_removed_and_multiplied() -> None:
    def double_fills(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        match stmt:
            case Fill():
                return (stmt, stmt)
            case Remark():
                return ()
            case _:
                return stmt

    body = For(I, 0, 2, Block((Remark("gone"), Fill(A, 1.0))))
    expected = For(I, 0, 2, Block((Fill(A, 1.0), Fill(A, 1.0))))
    assert map_stmts(body, double_fills) == Block((expected,))


def test_substitution_reaches_places_values_and_remembered_cells() -> None:
    replaced = substitute_in_stmt(total().body, {I: FixedIndex(2)})
    assert free_variables(replaced) == ()
    (scoped,) = [node for node in walk(replaced) if isinstance(node, Scoped)]
    assert scoped.indices == (FixedIndex(2),)
    assert substitute_in_expr(IndexValue(affine([(3, I)], 1), float32), {I: FixedIndex(2)}) == (
        IndexValue(FixedIndex(7), float32)
    )


def test_a_refreshed_copy_binds_other_variables_and_means_the_same() -> None:
    (copy,) = clone_stmt(total()).stmts
    assert isinstance(copy, For)
    assert copy.var != I
    assert copy.var.hint == "i"
    assert free_variables(copy) == ()
    bound = {n.var for n in walk(copy) if isinstance(n, For)}
    assert bound.isdisjoint({I, J})
    back = substitute_in_stmt(copy.body, {copy.var: VarIndex(I)})
    assert reads(back) == reads(total())


def test_a_refreshed_expression_has_variables_of_its_own() -> None:
    (store,) = total().body.stmts
    assert isinstance(store, Store)
    numbers = count(7)

    def new_local(dtype: DType, node: TensorNode | None) -> Local:
        return Local(next(numbers), dtype, node)

    copy = clone_expr(store.value, new_local)
    assert introduced_locals(copy) == (Local(7, float32),)
    assert free_locals(copy) == ()
    assert free_variables(copy) == (I,)
    assert {n.var for n in walk(copy) if isinstance(n, For)}.isdisjoint({J})
    assert reads(copy) == reads(store.value)
    reader = Unary(UnaryOp.NEG, LocalRead(V), float32)
    assert clone_expr(reader, new_local) == reader
    assert next(numbers) == 8
    assert free_locals(reader) == (V,)


def test_a_variable_is_renamed_wherever_it_is_mentioned() -> None:
    other = Local(5, float32)
    renamed = rename_local(total(), V, other)
    assert locals_of(renamed) == (other,)
    assert rename_local(renamed, other, V).stmts == (total(),)


def test_statements_are_listed_without_those_of_expressions() -> None:
    nest = total()
    assert list(statements(nest)) == [nest, nest.body, *nest.body.stmts]


def test_branches_need_not_be_computed() -> None:
    x, y, z = load(A), load(B), load(C)
    chosen = Ternary(TernaryOp.WHERE, x, y, z, float32)
    assert list(operands_with_certainty(chosen)) == [(x, True), (y, False), (z, False)]
    fused = Ternary(TernaryOp.FMA, x, y, z, float32)
    assert list(operands_with_certainty(fused)) == [(x, True), (y, True), (z, True)]
    assert with_children(fused, [x, y, z]) is fused
    assert with_children(fused, [z, y, x]) == Ternary(TernaryOp.FMA, z, y, x, float32)


def test_expressions_of_any_depth_can_be_walked_and_rewritten() -> None:
    value: Expr = load(A)
    for _ in range(5000):
        value = Unary(UnaryOp.NEG, value, float32)
    deep = map_expr(value, lambda e: replace(e, dtype=float64) if isinstance(e, Unary) else e)
    assert sum(1 for _ in walk(deep)) == 5001
    assert deep.dtype is float64


def test_unused_parameters_and_allocations_are_dropped() -> None:
    info = NodeInfo(float32, ())
    body = Block((Allocate(B, Scope.ROUTINE), Store(C, (), Const(1.0, float32))))
    program = remove_unused_nodes(LoopProgram("p", (A, C), (), {A: info, B: info, C: info}, body))
    assert program.params == (C,)
    assert program.nodes == {C: info}
    assert program.body.stmts == body.stmts[1:]
    assert remove_unused_nodes(program) is program
