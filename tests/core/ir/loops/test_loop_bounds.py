"""Ends of loops at run time in the loop language."""

from __future__ import annotations

import pytest

from ocannl_core.base.errors import ParseError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import FixedIndex, StaticExtent, VarIndex, affine, fresh_var
from ocannl_core.ir.loops.equivalence import canonical_key
from ocannl_core.ir.loops.nodes import Block, For, LoopBound, LoopProgram
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import clone_stmt, free_variables, static_indices, walk
from ocannl_core.ir.loops.usage import usage_of
from ocannl_core.ir.loops.verify import broken_invariants
from ocannl_core.ir.serialization.decode import decode
from ocannl_core.ir.serialization.encode import encode
from ocannl_core.ir.serialization.forms import Numbering
from ocannl_core.ir.serialization.schema import form_of
from ocannl_core.testing.parser.loops import parse

TEXT = """\
routine blocks(a: int32[8], c: int32[8], static n <= 8, static i < 3):
    for b in range(2) while 4*b < n:
        for l in parallel(4) while 4*b + l < n:
            c[4*b + l] = a[4*b + l]
    for k in range(2, 8) while k < n untraced:
        c[i] += a[k]"""


def loops(program: LoopProgram) -> list[For]:
    return [node for node in walk(program.body) if isinstance(node, For)]


def test_the_notation_is_read_back() -> None:
    program = parse(TEXT)
    assert to_text(program) == TEXT
    n, i = program.indices
    assert isinstance(n, StaticExtent)
    assert not isinstance(i, StaticExtent)
    assert (n.maximum, n.extent, i.extent) == (8, 9, 3)
    assert all(each.bound is not None and each.bound.extent is n for each in loops(program))


@pytest.mark.parametrize(
    ("old", "new"),
    [("< n:\n        for", "< i:\n        for"), ("4*b < n", "4*b"), ("4*b + l < n", "4*x < n")],
)
def test_an_end_is_a_position_before_an_extent(old: str, new: str) -> None:
    with pytest.raises(ParseError):
        parse(TEXT.replace(old, new))


def test_records_keep_ends() -> None:
    program = parse(TEXT)
    found = decode(encode(program, form_of(LoopProgram), Numbering()), form_of(LoopProgram), ())
    assert to_text(found) == TEXT
    assert isinstance(found.indices[0], StaticExtent)


def test_a_copy_ends_where_the_original_does() -> None:
    program = parse(TEXT)
    copy = clone_stmt(program.body)
    assert {each.var for each in loops(program)}.isdisjoint(
        each.var for each in loops(replace(program, body=copy))
    )
    assert canonical_key(copy) == canonical_key(program.body)
    assert to_text(replace(program, body=copy)) == TEXT


def test_ends_tell_loops_apart() -> None:
    first, *_, last = loops(parse(TEXT))
    assert canonical_key(last) != canonical_key(replace(last, bound=None))
    assert first.bound is not None
    moved = replace(first.bound, index=affine([(4, first.var)], 1))
    assert canonical_key(first) != canonical_key(replace(first, bound=moved))


def test_variables_of_ends_are_mentioned() -> None:
    program = parse(TEXT)
    _, inner, _ = loops(program)
    (outer,) = free_variables(inner)
    assert outer is loops(program)[0].var
    assert set(static_indices(program.body)) == set(program.indices)


def test_the_checker_finds_ends_out_of_scope() -> None:
    program = parse(TEXT)
    first, *_ = loops(program)
    assert broken_invariants(program) == ()
    n = program.indices[0]
    assert isinstance(n, StaticExtent)
    unknown = StaticExtent("m", 9)
    for index, extent, problem in (
        (VarIndex(first.var), unknown, "static index m is not one of the program"),
        (FixedIndex(3), n, "the position does not increase with it"),
        (affine([(-1, first.var)], 8), n, "the position does not increase with it"),
        (affine([(1, first.var), (1, fresh_var("x"))]), n, "loop variable x"),
    ):
        changed = replace(first, bound=LoopBound(index, extent))
        found = broken_invariants(replace(program, body=Block((changed,))))
        assert any(problem in each for each in found)


def test_positions_that_static_indices_give_are_limited_by_extents() -> None:
    program = parse(TEXT)
    (_, c), (n, i) = program.params, program.indices
    assert isinstance(n, StaticExtent)
    info = replace(program.nodes[c], extents=(n,))
    limits = usage_of(replace(program, nodes={**program.nodes, c: info})).limits
    (found,) = (limit for limit in limits if len(limit.terms) > 1)
    assert set(found.terms) == {(1, n), (-1, i)}
    assert (found.low, found.high) == (1, 8)


BLOCKS = """\
routine blocks(a: int32[10], c: int32[10]):
    for b in grid(3):
        for t in block(4):
            for once in range(1) while 4*b + t + once < 10:
                c[4*b + t] = a[-4*b - t + 9]"""


def test_blocks_that_exceed_an_axis_end_at_a_number() -> None:
    program = parse(BLOCKS)
    assert to_text(program) == BLOCKS
    form = form_of(LoopProgram)
    assert to_text(decode(encode(program, form, Numbering()), form, ())) == BLOCKS
    assert static_indices(program.body) == ()
    assert broken_invariants(program) == ()
    beyond = parse(BLOCKS.replace("< 10", "< 11"))
    assert broken_invariants(beyond) == (
        "store to c: axis 0 reaches 0..10, outside 0..9",
        "load from a: axis 0 reaches -1..9, outside 0..9",
    )
