"""Solver of constraints on sizes.

Information on a variable grows monotonically: nothing, a ceiling (`this size or 1`), a size, a size
with a basis. Each step is implied by the constraints, so that their order is irrelevant; guesses
are made in `close`.
"""

from __future__ import annotations

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.shape.language.constraints import AtLeast, Constraint, DimBelow, DimEqual
from ocannl_core.shape.language.shape_terms import (
    ONE_WRITTEN,
    ConcatDim,
    DimVar,
    Size,
    dim_variables,
)
from ocannl_core.shape.solving import computed_sizes
from ocannl_core.shape.solving.derivations import sources
from ocannl_core.shape.solving.messages import sizes_differ, too_small
from ocannl_core.shape.solving.state import Edge, Floor, Known, SolverState


def equate(state: SolverState, constraint: DimEqual) -> None:
    """Unify two sizes."""
    left, right = constraint.left, constraint.right
    match left, right:
        case DimVar(), DimVar():
            _merge_variables(state, left, right, constraint)
        case DimVar(), Size():
            decide(state, left, Known(right, True, constraint))
        case Size(), DimVar():
            decide(state, right, Known(left, True, constraint))
        case Size(), Size():
            if _merge_sizes(left, right) is None:
                raise sizes_differ(left, constraint, right, constraint)
        case _:
            _equate_formula(state, constraint)


def _equate_formula(state: SolverState, equation: DimEqual) -> None:
    """Solve an equation with a computed size; it waits if nothing follows."""
    state.watch(equation, (equation.left, equation.right))
    if isinstance(equation.right, ConcatDim) or isinstance(equation.left, ConcatDim):
        state.undo_log.put(state.concatenations, equation, None)
    outcome = computed_sizes.solve(state, equation)
    if outcome.waits:
        state.wait(equation, (equation.left, equation.right))
        return
    state.undo_log.remove(state.open_formulas, equation)
    if outcome.same is not None:
        _merge_variables(state, *outcome.same, equation)
    if outcome.solved is not None:
        var, size = outcome.solved
        decide(state, var, Known(size, True, equation, _is_stated(state, equation, var, size)))


def _is_stated(state: SolverState, equation: DimEqual, var: DimVar, size: Size) -> bool:
    """Return True if an equation states the size, as opposed to deriving it.

    The 1 of an axis to which a result writes one position is not stated, nor is a 0 unless others
    are stated to be 0.
    """
    sides = (equation.left, equation.right)
    if size.n:
        return ONE_WRITTEN not in sides
    others = [Known(dim, True, equation) for dim in sides if isinstance(dim, Size)]
    unknown = {state.find(dim) for side in sides for dim in dim_variables(side)} - {state.find(var)}
    others += [state.values[dim] for dim in unknown if dim in state.values]
    stated = [known.size.n == 0 and known.stated for known in others]
    return any(stated) and (all(stated) or not any(isinstance(s, ConcatDim) for s in sides))


def refine(state: SolverState, constraint: DimBelow) -> None:
    """Solve `res ⊑ opnd`."""
    res, opnd = constraint.res, constraint.opnd
    match res, opnd:
        case DimVar(), DimVar():
            _connect(state, state.find(res), state.find(opnd), constraint)
        case DimVar(), Size():
            if opnd.n == 1:
                _has_unit_operand(state, state.find(res), Known(opnd, True, constraint))
            else:
                decide(state, res, Known(opnd, True, constraint))
        case Size(), DimVar():
            _bound(state, opnd, Known(res, True, constraint))
        case Size(), Size():
            if _merge_sizes(res, opnd) is None and (opnd.n != 1 or res.n == 1):
                raise sizes_differ(res, constraint, opnd, constraint)
        case (DimVar() | Size(), _):
            state.agenda.append(DimEqual(res, opnd, constraint.origin, constraint.axis))
        case (_, DimVar()):
            # The operand may turn out to be 1, which says nothing about the formula.
            whole = state.fresh.dim()
            state.agenda.append(DimEqual(whole, res, constraint.origin, constraint.axis))
            state.agenda.append(DimBelow(whole, opnd, constraint.origin, constraint.axis))
        case (_, Size(1)):
            pass
        case _:
            state.agenda.append(DimEqual(res, opnd, constraint.origin, constraint.axis))


