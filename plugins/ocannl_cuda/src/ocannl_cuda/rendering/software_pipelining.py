"""Rendering of software pipelining: `cp.async` copies, and barriers that wait for them.

    for c in copy(8):
      t0[.., 8 * j + c] = i < 100 ? a0[.., 8 * k + c] : 0.0
                                    -->  copy_async_16(&t0[8 * j], &a0[8 * k], i < 100 ? 16 : 0);
    barrier(1)                      -->  await_copies_1(); __syncthreads();

`ptx` defines the helpers: `copy_async_N(to, from, valid)` copies
`valid` of N bytes and writes zeros to the others; `await_copies_N` ends a group of copies, and
waits for all but the last N groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocannl_core.backend_api.arithmetic import BinaryOp, TernaryOp
from ocannl_core.backend_api.loops import (
    AxisIndex,
    AxisKind,
    Binary,
    Const,
    Expr,
    For,
    IndexValue,
    IndexVar,
    Load,
    Store,
    Ternary,
    affine,
    as_affine,
)
from ocannl_core.backend_api.rendering import Addresses, KernelNames, KernelWriter, Position


class AsynchronousCopies:
    """Renders COPY loops.

    Args:
        names: The names in scope.
        writer: Receives the statements.
        positions: Renders addresses.
        widths: The bytes that one instruction copies.
        kinds: The kinds of the loops by their variables.
    """

    def __init__(
        self,
        names: KernelNames,
        writer: KernelWriter,
        positions: Addresses,
        widths: Sequence[int],
        kinds: Mapping[IndexVar, AxisKind],
    ) -> None:
        self._names = names
        self._writer = writer
        self._positions = positions
        self._widths = widths
        self._kinds = kinds

    def await_copies(self, pending: int) -> None:
        """Write the end of a group of copies, and wait for all but some last groups."""
        self._write(f"await_copies_{pending}", "")

    def render(self, loop: For) -> bool:
        """Write a loop as one instruction; return False if none copies its cells."""
        match loop.body.stmts:
            case (Store(to, place, value),):
                pass
            case _:
                return False
        conditions: list[Expr] = []
        match value:
            case Load():
                load = value
            case Ternary(TernaryOp.WHERE, condition, Load() as load, Const(0.0)):
                conditions = conjuncts(condition)
            case _:
                return False
        width, nbytes = loop.stop - loop.start, load.dtype.nbytes
        if width * nbytes not in self._widths or loop.start:
            return False
        ends = (to, place), (load.node, load.indices)
        positions = [self._positions.position_of(*each) for each in ends]
        if not all(_is_aligned(each, loop.var, width) for each in positions):
            return False
        with self._names.bind(loop.var, 0):
            valid = self._valid(conditions, loop.var, width, nbytes)
            if valid is None:
                return False
            cell = self._positions.cell(self._names.array(to), positions[0])
            source = self._address(self._names.array(load.node), positions[1])
            self._write(f"copy_async_{width * nbytes}", f"&{cell}, {source}, {valid}")
        return True

    def _address(self, array: str, position: Position) -> str:
        """Return an address as a sum that compilers add up once for all copies of a kernel, then
        once for all of an iteration, and then with a constant. The copy begins at its first cell.
        """
        terms, offset = position
        parts: list[list[tuple[int, IndexVar]]] = [[], [], []]
        for term in terms:
            kind = self._kinds.get(term[1], AxisKind.UNROLLED)
            if kind in (AxisKind.GRID, AxisKind.BLOCK):
                parts[0].append(term)
            elif kind is not AxisKind.COPY:
                parts[1 if kind is AxisKind.SERIAL else 2].append(term)
        address = f"&{self._positions.cell(array, (tuple(parts[0]), 0))}"
        for part, constant in ((parts[1], 0), (parts[2], offset)):
            if part or constant:
                address += f" + {self._positions.index(affine(part, constant))}"
        return address

    def _valid(
        self, conditions: Sequence[Expr], var: IndexVar, width: int, nbytes: int
    ) -> str | None:
        """Return the number of bytes of a copy before all ends; None if it is not the difference of
        two positions.
        """
        guards: list[str] = []
        counts: list[str] = []
        for each in conditions:
            match each:
                case Binary(BinaryOp.LT, IndexValue(place), IndexValue(end)):
                    pass
                case _:
                    return None
            step = sum(factor for factor, own in as_affine(place)[0] if own is var)
            guards.append(f"{self._positions.index(place)} < {self._positions.index(end)}")
            left = _difference(end, place)
            if step == 0 or _is_aligned(as_affine(left), var, width, -step):
                continue
            if step == 1:
                counts.append(self._positions.index(left).code)
            else:
                return None
        whole = str(width * nbytes)
        if len(counts) > 1:
            return None
        if counts:
            whole = f"({counts[0]} < {width} ? ({counts[0]}) * {nbytes} : {whole})"
        return f"{' && '.join(guards)} ? {whole} : 0" if guards else whole

    def _write(self, helper: str, arguments: str) -> None:
        self._writer.helpers.add(helper)
        self._writer.line(f"{helper}({arguments});")


def conjuncts(condition: Expr) -> list[Expr]:
    match condition:
        case Binary(BinaryOp.AND, left, right):
            return [*conjuncts(left), *conjuncts(right)]
        case _:
            return [condition]


def _difference(end: AxisIndex, start: AxisIndex) -> AxisIndex:
    (end_terms, end_offset), (terms, offset) = as_affine(end), as_affine(start)
    negated = [(-factor, var) for factor, var in terms]
    return affine([*end_terms, *negated], end_offset - offset)


def _is_aligned(position: Position, var: IndexVar, width: int, factor: int = 1) -> bool:
    """Return True if a position is a multiple of a number, plus a variable times a factor."""
    terms, offset = position
    step = sum(each for each, own in terms if own is var)
    others = [each for each, own in terms if own is not var]
    return (
        (step == factor or width == 1)
        and offset % width == 0
        and all(each % width == 0 for each in others)
    )
