"""Rematerialisation: nodes are computed where they are read, among nests that run one after the
other.

    for j: d[j] = x[j] - m                            (nothing)
    for j: v += d[j] * d[j]                     -->   for j: v += (x[j] - m) * (x[j] - m)
    for j: d[j] = d[j] * s                            (nothing)
    for j: y[j] = d[j] + b[j]                         for j: y[j] = (x[j] - m) * s + b[j]

A node may be written several times: a read sees the reaching definition, whose operands must have
the same values there. All operations are the same, and so are all bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import AxisIndex, IndexVar, VarIndex, variables
from ocannl_core.kernels.nest import KernelNest, LoopAxis, is_independent
from ocannl_core.loopir.nodes import (
    Binary,
    Const,
    Expr,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.loopir.traverse import map_expr, nodes_of, substitute_in_expr, walk
from ocannl_core.machine_model import MAX_RECOMPUTED_OPERATIONS
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, TernaryOp, UnaryOp

_CHEAP_UNARY = frozenset({UnaryOp.NEG, UnaryOp.RELU, UnaryOp.SAT01, UnaryOp.IDENTITY})
_CHEAP_BINARY = frozenset(
    {BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN}
    | {BinaryOp.RELU_GATE, BinaryOp.SAT01_GATE, BinaryOp.FIRST, BinaryOp.SECOND}
)


def inline_node(
    nests: Sequence[KernelNest],
    node: TensorNode,
    info: NodeInfo,
    rows: Sequence[int] = (),
    *,
    is_kept: bool = False,
) -> tuple[KernelNest, ...] | None:
    """Inline the definitions of a node into the nests that read it; None if that would change a
    value, or is expensive.

    Args:
        nests: The nests, in the order in which they run.
        node: The node. They write every element of it before they read it.
        info: Its extents.
        rows: Its axes along which the nests are at one position.
        is_kept: True if another kernel reads it, so that the last store stays.
    """
    inliner = _Inliner(node, info, rows)
    try:
        found = [inliner.nest(nest) for nest in nests]
    except _NotInlinableError:
        return None
    if is_kept and not all(inliner.are_complete):
        return None
    kept = inliner.stores[-1:] if is_kept else []
    return tuple(
        replace(
            nest,
            epilogue=tuple(
                each
                for each in nest.epilogue
                if each.node is not node or any(each is k for k in kept)
            ),
        )
        for nest in found
    )


class _NotInlinableError(Exception):
    """A read has no reaching definition that can be inlined."""


@dataclass(slots=True)
class _ReachingDefinition:
    """The reaching definition of the node."""

    indices: tuple[AxisIndex, ...]
    value: Expr
    axes: tuple[LoopAxis, ...]


class _Inliner:
    """The state of going through nests."""

    def __init__(self, node: TensorNode, info: NodeInfo, rows: Sequence[int]) -> None:
        self._node = node
        self._info = info
        self._rows = frozenset(rows)
        self._definition: _ReachingDefinition | None = None
        self.stores: list[Store] = []
        self.are_complete: list[bool] = []

    def nest(self, nest: KernelNest) -> KernelNest:
        """Return a nest that does not read the node."""
        if self._node not in nest.mentioned:
            self._invalidate(nest.epilogue)
            return nest
        reduction = nest.reduction
        if reduction is not None:
            self._check_reuse(nest)
            term = self._inline_reads(reduction.term)
            if isinstance(reduction.term, Load) and term != reduction.term:
                term = Unary(UnaryOp.IDENTITY, term, term.dtype)  # the product was rounded
            reduction = replace(reduction, term=term, initial=self._inline_reads(reduction.initial))
        epilogue: list[Store] = []
        for store in nest.epilogue:
            new = replace(store, value=self._inline_reads(store.value))
            epilogue.append(new)
            if store.node is self._node:
                self._define(new, nest)
            else:
                self._invalidate((new,))
        new_nest = KernelNest(nest.axes, reduction, tuple(epilogue))
        if not is_independent(new_nest):
            raise _NotInlinableError  # results would depend on each other
        return new_nest

    def _check_reuse(self, nest: KernelNest) -> None:
        """Check that no reduction uses an element of the node more than once.

        Raises:
            _NotInlinableError: if one does.
        """
        axes = {axis.var for axis in nest.axes if axis.extent > 1}
        assert nest.reduction is not None
        for each in walk(nest.reduction.term):
            if isinstance(each, Load) and each.node is self._node:
                used = {var for index in each.indices for var in variables(index)}
                if used and axes - used:
                    raise _NotInlinableError

    def _invalidate(self, stores: Sequence[Store]) -> None:
        """Drop the definition if stores overwrite its operands."""
        if self._definition is not None:
            inside = nodes_of(self._definition.value)
            if any(store.node in inside for store in stores):
                self._definition = None

    def _define(self, store: Store, nest: KernelNest) -> None:
        extents: dict[IndexVar, int] = {a.var: a.extent for a in nest.cells if a.start == 0}
        places = enumerate(zip(store.indices, self._info.buffer_dims, strict=True))
        is_complete = all(
            at in self._rows
            or extent == 1
            or (isinstance(index, VarIndex) and extents.get(index.var) == extent)
            for at, (index, extent) in places
        )
        self.stores.append(store)
        self.are_complete.append(is_complete)
        self._definition = None
        if is_complete and _is_cheap(store.value):
            self._definition = _ReachingDefinition(store.indices, store.value, nest.cells)

    def _inline_reads(self, expr: Expr) -> Expr:
        """Return an expression with the definition of the node substituted for its loads."""

        def replace_load(expr: Expr) -> Expr:
            match expr:
                case Load(node, indices) if node is self._node:
                    return self._value_at(indices)
                case Gather(node) | LoadMerge(node) if node is self._node:
                    raise _NotInlinableError
                case _:
                    return expr

        return map_expr(expr, replace_load)

    def _value_at(self, indices: tuple[AxisIndex, ...]) -> Expr:
        if self._definition is None:
            raise _NotInlinableError
        own = {axis.var for axis in self._definition.axes}
        values: dict[IndexVar, AxisIndex] = {}
        for defined, read in zip(self._definition.indices, indices, strict=True):
            match defined:
                case VarIndex(var) if var in own:
                    if values.setdefault(var, read) != read:
                        raise _NotInlinableError
                case _ if defined != read:
                    raise _NotInlinableError
        if own - values.keys():
            raise _NotInlinableError
        return substitute_in_expr(self._definition.value, values)


def _is_cheap(value: Expr) -> bool:
    """Return True if computing a value again takes about as long as loading it."""
    steps = 0
    for each in walk(value):
        match each:
            case Load() | Const() | IndexValue():
                continue
            case Unary(op) if op in _CHEAP_UNARY:
                steps += 1
            case Binary(op) if op in _CHEAP_BINARY:
                steps += 1
            case Ternary(TernaryOp.FMA):
                steps += 1
            case _:
                return False
    return steps <= MAX_RECOMPUTED_OPERATIONS
