"""Rendering of loops over tiles as AMX instructions on tile registers.

    for r in tile(16):                              tile_load(4, &a[...], 64);
        for l in tile(16):                          tile_load(6, &b[...], 64);
            for t in tile(16):             -->      tile_multiply_add(0, 4, 6);
                for p in dot(2):
                    sums[r, l] = fma(float32(a[r, t, p]), float32(b[t, l, p]), sums[r, l])

An array of scope THREAD that only such loops mention is split into tiles of 16 rows of 16 numbers.
The first registers hold those; the others hold tiles of operands until memory changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from ocannl_core.backend_api import NodeInfo, TensorNode, float32
from ocannl_core.backend_api.c_family import Dialect
from ocannl_core.backend_api.loops import (
    AxisKind,
    Block,
    Const,
    For,
    Load,
    ProductNest,
    Stmt,
    Store,
    Ternary,
    match_product_nest,
    nodes_of,
    perfect_tile,
)
from ocannl_core.backend_api.rendering import (
    DeviceLoops,
    NotVectorizedError,
    Position,
    RenderState,
    stride_along,
)
from ocannl_cpu_c.matrix_units import REGISTERS, TILE_PRODUCTS

((_ROWS, _LANES, _TERMS),) = {each.shape for each in TILE_PRODUCTS}
_CELLS, _PAIRS = _ROWS * _LANES, _TERMS // 2
_HELPERS = {each.dtype: each.name for each in TILE_PRODUCTS if each.parts == 1}
"""The functions for instructions, by the number format of tiles."""


def _count_registers(stmts: Iterable[Stmt], node: TensorNode, info: NodeInfo) -> int:
    """Return the number of tile registers of an array; 0 if other code in its scope mentions it."""
    count, rest = divmod(info.size, _CELLS)
    is_tiles = info.dtype is float32 and info.buffer_dims[-2:] == (_ROWS, _LANES) and not rest
    return count if is_tiles and _is_in_tiles(stmts, node) else 0


def _is_in_tiles(stmts: Iterable[Stmt], node: TensorNode) -> bool:
    pending = list(stmts)
    while pending:
        stmt = pending.pop()
        match stmt:
            case For(kind=AxisKind.TILE):
                pass
            case For(body=body):
                pending += body.stmts
            case Block(inner):
                pending += inner
            case _ if node in nodes_of(stmt):
                return False
    return True


class AmxLoops(DeviceLoops):
    """Renders loops over tiles, with the first register and the count of each array in tiles."""

    def __init__(self, dialect: Dialect, state: RenderState) -> None:
        super().__init__(dialect)
        self._state = state
        self._names = state.names
        self._tiles: dict[TensorNode, tuple[int, int]] = state.names.register_table()
        self._writer = state.writer
        self._positions = state.positions

    def allocate(self, node: TensorNode, scope: Sequence[Stmt]) -> bool:
        count = _count_registers(scope, node, self._state.info(node))
        if not count:
            return False
        first = sum(number for _, number in self._tiles.values())
        if first + count > REGISTERS - 2:  # two operands need others
            raise NotVectorizedError
        self._tiles[node] = first, count
        return True

    def close(self) -> None:
        if any(name.startswith("tile_") for name in self._writer.helpers):
            self._writer.helpers |= {"tile_begin", "tile_end"}
            self._writer.insert_first("tile_begin();")
            self._writer.line("tile_end();")

    def render(self, loop: For) -> bool:
        if loop.kind is not AxisKind.TILE or loop.stop - loop.start < 2:
            return False
        loops, store = perfect_tile(loop) or ((), loop)
        kinds = [each.kind for each in loops]
        extents = [each.stop for each in loops]
        if not isinstance(store, Store):
            raise NotVectorizedError
        with ExitStack() as stack:
            for each in loops:
                stack.enter_context(self._names.bind(each.var, 0))
            is_tile = extents[:2] == [_ROWS, _LANES] and kinds[:2] == [AxisKind.TILE] * 2
            match store.value:
                case Const() as value if is_tile and len(loops) == 2:
                    if value != Const(0.0, float32):
                        raise NotVectorizedError
                    self._write_line("tile_zero", str(self._accumulator(store, loops)))
                case Load() as load if is_tile and len(loops) == 2:
                    self._write_store(store, load, loops)
                case Ternary() if (
                    is_tile
                    and extents[2:] == [_PAIRS, 2]
                    and kinds[2:] == [AxisKind.TILE, AxisKind.DOT]
                ):
                    self._write_product(match_product_nest(loop))
                case _:
                    raise NotVectorizedError
        return True

    def _write_store(self, store: Store, load: Load, loops: Sequence[For]) -> None:
        """Write the copy of a tile to memory."""
        tile = self._accumulator(load, loops)
        position = self._positions.position_of(store.node, store.indices)
        row, lane = _strides(position, loops)
        if lane != 1 or row < _LANES or self._state.info(store.node).dtype is not float32:
            raise NotVectorizedError
        self._state.written.add(store.node)
        self._write_line("tile_store", f"{tile}, &{self._cell(store.node, position)}, {4 * row}")
        self._writer.forget()

    def _write_product(self, nest: ProductNest | None) -> None:
        """Write the product of two tiles of memory."""
        if nest is None or nest.store.value.dtype is not float32:
            raise NotVectorizedError
        sums = self._accumulator(nest.store, nest.loops)
        operands: dict[bool, tuple[str, int]] = {}
        dtype, other = (factor.dtype for factor in nest.factors)
        if dtype is not other or dtype not in _HELPERS:
            raise NotVectorizedError
        for factor in nest.factors:
            position = self._positions.position_of(factor.node, factor.indices)
            match _strides(position, nest.loops):
                case (stride, 0, 2, 1) if stride >= 2 * _PAIRS:
                    is_rows = True
                case (0, 2, stride, 1) if stride >= 2 * _LANES:
                    is_rows = False
                case _:
                    raise NotVectorizedError
            operands[is_rows] = self._cell(factor.node, position), 2 * stride
        if len(operands) < 2:
            raise NotVectorizedError
        rows = self._load("rows", *operands[True])
        columns = self._load("columns", *operands[False])
        self._write_line(_HELPERS[dtype], f"{sums}, {rows}, {columns}")

    def _load(self, kind: str, cell: str, stride: int) -> int:
        """Return the register that holds a tile of memory, after loading it if necessary.

        If all registers are in use, it replaces a tile of the same operand: tiles of the other
        operand will be used with it.
        """
        text, known = f"{kind} at {cell} by {stride}", self._writer.cached
        first = sum(number for _, number in self._tiles.values())
        held = {
            text: int(tile)
            for text, tile in known.items()  # in the order of the last uses
            if text.startswith(("rows at ", "columns at "))
        }
        tile = held.get(text)
        if tile is None:
            free = sorted(set(range(first, REGISTERS)) - set(held.values()))
            if not free:
                oldest = next((each for each in held if each.startswith(kind)), next(iter(held)))
                del known[oldest]
                free = [held[oldest]]
            (tile, *_) = free
            self._write_line("tile_load", f"{tile}, &{cell}, {stride}")
        known.pop(text, None)
        known[text] = str(tile)
        return tile

    def _accumulator(self, access: Store | Load, loops: Sequence[For]) -> int:
        """Return the register that an access to an array in registers is to."""
        if access.node not in self._tiles:
            raise NotVectorizedError
        position = self._positions.position_of(access.node, access.indices)
        if _strides(position, loops)[:2] != (_LANES, 1):
            raise NotVectorizedError
        if any(isinstance(self._names.index(var), str) for _, var in position[0]):
            raise NotVectorizedError
        tile, rest = divmod(self._positions.constant_position(position), _CELLS)
        first, count = self._tiles[access.node]
        if rest or tile >= count:
            raise NotVectorizedError
        return first + tile

    def _cell(self, node: TensorNode, position: Position) -> str:
        if node in self._tiles or node in self._names.registers:
            raise NotVectorizedError
        return self._positions.cell(self._names.array(node), position)

    def _write_line(self, function: str, arguments: str) -> None:
        self._writer.helpers.add(function)
        self._writer.line(f"{function}({arguments});")


def _strides(position: Position, loops: Iterable[For]) -> tuple[int, ...]:
    """Return the stride of a position in each loop."""
    return tuple(stride_along(position, loop.var) for loop in loops)
