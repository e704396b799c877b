"""Routines whose scratch nodes share memory give the bits of the interpreter, whose nodes share
none.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.ir.indexing import FixedIndex, VarIndex, fresh_var
from ocannl_core.ir.loops.nodes import Allocate, Binary, Fill, IndexValue, Scope, Stmt
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.passes.loops.dead_stores import forward_fills
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import Subject, subject_named

WIDTH = 40


@st.composite
def relays(draw: st.DrawFn) -> Example:
    """Nodes that add up earlier ones; every node is copied to a row of the result when it dies."""
    sizes = draw(st.lists(st.integers(1, WIDTH), min_size=2, max_size=12))
    draft = Draft("relay")
    rows = draft.node("rows", int32, len(sizes), WIDTH)
    nodes = [draft.scratch(f"n{number}", int32, size) for number, size in enumerate(sizes)]
    last = [draw(st.integers(number, len(sizes) - 1)) for number in range(len(sizes))]
    zeroed = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))

    def copied(number: int) -> Stmt:
        i = fresh_var("i")
        value = draft.load(nodes[number], i)
        return loop(i, sizes[number], draft.store(rows, FixedIndex(number), i, value=value))

    def made(number: int) -> list[Stmt]:
        alive = [each for each in range(number) if last[each] >= number]
        i = fresh_var("i")
        start = Binary(
            BinaryOp.ADD, IndexValue(VarIndex(i), int32), draft.load(rows, number, i), int32
        )
        stmts: list[Stmt] = [loop(i, sizes[number], draft.store(nodes[number], i, value=start))]
        for source in alive:
            j = fresh_var("j")
            update = draft.accumulate(
                nodes[number], j, op=BinaryOp.ADD, value=draft.load(nodes[source], j)
            )
            stmts.append(loop(j, min(sizes[number], sizes[source]), update))
        return stmts

    stmts: list[Stmt] = [Allocate(node, Scope.ROUTINE) for node in nodes]
    stmts += [Fill(node, 0.0) for node, early in zip(nodes, zeroed, strict=True) if early]
    for number in range(len(sizes)):
        stmts += made(number)
        stmts += [copied(each) for each in range(number + 1) if last[each] == number]
    cells = np.arange(len(sizes) * WIDTH, dtype=np.int32).reshape(len(sizes), WIDTH) * 1000
    return Example(draft.program(*stmts), {rows: cells})


def packed(subject: Subject, example: Example) -> np.ndarray:
    """Return the rows after a run of the plan with its memory plan."""
    (rows,) = example.program.params
    plan = split_kernels(forward_fills(example.program))
    buffer = subject.upload(example.arrays[rows], example.program.nodes[rows])
    source = subject.backend.generate(plan, subject.target)
    subject.backend.compile(source, subject.target).link({rows: buffer})(())
    return subject.download(buffer)


def test_routines_with_shared_memory_give_the_bits_of_the_oracle(target: str) -> None:
    pytest.importorskip("ocannl_interp")
    subject, sharing = subject_named(target), 0

    @settings(max_examples=15, deadline=None, database=None, derandomize=True)
    @given(relays())
    def check(example: Example) -> None:
        nonlocal sharing
        found = memory_plan(split_kernels(example.program))
        sharing += found.nbytes < found.nbytes_unshared
        (rows,) = example.program.params
        expected = subject_named("interp").run(example.program, example.arrays)[rows]
        assert packed(subject, example).tobytes() == expected.tobytes()

    check()
    assert sharing > 5
