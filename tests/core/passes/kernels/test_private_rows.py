"""Rows that each thread of a block keeps for itself."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Allocate, Barrier, Load, Scope
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.verify_plans import verify

BLOCKS = ThreadBlocks(256, 64, 1 << 15, subgroup=32, processors=2, vector_bytes=16)


def rows(value: str, cells: int = 512) -> str:
    """Return a program that normalizes powers of rows: nests read twice cells that threads may keep."""
    return f"""\
routine rows(a: float32[40, {cells}], c: float32[40, {cells}]):
    routine powers: float32[40, {cells}]
    routine total: float32[40]
    for i in range(40):
        for k in range({cells}):
            powers[i, k] = exp(a[i, k])
    total[:] = 0.0
    for i in range(40):
        for k in range({cells}):
            total[i] += powers[i, k]
    for i in range(40):
        for k in range({cells}):
            c[i, k] = {value}"""


def plan_of(text: str) -> Plan:
    target = Target("device", has_fma=True, thread_blocks=BLOCKS)
    plan = schedule_for(split_kernels(parse(text)), target, finish_for(target)).plan()
    verify(plan)
    return plan


def body_of(text: str) -> Kernel:
    (kernel,) = plan_of(text).steps
    assert isinstance(kernel, Kernel)
    return kernel


def scopes(kernel: Kernel) -> Counter[tuple[str, Scope]]:
    found = (each for each in walk(kernel.body) if isinstance(each, Allocate))
    return Counter((each.node.label[0].removesuffix("_row"), each.scope) for each in found)


def check(text: str) -> None:
    program = parse(text)
    random = np.random.default_rng(0)
    arrays = {
        node: random.integers(-2, 3, info.buffer_dims).astype(np.float32)
        for node, info in program.nodes.items()
    }
    example = Example(program, arrays)
    subject = subject_named("interp")
    expected = subject.run(example.program, example.arrays, ())

    def planned(plan: Plan, target: Target) -> Plan:
        device = replace(target, thread_blocks=BLOCKS, has_fma=True)
        return schedule_for(plan, device, finish_for(device)).plan()

    found = subject.run(example.program, example.arrays, (), planned)
    for node in program.params:
        np.testing.assert_allclose(found[node], expected[node], rtol=1e-4)


def test_a_row_that_threads_access_alone_is_in_their_registers() -> None:
    text = rows("powers[i, k] + total[i]")
    kernel = body_of(text)
    found = scopes(kernel)
    assert found["powers", Scope.THREAD] == 1
    assert found["powers", Scope.GROUP] == 0
    assert found["total", Scope.GROUP] == 1  # all threads read it
    check(text)


def test_a_row_that_other_threads_read_stays_in_shared_memory() -> None:
    text = rows("powers[i, 511 - k] + total[i]")
    found = scopes(body_of(text))
    assert found["powers", Scope.THREAD] == 0
    assert found["powers", Scope.GROUP] == 1
    check(text)


def test_cells_that_a_thread_keeps_need_no_barrier() -> None:
    private, shared = (
        sum(isinstance(each, Barrier) for each in walk(body_of(rows(value)).body))
        for value in ("powers[i, k] + total[i]", "powers[i, 511 - k] + total[i]")
    )
    assert private == shared - 1


def test_a_row_of_memory_that_several_nests_read_is_loaded_once() -> None:
    text = rows("powers[i, k] + total[i] * a[i, k]")
    plan = plan_of(text)
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    memory = [e for e in walk(kernel.body) if isinstance(e, Load) and e.node in plan.params]
    assert len(memory) == 1
    check(text)


def test_a_row_that_the_kernel_overwrites_is_loaded_again() -> None:
    text = rows("powers[i, k] + total[i] + c[i, k]")
    assert scopes(body_of(text))["c", Scope.THREAD] == 0
    check(text)


@pytest.mark.parametrize(("cells", "is_private"), [(512, True), (300, False)])
def test_a_row_behind_a_condition_is_loaded_whole_only_if_it_is_in_bounds(
    cells: int, is_private: bool
) -> None:
    value = f"where(int64(k) < {cells}, a[i, k], 0.0)"
    text = f"""\
routine rows(a: float32[40, {cells}], c: float32[40, 512]):
    routine total: float32[40]
    total[:] = 0.0
    for i in range(40):
        for k in range(512):
            total[i] += {value}
    for i in range(40):
        for k in range(512):
            c[i, k] = {value} * total[i]"""
    assert scopes(body_of(text))["a", Scope.THREAD] == is_private
    check(text)


@pytest.mark.parametrize("cells", [256, 300, 510, 1000, 2048])
@pytest.mark.parametrize(
    "value", ["powers[i, k] + total[i]", "a[i, k] * total[i] - powers[i, k] * a[i, k]"]
)
def test_rows_of_any_length_are_right(cells: int, value: str) -> None:
    check(rows(value, cells))


def test_long_rows_stay_in_shared_memory() -> None:
    """A thread has room for 64 numbers of 4 bytes, and 64 threads would have 128 each."""
    found = scopes(body_of(rows("powers[i, k] + total[i]", 4096)))
    assert found["powers", Scope.THREAD] == 0 or found["a", Scope.THREAD] == 0
