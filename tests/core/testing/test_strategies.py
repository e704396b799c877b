"""Random programs are well-formed, and reach the constructs that backends get wrong."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ocannl_core.ir.loops.nodes import (
    Allocate,
    Binary,
    Block,
    For,
    Gather,
    IndexValue,
    Load,
    LocalRead,
    LoopProgram,
    Scoped,
    Store,
    Ternary,
)
from ocannl_core.ir.loops.traverse import walk, writes
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp
from ocannl_core.testing import group_programs, number_programs, programs
from ocannl_core.testing.primitive_tables import exact_primitives, primitives, special_values
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import INDEPENDENT_KINDS, random_programs
from tests.support.example_count import example_count
from tests.support.loop_programs import loop_programs

NUMBERS = tuple(dtype for dtype in dtypes.ALL if dtype is not dtypes.uint4x32)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(random_programs(NUMBERS), loop_programs(NUMBERS)))
def test_random_programs_keep_the_invariants_of_the_language(example: Example) -> None:
    verify(example.program)
    assert set(example.arrays) <= set(example.program.params)
    for node, array in example.arrays.items():
        assert array.shape == example.program.nodes[node].buffer_dims
        assert array.dtype == example.program.nodes[node].dtype.numpy
    for index, value in zip(example.program.indices, example.indices, strict=True):
        assert index.extent is not None
        assert 0 <= value < index.extent


def test_random_programs_reach_every_kind_of_loop_and_nested_values() -> None:
    reached: set[object] = set()

    @settings(
        max_examples=example_count(60),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(random_programs())
    def collect(example: Example) -> None:
        for node in walk(example.program.body):
            reached.update({type(node), node.kind} if isinstance(node, For) else {type(node)})

    collect()
    assert {*INDEPENDENT_KINDS, Allocate, Gather, Scoped, LocalRead, IndexValue} <= reached


def test_programs_for_passes_overwrite_nodes_and_repeat_expressions() -> None:
    reached: set[str] = set()

    @settings(
        max_examples=400,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(loop_programs())
    def collect(example: Example) -> None:
        body = example.program.body
        writers = [node for stmt in body.stmts for node in writes(stmt)]
        if len(writers) > len(set(writers)):
            reached.add("several writers")
        if any(info.padding for info in example.program.nodes.values()):
            reached.add("margins")
        for node in walk(body):
            match node:
                case Store(target, cell, value):
                    own = [e for e in walk(value) if isinstance(e, Load) and e.node is target]
                    reached.update("in place" if e.indices == cell else "recurrence" for e in own)
                case Ternary(TernaryOp.WHERE, Binary(BinaryOp.AND), Load()):
                    reached.add("guard")
                case Ternary(TernaryOp.WHERE, Binary(BinaryOp.EQ), Load()):
                    reached.add("selection")
                case Block(stmts):
                    values = [s.value for s in stmts if isinstance(s, Store)]
                    if len(values) > 1 and any(isinstance(v, Scoped) for v in values):
                        reached.add("siblings with inlined computations")

    collect()
    assert reached >= {
        "several writers",
        "margins",
        "in place",
        "recurrence",
        "guard",
        "selection",
        "siblings with inlined computations",
    }


def test_hand_made_programs_keep_the_invariants_of_the_language() -> None:
    made: list[LoopProgram] = [make().program for make in programs.HAND_MADE]
    made += [make().program for make in group_programs.WITH_BARRIERS]
    made += [programs.external_call().program, programs.guarded_load().program]
    made += [programs.awkward_names().program, programs.row_of()[0]]
    made += [number_programs.threefry().program, number_programs.fused_multiply_add().program]
    made += [number_programs.rounds_each_operation().program]
    for dtype in dtypes.ALL:
        made.append(number_programs.every_primitive(dtype, primitives(dtype))[0])
    for program in made:
        verify(program)


def test_telling_values_are_numbers_of_their_format() -> None:
    for dtype in NUMBERS:
        values = special_values(dtype)
        assert len({repr(value) for value in values}) == len(values)
        for value in values:
            assert repr(dtypes.round_to(value, dtype)) == repr(value)


def test_exact_primitives_are_fewer_only_for_floats() -> None:
    for dtype in dtypes.ALL:
        exact = exact_primitives(dtype)
        assert set(exact) <= set(primitives(dtype))
        assert (len(primitives(dtype)) > len(exact)) == dtype.is_float
