"""Attention as one kernel of a CUDA device, run by the emulation: numbers, and matrix instructions."""

from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.settings import overrides
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.kernels.transforms import WalkTiles
from ocannl_core.ir.loops.nodes import AxisKind, For
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.testing.subject import subject_named
from ocannl_cuda.matrix_instructions import COPIES, INSTRUCTIONS
from plugins.ocannl_cuda.tests import emulated_plans
from plugins.ocannl_cuda.tests.emulated_plans import SMALL, planned_for
from tests.support.attention import (
    UNIT,
    Sizes,
    attention_program,
    expected,
    expected_gradients,
    gradient_program,
    random_operands,
)
from tests.support.verify_plans import verify

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

assert SMALL.thread_blocks is not None
LARGE = replace(
    SMALL,
    thread_blocks=replace(SMALL.thread_blocks, local_bytes=160 << 10, asynchronous_copies=COPIES),
    matrix_units=INSTRUCTIONS,
)
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def only_kernel(sizes: Sizes, target: Target, *, causal: bool, dtype: str = "float32") -> Kernel:
    plan = plan_kernels(attention_program(sizes, causal=causal, dtype=dtype), target).plan()
    verify(plan)
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    return kernel


def tiles_of(kernel: Kernel, keys: int) -> int:
    (walking,) = (each for each in kernel.schedule if isinstance(each, WalkTiles))
    return -(-keys // walking.size)


def on_tiles(kernel: Kernel) -> bool:
    """Return True if matrix instructions multiply."""
    tiles = [e for e in walk(kernel.body) if isinstance(e, For) and e.kind is AxisKind.TILE]
    (walking,) = (each for each in kernel.schedule if isinstance(each, WalkTiles))
    assert walking.on_tiles == bool(tiles)
    return walking.on_tiles


def check(sizes: Sizes, target: Target, *, causal: bool, factor: float = 1.0) -> None:
    """Assert that results of float32 are within their bound, times a factor."""
    program = attention_program(sizes, causal=causal)
    arrays, result = random_operands(program, sizes)
    found = emulated_plans.run(program, arrays, target)[result]
    # products of single terms are no reductions, and kernels of their own
    tiles = 1
    if sizes.width > 1:
        tiles = tiles_of(only_kernel(sizes, target, causal=causal), sizes.keys)
    exact, bound = expected(list(arrays.values()), causal=causal, tiles=tiles)  # type: ignore[arg-type]
    assert (abs(found - exact) <= factor * bound).all()


@settings(
    max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    sizes=st.builds(
        Sizes,
        st.integers(1, 2),
        st.sampled_from([2, 3, 33, 64, 131]),
        st.sampled_from([2, 7, 65, 128, 190]),
        st.integers(1, 3),
        st.sampled_from([1, 3, 16, 40, 64, 128]),
        st.sampled_from([2, 8, 24, 64, 128]),
    ),
    causal=st.booleans(),
)
def test_attention_of_any_extents_is_within_its_bound(sizes: Sizes, causal: bool) -> None:
    check(sizes, LARGE, causal=causal)


def test_device_and_interpreter_run_the_same_schedule() -> None:
    sizes = Sizes(1, 9, 21, 2, 4, 8)
    program = attention_program(sizes, causal=True)
    arrays, result = random_operands(program, sizes, scale=1.0)
    found = emulated_plans.run(program, arrays)[result]
    again = emulated_plans.run(program, arrays)[result]
    assert found.tobytes() == again.tobytes()
    interp = subject_named("interp").run(program, arrays, (), planned_for(SMALL))[result]
    np.testing.assert_allclose(found, interp, rtol=2e-6, atol=1e-7)  # functions differ by a unit


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("causal", [False, True])
def test_narrow_attention_is_one_kernel_of_matrix_instructions(dtype: str, causal: bool) -> None:
    sizes = Sizes(1, 70, 77, 2, 40, 24)
    program = attention_program(sizes, causal=causal, dtype=dtype)
    arrays, result = random_operands(program, sizes, scale=1.0)
    cells = [each.astype(NUMPY[dtype]) for each in arrays.values()]
    memory = program.nodes[result].memory_numpy
    given = {node: each.view(memory) for node, each in zip(arrays, cells, strict=True)}
    found = emulated_plans.run(program, given, LARGE)[result].view(NUMPY[dtype])
    exact, bound = expected([e.astype(np.float32) for e in cells], causal=causal, tiles=2)
    # every operation rounds to the format; scores are below 16
    assert (abs(found.astype(np.float64) - exact) <= 2 * UNITS[dtype] / UNIT * bound).all()
    kernel = only_kernel(sizes, LARGE, causal=causal, dtype=dtype)
    assert on_tiles(kernel)


def test_fast_sums_of_float32_use_matrix_instructions() -> None:
    sizes = Sizes(1, 33, 70, 1, 24, 16)
    with overrides(accumulation="fast"):
        assert on_tiles(only_kernel(sizes, LARGE, causal=True))
        check(sizes, LARGE, causal=True, factor=21.0)
    assert not on_tiles(only_kernel(sizes, LARGE, causal=True))


def test_threads_have_no_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_RACES", "1")
    check(Sizes(1, 40, 70, 1, 8, 8), LARGE, causal=True)
    with overrides(accumulation="fast"):
        check(Sizes(1, 40, 70, 1, 24, 24), LARGE, causal=True, factor=21.0)


def check_gradients(
    sizes: Sizes,
    target: Target,
    *,
    causal: bool,
    dtype: str = "float32",
    factor: float = 1.0,
    on_tiles: bool = False,
) -> None:
    """Assert that gradients are within their bounds, times a factor, and that no kernel stores a
    matrix of queries and keys.
    """
    program, nodes = gradient_program(sizes, causal=causal, dtype=dtype)
    plan = plan_kernels(program, target).plan()
    verify(plan)
    extents = {sizes.queries, sizes.keys}
    assert not [node for node in plan.scratch if extents <= set(plan.nodes[node].dims)]
    tiles = [
        each
        for step in plan.steps
        if isinstance(step, Kernel)
        for each in walk(step.body)
        if isinstance(each, For) and each.kind is AxisKind.TILE
    ]
    assert bool(tiles) == on_tiles
    random = np.random.default_rng(0)
    numbers = NUMPY.get(dtype, np.float32)
    cells = {e: random.normal(size=program.nodes[nodes[e]].dims).astype(numbers) for e in "qkvg"}
    given = {nodes[e]: cells[e].view(program.nodes[nodes[e]].memory_numpy) for e in cells}
    found = emulated_plans.run(program, given, target)
    wide = {name: each.astype(np.float32) for name, each in cells.items()}
    for name, (exact, bound) in expected_gradients(wide, causal=causal, tiles=sizes.keys).items():
        result = found[nodes[name]].view(numbers).astype(np.float64)
        assert (abs(result - exact) <= factor * bound).all(), name


@settings(
    max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    sizes=st.builds(
        Sizes,
        st.integers(1, 2),
        st.sampled_from([42, 65, 70]),
        st.sampled_from([43, 64, 101]),
        st.integers(1, 2),
        st.sampled_from([3, 16, 40]),
        st.sampled_from([2, 8, 24]),
    ),
    causal=st.booleans(),
)
def test_gradients_of_any_extents_are_within_their_bounds(sizes: Sizes, causal: bool) -> None:
    check_gradients(sizes, LARGE, causal=causal)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("causal", [False, True])
def test_narrow_gradients_are_kernels_of_matrix_instructions(dtype: str, causal: bool) -> None:
    factor = 2 * UNITS[dtype] / UNIT
    sizes = Sizes(1, 45, 41, 1, 24, 16)
    check_gradients(sizes, LARGE, causal=causal, dtype=dtype, factor=factor, on_tiles=True)


def test_fast_gradients_of_float32_use_matrix_instructions() -> None:
    with overrides(accumulation="fast"):
        check_gradients(Sizes(1, 33, 40, 1, 24, 16), LARGE, causal=True, factor=21.0, on_tiles=True)


def test_threads_of_gradients_have_no_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_RACES", "1")
    check_gradients(Sizes(1, 40, 70, 1, 8, 8), LARGE, causal=True)
    with overrides(accumulation="fast"):
        check_gradients(Sizes(1, 34, 40, 1, 24, 24), LARGE, causal=True, factor=21.0, on_tiles=True)
