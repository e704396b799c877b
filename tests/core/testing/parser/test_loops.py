"""The parser of printed loop programs: round trips, number formats, errors."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base.errors import ParseError, UsageError
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.loops.equivalence import alpha_key
from ocannl_core.ir.loops.nodes import (
    Binary,
    CallExternal,
    Const,
    Expr,
    Load,
    LocalRead,
    LoopProgram,
    SetLocal,
    Stmt,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import map_stmts
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.passes.loops.cse import eliminate_common_subexpressions
from ocannl_core.passes.loops.fma_contraction import contract_to_fma
from ocannl_core.passes.loops.licm import hoist_invariants
from ocannl_core.passes.loops.simplify import simplify
from ocannl_core.testing import group_programs, number_programs, programs
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.primitive_tables import primitives
from ocannl_core.testing.programs import Example, RunningSum
from ocannl_core.testing.strategies import random_programs
from tests.support.blocks import random_block_programs
from tests.support.chains import chain_programs
from tests.support.loop_programs import loop_programs
from tests.support.products import random_products
from tests.support.reductions import random_reductions
from tests.support.rows import random_row_programs

RUNNING_SUM = RunningSum()

EVERYTHING = """\
routine demo(a: float32[10, 3], a1: float32[4], c: float32[4], s: float32[], w: uint4x32[], k: int32[5], static step < 10, static n):
    # first
    # 
    # third
    routine t: float32[5]
    t[:] = 0.1
    s[:] = -inf
    for i in parallel(4):
        c[i] += where(int32(i) <= 2, a2, -1.0)
            where a2: float32
                a2 = 0.0
                for j in range(3):
                    a2 += a[i, j]
                a2 *= v
                    where v: float32
                        v = 2.0
    for i in range(1, 4) untraced:
        c[-i + 4] = a1[i] streamed
        c[2*i - 1] max= float32(i + 2*n - 4)
    block:
        v: float32
        v = -s.merge - (-s) ** 2.0
    s = float32(2.5:float16) + float32(3)
    s = gather(a[step, s]) - gather(a[s * gather(a[0, s]), n])
    s = gather(a[k[0], 1], nan) + gather(c[s], -0.0)
    check k in range(10) for axis 0 of a
    for i in range(5):
        scatter(a[k[i], n]) += s
        scatter(c[s - v]) = gather(c[s]) * v
            where v: float32
                v = 3.0
            where v: float32
                v = 3.0
    c[0]...4 = lanes(w)
    w = threefry4x32(0x2a, word(7:int64))
    s = bitcast(7:int32)
    for i in grid(2):
        for j in block(2):
            barrier()
    prefetch c[9]
    prefetch s
    c = call sort(a, s)
    verbatim c:
        | c[0] = 1;
        | 
        c[:] = 1.0
    for i in range(2):
        pass\
