"""Nests: loops over independent cells, with a reduction, to which schedules apply.

    for i in range(4):                      axes      i, j, and k, which is reduced
        for j in range(5):          -->     reduction add a[i, k] * b[k, j] to c[i, j]
            for k in range(6):              epilogue  c[i, j] = the sum
                c[i, j] += a[i, k] * b[k, j]

The cells may be computed in any order, because no iteration reads what another one writes; the
terms of a reduction may be combined in any order where a schedule is allowed to round differently.
Where cells are written through windows, `c[i + k] += ...`, the shorter axis `k` shifts the cells of
the other one; it counts as reduced, and the cells are independent for each of its iterations.
Matrix products, convolutions, their gradients, sums and maxima are all such nests. A nest without a
reduction is all epilogue. `nest_recognition` finds them in loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    Projections,
    StaticExtent,
    affine,
    as_affine,
    is_injective,
    substitute,
    variables,
)
from ocannl_core.ir.kernels.transforms import AXIS_LETTERS
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.loops.traverse import (
    Access,
    accesses,
    contains,
    flattened,
    free_variables,
    map_expr,
    nodes_of,
    substitute_in_expr,
    substitute_in_stmt,
    walk,
    with_children,
    writes,
)
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, saturate
from ocannl_core.ir.numbers.primitives import BinaryOp, neutral


@dataclass(frozen=True, slots=True)
class LoopAxis:
    """One loop of a nest."""

    name: str
    """The letter that schedules call it by."""
    var: LoopVar
    """Its variable, which runs over `range(start, start + extent)`."""
    start: int
    extent: int
    is_reduced: bool = False
    """True if its iterations combine into the same cells."""
    is_shifting: bool = False
    """True for a reduced axis that moves the cells which other axes run over: one iteration after
    the other adds to cells in memory.
    """
    bound: ir.LoopBound | None = None
    """The end of the range at run time, if there is one: a position with the coefficient 1 for the
    variable, and the extent that it stays below. Cells beyond are undefined, so that a schedule may
    compute them, in blocks of several cells; terms beyond are none of the reduction.
    """

    @property
    def domain(self) -> tuple[int, int, tuple[StaticExtent | int, AxisIndex] | None]:
        """The range as a value that axes of different variables can have in common."""
        if self.bound is None:
            return self.start, self.extent, None
        rest = substitute(self.bound.index, {self.var: FixedIndex(0)})
        return self.start, self.extent, (self.bound.extent, rest)

    def loop(self, body: ir.Block) -> ir.For:
        """Return the loop over the range."""
        return ir.For(self.var, self.start, self.start + self.extent, body, bound=self.bound)

    def bound_at(self, position: AxisIndex) -> ir.LoopBound | None:
        """Return the bound with a position, from the start of the range on, for the variable."""
        if self.bound is None:
            return None
        terms, offset = as_affine(position)
        at = affine(terms, offset + self.start)
        return replace(self.bound, index=substitute(self.bound.index, {self.var: at}))


def iterations(axes: Iterable[LoopAxis]) -> int:
    """Return the number of iterations of nested loops."""
    return prod([axis.extent for axis in axes])


def with_letters(axes: Iterable[LoopAxis]) -> tuple[LoopAxis, ...]:
    """Return axes named in alphabetical order."""
    return tuple(replace(axis, name=name) for name, axis in zip(AXIS_LETTERS, axes, strict=False))


@dataclass(frozen=True, slots=True)
class Reduction:
    """`initial` combined with `term` for every iteration of the reduced axes.

    Attributes:
        term: The combined expression; reads nothing that the nest writes.
        initial: The initial value of the result; depends on the cell only.
        result: The variable by which the epilogue refers to the result.
        is_fast: True if products may come from matrix units that take numbers below 2**-126 for
            zero, or whose factors are sums of parts: the setting `accumulation` is `fast`.
        is_widened: True if it adds up numbers of a narrow format, to which the sum is rounded, in a
            wider one: its additions may truncate, as matrix instructions do.
    """

    op: BinaryOp
    term: ir.Expr
    initial: ir.Expr
    result: ir.Local
    is_fast: bool = False
    is_widened: bool = False

    @property
    def dtype(self) -> DType:
        return self.result.dtype

    @property
    def starts_neutral(self) -> bool:
        """True if the result starts from the neutral element."""
        return isinstance(self.initial, ir.Const) and self.initial == self.neutral

    @property
    def neutral(self) -> ir.Const:
        """The number that changes nothing when it is combined."""
        return ir.Const(saturate(neutral(self.op), self.dtype), self.dtype)

    @property
    def factors(self) -> tuple[ir.Expr, ...]:
        """The factors of the term, from the left; the term itself if it is no product."""
        found: list[ir.Expr] = []
        pending = [self.term]
        while pending:
            match pending.pop():
                case ir.Binary(BinaryOp.MUL, left, right):
                    pending += [right, left]
                case factor:
                    found.append(factor)
        return tuple(found)

    @property
    def statements(self) -> tuple[ir.SetLocal, ir.SetLocal]:
        """The assignment of the initial value to the result, and the accumulation of a term."""
        partial = ir.LocalRead(self.result)
        combined = ir.Binary(self.op, partial, self.term, self.dtype)
        return ir.SetLocal(self.result, self.initial), ir.SetLocal(self.result, combined)


@dataclass(frozen=True, slots=True)
class NestRepetition:
    """The repetition around a nest: a loop over time, or over blocks of shared rows."""

    count: int
    """The number of iterations."""
    constants: tuple[TensorNode, ...]
    """The nodes whose cells a factor of the nest's term loads, the same ones in all iterations."""


