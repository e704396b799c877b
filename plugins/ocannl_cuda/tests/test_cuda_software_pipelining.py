"""Register tiles whose operands are copied ahead, on emulated devices: bits of the interpreter, no races,
and faults that are found.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.matrix_instructions import COPIES
from ocannl_cuda.source import generate
from plugins.ocannl_cuda.tests import emulated_plans
from plugins.ocannl_cuda.tests.emulated_kernels import Array, launcher
from plugins.ocannl_cuda.tests.emulated_plans import SMALL, memory, planned_for

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

EXTENTS = (16, 17, 32, 36, 61, 64, 70)
LAYOUTS = tuple(
    (left, right, result)
    for left in ("i, k", "k, i")
    for right in ("k, j", "j, k")
    for result in ("i, j", "j, i")
)


def device(
    local_bytes: int = 48 << 10, cache_bytes: int = 0, threads: int = 64, processors: int = 1
) -> Target:
    blocks = SMALL.thread_blocks
    assert blocks is not None
    own = replace(
        blocks,
        threads=threads,
        local_bytes=local_bytes,
        processors=processors,
        asynchronous_copies=COPIES,
    )
    return replace(SMALL, thread_blocks=own, cache_bytes=(cache_bytes,))


def product(
    extents: tuple[int, int, int], layout: tuple[str, str, str] = LAYOUTS[0], epilogue: str = ""
) -> Example:
    """Return a product of random matrices; an epilogue adds rows to its results."""
    sizes = dict(zip("ijk", extents, strict=True))
    left, right, result = (
        ", ".join(str(sizes[name]) for name in each.split(", ")) for each in layout
    )
    more = ""
    if epilogue:
        more = f"""
    for i in range({sizes["i"]}):
        for j in range({sizes["j"]}):
            c[{layout[2]}] = {epilogue}"""
    text = f"""\
