"""Index variables, axis indices, and the index maps (projections) of an assignment.

An assignment runs over a *domain*, the product of the ranges of its loop variables. Every tensor it
touches has an *index map*: one axis index per axis of the buffer, each an affine function of the
domain's variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, product
from numbers import Integral
from typing import Any, NoReturn, TypeGuard, assert_never

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass

_ids = count()


@dataclass(frozen=True, slots=True, eq=False)
class LoopVar:
    """A loop variable, compared by identity; printers number the variables of a program.

    Attributes:
        id: Tells variables apart.
        hint: The name that printers begin with.
        size: In the domain of an assignment, the extent at run time of the axes that it traverses;
            None if their size is constant. Loops state it as a bound.
    """

    id: int
    hint: str = "i"
    size: StaticExtent | None = None


def fresh_var(hint: str = "i", size: StaticExtent | None = None) -> LoopVar:
    """Return a fresh loop variable."""
    return LoopVar(next(_ids), hint, size)


class IndexArithmetic:
    """The arithmetic of static indices: sums, differences and multiples.

    i + 1, 2 * i - j      -->  IndexExpression
    (i + 4) - i           -->  4
    """

    __slots__ = ()

    def __add__(self, other: object) -> Any:
        return _combined((1, self), (1, other))

    def __radd__(self, other: object) -> Any:
        return _combined((1, other), (1, self))

    def __sub__(self, other: object) -> Any:
        return _combined((1, self), (-1, other))

    def __rsub__(self, other: object) -> Any:
        return _combined((1, other), (-1, self))

    def __mul__(self, other: object) -> Any:
        return _combined((other, self)) if is_whole(other) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return _combined((-1, self))

    def __index__(self) -> NoReturn:
        raise UsageError.at_caller(
            "Indices and extents of a program get their values when a routine is called.",
            found=f"{self} where Python needs a number",
            fix="oc.number makes a tensor of it; n.maximum is the greatest value of an extent n\n"
            'a size n + 1 is an extent of its own: oc.static_extent("m", max=9)',
        )

    __int__ = __float__ = __index__


@dataclass(frozen=True, slots=True, eq=False)
class StaticIndex(IndexArithmetic):
    """An integer argument of a routine, compared by identity.

    Attributes:
        name: The keyword under which the routine takes the value.
        extent: The value lies in `range(extent)`; None if only its uses bound it.
    """

    name: str
    extent: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class IndexExpression(IndexArithmetic):
    """`sum(coefficient * static index) + offset`, a position or a bound of a slice."""

    terms: tuple[tuple[int, StaticIndex], ...]
    offset: int = 0

    def __repr__(self) -> str:
        return f"<index {self}>"

    def __str__(self) -> str:
        return affine_text([(factor, index.name) for factor, index in self.terms], self.offset)


def affine_text(terms: Iterable[tuple[int, str]], offset: int) -> str:
    """Return a sum of multiples of variables as text: `2*o + k - 1`."""
    named = [(c, name if abs(c) == 1 else f"{abs(c)}*{name}") for c, name in terms]
    named += [(offset, str(abs(offset)))] if offset else []
    text = "".join(f" {'-' if sign < 0 else '+'} {each}" for sign, each in named)
    return f"-{text[3:]}" if text.startswith(" -") else text[3:]


def is_whole(value: object) -> TypeGuard[Integral]:
    """Return True for an integer of Python or NumPy that is no truth."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def static_terms(value: object) -> tuple[tuple[tuple[int, StaticIndex], ...], int] | None:
    """Return the terms and the offset of an index of a program; None for other values."""
    if isinstance(value, StaticIndex):
        return ((1, value),), 0
    if isinstance(value, IndexExpression):
        return value.terms, value.offset
    return ((), int(value)) if is_whole(value) else None


def axis_index(value: StaticIndex | IndexExpression) -> AxisIndex:
    """Return an index of a program as an axis index."""
    found = static_terms(value)
    assert found is not None
    return affine(*found)