@dataclass(frozen=True)  # without slots: properties are cached
class Nest:
    """A loop nest whose cells are independent of each other."""

    axes: tuple[LoopAxis, ...]
    reduction: Reduction | None
    """The reduction of each cell; None if there is none."""
    epilogue: tuple[ir.Store, ...]
    """Stores that run once for each cell, after its reduction."""
    around: tuple[tuple[LoopVar, int], ...] = ()
    """The variables of known loops around it, which count from 0, and their extents."""
    repetition: NestRepetition | None = None
    """The repetition whose iterations load the same cells of some nodes; None without one."""

    @property
    def required_reduction(self) -> Reduction:
        """The reduction of a nest that has one."""
        assert self.reduction is not None
        return self.reduction

    @cached_property
    def output_axes(self) -> tuple[LoopAxis, ...]:
        """The axes that are not reduced: those of the cells."""
        return tuple(axis for axis in self.axes if not axis.is_reduced)

    @cached_property
    def reduced(self) -> tuple[LoopAxis, ...]:
        """The axes that are reduced."""
        return tuple(axis for axis in self.axes if axis.is_reduced)

    @cached_property
    def ranges(self) -> dict[IndexVar, Range]:
        """The values of the variables of its axes, and of the loops around it."""
        outer: dict[IndexVar, Range] = {var: Range(0, extent - 1) for var, extent in self.around}
        own = {axis.var: Range(axis.start, axis.start + axis.extent - 1) for axis in self.axes}
        return outer | own

    @cached_property
    def roots(self) -> tuple[ir.Expr | ir.Store, ...]:
        """The expressions and stores of the nest: the parts of its reduction, then the epilogue."""
        if self.reduction is None:
            return self.epilogue
        return (self.reduction.term, self.reduction.initial, *self.epilogue)

    @property
    def rounds_often(self) -> bool:
        """True if it adds up or multiplies narrow floats, which rounds after every term: the order
        of the terms matters more than in other formats.
        """
        reduction = self.reduction
        exact = (BinaryOp.MAX, BinaryOp.MIN)
        return reduction is not None and reduction.dtype.is_narrow and reduction.op not in exact

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """The accesses of the nest, in the order of its roots."""
        return tuple(access for root in self.roots for access in accesses(root))

    @cached_property
    def reached(self) -> frozenset[tuple[TensorNode, frozenset[IndexVar]]]:
        """The nodes that it reads or writes, with the variables on which an access depends."""
        return frozenset(
            (access.node, frozenset(var for at in access.indices or () for var in variables(at)))
            for access in self.accesses
        )

    @cached_property
    def positions(self) -> dict[TensorNode, tuple[tuple[int, ...], int]]:
        """The axes of each node that no loop moves along, such as the time axis of an array with a
        value for each step, and the number of positions on these axes that the nest accesses.
        """
        found: dict[TensorNode, list[tuple[AxisIndex, ...]]] = {}
        for access in self.accesses:
            found.setdefault(access.node, []).append(access.indices or ())
        return {node: _positions(cells) for node, cells in found.items()}

    @cached_property
    def factor_variables(self) -> tuple[frozenset[LoopVar], ...]:
        """The loop variables on which each factor of the reduced term depends."""
        factors = () if self.reduction is None else self.reduction.factors
        return tuple(frozenset(free_variables(factor)) for factor in factors)

    @cached_property
    def mentioned(self) -> frozenset[TensorNode]:
        """The nodes that it reads or writes."""
        return frozenset(access.node for access in self.accesses)

    @cached_property
    def written(self) -> frozenset[TensorNode]:
        """The nodes that it writes."""
        return frozenset(store.node for store in self.epilogue)

    @cached_property
    def gathered(self) -> frozenset[TensorNode]:
        """The nodes of which it computes a position."""
        parts = (part for root in self.roots for part in walk(root))
        return frozenset(part.node for part in parts if isinstance(part, ir.Gather))

    @property
    def is_resumable(self) -> bool:
        """True if a cell holds its partial result, so that reduced axes may run outside of it."""
        if self.reduction is None or len(self.epilogue) != 1:
            return False
        store = self.epilogue[0]
        return store.value == ir.LocalRead(
            self.reduction.result
        ) and self.reduction.initial == ir.Load(store.node, store.indices, self.reduction.dtype)

    @property
    def holds_partial_results(self) -> bool:
        """True if cells can hold partial results once they have been given their first values."""
        if self.reduction is None or len(self.epilogue) != 1:
            return False
        return self.epilogue[0].value == ir.LocalRead(self.reduction.result)