def propagate(state: SolverState, edge: Edge) -> None:
    """Propagate information between the two ends of `res ⊑ opnd`."""
    res, opnd = state.find(edge.res), state.find(edge.opnd)
    if res == opnd:
        return
    state.touched_dims[res] = None
    state.touched_dims[opnd] = None
    below, above = state.values.get(res), state.values.get(opnd)
    if above is not None and above.size.n == 1:
        if above.explicit:
            _has_unit_operand(state, res, Known(Size(1), True, edge.cause, above.stated))
        if below is not None and below.size.n == 1:
            _share_basis(state, edge, below, above)
    elif above is not None:
        new = Known(above.size, above.explicit, edge.cause, above.stated)
        decide(state, res, new, blame=above.cause)
        decide(state, opnd, replace(new, size=state.values[res].size))
    elif not state.may_be_one(opnd):
        _merge_variables(state, res, opnd, edge.cause)
    elif below is not None:
        new = Known(below.size, below.explicit, edge.cause, below.stated)
        _bound(state, opnd, new, blame=below.cause)
    elif (ceiling := state.ceilings.get(res)) is not None:
        _bound(state, opnd, Known(ceiling.size, True, edge.cause, ceiling.stated))


def decide(state: SolverState, dim: DimVar, new: Known, blame: Constraint | None = None) -> None:
    """Decide the size of a variable.

    Args:
        blame: The source of the size, if `new.cause` only propagates it.

    Raises:
        ShapeError: if the variable has another size, or the size is out of its bounds.
    """
    var = state.find(dim)
    size, explicit, cause = new.size, new.explicit, new.cause
    if (old := state.values.get(var)) is not None:
        merged = _merge_sizes(old.size, size)
        if merged is None:
            raise _sizes_differ(state, old, Known(size, explicit, blame or cause), cause)
        is_stated = merged.n <= 1 and new.stated and not old.stated
        if merged.basis == old.size.basis and old.explicit >= explicit and not is_stated:
            return
        cause = cause if is_stated or merged.basis != old.size.basis else old.cause
        state.revisions += merged.basis != old.size.basis
        size, explicit = merged, old.explicit or explicit
    else:
        ceiling = state.ceilings.get(var)
        if ceiling is not None and size.n != 1:
            merged = _merge_sizes(ceiling.size, size)
            if merged is None:
                raise _sizes_differ(state, ceiling, Known(size, explicit, blame or cause), cause)
            size = merged
        floor = state.floors.get(var)
        if floor is not None and size.n < floor.n:
            raise _too_small(state, Known(size, explicit, blame or cause), floor, cause)
    stated = new.stated or (old is not None and old.stated)
    state.undo_log.put(state.values, var, Known(size, explicit, cause, stated))
    state.queue(var)
    state.agenda.extend(
        each for each in state.within.get(var, ()) if each in state.scalars and size.n != 1
    )
    _notify_results(state, var)
    _notify_operands(state, var)
    if old is None and size.n == 1:
        _take_unit_bases(state, var)


def _sizes_differ(state: SolverState, one: Known, other: Known, meeting: Constraint) -> ShapeError:
    causes = _with_meeting(meeting, sources(state, one.cause, other.cause))
    return sizes_differ(one.size, one.cause, other.size, other.cause, causes)


def _too_small(state: SolverState, known: Known, floor: Floor, meeting: Constraint) -> ShapeError:
    causes = _with_meeting(meeting, sources(state, known.cause, floor.cause))
    return too_small(known.size, known.cause, floor.n, floor.cause, causes)


def _with_meeting(meeting: Constraint, causes: list[Constraint]) -> list[Constraint]:
    """Return causes, after the constraint by which sizes meet unless its operation is theirs."""
    operations = {each.origin.at("") for each in causes}
    return causes if meeting.origin.at("") in operations else [meeting, *causes]


def at_least(state: SolverState, constraint: AtLeast) -> None:
    """Impose a lower bound on a size.

    Raises:
        ShapeError: if the size is less.
    """
    dim = constraint.dim
    match dim:
        case DimVar():
            var = state.find(dim)
            if constraint.lengthens:
                _record_written(state, var, Floor(constraint.n, constraint))
            _raise_floor(state, var, Floor(constraint.n, constraint))
        case Size():
            if dim.n < constraint.n:
                raise too_small(dim, constraint, constraint.n, constraint)
        case _:
            fresh = state.fresh.dim()
            state.agenda.append(DimEqual(fresh, dim, constraint.origin, constraint.axis))
            state.agenda.append(replace(constraint, dim=fresh))


