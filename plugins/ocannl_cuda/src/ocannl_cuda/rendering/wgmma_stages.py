"""Stages of a WGMMA pipeline: their operands, and the arrays that TMA copies them from.

    for k0, k10 in range(4):                  the barriers of a stage, copies of both operands with
      barrier; copies; barrier; products      the ends of their arrays, and a tile of products

A ring is found by its loops. Its threads have the cells of an asynchronous product, or an error
says where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ocannl_core.backend_api import (
    AsynchronousProduct,
    CodegenError,
    IdentityMap,
    Kernel,
    TensorNode,
    dataclass,
    float32,
)
from ocannl_core.backend_api.arithmetic import BinaryOp, TernaryOp
from ocannl_core.backend_api.c_family import TensorMap
from ocannl_core.backend_api.loops import (
    AxisIndex,
    AxisKind,
    Binary,
    Block,
    Const,
    Expr,
    FixedIndex,
    For,
    IndexValue,
    IndexVar,
    Load,
    LoopBound,
    LoopVar,
    ProductNest,
    RingStage,
    Stmt,
    Store,
    Ternary,
    VarIndex,
    as_affine,
    match_product_nest,
    match_ring_stage,
)
from ocannl_core.backend_api.rendering import Addresses
from ocannl_cuda.rendering.software_pipelining import conjuncts

RING_ALIGNMENT = 1024
"""Stages begin at multiples of so many bytes: eight rows, whose parts are exchanged."""
BARRIER_BYTES = 8


@dataclass(frozen=True, slots=True)
class WgmmaOperand:
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
class WgmmaStages:
    """A ring of stages.

    Attributes:
        product: The instruction.
        loop: The loop over the stages.
        sweep: The outermost loop over terms: the ring alone is in it.
        end: The number of a step, and of all steps; None if all stages are used in each turn.
        operands: The factor with the rows and the one with the columns.
        sums: The array of the sums of a thread.
        group: The variable of the groups of threads; None if there is one.
        groups: Their number.
        columns: The columns of a block.
    """

    product: AsynchronousProduct
    loop: For
    sweep: For
    end: LoopBound | None
    operands: tuple[WgmmaOperand, WgmmaOperand]
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

    def operand_bytes(self, operand: WgmmaOperand) -> int:
        """Return the bytes of an operand in one stage."""
        return operand.cells * self.product.row_bytes

    @property
    def stage_bytes(self) -> int:
        return sum(map(self.operand_bytes, self.operands))

    @property
    def nbytes(self) -> int:
        """The shared memory: stages, barriers, and the bytes before the first stage."""
        return self.stages * (self.stage_bytes + 2 * BARRIER_BYTES) + RING_ALIGNMENT


class StageFinder:
    """Finds the ring of a kernel.

    Args:
        positions: Renders addresses.
        products: The instructions of the dialect.

    Attributes:
        around: The statements that the ring is in, and itself.
    """

    def __init__(
        self, kernel: Kernel, positions: Addresses, products: Sequence[AsynchronousProduct]
    ) -> None:
        self._kernel = kernel
        self._positions = positions
        self._products = products
        self.around: IdentityMap[Stmt, None] = IdentityMap()

    def find(self, stmt: Stmt, around: tuple[For, ...] = ()) -> WgmmaStages | None:
        """Return the ring inside of a statement; None if it has none.

        Raises:
            CodegenError: if the threads have other cells than the instruction's.
        """
        match stmt:
            case Block(stmts):
                inside: Iterator[WgmmaStages | None] = (self.find(each, around) for each in stmts)
                found = next((each for each in inside if each is not None), None)
            case For(kind=AxisKind.TILE | AxisKind.COPY):
                return None
            case For(body=body):
                found = self._match(stmt, around) or self.find(body, (*around, stmt))
            case _:
                return None
        if found is not None:
            self.around[stmt] = None
        return found

    def _match(self, loop: For, around: Sequence[For]) -> WgmmaStages | None:
        """Return the ring whose stages are the iterations of a loop; None for another loop."""
        stage = match_ring_stage(loop)
        if stage is None:
            return None
        nest = match_product_nest(stage.product)
        if nest is None or len(nest.loops) != 4 or nest.store.value.dtype is not float32:
            raise _no_product("a tile of other loops")
        formats = {each.dtype for each in nest.factors}
        for product in self._products:
            if formats == {product.dtype}:
                return self._ring_of(product, loop, stage, nest, around)
        return None

    def _ring_of(
        self,
        product: AsynchronousProduct,
        loop: For,
        stage: RingStage,
        nest: ProductNest,
        around: Sequence[For],
    ) -> WgmmaStages:
        """Return a ring, after verifying that it has the cells of a product."""
        loops, store, loads = nest.loops, nest.store, nest.factors
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
            *(
                (each.var, digit.rows, digit.columns)
                for each, digit in zip(own, digits, strict=True)
            ),
            *([(group, product.sums.rows, 0)] if group is not None else []),
        ):
            for own_steps, step in zip(steps, (row, column), strict=True):
                if step:
                    own_steps[var] = step
        expected = (place_rows.count, place_columns.count, product.depth)
        places = tuple(VarIndex(each) for each in (blocks, rows, columns))
        if nest.extents[1:] != expected or store.indices != places or width not in product.columns:
            raise _no_product("sums that are not those of the instruction")
        groups = outer[0].stop if outer else 1
        cells = groups * product.sums.rows, width
        operands = sorted(loads, key=lambda each: not _mentions(each, rows))
        found = [
            self._operand(product, load, steps[at], terms, cells[at], loop, stage.copies, around)
            for at, load in enumerate(operands)
        ]
        left, right = found
        sweep = _sweep_of(loop, around)
        return WgmmaStages(
            product, loop, sweep, stage.end, (left, right), store.node, group, groups, width
        )

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
    ) -> WgmmaOperand:
        """Return an operand, after verifying its cells in shared memory, and their copies."""
        match load.indices:
            case (VarIndex(var), first, second) if var is ring.var:
                is_across = first == VarIndex(term)
                place, own = (second, first) if is_across else (first, second)
            case _:
                raise _no_product("operands that are in no stage")
        distances, offset = as_affine(place)
        if own != VarIndex(term) or offset or {v: step for step, v in distances} != dict(steps):
            raise _no_product("a fragment with the cells of other threads")
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
            return WgmmaOperand(load.node, cells, is_across, made, places, variables)
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
                raise _no_product("copies at positions of no array")
            places.append(VarIndex(var))
            extents.append(loops[var].stop)
            strides.append(stride)
        boxes = (*box, *[1] * (len(extents) - 2))
        # a driver may demand that each stride is a multiple of the one before
        order = sorted(range(1, len(strides)), key=strides.__getitem__)
        every = (0, *order)
        made = TensorMap(
            self._kernel.arguments.index(load.node),
            product.dtype,
            offset,
            tuple(extents[at] for at in every),
            tuple(strides[at] for at in order),
            tuple(boxes[at] for at in every),
            product.row_bytes,
        )
        return made, tuple(places[at] for at in every)


def _sweep_of(loop: For, around: Sequence[For]) -> For:
    """Return the outermost loop with nothing in it but the ring."""
    for each in reversed(around):
        first, *others = each.body.stmts
        if each.kind is not AxisKind.SERIAL or first is not loop or others:
            break
        loop = each
    return loop


def _no_product(found: str) -> CodegenError:
    return CodegenError("Only asynchronous products have the stages of a ring.", found=found)


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
                                    _, _, Ternary(TernaryOp.WHERE, _, Load(), Const(0.0)) as value
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
