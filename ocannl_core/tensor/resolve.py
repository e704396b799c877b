"""From recorded steps to assignments: shapes are closed, then every step becomes nodes with
concrete index maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, assert_never

from ocannl_core.assign.liveness import overwritten
from ocannl_core.assign.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    Cells,
    Constant,
    Fetch,
    Merge,
    Operand,
    Scalar,
    Section,
    SetVector,
)
from ocannl_core.assign.traverse import leaves, targets
from ocannl_core.dtypes import DType
from ocannl_core.errors import UsageError
from ocannl_core.indexing import (
    ConcatIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Projections,
    VarIndex,
    variables,
)
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, UnaryOp, neutral
from ocannl_core.origin import Origin
from ocannl_core.shape.projections import project
from ocannl_core.tensor.absorb import absorb
from ocannl_core.tensor.calls import Calls, backpropagated
from ocannl_core.tensor.capture import Dimension
from ocannl_core.tensor.index_maps import IndexMaps
from ocannl_core.tensor.margins import margins_of
from ocannl_core.tensor.operation import Code, result_dtype
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.slots import (
    ALL,
    Slot,
    SlotApplication,
    SlotValue,
    accumulation_of,
    as_application,
    as_operand,
    slot_names,
    slot_of,
    value_variables,
)
from ocannl_core.tensor.steps import (
    Argument,
    Assign,
    Backpropagate,
    Forward,
    Step,
    Titled,
    ZeroGradients,
)
from ocannl_core.tensor.tensor import (
    Applied,
    Declared,
    Filled,
    GradientOf,
    Literal,
    MergeBuffer,
    Parameter,
    Placeholder,
    ResultOf,
    Tensor,
    ancestors,
    with_siblings,
)


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """A computation with closed shapes.

    Attributes:
        program: The assignments.
        tensors: The tensors behind the program's nodes.
    """

    program: AssignProgram
    tensors: Mapping[TensorNode, Tensor]


def resolve(
    steps: tuple[Step, ...],
    results: frozenset[Tensor],
    name: str,
    temporaries: frozenset[Tensor],
    declared: frozenset[Tensor],
) -> Resolved:
    """Returns steps as assignments over closed shapes."""
    tensors = mentioned(steps)
    by_session: dict[Session, list[Tensor]] = {}
    for tensor in sorted(tensors, key=lambda t: t.id):
        by_session.setdefault(tensor.session, []).append(tensor)
    if len(by_session) > 1:
        raise UsageError(
            "A computation belongs to one session.", found=f"tensors of {len(by_session)} sessions"
        )
    for session, members in by_session.items():
        captured = [
            tensor.reference
            for tensor in members
            if isinstance(tensor, Dimension) and tensor.is_captured
        ]
        session.environment.close([tensor.terms for tensor in members], captured)
        for tensor in members:
            tensor.settle()
    steps = absorb(steps, temporaries)
    emitter = _Emitter()
    for step in steps:
        emitter.step(step)
    for tensor in results:
        emitter.constant_result(tensor)
    program = AssignProgram(
        tuple(emitter.body),
        emitter.nodes,
        frozenset(emitter.embedded),
        frozenset(emitter.fresh - overwritten(emitter.body, {t.node for t in declared})),
        frozenset(emitter.node_of(tensor) for tensor in results),
        name,
    )
    program = emitter.calls.settled(program)
    return Resolved(program, {n: t for n, t in emitter.tensors.items() if n in program.nodes})


def mentioned(steps: tuple[Step, ...]) -> set[Tensor]:
    """Returns every tensor whose shape the steps need."""
    found: set[Tensor] = set()
    for step in steps:
        match step:
            case Assign(target=target, args=args):
                found.add(target)
                found.update(_tensor_of(arg) for arg in args if not isinstance(arg, float))
            case Forward(tensors):
                found.update(with_siblings(tensors))
            case ZeroGradients(root):
                found.update(with_siblings(ancestors([root])))
            case Backpropagate(root):
                found.update(backpropagated(root))
            case Titled(_, inner):
                found |= mentioned(inner)
            case _:
                assert_never(step)
    return found


def _tensor_of(argument: Tensor | MergeBuffer) -> Tensor:
    return argument.tensor if isinstance(argument, MergeBuffer) else argument


class _Emitter:
    """Accumulates the assignments of one computation."""

    def __init__(self) -> None:
        self.body: list[Assignment] = []
        self.nodes: dict[TensorNode, NodeInfo] = {}
        self.embedded: set[TensorNode] = set()
        self.fresh: set[TensorNode] = set()
        self.tensors: dict[TensorNode, Tensor] = {}
        self._changes: dict[Tensor, int] = {}
        """When each tensor got its value last, counted in changes of any tensor."""
        self._now = 0
        self._passed_on: set[Tensor] = set()  # gradients, since they were set
        self.calls = Calls(self)

    def node_of(self, tensor: Tensor) -> TensorNode:
        """Returns a tensor's node, listed among the program's nodes."""
        node = self.calls.node_of(tensor)
        if node not in self.nodes:
            self.nodes[node] = NodeInfo(tensor.dtype, tensor.shape.dims, tensor.layout.margins)
            self.tensors[node] = tensor
            if isinstance(tensor.definition, Declared):
                self.fresh.add(node)
        return node

    # ----- steps ----------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        match step:
            case Assign():
                self.assign(step)
            case Forward(tensors, is_written_here):
                for tensor in tensors:
                    self.forward(tensor, anew=is_written_here)
            case ZeroGradients(root):
                for tensor in with_siblings(ancestors([root])):
                    if tensor.grad is not None:
                        self.fetch_zero(tensor.grad)
            case Backpropagate(root):
                self.calls.begin_backpropagation()
                for tensor in reversed(ancestors([root])):
                    self.backpropagate(tensor)
            case Titled(title, inner):
                outer, self.body = self.body, []
                for each in inner:
                    self.step(each)
                if self.body:
                    outer.append(Section(title, tuple(self.body)))
                self.body = outer
            case _:
                assert_never(step)

    def assign(self, step: Assign) -> None:
        tensors = [_tensor_of(arg) for arg in step.args if not isinstance(arg, float)]
        if isinstance(step.logic, IndexMaps):
            found = step.logic.projections(
                step.target.shape.dims, [tensor.shape.dims for tensor in tensors], step.origin
            )
        else:
            shapes = [tensor.shape for tensor in tensors]
            found = project(step.logic, step.target.shape, shapes, step.origin)
        check_margins(found, step.target, tensors, step.origin)
        if step.combine is BinaryOp.SECOND:
            _refuse_repeated_writes(found, step.origin)
        maps = iter(zip(found.rhs, found.rhs_dims, _has_margins(found), strict=True))
        operands: list[tuple[Operand, IndexMap, tuple[int, ...]]] = []
        for arg in step.args:
            index, dims, is_padded = ((), (), False) if isinstance(arg, float) else next(maps)
            keeps_format = step.op is UnaryOp.WORD
            operand = self.operand(arg, is_stored=is_padded or keeps_format)
            operands.append(
                (operand, (), ()) if isinstance(operand, Scalar) else (operand, index, dims)
            )
        projections = Projections(
            found.domain,
            found.lhs,
            tuple(index for _, index, _ in operands),
            found.lhs_dims,
            tuple(dims for _, _, dims in operands),
        )
        target = self.node_of(step.target)
        self.body.append(
            Accumulate(
                target,
                step.combine,
                step.reset,
                step.op,
                tuple(operand for operand, _, _ in operands),
                projections,
                step.origin,
            )
        )
        self.embedded.add(target)
        self._changed(step.target)
        if step.reset or step.combine is BinaryOp.SECOND:
            self._passed_on.discard(step.target)

    def _changed(self, tensor: Tensor) -> None:
        self._now += 1
        self._changes[tensor] = self._now

    def _is_stale(self, tensor: Tensor) -> bool:
        """True unless the tensor has been computed here and no operand has changed since.

        A tensor of recorded code keeps the value that it has where it was written.
        """
        if tensor.node not in self.embedded:
            return True
        computed = self._changes.get(tensor, 0)
        return tensor.recording is None and any(
            self._changes.get(operand, 0) > computed for operand in tensor.operands
        )

    def operand(self, argument: Argument, *, is_stored: bool = False) -> Operand:
        """Returns what an assignment reads: cells, a merge buffer, or a number for constants of one
        cell.

        A constant has to be stored where it is read beyond its axis, as it differs there, and where
        its format matters besides its value.
        """
        if isinstance(argument, float):
            return Scalar(argument)
        if isinstance(argument, MergeBuffer):
            return Merge(self.node_of(argument.tensor))
        if is_stored:
            self.constant_result(argument)
            return Cells(self.node_of(argument))
        value = _constant_value(argument)
        return Scalar(value) if value is not None else Cells(self.node_of(argument))

    def forward(self, tensor: Tensor, *, anew: bool = False) -> None:
        """Emits the own code of one tensor: anew, or unless the tensor is up to date."""
        match tensor.definition:
            case Applied():
                if anew or self._is_stale(tensor):
                    _Slots(self, tensor).forward()
                    self.embedded.add(self.node_of(tensor))
                    self._changed(tensor)
            case ResultOf(application):
                self.calls.forward(application)
            case Filled(source):
                if _constant_value(tensor) is None and tensor.node not in self.embedded:
                    node = self.node_of(tensor)
                    self.body.append(Fetch(node, source(), tensor.origin))
                    self.embedded.add(node)
            case Literal() | Parameter() | Placeholder() | Declared() | GradientOf():
                self.node_of(tensor)
            case _:
                assert_never(tensor.definition)

    def constant_result(self, tensor: Tensor) -> None:
        """Stores a constant, once; elsewhere constants are printed as numbers."""
        if isinstance(tensor.definition, Filled) and tensor.node not in self.embedded:
            node = self.node_of(tensor)
            self.body.append(Fetch(node, tensor.definition.source(), tensor.origin))
            self.embedded.add(node)

    def fetch_zero(self, gradient: Tensor) -> None:
        node = self.node_of(gradient)
        self.body.append(Fetch(node, Constant(0.0), gradient.origin))
        self.embedded.add(node)
        self._changed(gradient)
        self._passed_on.discard(gradient)

    def backpropagate(self, tensor: Tensor) -> None:
        """Emits what a tensor's gradient contributes to those of its operands."""
        definition = tensor.definition
        if isinstance(definition, ResultOf) and tensor.grad is not None:
            self.calls.backpropagate(definition.application)
        if (
            tensor.grad is None
            or not isinstance(definition, Applied)
            or definition.operation.gradient is None
        ):
            return
        if tensor.grad in self._passed_on:
            raise UsageError(
                "A gradient is passed on to operands once, when it is complete.",
                found=f"{tensor.grad.describe()} passed on twice without being set in between",
                where=str(tensor.origin),
                fix="backpropagate the sum of the losses, or clear the gradients in between: "
                "loss.zero_grads()",
            )
        self._passed_on.add(tensor.grad)
        _Slots(self, tensor).gradient(definition.operation.gradient)
        for operand in definition.operands:
            if operand.grad is not None:
                self._changed(operand.grad)


