"""What shape inference knows, and the work it still has to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ocannl_core.origin import Origin
from ocannl_core.shape.constraints import Constraint, RowBelow, RowConstraint
from ocannl_core.shape.journal import Journal
from ocannl_core.shape.supply import Supply
from ocannl_core.shape.terms import Dim, DimVar, Row, RowKind, RowVar, Size

_Key = TypeVar("_Key")
_Inner = TypeVar("_Inner")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Known:
    """A size, and how it became known.

    Attributes:
        size: The size.
        explicit: False when the size is 1 only because uses of the axis disagree.
        cause: The constraint that decided it.
    """

    size: Size
    explicit: bool
    cause: Constraint


@dataclass(frozen=True, slots=True)
class Floor:
    """The least size that the accessed positions allow."""

    n: int
    cause: Constraint


@dataclass(frozen=True, slots=True)
class Leaf:
    """A row of a tensor that no operation computes.

    Attributes:
        order: Counts leaves in order of declaration.
        kind: Which row of the tensor.
        row: The row as declared.
        origin: What made the tensor.
        parameter: Its shape must follow from its uses; it is never guessed.
    """

    order: int
    kind: RowKind
    row: Row
    origin: Origin
    parameter: bool


class Edge(NamedTuple):
    """Work: what is known of one end of `res ⊑ opnd` may say something about the other end."""

    res: DimVar
    opnd: DimVar
    cause: Constraint


Work = Constraint | Edge


class Flat(NamedTuple):
    """A row with the solutions of its variable substituted."""

    leading: tuple[Dim, ...]
    tail: RowVar | None
    trailing: tuple[Dim, ...]

    @property
    def known(self) -> int:
        """The number of axes known to be there."""
        return len(self.leading) + len(self.trailing)


class State:
    """Solutions, bounds and suspended constraints.

    Every mapping is changed through the journal only, so that an operation can be undone. Variables
    that were joined are represented by one of them (`find`); the other entries about a size are
    kept for representatives.

    Attributes:
        agenda: Work to do.
        values: Sizes decided.
        ceilings: The greatest size: the variable has this size or 1.
        floors: The least size that accesses allow.
        results: For a variable, those below it: `res ⊑ variable`.
        operands: For a variable, those above it: `variable ⊑ opnd`.
        units: Variables with an operand of size 1, which therefore need not be larger.
        rows: Rows decided, for row variables.
        suspended: For a row variable, the row constraints that wait for it.
        within: For a size, the suspended row constraints that mention it; may hold constraints that
            are done.
        anchored: Row variables above a closed operand, which therefore need no more axes.
        contracted: Row variables that meet another row in a product, so that their axes are not
            free to guess. touched_rows, touched_dims: Variables about which something may have been
            learned; a hint for closing.
        rank_edges: `rank_edges[v][w] = k` says that v's root has at least k more axes than w's.
    """

    def __init__(self) -> None:
        self.journal = Journal()
        self.fresh = Supply()
        self.agenda: deque[Work] = deque()
        self.parents: dict[DimVar, DimVar] = {}
        self.values: dict[DimVar, Known] = {}
        self.ceilings: dict[DimVar, Known] = {}
        self.floors: dict[DimVar, Floor] = {}
        self.results: dict[DimVar, dict[DimVar, Constraint]] = {}
        self.operands: dict[DimVar, dict[DimVar, Constraint]] = {}
        self.units: dict[DimVar, Constraint] = {}
        self.dim_leaves: dict[DimVar, Leaf] = {}
        self.rows: dict[RowVar, Row] = {}
        self.row_causes: dict[RowVar, Constraint] = {}
        self.suspended: dict[RowVar, dict[RowConstraint, None]] = {}
        self.within: dict[DimVar, dict[RowConstraint, None]] = {}
        self.row_leaves: dict[RowVar, Leaf] = {}
        self.anchored: dict[RowVar, bool] = {}
        self.contracted: dict[RowVar, bool] = {}
        self.rank_edges: dict[RowVar, dict[RowVar, int]] = {}
        self.roots: dict[RowVar, tuple[RowVar, int]] = {}
        self.depths: dict[RowVar, int] = {}
        self.touched_rows: dict[RowVar, None] = {}
        self.touched_dims: dict[DimVar, None] = {}

    # ----- looking things up --------------------------------------------------------------------

    def find(self, var: DimVar) -> DimVar:
        """Returns the representative of a variable."""
        while (parent := self.parents.get(var)) is not None:
            var = parent
        return var

    def size(self, dim: Dim) -> Size | None:
        """Returns the size, if it is decided."""
        if isinstance(dim, Size):
            return dim
        if isinstance(dim, DimVar):
            known = self.values.get(self.find(dim))
            return known.size if known else None
        return None

    def current(self, dim: Dim) -> Dim:
        """Returns the size, or the representative of its variable."""
        if not isinstance(dim, DimVar):
            return dim
        var = self.find(dim)
        known = self.values.get(var)
        return known.size if known else var

    def flat(self, row: Row) -> Flat:
        """Returns the row with its variable's solution substituted; sizes are left as they are."""
        leading, tail, trailing = row.leading, row.tail, row.trailing
        steps = 0
        while tail is not None and (value := self.rows.get(tail)) is not None:
            leading += value.leading
            trailing = value.trailing + trailing
            tail = value.tail
            steps += 1
        if steps > 1 and row.tail is not None:
            ahead = leading[len(row.leading) :]
            behind = trailing[: len(trailing) - len(row.trailing)]
            self.journal.put(self.rows, row.tail, Row(ahead, tail, behind))
        if tail is None:
            return Flat((), None, leading + trailing)
        return Flat(leading, tail, trailing)

    def unknowns(self, row: Row) -> tuple[RowVar | None, list[DimVar]]:
        """Returns the undecided variables of a row."""
        flat = self.flat(row)
        return flat.tail, list(self.undecided((*flat.leading, *flat.trailing)))

    def undecided(self, dims: tuple[Dim, ...]) -> Iterator[DimVar]:
        """Yields the representatives of the undecided variables among sizes."""
        for dim in dims:
            if isinstance(dim, DimVar):
                var = self.find(dim)
                if var not in self.values:
                    yield var

    def root(self, var: RowVar) -> tuple[RowVar, int]:
        """Returns the variable that another is a part of, and how many axes lie outside it."""
        return self.roots.get(var, (var, 0))

    # ----- recording ----------------------------------------------------------------------------

    def put_inner(
        self, outer: dict[_Key, dict[_Inner, _Value]], key: _Key, inner: _Inner, value: _Value
    ) -> None:
        """Sets `outer[key][inner]`."""
        mapping = outer.get(key)
        if mapping is None:
            mapping = outer[key] = {}
        self.journal.put(mapping, inner, value)

    def mark_dim(self, dim: Dim, leaf: Leaf) -> None:
        """Marks a size as belonging to a leaf."""
        if isinstance(dim, DimVar):
            var = self.find(dim)
            self.journal.put(self.dim_leaves, var, _stronger(self.dim_leaves.get(var), leaf))
            self.touched_dims[var] = None

    def mark_row(self, var: RowVar, leaf: Leaf) -> None:
        """Marks a row variable as belonging to a leaf."""
        self.journal.put(self.row_leaves, var, _stronger(self.row_leaves.get(var), leaf))
        self.touched_rows[var] = None

    def suspend(self, constraint: RowConstraint) -> None:
        """Keeps a constraint until one of the row variables in it is solved."""
        left, right = sides(constraint)
        for row in (left, right):
            if row.tail is not None:
                self.put_inner(self.suspended, row.tail, constraint, None)
                self.touched_rows[row.tail] = None
            for var in self.undecided(row.dims):
                self.put_inner(self.within, var, constraint, None)

    def is_suspended(self, constraint: RowConstraint) -> bool:
        """True when the constraint waits already."""
        return any(
            row.tail is not None and constraint in self.suspended.get(row.tail, ())
            for row in sides(constraint)
        )

    def wake(self, var: RowVar) -> None:
        """Puts the constraints that wait for a row variable on the agenda."""
        for constraint in list(self.suspended.get(var, ())):
            for row in sides(constraint):
                if row.tail is not None and row.tail in self.suspended:
                    self.journal.remove(self.suspended[row.tail], constraint)
            self.agenda.append(constraint)


def sides(constraint: RowConstraint) -> tuple[Row, Row]:
    """Returns the two rows of a constraint: left and right, or result and operand."""
    left, right = (
        (constraint.res, constraint.opnd)
        if isinstance(constraint, RowBelow)
        else (constraint.left, constraint.right)
    )
    return left, right


def _stronger(one: Leaf | None, other: Leaf) -> Leaf:
    """Returns the leaf that decides how a shared variable closes: a parameter, else the first."""
    if one is None:
        return other
    return min(one, other, key=lambda leaf: (not leaf.parameter, leaf.order))
