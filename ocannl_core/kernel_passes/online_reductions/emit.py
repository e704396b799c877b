"""The statements of a chain of online reductions on the thread blocks of a device.

    for b in grid(batch), i in grid(tiles of rows):
      for r, c in block(threads along rows and columns):
        copy the rows' factor to shared memory
        for t in range(tiles of columns):
          barrier; copy the columns' factors; barrier
          scores = products of rows and columns                 # cells of a thread, in registers
          limit' = max(limit, scores), across the threads of a row
          correction = exp(shift(limit) - shift(limit'))
          weights = exp(scores - shift(limit')), to shared memory
          totals = totals * correction + weights                # partial sums of a thread
          barrier
          results = results * correction + weights * columns' second factor
        totals across the threads of a row; the stores

Scores beyond the last column are minus infinity where there is a limit, and weights are zero. Tiles
of columns whose scores are minus infinity in every row are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from ocannl_core.dtypes import DType
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
)
from ocannl_core.kernel_passes.online_reductions.chain import Chain, Sum
from ocannl_core.kernel_passes.online_reductions.copies import (
    Digit,
    Side,
    TileCopies,
    both,
    is_vector,
)
from ocannl_core.kernel_passes.online_reductions.skipped_tiles import last_tile
from ocannl_core.kernel_passes.online_reductions.terms import (
    as_format,
    exponential_of,
    replaced,
    where,
)
from ocannl_core.kernel_passes.online_reductions.tile_sizes import ChainTile, padded_terms
from ocannl_core.kernels.nest import LoopAxis
from ocannl_core.kernels.nodes import NodeInfos
from ocannl_core.loopir.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    For,
    Load,
    Local,
    LocalRead,
    LoopBound,
    Scope,
    SetLocal,
    Stmt,
    Store,
    SubgroupReduce,
    Ternary,
)
from ocannl_core.loopir.traverse import map_expr, substitute_in_expr, substitute_in_stmt, walk
from ocannl_core.machine_model import WALK_TERMS
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp, TernaryOp
from ocannl_core.schedule.apply.loop_ends import guarded
from ocannl_core.schedule.apply.vector_accesses import vector_iterations

_DIGIT = 4
"""The threads inside of the digits of a thread's number along the columns: copies use the digits."""


