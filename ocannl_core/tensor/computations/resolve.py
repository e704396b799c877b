"""Resolution of recorded steps: close shapes, then emit assignments with concrete index maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import assert_never

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    Constant,
    Fetch,
    Merge,
    NodeOperand,
    Operand,
    Scalar,
    Section,
)
from ocannl_core.ir.assignments.traverse import dead_on_entry
from ocannl_core.ir.indexing import ComputedIndex, IndexMap, Projections, variables
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import saturate
from ocannl_core.ir.numbers.primitives import OF_OTHER_FORMATS, BinaryOp, UnaryOp, neutral
from ocannl_core.shape.language.shape_terms import Shape, broadcast_shape
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.translation.logic import Adjoint, Pointwise, SliceUpdate
from ocannl_core.tensor.computations import computation_steps, external_calls
from ocannl_core.tensor.computations.computation_steps import eliminate_copies
from ocannl_core.tensor.computations.doubtful_broadcasts import report_broadcasts
from ocannl_core.tensor.computations.gradient_states import GradientStates
from ocannl_core.tensor.computations.loop_code import LoopCode
from ocannl_core.tensor.computations.slot_code import SlotCode, check_margins
from ocannl_core.tensor.derivatives.gradient_terms import terms_in_memory
from ocannl_core.tensor.graph.definitions import (
    Applied,
    CarriedValue,
    Declared,
    Filled,
    GradientOf,
    Literal,
    Parameter,
    Placeholder,
    ResultOf,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.graph.index_maps import IndexMaps
from ocannl_core.tensor.graph.margins import has_margins, node_info
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.slots import SELECTION
from ocannl_core.tensor.graph.tensor import MergeBuffer, Tensor
from ocannl_core.tensor.primitives.dimension import Dimension


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedComputation:
    """A computation with closed shapes."""

    program: AssignProgram
    tensors: Mapping[TensorNode, Tensor]
    kept_bytes: int = 0
    """The bytes that loops keep of steps for gradients, beside the carries."""
    step_tensors: Mapping[TensorNode, Tensor] = field(default_factory=dict)
    """The tensors behind nodes of the steps of loops."""


def resolve(
    steps: tuple[computation_steps.Step, ...],
    results: frozenset[Tensor],
    name: str,
    temporaries: frozenset[Tensor],
    declared: frozenset[Tensor],
    kept_bytes: int | None = None,
) -> ResolvedComputation:
    """Return steps as assignments over closed shapes; loops keep `kept_bytes` for gradients beside
    their carries, or all that they need if it is None.
    """
    tensors = mentioned_tensors(steps)
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
        for tensor in members:
            tensor.relate_words()
        shapes = [shape for tensor in members for shape in _shapes_of(tensor)]
        session.environment.close(shapes, captured, f"the code {name}")
        for tensor in members:
            tensor.settle()
        report_broadcasts(members)
    steps = eliminate_copies(computation_steps.expand_updates(steps), temporaries)
    emitter = AssignmentEmitter(differentiated_tensors(steps), kept_bytes)
    for step in steps:
        emitter.step(step)
    for tensor in results:
        emitter.constant_result(tensor)
    program = AssignProgram(
        tuple(emitter.loops.with_kept_values(emitter.body)),
        emitter.nodes,
        frozenset(emitter.embedded),
        frozenset(emitter.initially_zero(declared)),
        frozenset(emitter.node_of(tensor) for tensor in results),
        name,
    )
    program = emitter.with_passed_gradients(emitter.calls.settle_calls(program))
    tensors_of = {n: t for n, t in emitter.tensors.items() if n in program.nodes}
    return ResolvedComputation(program, tensors_of, emitter.loops.kept_bytes, emitter.step_tensors)


def _shapes_of(tensor: Tensor) -> Iterator[Shape]:
    """Yield the shapes that the code of a tensor needs."""
    yield tensor.terms
    if isinstance(tensor.definition, Applied) and isinstance(tensor.definition.logic, Adjoint):
        yield from tensor.definition.logic.shapes


def mentioned_tensors(steps: tuple[computation_steps.Step, ...]) -> set[Tensor]:
    """Return every tensor whose shape the steps need."""
    found: set[Tensor] = set()
    for step in computation_steps.without_titles(steps):
        match step:
            case computation_steps.Assign(target=target):
                found |= {target, *computation_steps.operand_tensors(step)}
            case computation_steps.Forward(tensors):
                found |= external_calls.with_steps(external_calls.with_siblings(tensors))
                found.update(operand for tensor in tensors for operand in tensor.operands)
            case computation_steps.ZeroGradients(roots):
                found.update(external_calls.with_siblings(ancestors(list(roots))))
            case computation_steps.Backpropagate(roots):
                found.update(*map(external_calls.backpropagation_tensors, roots))
            case computation_steps.UpdateGradients():
                found |= mentioned_tensors(step.steps)
            case _:
                assert_never(step)
    return found


def differentiated_tensors(steps: tuple[computation_steps.Step, ...]) -> set[Tensor]:
    """Return the tensors whose gradients the steps pass on to operands."""
    return {
        tensor
        for step in computation_steps.without_titles(steps)
        if isinstance(step, computation_steps.Backpropagate | computation_steps.UpdateGradients)
        for tensor in ancestors(list(step.roots))
        if tensor.grad is not None
    }


class AssignmentEmitter:
    """Emitter of one computation, which passes the gradients of differentiated tensors on."""

    def __init__(self, differentiated: AbstractSet[Tensor], kept_bytes: int | None) -> None:
        self._differentiated = differentiated
        self._selections: dict[Tensor, tuple[TensorNode, int]] = {}
        """The positions of selected cells, and the time of their search."""
        self.body: list[Assignment] = []
        self.nodes: dict[TensorNode, NodeInfo] = {}
        self.embedded: set[TensorNode] = set()
        self.fresh: set[TensorNode] = set()
        self.tensors: dict[TensorNode, Tensor] = {}
        self.step_tensors: dict[TensorNode, Tensor] = {}
        """The tensors behind nodes of the steps of loops."""
        self.passed: set[object] = set()
        """The calls and loops through which the current backpropagation has passed."""
        self._changes: dict[Tensor, int] = {}
        """The time of the last change of each tensor, counted in changes of any tensor."""
        self.now = 0
        self.gradients = GradientStates()
        self.calls = external_calls.ExternalCalls(self)
        self.loops = LoopCode(self, kept_bytes)

    def node_of(self, tensor: Tensor) -> TensorNode:
        """Return a tensor's node, and list it among the program's nodes."""
        is_result = isinstance(tensor.definition, ResultOf)
        node = self.calls.node_of(tensor) if is_result else tensor.node
        if node not in self.nodes:
            margins = tensor.layout.margins
            self.nodes[node] = node_info(
                tensor.dtype,
                tensor.shape,
                margins,
                tensor.describe,
                is_parameter=tensor.is_parameter,
            )
            self.tensors[node] = tensor
            if isinstance(tensor.definition, Declared):
                self.fresh.add(node)
        return node

    def initially_zero(self, declared: AbstractSet[Tensor]) -> set[TensorNode]:
        """Return the declared nodes that the program keeps between runs, and that it may read
        before it writes them: not the statistics that it reads only.
        """
        dead = dead_on_entry(self.body, {tensor.node for tensor in declared})
        return {
            node
            for node in self.fresh - dead
            if node in self.embedded or not self.tensors[node].is_statistic
        }

    def step(self, step: computation_steps.Step) -> None:
        match step:
            case computation_steps.Assign():
                self.assign(step)
            case computation_steps.Forward(tensors, is_written_here):
                for tensor in tensors:
                    self.forward(tensor, anew=is_written_here)
            case computation_steps.ZeroGradients(roots, keeps_sums):
                cleared = dict.fromkeys(external_calls.with_siblings(ancestors(list(roots))))
                for tensor in cleared:
                    gradient = tensor.grad
                    if gradient is None or (keeps_sums and self.gradients.is_sum(gradient)):
                        continue
                    self.gradients.clear(tensor, gradient, cleared.keys(), roots)
                    self.fetch_zero(gradient)
            case computation_steps.Backpropagate(roots):
                self.passed.clear()
                graph = ancestors(list(roots))
                self.loops.graph = set(graph)
                for tensor in reversed(graph):
                    self.backpropagate(tensor)
                    if tensor.grad is not None and not isinstance(
                        tensor.definition, (Applied, ResultOf, ResultOfLoop)
                    ):
                        self.gradients.add_losses(tensor.grad, roots)
            case computation_steps.UpdateGradients():
                for each in step.steps:
                    self.step(each)
            case computation_steps.Titled(title, inner):
                outer, self.body = self.body, []
                for each in inner:
                    self.step(each)
                if self.body:
                    outer.append(Section(title, tuple(self.body)))
                self.body = outer
            case _:
                assert_never(step)

    def assign(self, step: computation_steps.Assign) -> None:
        tensors = computation_steps.operand_tensors(step)
        if step.formula is not None:
            self._assign_formula(step.target, step.formula, tensors)
            return
        if isinstance(step.logic, IndexMaps):
            _refuse_extents((step.target, *tensors), step.origin)
            found = step.logic.projections(
                step.target.shape.dims, [tensor.shape.dims for tensor in tensors], step.origin
            )
        else:
            shapes = [tensor.shape for tensor in tensors]
            found = project(step.logic, step.target.shape, shapes, step.origin)
        check_margins(found, step.target, tensors, step.origin)
        if step.combine is BinaryOp.SECOND:
            _refuse_repeated_writes(found, step.origin)
        maps = iter(zip(found.rhs, found.rhs_dims, has_margins(found), strict=True))
        operands: list[tuple[Operand, IndexMap, tuple[int, ...]]] = []
        indices = (index for each in (found.lhs, *found.rhs) for index in each)
        holders = {each.operand for each in indices if isinstance(each, ComputedIndex)}
        for number, arg in enumerate(step.args):
            index, dims, is_padded = ((), (), False) if isinstance(arg, int | float) else next(maps)
            keeps_format = step.op in OF_OTHER_FORMATS or number in holders
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
        if step.target.grad is not None or any(each.is_gradient for each in tensors):
            self.gradients.read()
        is_part = isinstance(step.logic, SliceUpdate)
        if step.reset and is_part and step.combine is not BinaryOp.SECOND:
            self._reset_part(step, target, projections)
        self.emit(
            Accumulate(
                target,
                step.combine,
                step.reset and not is_part,
                step.op,
                tuple(operand for operand, _, _ in operands),
                projections,
                step.origin,
            )
        )
        self.changed(step.target)
        if (step.reset or step.combine is BinaryOp.SECOND) and not is_part:
            self.gradients.assign(step.target)

    def _assign_formula(self, target: Tensor, formula: Tensor, operands: list[Tensor]) -> None:
        """Emit the code of a tensor with another tensor as its result."""
        if target.grad is not None or any(each.is_gradient for each in operands):
            self.gradients.read()
        SlotCode(self, formula, target=target).forward()
        self.embedded.add(self.node_of(target))
        self.changed(target)
        self.gradients.assign(target)

    def _reset_part(
        self, step: computation_steps.Assign, target: TensorNode, projections: Projections
    ) -> None:
        """Set the cells that an assignment to a slice accumulates into to the neutral element."""
        kept = {var for index in projections.lhs for var in variables(index)}
        domain = tuple((var, extent) for var, extent in projections.domain if var in kept)
        start = saturate(neutral(step.combine), self.nodes[target].dtype)
        self.copy(target, Scalar(start), replace(projections, domain=domain), step.origin)

    def copy(
        self,
        target: TensorNode,
        value: Operand,
        projections: Projections,
        origin: Origin | None,
        combine: BinaryOp = BinaryOp.SECOND,
    ) -> None:
        """Emit the assignment of a value, or its accumulation."""
        args = (value,)
        if isinstance(value, Scalar):
            projections = replace(projections, rhs=((),), rhs_dims=((),))
        self.emit(Accumulate(target, combine, False, UnaryOp.IDENTITY, args, projections, origin))

    def emit(self, assignment: Accumulate | Fetch) -> None:
        """Append an assignment, and note that the program computes its target."""
        self.body.append(assignment)
        self.embedded.add(assignment.target)

    def add_gradient(self, gradient: Tensor, value: Operand, shape: Shape) -> None:
        """Emit the addition of a value to a gradient, summed over axes that the gradient lacks."""
        common = broadcast_shape(gradient.shape, shape)
        found = project(Pointwise(), common, [gradient.shape, shape], gradient.origin)
        (lhs, index), (lhs_dims, dims) = found.rhs, found.rhs_dims
        projections = Projections(found.domain, lhs, (index,), lhs_dims, (dims,))
        target = self.node_of(gradient)
        self.copy(target, value, projections, gradient.origin, BinaryOp.ADD)
        self.changed(gradient)

    def last_change(self, tensors: Sequence[Tensor]) -> int:
        """Return the time of the last change of any of the tensors."""
        return max((self._changes.get(each, 0) for each in tensors), default=0)

    def changed(self, tensor: Tensor) -> None:
        self.gradients.change(tensor)
        self.now += 1
        self._changes[tensor] = self.now

    def _is_stale(self, tensor: Tensor) -> bool:
        """Return True unless the tensor has been computed here and no operand has changed since.

        A tensor of recorded code keeps its value from the place of its expression.
        """
        if tensor.node not in self.embedded:
            return True
        computed = self._changes.get(tensor, 0)
        return tensor.recording is None and any(
            self._changes.get(operand, 0) > computed for operand in tensor.operands
        )

    def operand(self, argument: computation_steps.Argument, *, is_stored: bool = False) -> Operand:
        """Return an operand of an assignment: cells, a merge buffer, or a number for constants of
        one cell.

        A constant has to be stored where it is read beyond its axis, as it differs there, and where
        its format matters besides its value.
        """
        if isinstance(argument, int | float):
            return Scalar(argument)
        if isinstance(argument, MergeBuffer):
            return Merge(self.node_of(argument.tensor))
        if is_stored:
            self.constant_result(argument)
            return NodeOperand(self.node_of(argument))
        value = _constant_value(argument)
        return Scalar(value) if value is not None else NodeOperand(self.node_of(argument))

    def forward(self, tensor: Tensor, *, anew: bool = False) -> None:
        """Emit the code of one tensor; unless `anew`, only if the tensor is not up to date."""
        if computation_steps.depends_on_gradients(tensor):
            self.gradients.read()
        match tensor.definition:
            case Applied():
                if anew or self._is_stale(tensor):
                    code = SlotCode(self, tensor)
                    code.forward()
                    self.embedded.add(self.node_of(tensor))
                    self.changed(tensor)
                    if tensor in self._differentiated and selects(tensor):
                        self._selections[tensor] = code.selection(), self.now
            case ResultOf(application):
                self.calls.forward(application)
            case ResultOfLoop(loop):
                self.loops.forward(loop)
            case CarriedValue():
                raise AssertionError("the code of a loop assigns what its steps carry")
            case Filled():
                if _constant_value(tensor) is None:
                    self.constant_result(tensor)
            case Literal() | Parameter() | Placeholder() | Declared() | GradientOf():
                self.node_of(tensor)
            case _:
                assert_never(tensor.definition)

    def constant_result(self, tensor: Tensor) -> None:
        """Store a fill, once; elsewhere constants of one cell are printed as numbers."""
        if isinstance(tensor.definition, Filled) and tensor.node not in self.embedded:
            self.emit(Fetch(self.node_of(tensor), tensor.definition.source(), tensor.origin))

    def fetch_zero(self, gradient: Tensor) -> None:
        self.emit(Fetch(self.node_of(gradient), Constant(0.0), gradient.origin))
        self.changed(gradient)
        self.gradients.assign(gradient, to_zero=True)

    def with_passed_gradients(self, program: AssignProgram) -> AssignProgram:
        """Return the program with the gradients that it has passed on to operands."""
        passed, carried = (
            frozenset(each.node for each in found if each.node in program.nodes)
            for found in (self.gradients.passed_on, self.gradients.carried)
        )
        return replace(program, passed_on=passed, carried=carried)

    def backpropagate(self, tensor: Tensor) -> None:
        """Emit the contributions of a tensor's gradient to the gradients of its operands."""
        definition, gradient = tensor.definition, tensor.grad
        if gradient is None:
            return
        if isinstance(definition, ResultOf):
            self.calls.backpropagate(definition.application)
        if isinstance(definition, ResultOfLoop):
            self.loops.backpropagate(definition.loop, tensor)
        if (
            self.gradients.is_zero(gradient)
            or not isinstance(definition, Applied)
            or not definition.operation.has_gradient
        ):
            return
        self.gradients.pass_on(gradient, tensor.origin)
        if (code := definition.operation.gradient) is not None:
            SlotCode(self, tensor, self._selection_of(tensor)).gradient(code)
        else:
            self.calls.add_terms(definition.operands, terms_in_memory(tensor), self.now)
        for operand in definition.operands:
            if (grad := operand.grad) is not None:
                self.changed(grad)

    def _selection_of(self, tensor: Tensor) -> TensorNode | None:
        """Return the positions of selected cells if they are up to date, or None."""
        node, time = self._selections.get(tensor, (None, 0))
        changes = [self._changes.get(each, 0) for each in (tensor, *tensor.operands)]
        return node if max(changes) <= time else None


