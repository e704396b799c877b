"""State of shape inference: solutions, bounds, suspended constraints, and the agenda."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import IdentityMap
from ocannl_core.base.origin import Origin
from ocannl_core.base.undo_log import UndoLog
from ocannl_core.shape.language import constraints
from ocannl_core.shape.language.shape_terms import (
    AffineDim,
    ConcatDim,
    Dim,
    DimVar,
    FreshVariables,
    Row,
    RowKind,
    RowVar,
    Shape,
    Size,
    dim_variables,
)


@dataclass(frozen=True, slots=True)
class Known:
    """A size with its cause.

    Attributes:
        explicit: False if the size is 1 only because uses of the axis disagree; this does not
            propagate to its results.
        cause: The constraint that decided it.
        stated: False for a size that no user stated: a 0 that a formula leaves, the 1 of an axis to
            which a result writes one position, a guessed 1, and consequences of these.
    """

    size: Size
    explicit: bool
    cause: constraints.Constraint
    stated: bool = True


@dataclass(frozen=True, slots=True)
class Floor:
    """The least size that the accessed positions allow."""

    n: int
    cause: constraints.Constraint


@dataclass(frozen=True, slots=True)
class Guessed:
    """The provenance of a guess."""

    stage: str
    closing: Origin


@dataclass(frozen=True, slots=True)
class LeafTensor:
    """A row of a tensor that no operation computes."""

    order: int
    """The ordinal of the leaf in order of declaration."""
    kind: RowKind
    shape: Shape
    """The shape as declared."""
    origin: Origin
    parameter: bool
    """True if its shape must follow from its uses; guesses are refused."""

    @property
    def row(self) -> Row:
        """The row as declared."""
        return self.shape.row(self.kind)


class Edge(NamedTuple):
    """An agenda item: propagate information between the ends of `res ⊑ opnd`."""

    res: DimVar
    opnd: DimVar
    cause: constraints.Constraint


Work = constraints.Constraint | Edge


class SolverState:
    """Solutions, bounds and suspended constraints.

    Mappings are changed through the undo log only, so that an operation can be rolled back. Merged
    variables have a representative (`find`), which holds the entries of a size.

    Attributes:
        undo_log: The undo log of all mappings below.
        fresh: The supply of variables.
        queued: The formulas that `queue` has added to the agenda.
        values: Decided sizes.
        ceilings: Upper bounds: the variable has this size or 1.
        floors: Lower bounds from accesses.
        written: Lower bounds from writes.
        results: For a variable, the sizes below it: `res ⊑ variable`.
        operands: For a variable, the sizes above it: `variable ⊑ opnd`.
        units: For a variable with an operand of size 1, and so no lower bound, the operand.
        unit_bases: For a variable, the bases of its operands of size 1, which it takes if it is 1.
        rows: Solutions of row variables.
        row_leaves: For a row variable, the leaf that decides how it is closed.
        dim_leaves: As `row_leaves`, for sizes.
        suspended: For a row variable, the row constraints that wait for it.
        equations: The equations among them.
        groups: For a row variable in equations, the variables of the same length, once they are
            searched (`ranks.group`).
        within: For a size, the suspended row constraints with it; solved ones may remain.
        formulas: For a size, the formulas with it; solved ones may remain.
        open_formulas: The formulas that wait for sizes.
        concatenations: Equations with a concatenated axis that closing has not processed yet.
        scalars: Constraints on rows that wait because both sides may be scalars.
        scalars_are_decided: True during closing, which gives such rows axes.
        cells: For a row variable, the number of cells of its axes, and the cause.
        optional: Parts of concatenated axes that may be empty.
        spanned: Computed sizes of axes in specs along which operands are broadcast.
        addressed: The axes of specs at which a position other than 0 is read: an operand has these,
            and they are not broadcast.
        anchored: Row variables above a closed operand, which need no further axes. The marks here,
            in `contracted` and in `row_leaves` concern the number of axes, and hold for all
            variables of the same length (`ranks.group`).
        contracted: Row variables that a contraction relates to others: no guess is allowed.
        touched_rows: Row variables with new information, for closing.
        touched_dims: As `touched_rows`, for sizes.
        rank_edges: `rank_edges[v][w] = (k, cause)`: v's root has at least k more axes than w's.
        roots: For a row variable that is a part of another one, the outermost of these, and the
            number of its axes outside the part.
        depths: The number of splits that created a row variable.
        parents: The union-find parents of merged variables.
        joins: For a merged variable, the cause of the merge.
        decided_rows: As `rows`, without path compression, with the causes of the solutions.
        guesses: For variables that closing guessed, the provenance.
        closing: The computation that is being closed; None while operations are composed.
        revisions: The number of times that known sizes got other bases, or were retracted.
    """

    def __init__(self, undo_log: UndoLog | None = None) -> None:
        self.undo_log = undo_log or UndoLog()
        self.fresh = FreshVariables(self.undo_log.supply())
        self.agenda: deque[Work] = deque()
        self.queued = IdentityMap[Work, None]()
        self.parents: dict[DimVar, DimVar] = {}
        self.values: dict[DimVar, Known] = {}
        self.ceilings: dict[DimVar, Known] = {}
        self.floors: dict[DimVar, Floor] = {}
        self.written: dict[DimVar, Floor] = {}
        self.results: dict[DimVar, dict[DimVar, constraints.Constraint]] = {}
        self.operands: dict[DimVar, dict[DimVar, constraints.Constraint]] = {}
        self.units: dict[DimVar, Known] = {}
        self.unit_bases: dict[DimVar, dict[str, constraints.Constraint]] = {}
        self.dim_leaves: dict[DimVar, LeafTensor] = {}
        self.joins: dict[DimVar, constraints.Constraint] = {}
        self.rows: dict[RowVar, Row] = {}
        self.decided_rows: dict[RowVar, tuple[Row, constraints.Constraint]] = {}
        self.guesses: dict[DimVar | RowVar, Guessed] = {}
        self.closing: Origin | None = None
        self.revisions = 0
        self.suspended: dict[RowVar, dict[constraints.RowConstraint, None]] = {}
        self.equations: dict[RowVar, dict[constraints.RowEquation, None]] = {}
        self.groups: dict[RowVar, dict[RowVar, None]] = {}
        self.within: dict[DimVar, dict[constraints.RowConstraint, None]] = {}
        self.formulas: dict[DimVar, dict[constraints.Formula, None]] = {}
        self.open_formulas: dict[constraints.Formula, None] = {}
        self.concatenations: dict[constraints.DimEqual, None] = {}
        self.scalars: dict[constraints.RowBelow, None] = {}
        self.scalars_are_decided = False
        self.cells: dict[RowVar, tuple[int, constraints.TotalElements]] = {}
        self.optional: dict[DimVar, bool] = {}
        self.spanned: dict[DimVar, bool] = {}
        self.addressed: dict[DimVar, bool] = {}
        self.row_leaves: dict[RowVar, LeafTensor] = {}
        self.anchored: dict[RowVar, bool] = {}
        self.contracted: dict[RowVar, bool] = {}
        self.rank_edges: dict[RowVar, dict[RowVar, tuple[int, constraints.Constraint]]] = {}
        self.roots: dict[RowVar, tuple[RowVar, int]] = {}
        self.depths: dict[RowVar, int] = {}
        self.touched_rows: dict[RowVar, None] = {}
        self.touched_dims: dict[DimVar, None] = {}

    @property
    def tables(self) -> list[dict[Any, Any]]:
        """All mappings and sets; their keys are variables, or constraints (`unknowns_in`)."""
        return [each for each in vars(self).values() if isinstance(each, dict)]

    def find(self, var: DimVar) -> DimVar:
        """Return the representative of a variable."""
        while (parent := self.parents.get(var)) is not None:
            var = parent
        return var

    def size(self, dim: Dim) -> Size | None:
        """Return a size that is decided or computable; None for others."""
        match dim:
            case Size():
                return dim
            case DimVar():
                known = self.values.get(self.find(dim))
                return known.size if known else None
            case ConcatDim(parts):
                sizes = [self.size(part) for part in parts]
                return None if None in sizes else Size(sum(size.n for size in sizes if size))
            case AffineDim(stride, over, window):
                positions = self.size(over)
                if positions is None or window is None or window.padded:
                    return Size(stride * positions.n) if positions else None
                kernel = self.size(window.kernel)
                if kernel is None:
                    return None
                span = 1 + (kernel.n - 1) * window.dilation
                return Size(stride * (positions.n - 1) + span)
            case _:
                assert_never(dim)

    def may_be_one(self, dim: Dim) -> bool:
        """Return True unless the size is known and not 1."""
        size = self.size(dim)
        if size is not None:
            return size.n == 1
        floor = self.floors.get(self.find(dim)) if isinstance(dim, DimVar) else None
        return floor is None or floor.n <= 1

    def is_never_broadcast(self, dim: Dim) -> bool:
        """Return True for a variable without a role in a spec whose size is known and not 1."""
        if not isinstance(dim, DimVar):
            return False
        known = self.values.get(self.find(dim))
        return known is not None and known.size.n != 1 and not self.has_role(dim)

    def has_role(self, var: DimVar) -> bool:
        """Return True for a variable that specs mark."""
        return var in self.addressed or var in self.spanned or var in self.optional

    def is_stated_as(self, dim: Dim, size: Dim) -> bool:
        """Return True for a variable that is known to have a size for a reason as good as any."""
        known = self.values.get(self.find(dim)) if isinstance(dim, DimVar) else None
        return known is not None and known.explicit and known.stated and known.size == size

    def current(self, dim: Dim) -> Dim:
        """Return the size, or the representative of its variable."""
        size = self.size(dim)
        if size is not None:
            return size
        return self.find(dim) if isinstance(dim, DimVar) else dim

    def flat(self, row: Row) -> Row:
        """Return the row with its variable's solution substituted; sizes are not."""
        leading, tail, trailing = row.leading, row.tail, row.trailing
        if tail is None or tail not in self.rows:
            return row
        solution = self.rows[tail]
        if solution.tail in self.rows:
            ahead, behind = solution.leading, solution.trailing
            last: RowVar | None = solution.tail
            while last is not None and (value := self.rows.get(last)) is not None:
                ahead += value.leading
                behind = value.trailing + behind
                last = value.tail
            solution = Row(ahead, last, behind)
            self.undo_log.put(self.rows, tail, solution)
        if not row.known:
            return solution
        return Row(leading + solution.leading, solution.tail, solution.trailing + trailing)

    def current_row(self, row: Row) -> Row:
        """Return the row as far as it is known, with its variable's solution and known sizes."""
        flat = self.flat(row)
        if flat.is_closed:
            return flat
        current = self.current
        return Row(tuple(map(current, flat.leading)), flat.tail, tuple(map(current, flat.trailing)))

    def unknowns(self, row: Row) -> tuple[RowVar | None, list[DimVar]]:
        """Return the undecided variables of a row."""
        flat = self.flat(row) if row.tail in self.rows else row
        return flat.tail, self.undecided(flat.leading + flat.trailing) if flat.known else []

    def undecided(self, dims: Iterable[Dim]) -> list[DimVar]:
        """Return the representatives of the undecided variables in sizes."""
        found: list[DimVar] = []
        for dim in dims:
            if isinstance(dim, Size):
                continue
            for each in (dim,) if isinstance(dim, DimVar) else dim_variables(dim):
                var = self.find(each) if each in self.parents else each
                if var not in self.values:
                    found.append(var)
        return found

    def root(self, var: RowVar) -> tuple[RowVar, int]:
        """Return the variable that another is a part of, and the number of its other axes."""
        return self.roots.get(var, (var, 0))

    def causes(self, row: Row) -> list[constraints.Constraint]:
        """Return the causes of a row variable's solution, and of the variables in it."""
        found: list[constraints.Constraint] = []
        tail = row.tail
        while tail is not None and tail in self.decided_rows:
            solution, cause = self.decided_rows[tail]
            found.append(cause)
            tail = solution.tail
        return found

    def mark_dim(self, dim: Dim, leaf: LeafTensor) -> None:
        """Mark a size as belonging to a leaf."""
        if isinstance(dim, DimVar):
            var = self.find(dim)
            self.undo_log.put(self.dim_leaves, var, preferred_leaf(self.dim_leaves.get(var), leaf))
            self.touched_dims[var] = None

    def mark_row(self, var: RowVar, leaf: LeafTensor) -> None:
        """Mark a row variable as belonging to a leaf."""
        self.undo_log.put(self.row_leaves, var, preferred_leaf(self.row_leaves.get(var), leaf))
        self.touched_rows[var] = None

    def anchor(self, var: RowVar) -> None:
        """Mark a row variable whose row is above a closed operand."""
        if var not in self.anchored:
            self.undo_log.put(self.anchored, var, True)
        self.touched_rows[var] = None  # it may have been its last open operand

    def suspend(self, constraint: constraints.RowConstraint) -> bool:
        """Suspend a constraint until one of its row variables is solved.

        Return False if it is suspended already; then each of its variables has it.
        """
        add_inner = self.undo_log.add_inner
        is_new = False
        for row in sides(constraint):
            tail = row.tail
            if tail is not None:
                if not is_new and constraint in self.suspended.get(tail, ()):
                    return False
                is_new = True
                add_inner(self.suspended, tail, constraint)
                if isinstance(constraint, constraints.RowEquation):
                    add_inner(self.equations, tail, constraint)
                    self.undo_log.set(self, "groups", {})
                self.touched_rows[tail] = None
            if row.leading or row.trailing:
                for var in self.undecided(row.dims):
                    add_inner(self.within, var, constraint)
        return True

    def is_suspended(self, constraint: constraints.RowConstraint) -> bool:
        """Return True if the constraint is suspended already; then each of its variables has it."""
        for row in sides(constraint):
            if row.tail is not None:
                return constraint in self.suspended.get(row.tail, ())
        return False

    def watch(self, formula: constraints.Formula, dims: tuple[Dim, ...]) -> None:
        """Add a formula to the agenda whenever one of its sizes has new information."""
        for dim in dims:
            for var in dim_variables(dim):
                self.undo_log.add_inner(self.formulas, self.find(var), formula)

    def queue(self, var: DimVar) -> None:
        """Add the formulas with a size to the agenda, unless they are there: one of n parts would
        be solved n times.
        """
        for formula in self.formulas.get(var, ()):
            if formula not in self.queued:
                self.queued[formula] = None
                self.agenda.append(formula)

    def wait(self, formula: constraints.Formula, dims: tuple[Dim, ...] = ()) -> None:
        """Record that a formula is unsolved, and that there is news about sizes in it."""
        if formula not in self.open_formulas:
            self.undo_log.put(self.open_formulas, formula, None)
        self.touched_dims.update(dict.fromkeys(self.undecided(dims)))

    def wake(self, var: RowVar) -> None:
        """Add the constraints that wait for a row variable to the agenda."""
        woken = self.suspended.get(var)
        if not woken:
            return
        self.undo_log.put(self.suspended, var, {})
        if self.equations.get(var):
            self.undo_log.put(self.equations, var, {})
            self.undo_log.set(self, "groups", {})
        for constraint in woken:
            for row in sides(constraint):
                if row.tail is not None and row.tail != var and row.tail in self.suspended:
                    self.undo_log.remove(self.suspended[row.tail], constraint)
                    if isinstance(constraint, constraints.RowEquation):
                        self.undo_log.remove(self.equations[row.tail], constraint)
            self.agenda.append(constraint)


