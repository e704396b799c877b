"""Prefetch the operands of an epilogue, or the next packed block, during the reduction.

The epilogue of a register tile loads all its cache lines at once, and so does the packing of an
operand. The reduction before leaves time to prefetch these lines: each part of the loop over terms
prefetches a few lines of the next register tile, or of the next packed block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir import indexing
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_accesses import epilogue_loads
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.transforms import inner_of, is_outer, parent_of, root_of
from ocannl_core.ir.loops.nodes import AxisKind, Block, For, Load, Prefetch, Stmt
from ocannl_core.ir.loops.traverse import substitute_in_stmt
from ocannl_core.schedule import machine_model
from ocannl_core.schedule.apply.axis_tree import Region

_Values = Mapping[indexing.IndexVar, indexing.AxisIndex]
_Vector = tuple[_Values, _Values, int]
"""The values of variables at the first lane of a vector and at the last one, and the number of
lanes; a scalar is a vector of one lane.
"""


@dataclass(frozen=True, slots=True)
class PrefetchingLoop:
    """A loop over terms, split into equal parts, each of which begins by prefetching some rows.

    for k: sums += ...  -->  for k0: prefetch c[i + k0, j]; for k1: sums += ...
    """

    count: int
    part: indexing.LoopVar
    size: int
    term: indexing.LoopVar
    kind: AxisKind
    prefetches: tuple[Stmt, ...]
    inside: Region

    def wrap(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return the loops around the statements of each term."""
        sums = For(self.term, 0, self.size, Block(body), self.kind)
        return (For(self.part, 0, self.count, Block((*self.prefetches, sums))),)