def selects(tensor: Tensor) -> bool:
    """Return True if the gradient of a tensor flows to cells selected by a maximum or minimum."""
    definition = tensor.definition
    gradient = definition.operation.gradient if isinstance(definition, Applied) else None
    return gradient is not None and SELECTION in gradient.slots


def _constant_value(tensor: Tensor) -> float | None:
    """Return the number in place of every use of a constant of one cell; None for other tensors."""
    if not isinstance(tensor.definition, Filled) or tensor.shape.size != 1:
        return None
    source = tensor.definition.source()
    return source.value if isinstance(source, Constant) else None


def _refuse_extents(tensors: Iterable[Tensor], origin: Origin) -> None:
    """Refuse stated index maps over axes whose extents are known at run time only."""
    for tensor in tensors:
        for extent in tensor.shape.extents:
            if extent is not None:
                raise ShapeError(
                    "Stated projections run over constant sizes.",
                    found=f"an axis of {tensor.node.name} whose extent is {extent}",
                    where=str(origin),
                    fix="state a logic, which runs over the extents of the axes",
                )


def _refuse_repeated_writes(projections: Projections, origin: Origin) -> None:
    """Refuse a plain assignment that would keep the last of several values of a cell."""
    kept = {var for index in projections.lhs for var in variables(index)}
    if any(extent > 1 and var not in kept for var, extent in projections.domain):
        raise UsageError(
            "A plain assignment writes each cell once: reductions accumulate.",
            found="an assignment whose operands have axes that the target has not",
            where=str(origin),
            fix="write c[oc.neutral] += ..., c[oc.neutral, oc.maximum] = ..., or use oc.einsum",
        )
