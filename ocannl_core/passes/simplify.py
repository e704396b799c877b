"""Simplification: the laws of `laws`, powers, comparisons decided by loop bounds, loops, locals.

for i in range(1): c[i] = a[i] * 1.0   -->   c[0] = a[0]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ocannl_core.dtypes import DType, Kind
from ocannl_core.indexing import FixedIndex, IndexVar
from ocannl_core.loopir.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
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
)
from ocannl_core.loopir.ranges import Range, index_range
from ocannl_core.loopir.traverse import (
    Node,
    Replacement,
    locals_of,
    map_expr,
    rewrite,
    substitute_in_stmt,
    used_only,
    walk,
)
from ocannl_core.ops import COMPARISONS, BinaryOp
from ocannl_core.passes.facts import SIGNIFICANT_BITS, constant, is_leaf, value_of
from ocannl_core.passes.laws import simplified_once

_MOST_ROUNDS = 100


def simplify(program: LoopProgram) -> LoopProgram:
    """Returns a program of the same meaning with what can be known beforehand worked out.

    Cells get the same bits, except through powers with exponents 3 and 4: `x ** 3 --> x * x * x` is
    within two units in the last place, as close as a platform's power function.
    """
    body = program.body
    for _ in range(_MOST_ROUNDS):
        rules = _Rules(_ranges(program, body), _next_local(body))
        simpler = rewrite(body, rules.statement, rules.expression)
        if simpler is body:
            break
        body = simpler
    return used_only(replace(program, body=body))


def simplify_expr(expr: Expr) -> Expr:
    """Returns an expression of the same value, simplified without knowledge of its surroundings."""
    rules = _Rules({}, _next_local(expr))
    return map_expr(expr, rules.expression, rules.statement)


def _ranges(program: LoopProgram, body: Block) -> dict[IndexVar, Range]:
    """Returns the values of every variable; over all its loops, when several bind it."""
    ranges: dict[IndexVar, Range] = {
        index: Range(0, index.extent - 1) for index in program.indices if index.extent is not None
    }
    for node in walk(body):
        if isinstance(node, For):
            known = ranges.get(node.var, Range(node.start, node.stop - 1))
            low, high = min(known.low, node.start), max(known.high, node.stop - 1)
            ranges[node.var] = Range(low, high)
    return ranges


def _next_local(root: Node) -> int:
    return 1 + max((local.id for local in locals_of(root)), default=-1)


@dataclass(slots=True)
class _Rules:
    """The rewrites of one round, with what they know of the program."""

    ranges: Mapping[IndexVar, Range]
    next_local: int

    # ----- expressions -----

    def expression(self, expr: Expr) -> Expr:
        while True:
            simpler = simplified_once(expr) or self._contextual(expr)
            if simpler is None:
                return expr
            expr = simpler

    def _contextual(self, expr: Expr) -> Expr | None:
        match expr:
            case Binary(BinaryOp.POW, base, exponent, dtype):
                return self._power(base, value_of(exponent), dtype)
            case Binary(op, left, right, dtype) if op in COMPARISONS:
                return self._comparison(op, left, right, dtype)
            case Scoped(local, body):
                return _single_value(local, body)
            case _:
                return None

    def _power(self, base: Expr, exponent: float | None, dtype: DType) -> Expr | None:
        """x ** 2 --> x * x; x ** 3 --> x * x * x; x ** 4 --> square of the square."""
        if exponent not in (2, 3, 4):
            return None
        if exponent == 4:
            square = self._power(base, 2, dtype)
            return None if square is None else self._power(square, 2, dtype)
        if is_leaf(base):
            return _product(base, int(exponent), dtype)
        local = Local(self.next_local, dtype)
        self.next_local += 1
        value = _product(LocalRead(local), int(exponent), dtype)
        return Scoped(local, Block((SetLocal(local, base), SetLocal(local, value))))

    def _comparison(self, op: BinaryOp, left: Expr, right: Expr, dtype: DType) -> Expr | None:
        """i < 3 --> 1, where i is a loop's variable and always less than 3; and the like."""
        first, second = self._integers(left), self._integers(right)
        if first is None or second is None:
            return None
        less, equal = first.high < second.low, first.low == first.high == second.low == second.high
        apart = less or second.high < first.low
        match op:
            case BinaryOp.LT:
                verdict = True if less else False if first.low >= second.high else None
            case BinaryOp.LE:
                not_greater = first.high <= second.low
                verdict = True if not_greater else False if first.low > second.high else None
            case BinaryOp.EQ:
                verdict = True if equal else False if apart else None
            case _:
                verdict = False if equal else True if apart else None
        return None if verdict is None else constant(int(verdict), dtype)

    def _integers(self, expr: Expr) -> Range | None:
        """Returns the range of an index value or an integer, if its format holds all of it."""
        match expr:
            case IndexValue(index, dtype):
                reach = index_range(index, self.ranges)
                return reach if reach is not None and _fits(reach, dtype) else None
            case Const():
                value = value_of(expr)
                if isinstance(value, tuple) or value != value or abs(value) > 2**53:
                    return None
                return Range(int(value), int(value)) if value == int(value) else None
            case _:
                return None

    # ----- statements -----

    def statement(self, stmt: Stmt) -> Replacement:
        match stmt:
            case For():
                return _loop(stmt)
            case Block(stmts):
                flat = tuple(_flattened(_without_dead_values(stmts)))
                same = len(flat) == len(stmts) and all(
                    new is old for new, old in zip(flat, stmts, strict=True)
                )
                return stmt if same else Block(flat)
            case Store(node, indices, Load(loaded, cell)) if loaded is node and cell == indices:
                return ()  # c[i] = c[i] -->
            case _:
                return stmt