def check_margins(
    projections: Projections, result: Tensor, operands: Sequence[Tensor], origin: Origin
) -> None:
    """Raises ShapeError unless an operation finds the margins that it needs."""
    positions: list[tuple[int | None, Tensor]] = [(None, result), *enumerate(operands)]
    for position, tensor in positions:
        needed = margins_of(projections, position)
        if needed:
            tensor.layout.check(needed, tensor.describe(), origin)


def _refuse_repeated_writes(projections: Projections, origin: Origin) -> None:
    """Refuses a plain assignment that would keep the last of several values of a cell."""
    kept = {var for index in projections.lhs for var in variables(index)}
    if any(extent > 1 and var not in kept for var, extent in projections.domain):
        raise UsageError(
            "A plain assignment writes each cell once: what is reduced is accumulated.",
            found="an assignment whose operands have axes that the target has not",
            where=str(origin),
            fix="write c[oc.neutral] += ..., c[oc.neutral, oc.maximum] = ..., or use oc.einsum",
        )


def _has_margins(projections: Projections) -> tuple[bool, ...]:
    """Returns, for each operand, whether it is read beyond its axes."""
    return tuple(bool(margins_of(projections, i)) for i in range(len(projections.rhs)))


def _constant_value(tensor: Tensor) -> float | None:
    """Returns the number that every use of a constant of one cell is printed as; None for other
    tensors.
    """
    if not isinstance(tensor.definition, Filled) or tensor.shape.size != 1:
        return None
    source = tensor.definition.source()
    return source.value if isinstance(source, Constant) else None


