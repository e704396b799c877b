"""Plans of programs, before the first kernel pass and after each."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from ocannl_core.ir.kernels.nest_plan import NestPlan
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import nest_plans, plan_kernels
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing import group_programs, number_programs, programs
from ocannl_core.testing.strategies import random_programs
from tests.support.blocks import random_block_programs
from tests.support.chains import chain_programs
from tests.support.loop_programs import loop_programs
from tests.support.products import random_products
from tests.support.reductions import random_reductions
from tests.support.rows import random_row_programs

TARGETS = tuple(
    Target("wide", vector_bytes=64, vector_registers=32, has_fma=True, cores=4, cache_bytes=sizes)
    for sizes in ((256, 1, 1), (1 << 16, 1, 1), (1 << 15, 1 << 20, 1 << 24))
)
HAND_MADE = [
    *programs.HAND_MADE,
    programs.packed_cells,
    *group_programs.WITH_BARRIERS,
    programs.external_call,
    programs.guarded_load,
    programs.awkward_names,
    number_programs.threefry,
    number_programs.fused_multiply_add,
]
ANY_PROGRAM = st.one_of(
    random_programs(),
    loop_programs(),
    chain_programs(),
    random_row_programs(),
    random_products(),
    random_reductions(),
    random_block_programs(),
)


def plans(program: LoopProgram, target: Target) -> Iterator[NestPlan]:
    """Yield the plan before the first kernel pass and after each."""
    cut = split_kernels(program)
    yield cut
    for _, found in nest_plans(cut, target):
        yield found
    yield plan_kernels(program, target).plan()