"""  # noqa: W291


def test_every_statement_is_read_back() -> None:
    assert to_text(parse(EVERYTHING)) == EVERYTHING


def test_a_text_may_be_indented_as_a_whole() -> None:
    lines = EVERYTHING.split("\n")
    assert to_text(parse("\n".join(["", *(f"  {line}" for line in lines), ""]))) == EVERYTHING


HAND_MADE = [
    *programs.HAND_MADE,
    *group_programs.WITH_BARRIERS,
    programs.external_call,
    programs.guarded_load,
    programs.awkward_names,
    number_programs.threefry,
    number_programs.fused_multiply_add,
    number_programs.rounds_each_operation,
]


@pytest.mark.parametrize("make", HAND_MADE, ids=lambda make: make.__name__)
def test_programs_made_by_hand_are_read_back(make) -> None:
    check(make().program)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_primitive_is_read_back(dtype: dtypes.DType) -> None:
    check(number_programs.every_primitive(dtype, primitives(dtype))[0])


EVERY_PROGRAM = st.one_of(
    random_programs(),
    random_programs(dtypes=(dtypes.float16, dtypes.bfloat16, dtypes.int64, dtypes.uint8)),
    loop_programs(),
    chain_programs(),
    random_block_programs(),
    random_row_programs(),
    random_products(),
    random_reductions(),
)


@given(EVERY_PROGRAM)
def test_every_program_is_read_back(example: Example) -> None:
    check(example.program)


@given(st.one_of(loop_programs(), chain_programs()))
def test_every_optimized_program_is_read_back(example: Example) -> None:
    program = example.program
    for transform in (simplify, eliminate_common_subexpressions, hoist_invariants, contract_to_fma):
        program = transform(program)
        check(program)


def check(program: LoopProgram) -> None:
    """Check that the parsed text of a program prints alike and is the same code."""
    text = to_text(program)
    parsed = parse(text, {RUNNING_SUM.name: RUNNING_SUM})
    assert to_text(parsed) == text
    verify(parsed)
    assert structure(parsed) == structure(program)


def structure(program: LoopProgram) -> Hashable:
    """Return the structure of a program, its nodes and static indices numbered in their order."""
    numbers: dict[Hashable, int] = {}

    def numbered(part: Hashable) -> Hashable:
        match part:
            case tuple():
                return tuple([numbered(each) for each in part])
            case TensorNode() | StaticIndex():
                return numbers.setdefault(part, len(numbers))
            case _:
                return part

    def plain(stmt: Stmt) -> Stmt:
        match stmt:
            case Store(node, indices, Binary(BinaryOp.SECOND, Load() as own, value), streamed):
                is_own = (own.node, own.indices) == (node, indices)
                return Store(node, indices, value, streamed) if is_own else stmt
            case SetLocal(local, Binary(BinaryOp.SECOND, LocalRead(own), value)) if own is local:
                return SetLocal(local, value)
            case CallExternal(_, inputs, outputs):
                return CallExternal(RUNNING_SUM, inputs, outputs)
            case _:
                return stmt

    return numbered(alpha_key(map_stmts(program.body, plain)))


def value_of(text: str) -> Expr:
    """Return the value that a routine stores to a scalar."""
    program = parse(
        f"routine r(s: float32[], a: float32[4], n: int32[4], h: float16[]):\n    s = {text}"
    )
    (store,) = program.body.stmts
    assert isinstance(store, Store)
    assert to_text(program).endswith(f"s = {text}")
    return store.value


def test_constants_have_the_format_of_their_context() -> None:
    assert value_of("2.0") == Const(2.0, float32)
    match value_of("float32(n[0] + 2)"):
        case Unary(UnaryOp.IDENTITY, Binary(_, _, two)):
            assert two == Const(2, dtypes.int32)
    match value_of("float32(h + 0.5)"):
        case Unary(UnaryOp.IDENTITY, Binary(_, _, half)):
            assert half == Const(0.5, dtypes.float16)


@pytest.mark.parametrize(
    ("condition", "dtype"),
    [
        ("n[0] < 3", dtypes.int32),
        ("(n[0] < 3):float16", dtypes.float16),
        ("3:int64 == 4", dtypes.int64),
        ("h + 1.0 <= 2.0 && 0.0 < h", dtypes.float16),
    ],
)
def test_a_free_operand_has_the_first_format_stated_in_it(
    condition: str, dtype: dtypes.DType
) -> None:
    match value_of(f"where({condition}, a[0], 1.0)"):
        case Ternary(_, first):
            assert first.dtype is dtype


def test_a_comparison_has_the_format_of_its_context() -> None:
    assert value_of("n[0] < 3").dtype is float32


def test_a_negated_constant_is_no_negative_constant() -> None:
    assert value_of("-1.0") == Const(-1.0, float32)
    assert value_of("-(1.0)") == Unary(UnaryOp.NEG, Const(1.0, float32), float32)


def test_names_of_arrays_may_be_words_of_the_notation() -> None:
    text = """\
