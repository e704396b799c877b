"""Long reductions to few cells as partial results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings

from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_plan import NestReplacement
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.loops.nodes import Allocate, Binary, Block, LoopProgram, Scope, Stmt
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.passes.kernels.split_reductions import split_nest, split_nest_on_blocks
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from tests.support.reductions import random_reductions

Interpret = Callable[..., dict[TensorNode, Any]]


def column_sums(rows: int, columns: int) -> Nest:
    """Return `c[j] += a[i, j]`."""
    draft, i, j = Draft("sums"), fresh_var("i"), fresh_var("j")
    a, c = draft.node("a", float32, rows, columns), draft.node("c", float32, columns)
    body = draft.accumulate(c, j, op=BinaryOp.ADD, value=draft.load(a, i, j))
    nest = kernel_nest(Block((loop(j, columns, loop(i, rows, body)),)))
    assert nest is not None
    return nest


def extents(divided: NestReplacement | None) -> list[list[int]]:
    """Return the extents of the axes of each nest: cells, then those that are reduced."""
    assert divided is not None
    return [[axis.extent for axis in (*nest.output_axes, *nest.reduced)] for nest in divided.nests]


def test_a_long_sum_has_equal_parts_that_are_combined() -> None:
    divided = split_nest(column_sums(64000, 32))
    assert extents(divided) == [[16, 32, 4000], [32, 16]]
    assert divided is not None
    assert list(divided.made.values()) == [NodeInfo(float32, (16, 32))]


def test_the_remainder_is_a_part_of_its_own() -> None:
    assert extents(split_nest(column_sums(64003, 32))) == [[16, 32, 4000], [32, 3], [32, 17]]


def test_shorter_sums_have_fewer_parts() -> None:
    assert extents(split_nest(column_sums(4096, 100))) == [[8, 100, 512], [100, 8]]


def test_many_cells_short_sums_and_little_work_stay_whole() -> None:
    assert split_nest(column_sums(4096, 1024)) is None
    assert split_nest(column_sums(2000, 512)) is None
    assert split_nest(column_sums(8000, 8)) is None


def test_the_results_lie_as_those_of_the_whole_do() -> None:
    draft, (i, j, k) = Draft("turned"), (fresh_var() for _ in range(3))
    a, c = draft.node("a", float32, 9600, 8, 4), draft.node("c", float32, 4, 8)
    body = draft.accumulate(c, k, j, op=BinaryOp.ADD, value=draft.load(a, i, j, k))
    nest = kernel_nest(Block((loop(i, 9600, loop(j, 8, loop(k, 4, body))),)))
    assert nest is not None
    divided = split_nest(nest)
    assert divided is not None
    (info,) = divided.made.values()
    assert info.dims == (16, 4, 8)
    assert divided.nests[0].epilogue[0].indices[1:] == (VarIndex(k), VarIndex(j))


def test_partial_reductions_agree_with_the_whole(interpret: Interpret) -> None:
    divided_nests = 0

    @settings(
        max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(random_reductions(int32, (1, 2, 3, 9, 17, 40)))
    def check(example: Example) -> None:
        """Compare with exact results: small integers add exactly in any order."""
        nonlocal divided_nests
        program = example.program
        nest = kernel_nest(program.body)
        divided = None if nest is None else split_nest(nest, least_terms=1, least_work=0)
        if divided is None:
            return
        divided_nests += 1
        stmts: list[Stmt] = [Allocate(node, Scope.ROUTINE) for node in divided.made]
        nodes = {**program.nodes, **divided.made}
        for each in divided.nests:
            result = apply_schedule(each, ())
            stmts.append(result.body)
            nodes.update(result.nodes)
        parts = LoopProgram(program.name, program.params, (), nodes, Block(tuple(stmts)))
        before = interpret(program, example.arrays)
        after = interpret(parts, example.arrays)
        for node, cells in before.items():
            np.testing.assert_array_equal(after[node], cells)

    check()
    assert divided_nests > 10


def test_sums_over_many_rows_keep_many_thread_blocks_busy() -> None:
    """Fewer parts for more cells, of which a block computes several; none for few terms."""
    assert extents(split_nest_on_blocks(column_sums(4096, 512))) == [[16, 512, 256], [512, 16]]
    assert extents(split_nest_on_blocks(column_sums(1 << 20, 1))) == [[256, 1, 4096], [1, 256]]
    assert extents(split_nest_on_blocks(column_sums(1024, 32))) == [[4, 32, 256], [32, 4]]
    assert split_nest_on_blocks(column_sums(128, 512)) is None
    assert split_nest_on_blocks(column_sums(4096, 4096)) is None


def product(rows: int, terms: int, columns: int) -> Nest:
    """Return `c[i, j] += a[i, k] * b[k, j]`."""
    draft = Draft("product")
    i, j, k = (fresh_var(name) for name in "ijk")
    a, b = draft.node("a", float32, rows, terms), draft.node("b", float32, terms, columns)
    c = draft.node("c", float32, rows, columns)
    term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
    body = loop(k, terms, draft.accumulate(c, i, j, op=BinaryOp.ADD, value=term))
    nest = kernel_nest(Block((loop(i, rows, loop(j, columns, body)),)))
    assert nest is not None
    return nest


def test_products_of_few_tiles_are_split_over_the_grid() -> None:
    """Tiles have 64 rows and columns; all parts of all of them are at most 256."""
    found = extents(split_nest_on_blocks(product(64, 65536, 64)))
    assert found == [[64, 64, 64, 1024], [64, 64, 64]]
    assert extents(split_nest_on_blocks(product(4096, 4096, 16)))[0] == [4, 4096, 16, 1024]
    assert extents(split_nest_on_blocks(product(512, 4096, 512)))[0] == [4, 512, 512, 1024]
    assert split_nest_on_blocks(product(1024, 65536, 1024)) is None
    assert split_nest_on_blocks(product(64, 2048, 64)) is None