def unknowns_in(constraint: constraints.Formula | constraints.RowBelow) -> list[DimVar | RowVar]:
    """Return the variables in a constraint of a set of the solver's state."""
    match constraint:
        case constraints.DimEqual(one, other) | constraints.SliceLength(one, other):
            rows: tuple[Row, ...] = (Row(trailing=(one, other)),)
        case constraints.RowBelow():
            rows = sides(constraint)
        case constraints.TotalElements(count=count, divided_by=divisors):
            counted = () if isinstance(count, int) else (count.dim,)
            rows = (*sides(constraint), Row(trailing=(*counted, *divisors)))
        case _:
            assert_never(constraint)
    return [each for row in rows for each in row.unknowns]


def sides(constraint: constraints.RowConstraint) -> tuple[Row, ...]:
    """Return the rows of a constraint: left and right, result and operand, or all of them."""
    match constraint:
        case constraints.RowBelow(res, opnd):
            return res, opnd
        case constraints.RowEqual(left, right) | constraints.ReverseEqual(left, right):
            return left, right
        case constraints.TotalElements(rows=rows) | constraints.Exact(rows=rows):
            return rows
        case constraints.Selection(source, positions, result):
            return (*source, *positions, *result)
        case constraints.RowJoin(whole, parts):
            return (whole, *parts)
        case constraints.Subscript(result, operand):
            return tuple(row for shape in (result, operand) for _, row in shape.rows())
        case _:
            assert_never(constraint)


def preferred_leaf(one: LeafTensor | None, other: LeafTensor) -> LeafTensor:
    """Return the leaf that decides how a shared variable is closed: a parameter, else the first."""
    if one is None:
        return other
    return min(one, other, key=lambda leaf: (not leaf.parameter, leaf.order))
