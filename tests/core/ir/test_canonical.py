"""Canonical texts of code under other names."""

from __future__ import annotations

from ocannl_core.ir.canonical import canonical_program
from ocannl_core.ir.indexing import StaticIndex, fresh_var
from ocannl_core.ir.loops.nodes import Block, Const, LoopProgram, Remark, Repeat, Stmt, Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.testing.drafts import Draft, loop


def row_sum(prefix: str, extent: int = 8) -> tuple[Draft, Stmt]:
    draft = Draft(f"{prefix}routine")
    x, total = draft.node(f"{prefix}x", float32, 4, 8), draft.node(f"{prefix}total", float32, 4)
    i, k = fresh_var(f"{prefix}i"), fresh_var(f"{prefix}k")
    update = draft.accumulate(total, i, op=BinaryOp.ADD, value=draft.load(x, i, k))
    return draft, loop(i, 4, loop(k, extent, update))


def test_programs_have_one_text_under_any_names_and_remarks() -> None:
    def program(prefix: str, size: int = 4) -> LoopProgram:
        draft, stmt = row_sum(prefix)
        _, total = draft.nodes
        private = TensorNode(9, (f"{prefix}private",)), NodeInfo(float32, (size,))
        step = StaticIndex(f"{prefix}step", 3)
        body = Block((Store(private[0], (), Const(0.0, float32)), stmt))
        repeat = Repeat(step, 3, False, body, (), (total,), (total,), (private,))
        return draft.program(Remark(f"{prefix} begins"), repeat)

    def text(found: LoopProgram) -> str:
        return canonical_program(found, lambda node: ["stored"] if node in found.params else [])

    assert text(program("a")) == text(program("b"))
    assert text(program("a")) != text(program("a", 5))
    found = program("a")
    assert [*found.all_nodes][:2] == [*found.nodes]
    assert [info.dims for info in found.all_nodes.values()] == [(4, 8), (4,), (4,)]
