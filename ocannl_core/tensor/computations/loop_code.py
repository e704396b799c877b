"""Code of loops inside a computation.

A loop becomes a repetition of the code of one step; its gradient becomes a reversed one, whose
steps compute what the gradient code reads, or load what the forward steps have kept of it:

    c = initial                                 d = gradient of final
    repeat t in range(count):                   repeat t in range(count) reversed:
        before = c                                  before = kept[t]
        after, item = body(before, xs[t])           the body again, as far as it is not kept
        stacked[t] = item                           gradient of item += gradient of stacked[t]
        c = after                                   gradient of after += d
        kept[t] = before                            backpropagation through the body
    final = c                                       d = gradient of before
                                                gradient of initial += d

`operations/loop_gradients.py` makes expressions of the same gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir import indexing
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    NodeOperand,
    RepeatedAssignments,
)
from ocannl_core.ir.assignments.traverse import (
    Leaf,
    leaves,
    map_leaves,
    reads,
    rename_nodes,
    substitute_indices,
    targets,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.computations.external_calls import with_siblings
from ocannl_core.tensor.computations.step_stacks import SunkSums, copy_cells, sink_sums, stacked
from ocannl_core.tensor.graph.definitions import Loop, ResultOf, ResultOfLoop
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.tensor.computations.resolve import AssignmentEmitter


@dataclass(slots=True)
class _ForwardLoop:
    """The forward code of a loop since it was emitted: the nodes of its repetition, and the kept
    values of all steps, by nodes of a step.
    """

    index: indexing.StaticIndex
    count: int
    names: Mapping[TensorNode, TensorNode]
    since: int
    kept: dict[TensorNode, TensorNode] = field(default_factory=dict)


class LoopCode:
    """Emitter of loops, for one computation.

    Beside the carries, it keeps values of steps for gradients in `room` bytes; None is no limit.
    """

    def __init__(self, emitter: AssignmentEmitter, room: int | None) -> None:
        self._emitter = emitter
        self._room = room
        self.kept_bytes = 0
        """The bytes of the values kept for gradients, beside the carries."""
        self._emitted: dict[Loop, _ForwardLoop] = {}
        self.graph: set[Tensor] = set()
        """The tensors of the current backpropagation."""
        self._stores: dict[indexing.StaticIndex, list[Assignment]] = {}
        """The stores of kept values, by the repetition whose steps make them."""

    def with_kept_values(self, body: Iterable[Assignment]) -> Iterator[Assignment]:
        """Yield assignments with the stores of the values that gradients read later."""

        def stored(leaf: Leaf) -> tuple[Leaf]:
            if not isinstance(leaf, RepeatedAssignments):
                return (leaf,)
            inside = tuple(map_leaves(leaf.body, stored))
            return (replace(leaf, body=(*inside, *self._stores.pop(leaf.index, ()))),)

        return map_leaves(body, stored) if self._stores else iter(body)

    def forward(self, loop: Loop) -> None:
        """Emit a loop, unless its results are up to date."""
        before = self._emitted.get(loop)
        if before is None or self._emitter.last_change(loop.inputs) > before.since:
            self._emitted[loop] = self._forward(loop)

    def _forward(self, loop: Loop) -> _ForwardLoop:
        emitter, count = self._emitter, steps_of(loop)
        check_formats(loop)
        for initial, final in zip(loop.initial, loop.final, strict=True):
            self._assign(emitter.node_of(final), final.shape, initial, loop.origin)
        outside = self._outside(loop)
        with_step = _Step(self, loop)
        for before, final in zip(loop.before, loop.final, strict=True):
            start = NodeOperand(emitter.node_of(final))
            emitter.emit(
                copy_cells(emitter.node_of(before), start, _info(before), origin=loop.origin)
            )
        self._body(loop)
        position = (indexing.VarIndex(loop.index),)
        for item, stack in zip(loop.items, loop.stacked, strict=True):
            emitter.constant_result(item)
            source, cells = emitter.operand(item), _info(item)
            target = emitter.node_of(stack)
            emitter.emit(
                copy_cells(target, source, cells, count, target_at=position, origin=loop.origin)
            )
        for after, final in zip(loop.after, loop.final, strict=True):
            self._assign(emitter.node_of(final), final.shape, after, loop.origin)
        index, names = with_step.finish(outside, count, loop.is_reversed)
        for result in loop.results:
            emitter.embedded.add(emitter.node_of(result))
            emitter.changed(result)
        return _ForwardLoop(index, count, names, emitter.last_change(loop.results))

    def _body(self, loop: Loop) -> None:
        """Emit the tensors of a step."""
        emitter = self._emitter
        for tensor in loop.body:
            match tensor.definition:
                case ResultOfLoop(inner):
                    self.forward(inner)
                case ResultOf(application):
                    emitter.calls.forward(application)
                case _:
                    emitter.forward(tensor, anew=True)

    def _outside(self, loop: Loop) -> list[TensorNode]:
        """Return the nodes from outside that a step accesses."""
        around = (*loop.inputs, *loop.results)
        grads = [each.grad for each in around if each.grad is not None]
        return [self._emitter.calls.node_of(each) for each in (*around, *grads)]

    def backpropagate(self, loop: Loop, result: Tensor) -> None:
        """Emit the contributions of the results' gradients to the inputs' gradients."""
        differentiated = {each for each in loop.results if each.grad is not None}
        if loop in self._emitter.passed or not loop.is_oldest(result, self.graph & differentiated):
            return
        self._emitter.passed.add(loop)
        for result in loop.results:
            if result.grad is not None:
                self._emitter.gradients.pass_on(result.grad, result.origin)
        if loop not in self._emitted:
            self._emitted[loop] = self._forward(loop)
        self._backward(loop, self._emitted[loop])

    def _backward(self, loop: Loop, forward: _ForwardLoop) -> None:
        emitter = self._emitter
        pairs = zip(loop.initial, loop.before, loop.after, loop.final, strict=True)
        carried = [
            (initial, before, after, _carried(before), final.grad)
            for initial, before, after, final in pairs
            if before.grad is not None and final.grad is not None
        ]
        for _, before, _, node, gradient in carried:
            emitter.nodes[node] = cells = _info(before)
            source = NodeOperand(emitter.node_of(gradient))
            emitter.emit(copy_cells(node, source, cells, origin=loop.origin))
        outside = [*(node for *_, node, _ in carried), *self._outside(loop)]
        with_step = _Step(self, loop)
        self._body(loop)
        recomputed, emitter.body = emitter.body, []
        for tensor in (*loop.before, *with_siblings(loop.body)):
            if tensor.grad is not None:
                emitter.fetch_zero(tensor.grad)
        position = (indexing.VarIndex(loop.index),)
        for item, stack in zip(loop.items, loop.stacked, strict=True):
            if item.grad is not None and stack.grad is not None:
                source = NodeOperand(emitter.node_of(stack.grad))
                target, cells, add = emitter.node_of(item.grad), _info(item), BinaryOp.ADD
                emitter.emit(
                    copy_cells(
                        target, source, cells, forward.count, source_at=position, combine=add
                    )
                )
                emitter.changed(item.grad)
        for _, _, after, node, _ in carried:
            self._add(after, node, after.shape)
        self.graph.update(loop.body)
        for tensor in reversed(loop.body):
            emitter.backpropagate(tensor)
        for _, before, _, node, _ in carried:
            assert before.grad is not None
            source = NodeOperand(emitter.node_of(before.grad))
            emitter.emit(copy_cells(node, source, _info(before), origin=loop.origin))
        # the loops inside keep values for their gradients, which are complete here
        recomputed = list(self.with_kept_values(recomputed))
        emitter.body[:0] = self._without_kept(loop, forward, recomputed, emitter.body)
        sums = self._sink_sums(loop, forward.count, outside)
        with_step.finish([*outside, *sums.stacks], forward.count, not loop.is_reversed)
        for behind in sums.behind:
            emitter.emit(behind)
        for initial, before, _, node, _ in carried:
            self._add(initial, node, before.shape)

    def _sink_sums(self, loop: Loop, count: int, shared: Iterable[TensorNode]) -> SunkSums:
        """Take the sums over steps out of the code of a step where that accesses less memory."""
        emitter = self._emitter
        if loop.keep == "carry" or count < 2:
            return SunkSums(emitter.body, [], {})
        room = self._room
        sums = sink_sums(emitter.body, loop.index, count, emitter.nodes, frozenset(shared), room)
        emitter.body = sums.body
        emitter.nodes.update(sums.stacks)
        emitter.embedded.update(sums.stacks)
        self.kept_bytes += sums.nbytes
        self._room = None if room is None else room - sums.nbytes
        return sums

    def _without_kept(
        self,
        loop: Loop,
        forward: _ForwardLoop,
        recomputed: Sequence[Assignment],
        gradient: Sequence[Assignment],
    ) -> list[Assignment]:
        """Return loads of kept values, and the code of a step that computes other needed values."""
        own = {node for each in leaves(recomputed) for node in targets(each)}
        own.update(map(self._emitter.node_of, loop.before))
        needed = {node for each in leaves(gradient) for node in reads(each) if node in own}

        def reading(keeps: AbstractSet[TensorNode]) -> tuple[list[Assignment], set[TensorNode]]:
            """Return the code to run again, last first, and the nodes that are read."""
            wanted, again = set(needed), list[Assignment]()
            for each in reversed(list(leaves(recomputed))):
                if any(node in wanted and node not in keeps for node in targets(each)):
                    again.append(each)
                    wanted.update(node for node in reads(each) if node in own)
            return again, wanted

        operations = self._operations_per_byte(recomputed)
        keeps = self._kept_nodes(loop, forward, operations)
        code, wanted = reading(keeps)
        always = set(map(self._emitter.node_of, loop.before))
        chosen = [node for node in wanted & keeps if node not in always]
        if self._room is not None:
            keeps = always | self._within(self._room, chosen, operations, forward)
            code, wanted = reading(keeps)
        infos = self._emitter.nodes
        kept = forward.count * sum(infos[node].nbytes for node in chosen if node in keeps)
        self.kept_bytes += kept
        self._room = None if self._room is None else self._room - kept
        position = (indexing.VarIndex(loop.index),)
        loads: list[Assignment] = []
        for node in sorted(wanted & keeps, key=lambda n: n.id):
            cells, count = self._emitter.nodes[node], forward.count
            source = NodeOperand(self._keep(node, forward))
            loads.append(
                copy_cells(node, source, cells, count, source_at=position, origin=loop.origin)
            )
        return [*loads, *reversed(code)]

    def _operations_per_byte(self, recomputed: Sequence[Assignment]) -> dict[TensorNode, float]:
        """Return the operations that accumulate each node, for each byte of it."""
        found: dict[TensorNode, float] = {}
        for each in leaves(recomputed):
            if isinstance(each, Accumulate):
                operations = prod(n for _, n in each.projections.domain)
                nbytes = max(self._emitter.nodes[each.target].nbytes, 1)
                found[each.target] = found.get(each.target, 0) + operations / nbytes
        return found

    def _within(
        self,
        room: int,
        nodes: Sequence[TensorNode],
        operations: Mapping[TensorNode, float],
        forward: _ForwardLoop,
    ) -> set[TensorNode]:
        """Return the nodes to keep within some bytes: those with the most operations per byte."""
        infos = self._emitter.nodes
        found: set[TensorNode] = set()
        for node in sorted(nodes, key=lambda n: (-operations.get(n, 0), n.id)):
            nbytes = forward.count * infos[node].nbytes
            if nbytes <= room:
                found.add(node)
                room -= nbytes
        return found

    def _is_recomputed(self, node: TensorNode, operations: Mapping[TensorNode, float]) -> bool:
        """Return True for a matrix such as the scores of attention: one beyond the caches, which
        takes no longer to compute again than to keep and to load.
        """
        from ocannl_core.schedule import machine_model
        from ocannl_core.schedule.cost_model import is_faster_to_recompute

        accesses, rate = machine_model.KEPT_ACCESSES, machine_model.VECTOR_PRODUCTS_PER_BYTE
        is_large = self._emitter.nodes[node].nbytes >= machine_model.LARGE_BYTES
        return is_large and is_faster_to_recompute(operations.get(node, 0), accesses, rate)

    def _kept_nodes(
        self, loop: Loop, forward: _ForwardLoop, operations: Mapping[TensorNode, float]
    ) -> set[TensorNode]:
        """Return the nodes of a step whose values the forward steps keep if they are needed."""
        found = set(map(self._emitter.node_of, loop.before))
        for node in map(self._emitter.node_of, loop.kept_values):
            is_recomputed = loop.keep == "reductions" and self._is_recomputed(node, operations)
            if node in forward.names and not is_recomputed:
                found.add(node)
        return found

    def _keep(self, node: TensorNode, forward: _ForwardLoop) -> TensorNode:
        """Return the node with the values of all forward steps of a node of a step."""
        emitter = self._emitter
        if node not in forward.kept:
            info = emitter.nodes[node]
            stack = TensorNode(node.id, (*node.label, "steps"))
            emitter.nodes[stack] = stacked(info, forward.count)
            emitter.embedded.add(stack)
            forward.kept[node] = stack
            position, source = (indexing.VarIndex(forward.index),), NodeOperand(forward.names[node])
            store = copy_cells(stack, source, info, forward.count, target_at=position)
            self._stores.setdefault(forward.index, []).append(store)
        return forward.kept[node]

    def _assign(self, target: TensorNode, shape: Shape, value: Tensor, origin: Origin) -> None:
        """Emit the assignment of a value, broadcast to the shape of the target."""
        found = project(Pointwise(), shape, [value.shape], origin)
        self._emitter.copy(target, self._emitter.operand(value), found, origin)

    def _add(self, tensor: Tensor, value: TensorNode, shape: Shape) -> None:
        """Emit the addition of a value to the gradient of a tensor, if it has one."""
        if tensor.grad is not None:
            self._emitter.add_gradient(tensor.grad, NodeOperand(value), shape)


class _Step:
    """The code of one step while it is emitted, apart from the assignments around the loop."""

    def __init__(self, code: LoopCode, loop: Loop) -> None:
        self._code = code
        self._loop = loop
        self._emitter = code._emitter
        self._around = self._emitter.body
        self._emitter.body = []
        self._forget()

    def finish(
        self, outside: Iterable[TensorNode], count: int, is_reversed: bool
    ) -> tuple[indexing.StaticIndex, Mapping[TensorNode, TensorNode]]:
        """Emit the repetition of the step; return its index, and its names for nodes of the step.

        Every repetition has nodes of its own: the nodes of a step have no value outside.
        """
        emitter, loop = self._emitter, self._loop
        index = indexing.StaticIndex(loop.index.name, count)
        shared = frozenset(outside)
        written = dict.fromkeys(n for each in leaves(emitter.body) for n in targets(each))
        names: dict[TensorNode, TensorNode] = {}
        for node in written:
            if node not in shared:
                value = node.gradient_of
                of = None if value is None else names.get(value, value)
                names[node] = TensorNode(node.id, node.label, of)
                emitter.nodes[names[node]] = emitter.nodes.pop(node)
                emitter.embedded.discard(node)
                emitter.embedded.add(names[node])
                if (tensor := emitter.tensors.pop(node, None)) is not None:
                    emitter.step_tensors[names[node]] = tensor
                elif node in emitter.step_tensors:  # a loop inside of the step
                    emitter.step_tensors[names[node]] = emitter.step_tensors.pop(node)
        values: dict[indexing.IndexVar, indexing.AxisIndex] = {loop.index: indexing.VarIndex(index)}

        def placed(leaf: Leaf) -> tuple[Leaf]:
            found = rename_nodes(leaf, lambda node: names.get(node, node))
            return (substitute_indices(found, values),)

        body = tuple(map_leaves(emitter.body, placed))
        emitter.body = self._around
        private = frozenset(names.values())
        emitter.body.append(
            RepeatedAssignments(index, count, is_reversed, body, private, loop.origin)
        )
        self._forget()
        return index, names

    def _forget(self) -> None:
        """Emit loops and calls of the body again at their next use."""
        for tensor in self._loop.body:
            match tensor.definition:
                case ResultOfLoop(inner):
                    self._code._emitted.pop(inner, None)
                    self._emitter.passed.discard(inner)
                case ResultOf(application):
                    self._emitter.calls.forget(application)


def steps_of(loop: Loop) -> int:
    """Return the number of steps of a loop; shapes are closed."""
    if loop.length is not None:
        return loop.length
    shape = loop.over[0].shape
    if shape.extents and shape.extents[0] is not None:
        raise ShapeError(
            "The number of steps of a loop is constant: the code of its gradient keeps values of "
            "all steps.",
            found=f"the time axis of xs has the extent {shape.extents[0]}, given at each call",
            where=str(loop.origin),
            fix="give the time axis a constant size, and mask the steps beyond the extent",
        )
    return shape.dims[0]


def changed_carries(loop: Loop) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the carries that a step returns in another number format than it receives them."""
    for before, after in zip(loop.before, loop.after, strict=True):
        if before.dtype is not after.dtype and after.free_number is None:
            yield before, after


def check_formats(loop: Loop) -> None:
    """Raise UsageError if a step changes the number format of a carry."""
    for before, after in changed_carries(loop):
        raise UsageError(
            "The carry of a loop has one number format for all steps.",
            found=f"{before.label[0]} in {before.dtype}, and {after!r} in {after.dtype} after a "
            "step",
            where=f"{after.origin}\n{loop.origin}",
            fix=f'convert the new value, oc.cast(x, "{before.dtype}"), or begin with a carry in '
            f"{after.dtype}",
        )


def _carried(before: Tensor) -> TensorNode:
    """Return a node for the gradient of a carry, between the steps."""
    return TensorNode(before.id, (*before.label, "carried", "grad"))


def _info(tensor: Tensor) -> NodeInfo:
    return NodeInfo(tensor.dtype, tensor.shape.dims, extents=tensor.shape.extents)
