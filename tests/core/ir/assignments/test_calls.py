"""Call that destroy or share memory: where they stand, and over which nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from inline_snapshot import snapshot

from ocannl_core.base.errors import OpError
from ocannl_core.ir.assignments.bufferize_calls import bufferize_calls
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    Constant,
    ExternalCall,
    Fetch,
    NodeOperand,
    Section,
)
from ocannl_core.ir.assignments.printer import to_text
from ocannl_core.ir.indexing import LoopVar, Margin, Projections, VarIndex
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp

A, B, C, D, E, P = (TensorNode(n, (name,)) for n, name in enumerate("abcdep"))
I = LoopVar(-1, "i")  # noqa: E741
CELL = (VarIndex(I),)


@dataclass(frozen=True)
class Named:
    name: str
    line_axis: int | None = None

    def perform(self, inputs: Any, outputs: Any) -> None:
        raise AssertionError("nothing runs here")


def call(
    name: str,
    inputs: Iterable[TensorNode],
    targets: Iterable[TensorNode],
    *,
    shared: Mapping[TensorNode, TensorNode] | None = None,
    scratch: Iterable[TensorNode] = (),
    views: Mapping[TensorNode, TensorNode] | None = None,
    has_place: bool = False,
) -> ExternalCall:
    pairs = tuple((shared or {}).items())
    destroyed = (*(source for _, source in pairs), *scratch)
    return ExternalCall(
        Named(name),
        tuple(inputs),
        tuple(targets),
        destroyed,
        pairs,
        tuple((views or {}).items()),
        has_place,
    )


def copy(target: TensorNode, source: TensorNode, combine: BinaryOp = BinaryOp.SECOND) -> Accumulate:
    projections = Projections(((I, 4),), CELL, (CELL,), (4,), ((4,),))
    return Accumulate(target, combine, False, UnaryOp.IDENTITY, (NodeOperand(source),), projections)


def program(
    *body: Assignment,
    results: Iterable[TensorNode] = (),
    infos: Mapping[TensorNode, NodeInfo] | None = None,
) -> AssignProgram:
    nodes = dict.fromkeys((A, B, C, D, E, P), NodeInfo(float32, (4,))) | dict(infos or {})
    return AssignProgram(body, nodes, frozenset({A, B, C, D, E}), results=frozenset(results))


def settled(
    before: AssignProgram,
    persistent: Iterable[TensorNode] = (),
    kept: Mapping[TensorNode, str] | None = None,
) -> list[str]:
    """Return the assignments of a settled program as lines."""
    after = bufferize_calls(before, frozenset(persistent), kept or {})
    lines = [line.strip().partition("   #")[0] for line in to_text(after).splitlines()]
    return [line for line in lines if "=" in line or line.startswith("section")]


def refusal(before: AssignProgram, *arguments: Any) -> str:
    with pytest.raises(OpError) as error:
        bufferize_calls(before, *(arguments or (frozenset(), {})))
    return f"{error.value.rule} {error.value.found}"


FILL = Fetch(A, Constant(1.0))


def test_programs_without_destroyers_keep_their_order_and_their_nodes() -> None:
    before = program(FILL, call("f", [A], [B], views={B: A}), copy(C, B))
    assert bufferize_calls(before, frozenset(), {}).body == before.body


def test_a_destroyer_moves_behind_the_other_readers_and_its_users_move_along() -> None:
    before = program(FILL, call("f", [A], [B], shared={B: A}), copy(C, B), copy(D, A), copy(E, D))
    assert settled(before) == snapshot(
        ["b[:] = 1.0", "d[i] = b[i]", "b[:] = f(b)", "c[i] = b[i]", "e[i] = d[i]"]
    )


def test_a_call_with_a_place_assigns_to_a_stored_node() -> None:
    one = call("f", [P], [B], shared={B: P}, has_place=True)
    other = call("g", [P], [C], shared={C: P}, has_place=True)
    before = program(copy(A, P), one, copy(D, P), other, copy(E, P))
    assert settled(before, [P]) == snapshot(
        ["a[i] = p[i]", "p[:] = f(p)", "d[i] = p[i]", "p[:] = g(p)", "e[i] = p[i]"]
    )
    late = program(one, other, copy(E, B))
    assert refusal(late, frozenset({P}), {}) == snapshot(
        "The output of an update in place is the tensor that was updated. the output of f is read after another assignment to p"
    )


def test_a_section_that_is_interrupted_occurs_twice() -> None:
    inner = (call("f", [A], [B], shared={B: A}), copy(E, P))
    before = program(FILL, Section("one", inner), Section("two", (copy(D, A),)))
    assert settled(before) == snapshot(
        [
            "b[:] = 1.0",
            'section "one":',
            "e[i] = p[i]",
            'section "two":',
            "d[i] = b[i]",
            'section "one":',
            "b[:] = f(b)",
        ]
    )


def test_readers_of_views_and_of_views_of_views_come_first() -> None:
    before = program(
        FILL,
        call("view", [A], [C], views={C: A}),
        call("f", [A], [B], shared={B: A}),
        call("view", [C], [D], views={D: C}),
        copy(E, D),
    )
    assert settled(before) == snapshot(
        ["b[:] = 1.0", "c[:] = view(b)", "d[:] = view(c)", "e[i] = d[i]", "b[:] = f(b)"]
    )


def test_a_reassigned_node_has_a_new_value() -> None:
    before = program(FILL, call("f", [A], [B], scratch=[A]), FILL, copy(C, A))
    assert settled(before) == snapshot(
        ["a[:] = 1.0", "b[:], a[:] = f(a)", "a[:] = 1.0", "c[i] = a[i]"]
    )


def test_an_accumulation_into_a_destroyed_node_is_refused() -> None:
    before = program(FILL, call("f", [A], [B], scratch=[A]), copy(A, P, BinaryOp.ADD))
    assert refusal(before) == snapshot(
        "An operation that destroys an input runs after every other reader of it. f destroys a; an assignment (writes a) reads it, and depends on the result of the former"
    )


def test_memory_that_is_written_while_the_output_is_still_used_is_not_taken_over() -> None:
    before = program(FILL, call("f", [A], [B], shared={B: A}), copy(C, A), FILL, copy(D, B))
    assert settled(before) == snapshot(
        ["a[:] = 1.0", "c[i] = a[i]", "b[:], a[:] = f(a)", "a[:] = 1.0", "d[i] = b[i]"]
    )


def test_updates_of_a_stored_node_share_that_node() -> None:
    before = program(call("f", [P], [B], shared={B: P}), call("g", [B], [C], shared={C: B}))
    assert settled(before, [P], {P: "parameter"}) == snapshot(["p[:] = f(p)", "p[:] = g(p)"])


def test_nodes_of_another_program_are_not_taken_over() -> None:
    before = program(call("f", [P], [B], shared={B: P}))
    assert settled(before) == snapshot(["b[:], p[:] = f(p)"])


def test_nodes_of_different_layout_stay_apart() -> None:
    padded = NodeInfo(float32, (4,), (Margin(1, 1),))
    before = program(FILL, call("f", [A], [B], shared={B: A}), infos={A: padded})
    assert settled(before) == snapshot(
        [
            "a[:] = 1.0",
            "unpadded_a[i] = a[i]",
            "b[:], unpadded_a[:] = f(unpadded_a)",
            "a[i] = unpadded_a[i]",
        ]
    )


def test_calls_work_on_copies_without_margins() -> None:
    padded = NodeInfo(float32, (4,), (Margin(1, 1),))
    before = program(call("f", [P, A], [B], shared={B: P}), infos={P: padded, B: padded, A: padded})
    assert settled(before, [P]) == snapshot(
        [
            "unpadded_p[i] = p[i]",
            "unpadded_a[i] = a[i]",
            "unpadded_p[:] = f(unpadded_p, unpadded_a)",
            "p[i] = unpadded_p[i]",
        ]
    )


def test_a_destroyed_scratch_input_is_removed_from_the_nodes() -> None:
    before = program(FILL, call("f", [A], [B], scratch=[A]))
    after = bufferize_calls(before, frozenset(), {})
    assert A not in after.nodes
    assert [node.label for node in after.nodes] == [("a",), ("b",), ("c",), ("d",), ("e",), ("p",)]


def test_a_node_recomputed_after_it_was_taken_over_keeps_its_identity() -> None:
    taken = call("f", [A], [B], shared={B: A})
    after = bufferize_calls(program(FILL, taken, FILL, results=[A]), frozenset(), {})
    assert after.results == {A}


def test_two_destroyers_of_one_value_conflict_also_through_views() -> None:
    one = call("f", [A], [B], shared={B: A})
    assert refusal(program(FILL, one, call("g", [A], [C], scratch=[A]))) == snapshot(
        "One operation at most destroys a value. f and g both destroy a"
    )
    view = call("view", [A], [D], views={D: A})
    assert refusal(program(FILL, view, one, call("g", [D], [C], scratch=[D]))) == snapshot(
        "One operation at most destroys a value. f and g both destroy d"
    )


def test_two_destroyers_that_read_each_others_operands_conflict() -> None:
    one, other = call("f", [A, B], [C], scratch=[A]), call("g", [B, A], [D], scratch=[B])
    assert refusal(program(FILL, Fetch(B, Constant(2.0)), one, other)) == snapshot(
        "An operation that destroys an input runs after every other reader of it. f destroys a; g reads it, and depends on the result of the former"
    )


def test_a_reader_that_needs_the_destroyer_conflicts_with_it() -> None:
    one = call("f", [A], [B], shared={B: A})
    both = call("g", [B, A], [C])
    assert refusal(program(FILL, one, copy(D, B), both)) == snapshot(
        "An operation that destroys an input runs after every other reader of it. f destroys a; g reads it, and depends on the result of the former"
    )


def test_an_input_beside_the_destroyed_one_is_another_value() -> None:
    assert refusal(program(FILL, call("f", [A, A], [B], scratch=[A]))) == snapshot(
        "An input that an operation destroys is not another of its inputs too. f destroys a and reads it twice"
    )


def test_results_and_inputs_from_the_host_are_not_destroyed() -> None:
    one = call("f", [A], [B], shared={B: A})
    assert refusal(program(FILL, one, results=[A])) == snapshot(
        "A value that an operation destroys is not a result of the computation. f destroys a, which is to be kept"
    )
    kept = {P: "parameter"}
    scratch = call("f", [P], [B], scratch=[P])
    assert refusal(program(scratch), frozenset({P}), kept) == snapshot(
        "A parameter keeps its cells, unless an output takes its memory over. f destroys the parameter p"
    )
    view = call("view", [P], [D], views={D: P})
    update = call("f", [D], [B], shared={B: D})
    assert refusal(program(view, update), frozenset({P}), kept) == snapshot(
        "A parameter keeps its cells, unless an output takes its memory over. f destroys the parameter p through its view d"
    )
