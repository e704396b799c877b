"""Rendering of a ring of stages as asynchronous products, on persistent blocks.

    for tile in blocks:                       if this thread is of the warps that copy:
      for k in stages:                          for tile, k: wait until stage k is free;
        barrier                                              copy boxes of both operands to it
        copies of both operands     -->       else:
        barrier                                 for tile: for k: wait until stage k is complete;
        products of the stage                                multiply it, and let it be free
      results                                             results

The loops are those that `schedule/apply/asynchronous_products.py` makes. The rendering verifies
that the cells of the threads are those of the instruction. The operands of a stage lie in shared
memory as the instruction reads them, which no other statement sees. The copy engine copies boxes
of arrays, with zeros beyond their ends: the conditions of the copies are those ends.

A stage has two barriers, whose phases count its turns: it is complete when all bytes have arrived,
and free when all warps have multiplied it. Both sides keep the parities of the next phases as bits
of a word.

A dialect with asynchronous products defines the helpers, which `warpgroup_ptx.py` of the CUDA
backend describes, the descriptor of an operand, and the loop of a persistent block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from ocannl_core.codegen.addresses import Addresses
from ocannl_core.codegen.asynchronous_copies import conjuncts
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.kernel_text import TensorMap
from ocannl_core.codegen.names import KernelNames, NameRole
from ocannl_core.codegen.writer import KernelWriter
from ocannl_core.dtypes import float32, uint8, uint32
from ocannl_core.errors import CodegenError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.identity import IdentityMap
from ocannl_core.indexing import AxisIndex, FixedIndex, IndexVar, LoopVar, VarIndex, as_affine, substitute
from ocannl_core.kernels.nodes import Kernel
from ocannl_core.loopir.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    Const,
    Expr,
    For,
    IndexValue,
    Load,
    LoopBound,
    Stmt,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.target import AsynchronousProduct

_ALIGNMENT = 1024
"""Stages begin at multiples of so many bytes: eight rows, whose parts are exchanged."""
_BARRIER_BYTES = 8
_WARP = 32
_ENTRY_THREADS = 256
"""The most threads of which each may have as many registers as an instruction names."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A factor of the product.

    Attributes:
        node: The array with its stages.
        cells: The cells of a stage: rows or columns of the product.
        is_across: True if rows of a stage run across the terms.
        map: The array that it is copied from.
        places: The position of the box of a stage along each axis of that array.
        copied: The variables of the loops over rows and columns of a stage.
    """

    node: TensorNode
    cells: int
    is_across: bool
    map: TensorMap
    places: tuple[AxisIndex, ...]
    copied: tuple[LoopVar, LoopVar]


@dataclass(frozen=True, slots=True)
class _Ring:
    """A ring of stages.

    Attributes:
        product: The instruction.
        loop: The loop over the stages.
        end: The number of a step, and that of all steps; None if all stages are used in each turn.
        operands: The factor with the rows and the one with the columns.
        sums: The array of the sums of a thread.
        group: The variable of the groups of threads; None if there is one.
        groups: Their number.
        columns: The columns of a block.
    """

    product: AsynchronousProduct
    loop: For
    end: tuple[AxisIndex, int] | None
    operands: tuple[_Operand, _Operand]
    sums: TensorNode
    group: LoopVar | None
    groups: int
    columns: int

    @property
    def stages(self) -> int:
        return self.loop.stop

    @property
    def threads(self) -> int:
        """The threads that multiply."""
        return self.groups * self.product.threads

    def operand_bytes(self, operand: _Operand) -> int:
        """Return the bytes of an operand in one stage."""
        return operand.cells * self.product.row_bytes

    @property
    def stage_bytes(self) -> int:
        return sum(map(self.operand_bytes, self.operands))

    @property
    def nbytes(self) -> int:
        """The shared memory: stages, barriers, and the bytes before the first stage."""
        return self.stages * (self.stage_bytes + 2 * _BARRIER_BYTES) + _ALIGNMENT


class AsynchronousProducts:
    """Renders a kernel with a ring of stages.

    Args:
        kernel: The kernel.
        names: The names in scope.
        writer: Receives the statements.
        positions: Renders addresses.
        dialect: The dialect.

    Raises:
        CodegenError: if the cells of the threads are not those of the instruction.
    """

    def __init__(
        self,
        kernel: Kernel,
        names: KernelNames,
        writer: KernelWriter,
        positions: Addresses,
        dialect: Dialect,
    ) -> None:
        self._kernel = kernel
        self._names = names
        self._writer = writer
        self._positions = positions
        self._dialect = dialect
        self._around: IdentityMap[Stmt, None] = IdentityMap()
        self._copies = False
        self._stages = self._barriers = self._parities = ""
        self._ring = self._find(kernel.body, ()) if dialect.asynchronous_products else None

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """The arrays of which boxes are copied, in the order of the parameters."""
        return () if self._ring is None else tuple(each.map for each in self._ring.operands)

    @property
    def copying_threads(self) -> int:
        """The threads of a block beyond those of the loops: a group that makes the copies."""
        return 0 if self._ring is None else self._ring.product.threads

    def skips(self, stmt: Stmt) -> bool:
        """Return True for a statement that is none of the threads whose code is written."""
        ring = self._ring
        if ring is None:
            return False
        if isinstance(stmt, Allocate):
            return any(stmt.node is each.node for each in ring.operands) or self._copies
        return self._copies and stmt not in self._around

    # ----- statements -------------------------------------------------------------------------

    def write(self, body: Block, blocks: int, write_block: Callable[[Block], None]) -> bool:
        """Write the code of both kinds of threads; return False if the kernel has no ring.

        Args:
            body: The body of the kernel.
            blocks: The iterations of the grid.
            write_block: Writes statements.
        """
        ring, writer = self._ring, self._writer
        if ring is None:
            return False
        array = self._names.allocate(ring.operands[0].node)
        writer.group_arrays.append((array, uint8, ring.nbytes))
        word = self._dialect.type_names[uint32]
        self._stages, self._barriers = self._names.fresh(), self._names.fresh()
        address = self._call("shared_address", array)
        writer.line(
            f"const {word} {self._stages} = ({address} + {_ALIGNMENT - 1}) & ~{_ALIGNMENT - 1}u;"
        )
        end = ring.stages * ring.stage_bytes
        writer.line(f"const {word} {self._barriers} = {self._stages} + {end};")
        thread = self._dialect.thread_number
        with writer.braces(f"if ({thread} == 0)"):
            for stage in range(ring.stages):
                self._write("start_phases", self._barrier(stage), "1")
                warps = ring.threads // _WARP
                self._write("start_phases", self._barrier(stage, is_free=True), str(warps))
            self._write("publish_phases")
        for line in self._dialect.barrier(True):
            writer.line(line)
        moves_registers = ring.threads + self.copying_threads > _ENTRY_THREADS
        for self._copies in (True, False):
            head = f"if ({thread} >= {ring.threads})" if self._copies else "else"
            with writer.braces(head):
                if moves_registers:
                    self._write("give_registers" if self._copies else "take_registers")
                if self._copies:
                    # one thread of them copies
                    with writer.braces(f"if ({thread} == {ring.threads})"):
                        self._write_blocks(body, blocks, write_block)
                else:
                    self._write_blocks(body, blocks, write_block)
        return True

    def _write_blocks(
        self, body: Block, blocks: int, write_block: Callable[[Block], None]
    ) -> None:
        self._parities = self._names.fresh()
        # at the start all stages are free, as if a phase before had ended
        first = "~0u" if self._copies else "0u"
        self._writer.line(f"{self._dialect.type_names[uint32]} {self._parities} = {first};")
        with self._writer.braces(self._dialect.persistent_loop(blocks)):
            write_block(body)

    def render(self, loop: For) -> bool:
        """Write the loop over the stages; return False for another loop."""
        ring = self._ring
        if ring is None or loop is not ring.loop:
            return False
        index = self._dialect.index_type
        with self._names.loop(loop.var) as stage:
            head = f"for ({index} {stage} = 0; {stage} < {ring.stages}; ++{stage})"
            with self._writer.braces(head):
                if ring.end is None:
                    self._write_stage(ring, stage)
                else:
                    step = self._positions.index(ring.end[0])
                    with self._writer.braces(f"if ({step} < {ring.end[1]})"):
                        self._write_stage(ring, stage)
        return True

    def _write_stage(self, ring: _Ring, stage: str) -> None:
        parity = f"{self._parities} >> {stage} & 1"
        self._write("await_phase", self._barrier(stage, is_free=self._copies), parity)
        self._writer.line(f"{self._parities} ^= 1u << {stage};")
        if self._copies:
            self._write("arrive_expecting", self._barrier(stage), str(ring.stage_bytes))
            start = 0
            for number, operand in enumerate(ring.operands):
                self._write_boxes(ring, number, f"{ring.stage_bytes} * {stage}", start)
                start += ring.operand_bytes(operand)
            return
        self._write("start_products")
        sums = self._names.array(ring.sums)
        forms = "_".join("across" if each.is_across else "along" for each in ring.operands)
        helper = f"multiply_async_{ring.product.name}_{ring.columns}_{forms}"
        for number in range(ring.product.depth // ring.product.terms):
            start = 0
            factors = []
            for operand in ring.operands:
                place = self._place(ring, operand, stage, start, number)
                form = self._dialect.matrix_descriptor(ring.product, is_across=operand.is_across)
                factors.append(self._call("described", f"{form:#x}ull", place))
                start += ring.operand_bytes(operand)
            self._write(helper, sums, *factors)
        self._write("commit_products")
        self._write(f"await_products_{ring.columns}", sums)
        with self._writer.braces(f"if ({self._dialect.thread_number} % {_WARP} == 0)"):
            self._write("arrive", self._barrier(stage, is_free=True))

    def _write_boxes(self, ring: _Ring, number: int, stage: str, start: int) -> None:
        """Write the copies of an operand, one for each block of cells of a row."""
        operand = ring.operands[number]
        cells = operand.map.box[0] if operand.is_across else operand.cells
        nbytes = cells * ring.product.row_bytes
        (outer, inner), barrier = operand.copied, self._barrier(stage.split()[-1])
        for block in range(operand.cells // cells):
            with self._names.bind(outer, 0), self._names.bind(inner, block * cells):
                places = [self._positions.index(each).code for each in operand.places]
            to = f"{self._stages} + {stage} + {start + block * nbytes}"
            name = NameRole.BOXES.name_of(number)
            self._writer.helpers.add("TensorMap")
            self._write(f"copy_box_{len(places)}", to, name, barrier, *places)

    def _place(self, ring: _Ring, operand: _Operand, stage: str, start: int, number: int) -> str:
        """Return the address at which a factor of an instruction begins.

        Args:
            ring: The ring.
            operand: The operand.
            stage: The number of the stage.
            start: The start of the operand in its stage.
            number: The number of the instruction in the stage.
        """
        product = ring.product
        if operand.is_across:
            start += number * product.terms * product.row_bytes
        else:
            start += number * product.terms * product.dtype.nbytes
        place = f"{self._stages} + {ring.stage_bytes} * {stage} + {start}"
        if operand is ring.operands[0] and ring.group is not None:
            group = self._positions.index(VarIndex(ring.group))
            place += f" + {product.sums.rows * product.row_bytes} * {group}"
        return place

    def _barrier(self, stage: str | int, *, is_free: bool = False) -> str:
        """Return the address of the barrier of a stage that is complete, or free."""
        assert self._ring is not None
        start = _BARRIER_BYTES * self._ring.stages if is_free else 0
        if isinstance(stage, int):
            return f"{self._barriers} + {start + _BARRIER_BYTES * stage}"
        return f"{self._barriers} + {_BARRIER_BYTES} * {stage}{f' + {start}' if start else ''}"

    def _call(self, helper: str, *arguments: str) -> str:
        self._writer.helpers.add(helper)
        return f"{helper}({', '.join(arguments)})"

    def _write(self, helper: str, *arguments: str) -> None:
        self._writer.line(f"{self._call(helper, *arguments)};")

    # ----- the ring of a kernel ---------------------------------------------------------------

    def _find(self, stmt: Stmt, around: tuple[For, ...]) -> _Ring | None:
        """Return the ring inside of a statement, and note the statements around it."""
        match stmt:
            case Block(stmts):
                inside: Iterator[_Ring | None] = (self._find(each, around) for each in stmts)
                found = next((each for each in inside if each is not None), None)
            case For(kind=AxisKind.TILE | AxisKind.COPY):
                return None
            case For(body=body):
                found = self._match(stmt, around) or self._find(body, (*around, stmt))
            case _:
                return None
        if found is not None:
            self._around[stmt] = None
        return found

    def _match(self, loop: For, around: Sequence[For]) -> _Ring | None:
        """Return the ring whose stages are the iterations of a loop; None for another loop."""
        stmts: tuple[Stmt, ...] = loop.body.stmts
        end: tuple[AxisIndex, int] | None = None
        match stmts:
            case (For(once, 0, 1, Block(inside), bound=LoopBound(index, int(extent))),):
                end = substitute(index, {once: FixedIndex(0)}), extent
                stmts = inside
            case _:
                pass
        match stmts:
            case (
                Barrier(0),
                For(start=0, stop=1, bound=LoopBound(extent=1), body=Block(copies)),
                Barrier(0),
                For(kind=AxisKind.TILE) as tile,
            ) if loop.kind is AxisKind.SERIAL and loop.bound is None and not loop.start:
                pass
            case _:
                return None
        loops, store, loads = _tile_of(tile)
        if loads is None or any(each.dtype is not loads[0].dtype for each in loads):
            return None
        for product in self._dialect.asynchronous_products:
            if product.dtype is loads[0].dtype:
                return self._ring_of(product, loop, end, copies, loops, store, loads, around)
        return None

    def _ring_of(
        self,
        product: AsynchronousProduct,
        loop: For,
        end: tuple[AxisIndex, int] | None,
        copies: Sequence[Stmt],
        loops: Sequence[For],
        store: Store,
        loads: Sequence[Load],
        around: Sequence[For],
    ) -> _Ring:
        """Return a ring, after verifying that its cells are those of a product."""
        blocks, rows, columns, terms = (each.var for each in loops)
        threads = [
            each for each in around if each.kind is AxisKind.BLOCK and each.stop - each.start > 1
        ]
        digits = product.sums.threads
        own, outer = threads[-len(digits) :], threads[: -len(digits)]
        counts = [each.stop for each in own] == [each.count for each in digits]
        if not counts or len(outer) > 1:
            raise _no_product("threads that are no digits of a fragment")
        group = outer[0].var if outer else None
        width = loops[0].stop * product.sums.columns
        steps: tuple[dict[IndexVar, int], dict[IndexVar, int]] = ({}, {})
        place_rows, place_columns = product.sums.places
        for var, row, column in (
            (blocks, 0, product.sums.columns),
            (rows, place_rows.rows, 0),
            (columns, 0, place_columns.columns),
            *((each.var, digit.rows, digit.columns) for each, digit in zip(own, digits, strict=True)),
            *([(group, product.sums.rows, 0)] if group is not None else []),
        ):
            for own_steps, step in zip(steps, (row, column), strict=True):
                if step:
                    own_steps[var] = step
        extents = [each.stop for each in loops[1:]]
        expected = [place_rows.count, place_columns.count, product.depth]
        places = tuple(VarIndex(each) for each in (blocks, rows, columns))
        if extents != expected or store.indices != places or width not in product.columns:
            raise _no_product("sums that are not those of the instruction")
        groups = outer[0].stop if outer else 1
        cells = groups * product.sums.rows, width
        operands = sorted(loads, key=lambda each: not _mentions(each, rows))
        found = [
            self._operand(product, load, steps[at], terms, cells[at], loop, copies, around)
            for at, load in enumerate(operands)
        ]
        left, right = found
        return _Ring(product, loop, end, (left, right), store.node, group, groups, width)

    def _operand(
        self,
        product: AsynchronousProduct,
        load: Load,
        steps: Mapping[IndexVar, int],
        term: LoopVar,
        cells: int,
        ring: For,
        copies: Sequence[Stmt],
        around: Sequence[For],
    ) -> _Operand:
        """Return an operand, after verifying its cells in shared memory, and their copies."""
        match load.indices:
            case (VarIndex(var), first, second) if var is ring.var:
                is_across = first == VarIndex(term)
                place, own = (second, first) if is_across else (first, second)
            case _:
                raise _no_product("operands that are in no stage")
        distances, offset = as_affine(place)
        if own != VarIndex(term) or offset or {v: step for step, v in distances} != dict(steps):
            raise _no_product("a fragment whose cells are those of other threads")
        for each in copies:
            found = _copy_of(each)
            if found is None or found[0].node is not load.node:
                continue
            store, source, outer, inner = found
            shape = (product.depth, cells) if is_across else (cells, product.depth)
            variables = outer.var, inner.var
            indices = (VarIndex(ring.var), *map(VarIndex, variables))
            if (outer.stop, inner.stop) != shape or store.indices != indices:
                raise _no_product("copies that are not those of a stage")
            width = product.depth if not is_across else product.row_bytes // product.dtype.nbytes
            box = width, (product.depth if is_across else cells)
            made, places = self._map(product, source, variables, box, (*around, ring))
            return _Operand(load.node, cells, is_across, made, places, variables)
        raise _no_product("an operand that is not copied")

    def _map(
        self,
        product: AsynchronousProduct,
        source: Ternary,
        copied: tuple[LoopVar, LoopVar],
        box: tuple[int, int],
        around: Sequence[For],
    ) -> tuple[TensorMap, tuple[AxisIndex, ...]]:
        """Return the array of a copy, and the positions along its axes.

        Two axes are those whose ends the conditions of the copy state. All other variables of the
        position in memory are axes of their own.
        """
        load = source.second
        assert isinstance(load, Load)
        if load.node not in self._kernel.arguments:
            raise _no_product(f"a copy of {load.node.name}, which is no array in memory")
        outer, inner = copied
        ends = dict(_ends(source.first))
        own = [
            next(((place, end) for place, end in ends.items() if _step_of(place, var) == 1), None)
            for var in (inner, outer)
        ]
        distances, offset = self._positions.position_of(load.node, load.indices)
        left: dict[IndexVar, int] = {}
        for distance, var in distances:
            left[var] = left.get(var, 0) + distance
        strides = [left.get(inner, 0), left.get(outer, 0)]
        if None in own or len(ends) != 2 or strides[0] != 1:
            raise _no_product("copies whose ends are not those of rows and columns")
        places: list[AxisIndex] = []
        extents: list[int] = []
        for found, stride in zip(own, strides, strict=True):
            assert found is not None
            place, end = found
            terms, start = as_affine(place)
            for distance, var in terms:
                left[var] = left.get(var, 0) - stride * distance
            offset -= stride * start
            places.append(place)
            extents.append(end)
        loops = {each.var: each for each in around}
        for var, stride in left.items():
            if not stride:
                continue
            if not isinstance(var, LoopVar) or var not in loops or stride < 0:
                raise _no_product("copies at positions that are those of no array")
            places.append(VarIndex(var))
            extents.append(loops[var].stop)
            strides.append(stride)
        made = TensorMap(
            self._kernel.arguments.index(load.node),
            product.dtype,
            offset,
            tuple(extents),
            tuple(strides[1:]),
            (*box, *[1] * (len(extents) - 2)),
            product.row_bytes,
        )
        return made, tuple(places)


def _no_product(found: str) -> CodegenError:
    return CodegenError("Stages of a ring are those of an asynchronous product.", found=found)


def _tile_of(tile: For) -> tuple[tuple[For, ...], Store, tuple[Load, Load] | None]:
    """Return the loops of a tile, the store inside of them, and the factors in shared memory."""
    loops: list[For] = []
    stmt: Stmt = tile
    while isinstance(stmt, For) and stmt.kind is AxisKind.TILE and len(stmt.body.stmts) == 1:
        loops.append(stmt)
        (stmt,) = stmt.body.stmts
    match stmt:
        case Store(node, indices, Ternary(TernaryOp.FMA, first, second, Load() as own)) if (
            len(loops) == 4
            and not any(each.start or each.bound for each in loops)
            and (own.node, own.indices, own.dtype) == (node, indices, float32)
        ):
            factors = [_load_of(first), _load_of(second)]
            left, right = factors
            loads = None if left is None or right is None else (left, right)
            return tuple(loops), stmt, loads
        case _:
            raise _no_product("a tile of other loops")


def _load_of(factor: Expr) -> Load | None:
    match factor:
        case (Load() as load) | Unary(UnaryOp.IDENTITY, Load() as load):
            return load
        case _:
            return None


def _mentions(load: Load, var: LoopVar) -> bool:
    return any(each is var for index in load.indices for _, each in as_affine(index)[0])


def _step_of(place: AxisIndex, var: LoopVar) -> int:
    return sum(step for step, own in as_affine(place)[0] if own is var)


def _copy_of(stmt: Stmt) -> tuple[Store, Ternary, For, For] | None:
    """Return the parts of a copy along two axes: the store, its value, and the loops."""
    match stmt:
        case For(
            kind=AxisKind.COPY,
            start=0,
            body=Block(
                (
                    For(
                        kind=AxisKind.COPY,
                        start=0,
                        body=Block(
                            (
                                Store(
                                    _,
                                    _,
                                    Ternary(TernaryOp.WHERE, _, Load(), Const(0.0)) as value,
                                ) as store,
                            )
                        ),
                    ) as inner,
                )
            ),
        ):
            return store, value, stmt, inner
        case _:
            return None


def _ends(condition: Expr) -> Iterator[tuple[AxisIndex, int]]:
    """Yield positions with the constants that they stay below."""
    for each in conjuncts(condition):
        match each:
            case Binary(BinaryOp.LT, IndexValue(place), IndexValue(FixedIndex(end))):
                yield place, end
            case _:
                raise _no_product("copies whose ends are no constants")
