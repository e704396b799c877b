"""The nodes of the loop language.

    Program   = name, params, indices, nodes, Block
    Stmt      = For | Store | StoreVector | Fill | SetLocal | DeclareLocal | Allocate | Barrier
              | Prefetch | CallExternal | Block | Remark | Staged
    Expr      = Load | LoadMerge | Gather | LocalRead | Scoped | Unary | Binary | Ternary | Const
              | ConstBits | IndexValue

Every expression states its number format. Arithmetic is IEEE in that format, operation by
operation; operands have the format of the operation, except that `Unary(IDENTITY)` converts, the
condition of `WHERE` and the operands of a comparison agree only among themselves, and bit-pattern
primitives have the formats of their definition. Indices address the stored buffer: margins are
already added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum

from ocannl_core.dtypes import DType
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import AxisIndex, LoopVar, StaticIndex
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.origin import Origin
from ocannl_core.target import ExternalOp


class AxisKind(Enum):
    """How the iterations of a loop relate in time.

    All kinds but SERIAL promise that iterations may run in any order; the interpreter runs them in
    ascending order.
    """

    SERIAL = "serial"
    PARALLEL = "parallel"
    """Iterations may run on different threads."""
    VECTOR = "vector"
    """Iterations may run in the lanes of a vector register."""
    UNROLLED = "unrolled"
    """The loop is to be written out."""
    PAIR = "pair"
    """Both iterations add a product of narrow floats to one number: they may be one instruction,
    which takes numbers below 2**-126 for zero.
    """
    TILE = "tile"
    """Iterations run over the rows, the columns or the terms of a tile register: all of them may be
    one instruction, which takes numbers below 2**-126 for zero.
    """
    REDUCTION = "reduction"
    """Iterations combine into the same cells with an accumulating primitive."""
    GRID = "grid"
    """Iterations run on different groups of threads that cannot wait for each other."""
    BLOCK = "block"
    """Iterations run on threads of one group, which meet at barriers."""


class Scope(Enum):
    """Who shares an allocation, and so how long it lives: until the end of the enclosing block of
    statements.
    """

    ROUTINE = "routine"
    """Memory of the routine, shared by its kernels."""
    KERNEL = "kernel"
    """Memory of one kernel: the stack on a CPU."""
    GROUP = "group"
    """Memory shared by the BLOCK iterations inside one GRID iteration."""
    THREAD = "thread"
    """Registers of one iteration."""


@dataclass(frozen=True, slots=True)
class Local:
    """A scalar variable: the inlined value of a node, or a temporary.

    Attributes:
        id: Distinguishes variables of one program; two inlinings of one node are two variables.
        dtype: The number format.
        node: The node whose value it holds, for readers.
    """

    id: int
    dtype: DType
    node: TensorNode | None = None

    def numbered(self, number: Callable[[object], int]) -> tuple[object, ...]:
        """Return what is left without the id: the number of the variable among some things."""
        return number((Local, self.id)), self.dtype, self.node


# ----- expressions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """The value of a cell."""

    node: TensorNode
    indices: tuple[AxisIndex, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class LoadMerge:
    """The value of a cell in a node's merge buffer, which holds another device's copy."""

    node: TensorNode
    indices: tuple[AxisIndex, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Gather:
    """The value of a cell whose position along one axis is computed; zero when that is no position
    of the axis.

    Attributes:
        axis: The position in `indices` that `position` replaces (the entry there is
            `FixedIndex(0)`).
        position: A number; fractional ones address nothing.
    """

    node: TensorNode
    indices: tuple[AxisIndex, ...]
    axis: int
    position: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class LocalRead:
    """The value of a scalar variable."""

    local: Local

    @property
    def dtype(self) -> DType:
        return self.local.dtype


@dataclass(frozen=True, slots=True)
class Scoped:
    """The value of a variable after running a body that sets it: an inlined computation.

    Attributes:
        indices: The cell that was read before inlining, so that the read can be restored.
    """

    local: Local
    body: Block
    indices: tuple[AxisIndex, ...] = ()

    @property
    def dtype(self) -> DType:
        return self.local.dtype


@dataclass(frozen=True, slots=True)
class Unary:
    op: UnaryOp
    arg: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binary:
    op: BinaryOp
    left: Expr
    right: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Ternary:
    op: TernaryOp
    first: Expr
    second: Expr
    third: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Const:
    """A number; constants compare by bit pattern, so 0.0 is not -0.0 and a NaN equals itself."""

    value: float
    dtype: DType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const):
            return NotImplemented
        return self.dtype is other.dtype and float(self.value).hex() == float(other.value).hex()

    def __hash__(self) -> int:
        return hash((float(self.value).hex(), self.dtype))


@dataclass(frozen=True, slots=True)
class ConstBits:
    """A 64-bit pattern: an integer, or the low half of a 128-bit word whose high half is zero."""

    bits: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class IndexValue:
    """The value of an index as a number."""

    index: AxisIndex
    dtype: DType


Expr = (
    Load
    | LoadMerge
    | Gather
    | LocalRead
    | Scoped
    | Unary
    | Binary
    | Ternary
    | Const
    | ConstBits
    | IndexValue
)


# ----- statements ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class For:
    """Runs the body for `var` in `range(start, stop)`.

    Attributes:
        traced: False keeps analyses from looking inside beyond the first iteration, and its nodes
            from being inlined.
    """

    var: LoopVar
    start: int
    stop: int
    body: Block
    kind: AxisKind = AxisKind.SERIAL
    traced: bool = True


@dataclass(frozen=True, slots=True)
class Store:
    """Writes one cell.

    Attributes:
        is_streamed: True if the cell is not read again soon, so that it may go past the caches.
    """

    node: TensorNode
    indices: tuple[AxisIndex, ...]
    value: Expr
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class StoreVector:
    """Writes `length` consecutive cells, starting at `indices`, from one 128-bit word."""

    node: TensorNode
    indices: tuple[AxisIndex, ...]
    length: int
    arg: Expr


@dataclass(frozen=True, slots=True)
class Fill:
    """Writes one number to every cell of a node, margins included."""

    node: TensorNode
    value: float


@dataclass(frozen=True, slots=True)
class DeclareLocal:
    """Introduces a scalar variable for the rest of the enclosing block; its value is undefined
    until set.
    """

    local: Local


@dataclass(frozen=True, slots=True)
class SetLocal:
    """Assigns a scalar variable."""

    local: Local
    value: Expr


@dataclass(frozen=True, slots=True)
class Allocate:
    """Gives a node memory for the rest of the enclosing block; its cells are undefined until
    written.
    """

    node: TensorNode
    scope: Scope


@dataclass(frozen=True, slots=True)
class Barrier:
    """Every BLOCK iteration of the enclosing GRID iteration arrives before any goes on; writes
    become visible.
    """


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Asks for a cell, which is needed soon, to come near the processor; nothing depends on it.

    The indices may point outside of the array: then it asks for nothing.
    """

    node: TensorNode
    indices: tuple[AxisIndex, ...]