def _positions(cells: Sequence[tuple[AxisIndex, ...]]) -> tuple[tuple[int, ...], int]:
    still = tuple(
        [at for at, indices in enumerate(zip(*cells, strict=False)) if _is_still(indices)]
    )
    return still, len({tuple([each[at] for at in still]) for each in cells}) if still else 1


def _is_still(indices: Iterable[AxisIndex]) -> bool:
    for index in indices:
        for var in variables(index):
            if isinstance(var, LoopVar):
                return False
    return True


def writes_cells_once(nest: Nest, store: ir.Store) -> bool:
    """Return True if no two cells of a nest are one position of a store, shifting axes aside."""
    domain = tuple([(axis.var, axis.extent) for axis in nest.output_axes])
    shifts = {axis.var for axis in nest.axes if axis.is_shifting}
    if not shifts:
        return is_injective(Projections(domain, store.indices, (), (), ()))
    fixed: dict[IndexVar, AxisIndex] = {var: FixedIndex(0) for var in shifts}
    indices = tuple(substitute(index, fixed) for index in store.indices)
    return is_injective(Projections(domain, indices, (), (), ()))


def flat_statements(block: ir.Block) -> tuple[ir.Stmt, ...]:
    """Return the statements of a block and of blocks inside it, without remarks."""
    if _FLATTENED.isdisjoint(map(type, block.stmts)):
        return block.stmts
    return tuple([stmt for stmt in flattened(block) if not isinstance(stmt, ir.Remark)])


_FLATTENED = frozenset((ir.Block, ir.Remark))


