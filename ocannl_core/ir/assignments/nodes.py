"""The nodes of the assignment language; their shapes and index maps are concrete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.indexing import AxisIndex, Projections, StaticIndex
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, Op


@dataclass(frozen=True, slots=True)
class NodeOperand:
    """An operand: the cells of a node at the operand's index map."""

    node: TensorNode


@dataclass(frozen=True, slots=True)
class Merge:
    """An operand: the merge buffer of a node, which holds another device's copy of it."""

    node: TensorNode


@dataclass(frozen=True, slots=True)
class Scalar:
    """An operand: a constant. Its index map is empty."""

    value: float


Operand = NodeOperand | Merge | Scalar


@dataclass(frozen=True, slots=True)
class Formula:
    """A primitive of other formulas and of operands, such as `g / (1.0 + exp(-x))`.

    Attributes:
        args: Each a formula, or the position of an operand of the assignment.
        dtype: The number format of the value; of the outermost formula the target's.
    """

    op: Op
    args: tuple[int | Formula, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Accumulate:
    """`target = target combine op(*args)` over the domain of the projections.

    Attributes:
        combine: The accumulating primitive; `SECOND` is plain assignment.
        reset: The target's cells are set to the neutral element of `combine` first.
        op: The primitive, or a formula.
        args: The operands of either; `projections.rhs[i]` is the index map of `args[i]`.
        beyond: The value of operands in their margins, for windows that exceed the axes; None for
            the neutral element of `combine`. The gradient of a maximum reads the same margins as
            the maximum.
    """

    target: TensorNode
    combine: BinaryOp
    reset: bool
    op: Op | Formula
    args: tuple[Operand, ...]
    projections: Projections
    origin: Origin | None = field(default=None, compare=False)
    beyond: float | None = None


@dataclass(frozen=True, slots=True)
class SetVector:
    """A store of 128-bit words, each to as many consecutive cells as fit the target's format."""

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
    """Every cell holds the value of an index, such as a static index, or a product of them."""

    index: AxisIndex
    factors: tuple[AxisIndex, ...] = ()


FetchSource = Constant | ConstantBits | ConstantFill | RangeOverOffsets | EmbedIndex


@dataclass(frozen=True, slots=True)
class Fetch:
    """A fill of a whole node from a source that reads no other node."""

    target: TensorNode
    source: FetchSource
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """A call of an external operation, which reads the inputs and overwrites the targets.

    The call runs after all other readers of its destroyed inputs, wherever they stand in the
    program (`calls.bufferize_calls`). A call that has a place treats inputs that outlive the
    program differently: it is an assignment to them, and later readers read the new cells.

    Attributes:
        destroyed: Inputs whose cells are lost.
        shared: Pairs of a target and the destroyed input whose memory it takes over.
        views: Pairs of a target and the input of which it may be a view.
        has_place: True in imperative code, written statement by statement.
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
class RepeatedAssignments:
    """Assignments that run several times, each time with another value of a static index.

    To the assignments around, a repetition is one access of its inputs and outputs.

    Attributes:
        index: The number of the iteration, in `range(count)`.
        is_reversed: True if they run from the last one to the first.
        private: Nodes that no other code accesses, written before they are read.
    """

    index: StaticIndex
    count: int
    is_reversed: bool
    body: tuple[Assignment, ...]
    private: frozenset[TensorNode]
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class AssignSequence:
    """Assignments in program order."""

    body: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Assignments under a title that later stages carry along."""

    title: str
    body: tuple[Assignment, ...]


Assignment = (
    Accumulate | SetVector | Fetch | ExternalCall | RepeatedAssignments | AssignSequence | Section
)


@dataclass(frozen=True, slots=True)
class AssignProgram:
    """A closed computation.

    Attributes:
        nodes: The inferred format, extents and margins of every node in the body.
        embedded: Nodes that the body defines; the others must be in the context already.
        fresh: Nodes declared here: stored, initially zero, and kept between runs.
        results: Nodes kept by default.
        passed_on: Gradients that the body propagates to operands and does not reset afterwards.
            Later additions to them must not be propagated together with their present contents.
        carried: Gradients that the body propagates without setting them first.
    """

    body: tuple[Assignment, ...]
    nodes: Mapping[TensorNode, NodeInfo]
    embedded: frozenset[TensorNode] = frozenset()
    fresh: frozenset[TensorNode] = frozenset()
    results: frozenset[TensorNode] = frozenset()
    name: str = "routine"
    passed_on: frozenset[TensorNode] = frozenset()
    carried: frozenset[TensorNode] = frozenset()
