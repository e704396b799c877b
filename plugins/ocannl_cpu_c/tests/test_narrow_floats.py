"""Sums of narrow floats in C: in float32, rounded once, also by products of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings as core_settings
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.matrix_units import DotProduct
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float16, float32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import schedule_for
from ocannl_core.testing.compare import ulp_distances
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from ocannl_cpu_c.matrix_units import DOT_PRODUCTS
from tests.support.example_count import example_count
from tests.support.reductions import in_format, random_reductions

from .processors import processors, settings_for

Array = np.ndarray[Any, Any]
LONG = (1, 2, 3, 5, 8, 16, 19, 33, 40)
FEW = settings(
    max_examples=example_count(3),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

PROCESSORS = {
    "wide": {"vector_bytes": 64, "vector_registers": 32, "has_fma": True},
    "short": {"vector_bytes": 32, "vector_registers": 16, "has_fma": True},
    "plain": {"vector_bytes": 0, "vector_registers": 16, "has_fma": False},
}


@pytest.mark.parametrize("accumulation", ["float32", "fast"])
@pytest.mark.parametrize("processor", PROCESSORS)
@FEW
@given(
    example=random_reductions(float32, LONG, 8000),
    dtype=st.sampled_from([bfloat16, bfloat16, float16]),  # which hold all positions
)
def test_sums_of_narrow_floats_are_rounded_once(
    accumulation: str, processor: str, example: Example, dtype: DType
) -> None:
    """Small integers are exact in float32 in every order of addition."""
    expected = subject_named("interp").run(example.program, example.arrays)
    narrow = in_format(example, dtype)

    def schedule(plan: Plan, target: Target) -> Plan:
        # generated code has functions for pairs of every format on every processor
        units = (*DOT_PRODUCTS, DotProduct(float16, terms=2, least_terms=8))
        described = replace(target, matrix_units=units, **PROCESSORS[processor])
        return schedule_for(plan, described).plan()

    with core_settings.overrides(accumulation=accumulation, tune="off"):
        found = subject_named("cpu_c").run(narrow.program, narrow.arrays, (), schedule)
    for ours, theirs in zip(narrow.program.params, example.program.params, strict=True):
        with np.errstate(over="ignore"):
            rounded = expected[theirs].astype(dtype.numpy).astype(np.float32)
        np.testing.assert_array_equal(found[ours].astype(np.float32), rounded)


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("spec", ["ij; jk => ik", "ij; kj => ik", "ji; jk => ik"])
def test_dot_products_of_any_16_bit_format_have_code(spec: str, dtype: DType) -> None:
    described = manager.backend("cpu_c").described()["x86-64-v4"]
    unit = DotProduct(dtype, terms=2, least_terms=8)
    with core_settings.overrides(accumulation="fast", tune="off"), oc.Session():
        a, b = (oc.placeholder(name, output=[64, 64], dtype=dtype) for name in "ab")
        code = oc.compile_for(
            oc.train.forward(oc.einsum(spec, a, b)),
            "cpu_c",
            replace(described, matrix_units=(unit,)),
        )
    assert f"_dot_{dtype.name}(" in code.source


SPECS = (
    "ij; jk => ik",
    "ij; kj => ik",
    "ji; jk => ik",
    "ji; kj => ik",
    "bij; bjk => bik",
    "jbi; kjb => bik",
)


@pytest.mark.parametrize("accumulation", ["float32", "fast"])
@FEW
@given(
    spec=st.sampled_from(SPECS),
    sizes=st.tuples(*[st.sampled_from([8, 9, 16, 31, 40, 65])] * 3),
    dtype=st.sampled_from([bfloat16, bfloat16, *dtypes.NARROW]),
    scaled=st.booleans(),
)
def test_products_are_within_the_bound_of_float32(
    accumulation: str, spec: str, sizes: tuple[int, int, int], dtype: DType, scaled: bool
) -> None:
    """`n u / (1 - n u)` times the sum of magnitudes in float32, and one rounding after that."""
    extents = {**dict(zip("ijk", sizes, strict=True)), "b": 3}
    labels = spec.split(" =>")[0].split("; ")
    random = np.random.default_rng(sum(sizes))
    a, b = (
        random.normal(size=[extents[each] for each in label]).astype(dtype.numpy)
        for label in labels
    )
    with core_settings.overrides(accumulation=accumulation, tune="off"), oc.Session():
        x, y = (oc.tensor(each, dtype=dtype) for each in (a, b))
        # an operand that is computed where it is copied
        product = oc.einsum(spec, x * 2.0 if scaled else x, y)
        context = oc.Context("cpu_c")
        context.compile(oc.train.forward(product))()
        found = context[product].astype(np.float64)
    wide = [each.astype(np.float64) for each in (a * (2 if scaled else 1), b)]
    notation = spec.replace("; ", ",").replace(" => ", "->")
    exact = np.einsum(notation, *wide)
    magnitude = np.einsum(notation, *map(np.abs, wide))
    steps = (extents["j"] + 1) * 2.0**-24
    sums = steps / (1 - steps) * magnitude
    # the smallest numbers of a format have fewer digits
    rounding = np.maximum(2.0**-dtype.significand * (np.abs(exact) + sums), dtype.least / 2)
    assert (np.abs(found - exact) <= sums + rounding).all()


def routine_of(accumulation: str, a: Array, b: Array) -> tuple[oc.Routine, Array]:
    with core_settings.overrides(accumulation=accumulation, tune="off"), oc.Session():
        product = oc.einsum("ij; jk => ik", *(oc.tensor(each, dtype=bfloat16) for each in (a, b)))
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(product))
        routine()
        return routine, context[product].astype(np.float32)


@pytest.fixture(params=processors("cooperlake", "native"))
def arch(request: pytest.FixtureRequest) -> Iterator[str]:
    """Choose a processor that has the instruction, and the one of this machine."""
    with core_settings.overrides(**settings_for(request.param)):
        yield request.param


def test_pairs_are_multiplied_only_where_that_is_allowed(arch: str) -> None:
    """Numbers below 2**-126 count, unless instructions that take them for zero are allowed."""
    a = np.full((48, 48), 2.0**-130, bfloat16.numpy)
    b = np.full((48, 48), 2.0**100, bfloat16.numpy)
    for accumulation in ("exact", "float32"):
        routine, found = routine_of(accumulation, a, b)
        assert "_dot_bfloat16" not in routine.source
        np.testing.assert_array_equal(found, 48 * 2.0**-30)
    routine, found = routine_of("fast", a, b)
    units = subject_named("cpu_c").target.units(DotProduct)
    has_pairs = any(bfloat16 in unit.formats for unit in units)
    assert has_pairs or arch == "native"
    assert ("_dot_bfloat16" in routine.source) == has_pairs
    assert set(found.flat) <= {np.float32(0.0), np.float32(48 * 2.0**-30)}


@pytest.mark.usefixtures("arch")
def test_pairs_round_as_two_fused_products() -> None:
    random = np.random.default_rng(4)
    a, b = (random.normal(size=(40, 40)).astype(bfloat16.numpy) for _ in range(2))
    (_, one), (_, other) = (routine_of(each, a, b) for each in ("float32", "fast"))
    distances = ulp_distances(one.astype(bfloat16.numpy), other.astype(bfloat16.numpy), bfloat16)
    assert max(distances) <= 1


@pytest.mark.parametrize("accumulation", ["exact", "float32", "fast"])
def test_gradients_of_convolutions_are_those_of_float32(accumulation: str) -> None:
    random = np.random.default_rng(2)
    image, kernel = random.integers(-2, 3, (2, 9, 11, 4)), random.integers(-2, 3, (8, 3, 3, 4))
    results = []
    for dtype in (float32, float16):
        with core_settings.overrides(accumulation=accumulation, tune="off"), oc.Session():
            x = oc.tensor(image, dtype=dtype, requires_grad=True)
            w = oc.tensor(kernel, dtype=dtype, requires_grad=True)
            y = oc.einsum("n,1*y<+1*v,1*x<+1*u,c; o,v,u,c => n,y,x,o", x, w)
            loss = oc.einsum("... => 0", y)
            context = oc.Context("cpu_c")
            context.compile(oc.train.grad_update(loss), keep=[y, x.grad, w.grad])()
            results.append([context[each].astype(np.float32) for each in (y, x.grad, w.grad)])
    for wide, narrow in zip(*results, strict=True):
        np.testing.assert_array_equal(wide, narrow)  # integers up to 2048


@pytest.mark.parametrize("arch", processors("x86-64", "x86-64-v3", "x86-64-v4", "native"))
@pytest.mark.parametrize("dtype", dtypes.NARROW, ids=str)
def test_conversions_in_vectors_are_those_of_single_numbers(arch: str, dtype: DType) -> None:
    """Every number of the format, and numbers of float32 beside those half way between two."""
    every = np.arange(2 ** (8 * dtype.nbytes), dtype=f"u{dtype.nbytes}").view(dtype.numpy)
    bits = every.astype(np.float32).view(np.uint32)
    half = np.uint32(1) << np.uint32(23 - dtype.significand)
    beside = [bits + half + np.uint32(each) for each in (0, 1, 2**32 - 1)]
    special = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F7FFFFF, 1, 0x80000001], np.uint32)
    numbers = np.concatenate([*beside, special]).view(np.float32)
    with core_settings.overrides(**settings_for(arch), allow_nan=True), oc.Session():
        x, y = oc.tensor(every, dtype=dtype), oc.tensor(numbers)
        wide, rounded = oc.cast(x, "float32"), oc.cast(y, dtype)
        context = oc.Context("cpu_c")
        context.compile(oc.train.forward(wide) + oc.train.forward(rounded), keep=[wide, rounded])()
        np.testing.assert_array_equal(context[wide], every.astype(np.float32))
        with np.errstate(over="ignore", invalid="ignore"):
            expected = numbers.astype(dtype.numpy)
        np.testing.assert_array_equal(
            context[rounded].astype(np.float32), expected.astype(np.float32)
        )