routine product(a: float32[{left}], b: float32[{right}], c: float32[{result}], d: float32[{result}], e: float32[{sizes["j"]}]):
    for i in range({sizes["i"]}):
        for j in range({sizes["j"]}):
            for k in range({sizes["k"]}):
                c[{layout[2]}] += a[{layout[0]}] * b[{layout[1]}]{more}"""
    program = parse(text)
    numbers = np.random.default_rng(sum(extents))
    arrays = {
        node: numbers.standard_normal(program.nodes[node].dims).astype(np.float32)
        for node in program.params
        if node.label[0] != "c"
    }
    return Example(program, arrays)


def schedules(example: Example, target: Target) -> str:
    plan = planned_for(target)(split_kernels(example.program), target)
    return " | ".join(schedule_text(each.schedule) for each in plan.kernels)


def check(example: Example, target: Target) -> None:
    """Assert that a device computes the bits of the interpreter by the same schedule."""
    expected = subject_named("interp").run(example.program, example.arrays, (), planned_for(target))
    found = emulated_plans.run(example.program, example.arrays, target)
    for node in example.program.params:
        assert found[node].tobytes() == expected[node].tobytes()


@settings(
    max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    extents=st.tuples(*[st.sampled_from(EXTENTS)] * 3),
    layout=st.sampled_from(LAYOUTS),
    local_bytes=st.sampled_from((12 << 10, 48 << 10)),
)
def test_operands_that_are_copied_ahead_give_the_bits_of_the_interpreter(
    extents: tuple[int, int, int], layout: tuple[str, str, str], local_bytes: int
) -> None:
    example, target = product(extents, layout), device(local_bytes)
    assert "pipeline k0 in" in schedules(example, target)
    check(example, target)


def test_the_order_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    example = product((36, 61, 37))
    monkeypatch.setenv("CUDA_EMULATOR_ORDER", "reverse")
    check(example, device())


@pytest.mark.parametrize("layout", LAYOUTS[:4], ids=" ".join)
def test_pipelines_have_no_races(
    layout: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_RACES", "1")
    check(product((36, 40, 70), layout), device())


@pytest.mark.parametrize("fault", ["barrier", "wait"])
def test_a_pipeline_without_a_barrier_or_a_wait_is_found_out(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_RACES", "1")
    example, target = product((64, 64, 64)), device()
    plan = planned_for(target)(split_kernels(example.program), target)
    (kernel,) = generate(KernelStream.of(plan)).kernels
    text = DIALECT.unit([kernel])
    pattern = r"__syncthreads\(\);" if fault == "barrier" else r"await_copies_2\(\);"
    place = [each.span() for each in re.finditer(pattern, text)][-1]
    found: list[Array] = [
        memory(plan.nodes[node], example.arrays.get(node)) for node in plan.params
    ]
    wrong = text[: place[0]] + text[place[1] :]
    status, message = launcher(wrong, kernel.symbol)(kernel.grid, kernel.block, *found)
    right = subject_named("interp").run(example.program, example.arrays)[plan.params[2]]
    assert status or message or not np.allclose(found[2], right, rtol=1e-3, atol=1e-3)


SWEPT = """\
routine product(a: float32[3, 64, 40], b: float32[3, 40, 64], c: float32[64, 64]):
    for i in range(64):
        for j in range(64):
            for r in range(3):
                for k in range(40):
                    c[i, j] += a[r, i, k] * b[r, k, j]"""
"""A product whose stages are swept three times, and are more than the steps of the last turn."""


def swept() -> Example:
    program, numbers = parse(SWEPT), np.random.default_rng(0)
    return Example(
        program,
        {
            node: numbers.standard_normal(program.nodes[node].dims).astype(np.float32)
            for node in program.params[:2]
        },
    )


def test_threads_meet_between_sweeps_of_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_RACES", "1")
    assert "pipeline m0 in 4" in schedules(swept(), device())
    check(swept(), device())


def before_the_end_of_memory(cells: Array) -> Array:
    """Return an array whose last byte is the last one that may be accessed."""
    size = -(-cells.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    nothing = ctypes.c_void_p(pages.ctypes.data + size), ctypes.c_size_t(mmap.PAGESIZE), 0
    assert ctypes.CDLL(None).mprotect(*nothing) == 0
    found = pages[size - cells.nbytes : size].view(cells.dtype).reshape(cells.shape)
    found[...] = cells
    return found


def test_no_step_after_the_last_one_is_copied() -> None:
    example, target = swept(), device()
    plan = planned_for(target)(split_kernels(example.program), target)
    (kernel,) = generate(KernelStream.of(plan)).kernels
    given = [
        before_the_end_of_memory(memory(plan.nodes[node], example.arrays.get(node)))
        for node in plan.params
    ]
    launch = launcher(DIALECT.unit([kernel]), kernel.symbol)
    process = os.fork()
    if process == 0:
        os._exit(launch(kernel.grid, kernel.block, *given)[0])
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def test_a_budget_of_shared_memory_decides_the_number_of_stages() -> None:
    example = product((64, 64, 256))
    stages = [
        int(found[1])
        for local_bytes in (8 << 10, 12 << 10, 16 << 10, 48 << 10)
        if (found := re.search(r"pipeline k0 in (\d)", schedules(example, device(local_bytes))))
    ]
    assert stages == sorted(stages)
    assert stages[0] < stages[-1] == 4


def test_computed_operands_are_copied_by_the_threads_themselves() -> None:
    computed = parse("""\
routine product(a: float32[64, 64], b: float32[64, 64], c: float32[64, 64]):
    for i in range(64):
        for j in range(64):
            for k in range(64):
                c[i, j] += exp(a[i, k]) * b[k, j]""")
    assert "pipeline" not in schedules(Example(computed, {}), device())
    loaded = product((64, 64, 64))
    assert "pipeline" in schedules(loaded, device())


@pytest.mark.parametrize(
    ("extents", "rows"), [((256, 256, 16), 4), ((288, 256, 16), 3), ((470, 256, 16), 4)]
)
def test_supertiles_compute_every_tile(extents: tuple[int, int, int], rows: int) -> None:
    """Of 470 rows there are 15 tiles; the blocks of the sixteenth have nothing to do."""
    example, target = product(extents), device(cache_bytes=1 << 10, threads=16, processors=8)
    text = schedules(example, target)
    assert f"split i {32 * rows}; split i1 32;" in text
    assert "grid i0 j0 i10;" in text
    check(example, target)