def _record_written(state: SolverState, var: DimVar, floor: Floor) -> None:
    old = state.written.get(var)
    if old is None or old.n < floor.n:
        state.undo_log.put(state.written, var, floor)


def _raise_floor(state: SolverState, var: DimVar, floor: Floor) -> None:
    old = state.floors.get(var)
    if old is not None and old.n >= floor.n:
        return
    known = state.values.get(var)
    if known is not None and known.size.n < floor.n:
        raise _too_small(state, known, floor, floor.cause)
    state.undo_log.put(state.floors, var, floor)
    state.touched_dims[var] = None
    if floor.n > 1 and (old is None or old.n == 1):
        _notify_results(state, var)
        state.agenda.extend(each for each in state.within.get(var, ()) if each in state.scalars)
    if known is None and (ceiling := state.ceilings.get(var)) is not None:
        _decide_between_bounds(state, var, floor, ceiling)


def _decide_between_bounds(state: SolverState, var: DimVar, floor: Floor, ceiling: Known) -> None:
    """Decide a variable between bounds: one that is `n` or 1, and not 1, is `n`."""
    if floor.n > 1:
        if ceiling.size.n < floor.n:
            raise _too_small(state, ceiling, floor, floor.cause)
        decide(state, var, ceiling)


def _bound(state: SolverState, dim: DimVar, new: Known, blame: Constraint | None = None) -> None:
    """Solve `size ⊑ variable`: the variable has this size, or 1."""
    var = state.find(dim)
    if new.size.n == 1:
        decide(state, var, new, blame)
        return
    if (known := state.values.get(var)) is not None:
        if known.size.n != 1:
            decide(state, var, new, blame)
        return
    old = state.ceilings.get(var)
    merged = new.size if old is None else _merge_sizes(old.size, new.size)
    if merged is None:
        decide(state, var, Known(Size(1), var in state.units, new.cause))
        return
    if old is not None and old.size.basis == merged.basis and old.stated >= new.stated:
        return
    stated = new.stated or (old is not None and old.stated)
    ceiling = Known(merged, True, old.cause if old else new.cause, stated)
    state.undo_log.put(state.ceilings, var, ceiling)
    state.touched_dims[var] = None
    if (floor := state.floors.get(var)) is not None:
        _decide_between_bounds(state, var, floor, ceiling)
    if var not in state.values:
        _notify_operands(state, var)


def _has_unit_operand(state: SolverState, var: DimVar, unit: Known) -> None:
    """Record an operand of size 1: the variable is 1, unless a size below it is larger."""
    basis = unit.size.basis
    if basis is not None and basis not in state.unit_bases.get(var, ()):
        state.undo_log.put_inner(state.unit_bases, var, basis, unit.cause)
        _take_unit_bases(state, var)
    earlier = state.units.get(var)
    if earlier is None or (unit.stated and not earlier.stated):
        state.undo_log.put(state.units, var, unit)
    state.touched_dims[var] = None
    known = state.values.get(var)
    if known is not None and known.size.n == 1 and not known.explicit:
        decide(state, var, Known(known.size, True, unit.cause))


def _take_unit_bases(state: SolverState, var: DimVar) -> None:
    """Take the bases of operands of size 1 for a variable that is 1 and so not broadcast."""
    for basis, cause in state.unit_bases.get(var, {}).items():
        known = state.values.get(var)
        if known is None or known.size.n != 1:
            return
        decide(state, var, Known(Size(1, basis), known.explicit, cause, known.stated))


def _share_basis(state: SolverState, edge: Edge, below: Known, above: Known) -> None:
    """Unify the bases of both ends of `1 ⊑ 1`."""
    for end, known, other in ((edge.res, below, above), (edge.opnd, above, below)):
        if other.size.basis is not None:
            unified = replace(known, size=other.size, cause=edge.cause)
            decide(state, end, unified, blame=other.cause)