routine words(streamed: float32[], kernel: float32[], where: float32[2], lambda: float32[], call: float32[]):
    kernel = call + streamed
    kernel = lambda streamed
    for in in range(2):
        where[in] = where(kernel, where[in], call) streamed"""
    assert to_text(parse(text)) == text


def test_an_external_operation_that_is_not_passed_cannot_be_performed() -> None:
    program = parse("routine r(s: float32[]):\n    s = call sort(s)")
    (call,) = program.body.stmts
    assert isinstance(call, CallExternal)
    with pytest.raises(UsageError, match="a call of sort"):
        call.op.perform([], [])


def complaint(*lines: str) -> str:
    text = "\n".join(["routine r(s: float32[], a: float32[4], n: int32[4]):", *lines])
    with pytest.raises(ParseError) as error:
        parse(text)
    return str(error.value)


def test_an_error_states_the_line() -> None:
    assert complaint("    for i in range(4):", "        a[i] = a[j] + 1.0") == snapshot("""\
A program's text follows the notation of the loop language.
  found  `j`, which is no sum of multiples of indices
  where  line 3: a[i] = a[j] + 1.0
  try    compare with the notation in docs/reference/printing.md\
""")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("    s = a[0] + n[0]", snapshot("an operand of the format int32 instead of float32")),
        (
            "    s = float32(1 == 2)",
            snapshot("`1 == 2`, whose number format does not follow from the context"),
        ),
        ("    s = a[0] < a[1] < a[2]", snapshot("`a[0] < a[1] < a[2]`, which needs parentheses")),
        (
            "    s = foo(a[0])",
            snapshot("`foo(a[0])`, which is no call of a format, gather or a primitive"),
        ),
        ("    s = max(a[0])", snapshot("max of 1 operands")),
        ("    s = (a[0]", snapshot("`(a[0]`, which is no expression")),
        ("    s = a[0])", snapshot("`a[0])`, which is no expression")),
        ("    s = 0x2a", snapshot("`0x2a` where float32 is needed")),
        ("    n[0] = 1.5", snapshot("`1.5` where int32 is needed")),
        ("    s = gather(a[0])", snapshot("`a[0]` without exactly one computed position")),
        ("    s = gather(a[s, s])", snapshot("`a[s, s]` without exactly one computed position")),
        ("    scatter(a[0]) = 1.0", snapshot("`a[0]` without exactly one computed position")),
        ("    check b in range(3) for axis 0", snapshot("`b`, which names no TensorNode")),
        ("    b = 1.0", snapshot("`b`, which names no TensorNode")),
        ("    b[:] = 1.0", snapshot("`b`, which names no TensorNode")),
        ("    s += ", snapshot("no statement")),
        ("    s: float32", snapshot("`s` for a second time")),
        ("    v: float33", snapshot("`float33` instead of a number format")),
        ("    kernel a: float32[5]", snapshot("`a` with another format or extents")),
        ("    s = call sort(b)", snapshot("`b`, which names no TensorNode")),
        (
            "    for i in row(3):",
            snapshot(
                "`row` instead of a kind of loop: range, parallel, vector, unrolled, dot, tile, copy, reduction, grid, block"
            ),
        ),
        ("    for s in range(3):", snapshot("`s` for a second time")),
        ("      s = 1.0", snapshot("an indentation by 6 spaces")),
        ("s = 1.0", snapshot("a line that is not indented")),
        ("    s = 1.0 ; 2", snapshot("`1.0 ; 2`, which is no expression")),
        ("    s = 1.0 $", snapshot("`1.0 $`, which is no expression")),
    ],
)
def test_errors(line: str, found: str) -> None:
    _, first, where, _ = complaint(line).splitlines()
    assert first.removeprefix("  found  ") == found
    assert where.startswith("  where  line 2: ")


def test_expressions_that_are_nested_too_deep_are_refused() -> None:
    assert "which is no expression" in complaint(f"    s = {'exp(' * 3000}s{')' * 3000}")
    assert "nested too deep" in complaint(f"    s = {'s + ' * 3000}s")


def test_a_text_without_a_routine_is_refused() -> None:
    for text in ("", "s = 1.0"):
        with pytest.raises(ParseError, match="routine"):
            parse(text)


def test_an_index_among_numbers_is_refused() -> None:
    found = complaint("    for i in range(4):", "        s = i")
    assert "`int64(i)`" in found