def _combined(*parts: tuple[Any, object]) -> Any:
    """Return a sum of multiples of indices and integers, an integer where all indices cancel;
    NotImplemented for other operands.
    """
    merged: dict[StaticIndex, int] = {}
    total = 0
    for factor, value in parts:
        found = static_terms(value)
        if found is None:
            return NotImplemented
        terms, offset = found
        total += int(factor) * offset
        for coefficient, index in terms:
            merged[index] = merged.get(index, 0) + int(factor) * coefficient
    kept = tuple((coefficient, index) for index, coefficient in merged.items() if coefficient)
    if not kept:
        return total
    if kept[0][0] == 1 and len(kept) == 1 and total == 0:
        return kept[0][1]
    return IndexExpression(kept, total)


class StaticExtent(StaticIndex):
    """The size of axes at run time, an integer argument of a routine from 0 to a maximum.

    The buffers of such axes have the maximum size; cells beyond the value are undefined. `extent`
    is one more than the maximum, so that values lie in `range(extent)`, as for every static index.
    """

    __slots__ = ()

    @property
    def maximum(self) -> int:
        """The greatest value, which is the size of the axes in memory."""
        assert self.extent is not None
        return self.extent - 1

    def __str__(self) -> str:
        return f"{self.name}<={self.maximum}"

    def __repr__(self) -> str:
        return f"<extent {self}>"


IndexVar = LoopVar | StaticIndex


@dataclass(frozen=True, slots=True)
class FixedIndex:
    """A constant position."""

    value: int


