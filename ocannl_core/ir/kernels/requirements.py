"""Requirements of the steps of a plan: the parts of the language that a device must have for them.

`lack_of` compares a step with a target, and returns the first part that is missing together with
the statement that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import IdentityMap
from ocannl_core.base.origin import Origin
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, LeafStep, NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import Node, allocated_nodes, nodes_of, statements, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import EVERY_PRIMITIVE, Op, VectorOp
from ocannl_core.ir.target import Capability, Target

_STATEMENTS: dict[type, Capability] = {
    ir.Barrier: Capability.BARRIERS,
    ir.SubgroupReduce: Capability.BARRIERS,
    ir.CallExternal: Capability.EXTERNAL_CALLS,
    ir.CheckPositions: Capability.POSITION_CHECKS,
    ir.Repeat: Capability.REPETITIONS,
    ir.Scatter: Capability.SCATTERS,
}
"""The capabilities that statements need; a `LoadMerge`, which is an expression, needs one, too."""

Part = Capability | DType | Op | VectorOp
"""A part of the language that a device may lack."""


@dataclass(frozen=True, slots=True)
class Lack:
    """A part of the language that a step needs and a target lacks."""

    part: Part
    """A capability, a number format or a primitive."""
    node: TensorNode | None = None
    """The node that the statement writes, or has in that format; None without any."""
    origin: Origin | None = None
    """The user's operation and line; None where they are not known."""

    def __str__(self) -> str:
        match self.part:
            case Capability():
                return self.part.value
            case DType():
                return f"the number format {self.part}"
            case _:
                return f"the primitive {self.part.value.name}"


class Requirements:
    """The parts of the language that a target lacks, to be compared with steps."""

    def __init__(self, target: Target) -> None:
        self._formats = None if target.formats is None else frozenset(target.formats)
        missing: set[Part] = {each for each in Capability if each not in target.capabilities}
        if target.primitives is not None:
            missing |= set(EVERY_PRIMITIVE) - set(target.primitives)
        self._missing = frozenset(missing - {Capability.SEVERAL_DEVICES})
        self._stops = frozenset(kind for kind, each in _STATEMENTS.items() if each in self._missing)
        of_statements = {Capability.EXTERNAL_CALLS, *_STATEMENTS.values()}
        self._reads_expressions = self._formats is not None or not self._missing <= of_statements

    @property
    def are_met(self) -> bool:
        """True if the target lacks nothing."""
        return not self._missing and self._formats is None

    def lack_of_program(self, program: ir.LoopProgram) -> Lack | None:
        """Return the first repetition, if the target has none: streams do not show them."""
        if Capability.REPETITIONS in self._missing:
            for stmt in program.body.stmts:
                if isinstance(stmt, ir.Repeat):
                    return Lack(Capability.REPETITIONS, next(iter(stmt.outputs), None))
        return None

    def lack_of(self, step: LeafStep, nodes: NodeInfos) -> Lack | None:
        """Return the first part that a step needs and the target lacks.

        Args:
            nodes: The extents and formats of the nodes of the step.
        """
        match step:
            case HostCall(call):
                inside: Iterable[Node] = (call,)
                every = nodes_of(call)
            case Kernel(body, arguments) if self._reads_expressions:
                inside, every = walk(body), (*arguments, *allocated_nodes(body))
            case Kernel(body):
                if not any(type(each) in self._stops for each in statements(body)):
                    return None
                inside, every = statements(body), ()
        return next(self._lacks(inside), None) or self._lack_of_nodes(every, nodes)

    def written_in(self, program: ir.LoopProgram, part: Part) -> Lack | None:
        """Return the first need of a part in a program as it was written."""
        for lack in self._lacks(walk_iterations(program.body)):
            if lack.part is part:
                return lack
        return None

    def _lack_of_nodes(self, mentioned: Iterable[TensorNode], nodes: NodeInfos) -> Lack | None:
        if self._formats is None:
            return None
        lacking = (node for node in mentioned if nodes[node].dtype not in self._formats)
        return next((Lack(nodes[node].dtype, node) for node in lacking), None)

    def _lacks(self, inside: Iterable[Node]) -> Iterator[Lack]:
        """Yield the parts that nodes in preorder need and the target lacks."""
        origin: Origin | None = None
        written: TensorNode | None = None
        executed: IdentityMap[Node, None] = IdentityMap()
        for node in inside:
            match node:
                case ir.Remark():
                    origin = node.origin
                case ir.Store(target) | ir.Scatter(target) | ir.StoreVector(target):
                    written = target
                case ir.CheckPositions(target):
                    written, origin = target, node.origin or origin
                case ir.Fill(target):
                    written = target
                case ir.CallExternal(outputs=outputs) | ir.Repeat(outputs=outputs):
                    written = next(iter(outputs), None)
                case ir.For(kind=ir.AxisKind.TILE | ir.AxisKind.DOT):
                    for each in walk(node):  # by an instruction, without primitives
                        executed[each] = None
            for part in _parts_of(node):
                is_primitive = not isinstance(part, Capability | DType)
                if part in self._missing and not (node in executed and is_primitive):
                    yield Lack(part, written, origin)
            dtype = getattr(node, "dtype", None)
            if self._formats is not None and dtype is not None and dtype not in self._formats:
                yield Lack(dtype, written, origin)


def walk_iterations(root: Node) -> Iterator[Node]:
    """Yield a node and its descendants in preorder, with those of one iteration of repetitions."""
    for node in walk(root):
        yield node
        if isinstance(node, ir.Repeat):
            yield from walk_iterations(node.body)


def _parts_of(node: Node) -> tuple[Part, ...]:
    """Return the capabilities and primitives that a node needs by itself."""
    match node:
        case ir.Unary(op) | ir.Binary(op) | ir.Ternary(op):
            return (op,)
        case ir.StoreVector():
            return (VectorOp.UNIFORM,)
        case ir.SubgroupReduce(op=op):
            return Capability.BARRIERS, op
        case ir.LoadMerge():
            return (Capability.MERGE_BUFFERS,)
        case _:
            capability = _STATEMENTS.get(type(node))
            return () if capability is None else (capability,)