def with_factors(term: ir.Expr, packed: Mapping[int, ir.Expr]) -> ir.Expr:
    """Return a product with some factors, counted from the left, replaced."""
    if not packed:
        return term
    count = iter(range(1 << 30))

    def replaced(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Binary(BinaryOp.MUL, left, right, dtype):
                first = replaced(left)
                return ir.Binary(BinaryOp.MUL, first, replaced(right), dtype)
            case _:
                return packed.get(next(count), expr)

    return replaced(term)


_MOST_COPIES = 16
"""The most copies of one value that an expression of inlined assignments may have."""


def with_flat_computations(store: ir.Store) -> ir.Store:
    """Return a store in which inlined assignments are expressions, also behind a reduction.

    { v = a * b; } v + 1            -->  a * b + 1
    { v = 0.0; for k: ...; v *= v } -->  s * s, where s is { v = 0.0; for k: ... }
    """

    value = with_flat_values(store.value)
    return store if value is store.value else with_children(store, [value])


def with_flat_values(value: ir.Expr) -> ir.Expr:
    """Return a value in which inlined assignments are expressions, as far as they can be."""

    def flat(expr: ir.Expr) -> ir.Expr:
        return _flat_value(expr) or expr if isinstance(expr, ir.Scoped) else expr

    return map_expr(value, flat) if contains(value, ir.Scoped) else value


def _flat_value(scoped: ir.Scoped) -> ir.Expr | None:
    """Return the value of an inlined computation that ends with an assignment; None if its
    statements are others, or it reads a value too often.
    """
    *stmts, last = flat_statements(scoped.body)
    if not isinstance(last, ir.SetLocal) or last.local != scoped.local:
        return None
    values: dict[ir.Local, ir.Expr] = {}
    copies: dict[ir.Local, int] = {}
    for stmt in (*stmts, last):
        read = [e.local for e in walk(stmt) if isinstance(e, ir.LocalRead) and e.local in values]
        match stmt:
            case ir.DeclareLocal():
                pass
            case ir.SetLocal(local, value) if not read or not contains(value, ir.Scoped):
                values[local] = _with_locals(value, values)
                copies[local] = max(1, sum(copies[each] for each in read))
                if copies[local] > _MOST_COPIES:
                    return None
            case ir.For() if len(set(read)) == 1 and not writes(stmt):
                local = read[0]
                if any(isinstance(e, ir.SetLocal) and e.local != local for e in walk(stmt)):
                    return None
                body = ir.Block((ir.SetLocal(local, values[local]), stmt))
                values[local] = ir.Scoped(local, body)
            case _:
                return None
    return values[scoped.local]


def _with_locals(expr: ir.Expr, values: Mapping[ir.Local, ir.Expr]) -> ir.Expr:
    """Return an expression with the values of variables in place of these."""
    return map_expr(expr, lambda e: values.get(e.local, e) if isinstance(e, ir.LocalRead) else e)


def with_value(store: ir.Store, old: ir.Expr, new: ir.Expr) -> ir.Store:
    """Return a store with one part of its value replaced wherever it occurs."""
    return replace(store, value=map_expr(store.value, lambda e: new if e == old else e))


def substitute_in_store(store: ir.Store, values: Mapping[IndexVar, AxisIndex]) -> ir.Store:
    """Return a store with positions in place of variables."""
    (moved,) = substitute_in_stmt(store, values).stmts
    assert isinstance(moved, ir.Store)
    return moved


def is_independent(nest: Nest) -> bool:
    """Return True only if no cell reads or writes a location that another cell writes."""
    cells: dict[TensorNode, tuple[AxisIndex, ...]] = {}
    for store in nest.epilogue:
        if cells.setdefault(store.node, store.indices) != store.indices:
            return False
        if any(isinstance(i, (ConcatIndex, ComputedIndex)) for i in store.indices):
            return False
        if not writes_cells_once(nest, store):
            return False
    if nest.reduction is not None:
        loads = (e for e in walk(nest.reduction.term) if isinstance(e, ir.Load | ir.Gather))
        if any(each.node in cells for each in loads):
            return False
        plain = {axis.var for axis in nest.reduced if not axis.is_shifting}
        if plain.intersection(free_variables(nest.reduction.initial)):
            return False
        if _reads_elsewhere(nest.reduction.initial, cells):
            return False
    return not any(_reads_elsewhere(store.value, cells) for store in nest.epilogue)


def _reads_elsewhere(expr: ir.Expr, cells: dict[TensorNode, tuple[AxisIndex, ...]]) -> bool:
    """Return True if an expression reads another cell of a written node than the one written."""
    for node in walk(expr):
        match node:
            case ir.Load(read, indices) if read in cells and indices != cells[read]:
                return True
            case ir.Gather(read) if read in cells:
                return True
    return False


def nodes_read(nest: Nest) -> frozenset[TensorNode]:
    """Return the nodes that a nest reads."""
    roots = [each.value if isinstance(each, ir.Store) else each for each in nest.roots]
    return frozenset(node for root in roots for node in nodes_of(root))


def map_parts(
    nest: Nest, on_expr: Callable[[ir.Expr], ir.Expr], on_store: Callable[[ir.Store], ir.Store]
) -> Nest:
    """Return a nest with functions applied to its term and its initial value, and to its stores."""
    reduction = nest.reduction
    if reduction is not None:
        term, initial = on_expr(reduction.term), on_expr(reduction.initial)
        reduction = replace(reduction, term=term, initial=initial)
    return replace(nest, reduction=reduction, epilogue=tuple(map(on_store, nest.epilogue)))


def substitute_in_nest(nest: Nest, values: Mapping[IndexVar, AxisIndex]) -> Nest:
    """Return a nest with positions in place of variables; its axes stay."""
    return map_parts(
        nest,
        lambda expr: substitute_in_expr(expr, values),
        lambda store: substitute_in_store(store, values),
    )


def with_nodes(nest: Nest, nodes: Mapping[TensorNode, TensorNode]) -> Nest:
    """Return a nest that accesses other nodes in the place of some."""

    def redirect(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Load(node) if node in nodes:
                return replace(expr, node=nodes[node])
            case _:
                return expr

    def on_store(store: ir.Store) -> ir.Store:
        node = nodes.get(store.node, store.node)
        return replace(store, node=node, value=map_expr(store.value, redirect))

    return map_parts(nest, lambda expr: map_expr(expr, redirect), on_store)
