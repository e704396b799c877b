"""Rendering of tiles of warps as instructions of tensor cores (`ldmatrix`, `mma.sync`).

    for i in tile(2):                    uint32_t v0[4];
      for j in tile(2):                  load_matrices_4(v0, &t0[...]);
        for k in tile(16):          -->  uint32_t v1[2], v2[2];
          sums[i, j] = fma(...)          load_matrices_2_twice_transposed(v1, v2, &t1[...]);
                                         multiply_add_bf16(t2[0], t2[1], t2[2], t2[3], v0, v1);

The loops run on one thread; the loops of the block around them say which cells the other
threads of its subgroup have. The rendering verifies that those cells, and their factors, are the
ones of the instruction. Fragments stay in registers until memory changes: loops around tiles are
written out, so that a fragment of rows is loaded once for all columns, and those of two tiles of
columns beside each other are loaded together.

`ptx` defines the helpers: `multiply_add_NAME` for each instruction,
`split_NAME_N` for one that cuts N registers of factors into two parts, `load_matrices_N` of N small
matrices of rows of 16 bytes, `load_matrices_N_twice` of two fragments of N, both also with
`_transposed`, and `word_of_float32`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ocannl_core.backend_api import (
    PART_PRODUCTS,
    CodegenError,
    Digit,
    Fragment,
    MatrixInstruction,
    TensorNode,
    dataclass,
    float32,
    uint32,
)
from ocannl_core.backend_api.c_family import Dialect
from ocannl_core.backend_api.loops import (
    AxisKind,
    For,
    IndexVar,
    Load,
    ProductNest,
    Store,
    match_product_nest,
)
from ocannl_core.backend_api.rendering import Addresses, KernelNames, KernelWriter, Position

_WORD_BYTES = 4
_MOST_MATRICES = 4
"""Small matrices that one instruction loads."""
_MATRIX_ROWS = 8
"""Rows of a small matrix that one thread each has the address of."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A factor in memory.

    Attributes:
        node: The array.
        steps: The distance in memory between neighboring iterations of each loop.
        offset: The constant part of the position.
    """

    node: TensorNode
    steps: Mapping[IndexVar, int]
    offset: int


@dataclass(frozen=True, slots=True)
class _Stride:
    """A digit of the rows or columns of an instruction, as a step in memory.

    Attributes:
        weight: The rows or columns of one step of the digit.
        count: The values of the digit.
        step: The distance in memory of one step.
    """

    weight: int
    count: int
    step: int


@dataclass(frozen=True, slots=True)
class _Steps:
    """The places of a small matrix in memory. Its rows need not be equally far apart: neighboring
    columns of an instruction may belong to different tiles.

    Attributes:
        rows: The digits of a row.
        columns: The digits of a column.
    """

    rows: tuple[_Stride, ...]
    columns: tuple[_Stride, ...]

    def of(self, digit: Digit) -> list[tuple[int, int]]:
        """Return the parts of a digit that are equally far apart, as their counts and distances,
        the least significant one first.
        """
        strides = self.rows if digit.rows else self.columns
        weight, count = digit.rows or digit.columns, digit.count
        parts: list[tuple[int, int]] = []
        while count > 1:
            own = [each for each in strides if each.weight <= weight < each.weight * each.count]
            if len(own) != 1:
                raise _no_instruction("threads that are no digits of a fragment")
            part = min(count, own[0].weight * own[0].count // weight)
            step = own[0].step * (weight // own[0].weight)
            if parts and step == parts[-1][0] * parts[-1][1]:
                parts[-1] = parts[-1][0] * part, parts[-1][1]
            else:
                parts.append((part, step))
            weight, count = weight * part, count // part
        return parts


@dataclass(frozen=True, slots=True)
class _Tile:
    """A product nest over rows, columns and terms, and the instruction that executes it."""

    instruction: MatrixInstruction
    nest: ProductNest


class TensorCoreTiles:
    """Renders tiles of warps.

    Args:
        names: The names in scope.
        writer: Receives the statements.
        positions: Renders addresses.
        instructions: The instructions that execute tiles.
    """

    def __init__(
        self,
        names: KernelNames,
        writer: KernelWriter,
        positions: Addresses,
        dialect: Dialect,
        instructions: Sequence[MatrixInstruction],
    ) -> None:
        self._names = names
        self._writer = writer
        self._positions = positions
        self._dialect = dialect
        self._instructions = instructions
        self._offsets: dict[str, str] = {}

    def is_executed(self, loop: For) -> bool:
        """Return True if there is an instruction for the shape and the formats of a tile."""
        return self._match(loop) is not None

    def _match(self, loop: For) -> _Tile | None:
        """Return the parts of a loop nest over a tile that an instruction executes."""
        nest = match_product_nest(loop)
        if nest is None or nest.store.value.dtype is not float32:
            return None
        for each in self._instructions:
            (high,) = (digit.count for digit in each.sums.places if digit.rows)
            (wide,) = (digit.count for digit in each.sums.places if digit.columns)
            is_format = all(load.dtype is each.dtype for load in nest.factors)
            if is_format and (high, wide, each.terms) == nest.extents:
                return _Tile(each, nest)
        return None

    def render(self, loop: For, around: Sequence[For]) -> None:
        """Write the instructions of a loop nest over a tile that is executed by one.

        Args:
            loop: The outermost loop of the tile.
            around: The loops around it, outermost first.

        Raises:
            CodegenError: if the threads have other cells than the instruction's.
        """
        tile = self._match(loop)
        assert tile is not None
        with self._writer.hoisting():
            self._write_products(tile, around)

    def _write_products(self, tile: _Tile, around: Sequence[For]) -> None:
        instruction = tile.instruction
        row, column, term = (each.var for each in tile.nest.loops)
        operands = [self._operand(load) for load in tile.nest.factors]
        operands.sort(key=lambda each: each.steps.get(row, 0) == 0)
        left, right = operands
        if column in left.steps or row in right.steps or row not in left.steps:
            raise _no_instruction("factors that depend on rows and columns")
        high, wide = (
            next(d for d in instruction.sums.places if bool(d.rows) is is_row)
            for is_row in (True, False)
        )
        rows = [_Stride(high.rows, high.count, left.steps[row])]
        columns = [_Stride(wide.columns, wide.count, right.steps.get(column, 0))]
        lanes = list(_lanes(instruction, [each for each in around if each.kind is AxisKind.BLOCK]))
        for var, count, down, across in lanes:
            step, other = left.steps.get(var, 0), right.steps.get(var, 0)
            if other if down else step:
                raise _no_instruction("a fragment with the cells of other threads")
            if down:
                rows.append(_Stride(down, count, step))
            else:
                columns.append(_Stride(across, count, other))
        own = {row, column, term, *(var for var, *_ in lanes)}
        along = [_Stride(1, instruction.terms, each.steps.get(term, 0)) for each in operands]
        places = _Steps(tuple(rows), (along[0],)), _Steps((along[1],), tuple(columns))
        next_column = self._step_to_next(right, left, around)
        registers = (
            self._load(instruction, instruction.left, left, places[0], own, 0),
            self._load(instruction, instruction.right, right, places[1], own, next_column),
        )
        sums = ", ".join(self._sums(instruction, tile.nest.store, row, column))
        for first, second in PART_PRODUCTS[instruction.parts]:
            self._write(
                f"multiply_add_{instruction.name}",
                f"{sums}, {registers[0][first]}, {registers[1][second]}",
            )

    def _step_to_next(self, operand: _Operand, other: _Operand, around: Sequence[For]) -> int:
        """Return the distance in memory to the fragment that the next iteration of an unrolled loop
        loads; 0 if it is not the second of two iterations that share the other operand.
        """
        for loop in reversed(around):
            if loop.kind is AxisKind.UNROLLED and loop.var in operand.steps:
                value = self._names.index(loop.var)
                is_first = isinstance(value, int) and (value - loop.start) % 2 == 0
                if is_first and value != loop.stop - 1 and loop.var not in other.steps:
                    return operand.steps[loop.var]
                return 0
        return 0

    def _operand(self, load: Load) -> _Operand:
        terms, offset = self._positions.position_of(load.node, load.indices)
        steps: dict[IndexVar, int] = {}
        for coefficient, var in terms:
            steps[var] = steps.get(var, 0) + coefficient
        return _Operand(load.node, steps, offset)

    def _sums(
        self, instruction: MatrixInstruction, store: Store, row: IndexVar, column: IndexVar
    ) -> Iterator[str]:
        """Yield the accumulators of an instruction, in the order of their places."""
        operand = self._operand(Load(store.node, store.indices, float32))
        base = operand.offset
        for var, step in operand.steps.items():
            if var not in (row, column):
                value = self._names.index(var)
                if not isinstance(value, int):
                    raise _no_instruction("sums at positions that are no constants")
                base += step * value
        array = self._names.array(store.node)
        places = instruction.sums.places
        for place in range(prod(each.count for each in places)):
            at, number = base, place
            for digit in reversed(places):
                number, value = divmod(number, digit.count)
                at += value * operand.steps.get(row if digit.rows else column, 0)
            yield f"{array}[{at}]"

    def _load(
        self,
        instruction: MatrixInstruction,
        fragment: Fragment,
        operand: _Operand,
        steps: _Steps,
        own: set[IndexVar],
        following: int,
    ) -> Sequence[str]:
        """Return the registers of a fragment, one array for each part, after loading it if
        necessary.

        Args:
            operand: The factor.
            steps: Its places in memory.
            own: The variables of the tile and of the threads of a subgroup.
            following: The distance to another fragment of the same form that is needed soon; 0 if
                there is none.
        """
        around = [(step, var) for var, step in operand.steps.items() if var not in own]
        array = self._names.array(operand.node)
        base: Position = (tuple(around), operand.offset)

        def key(distance: int) -> str:
            cell = self._positions.cell(array, (base[0], base[1] + distance))
            return f"fragment at {cell} by {steps} of {instruction.name}"

        known = self._writer.cached.get(key(0))
        if known is not None:
            return known.split()
        per = _WORD_BYTES // instruction.dtype.nbytes
        digits = fragment.places[:-1] if per > 1 else fragment.places
        count = prod(each.count for each in digits)
        stored = _stored_rows(fragment, steps, per)
        if stored is not None:
            parts, is_transposed = stored
            rows = _row_terms(digits, parts, steps)
            form = "_transposed" if is_transposed else ""
            if count > _MOST_MATRICES // 2 or not following:
                names, distances = self._declare(1, count), [0]
                helper = f"load_matrices_{count}{form}"
            else:
                names, distances = self._declare(2, count), [0, following]
                rows.append((_MATRIX_ROWS * count, 2, following))
                helper = f"load_matrices_{count}_twice{form}"
            cell = self._cell(array, base, self._offset(rows))
            self._write(helper, f"{', '.join(names)}, &{cell}")
        elif per == 1:
            names, distances = self._declare(1, count), [0]
            lane = self._offset(_own_terms(fragment, steps))
            for register in range(count):
                at = base[0], base[1] + _place_offset(digits, register, steps)
                self._writer.helpers.add("word_of_float32")
                cell = self._cell(array, at, lane)
                self._writer.line(f"{names[0]}[{register}] = word_of_float32({cell});")
        else:
            raise _no_instruction("factors that are contiguous neither along cells nor terms")
        for name, distance in zip(names, distances, strict=True):
            pieces = [name]
            if instruction.parts > 1:
                pieces += self._declare(1, count)
                self._write(f"split_{instruction.name}_{count}", ", ".join(pieces))
            self._writer.cached[key(distance)] = " ".join(pieces)
        return self._writer.cached[key(0)].split()

    def _declare(self, number: int, count: int) -> list[str]:
        """Declare arrays of so many registers, and return their names."""
        names = [self._names.fresh() for _ in range(number)]
        arrays = ", ".join(f"{name}[{count}]" for name in names)
        self._writer.line(f"{self._dialect.type_names[uint32]} {arrays};")
        return names

    def _cell(self, array: str, position: Position, lane: str) -> str:
        """Return a cell at an offset that depends on the thread."""
        text = self._positions.cell(array, position)
        inside = text[len(array) + 1 : -1]
        return f"{array}[{lane}]" if inside == "0" else f"{array}[{inside} + {lane}]"

    def _offset(self, terms: Sequence[tuple[int, int, int]]) -> str:
        """Return a variable, set at the start of the kernel, of a sum over digits of the thread's
        number.

        Args:
            terms: The weight of each digit in the number, its count, and its factor in the sum.
        """
        thread = self._dialect.device_index(AxisKind.BLOCK)
        if thread is None:
            raise _no_instruction("threads without a number")
        products = []
        for weight, count, factor in terms:
            digit = thread if weight == 1 else f"{thread} / {weight}"
            products.append(f"{digit} % {count} * {factor}")
        code = " + ".join(products)
        if code not in self._offsets:
            name = self._offsets[code] = self._names.fresh()
            self._writer.insert_first(f"const {self._dialect.index_type} {name} = {code};")
        return self._offsets[code]

    def _write(self, helper: str, arguments: str) -> None:
        self._writer.helpers.add(helper)
        self._writer.line(f"{helper}({arguments});")


def _no_instruction(found: str) -> CodegenError:
    return CodegenError("Only matrix instructions have tiles of warps.", found=found)


def _lanes(
    instruction: MatrixInstruction, threads: Sequence[For]
) -> Iterator[tuple[IndexVar, int, int, int]]:
    """Yield the variables of the loops that the threads of a subgroup run, with their iterations,
    and their steps along rows and columns of the sums.
    """
    weights: list[tuple[int, Digit]] = []
    weight = 1
    for digit in reversed(instruction.sums.threads):
        weights.append((weight, digit))
        weight *= digit.count
    subgroup, inside = weight, 1
    for loop in reversed(threads):
        extent = loop.stop - loop.start
        if inside < subgroup and extent > 1:
            found = [each for each in weights if each[0] <= inside < each[0] * each[1].count]
            ((start, digit),) = found
            steps, rest = divmod(inside, start)
            if rest or inside * extent > start * digit.count:
                raise _no_instruction("threads that are no digits of a fragment")
            yield loop.var, extent, steps * digit.rows, steps * digit.columns
        inside *= extent
    if inside % subgroup:
        raise _no_instruction(f"{inside} threads, with {subgroup} in a subgroup")


def _stored_rows(
    fragment: Fragment, steps: _Steps, per: int
) -> tuple[Sequence[tuple[int, int]], bool] | None:
    """Return the counts and distances of the rows of small matrices in memory, and True if threads
    have their columns; None if no rows are contiguous in memory.

    Args:
        steps: Its places in memory.
        per: The cells of a register.
    """
    match fragment.threads:
        case (Digit(8) as major, Digit(4) as minor) if steps.of(minor) == [(4, per)]:
            is_whole = per == 1 or steps.of(fragment.places[-1]) == [(2, 1)]
            return (steps.of(major), False) if is_whole else None
        case (Digit(8) as major, Digit(4)) if steps.of(major) == [(8, 1)] and per == 2:
            ((_, pitch),) = steps.of(fragment.places[-1])
            return [(_MATRIX_ROWS, pitch)], True
        case _:
            return None


def _row_terms(
    digits: Sequence[Digit], rows: Sequence[tuple[int, int]], steps: _Steps
) -> list[tuple[int, int, int]]:
    """Return the digits of a thread's number that say which row of which small matrix it has the
    address of.
    """
    return _weighted([*rows, *(part for digit in reversed(digits) for part in steps.of(digit))])


def _own_terms(fragment: Fragment, steps: _Steps) -> list[tuple[int, int, int]]:
    """Return the digits of a thread's number that say which cells it has."""
    return _weighted([part for digit in reversed(fragment.threads) for part in steps.of(digit)])


def _weighted(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return the weights, counts and distances of digits, the least significant one first."""
    return [
        (prod(count for count, _ in parts[:at]), count, step)
        for at, (count, step) in enumerate(parts)
    ]


def _place_offset(digits: Sequence[Digit], register: int, steps: _Steps) -> int:
    """Return the distance of the cell in a register from that in the first one."""
    offset = 0
    for digit in reversed(digits):
        for count, step in steps.of(digit):
            register, value = divmod(register, count)
            offset += value * step
    return offset
