"""Elimination of initial values that are read once, and of dead stores."""

from __future__ import annotations

from textwrap import indent

from inline_snapshot import snapshot

from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import affine, fresh_var
from ocannl_core.ir.loops.nodes import (
    Barrier,
    Binary,
    Block,
    CallExternal,
    Const,
    DeclareLocal,
    Expr,
    Fill,
    Local,
    LocalRead,
    LoopProgram,
    Remark,
    SetLocal,
    Stmt,
    Verbatim,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import Margin
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.loops.dead_stores import forward_fills, remove_dead_stores
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.parser.loops import parse
from tests.support.external_calls import CopyCall

D = Draft("p")
A, B, C = (D.node(name, float32, 4) for name in "abc")
P = D.node("padded", float32, 4, padding=(Margin(1, 1),))
I = fresh_var("i")  # noqa: E741


def lines(program: LoopProgram) -> list[str]:
    verify(program)
    return [line.removeprefix("    ") for line in to_text(program).splitlines()[1:]]


HEAD = "routine p(a: float32[4], b: float32[4], c: float32[4]):"


def routine(*body: Stmt | str) -> LoopProgram:
    """Return the program of a text, or of statements."""
    match body:
        case (str(text),):
            return parse(f"{HEAD}\n{indent(text, '    ')}")
        case _:
            return D.program(*(each for each in body if not isinstance(each, str)))


def forwarded(*body: Stmt | str) -> list[str]:
    return lines(forward_fills(routine(*body)))


def kept(*body: Stmt | str) -> list[str]:
    found = remove_dead_stores(routine(*body))
    assert remove_dead_stores(found) is found
    return lines(found)


def stays(*body: Stmt | str) -> bool:
    return kept(*body) == lines(routine(*body))


def double(x: Expr) -> Expr:
    return Binary(BinaryOp.MUL, x, Const(2.0, float32), float32)


def updated(value: Expr) -> Stmt:
    return D.accumulate(C, I, op=BinaryOp.ADD, value=value)


def test_an_update_of_every_cell_starts_from_the_number_of_the_fill() -> None:
    body = """
c[:] = 0.0
for i in range(4):
    c[i] += a[i]
"""
    assert forwarded(body) == snapshot(
        ["c[:] = 0.0", "for i in range(4):", "    c[i] = 0.0 + a[i]"]
    )
    assert lines(remove_dead_stores(forward_fills(routine(body)))) == snapshot(
        ["for i in range(4):", "    c[i] = 0.0 + a[i]"]
    )


def test_an_update_may_share_a_block_with_a_scalar() -> None:
    local = Local(0, float32)
    update = loop(I, 4, updated(LocalRead(local)))
    block = Block((DeclareLocal(local), SetLocal(local, Const(2.0, float32)), update))
    found = forward_fills(D.program(Fill(C, 0.0), block, Fill(A, 1.0)))
    verify(found)
    assert "c[i] = 0.0 + v" in to_text(found)


def test_a_fill_waits_for_the_first_statement_that_touches_its_node() -> None:
    other = loop(I, 4, D.store(B, I, value=D.load(A, I)))
    total = D.node("total", float32)
    add = D.accumulate(total, op=BinaryOp.ADD, value=D.load(A, 0))
    remarks = [Remark(f"about {name}", Origin("net.py", 1)) for name in "cba"]
    body = (remarks[0], Fill(C, 0.0), Fill(total, 1.0), remarks[1], other, add)
    update = loop(I, 4, updated(D.load(A, I)))
    assert forwarded(*body, update) == snapshot(
        [
            "# about b",
            "for i in range(4):",
            "    b[i] = a[i]",
            "total[:] = 1.0",
            "total = 1.0 + a[0]",
            "# about c",
            "c[:] = 0.0",
            "for i in range(4):",
            "    c[i] = 0.0 + a[i]",
        ]
    )
    assert kept(*forward_fills(D.program(*body, update)).body.stmts) == snapshot(
        [
            "# about b",
            "for i in range(4):",
            "    b[i] = a[i]",
            "total = 1.0 + a[0]",
            "for i in range(4):",
            "    c[i] = 0.0 + a[i]",
        ]
    )
    assert forwarded(Fill(C, 0.0), Barrier(), update) == snapshot(
        ["c[:] = 0.0", "barrier()", "for i in range(4):", "    c[i] += a[i]"]
    )
    assert forwarded(Fill(C, 0.0), other) == snapshot(
        ["for i in range(4):", "    b[i] = a[i]", "c[:] = 0.0"]
    )


def test_cells_updated_repeatedly_or_read_elsewhere_keep_their_loads() -> None:
    repeated = """
c[:] = 0.0
for i in range(4):
    for j in range(4):
        c[i] += a[j]
"""
    assert forwarded(repeated) == lines(routine(repeated))
    shifted = """
c[:] = 1.0
for i in range(4):
    c[i] = c[-i + 3]
"""
    assert forwarded(shifted) == lines(routine(shifted))


def test_memory_of_the_routine_that_is_never_read_is_not_written() -> None:
    body = """
routine t: float32[4]
t[:] = 0.0
for i in range(4):
    t[i] = a[i]
    c[i] = b[i]
"""
    assert kept(body) == snapshot(["for i in range(4):", "    c[i] = b[i]"])


def test_parameters_and_cells_that_are_read_later_are_written() -> None:
    assert stays("""
routine t: float32[4]
for i in range(4):
    t[i] = a[i]
for i in range(4):
    c[i] = t[i]
""")
    assert stays("""
for i in range(4):
    c[i] = a[i]
""")


def test_cells_that_are_surely_overwritten_before_a_read_are_not_written() -> None:
    first = loop(I, 4, D.store(C, I, value=D.load(A, I)))
    second = loop(I, 4, D.store(C, affine([(-1, I)], 3), value=D.load(B, I)))
    assert kept(first, second) == snapshot(["for i in range(4):", "    c[-i + 3] = b[i]"])
    halves = [loop(I, 2, D.store(C, affine([(1, I)], k), value=D.load(B, I))) for k in (0, 2)]
    assert kept(Fill(C, 1.0), *halves) == lines(D.program(*halves))
    assert kept(D.store(C, 3, value=D.load(A, 0)), halves[1]) == lines(D.program(halves[1]))


def test_cells_that_are_read_or_kept_in_part_are_written() -> None:
    first = loop(I, 4, D.store(C, I, value=D.load(A, I)))
    half = loop(I, 2, D.store(C, I, value=D.load(B, I)))
    assert stays(first, half)
    assert stays(first, loop(I, 4, D.store(B, I, value=D.load(C, I))), Fill(C, 0.0))
    assert stays(first, loop(I, 4, D.store(C, I, value=double(D.load(C, I)))))
    margins = loop(I, 4, D.store(P, affine([(1, I)], 1), value=D.load(A, I)))
    assert stays(Fill(P, 0.0), margins)
    absent = loop(I, 0, D.store(C, I, value=D.load(A, I)))
    assert "c[:] = 1.0" in kept(Fill(C, 1.0), absent)
    assert "c[:] = 1.0" in kept(Fill(C, 1.0), loop(I, 0, Fill(C, 2.0)))


def test_a_call_of_foreign_code_writes_all_of_its_outputs() -> None:
    call = CallExternal(CopyCall(), (A,), (C,))
    assert kept(Fill(C, 1.0), call) == lines(D.program(call))
    assert stays(Fill(C, 1.0), CallExternal(CopyCall(), (A, C), (C,)))


def test_a_cell_stored_twice_in_a_row_is_stored_once() -> None:
    twice = """
for i in range(4):
    c[i] = a[i]
    a[i] = b[i]
    c[i] = b[i]
"""
    assert kept(twice) == snapshot(["for i in range(4):", "    a[i] = b[i]", "    c[i] = b[i]"])
    assert stays("""
for i in range(4):
    c[i] = a[i]
    b[i] = c[i]
    c[i] = b[i]
""")
    assert stays("""
for i in range(4):
    c[i] = a[i]
    barrier()
    c[i] = b[i]
""")


def test_code_that_a_backend_supplies_is_left_alone() -> None:
    verbatim = Verbatim("C", "fill();", Block((Fill(C, 1.0),)))
    assert stays(verbatim, Fill(C, 2.0))