def _loop(
    name: str, extent: int, body: Callable[[AxisIndex], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """Return statements for each of some cells, written out."""
    if extent == 1:
        return body(FixedIndex(0))
    var = fresh_var(name)
    return (For(var, 0, extent, Block(body(VarIndex(var))), AxisKind.UNROLLED),)


def _joined(*parts: tuple[int, AxisIndex], offset: int = 0) -> AxisIndex:
    """Return a sum of multiples of positions."""
    terms: list[tuple[int, IndexVar]] = []
    for factor, part in parts:
        own, start = as_affine(part)
        terms += [(factor * coefficient, var) for coefficient, var in own]
        offset += factor * start
    return affine(terms, offset)


@dataclass(slots=True)
class ChainEmitter:
    """The statements of one chain.

    Attributes:
        chain: The chain.
        tile: Its tile.
        known: Extents and formats of the nodes of the program.
        nodes: The arrays that the statements use.
    """

    chain: Chain
    tile: ChainTile
    known: NodeInfos
    nodes: dict[TensorNode, NodeInfo] = field(default_factory=dict)
    _shared: list[TensorNode] = field(default_factory=list)
    _private: list[TensorNode] = field(default_factory=list)

    @classmethod
    def of(cls, chain: Chain, tile: ChainTile, nodes: NodeInfos) -> ChainEmitter:
        return cls(chain, tile, nodes)

    # ----- arrays -----------------------------------------------------------------------------

    def _array(
        self, name: str, dtype: DType, *dims: int, scope: Scope = Scope.THREAD
    ) -> TensorNode:
        node = TensorNode(len(self.nodes), (name,))
        self.nodes[node] = NodeInfo(dtype, dims)
        (self._shared if scope is Scope.GROUP else self._private).append(node)
        return node

    def _vector(self, name: str, dtype: DType, lanes: int) -> TensorNode:
        node = TensorNode(len(self.nodes), (name,))
        self.nodes[node] = NodeInfo(dtype, (lanes,))
        return node

    def _read(self, node: TensorNode, *indices: AxisIndex) -> Load:
        return Load(node, indices, self.nodes[node].dtype)

    def _add(self, node: TensorNode, left: Expr, right: Expr, *indices: AxisIndex) -> Store:
        """Return the accumulation of a product to a cell."""
        cell, dtype = self._read(node, *indices), self.nodes[node].dtype
        left, right = as_format(left, dtype), as_format(right, dtype)
        if self.tile.is_fused:
            return Store(node, indices, Ternary(TernaryOp.FMA, left, right, cell, dtype))
        product = Binary(BinaryOp.MUL, left, right, dtype)
        return Store(node, indices, Binary(BinaryOp.ADD, cell, product, dtype))

    # ----- the kernel -------------------------------------------------------------------------

    def body(self) -> Block:
        """Return the statements of the kernel; `nodes` has their arrays afterwards."""
        chain, tile = self.chain, self.tile
        down, across = tile.threads
        digits = self._digits()
        row_thread = _joined(*((1, VarIndex(v)) for v, _ in digits[:1]))
        column_thread = VarIndex(digits[-1][0])
        if len(digits) > 2:
            column_thread = _joined((_DIGIT, VarIndex(digits[1][0])), (1, VarIndex(digits[2][0])))
        batch = [(axis, fresh_var(axis.var.hint)) for axis in chain.batch]
        tile_of_rows = fresh_var(chain.rows.var.hint)
        count = -(-chain.rows.extent // tile.block_rows)
        first_row = affine([(tile.block_rows, tile_of_rows)]) if count > 1 else FixedIndex(0)
        rows = Side(
            chain.rows,
            first_row,
            tile.block_rows,
            chain.rows.bound is not None or count * tile.block_rows > chain.rows.extent,
            needs_zeros=False,
        )
        around: dict[IndexVar, AxisIndex] = {
            axis.var: VarIndex(var) if axis.extent > 1 else FixedIndex(0) for axis, var in batch
        }
        thread = _Thread(self, digits, row_thread, column_thread, rows, around)
        stmts = thread.statements()
        stmts = (*(Allocate(node, Scope.THREAD) for node in self._private), *stmts)
        for var, extent in reversed(digits):
            stmts = (For(var, 0, extent, Block(stmts), AxisKind.BLOCK),)
        stmts = (*(Allocate(node, Scope.GROUP) for node in self._shared), *stmts)
        grid = [
            (v, axis.extent, axis.bound_at(VarIndex(v))) for axis, v in batch if axis.extent > 1
        ]
        grid += [(tile_of_rows, count, None)] if count > 1 or not grid else []
        for var, extent, end in reversed(grid):
            stmts = (For(var, 0, extent, Block(stmts), AxisKind.GRID, bound=end),)
        return Block(stmts)

    def _digits(self) -> tuple[Digit, ...]:
        """Return the loops of the block."""
        down, across = self.tile.threads
        found = [(fresh_var("row"), down)]
        if across > _DIGIT:
            found.append((fresh_var("column"), across // _DIGIT))
        found.append((fresh_var("column"), min(across, _DIGIT)))
        return tuple(found)


@dataclass(slots=True)
class _Thread:
    """The statements of one thread.

    Attributes:
        emitter: Makes arrays.
        digits: The loops of the block.
        row: The number of the thread along the rows.
        column: Its number along the columns.
        rows: The tile of rows.
        around: The values of the variables of the other axes of rows.
    """

    emitter: ChainEmitter
    digits: tuple[Digit, ...]
    row: AxisIndex
    column: AxisIndex
    rows: Side
    around: dict[IndexVar, AxisIndex]

    @property
    def chain(self) -> Chain:
        return self.emitter.chain

    @property
    def tile(self) -> ChainTile:
        return self.emitter.tile

    def _own_row(self, x: AxisIndex) -> AxisIndex:
        """Return the row of the tile that is the thread's x-th one."""
        return _joined((1, self.row), (self.tile.threads[0], x))

    def _own_column(self, y: AxisIndex) -> AxisIndex:
        return _joined((1, self.column), (self.tile.threads[1], y))

    def _own_cell(self, z: AxisIndex, lane: AxisIndex) -> AxisIndex:
        lanes = self.tile.lanes
        return _joined((lanes, self.column), (lanes * self.tile.threads[1], z), (1, lane))

    def statements(self) -> tuple[Stmt, ...]:
        chain, tile, make = self.chain, self.tile, self.emitter._array
        product, weighted = chain.product, chain.weighted
        pitch, terms = padded_terms(chain), -(-product.terms.extent // WALK_TERMS) * WALK_TERMS
        group = Scope.GROUP
        left = make("rows", product.left.dtype, tile.block_rows, pitch, scope=group)
        right = make("columns", product.right.dtype, tile.block_columns, pitch, scope=group)
        second = make(
            "operand", chain.operand.dtype, tile.block_columns, tile.block_cells, scope=group
        )
        weights = make(
            "weights",
            weighted.result.dtype,
            tile.block_rows,
            tile.block_columns + tile.threads[1],
            scope=group,
        )
        scores = make("scores", product.result.dtype, tile.rows, tile.columns)
        kept = (
            scores
            if chain.score.dtype is product.result.dtype
            else make("kept", chain.score.dtype, tile.rows, tile.columns)
        )
        results = make("results", weighted.result.dtype, tile.rows, tile.cells)
        totals = {each.result: make("total", each.result.dtype, tile.rows) for each in chain.totals}
        statistics = _Statistics(self, kept, results, totals)
        copies = TileCopies(
            self.digits,
            {**self.emitter.known, **self.emitter.nodes},
            tile.vector_bytes,
            self.emitter._vector,
        )
        depth = Side(product.terms, FixedIndex(0), terms, terms > product.terms.extent)

        walk_var = fresh_var(chain.columns.var.hint)
        count = -(-chain.columns.extent // tile.block_columns)
        first = affine([(tile.block_columns, walk_var)])
        ends_early = chain.columns.bound is not None
        columns = Side(
            chain.columns,
            first,
            tile.block_columns,
            ends_early or count * tile.block_columns > chain.columns.extent,
        )
        cells = Side(
            chain.cells,
            FixedIndex(0),
            tile.block_cells,
            tile.block_cells > chain.cells.extent,
            needs_zeros=False,
        )

        def fill(node: TensorNode, factor: Expr, along: Side, across: Side) -> tuple[Stmt, ...]:
            factor = substitute_in_expr(factor, self.around)
            return copies.fill(node, self.emitter.nodes[node], factor, along, across)

        cleared = statistics.cleared()
        inside = (
            Barrier(),
            *fill(right, product.right, columns, depth),
            *fill(second, chain.operand, columns, cells),
            Barrier(),
            *self._products(scores, left, right, terms),
            *self._keep(scores, kept, columns),
            *statistics.advance(weights, columns),
            Barrier(),
            *self._weighted(results, weights, second),
        )
        bound = last_tile(chain, columns, self.rows)
        if bound is None and ends_early:
            bound = chain.columns.bound_at(first)
        loop = For(walk_var, 0, count, Block(inside), bound=bound)
        return (
            *fill(left, product.left, self.rows, depth),
            *cleared,
            loop,
            *statistics.complete(),
            *self._stores(results, statistics),
        )

    # ----- products ---------------------------------------------------------------------------

    def _products(
        self, scores: TensorNode, left: TensorNode, right: TensorNode, terms: int
    ) -> tuple[Stmt, ...]:
        """Return the scores of a thread."""
        emitter, tile = self.emitter, self.tile
        zero = Const(0.0, emitter.nodes[scores].dtype)
        clear = _loop(
            "x",
            tile.rows,
            lambda x: _loop("y", tile.columns, lambda y: (Store(scores, (x, y), zero),)),
        )
        step = fresh_var("term")

        def add(inner: AxisIndex) -> tuple[Stmt, ...]:
            at = _joined((WALK_TERMS, VarIndex(step)), (1, inner))

            def cell(x: AxisIndex, y: AxisIndex) -> tuple[Stmt, ...]:
                return (
                    emitter._add(
                        scores,
                        emitter._read(left, self._own_row(x), at),
                        emitter._read(right, self._own_column(y), at),
                        x,
                        y,
                    ),
                )

            return _loop("x", tile.rows, lambda x: _loop("y", tile.columns, lambda y: cell(x, y)))

        body = Block(_loop("term", WALK_TERMS, add))
        return (*clear, For(step, 0, terms // WALK_TERMS, body))

    def _weighted(
        self, results: TensorNode, weights: TensorNode, second: TensorNode
    ) -> tuple[Stmt, ...]:
        """Return the second product of a tile of columns."""
        emitter, tile = self.emitter, self.tile
        step = fresh_var("column")
        stride = min(WALK_TERMS, tile.block_columns)

        def add(inner: AxisIndex) -> tuple[Stmt, ...]:
            at = _joined((stride, VarIndex(step)), (1, inner))

            def cell(x: AxisIndex, z: AxisIndex, lane: AxisIndex) -> tuple[Stmt, ...]:
                return (
                    emitter._add(
                        results,
                        emitter._read(weights, self._own_row(x), at),
                        emitter._read(second, at, self._own_cell(z, lane)),
                        x,
                        _joined((tile.lanes, z), (1, lane)),
                    ),
                )

            return _loop("x", tile.rows, lambda x: self._cells(lambda z, lane: cell(x, z, lane)))

        body = Block(_loop("column", stride, add))
        return (For(step, 0, tile.block_columns // stride, body),)

    def _cells(self, body: Callable[[AxisIndex, AxisIndex], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """Return statements for each cell of a row that a thread has."""
        lanes = self.tile.lanes
        return _loop(
            "z", self.tile.cells // lanes, lambda z: _loop("lane", lanes, lambda n: body(z, n))
        )

    # ----- scores -----------------------------------------------------------------------------

    def values(self, columns: Side | None, x: AxisIndex, y: AxisIndex) -> dict[IndexVar, AxisIndex]:
        """Return the values of the variables of a row and a column."""
        found = {**self.around, self.chain.rows.var: self.rows.position(self._own_row(x))}
        if columns is not None:
            found[self.chain.columns.var] = columns.position(self._own_column(y))
        return found

    def is_inside(self, columns: Side, x: AxisIndex, y: AxisIndex, needed: Expr) -> Expr | None:
        """Return the condition that a column, and a row where it is needed, is inside."""
        found = columns.is_inside(self._own_column(y))
        known = self.emitter.known
        loads = any(isinstance(each, Load) and each.node in known for each in walk(needed))
        return both(found, self.rows.is_inside(self._own_row(x))) if loads else found

    def _keep(self, scores: TensorNode, kept: TensorNode, columns: Side) -> tuple[Stmt, ...]:
        """Return the value of each score that the chain keeps, from the sums of products."""
        chain, emitter = self.chain, self.emitter
        is_limited = chain.limit is not None
        if chain.score == LocalRead(chain.product.result) and not (
            is_limited and columns.may_exceed
        ):
            return ()

        def cell(x: AxisIndex, y: AxisIndex) -> tuple[Stmt, ...]:
            value = replaced(
                chain.score, LocalRead(chain.product.result), emitter._read(scores, x, y)
            )
            inside = self.is_inside(columns, x, y, value)
            value = substitute_in_expr(value, self.values(columns, x, y))
            if inside is not None:
                beyond = Const(_LEAST if is_limited else 0.0, value.dtype)
                value = where(inside, value, beyond)
            return (Store(kept, (x, y), value),)

        tile = self.tile
        return _loop("x", tile.rows, lambda x: _loop("y", tile.columns, lambda y: cell(x, y)))

    # ----- the end ----------------------------------------------------------------------------

    def _stores(self, results: TensorNode, statistics: _Statistics) -> tuple[Stmt, ...]:
        chain, tile, emitter = self.chain, self.tile, self.emitter
        lanes = tile.lanes
        nodes = {**emitter.known, **emitter.nodes}
        full = chain.cells.extent

        def cells(x: AxisIndex, z: AxisIndex, empty: Expr | None) -> tuple[Stmt, ...]:
            lane = fresh_var("lane")
            inner: AxisIndex = VarIndex(lane) if lanes > 1 else FixedIndex(0)
            cell = self._own_cell(z, inner)
            vector = _joined((1, self.column), (tile.threads[1], z))
            values = {**self.values(None, x, x), chain.cells.var: cell}
            own = emitter._read(results, x, _joined((lanes, z), (1, inner)))
            result = statistics.finished(chain.weighted, own, empty, x)
            stmts: list[Stmt] = [Store(own.node, own.indices, result)]
            for store in chain.epilogue:
                value = statistics.resolved(store.value, x)
                value = replaced(value, LocalRead(chain.weighted.result), own)
                moved = substitute_in_stmt(Store(store.node, store.indices, value), values)
                stmts += moved.stmts
            if lanes > 1:
                places = [
                    (each.node, each.indices)
                    for stmt in stmts
                    for each in walk(stmt)
                    if isinstance(each, Load | Store)
                    and each.node in emitter.known
                    and is_vector(each, emitter.known[each.node], lane, lanes)
                ]
                stmts = list(
                    vector_iterations(places, lane, lanes, tuple(stmts), nodes, emitter._vector)
                )
            bound = chain.cells.bound_at(vector)  # of single cells
            if bound is None and tile.block_cells > full:
                bound = LoopBound(vector, full // lanes)
            return guarded(bound, tuple(stmts))

        def row(x: AxisIndex) -> tuple[Stmt, ...]:
            empty, declared = statistics.term_of_empty(chain.weighted, x)
            stmts = _loop("z", tile.cells // lanes, lambda z: cells(x, z, empty))
            return guarded(self.rows.end(self._own_row(x)), (*declared, *stmts))

        return _loop("x", tile.rows, row)


_LEAST = float("-inf")


@dataclass(slots=True)
class _Statistics:
    """The running statistics of the rows of a thread.

    Attributes:
        thread: The thread.
        kept: Its scores.
        results: Its sums of the second product.
        totals: The array of each sum over the columns of a row.
        limit: The array of the limit of each row.
        shifts: The array of its shift.
    """

    thread: _Thread
    kept: TensorNode
    results: TensorNode
    totals: dict[Local, TensorNode]
    limit: TensorNode | None = None
    shift: TensorNode | None = None
    _numbering: int = 100

    @property
    def chain(self) -> Chain:
        return self.thread.chain

    @property
    def emitter(self) -> ChainEmitter:
        return self.thread.emitter

    @property
    def sums(self) -> tuple[Sum, ...]:
        return (*self.chain.totals, self.chain.weighted)

    @property
    def _shift(self) -> Expr | None:
        """The expression of the limit by which sums are corrected: one for all sums."""
        return next((each.shift for each in self.sums if each.shift is not None), None)

    def _local(self, dtype: DType) -> Local:
        self._numbering += 1
        return Local(self._numbering, dtype)

    def resolved(self, expr: Expr, x: AxisIndex) -> Expr:
        """Return an expression with the statistics of a row."""
        emitter = self.emitter
        arrays = dict(self.totals)
        if self.chain.limit is not None and self.limit is not None:
            arrays[self.chain.limit.result] = self.limit

        def read(expr: Expr) -> Expr:
            match expr:
                case LocalRead(local) if local in arrays:
                    return emitter._read(arrays[local], x)
                case _:
                    return expr

        return map_expr(expr, read)

    def cleared(self) -> tuple[Stmt, ...]:
        """Return the statements that give every statistic its first value."""
        chain, tile, make = self.chain, self.thread.tile, self.emitter._array
        if chain.limit is not None:
            self.limit = make("limit", chain.limit.result.dtype, tile.rows)
            if self._shift is not None:
                self.shift = make("shift", self._shift.dtype, tile.rows)

        def row(x: AxisIndex) -> tuple[Stmt, ...]:
            stmts: list[Stmt] = []
            if self.limit is not None:
                stmts.append(self._set(self.limit, _LEAST, x))
            if self.shift is not None:
                stmts.append(self._set(self.shift, 0.0, x))
            stmts += [self._set(node, 0.0, x) for node in self.totals.values()]
            stmts += _loop("z", tile.cells, lambda z: (self._set(self.results, 0.0, x, z),))
            return tuple(stmts)

        return _loop("x", tile.rows, row)

    def _set(self, node: TensorNode, value: float, *indices: AxisIndex) -> Store:
        return Store(node, indices, Const(value, self.emitter.nodes[node].dtype))

    # ----- one tile ---------------------------------------------------------------------------

    def advance(self, weights: TensorNode, columns: Side) -> tuple[Stmt, ...]:
        """Return the statements that add a tile of columns to the statistics."""
        tile = self.thread.tile
        return _loop("x", tile.rows, lambda x: self._advance_row(weights, columns, x))

    def _advance_row(self, weights: TensorNode, columns: Side, x: AxisIndex) -> tuple[Stmt, ...]:
        chain, tile, emitter = self.chain, self.thread.tile, self.emitter
        stmts: list[Stmt] = []
        if self.limit is not None and chain.limit is not None:
            stmts += self._advance_limit(self.limit, x)

        def weigh(y: AxisIndex) -> tuple[Stmt, ...]:
            found: list[Stmt] = []
            known: dict[Expr, Local] = {}
            for each in self.sums:
                if each.term not in known:
                    local = known[each.term] = self._local(each.result.dtype)
                    term = self._term(each, columns, x, y)
                    found += [DeclareLocal(local), SetLocal(local, term)]
            for each in chain.totals:
                node, dtype = self.totals[each.result], each.result.dtype
                value = as_format(LocalRead(known[each.term]), dtype)
                total = Binary(BinaryOp.ADD, emitter._read(node, x), value, dtype)
                found.append(Store(node, (x,), total))
            place = self.thread._own_row(x), self.thread._own_column(y)
            own = as_format(LocalRead(known[chain.weighted.term]), chain.weighted.result.dtype)
            return (*found, Store(weights, place, own))

        return (*stmts, *_loop("y", tile.columns, weigh))

    def _advance_limit(self, limit: TensorNode, x: AxisIndex) -> tuple[Stmt, ...]:
        """Return the statements that take the scores of a tile into the limit of a row, and correct
        the sums by it.
        """
        chain, tile, emitter = self.chain, self.thread.tile, self.emitter
        assert chain.limit is not None
        dtype = chain.limit.result.dtype
        local, before = self._local(dtype), self._local(dtype)
        stmts: list[Stmt] = [
            DeclareLocal(local),
            SetLocal(local, emitter._read(self.kept, x, FixedIndex(0))),
        ]
        for y in range(1, tile.columns):
            own = emitter._read(self.kept, x, FixedIndex(y))
            stmts.append(SetLocal(local, Binary(BinaryOp.MAX, LocalRead(local), own, dtype)))
        stmts.append(SubgroupReduce(local, LocalRead(local), BinaryOp.MAX, tile.threads[1]))
        old = emitter._read(limit, x)
        stmts += [
            DeclareLocal(before),
            SetLocal(before, old),
            Store(limit, (x,), Binary(BinaryOp.MAX, old, LocalRead(local), dtype)),
        ]
        if self.shift is None:
            return tuple(stmts)
        stmts += self._correct(self.shift, before, x)
        return tuple(stmts)

    def _correct(self, shift: TensorNode, before: Local, x: AxisIndex) -> list[Stmt]:
        chain, tile, emitter = self.chain, self.thread.tile, self.emitter
        assert chain.limit is not None and self.limit is not None and self._shift is not None
        wide = chain.weighted.result.dtype
        old, new = self._local(shift_dtype := self._shift.dtype), self._local(shift_dtype)
        least = Const(_LEAST, before.dtype)
        value = substitute_in_expr(self.resolved(self._shift, x), self.thread.values(None, x, x))
        is_empty = Binary(BinaryOp.EQ, emitter._read(self.limit, x), least, before.dtype)
        was_empty = Binary(BinaryOp.EQ, LocalRead(before), least, before.dtype)
        factor = self._local(wide)
        exponential = next(e.exponential for e in self.sums if e.exponential is not None)
        difference = Binary(
            BinaryOp.SUB, as_format(LocalRead(old), wide), as_format(LocalRead(new), wide), wide
        )
        stmts: list[Stmt] = [
            DeclareLocal(old),
            SetLocal(old, emitter._read(shift, x)),
            DeclareLocal(new),
            SetLocal(new, where(is_empty, Const(0.0, shift_dtype), value)),
            Store(shift, (x,), LocalRead(new)),
            DeclareLocal(factor),
            SetLocal(
                factor,
                where(was_empty, Const(1.0, wide), exponential_of(exponential, difference)),
            ),
        ]
        for each in chain.totals:
            if each.shift is not None:
                node = self.totals[each.result]
                stmts.append(self._scaled(node, factor, x))
        if chain.weighted.shift is not None:
            stmts += _loop("z", tile.cells, lambda z: (self._scaled(self.results, factor, x, z),))
        return stmts

    def _scaled(self, node: TensorNode, factor: Local, *indices: AxisIndex) -> Store:
        dtype = self.emitter.nodes[node].dtype
        own = self.emitter._read(node, *indices)
        return Store(
            node, indices, Binary(BinaryOp.MUL, own, as_format(LocalRead(factor), dtype), dtype)
        )

    def _term(self, each: Sum, columns: Side, x: AxisIndex, y: AxisIndex) -> Expr:
        """Return the term of a sum at one column."""
        chain, emitter = self.chain, self.emitter
        term = replaced(each.term, chain.score, emitter._read(self.kept, x, y))
        if each.shift is not None and self.shift is not None:
            term = replaced(term, each.shift, emitter._read(self.shift, x))
        inside = self.thread.is_inside(columns, x, y, each.term)
        if each.shift is not None and not any(
            isinstance(part, Load) and part.node in emitter.known for part in walk(term)
        ):
            inside = None  # the score is minus infinity there
        term = substitute_in_expr(self.resolved(term, x), self.thread.values(columns, x, y))
        return term if inside is None else where(inside, term, Const(0.0, term.dtype))

    # ----- the end ----------------------------------------------------------------------------

    def complete(self) -> tuple[Stmt, ...]:
        """Return the statements that combine the sums of the threads of a row."""
        tile, emitter = self.thread.tile, self.emitter

        def row(x: AxisIndex) -> tuple[Stmt, ...]:
            stmts: list[Stmt] = []
            for each in self.chain.totals:
                node, local = self.totals[each.result], self._local(each.result.dtype)
                own = emitter._read(node, x)
                empty, declared = self.term_of_empty(each, x)
                stmts += [
                    DeclareLocal(local),
                    SubgroupReduce(local, own, BinaryOp.ADD, tile.threads[1]),
                    *declared,
                    Store(node, (x,), self.finished(each, LocalRead(local), empty, x)),
                ]
            return tuple(stmts)

        return _loop("x", tile.rows, row)

    def term_of_empty(self, each: Sum, x: AxisIndex) -> tuple[Expr | None, tuple[Stmt, ...]]:
        """Return what a row whose limit is minus infinity adds to a sum, zero for other rows, and
        the statements that compute it.

        Where the limit is minus infinity, so are all scores, and each term is what it is at that
        limit: zero, or no number.
        """
        if each.exponential is None or self.limit is None:
            return None, ()
        dtype = each.result.dtype
        limit = self.emitter._read(self.limit, x)
        is_empty = Binary(BinaryOp.EQ, limit, Const(_LEAST, limit.dtype), limit.dtype)
        values = self.thread.values(None, x, x)
        term = substitute_in_expr(self.resolved(each.exponential, x), values)
        local = self._local(dtype)
        value = where(is_empty, as_format(term, dtype), Const(0.0, dtype))
        return LocalRead(local), (DeclareLocal(local), SetLocal(local, value))

    def finished(self, each: Sum, total: Expr, empty: Expr | None, x: AxisIndex) -> Expr:
        """Return a sum with the factors that waited for all columns."""
        dtype = each.result.dtype
        values = self.thread.values(None, x, x)
        if empty is not None:
            total = Binary(BinaryOp.ADD, total, empty, dtype)
        for factors, op in ((each.numerators, BinaryOp.MUL), (each.denominators, BinaryOp.DIV)):
            for factor in factors:
                own = substitute_in_expr(self.resolved(factor, x), values)
                total = Binary(op, total, as_format(own, dtype), dtype)
        return total
