"""Accesses of shared memory in tiles have no bank conflicts, counted for every warp."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest_plan import NestKernel
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.loops.nodes import Block, LoopProgram
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import nest_plan
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.schedule.machine_model import PADDING_CELLS
from ocannl_core.schedule.rules.block_rules import BlockParameters, block_schedule
from ocannl_core.testing.parser.loops import parse
from tests.support.bank_conflicts import BANKS, degree, device_accesses, sectors, shared_accesses

SIDES = (8, 4, 2)
LAYOUTS = tuple((left, right) for left in ("i, k", "k, i") for right in ("k, j", "j, k"))


def scheduled(
    layout: tuple[str, str],
    side: int,
    vector_bytes: int,
    extents: tuple[int, int, int],
    copies: tuple[int, ...] = (),
    batch: str = "",
) -> tuple[Block, dict[TensorNode, NodeInfo], frozenset[TensorNode]]:
    """Return the kernel of a product in tiles, its nodes, and those that the kernel allocates."""
    blocks = ThreadBlocks(1024, 256, 64 << 10, 255, 32, 1, vector_bytes, has_shuffles=True)
    blocks = replace(blocks, asynchronous_copies=copies)
    target = Target("large", thread_blocks=blocks, has_fma=True)
    sizes = dict(zip("ijk", extents, strict=True))
    shapes = [", ".join(str(sizes[name]) for name in each.split(", ")) for each in layout]
    more = "3, " if batch else ""
    head = "    for n in range(3):\n" if batch else ""
    inside = "    " if batch else ""
    program = parse(f"""\
routine product(a: float32[{more}{shapes[0]}], b: float32[{more}{shapes[1]}], c: float32[{more}{sizes["i"]}, {sizes["j"]}]):
{head}{inside}    for i in range({sizes["i"]}):
{inside}        for j in range({sizes["j"]}):
{inside}            for k in range({sizes["k"]}):
{inside}                c[{batch}i, j] += a[{batch}{layout[0]}] * b[{batch}{layout[1]}]""")
    text, body, nodes, own = emitted(program, target, BlockParameters(side=side))
    assert ("pipeline" in text) == bool(copies)
    return body, nodes, own


def emitted(
    program: LoopProgram, target: Target, parameters: BlockParameters
) -> tuple[str, Block, dict[TensorNode, NodeInfo], frozenset[TensorNode]]:
    """Return the schedule of a program of one nest, its kernel, its nodes, and those that the kernel
    allocates.
    """
    plan = nest_plan(split_kernels(program), target)
    (nest,) = [step.nest for step in plan.steps if isinstance(step, NestKernel)]
    schedule = block_schedule(nest, plan.nodes, target, parameters)
    assert schedule is not None
    result = apply_schedule(nest, schedule, plan.nodes)
    assert isinstance(result.body, Block)
    nodes = {**plan.nodes, **result.nodes}
    return schedule_text(schedule), result.body, nodes, frozenset(result.nodes)


def degrees(
    layout: tuple[str, str],
    side: int,
    vector_bytes: int,
    extents: tuple[int, int, int],
    more_padding: int = 0,
    copies: tuple[int, ...] = (),
) -> list[int]:
    """Return the conflicts of each access of shared memory of a product in tiles; the rows of
    operands that are transposed have so many cells more.
    """
    body, nodes, own = scheduled(layout, side, vector_bytes, extents, copies)
    for node in own:
        *rows, columns = nodes[node].dims
        if columns > BANKS and columns % BANKS == PADDING_CELLS:
            nodes[node] = replace(nodes[node], dims=(*rows, columns + more_padding))
    found = [degree(each, nodes) for each in shared_accesses(body, nodes)]
    assert len(found) >= 4  # each operand is stored and loaded
    return found


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("vector_bytes", "copies"), [(16, ()), (0, ()), (16, (16, 8, 4))])
def test_tiles_have_no_bank_conflicts(
    layout: tuple[str, str], side: int, vector_bytes: int, copies: tuple[int, ...]
) -> None:
    found = degrees(layout, side, vector_bytes, (256, 256, 64), copies=copies)
    assert found == [1] * len(found)


@settings(max_examples=10, deadline=None)
@given(
    extents=st.tuples(*[st.sampled_from((48, 64, 68, 100, 130, 256))] * 3),
    layout=st.sampled_from(LAYOUTS),
    copies=st.sampled_from(((), (16, 8, 4))),
)
def test_tiles_of_any_extents_have_no_bank_conflicts(
    extents: tuple[int, int, int], layout: tuple[str, str], copies: tuple[int, ...]
) -> None:
    found = degrees(layout, 4, 16, extents, copies=copies)
    assert found == [1] * len(found)


@pytest.mark.parametrize("more", [-4, -3, 12, 28])
def test_another_padding_is_found_out(more: int) -> None:
    """Without padding, rows that threads write are in one bank, for example."""
    assert max(degrees(("i, k", "j, k"), 8, 16, (256, 256, 64), more)) > 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("batch", ["", "n, "])
@pytest.mark.parametrize("copies", [(), (16, 8, 4)], ids=str)
def test_warps_load_and_store_whole_sectors_of_memory(
    layout: tuple[str, str], side: int, batch: str, copies: tuple[int, ...]
) -> None:
    body, nodes, _ = scheduled(layout, side, 16, (256, 256, 64), copies, batch)
    found = [sectors(each, nodes) for each in device_accesses(body, nodes)]
    assert len(found) >= 3
    assert [transactions for transactions, _ in found] == [least for _, least in found]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("rows", "columns"), [(256, 256), (128, 1000), (512, 96)])
def test_transposed_tiles_have_no_bank_conflicts_and_access_whole_sectors(
    dtype: str, rows: int, columns: int
) -> None:
    blocks = ThreadBlocks(1024, 256, 64 << 10, 255, 32, 1, 16, has_shuffles=True)
    program = parse(f"""\
routine transpose(a: {dtype}[{rows}, {columns}], b: {dtype}[{columns}, {rows}], c: {dtype}[{columns}, {rows}]):
    for i in range({rows}):
        for j in range({columns}):
            c[j, i] = a[i, j] * b[j, i]""")
    text, body, nodes, _ = emitted(
        program, Target("large", thread_blocks=blocks), BlockParameters()
    )
    assert "pack 0 as" in text
    shared = list(shared_accesses(body, nodes))
    assert len(shared) == 2
    assert [degree(each, nodes) for each in shared] == [1, 1]
    found = [sectors(each, nodes) for each in device_accesses(body, nodes)]
    assert len(found) == 3
    if rows % 32 == columns % 32 == 0:
        assert [transactions for transactions, _ in found] == [least for _, least in found]
