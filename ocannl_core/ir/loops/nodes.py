"""The nodes of the loop language.

    Program   = name, params, indices, nodes, Block
    Stmt      = For | Store | StoreVector | Scatter | Fill | SetLocal | DeclareLocal | Allocate
              | Barrier | SubgroupReduce | Prefetch | CheckPositions | CallExternal | Repeat
              | Block | Remark | Verbatim
    Expr      = Load | LoadMerge | Gather | LocalRead | Scoped | Unary | Binary | Ternary | Const
              | ConstBits | IndexValue

Every expression has a number format. Arithmetic is IEEE in that format, operation by operation.
Operands have the format of the operation, with three exceptions: `Unary(IDENTITY)` converts; the
operands of a comparison, and of the condition of `WHERE`, agree among themselves only;
bit-pattern primitives define their own formats. Indices address the stored buffer, margins
included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.ir import indexing
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.loops.axis_kinds import AxisKind as AxisKind
from ocannl_core.ir.loops.axis_kinds import Resource as Resource
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp


class Scope(Enum):
    """The sharing of an allocation. Its live range ends with the enclosing block of statements."""

    ROUTINE = "routine"
    """Memory shared by the kernels of a routine."""
    KERNEL = "kernel"
    """Memory of one kernel; the stack on a CPU."""
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
        node: The node whose value it holds; used for its name.
    """

    id: int
    dtype: DType
    node: TensorNode | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The value of a cell."""

    node: TensorNode
    indices: tuple[indexing.AxisIndex, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class LoadMerge:
    """The value of a cell in a node's merge buffer, which holds another device's copy."""

    node: TensorNode
    indices: tuple[indexing.AxisIndex, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Gather:
    """The value of a cell at a computed position along one axis.

    Attributes:
        axis: The position in `indices` that `position` replaces (`FixedIndex(0)` stands there).
        position: A number; a fractional one is out of bounds.
        beyond: The value if the position is out of bounds.
    """

    node: TensorNode
    indices: tuple[indexing.AxisIndex, ...]
    axis: int
    position: Expr
    dtype: DType
    beyond: float = 0.0

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Gather) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.node, self.indices, self.axis))

    def _key(self) -> tuple[object, ...]:
        """Return the fields, with `beyond` by bit pattern: a NaN equals itself."""
        beyond = float(self.beyond).hex()
        return self.node, self.indices, self.axis, self.position, self.dtype, beyond


@dataclass(frozen=True, slots=True)
class LocalRead:
    """The value of a scalar variable."""

    local: Local

    @property
    def dtype(self) -> DType:
        return self.local.dtype


@dataclass(frozen=True, slots=True)
class Scoped:
    """An inlined computation: the value of a variable after a body that sets it.

    Attributes:
        indices: The indices of the load before inlining, from which it can be restored.
    """

    local: Local
    body: Block
    indices: tuple[indexing.AxisIndex, ...] = ()

    @property
    def dtype(self) -> DType:
        return self.local.dtype


@dataclass(frozen=True, slots=True)
class Unary:
    """A primitive of one operand, which has the format of the result; `IDENTITY` converts from any
    other format.

    Attributes:
        dtype: The number format of the result, to which it is rounded once.
    """

    op: UnaryOp
    arg: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binary:
    """A primitive of two operands, which have the format of the result; of comparisons, a common
    format of their own.

    Attributes:
        dtype: The number format of the result, to which it is rounded once.
    """

    op: BinaryOp
    left: Expr
    right: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Ternary:
    """A primitive of three operands, which have the format of the result; the condition of `WHERE`
    has any format, and `WHERE` evaluates only the operand that it chooses.

    Attributes:
        dtype: The number format of the result, to which it is rounded once.
    """

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

    index: indexing.AxisIndex
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


@dataclass(frozen=True, slots=True)
class LoopBound:
    """An end of a loop below its stop: it iterates while `index < extent`.

    A loop of at most one iteration with a bound is a guard.

    Attributes:
        index: A position that increases with the variable of the loop, and may depend on the
            variables of the loops around.
        extent: The extent of the axis that the position is on: one at run time, or a number where
            blocks of iterations exceed an axis.
    """

    index: indexing.AxisIndex
    extent: indexing.StaticExtent | int

    @property
    def end(self) -> indexing.AxisIndex:
        """The extent as an index."""
        return (
            indexing.FixedIndex(self.extent)
            if isinstance(self.extent, int)
            else indexing.VarIndex(self.extent)
        )

    @property
    def maximum(self) -> int:
        """The greatest value of the extent."""
        return self.extent if isinstance(self.extent, int) else self.extent.maximum


@dataclass(frozen=True, slots=True)
class For:
    """A loop over `var` in `range(start, stop)`, or over the iterations of it inside a bound.

    The cells of a node beyond the extent of an axis are undefined. So a transformation may run
    iterations beyond the bound of a loop that write only undefined cells, but none that combine
    into other cells.

    Attributes:
        bound: The end, if it may be below `stop`; None if all iterations run.
        traced: False limits analyses to the first iteration, and excludes inlining inside.
    """

    var: indexing.LoopVar
    start: int
    stop: int
    body: Block
    kind: AxisKind = AxisKind.SERIAL
    traced: bool = True
    bound: LoopBound | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """A store to one cell.

    Attributes:
        is_streamed: True for a non-temporal store: the cell is not read again soon, so that it may
            bypass the caches.
    """

    node: TensorNode
    indices: tuple[indexing.AxisIndex, ...]
    value: Expr
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class StoreVector:
    """A store of one 128-bit word to `length` consecutive cells, starting at `indices`."""

    node: TensorNode
    indices: tuple[indexing.AxisIndex, ...]
    length: int
    arg: Expr


@dataclass(frozen=True, slots=True)
class Scatter:
    """A store to a cell at a computed position along one axis; no store if the position is out of
    bounds.

    Attributes:
        axis: The position in `indices` that `position` replaces (`FixedIndex(0)` stands there).
        position: A number; a fractional one is out of bounds.
    """

    node: TensorNode
    indices: tuple[indexing.AxisIndex, ...]
    axis: int
    position: Expr
    value: Expr

    @property
    def own(self) -> Gather:
        """The load of the cell that it writes; zero if the position is out of bounds."""
        return Gather(self.node, self.indices, self.axis, self.position, self.value.dtype)


@dataclass(frozen=True, slots=True)
class Fill:
    """A store of one number to every cell of a node, margins included."""

    node: TensorNode
    value: float


@dataclass(frozen=True, slots=True)
class DeclareLocal:
    """A scalar variable for the rest of the block, undefined until it is set."""

    local: Local


@dataclass(frozen=True, slots=True)
class SetLocal:
    """An assignment to a scalar variable."""

    local: Local
    value: Expr


@dataclass(frozen=True, slots=True)
class Allocate:
    """Memory of a node for the rest of the block, undefined until it is written."""

    node: TensorNode
    scope: Scope


@dataclass(frozen=True, slots=True)
class Barrier:
    """A barrier for the BLOCK iterations of the enclosing GRID iteration; it makes writes visible
    to all of them.

    The copies (COPY loops) that a thread has started since its last barrier are a group. A barrier
    ends a group, and waits for all groups but the last `pending` ones, its own included.

    Attributes:
        pending: The number of the last groups of copies that may be incomplete behind it.
    """

    pending: int = 0


@dataclass(frozen=True, slots=True)
class SubgroupReduce:
    """A reduction of a value across neighboring BLOCK iterations, which all get a result.

    The BLOCK iterations of a GRID iteration are numbered, the innermost loop fastest. For `apart`
    equal to `lanes / 2`, `lanes / 4`, ..., 1, each combines its value with the value of the
    iteration whose number differs in that bit, its own value first. All iterations come to the
    statement, as to a barrier, but it makes no writes visible.

    Attributes:
        local: The variable that is set to the result.
        value: The value of an iteration.
        lanes: The number of neighbors, a power of two that divides the number of iterations.
    """

    local: Local
    value: Expr
    op: BinaryOp
    lanes: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A prefetch of a cell into the caches; it has no effect on values.

    The indices may be out of bounds; the prefetch is then a no-op.
    """

    node: TensorNode
    indices: tuple[indexing.AxisIndex, ...]