class _Slots:
    """The slots of one application of an operation, and the assignments that its code makes to
    them.
    """

    def __init__(self, emitter: _Emitter, tensor: Tensor) -> None:
        assert isinstance(tensor.definition, Applied)
        self._emitter = emitter
        self._tensor = tensor
        self._definition = tensor.definition
        operands = tensor.definition.operands
        self._projections = project(
            tensor.logic,
            tensor.shape,
            [operand.shape for operand in operands],
            tensor.origin,
        )
        check_margins(self._projections, tensor, operands, tensor.origin)
        self._is_padded = _has_margins(self._projections)
        self._beyond: float | None = None
        if any(self._is_padded):
            combine = accumulation_of(tensor.definition.operation.forward, len(operands))
            self._beyond = None if combine is None else neutral(combine)
        self._writable: set[TensorNode] = set()
        self._blank: set[TensorNode] = set()  # intermediate slots that have not been written

    def forward(self) -> None:
        """Emits what computes the result.

        Raises:
            UsageError: if the defining function does not assign it.
        """
        node = self._tensor.node
        start = len(self._emitter.body)
        self._run(self._definition.operation.forward, {node})
        made = leaves(self._emitter.body[start:])
        if all(node not in targets(each) for each in made):
            self._refuse("it assigns nothing to v")

    def gradient(self, code: Code) -> None:
        """Emits what the gradient of the result contributes to those of the operands."""
        gradients = [operand.grad for operand in self._definition.operands]
        self._run(code, {self._emitter.node_of(each) for each in gradients if each is not None})

    def _run(self, code: Code, writable: set[TensorNode]) -> None:
        """Calls a defining function with the slots that its parameters name."""
        self._writable |= writable
        returned: object = code(*(self._slot(name) for name in slot_names(code)))  # type: ignore[func-returns-value]
        if returned is not None:
            self._refuse("it returns something")

    def _refuse(self, found: str) -> NoReturn:
        raise UsageError(
            "The code of an operation returns nothing: the forward function assigns to v, the "
            "gradient function accumulates into g1, g2, g3; both may write intermediate slots.",
            found=f"in the code of {self._tensor.origin.operation}, {found}",
            where=str(self._tensor.origin),
        )

    def _slot(self, name: str) -> Slot | tuple[Slot, ...]:
        stated = slot_of(name)
        if stated.position != ALL:
            return self._slot_at(name, stated.role, stated.position)
        count = len(self._definition.operands)
        return tuple(self._slot_at(f"{name}[{i}]", stated.role, i + 1) for i in range(count))

    def _slot_at(self, name: str, role: str, position: int) -> Slot:
        tensor = self._tensor if position == 0 else self._definition.operands[position - 1]
        p = self._projections
        index, dims = (
            (p.lhs, p.lhs_dims)
            if position == 0
            else (p.rhs[position - 1], p.rhs_dims[position - 1])
        )
        operand: Operand | None
        if role == "intermediate":
            operand = self._intermediate(name, tensor, dims)
        elif role == "value":
            is_padded = position > 0 and self._is_padded[position - 1]
            keeps_format = self._definition.operation.primitive is UnaryOp.WORD
            operand = self._emitter.operand(tensor, is_stored=is_padded or keeps_format)
        else:
            operand = None if tensor.grad is None else Cells(self._emitter.node_of(tensor.grad))
        return Slot(name, operand, tensor.dtype, index, dims, self)

    def _intermediate(self, name: str, tensor: Tensor, dims: tuple[int, ...]) -> Cells:
        """Returns a new node for an intermediate tensor with the axes of a slot."""
        if any(margins_of(self._projections, i) for i in (None, *range(len(self._is_padded)))):
            raise UsageError(
                "Intermediate slots have no margins for windows that leave an axis.",
                found=f"{name} in the code of {self._tensor.origin.operation}",
                where=str(self._tensor.origin),
            )
        node = TensorNode(self._tensor.id, (name, *self._tensor.label))
        self._emitter.nodes[node] = NodeInfo(tensor.dtype, dims)
        self._emitter.embedded.add(node)
        self._writable.add(node)
        self._blank.add(node)
        return Cells(node)

    def accumulate(self, target: Slot, combine: BinaryOp, *, reset: bool, value: SlotValue) -> None:
        """Emits one assignment to a slot; drops it when the slot is the gradient of a tensor that
        needs none.
        """
        if target.operand is None:
            return
        if not isinstance(target.operand, Cells):
            raise UsageError(
                "A constant cannot be assigned to.",
                found=target.name,
                where=str(self._tensor.origin),
            )
        if target.operand.node not in self._writable:
            self._refuse(f"it writes {target.name}")
        if combine is BinaryOp.SECOND:
            self._refuse_reduction(target, value)
        op, args = as_application(value)
        settled = [as_operand(self._settle(arg)) for arg in args]
        used = {
            var
            for index in (target.index, *(i for _, i, _ in settled))
            for each in index
            for var in variables(each)
        }
        projections = Projections(
            self._domain(target.index, used if combine.value.drops_repeats else None),
            target.index,
            tuple(index for _, index, _ in settled),
            target.dims,
            tuple(dims for _, _, dims in settled),
        )
        operands = tuple(operand for operand, _, _ in settled)
        for each in operands:
            if isinstance(each, Cells) and each.node in self._blank:
                self._refuse(f"it reads {each.node.label[0]} before it writes it")
        self._blank.discard(target.operand.node)
        origin = self._tensor.origin
        self._emitter.body.append(
            Accumulate(
                target.operand.node,
                combine,
                reset,
                op,
                operands,
                projections,
                origin,
                self._beyond,
            )
        )

    def set_from_words(self, target: Slot, words: Slot) -> None:
        """Emits the assignment of runs of cells, one for each word."""
        assert isinstance(target.operand, Cells), "results of operations are stored"
        operand, index, dims = as_operand(words)
        domain = self._projections.domain
        projections = Projections(domain, target.index, (index,), target.dims, (dims,))
        origin = self._tensor.origin
        self._emitter.body.append(SetVector(target.operand.node, operand, projections, origin))

    def _refuse_reduction(self, target: Slot, value: SlotValue) -> None:
        """Refuses a plain assignment that would keep the last of several values of a cell."""
        extents = self._projections.extents
        reduced = value_variables(value) - value_variables(target)
        if any(isinstance(var, LoopVar) and extents.get(var, 1) > 1 for var in reduced):
            raise UsageError(
                "An operation without an accumulation of its own cannot reduce axes.",
                found=f"{self._tensor.origin.operation} with a logic that drops axes",
                where=str(self._tensor.origin),
                fix="use oc.einsum(spec, ...), or assign it in recorded code: "
                "c[oc.neutral] += oc.mul(a, b, logic=...)",
            )

    def _domain(
        self, result: IndexMap, used: set[IndexVar] | None
    ) -> tuple[tuple[LoopVar, int], ...]:
        """Returns the operation's domain with the result's variables outermost, restricted to used
        ones if given.
        """
        extents = self._projections.extents
        first = [var for index in result for var in variables(index) if isinstance(var, LoopVar)]
        order = dict.fromkeys([*first, *extents])
        return tuple((var, extents[var]) for var in order if used is None or var in used)

    def _settle(self, value: SlotValue) -> Slot | int | float:
        """Returns a value that an assignment can read; a nested application is stored in a node of
        its own first.

        The node has one axis per domain variable that the value varies with; those of the parts of
        a concatenated axis are one axis again.
        """
        if not isinstance(value, SlotApplication):
            return value
        args = tuple(self._settle(arg) for arg in value.args)
        applied = SlotApplication(value.op, args)
        extents = self._projections.extents
        parts = {var: each for each in _concatenations(args) for var in each.parts}
        varying = value_variables(applied)
        axes: dict[VarIndex | ConcatIndex, int] = {}
        for var, extent in self._projections.domain:
            if var in parts:
                lengths = (extents[each] for each in parts[var].parts if isinstance(each, LoopVar))
                axes[parts[var]] = sum(lengths)
            elif var in varying:
                axes[VarIndex(var)] = extent
        index, dims = tuple(axes), tuple(axes.values())
        formats = [arg.dtype for arg in args if isinstance(arg, Slot)] or [self._tensor.dtype]
        dtype: DType = result_dtype(value.op, _aligned(args, formats), self._tensor.dtype)
        node = TensorNode(self._tensor.id, (value.op.value.name, *self._tensor.label))
        self._emitter.nodes[node] = NodeInfo(dtype, dims)
        self._emitter.embedded.add(node)
        self._writable.add(node)
        slot = Slot(node.name, Cells(node), dtype, index, dims, self)
        self.accumulate(slot, BinaryOp.SECOND, reset=False, value=applied)
        return slot


def _concatenations(args: tuple[Slot | int | float, ...]) -> Iterator[ConcatIndex]:
    """Yields the concatenated axes that values are read at."""
    for arg in args:
        if isinstance(arg, Slot):
            yield from (each for each in arg.index if isinstance(each, ConcatIndex))


def _aligned(args: tuple[Slot | int | float, ...], formats: list[DType]) -> list[DType]:
    """Returns one format per argument; numbers take that of the first slot."""
    return [arg.dtype if isinstance(arg, Slot) else formats[0] for arg in args]