@dataclass(frozen=True, slots=True)
class VarIndex:
    """The value of one variable."""

    var: IndexVar


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """`sum(coefficient * variable) + offset`; build it with `affine`, which keeps the normal form.

    Normal form: no zero coefficients, no repeated variables, and no form that `FixedIndex` or
    `VarIndex` expresses.
    """

    terms: tuple[tuple[int, IndexVar], ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class SubAxis:
    """Position 0 of an axis that an access covers together with the next one, whose index counts
    the cells of both: `x[_, 5]` is the cell `x[1, 2]` of three columns.
    """


@dataclass(frozen=True, slots=True)
class ConcatIndex:
    """A concatenated axis, each part with a variable of its own; lowering removes it.

    Attributes:
        parts: The variables in sequence; a number is the length of a skipped part.
    """

    parts: tuple[IndexVar | int, ...]

    @property
    def variables(self) -> tuple[IndexVar, ...]:
        """The variables in sequence."""
        return tuple([part for part in self.parts if not isinstance(part, int)])

    def length(self, extents: Mapping[LoopVar, int]) -> int:
        """Return the total length of the parts."""
        return sum(_extent(part, extents) for part in self.parts)

    def stretches(self, extents: Mapping[LoopVar, int]) -> Iterator[tuple[IndexVar, int]]:
        """Yield each variable with the start of its part."""
        start = 0
        for part in self.parts:
            if not isinstance(part, int):
                yield part, start
            start += _extent(part, extents)


def _extent(part: IndexVar | int, extents: Mapping[LoopVar, int]) -> int:
    """Return the length of a part; 1 for a static index."""
    if isinstance(part, int):
        return part
    return extents[part] if isinstance(part, LoopVar) else 1


@dataclass(frozen=True, slots=True)
class ComputedIndex:
    """A position that is the value of a cell of another operand; lowering removes it.

    `table[ids[i], j]` has the index map `(ComputedIndex(1, (i,)), j)` where `ids` is operand 1.

    Attributes:
        operand: The number of the operand that holds the positions.
        at: The index map of that operand.
    """

    operand: int
    at: tuple[AxisIndex, ...]


AxisIndex = FixedIndex | VarIndex | AffineIndex | SubAxis | ConcatIndex | ComputedIndex


def affine(terms: Iterable[tuple[int, IndexVar]], offset: int = 0) -> AxisIndex:
    """Return the normal form of `sum(coefficient * variable) + offset`.

    affine([(1, i)])            -->  VarIndex(i)
    affine([(2, i), (-2, i)], 3) -->  FixedIndex(3)
    """
    merged: dict[IndexVar, int] = {}
    for coefficient, var in terms:
        merged[var] = merged.get(var, 0) + coefficient
    kept = tuple([(coefficient, var) for var, coefficient in merged.items() if coefficient])
    if not kept:
        return FixedIndex(offset)
    if kept[0][0] == 1 and len(kept) == 1 and offset == 0:
        return VarIndex(kept[0][1])
    return AffineIndex(kept, offset)


def affine_sum(*parts: tuple[int, AxisIndex]) -> AxisIndex:
    """Return a sum of multiples of positions."""
    found = [(factor, *as_affine(index)) for factor, index in parts]
    return affine(
        [(factor * each, var) for factor, terms, _ in found for each, var in terms],
        sum(factor * offset for factor, _, offset in found),
    )


def as_affine(index: AxisIndex) -> tuple[tuple[tuple[int, IndexVar], ...], int]:
    """Return the terms and the offset of an index.

    A sub-axis is position 0; a concatenation and a computed position have no affine form.
    """
    match index:
        case VarIndex(var):
            return ((1, var),), 0
        case FixedIndex(value):
            return (), value
        case AffineIndex(terms, offset):
            return terms, offset
        case SubAxis():
            return (), 0
        case ConcatIndex() | ComputedIndex():
            raise ValueError("a concatenated or computed index has no affine form")
        case _:
            assert_never(index)


def substitute(index: AxisIndex, values: Mapping[IndexVar, AxisIndex]) -> AxisIndex:
    """Substitute indices for the variables of an index, simultaneously."""
    match index:
        case VarIndex(var):
            return values.get(var, index)
        case FixedIndex() | SubAxis():
            return index
        case _ if values.keys().isdisjoint(variables(index)):
            return index
        case AffineIndex(terms, offset):
            replaced: list[tuple[int, IndexVar]] = []
            for coefficient, var in terms:
                inner, inner_offset = as_affine(values.get(var, VarIndex(var)))
                replaced += [(coefficient * inner_coefficient, v) for inner_coefficient, v in inner]
                offset += coefficient * inner_offset
            return affine(replaced, offset)
        case ConcatIndex(parts):
            renamed: list[IndexVar | int] = []
            for part in parts:
                if isinstance(part, int):
                    renamed.append(part)
                    continue
                new = values.get(part, VarIndex(part))
                if not isinstance(new, VarIndex):
                    raise ValueError("a component of a concatenated index can only be renamed")
                renamed.append(new.var)
            return ConcatIndex(tuple(renamed))
        case ComputedIndex(operand, at):
            return ComputedIndex(operand, tuple(substitute(each, values) for each in at))
        case _:
            assert_never(index)


def variables(index: AxisIndex) -> tuple[IndexVar, ...]:
    """Return the variables of an index, in order of appearance."""
    match index:
        case VarIndex(var):  # almost all
            return (var,)
        case FixedIndex() | SubAxis():
            return ()
        case AffineIndex(terms):
            return tuple([var for _, var in terms])
        case ConcatIndex():
            return index.variables
        case ComputedIndex(_, at):
            return tuple(dict.fromkeys(var for each in at for var in variables(each)))
        case _:
            assert_never(index)


def has_static(indices: Iterable[AxisIndex]) -> bool:
    """Return True if some index depends on a static index."""
    for index in indices:
        for var in (index.var,) if isinstance(index, VarIndex) else variables(index):
            if isinstance(var, StaticIndex):
                return True
    return False


def value_of(index: AxisIndex, env: Mapping[IndexVar, int]) -> int:
    """Evaluate an index at given values of its variables."""
    terms, offset = as_affine(index)
    return offset + sum(coefficient * env[var] for coefficient, var in terms)


def row_major(indices: Sequence[AxisIndex], dims: Sequence[int]) -> AxisIndex:
    """Return the row-major offset of a multi-index as an affine index."""
    terms: list[tuple[int, IndexVar]] = []
    offset = 0
    stride = 1
    for index, dim in zip(reversed(indices), reversed(dims), strict=True):
        axis_terms, axis_offset = as_affine(index)
        terms[:0] = [(stride * coefficient, var) for coefficient, var in axis_terms]
        offset += stride * axis_offset
        stride *= dim
    return affine(terms, offset)


def joint_index(indices: Sequence[AxisIndex], dims: Sequence[int]) -> tuple[AxisIndex, ...]:
    """Return the same position as one along all axes together.

    x[i, j] of 3 x 4 cells  -->  x[_, 4*i + j]
    """
    return (*(SubAxis() for _ in indices[1:]), row_major(indices, dims))


def joint_extents(indices: Sequence[AxisIndex], dims: Sequence[int]) -> tuple[int, ...]:
    """Return the number of positions of each index of an access: the positions of a sub-axis are
    positions of the next index.

    x[i, j] of 3 x 4 cells  -->  3, 4
    x[_, j]                 -->  1, 12
    """
    if not any(isinstance(index, SubAxis) for index in indices):
        return tuple(dims)
    found: list[int] = []
    cells = 1
    for index, dim in zip(indices, dims, strict=True):
        is_sub_axis = isinstance(index, SubAxis)
        cells *= dim
        found.append(1 if is_sub_axis else cells)
        cells = cells if is_sub_axis else 1
    return tuple(found)


IndexMap = tuple[AxisIndex, ...]


def position_at(offset: int, dims: Sequence[int]) -> IndexMap:
    """Return the cell at a row-major offset."""
    position: list[AxisIndex] = []
    for dim in reversed(dims):
        offset, rest = divmod(offset, dim)
        position.insert(0, FixedIndex(rest))
    return tuple(position)


@dataclass(frozen=True, slots=True)
class Margin:
    """Numbers of padding cells before and after the interior of one axis."""

    left: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class Projections:
    """The domain of an assignment and the index map of each tensor it touches.

    Attributes:
        domain: Loop variables with their extents, outermost first: the result's axes in buffer
            order (batch, output, input), then the reduced ones.
        lhs: The index map of the result, in buffer order.
        rhs: The index map of each operand, in buffer order.
        lhs_dims: The extents of the result's axes.
        rhs_dims: The extents of each operand's axes.
        margins: Per operand and axis, the padding that windows access; index maps are in interior
            coordinates, so that a position may be negative. Empty if there are no margins at all.
        lhs_margins: The padding of each axis of the result, to which windows may write.
    """

    domain: tuple[tuple[LoopVar, int], ...]
    lhs: IndexMap
    rhs: tuple[IndexMap, ...]
    lhs_dims: tuple[int, ...]
    rhs_dims: tuple[tuple[int, ...], ...]
    margins: tuple[tuple[Margin, ...], ...] = ()
    lhs_margins: tuple[Margin, ...] = ()

    @property
    def extents(self) -> dict[LoopVar, int]:
        return dict(self.domain)


Traversal = tuple[tuple[tuple[LoopVar, int], ...], tuple[IndexMap, ...]]
"""A domain, and the index maps of the result and the operands over it."""


def traversals(projections: Projections) -> Iterator[Traversal]:
    """Yield a domain and index maps for each choice of one part of every concatenated axis.

    Axes that share a part choose it together: `a^b => b^a` exchanges two parts. Choices that leave
    a variable of an index map unbound are skipped: `a^b => a` reads the first part only. Parts
    given as numbers are never visited. Without concatenated axes there is one traversal.

    x[i^j] over i:2, j:3  -->  x[i] over i:2;  x[j + 2] over j:3
    """
    maps = (projections.lhs, *projections.rhs)
    if not any(ConcatIndex in map(type, index_map) for index_map in maps):
        yield projections.domain, maps
        return
    axes = dict.fromkeys(i for index_map in maps for i in index_map if isinstance(i, ConcatIndex))
    extents = projections.extents
    parts = {axis: set(axis.variables) for axis in axes}
    every = frozenset().union(*parts.values())
    others = (i for index_map in maps for i in index_map if i not in axes)
    needed = {var for index in others for var in variables(index)}
    stretches = [
        [each for each in axis.stretches(extents) if each[0] in needed or needed.isdisjoint(own)]
        for axis, own in parts.items()
    ]
    for choice in product(*stretches):
        active = {part for part, _ in choice}
        if any(len(active & own) > 1 for own in parts.values()):
            continue
        idle = every - active
        chosen: dict[AxisIndex, AxisIndex] = {}
        for axis, (part, start) in zip(axes, choice, strict=True):
            chosen[axis] = affine([(1, part)], start)
        chosen_maps = tuple(tuple(chosen.get(i, i) for i in index_map) for index_map in maps)
        if idle.isdisjoint(v for index_map in chosen_maps for i in index_map for v in variables(i)):
            yield tuple((v, n) for v, n in projections.domain if v not in idle), chosen_maps


def is_surjective(projections: Projections) -> bool:
    """Return True if every cell of the result is provably written."""
    extents: dict[IndexVar, int] = dict(projections.domain)
    if 0 in extents.values():
        return False
    used: set[IndexVar] = set()
    for index, dim in zip(projections.lhs, projections.lhs_dims, strict=True):
        if isinstance(index, VarIndex):  # almost all
            if index.var in used or extents.get(index.var, 0) < dim:
                return False
            used.add(index.var)
            continue
        if isinstance(index, SubAxis | ConcatIndex | ComputedIndex):
            return False
        terms, offset = as_affine(index)
        if offset or used.intersection(variables(index)) or _reach(terms, extents) < dim:
            return False
        used.update(variables(index))
    return True


def _reach(terms: tuple[tuple[int, IndexVar], ...], extents: Mapping[IndexVar, int]) -> int:
    """Return an `n` such that the terms cover `range(n)`; 0 if none is provable."""
    reached = 1
    for coefficient, var in sorted(terms, key=lambda term: term[0]):
        if var not in extents or not 1 <= coefficient <= reached:
            return 0
        reached += coefficient * (extents[var] - 1)
    return reached


def is_injective(projections: Projections) -> bool:
    """Return True if provably no result cell is written twice.

    The index of the result must determine every variable. A position whose terms form a mixed-radix
    number over the undetermined variables determines these; this is iterated to a fixed point.
    Sufficient, not necessary. Parts of a concatenated operand count even with length 1, because
    each is visited by a nest of its own.
    """
    extents = projections.extents
    concatenated = [
        index.variables
        for index_map in projections.rhs
        for index in index_map
        if isinstance(index, ConcatIndex)
    ]
    visited = {var for parts in concatenated for var in parts}
    if any(extent == 0 and var not in visited for var, extent in extents.items()):
        return True
    if any(len(set(parts)) < len(parts) for parts in concatenated):
        return False
    open_vars: set[IndexVar] = {var for var, extent in extents.items() if extent > 1}
    open_vars.update(visited)
    open_vars.difference_update(
        [i.var for i in projections.lhs if isinstance(i, VarIndex) and isinstance(i.var, LoopVar)]
    )
    if not open_vars:  # almost always
        return True
    pending = [
        as_affine(index)[0]
        for index in projections.lhs
        if not isinstance(index, (VarIndex, ConcatIndex, ComputedIndex))
    ]
    progress = True
    while progress:
        progress = False
        for terms in list(pending):
            free = [(abs(coefficient), var) for coefficient, var in terms if var in open_vars]
            if _is_mixed_radix(free, extents):
                open_vars.difference_update(var for _, var in free)
                pending.remove(terms)
                progress = True
    return not open_vars


def _is_mixed_radix(terms: list[tuple[int, IndexVar]], extents: Mapping[LoopVar, int]) -> bool:
    reach = 0
    for coefficient, var in sorted(terms, key=lambda term: term[0]):
        if coefficient <= reach or not isinstance(var, LoopVar):
            return False
        reach += coefficient * (extents[var] - 1)
    return True


def exchange_roles(found: Projections, target: int, sources: Sequence[int]) -> Projections:
    """Return projections over the same domain, with other tensors as the result and the operands.

    Args:
        target: The new result: 0 for the result so far, 1 for the first operand.
        sources: The new operands, with the same numbers.
    """
    maps = tuple(_renumbered(each, sources) for each in (found.lhs, *found.rhs))
    dims = (found.lhs_dims, *found.rhs_dims)
    margins = (found.lhs_margins, *(found.margins or ((),) * len(found.rhs)))
    read = tuple(margins[each] for each in sources)
    return Projections(
        found.domain,
        maps[target],
        tuple(maps[each] for each in sources),
        dims[target],
        tuple(dims[each] for each in sources),
        read if any(read) else (),
        margins[target],
    )


def _renumbered(index_map: IndexMap, sources: Sequence[int]) -> IndexMap:
    """Return an index map whose computed positions refer to the operands with new numbers."""
    return tuple(
        ComputedIndex(sources.index(index.operand + 1), index.at)
        if isinstance(index, ComputedIndex) and index.operand + 1 in sources
        else index
        for index in index_map
    )
