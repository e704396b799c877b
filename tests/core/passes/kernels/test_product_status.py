"""Status of products: the unit that computes each, and the reasons against faster ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ocannl_core as oc
from ocannl_core.base import settings as core_settings
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.kernels.product_status import (
    Obstacle,
    ProductStatus,
    ProductUnit,
    product_counts,
    unit_of,
)
from ocannl_core.ir.kernels.transforms import parse_schedule
from ocannl_core.ir.matrix_units import AsynchronousProduct, Digit, Fragment, MatrixInstruction
from ocannl_core.ir.numbers.dtypes import bfloat16
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.testing.parser.loops import parse
from tests.support import matrix_units

ASYNCHRONOUS, MATRIX = ProductUnit.ASYNCHRONOUS_PRODUCTS, ProductUnit.MATRIX_INSTRUCTIONS
TILES, SCALAR = ProductUnit.REGISTER_TILES, ProductUnit.SCALAR
EIGHTS = Digit(8, rows=1), Digit(4, columns=2)
SUMS = Fragment(EIGHTS, (Digit(2, rows=8), Digit(2, columns=1)))
WIDE = MatrixInstruction(
    "wide",
    bfloat16,
    Fragment(EIGHTS, (Digit(2, columns=8), Digit(2, rows=8), Digit(2, columns=1))),
    Fragment((Digit(8, columns=1), Digit(4, rows=2)), (Digit(2, rows=8), Digit(2, rows=1))),
    SUMS,
)
RING = AsynchronousProduct("ring", bfloat16, SUMS, (64, 128, 256), 16, 128)
BLOCKS = ThreadBlocks(1024, 256, 48 << 10, 255, 32, 4, asynchronous_copies=(16, 8, 4))
DEVICE = Target("warps", thread_blocks=BLOCKS, has_fma=True, matrix_units=(WIDE,))
PLAIN = replace(DEVICE, matrix_units=())
PROCESSOR = Target(
    "wide", vector_bytes=32, vector_registers=16, has_fma=True, cache_bytes=(1 << 15, 1 << 20)
)
AMX = replace(PROCESSOR, vector_bytes=64, vector_registers=32, matrix_units=matrix_units.TILES)


def product(rows: int, terms: int, columns: int, dtype: str = "float32") -> str:
    return f"""routine test(a: {dtype}[{rows}, {terms}], b: {dtype}[{terms}, {columns}], c: {dtype}[{rows}, {columns}]):
    for i in range({rows}):
        for j in range({columns}):
            for k in range({terms}):
                c[i, j] += a[i, k] * b[k, j]"""


def statuses(
    text: str, target: Target, accumulation: str = "float32", **others: object
) -> tuple[ProductStatus, ...]:
    with core_settings.overrides(accumulation=accumulation, **others):
        return plan_kernels(parse(text), target).plan().products


def only(
    text: str, target: Target, accumulation: str = "float32", **others: object
) -> ProductStatus:
    (found,) = statuses(text, target, accumulation, **others)
    assert found.result.name == "c"
    return found


@pytest.mark.parametrize(
    ("text", "target", "accumulation", "unit", "refusals"),
    [
        (product(64, 64, 64, "bfloat16"), DEVICE, "float32", MATRIX, {}),
        (product(64, 64, 64), DEVICE, "float32", TILES, {MATRIX: Obstacle.FORMAT}),
        (product(64, 64, 64), DEVICE, "fast", TILES, {MATRIX: Obstacle.FORMAT}),
        (product(64, 64, 64, "bfloat16"), PLAIN, "float32", TILES, {MATRIX: Obstacle.ABSENT}),
        (
            product(64, 64, 64, "bfloat16"),
            DEVICE,
            "exact",
            SCALAR,
            {MATRIX: Obstacle.ACCUMULATION, TILES: Obstacle.ORDER},
        ),
        (
            product(4, 64, 64, "bfloat16"),
            DEVICE,
            "float32",
            SCALAR,
            {MATRIX: Obstacle.SIZE, TILES: Obstacle.SIZE},
        ),
        (
            product(64, 64, 64, "bfloat16"),
            replace(DEVICE, thread_blocks=replace(BLOCKS, local_bytes=2 << 10, registers=8)),
            "float32",
            SCALAR,
            {MATRIX: Obstacle.RESOURCES, TILES: Obstacle.RESOURCES},
        ),
        (product(64, 64, 64), PROCESSOR, "float32", TILES, {MATRIX: Obstacle.ABSENT}),
        (product(256, 256, 256), AMX, "float32", TILES, {MATRIX: Obstacle.ACCUMULATION}),
        (product(256, 256, 256, "bfloat16"), AMX, "fast", MATRIX, {}),
        (product(64, 64, 1, "bfloat16"), AMX, "fast", TILES, {MATRIX: Obstacle.AXES}),
        (product(2, 40, 3, "bfloat16"), AMX, "fast", TILES, {MATRIX: Obstacle.COST}),
        (
            product(2, 2, 2),
            PROCESSOR,
            "float32",
            SCALAR,
            {MATRIX: Obstacle.ABSENT, TILES: Obstacle.SIZE},
        ),
    ],
)
def test_each_obstacle_is_the_reason_of_the_decision(
    text: str,
    target: Target,
    accumulation: str,
    unit: ProductUnit,
    refusals: dict[ProductUnit, Obstacle],
) -> None:
    found = only(text, target, accumulation)
    assert (found.unit, dict(found.refusals)) == (unit, refusals)


def test_a_product_of_a_matrix_and_a_vector_has_no_rows_and_columns() -> None:
    text = """routine test(a: bfloat16[64, 64], b: bfloat16[64], c: bfloat16[64]):
    for i in range(64):
        for k in range(64):
            c[i] += a[i, k] * b[k]"""
    found = only(text, DEVICE)
    assert found.refusals == ((MATRIX, Obstacle.AXES), (TILES, Obstacle.AXES))


def test_a_factor_that_is_gathered_stays_out_of_tiles() -> None:
    text = """routine test(p: int32[64], a: bfloat16[64, 64], b: bfloat16[64, 64], c: bfloat16[64, 64]):
    for i in range(64):
        for j in range(64):
            for k in range(64):
                c[i, j] += gather(a[p[i], k], 0.0) * b[k, j]"""
    found = only(text, DEVICE)
    assert found.refusals == ((MATRIX, Obstacle.TERM), (TILES, Obstacle.TERM))


@pytest.mark.parametrize(
    ("size", "setting", "unit", "why"),
    [
        (256, True, ASYNCHRONOUS, None),
        (256, False, MATRIX, Obstacle.SETTING),
        (252, True, MATRIX, Obstacle.ALIGNMENT),
        (48, True, MATRIX, Obstacle.SIZE),
    ],
)
def test_asynchronous_products_need_a_setting_sizes_and_aligned_rows(
    size: int, setting: bool, unit: ProductUnit, why: Obstacle | None
) -> None:
    blocks = replace(BLOCKS, local_bytes=227 << 10)
    target = replace(DEVICE, thread_blocks=blocks, matrix_units=(WIDE, RING))
    found = only(product(size, size, size, "bfloat16"), target, asynchronous_products=setting)
    assert (found.unit, found.obstacle) == (unit, why)


def test_sums_that_are_no_products_of_two_factors_have_no_status() -> None:
    text = """routine test(a: float32[64, 64], c: float32[64], d: float32[64]):
    for i in range(64):
        for k in range(64):
            c[i] += a[i, k] * a[i, k]
    for i in range(64):
        for k in range(64):
            d[i] += a[i, k]"""
    for target in (DEVICE, PROCESSOR):
        assert statuses(text, target) == ()


def test_equal_products_have_a_status_each_with_their_own_results() -> None:
    text = """routine test(a: float32[64, 64], b: float32[64, 64], c: float32[64, 64], d: float32[64, 64]):
    for i in range(64):
        for j in range(64):
            for k in range(64):
                c[i, j] += a[i, k] * b[k, j]
    for i in range(64):
        for j in range(64):
            for k in range(64):
                d[i, j] += b[i, k] * c[k, j]"""
    for target in (DEVICE, PROCESSOR):
        found = statuses(text, target)
        assert [each.result.name for each in found] == ["c", "d"]
        assert product_counts(found) == {TILES: 2}


def test_launches_that_are_merged_keep_the_products_of_their_kernels() -> None:
    text = """routine test(a: bfloat16[32, 32], b: bfloat16[32, 32], c: bfloat16[32, 32], d: bfloat16[32, 4], e: bfloat16[32, 4]):
    for i in range(32):
        for j in range(32):
            for k in range(32):
                c[i, j] += a[i, k] * b[k, j]
    for i in range(32):
        for j in range(4):
            for k in range(32):
                e[i, j] += a[i, k] * d[k, j]"""
    plan = plan_kernels(parse(text), PLAIN).plan()
    counts = [len(each.products) for each in plan.kernels if isinstance(each, Kernel)]
    assert sum(counts) == 2
    assert {each.result.name: each.unit for each in plan.products} == {"c": TILES, "e": SCALAR}


def test_the_unit_of_a_schedule_follows_its_transforms() -> None:
    assert unit_of(None) is SCALAR
    assert unit_of(parse_schedule("split j 8; vectorize j1")) is TILES
    assert unit_of(parse_schedule("block j; vectorize j")) is SCALAR


def test_explain_lists_products_with_their_units_and_reasons() -> None:
    x, w = oc.placeholder("x", batch=[64], output=[64]), oc.param("w", input=[64], output=[64])
    y = w @ x
    routine = oc.Context("cpu_c").compile(oc.train.forward(y))
    explained = oc.explain(routine)
    (found,) = explained.products
    assert found.unit is TILES
    assert found.result is y.node
    assert explained.products == routine.plan.products
    assert "products: 1 by register tiles" in str(explained)
    assert f"     product: {found}" in str(explained).splitlines()


def test_results_of_equal_kernels_are_their_own_also_where_no_kernel_stores_them() -> None:
    x = oc.placeholder("x", output=[64, 16])
    y = x
    for layer in range(2):
        scores = oc.einsum("q,d; k,d => q,k", y, y, label=f"scores{layer}")
        y = oc.einsum("q,k; k,d => q,d", oc.softmax(scores), y, label=f"out{layer}")
    program = oc.Context("interp").compile(oc.train.forward(y))._build.program.loops
    for target in (PLAIN, PROCESSOR):
        found = [each.result.name for each in plan_kernels(program, target).plan().products]
        assert found == ["scores0", "out0", "scores1", "out1"]
