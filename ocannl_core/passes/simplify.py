"""Simplification: the laws of `laws`, facts about indices, loops, and scalar variables.

for i in range(1): c[i] = a[i] * 1.0   -->   c[0] = a[0]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ocannl_core.dtypes import DType
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.indexing import FixedIndex
from ocannl_core.loopir.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
    Gather,
    IndexValue,
    Load,
    Local,
    LocalRead,
    LoopProgram,
    Remark,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    Unary,
)
from ocannl_core.loopir.traverse import (
    Replacement,
    locals_of,
    map_expr,
    remove_unused_nodes,
    rewrite,
    substitute_in_stmt,
    walk,
    writes,
)
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import COMPARISONS, BinaryOp, UnaryOp
from ocannl_core.passes.algebraic_rules import simplify_once
from ocannl_core.passes.expand_powers import as_product
from ocannl_core.passes.local_variables import Variables, assign_local, variables_of
from ocannl_core.passes.value_analysis import (
    constant,
    difference,
    index_of,
    integers,
    is_finite,
    is_number,
    value_of,
)

_MOST_ROUNDS = 100
_LARGEST_POWER = 16
"""The largest exponent for which an integer power becomes a product."""


def simplify(program: LoopProgram, *, positive: Collection[TensorNode] = ()) -> LoopProgram:
    """Returns a program of the same meaning with what can be known beforehand worked out.

    Cells get the same bits. A program with nothing to simplify is returned itself.

    Args:
        program: The program.
        positive: Nodes that never hold `-0.0` when they are read.
    """
    body = program.body
    for _ in range(_MOST_ROUNDS):
        rules = _Rules(variables_of(body, program.indices), program.nodes, positive)
        simpler = rewrite(body, rules.statement, rules.expression)
        if simpler is body:
            break
        body = simpler
    return remove_unused_nodes(program if body is program.body else replace(program, body=body))


def simplify_expr(expr: Expr) -> Expr:
    """Returns an expression of the same value, simplified without knowledge of its surroundings."""
    rules = _Rules(variables_of(expr), {})
    return map_expr(expr, rules.expression, rules.statement)


@dataclass(slots=True)
class _Rules:
    """The rewrites of one round, with what they know of the program."""

    known: Variables
    nodes: Mapping[TensorNode, NodeInfo]
    positive: Collection[TensorNode] = ()

    # ----- expressions -----

    def expression(self, expr: Expr) -> Expr:
        while True:
            simpler = simplify_once(expr) or self._contextual(expr)
            if simpler is None:
                return expr
            expr = simpler

    def _contextual(self, expr: Expr) -> Expr | None:
        match expr:
            case Binary(BinaryOp.ADD, Load(node) as cell, zero) | Binary(
                BinaryOp.ADD, zero, Load(node) as cell
            ) if node in self.positive and is_number(zero, 0.0):
                return cell  # c[i] + 0.0 --> c[i], where c[i] is not -0.0
            case Binary(BinaryOp.POW, base, exponent):
                return self._exact_power(base, value_of(exponent))
            case Binary(op, left, right, dtype) if op in COMPARISONS:
                return self._comparison(op, left, right, dtype)
            case Unary(UnaryOp.IDENTITY, IndexValue(index) as arg, dtype):
                return (
                    None if integers(arg, self.known.ranges) is None else IndexValue(index, dtype)
                )
            case LocalRead(local):
                return self.known.copies.get(local)
            case Scoped(local, body):
                return _single_value(local, body)
            case Gather():
                return self._certain_gather(expr)
            case _:
                return None

    def _exact_power(self, base: Expr, exponent: float | None) -> Expr | None:
        """x ** 2 --> x * x, as the power is defined; x ** 5 --> a product, for integers."""
        largest = _LARGEST_POWER if base.dtype.is_integer else 2
        if exponent is None or not 2 <= exponent <= largest or exponent != int(exponent):
            return None
        return as_product(base, int(exponent), self.known.fresh)

    def _certain_gather(self, gather: Gather) -> Expr | None:
        """gather(a[3]) --> a[3]; gather(a[i]) --> a[i], where i is certainly inside; or 0."""
        if gather.node not in self.nodes:
            return None
        position = integers(gather.position, self.known.ranges)
        if position is None:
            value = value_of(gather.position)
            is_outside = value is not None and (not is_finite(value) or value != int(value))
            return constant(0, gather.dtype) if is_outside else None
        extent = self.nodes[gather.node].buffer_dims[gather.axis]
        if position.high < 0 or position.low >= extent:
            return constant(0, gather.dtype)
        if position.low < 0 or position.high >= extent:
            return None
        index = index_of(gather.position)
        before, after = gather.indices[: gather.axis], gather.indices[gather.axis + 1 :]
        return Load(gather.node, (*before, index, *after), gather.dtype)

    def _comparison(self, op: BinaryOp, left: Expr, right: Expr, dtype: DType) -> Expr | None:
        """i < 3 --> 1, where i is a loop's variable and always less than 3; and the like.

        i + 1 <= i + 2 --> 1 and 2*i == 1 --> 0, whatever i is.
        """
        apart = difference(left, right, self.known.ranges)
        verdict = None if apart is None else apart.verdict(op)
        return None if verdict is None else constant(int(verdict), dtype)

    # ----- statements -----

    def statement(self, stmt: Stmt) -> Replacement:
        match stmt:
            case For():
                return self._loop(stmt)
            case Block(stmts):
                return self._block(stmt, stmts)
            case Store(node, indices, Load(loaded, cell)) if loaded is node and cell == indices:
                return ()  # c[i] = c[i] -->
            case SetLocal(local, LocalRead(source)) if source == local:
                return ()  # v = v -->
            case SetLocal(local, Scoped(_, body)) if local not in locals_of(body):
                return assign_local(local, stmt.value)
            case SetLocal(local, value) if self._is_unread(local) and not writes(value):
                return ()
            case DeclareLocal(local) if self._is_unread(local) and local not in self.known.sets:
                return ()
            case _:
                return stmt

    def _is_unread(self, local: Local) -> bool:
        """True if a declared variable is read nowhere, or only under its other name."""
        known = self.known
        return local in known.declared and (not known.reads[local] or local in known.copies)

    def _loop(self, loop: For) -> Replacement:
        """for i in range(0): ... --> nothing; for i in range(3, 4): s --> s with i = 3."""
        if loop.stop <= loop.start or all(isinstance(s, Remark) for s in loop.body.stmts):
            return ()
        if loop.stop - loop.start > 1 or loop.kind in (AxisKind.GRID, AxisKind.BLOCK):
            return loop
        body = substitute_in_stmt(loop.body, {loop.var: FixedIndex(loop.start)})
        return rewrite(body, self.statement, self.expression)

    def _block(self, block: Block, stmts: tuple[Stmt, ...]) -> Block:
        flat = tuple(_flattened(stmts)) if any(map(_is_transparent, stmts)) else stmts
        if flat and isinstance(flat[-1], Block) and not _declare_alike(flat):
            flat = (*flat[:-1], *flat[-1].stmts)
        flat = self._without_steps(flat)
        return block if flat is stmts else Block(flat)

    def _without_steps(self, stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """v = x; v = f(v) --> v = f(x), where f uses v at most once or x is a constant.

        v = x; c = f(v) --> c = f(x), where this is the only use of v.
        """
        if not any(isinstance(stmt, SetLocal) for stmt in stmts):
            return stmts
        kept: list[Stmt] = []
        for stmt in stmts:
            merged = self._merged(kept[-1], stmt) if kept else None
            if merged is None:
                kept.append(stmt)
            else:
                kept[-1] = merged
        return stmts if len(kept) == len(stmts) else tuple(kept)

    def _merged(self, before: Stmt, stmt: Stmt) -> Stmt | None:
        if not isinstance(before, SetLocal) or not isinstance(stmt, SetLocal | Store):
            return None
        local, known = before.local, self.known
        is_again = isinstance(stmt, SetLocal) and stmt.local == local
        is_last = local in known.declared and known.reads[local] == known.sets[local] == 1
        if not is_again and not is_last:
            return None
        if writes(before.value):
            return None
        reads = _reads(stmt.value, local)
        if reads == 0 and not is_again:
            return None
        if reads > 1 and not isinstance(before.value, Const):
            return None
        if any(_reads(n.body, local) for n in walk(stmt.value) if isinstance(n, Scoped)):
            return None

        def substituted(expr: Expr) -> Expr:
            return before.value if expr == LocalRead(local) else self.expression(expr)

        return replace(stmt, value=map_expr(stmt.value, substituted, self.statement))


def _single_value(local: Local, body: Block) -> Expr | None:
    """{v: v = x} --> x."""
    match [stmt for stmt in body.stmts if not isinstance(stmt, Remark)]:
        case [SetLocal(assigned, value)] if assigned == local and not _reads(value, local):
            return value
        case _:
            return None


def _is_transparent(stmt: Stmt) -> bool:
    """True of a block that introduces nothing, so that its statements can take its place."""
    return isinstance(stmt, Block) and not any(
        isinstance(each, DeclareLocal | Allocate) for each in stmt.stmts
    )


def _declare_alike(stmts: tuple[Stmt, ...]) -> bool:
    """True if the block at the end of a block introduces something that is introduced before."""
    *before, last = stmts
    inside = last.stmts if isinstance(last, Block) else ()
    return any(isinstance(s, DeclareLocal | Allocate) and s in before for s in inside)


def _flattened(stmts: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yields statements, with those of inner blocks that introduce nothing in their place."""
    for stmt in stmts:
        if isinstance(stmt, Block) and _is_transparent(stmt):
            yield from stmt.stmts
        else:
            yield stmt


def _reads(root: Expr | Stmt, local: Local) -> int:
    return sum(isinstance(node, LocalRead) and node.local == local for node in walk(root))