def prefetching_loop(
    nest: Nest,
    region: Region,
    around: str | None,
    over: str,
    cells: Sequence[str],
    kinds: Mapping[str, AxisKind],
) -> PrefetchingLoop | None:
    """Return the loop over terms in parts; None if there is nothing to prefetch.

    The last parts may have no rows left to prefetch, since all are equal.

    Args:
        around: The innermost loop around it, if there is one.
        cells: The loops over the results of a register tile.
    """
    ranges, rows = region.ranges(over), region.ranges(cells[0]) if len(cells) > 1 else ()
    if len(ranges) != 1 or len(rows) != 1 or kinds[over] is not AxisKind.SERIAL:
        return None
    ((run,), (row,)) = ranges, rows
    most = max(1, min(run.count // machine_model.PREFETCH_MIN_TERMS, row.count))
    count = max(parts for parts in range(1, most + 1) if run.count % parts == 0)
    size, rows_of_part = run.count // count, ceil_div(row.count, count)
    part, term = (indexing.fresh_var(region.tree.hint(over)) for _ in range(2))
    loads, prefetches = epilogue_loads(nest), list[Prefetch]()
    for at in range(rows_of_part):
        first = region.bind(cells[0], row, indexing.affine([(rows_of_part, part)], at))
        points = list(_points(first, cells[1:], kinds))
        prefetches += [line for load in loads for line in _lines(load, points)]
    if not prefetches:
        return None
    stmts = substitute_in_stmt(Block(tuple(prefetches)), _next_block(region, around)).stmts
    inside = region.bind(over, run, indexing.affine([(size, part), (1, term)]))
    return PrefetchingLoop(count, part, size, term, kinds[over], stmts, inside)


def packing_loop(
    region: Region,
    loads: Sequence[tuple[Load, str]],
    outside: Sequence[str],
    over: str,
    kinds: Mapping[str, AxisKind],
    nodes: NodeInfos,
) -> PrefetchingLoop | None:
    """Return the loop over terms in parts that prefetch the blocks that are packed next; None if
    there are none, or if their lines are not beside each other.

    Args:
        loads: The packed operands, with the loops that they are packed inside of.
        outside: The loops outside of the loop over terms, outermost first.
    """
    ranges = region.ranges(over)
    if len(ranges) != 1 or kinds[over] is not AxisKind.SERIAL:
        return None
    (run,) = ranges
    tree = region.tree
    inner = prod(
        axis.extent for axis in tree.axes.values() if axis.is_reduced and axis.name != over[0]
    )
    parts = max(1, run.count * inner // machine_model.PACKING_PREFETCH_TERMS)
    count = max(each for each in range(1, min(parts, run.count) + 1) if run.count % each == 0)
    size = run.count // count
    part, term = (indexing.fresh_var(tree.hint(over)) for _ in range(2))
    prefetches: list[Prefetch] = []
    for load, around in loads:
        tiles = outside[outside.index(around) + 1 :]
        number = indexing.affine_sum(
            (count, region.joint_number(tiles)), (1, indexing.VarIndex(part))
        )
        parts_of_block = count * tree.count(tiles)
        prefetches += _next_lines(region, load, around, number, parts_of_block, nodes)
    if not prefetches:
        return None
    inside = region.bind(over, run, indexing.affine([(size, part), (1, term)]))
    return PrefetchingLoop(count, part, size, term, kinds[over], tuple(prefetches), inside)


def _next_lines(
    region: Region,
    load: Load,
    around: str,
    number: indexing.AxisIndex,
    parts: int,
    nodes: NodeInfos,
) -> Iterator[Prefetch]:
    """Yield the prefetches of one part of the block of an operand that the next iteration of a loop
    packs, whose cells are those up to the next block.
    """
    tree = region.tree
    start = indexing.substitute(
        indexing.row_major(load.indices, nodes[load.node].buffer_dims),
        {axis.var: region.first_position(name) for name, axis in tree.axes.items()},
    )
    terms, offset = indexing.as_affine(start)
    block, _ = indexing.as_affine(region.numbers[around])
    step = sum(each for each, var in terms if (1, var) in block)
    axes = [name for name in tree.axes_of(load) if name != root_of(around)]
    cells = tree.max_extent(inner_of(parent_of(around))) if is_outer(around) else 1
    if step != cells * prod(tree.axes[name].extent for name in axes):
        return
    width = machine_model.CACHE_LINE_BYTES // load.dtype.nbytes
    lines = ceil_div(step, width * parts)
    if lines > machine_model.MAX_PREFETCHED_LINES:
        return
    sub_axes = [indexing.SubAxis()] * (len(load.indices) - 1)
    for line in range(lines):
        cell = indexing.affine_sum(
            (1, indexing.affine(terms, offset + step + width * line)), (width * lines, number)
        )
        yield Prefetch(load.node, (*sub_axes, cell))


def _next_block(region: Region, around: str | None) -> dict[indexing.IndexVar, indexing.AxisIndex]:
    """Return a loop's variable with its next value; nothing for a loop of few iterations."""
    if around is None or region.tree.max_extent(around) < machine_model.PREFETCH_MIN_BLOCKS:
        return {}
    terms, _ = indexing.as_affine(region.numbers[around])
    return {var: indexing.affine([(1, var)], 1) for _, var in terms}


def _points(
    region: Region, cells: Sequence[str], kinds: Mapping[str, AxisKind]
) -> Iterator[_Vector]:
    """Yield the vectors of a register tile."""
    if not cells:
        values = region.substitution()
        yield values, values, 1
        return
    name, *rest = cells
    for run in region.ranges(name):
        if kinds[name] is AxisKind.VECTOR and not rest:
            first, last = (
                region.bind(name, run, indexing.FixedIndex(at)) for at in (0, run.count - 1)
            )
            yield first.substitution(), last.substitution(), run.count
        else:
            for at in range(run.count):
                yield from _points(region.bind(name, run, indexing.FixedIndex(at)), rest, kinds)


def _lines(load: Load, points: Sequence[_Vector]) -> Iterator[Prefetch]:
    """Yield prefetches of the cache lines of one load."""
    rows: dict[tuple[indexing.AxisIndex, ...], list[tuple[int, int]]] = {}
    for first, last, lanes in points:
        *row, start = (indexing.substitute(index, first) for index in load.indices)
        *other, end = (indexing.substitute(index, last) for index in load.indices)
        (terms, low), (_, high) = indexing.as_affine(start), indexing.as_affine(end)
        if row != other or high - low != lanes - 1:
            return
        rows.setdefault((*row, indexing.affine(terms)), []).append((low, high))
    width = max(1, machine_model.CACHE_LINE_BYTES // load.dtype.nbytes)
    for (*row, rest), vectors in rows.items():
        terms, _ = indexing.as_affine(rest)
        for low, high in _merge_ranges(vectors):
            # the alignment is unknown: the last element may be in one more line
            for offset in dict.fromkeys((*range(low, high, width), high)):
                yield Prefetch(load.node, (*row, indexing.affine(terms, offset)))


def _merge_ranges(vectors: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the first and last elements of vectors, merged where they touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(vectors):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged
