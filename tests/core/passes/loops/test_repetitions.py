"""Iterations of repetitions are optimized as programs of their own."""

from __future__ import annotations

from inline_snapshot import snapshot

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import RepeatedSteps
from ocannl_core.ir.loops.nodes import LoopProgram, Repeat
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.usage import usage_of
from ocannl_core.ir.loops.verify import broken_invariants, verify
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.pipeline import core_passes, run_passes
from ocannl_core.passes.loops.repetitions import OptimizedRepetitions, optimize_repetitions
from ocannl_core.testing.parser.loops import parse

RECURRENCE = """\
routine recurrence(x: float32[6, 4], h: float32[4], y: float32[6, 4], z: float32[6, 4], static s < 3):
    for i in range(4):
        h[i] = 0.0
    repeat t in range(6):
        inputs h, x
        outputs y, z, h
        complete y, z, h
        private entry: float32[4]
        private new: float32[4]
        private unused: float32[4]
        for i in range(4):
            entry[i] = x[t, i]
        for i in range(4):
            new[i] = h[i] * 0.5 + entry[i]
        for i in range(4):
            unused[i] = new[i] * 3.0
        for i in range(4):
            z[t, i] = unused[i] + 1.0
        for i in range(4):
            y[t, i] = new[i]
        for i in range(4):
            h[i] = new[i]
    for i in range(4):
        h[i] *= y[s, i]
"""


def node_of(program: LoopProgram, name: str) -> TensorNode:
    return next(node for node in program.nodes if node.name == name)


def repetition_of(program: LoopProgram) -> Repeat:
    (found,) = (stmt for stmt in program.body.stmts if isinstance(stmt, Repeat))
    return found


def optimized(program: LoopProgram, *stored: str) -> OptimizedRepetitions:
    kept = frozenset(node_of(program, name) for name in stored)

    def run(each: LoopProgram, decisions: Decisions) -> LoopProgram:
        return run_passes(each, core_passes(decisions), [lambda _, found: verify(found)])

    found = optimize_repetitions(program, kept, run)
    verify(found.program)
    placement = Placement(MemoryMode.ON_DEVICE, Reason.KEPT)
    decisions = Decisions(dict.fromkeys(kept, placement))
    return replace(found, program=run(found.program, decisions))


def test_private_nodes_are_inlined_and_unread_outputs_removed() -> None:
    program = parse(RECURRENCE)
    verify(program)
    found = optimized(program, "x", "h")
    assert to_text(found.program) == snapshot("""\
routine recurrence(x: float32[6, 4], h: float32[4], static s < 3):
    routine y: float32[6, 4]
    for i in range(4):
        h[i] = 0.0
    repeat t in range(6):
        inputs h, x
        outputs y, h
        complete y, h
        private new: float32[4]
        for i in range(4):
            new[i] = fma(h[i], 0.5, x[t, i])
        for i in range(4):
            y[t, i] = new[i]
        for i in range(4):
            h[i] = new[i]
    for i in range(4):
        h[i] *= y[s, i]\
""")
    reasons = {node.name: placement.reason for node, placement in found.placements.items()}
    assert reasons == snapshot(
        {
            "entry": Reason.INLINED,
            "new": Reason.VISITED_TOO_OFTEN,
            "unused": Reason.NEVER_READ,
            "z": Reason.NEVER_READ,
        }
    )


def test_outputs_that_the_context_keeps_stay() -> None:
    found = optimized(parse(RECURRENCE), "x", "h", "z")
    outputs = repetition_of(found.program).outputs
    assert [node.name for node in outputs] == ["y", "z", "h"]


def test_a_repetition_with_unread_outputs_is_removed() -> None:
    program = parse(RECURRENCE)
    alone = replace(program, body=replace(program.body, stmts=program.body.stmts[1:2]))
    assert optimized(alone, "x").program.body.stmts == ()
    assert isinstance(optimized(alone, "x", "y").program.body.stmts[0], Repeat)


def test_a_repetition_without_iterations_is_removed() -> None:
    program = parse(RECURRENCE)
    stmts = list(program.body.stmts)
    repeat = repetition_of(program)
    index = StaticIndex("t", 0)
    stmts[1] = replace(repeat, index=index, count=0, complete=())
    never = replace(program, body=replace(program.body, stmts=tuple(stmts)))
    found = optimized(never, "x", "h", "y").program
    assert not any(isinstance(stmt, Repeat) for stmt in found.body.stmts)


def test_an_output_of_which_every_cell_is_assigned_needs_no_value_before() -> None:
    program = parse(RECURRENCE)
    usage = usage_of(program)
    assert {node.name for node in usage.reads_first} == {"x"}
    assert {node.name for node in usage.writes} == {"h", "y", "z"}
    partial = parse(RECURRENCE.replace("complete y, z, h", "complete z, h"))
    found = optimized(partial, "x", "h")
    allocated = {node.name for node in found.program.nodes} - {
        node.name for node in found.program.params
    }
    assert "y" not in allocated
    whole = optimized(program, "x", "h").program
    assert "y" not in {node.name for node in whole.params}


def test_limits_of_static_indices_leave_out_those_of_repetitions() -> None:
    program = parse(RECURRENCE)
    terms = [index.name for limit in usage_of(program).limits for _, index in limit.terms]
    assert terms == ["s"]


def test_iterations_become_repeated_steps_with_memory_of_their_own() -> None:
    program = parse(RECURRENCE)
    (repeated,) = (s for s in split_kernels(program).steps if isinstance(s, RepeatedSteps))
    assert [node.name for node in repeated.scratch] == ["entry", "new", "unused"]
    assert len(repeated.steps) == 6
    assert len(split_kernels(program).kernels) == 8


def test_a_repetition_states_all_of_its_accesses() -> None:
    program = parse(RECURRENCE)
    repeat = repetition_of(program)

    def problems(broken: Repeat) -> str:
        stmts = (program.body.stmts[0], broken, *program.body.stmts[2:])
        return "\n".join(
            broken_invariants(replace(program, body=replace(program.body, stmts=stmts)))
        )

    h, x, y = (node_of(program, name) for name in "hxy")
    assert problems(repeat) == ""
    assert "is no input" in problems(replace(repeat, inputs=(h,)))
    assert "is no output" in problems(replace(repeat, outputs=(h, y), complete=()))
    assert "that is no output" in problems(replace(repeat, complete=(x,)))
    assert "runs 7 times" in problems(replace(repeat, count=7))
    assert "in the table of nodes" in problems(
        replace(repeat, private=(*repeat.private, (x, program.nodes[x])))
    )
