"""Projections: from closed shapes to the loops and index maps of an operation.

Each occurrence of an axis gets an identity of its own, and the constraints of the operation are
solved anew, so that no other operation can unify axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import count

from ocannl_core.base.errors import ShapeError, VerifyError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir import indexing
from ocannl_core.shape.language.shape_terms import Row, Shape, Size
from ocannl_core.shape.language.subscripts import Keys, depends_on_size, operand_index, sliced_shape
from ocannl_core.shape.projections.axis_classes import derive
from ocannl_core.shape.projections.selection_maps import loops_over, project_selection
from ocannl_core.shape.solving import solver
from ocannl_core.shape.solving.state import SolverState
from ocannl_core.shape.translation.logic import (
    Adjoint,
    Logic,
    NumbersOfWords,
    PlaceRows,
    ScatterRows,
    Slice,
    SliceUpdate,
    Take,
    TakeAlong,
    relation_of,
)


def project(
    logic: Logic, result: Shape, operands: Sequence[Shape], origin: Origin
) -> indexing.Projections:
    """Return the domain and the index maps of an operation on closed shapes.

    An axis `a^b` of which one part is taken, as in `a^b => b`, has the part's index plus the sizes
    of the parts before it, and no loop goes over the others. Otherwise its index is a
    `ConcatIndex`, of which lowering makes one nest per part. For an operation like `a; b => a^b`
    the caller emits one assignment per operand, with that operand's index map alone and a domain
    restricted to the variables of the result and of this operand: the first one resets the
    result, the others do not. Only the nest of the operand's own part is then generated.

    Raises:
        ShapeError: if the shapes contradict the operation, one axis is indexed in two ways, or the
            size of a window is unknown.
        SpecError: if the spec of the operation does not fit.
    """
    if isinstance(logic, NumbersOfWords):
        return _project_words(logic.per_word, result, operands[0])
    if isinstance(logic, Adjoint):
        found = project(logic.logic, logic.shapes[0], logic.shapes[1:], origin)
        return indexing.exchange_roles(found, logic.target, logic.sources)
    if isinstance(logic, (Take, TakeAlong, ScatterRows, PlaceRows)):
        return project_selection(logic, result, operands)
    if isinstance(logic, (Slice, SliceUpdate)):
        _refuse_run_time_sizes(
            logic.keys, operands[0] if isinstance(logic, Slice) else result, origin
        )
    if isinstance(logic, Slice):
        return _project_slice(logic, result, operands[0], origin)
    if isinstance(logic, SliceUpdate):
        return _project_update(logic, result, operands, origin)
    key = _key_of((result, *operands))
    case = _Case(logic, key, result, tuple(operands), origin)
    return case.solve() if key is None else _with_fresh_variables(_solved(case))


@dataclass(frozen=True, slots=True)
class _Case:
    """An operation on closed shapes, which determines its projections but for their variables."""

    logic: Logic
    key: tuple[object, ...] | None
    """The sizes and bases of the shapes, which are part of equality in their place."""
    result: Shape = field(compare=False)
    operands: tuple[Shape, ...] = field(compare=False)
    origin: Origin = field(compare=False)
    """The operation, for messages; not part of equality."""

    def solve(self) -> indexing.Projections:
        ids = count()
        result = _with_identities(self.result, ids)
        operands = [_with_identities(operand, ids) for operand in self.operands]
        state = SolverState()
        relation = relation_of(self.logic, result, operands, self.origin, state.fresh)
        return derive(state, relation, result, operands)


@lru_cache(maxsize=2048)
def _solved(case: _Case) -> indexing.Projections:
    """Return the projections of an operation, solved once: programs repeat few operations."""
    return case.solve()


def _with_fresh_variables(found: indexing.Projections) -> indexing.Projections:
    fresh = {var: indexing.fresh_var(var.hint, var.size) for var, _ in found.domain}
    values: dict[indexing.IndexVar, indexing.AxisIndex] = {
        old: indexing.VarIndex(new) for old, new in fresh.items()
    }

    def renamed(index_map: indexing.IndexMap) -> indexing.IndexMap:
        return tuple(
            [
                values.get(index.var, index)
                if isinstance(index, indexing.VarIndex)
                else indexing.substitute(index, values)
                for index in index_map
            ]
        )

    return indexing.Projections(
        tuple([(fresh[var], extent) for var, extent in found.domain]),
        renamed(found.lhs),
        tuple([renamed(each) for each in found.rhs]),
        found.lhs_dims,
        found.rhs_dims,
        found.margins,
        found.lhs_margins,
    )


def _key_of(shapes: Sequence[Shape]) -> tuple[object, ...] | None:
    """Return sizes and bases that are equal for equal shapes; None if an extent is among them."""
    found: list[object] = []
    for shape in shapes:
        for row in (shape.batch, shape.input, shape.output):
            for dim in row.trailing:
                assert isinstance(dim, Size)
                if dim.extent is not None:
                    return None
                found += (dim.n, dim.basis)
            found.append(None)  # the end of a row
    return tuple(found)


def _project_words(per_word: int, result: Shape, words: Shape) -> indexing.Projections:
    """Return the projections of words that expand to runs of cells. The left-hand side is the start
    of each run, in row-major order.
    """
    word = indexing.fresh_var("w")
    (length,) = words.dims
    start = (indexing.affine([(per_word, word)]),) if result.dims else ()
    lhs = (*(indexing.SubAxis() for _ in result.dims[1:]), *start)
    return indexing.Projections(
        ((word, length),), lhs, ((indexing.VarIndex(word),),), result.dims, (words.dims,)
    )


def _project_slice(
    logic: Slice, result: Shape, operand: Shape, origin: Origin
) -> indexing.Projections:
    """Return the projections of a subscript: loops over its result, and affine positions."""
    state = SolverState()
    relation_of(logic, result, [operand], origin, state.fresh).enter(state)
    solver.run(state)  # refuses shapes that contradict the keys
    domain, rows = loops_over(result)
    lhs = tuple(index for row in rows for index in row)
    rhs = (operand_index(logic.keys, operand, lhs),)
    return indexing.Projections(domain, lhs, rhs, result.dims, (operand.dims,))


def _refuse_run_time_sizes(keys: Keys, whole: Shape, origin: Origin) -> None:
    """Refuse keys whose positions depend on a size that is given at run time."""
    for key, size in depends_on_size(keys, whole):
        raise ShapeError(
            "Positions counted from the end, and parts of an axis, need its size.",
            found=f"{type(key).__name__} along an axis of size {size}, which calls give",
            where=str(origin),
            fix="keep the axis whole, or read a position counted from 0",
        )


def _project_update(
    logic: SliceUpdate, result: Shape, operands: Sequence[Shape], origin: Origin
) -> indexing.Projections:
    """Return the projections of a write to a part of the result."""
    found = project(logic.logic, sliced_shape(logic.keys, result), operands, origin)
    if any(isinstance(index, indexing.ConcatIndex) for index in found.lhs) or found.lhs_margins:
        raise ShapeError(
            "A slice is written at single positions, not in concatenated parts or windows.",
            found=f"the logic of {origin.operation}",
            where=str(origin),
            fix="assign the value to a declared tensor first, and that to the slice",
        )
    lhs = operand_index(logic.keys, result, found.lhs)
    return replace(found, lhs=lhs, lhs_dims=result.dims)


def _with_identities(shape: Shape, ids: Iterator[int]) -> Shape:
    """Return the shape with a fresh identity for every axis."""
    if not shape.is_closed:
        raise VerifyError("Projections are derived from closed shapes.", found=str(shape))
    for kind, row in shape.rows():
        sizes = (replace(d, axis_id=next(ids)) for d in row.trailing if isinstance(d, Size))
        shape = shape.with_row(kind, Row(trailing=tuple(sizes)))
    return shape