@dataclass(frozen=True, slots=True)
class CheckPositions:
    """A check that every cell of a node of integers lies in `range(extent)`; otherwise the routine
    ends with an error. Along axes of an extent at run time the cells up to it are checked.

    Attributes:
        node: The positions; cells in margins are not checked.
        extent: The extent of the axis that they index.
        axis: A description of that axis for the error.
        extents: The extent at run time of each axis, None where it is constant; `()` if all are.
        origin: The operation that reads or writes at the positions.
        at_run_time: The extent at run time of the axis that they index, which is at most `extent`;
            None if it is constant.
    """

    node: TensorNode
    extent: int
    axis: str
    extents: tuple[indexing.StaticExtent | None, ...] = ()
    origin: Origin | None = field(default=None, compare=False)
    at_run_time: indexing.StaticExtent | None = None


@dataclass(frozen=True, slots=True)
class CallExternal:
    """A call of an external operation, which reads the inputs and overwrites the outputs."""

    op: ExternalOp
    inputs: tuple[TensorNode, ...]
    outputs: tuple[TensorNode, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop over whole statements: each iteration runs the body as a routine of its own.

    The iterations run one after the other, each on the memory that its predecessor left. A static
    index of the body has the number of the iteration. To the statements around, a repetition is one
    access of its inputs and outputs, as an external call is; passes optimize its body as a program.

    Attributes:
        index: The number of the iteration, in `range(count)`.
        count: The number of iterations.
        is_reversed: True if they run from the last one to the first.
        body: The statements of an iteration.
        inputs: The nodes that an iteration may read before it writes them.
        outputs: The nodes that an iteration writes and that others read.
        complete: The outputs of which the iterations together assign all cells.
        private: The other nodes of the body, with their extents: their cells are undefined at the
            start of an iteration.
    """

    index: indexing.StaticIndex
    count: int
    is_reversed: bool
    body: Block
    inputs: tuple[TensorNode, ...]
    outputs: tuple[TensorNode, ...]
    complete: tuple[TensorNode, ...]
    private: tuple[tuple[TensorNode, NodeInfo], ...] = ()

    @property
    def iterations(self) -> range:
        """The values of the index, in the order of the iterations."""
        every = range(self.count)
        return every[::-1] if self.is_reversed else every


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment, which is carried into generated code."""

    text: str
    origin: Origin | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Code in the language of a backend, together with the statements that define its semantics.

    A backend of the named language may print `text` in place of `body`. Verbatim code is never
    inlined.
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
    | Scatter
    | Fill
    | DeclareLocal
    | SetLocal
    | Allocate
    | Barrier
    | SubgroupReduce
    | Prefetch
    | CheckPositions
    | CallExternal
    | Repeat
    | Remark
    | Verbatim
    | Block
)


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A routine in the loop language.

    Attributes:
        name: A name for files and generated code.
        params: Nodes in memory of the caller, in a stable order. Every other node in `nodes` is
            allocated by an `Allocate` before its first use.
        indices: Static indices, in the order in which the routine takes their values.
        nodes: The format, extents and margins of every node mentioned.
    """

    name: str
    params: tuple[TensorNode, ...]
    indices: tuple[indexing.StaticIndex, ...]
    nodes: Mapping[TensorNode, NodeInfo]
    body: Block

    @property
    def all_nodes(self) -> Mapping[TensorNode, NodeInfo]:
        """The nodes, then the private nodes of iterations."""
        found, pending = dict(self.nodes), [*reversed(self.body.stmts)]
        while pending:
            stmt = pending.pop()
            if isinstance(stmt, Repeat):
                found.update(stmt.private)
                pending += reversed(stmt.body.stmts)
        return found


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a virtual node, for use in other routines."""

    body: tuple[Stmt, ...]
    """Stores to the node, with virtual operands inlined."""
    operands: frozenset[TensorNode]
    overwritten: frozenset[TensorNode]
    """The operands that the routine writes afterwards."""
    has_merge: bool
