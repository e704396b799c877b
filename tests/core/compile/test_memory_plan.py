"""The arena of a routine's own nodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.compile.memory_plan import ALIGNMENT, memory_plan
from ocannl_core.ir.indexing import FixedIndex, StaticIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, Plan, RepeatedSteps, Step
from ocannl_core.ir.loops.nodes import Block, CallExternal, Fill, For, Load, Store
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, uint8
from tests.support.external_calls import CopyCall

A, B, C, D = (TensorNode(number, (name,)) for number, name in enumerate("abcd"))


def copy(target: TensorNode, source: TensorNode) -> Kernel:
    var = fresh_var()
    place = (VarIndex(var),)
    body = Block((For(var, 0, 4, Block((Store(target, place, Load(source, place, float32)),))),))
    return Kernel(body, (target, source), ())


def fill(node: TensorNode) -> Kernel:
    return Kernel(Block((Fill(node, 0.0),)), (node,), ())


def plan(steps: tuple[Step, ...], scratch: tuple[TensorNode, ...], cells: int = 1024) -> Plan:
    nodes = {node: NodeInfo(float32, (cells,)) for node in (A, B, C, D)}
    params = tuple(node for node in nodes if node not in scratch)
    return Plan("p", steps, params, scratch, (), nodes)


def test_nodes_that_never_live_together_share_memory() -> None:
    steps = (copy(B, A), copy(C, B), copy(D, C), copy(A, D))
    assert str(memory_plan(plan(steps, (B, C, D)))) == snapshot("""\
memory of its own: 8192 bytes, 12288 without sharing
  b  bytes 0 to 4096     from step 1 to 2
  c  bytes 4096 to 8192  from step 2 to 3
  d  bytes 0 to 4096     from step 3 to 4\
""")


def test_operands_and_results_of_a_step_do_not_overlap() -> None:
    places = memory_plan(plan((copy(B, A), copy(C, B)), (B, C))).places
    assert places[B].end <= places[C].offset or places[C].end <= places[B].offset


def test_external_calls_keep_their_operands_alive() -> None:
    call = HostCall(CallExternal(CopyCall(), (B,), (C,)))
    places = memory_plan(plan((copy(B, A), call, copy(D, C)), (B, C))).places
    assert (places[B].first, places[B].last) == (0, 1)
    assert (places[C].first, places[C].last) == (1, 2)


def test_nodes_that_steps_hand_to_later_iterations_live_as_long_as_the_repetition() -> None:
    t = StaticIndex("t", 3)
    inside = RepeatedSteps(t, 3, False, (copy(C, B), copy(D, C), copy(B, D)), (C, D))
    found = memory_plan(plan((copy(B, A), inside, copy(A, B)), (B,)))
    places = found.places
    assert [(places[node].first, places[node].last) for node in (B, C, D)] == [
        (0, 4),
        (1, 2),
        (2, 3),
    ]
    assert found.nbytes == 3 * 4096


def test_margins_count_and_every_node_is_aligned() -> None:
    nodes = {A: NodeInfo(uint8, (3,), (Margin(1, 1),)), B: NodeInfo(uint8, (1,))}
    both = Kernel(Block((Fill(A, 0.0), Fill(B, 0.0))), (A, B), ())
    found = memory_plan(Plan("p", (both,), (), (A, B), (), nodes))
    assert (found.places[A].nbytes, found.places[B].offset) == (5, ALIGNMENT)
    assert found.nbytes == 2 * ALIGNMENT


def test_a_routine_without_own_nodes_needs_no_memory() -> None:
    found = memory_plan(plan((copy(B, A),), ()))
    assert (found.nbytes, str(found)) == (0, "no memory of its own")


def test_a_node_that_no_step_mentions_takes_no_part_in_errors() -> None:
    assert memory_plan(plan((), (A,))).places[A].nbytes == 4096


@st.composite
def programs(draw: st.DrawFn) -> Plan:
    """Plans with nodes of any size, each used by a few steps."""
    sizes = draw(st.lists(st.integers(0, 400), min_size=1, max_size=12))
    nodes = {TensorNode(n, (f"n{n}",)): NodeInfo(uint8, (size,)) for n, size in enumerate(sizes)}
    mentions = draw(st.lists(st.lists(st.sampled_from(list(nodes)), max_size=4), max_size=10))
    steps = tuple(
        Kernel(
            Block(tuple(Store(node, (FixedIndex(0),), Load(node, (), uint8)) for node in group)),
            tuple(dict.fromkeys(group)),
            (),
        )
        for group in mentions
    )
    return Plan("p", steps, (), tuple(nodes), (), nodes)


@given(programs())
def test_no_two_nodes_that_live_together_overlap(program: Plan) -> None:
    found = memory_plan(program)
    assert set(found.places) == set(program.scratch)
    for position, step in enumerate(program.steps):
        assert isinstance(step, Kernel)
        for node in step.arguments:
            assert found.places[node].first <= position <= found.places[node].last
    placed = list(found.places.items())
    for number, (node, place) in enumerate(placed):
        assert place.offset % ALIGNMENT == 0
        assert place.nbytes == program.nodes[node].nbytes
        assert 0 <= place.offset <= place.end <= found.nbytes <= found.nbytes_unshared
        for _, other in placed[:number]:
            apart = place.end <= other.offset or other.end <= place.offset
            together = place.first <= other.last and other.first <= place.last
            assert apart or 0 in (place.nbytes, other.nbytes) or not together