@dataclass(frozen=True, slots=True)
class CallExternal:
    """Runs a computation that loops do not express: reads the inputs, overwrites the outputs."""

    op: ExternalOp
    inputs: tuple[TensorNode, ...]
    outputs: tuple[TensorNode, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """Text for readers; carried into generated code, without meaning."""

    text: str
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Staged:
    """Code that a backend supplies for itself, beside the statements that say what it means.

    The meaning is `body`; a backend of the named language may print `text` instead. Staged code is
    never inlined.
    """

    language: str
    text: str
    body: Block


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in program order."""

    stmts: tuple[Stmt, ...] = ()


Stmt = (
    For
    | Store
    | StoreVector
    | Fill
    | DeclareLocal
    | SetLocal
    | Allocate
    | Barrier
    | Prefetch
    | CallExternal
    | Remark
    | Staged
    | Block
)


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A routine in the loop language.

    Attributes:
        name: A name for files and generated code.
        params: Nodes whose memory comes from outside, in a stable order. Every other node in
            `nodes` is allocated by an `Allocate` before its first use.
        indices: Static indices, in the order in which the routine takes their values.
        nodes: What is known of every node mentioned.
        body: The statements.
    """

    name: str
    params: tuple[TensorNode, ...]
    indices: tuple[StaticIndex, ...]
    nodes: Mapping[TensorNode, NodeInfo]
    body: Block