def _product(base: Expr, count: int, dtype: DType) -> Expr:
    product = base
    for _ in range(count - 1):
        product = Binary(BinaryOp.MUL, product, base, dtype)
    return product


def _fits(reach: Range, dtype: DType) -> bool:
    if dtype.is_float:
        limit = 1 << SIGNIFICANT_BITS[dtype]
        return -limit <= reach.low and reach.high <= limit
    bits = 8 * dtype.nbytes - (dtype.kind is Kind.SIGNED)
    low = -(1 << bits) if dtype.kind is Kind.SIGNED else 0
    return low <= reach.low and reach.high < 1 << bits


def _single_value(local: Local, body: Block) -> Expr | None:
    """{v: v = x} --> x."""
    match [stmt for stmt in body.stmts if not isinstance(stmt, Remark)]:
        case [SetLocal(assigned, value)] if assigned == local and not _reads(value, local):
            return value
        case _:
            return None


def _loop(loop: For) -> Replacement:
    """for i in range(0): ... --> nothing; for i in range(3, 4): s --> s with i = 3."""
    if loop.stop <= loop.start or all(isinstance(s, Remark) for s in loop.body.stmts):
        return ()
    if loop.stop - loop.start > 1 or loop.kind in (AxisKind.GRID, AxisKind.BLOCK):
        return loop
    return substitute_in_stmt(loop.body, {loop.var: FixedIndex(loop.start)})


def _flattened(stmts: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yields statements, with those of inner blocks that introduce nothing in their place."""
    for stmt in stmts:
        match stmt:
            case Block(inner) if not any(isinstance(s, DeclareLocal | Allocate) for s in inner):
                yield from inner
            case _:
                yield stmt


def _without_dead_values(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """v = x; v = f(v) --> v = f(x), where f uses v at most once or x is a constant."""
    kept: list[Stmt] = []
    for stmt in stmts:
        match kept[-1:], stmt:
            case [SetLocal(before, first)], SetLocal(local, second) if before == local:
                merged = _substituted(second, local, first)
                if merged is not None:
                    kept[-1] = SetLocal(local, merged)
                    continue
        kept.append(stmt)
    return tuple(kept)


def _substituted(expr: Expr, local: Local, value: Expr) -> Expr | None:
    """Returns the expression with the value in place of the variable; None if that repeats work."""
    inlined = sum(_reads(n.body, local) for n in walk(expr) if isinstance(n, Scoped))
    if inlined or (_reads(expr, local) > 1 and not isinstance(value, Const)):
        return None
    return map_expr(expr, lambda e: value if e == LocalRead(local) else e)


def _reads(root: Node, local: Local) -> int:
    return sum(isinstance(node, LocalRead) and node.local == local for node in walk(root))