def _connect(state: SolverState, res: DimVar, opnd: DimVar, cause: Constraint) -> None:
    if res == opnd or opnd in state.operands.get(res, ()):
        return
    if res in state.operands.get(opnd, ()):
        _merge_variables(state, res, opnd, cause)
        return
    # the result cannot have another size: one variable takes the place of two and an edge
    if state.is_never_broadcast(opnd) and not state.has_role(res):
        _merge_variables(state, res, opnd, cause)
        return
    state.undo_log.put_inner(state.operands, res, opnd, cause)
    state.undo_log.put_inner(state.results, opnd, res, cause)
    propagate(state, Edge(res, opnd, cause))


def _merge_variables(state: SolverState, left: DimVar, right: DimVar, cause: Constraint) -> None:
    """Merge two variables; the edges of the one with fewer edges move."""
    light, heavy = state.find(left), state.find(right)
    if light == heavy:
        return
    if _degree(state, light) > _degree(state, heavy):
        light, heavy = heavy, light
    undo_log = state.undo_log
    undo_log.put(state.parents, light, heavy)
    undo_log.put(state.joins, light, cause)
    _move_edges(state, light, heavy, cause)
    for constraint in state.within.get(light, ()):
        undo_log.add_inner(state.within, heavy, constraint)
        if constraint in state.scalars and not state.may_be_one(heavy):
            state.agenda.append(constraint)
    for formula in state.formulas.get(light, ()):
        undo_log.add_inner(state.formulas, heavy, formula)
    state.queue(light)
    for marks in (state.optional, state.spanned):
        if marks.get(light) != marks.get(heavy):
            undo_log.put(marks, heavy, False)
    if light in state.units:
        _has_unit_operand(state, heavy, state.units[light])
    for basis, why in state.unit_bases.get(light, {}).items():
        _has_unit_operand(state, heavy, Known(Size(1, basis), True, why, False))
    if (leaf := state.dim_leaves.get(light)) is not None:
        state.mark_dim(heavy, leaf)
    if (written := state.written.get(light)) is not None:
        _record_written(state, heavy, written)
    if (floor := state.floors.get(light)) is not None:
        _raise_floor(state, heavy, floor)
    if (known := state.values.get(light)) is not None:
        state.revisions += 1
        decide(state, heavy, replace(known, cause=cause), known.cause)
    elif (ceiling := state.ceilings.get(light)) is not None:
        _bound(state, heavy, ceiling)
    state.touched_dims[heavy] = None


def _move_edges(state: SolverState, light: DimVar, heavy: DimVar, cause: Constraint) -> None:
    undo_log = state.undo_log
    for res, why in list(state.results.get(light, {}).items()):
        undo_log.remove(state.operands[res], light)
        if res != heavy:
            state.undo_log.put_inner(state.operands, res, heavy, why)
            state.undo_log.put_inner(state.results, heavy, res, why)
            state.agenda.append(Edge(res, heavy, why))
            if res in state.operands.get(heavy, ()):
                state.agenda.append(DimEqual(res, heavy, cause.origin))
    for opnd, why in list(state.operands.get(light, {}).items()):
        undo_log.remove(state.results[opnd], light)
        if opnd != heavy:
            state.undo_log.put_inner(state.results, opnd, heavy, why)
            state.undo_log.put_inner(state.operands, heavy, opnd, why)
            state.agenda.append(Edge(heavy, opnd, why))
            if opnd in state.results.get(heavy, ()):
                state.agenda.append(DimEqual(opnd, heavy, cause.origin))


def _degree(state: SolverState, var: DimVar) -> int:
    return len(state.results.get(var, ())) + len(state.operands.get(var, ()))


def _notify_results(state: SolverState, var: DimVar) -> None:
    state.agenda.extend(Edge(res, var, why) for res, why in state.results.get(var, {}).items())


def _notify_operands(state: SolverState, var: DimVar) -> None:
    state.agenda.extend(Edge(var, opnd, why) for opnd, why in state.operands.get(var, {}).items())


def _merge_sizes(one: Size, other: Size) -> Size | None:
    """Return the common size, with the basis of either; None if the sizes differ."""
    if one.n != other.n or one.extent is not other.extent:
        return None
    if one.basis and other.basis and one.basis != other.basis:
        return None
    return one if one.basis or not other.basis else other
