"""The nodes of the assignment language. Frozen; shapes and index maps are concrete by the time one
is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import AxisIndex, Projections
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, Op
from ocannl_core.origin import Origin
from ocannl_core.target import ExternalOp


@dataclass(frozen=True, slots=True)
class Cells:
    """An operand: the cells of a node at the operand's index map."""

    node: TensorNode


@dataclass(frozen=True, slots=True)
class Merge:
    """An operand: the merge buffer of a node, which holds another device's copy of it."""

    node: TensorNode


@dataclass(frozen=True, slots=True)
class Scalar:
    """An operand: one number everywhere. Its index map is empty."""

    value: float


Operand = Cells | Merge | Scalar


@dataclass(frozen=True, slots=True)
class Accumulate:
    """`target = target combine op(*args)` over the domain of the projections.

    Attributes:
        target: The node written.
        combine: The accumulating primitive; `SECOND` is plain assignment.
        reset: The target's cells are set to the neutral element of `combine` first.
        op: The primitive applied to the operands.
        args: As many operands as the primitive takes; `projections.rhs[i]` is the index map of
            `args[i]`.
        projections: The domain and the index maps.
        origin: What asked for it.
        beyond: What operands hold beyond their axes, where windows leave these; when None, the
            neutral element of `combine`. The gradient of a maximum sees what the maximum saw.
    """

    target: TensorNode
    combine: BinaryOp
    reset: bool
    op: Op
    args: tuple[Operand, ...]
    projections: Projections
    origin: Origin | None = field(default=None, compare=False)
    beyond: float | None = None


@dataclass(frozen=True, slots=True)
class SetVector:
    """Writes consecutive cells of the target from one 128-bit word each: as many as fit the
    target's format.
    """

    target: TensorNode
    arg: Operand
    projections: Projections
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """The same number in every cell."""

    value: float


@dataclass(frozen=True, slots=True)
class ConstantBits:
    """The same bit pattern in every cell: the low 64 bits, the rest zero."""

    bits: int


@dataclass(frozen=True, slots=True)
class ConstantFill:
    """Values in row-major order, repeated to fill the node."""

    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RangeOverOffsets:
    """Every cell holds its own row-major offset."""


@dataclass(frozen=True, slots=True)
class EmbedIndex:
    """Every cell holds the value of an index, such as a static index."""

    index: AxisIndex


FetchSource = Constant | ConstantBits | ConstantFill | RangeOverOffsets | EmbedIndex


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fills a whole node from a source that reads no other node."""

    target: TensorNode
    source: FetchSource
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """Runs a computation that assignments do not express: reads the inputs, overwrites the targets.

    A destroyed input keeps its cells for every other reader, wherever that stands: the call runs
    after all of them (`calls.settle`). A call that has a place is different for inputs that outlive
    the program: it is an assignment to them, which later readers see.

    Attributes:
        op: The computation.
        inputs: The nodes that it reads, in its order.
        targets: The nodes that it writes, in its order.
        destroyed: Inputs whose cells are lost.
        shared: Pairs of a target and the destroyed input whose memory it takes over.
        views: Pairs of a target and the input of which it may be a view.
        has_place: It stands in code that was written statement by statement.
        origin: What asked for it.
    """

    op: ExternalOp
    inputs: tuple[TensorNode, ...]
    targets: tuple[TensorNode, ...]
    destroyed: tuple[TensorNode, ...] = ()
    shared: tuple[tuple[TensorNode, TensorNode], ...] = ()
    views: tuple[tuple[TensorNode, TensorNode], ...] = ()
    has_place: bool = False
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Sequence:
    """Assignments in program order."""

    body: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Assignments under a title that later stages carry along."""

    title: str
    body: tuple[Assignment, ...]


Assignment = Accumulate | SetVector | Fetch | ExternalCall | Sequence | Section


@dataclass(frozen=True, slots=True)
class AssignProgram:
    """A closed computation.

    Attributes:
        body: The assignments in program order.
        nodes: Every node that the body mentions, with what inference found.
        embedded: Nodes whose defining code is in the body; the others must be in the context
            already.
        fresh: Nodes declared here: stored, zero when the context first gets them, kept between
            calls.
        results: Nodes kept by default.
        name: A name for printed code and files.
        passed_on: Gradients that the body passes on to operands and does not set afterwards. What
            is added to them later must not be passed on together with what they hold.
        carried: Those that it passes on without having set them: with what they hold before.
    """

    body: tuple[Assignment, ...]
    nodes: Mapping[TensorNode, NodeInfo]
    embedded: frozenset[TensorNode] = frozenset()
    fresh: frozenset[TensorNode] = frozenset()
    results: frozenset[TensorNode] = frozenset()
    name: str = "routine"
    passed_on: frozenset[TensorNode] = frozenset()
    carried: frozenset[TensorNode] = frozenset()
