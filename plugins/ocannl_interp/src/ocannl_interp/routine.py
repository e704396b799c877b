"""A whole routine on the interpreter: its source, its functions, and its link to memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import assert_never

from ocannl_core.backend_api import (
    Buffer,
    HostCall,
    Kernel,
    Launcher,
    NodeInfo,
    NodeInfos,
    Plan,
    RepeatedSteps,
    Step,
    TensorNode,
    dataclass,
    linked_buffer,
    make_exclusive,
    merge_reads,
    private_nodes,
)
from ocannl_core.backend_api.loops import (
    Allocate,
    Block,
    LoopProgram,
    Repeat,
    Scope,
    Stmt,
    reads,
    to_text,
    writes,
)
from ocannl_interp.interpreter import MergeOf, Translator, repetition
from ocannl_interp.memory import Array, ArrayBuffer, undefined
from ocannl_interp.python_code import Action, Frame

Buffers = Mapping[TensorNode, Buffer]


@dataclass(frozen=True, slots=True)
class LoopSource:
    """A plan as the interpreter's code: its printed form is its source."""

    plan: Plan

    @property
    def language(self) -> str:
        return "loop-ir"

    @property
    def text(self) -> str:
        return to_text(as_program(self.plan))


def as_program(plan: Plan) -> LoopProgram:
    """Return a plan as one loop program: the routine's own memory, then the steps in order."""
    stmts: list[Stmt] = [Allocate(node, Scope.ROUTINE) for node in plan.scratch]
    stmts += _statements(plan.steps, plan.nodes)
    private = set(private_nodes(plan.steps))
    nodes = {node: info for node, info in plan.nodes.items() if node not in private}
    return LoopProgram(plan.name, plan.params, plan.indices, nodes, Block(tuple(stmts)))


def _statements(steps: Sequence[Step], nodes: NodeInfos) -> Iterator[Stmt]:
    for step in steps:
        match step:
            case HostCall(call):
                yield call
            case Kernel(body):
                yield from body.stmts
            case RepeatedSteps(index, count, is_reversed, inside, scratch):
                body = Block(tuple(_statements(inside, nodes)))
                seen = [node for node in reads(body) if node not in scratch]
                written = [node for node in writes(body) if node not in scratch]
                private = tuple((node, nodes[node]) for node in scratch)
                accessed = tuple(seen), tuple(written), ()
                yield Repeat(index, count, is_reversed, body, *accessed, private)
            case _:
                assert_never(step)


class Interpretation:
    """A plan as Python functions, not bound to memory."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._translator = translator = Translator(plan.nodes)
        self._index_slots = [translator.bind(index) for index in plan.indices]
        self._slots = {node: translator.bind(node) for node in (*plan.params, *plan.own_nodes)}
        self._merge_slots = {node: translator.bind(MergeOf(node)) for node in plan.nodes}
        self._actions = [self._action(step) for step in plan.steps]

    def _action(self, step: Step) -> Action:
        match step:
            case Kernel(body, arguments, indices):
                merges = map(MergeOf, merge_reads(body))
                return self._translator.kernel(body, (*arguments, *indices, *merges))
            case HostCall(call):
                return self._translator.kernel(Block((call,)), (*call.inputs, *call.outputs))
            case RepeatedSteps(index, steps=steps, scratch=scratch):
                slot = self._translator.bind(index, step.iterations)
                private = [(self._slots[node], self._plan.nodes[node]) for node in scratch]
                return repetition(slot, step.iterations, private, list(map(self._action, steps)))
            case _:
                assert_never(step)

    def link(self, buffers: Buffers, merge_buffers: Buffers | None = None) -> Launcher:
        """Return a callable that runs the plan over these buffers.

        Args:
            buffers: The memory of every parameter.
            merge_buffers: The merge buffers of the nodes of which the plan reads one.

        Raises:
            LinkError: if a buffer is missing, belongs to another backend, or does not fit its node.
        """
        (launch,) = self.link_parts(buffers, merge_buffers, [len(self._actions)])
        return launch

    def link_parts(
        self, buffers: Buffers, merge_buffers: Buffers | None, ends: Sequence[int]
    ) -> Sequence[Launcher]:
        """Return a callable for each of several parts of the plan, over common memory.

        Args:
            buffers: The memory of every parameter.
            merge_buffers: As for `link`.
            ends: The number of steps of the plan before the end of each part, ascending.

        Raises:
            LinkError: as `link`.
        """
        frame: Frame = [None] * self._translator.frame_size
        for node in self._plan.params:
            frame[self._slots[node]] = _cells(node, self._plan.nodes[node], buffers, "buffer")
        for node in self._translator.merged:
            info = self._plan.nodes[node]
            cells = _cells(node, info, merge_buffers or {}, "merge buffer")
            frame[self._merge_slots[node]] = cells
        running: Frame = frame.copy()

        def part(start: int, end: int) -> Launcher:
            def launch(values: Sequence[int]) -> None:
                if start == 0:
                    running[:] = frame
                    for node in self._plan.scratch:
                        running[self._slots[node]] = undefined(self._plan.nodes[node])
                for slot, value in zip(self._index_slots, values, strict=True):
                    running[slot] = value
                for action in self._actions[start:end]:
                    action(running)
                if end == len(self._actions):
                    running[:] = frame  # the routine's own memory is freed

            return make_exclusive(launch, self._plan.name)

        return [part(start, end) for start, end in pairwise((0, *ends))]


def _cells(node: TensorNode, info: NodeInfo, buffers: Buffers, what: str) -> Array:
    """Return the flat memory of a node."""
    return linked_buffer(buffers, node, info, ArrayBuffer, what).array.reshape(-1)
