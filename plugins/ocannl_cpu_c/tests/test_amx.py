"""Products of tiles in C, by an emulation that gives the bits of the instructions."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings as core_settings
from ocannl_core.codegen.prelude.prelude import closure
from ocannl_core.codegen.text.helper import EMULATED_TILES, read_helpers
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos, Plan
from ocannl_core.ir.kernels.transforms import Schedule
from ocannl_core.ir.loops.nodes import Binary, Unary
from ocannl_core.ir.matrix_units import TileProduct
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float32, round_to
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.schedule.rules.amx_schedules import amx_schedules
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from ocannl_cpu_c import amx_permission, compiler, devices
from ocannl_cpu_c.matrix_units import TILE_HELPERS, TILE_PRODUCTS
from tests.support.example_count import example_count
from tests.support.products import random_products
from tests.support.reductions import in_format
from tests.support.schedules import contraction_schedule, schedule_by_rule

Array = np.ndarray[Any, Any]
FEW = settings(
    max_examples=example_count(4),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def emulation() -> Iterator[None]:
    """Have the compiler emulate tiles on every processor."""
    command = (*compiler.find().command, f"-D{EMULATED_TILES}")
    with core_settings.overrides(cpu_c__cc=shlex.join(command), accumulation="fast", tune="off"):
        yield


def test_tiles_are_emulated_where_the_macro_is_defined() -> None:
    found = read_helpers(TILE_HELPERS)
    for name, helper in found.items():
        assert f"!defined({EMULATED_TILES})" in helper.text, name
        mentioned = {"tile_state"} if re.search(r"\btiles\[|sizeof tiles", helper.text) else set()
        assert mentioned - {name} <= set(closure([name], (TILE_HELPERS,))), name


@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
@FEW
@given(example=random_products(), data=st.data())
def test_tiles_along_any_axes_are_right(
    dtype: DType, example: Example, data: st.DataObject
) -> None:
    """Small integers are exact in float32 in every order of addition."""
    expected = subject_named("interp").run(example.program, example.arrays)
    narrow = in_format(example, dtype)
    count = 0

    def schedule(plan: Plan, target: Target) -> Plan:
        def rule(nest: Nest, nodes: NodeInfos) -> Schedule | None:
            nonlocal count
            found = list(amx_schedules(nest, nodes, target))
            count += len(found)
            if found:
                return data.draw(st.sampled_from(found))
            return contraction_schedule(nest, nodes, target)

        return schedule_by_rule(plan, rule, target)

    with core_settings.overrides(threads=data.draw(st.sampled_from([1, 3]))):
        found = subject_named("cpu_c").run(narrow.program, narrow.arrays, (), schedule)
    for ours, theirs in zip(narrow.program.params, example.program.params, strict=True):
        rounded = expected[theirs].astype(dtype.numpy).astype(np.float32)
        np.testing.assert_array_equal(found[ours].astype(np.float32), rounded)


def flushed(exact: float | Fraction) -> float:
    """Return a number of float32, rounded to nearest, or zero if it is below 2**-126 then."""
    if isinstance(exact, Fraction) and abs(exact) < Fraction(2) ** -126 * (1 - Fraction(2) ** -25):
        return 0.0
    return round_to(exact, float32)


def tile_product(a: Array, b: Array) -> Array:
    """Return the result by the manual of a product of 16 rows of 32 terms and 16 columns."""
    fma = TernaryOp.FMA.value.meaning
    result = np.zeros((16, 16), np.float32)
    left, right = (np.where(abs(each) < 2.0**-126, 0.0, each) for each in (a, b))
    for row, column in product(range(16), range(16)):
        sums = [0.0, 0.0]
        for term in range(32):
            factors = float(left[row, term]), float(right[term, column])
            sums[term % 2] = flushed(fma(*factors, sums[term % 2]))
        result[row, column] = flushed(Fraction(sums[0]) + Fraction(sums[1]))
    return result


@pytest.mark.parametrize("exponents", [(-2, 2), (-66, -60), (-140, 60)], ids=str)
def test_the_emulation_gives_the_bits_that_the_manual_states(exponents: tuple[int, int]) -> None:
    random = np.random.default_rng(5)
    a, b = (
        np.ldexp(random.normal(size=shape), random.integers(*exponents, shape)).astype(
            bfloat16.numpy
        )
        for shape in ((16, 32), (32, 16))
    )
    draft = Draft("tile")
    i, j, k = (fresh_var(name) for name in "ijk")
    left, right = draft.node("a", bfloat16, 16, 32), draft.node("b", bfloat16, 32, 16)
    result = draft.node("c", float32, 16, 16)
    factors = (
        Unary(UnaryOp.IDENTITY, draft.load(*each), float32)
        for each in ((left, i, k), (right, k, j))
    )
    term = Binary(BinaryOp.MUL, *factors, float32)
    body = draft.accumulate(result, i, j, op=BinaryOp.ADD, value=term)
    program = draft.program(loop(i, 16, loop(j, 16, loop(k, 32, body))))

    def schedule(plan: Plan, target: Target) -> Plan:
        return schedule_by_rule(plan, lambda *it: next(amx_schedules(*it, target)), target)

    subject = subject_named("cpu_c")
    assert "tile_multiply_add(" in subject.generate(program, schedule).text
    found = subject.run(program, {left: a, right: b}, (), schedule)[result]
    wide = (each.astype(np.float64) for each in (a, b))
    np.testing.assert_array_equal(found, tile_product(*wide))


def products(a: Array, b: Array, accumulation: str, *, has_tiles: bool) -> Array:
    with core_settings.overrides(accumulation=accumulation, allow_nan=True), oc.Session():
        result = oc.einsum("ij; jk => ik", oc.tensor(a), oc.tensor(b))
        context = oc.Context("cpu_c")
        routine = context.compile(oc.train.forward(result))
        routine()
        schedules = [kernel.schedule for kernel in oc.explain(routine).kernels]
        assert any("tile" in each for each in schedules) == has_tiles
        return context[result]


def scaled(kind: str, random: np.random.Generator) -> tuple[Array, Array]:
    a, b = random.normal(size=(256, 320)), random.normal(size=(320, 256))
    match kind:
        case "positive":
            return abs(a), abs(b)
        case "terms apart":
            scale = 10.0 ** random.uniform(-12, 12, 320)
            return a * scale, b / scale[:, None]
        case "numbers apart":
            return np.exp(8 * a), np.exp(8 * b)
        case "large":
            return a * 2.0**110, b * 2.0**-90
        case "small":
            return a * 2.0**-95, b * 2.0**30
        case "half way":  # the parts are as large as they can be
            return np.full_like(a, 1 + 2.0**-8 - 2.0**-16), np.full_like(b, 1 + 2.0**-8 - 2.0**-16)
        case _:
            return a, b


@pytest.mark.parametrize(
    "kind", ["normal", "positive", "terms apart", "numbers apart", "large", "small", "half way"]
)
def test_parts_are_as_accurate_as_float32(kind: str) -> None:
    """Within the bound of any order, plus 2**-24 for products that are left out; and not further
    from the exact values than sums of fused products by two units.
    """
    a, b = (each.astype(np.float32) for each in scaled(kind, np.random.default_rng(3)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    magnitude = abs(a.astype(np.float64)) @ abs(b.astype(np.float64))
    unit = 2.0**-24 * magnitude
    ours, theirs = (
        abs(products(a, b, each, has_tiles=each == "fast") - exact) / unit
        for each in ("fast", "float32")
    )
    steps = 320 + 3
    assert ours.max() <= steps / (1 - steps * 2.0**-24)
    assert ours.max() <= theirs.max() + 2


def test_parts_below_the_normal_numbers_count_as_zero() -> None:
    """That is the last part of numbers below 2**-103, and the last two of those below 2**-111."""
    x = 1 + 2.0**-9 + 2.0**-20
    for exponent, parts in ((-100, x), (-108, 1 + 2.0**-9), (-120, 1.0), (-130, 0.0)):
        a, b = np.full((256, 256), x * 2.0**exponent), np.full((256, 256), 2.0**100)
        found = products(a.astype(np.float32), b.astype(np.float32), "fast", has_tiles=True)
        np.testing.assert_array_equal(found, np.float32(256 * parts * 2.0 ** (exponent + 100)))


def test_numbers_that_parts_do_not_hold_are_never_finite_results() -> None:
    a, b = np.ones((256, 256), np.float32), np.full((256, 256), 0.5, np.float32)
    a[:4, 0] = [np.inf, np.nan, 3.4e38, 3.38e38]
    found = products(a, b, "fast", has_tiles=True)
    assert np.isnan(found[:3]).all()  # the third one rounds to infinity in bfloat16
    np.testing.assert_array_equal(found[3], np.float32(1.69e38))
    np.testing.assert_array_equal(found[4:], 128.0)


SPECS = {
    "ij; jk => ik": ((250, 200), (200, 300)),
    "ij; kj => ik": ((300, 260), (250, 260)),
    "ji; jk => ik": ((1000, 150), (1000, 200)),
    "bij; bjk => bik": ((3, 250, 200), (3, 200, 240)),
    "jbi; kjb => bik": ((200, 3, 250), (240, 200, 3)),
    "n,1*y<+1*v,1*x<+1*u,c; o,v,u,c => n,y,x,o": ((1, 34, 35, 64), (128, 3, 3, 64)),
    "n,2*y<+1*v,2*x<+1*u,c; o,v,u,c => n,y,x,o": ((1, 65, 65, 64), (128, 3, 3, 64)),
}


@pytest.mark.parametrize("unit", TILE_PRODUCTS, ids=lambda unit: str(unit.dtype))
@pytest.mark.parametrize("spec", SPECS)
def test_large_products_are_chosen_to_run_in_tiles(spec: str, unit: TileProduct) -> None:
    random = np.random.default_rng(1)
    arrays = [random.integers(-1, 2, shape) for shape in SPECS[spec]]
    results = []
    for accumulation in ("float32", "fast"):
        with core_settings.overrides(accumulation=accumulation, threads=3), oc.Session():
            tensors = [oc.tensor(each, dtype=unit.dtype) for each in arrays]
            result = oc.relu(oc.einsum(spec, *tensors) + 1.0)
            context = oc.Context("cpu_c")
            routine = context.compile(oc.train.forward(result))
            routine()
            results.append(context[result].astype(np.float32))
            schedules = [kernel.schedule for kernel in oc.explain(routine).kernels]
            assert any("; tile " in each for each in schedules) == (accumulation == "fast")
            assert (f"{unit.name}(" in routine.source) == (accumulation == "fast")
    np.testing.assert_array_equal(*results)


def test_small_products_do_not_pay() -> None:
    a, b = np.ones((32, 32), np.float32), np.ones((32, 32), np.float32)
    products(a, b, "fast", has_tiles=False)


def test_a_network_learns_the_same() -> None:
    random = np.random.default_rng(0)
    cells = random.standard_normal((256, 300)).astype(np.float32)
    losses: list[list[float]] = []
    for accumulation in ("float32", "fast"):
        with core_settings.overrides(accumulation=accumulation), oc.Session(seed=1):
            x = oc.tensor(cells, batch_axes=1)
            hidden = oc.tanh(oc.param("w", output=[256]) @ x + oc.param("b", output=[256]))
            y = oc.param("v", output=[200]) @ hidden
            loss = oc.einsum("...|... => 0", y * y) / 1e4
            context = oc.Context("cpu_c")
            update = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=1.0)
            step = context.compile(update)
            context.init_params(loss)
            assert ("tile_multiply_add(" in step.source) == (accumulation == "fast")
            losses.append([])
            for _ in range(5):
                step()
                losses[-1].append(context.item(loss))
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_code_for_processors_with_tiles_is_their_instructions(tmp_path: Path) -> None:
    command = compiler.find().command[0]
    source, assembly = tmp_path / "kernels.c", tmp_path / "kernels.s"
    with oc.Session():
        x, y = (oc.tensor(np.ones((256, 256)), dtype=bfloat16) for _ in range(2))
        product = oc.einsum("ij; jk => ik", x, y)
        source.write_text(oc.Context("cpu_c").compile(oc.train.forward(product)).source)
    flags = ("-march=sapphirerapids", "-std=gnu11", "-O1", "-w", "-S", "-o", str(assembly))
    made = subprocess.run([command, *flags, str(source)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip("the compiler does not know processors with tiles")
    found = re.findall(
        r"tdpbf16ps|tileload\w+|tilestored|tilezero|\w+tilecfg|tilerelease", assembly.read_text()
    )
    counts = Counter(found)
    assert counts["tdpbf16ps"] == counts["tileloadd"] == counts["tilezero"] == 4
    assert (counts["tilestored"], counts["ldtilecfg"], counts["tilerelease"]) == (4, 1, 1)


def test_the_target_states_the_presence_of_tiles() -> None:
    emulated = devices.report()
    assert emulated.details[2].endswith(", emulated tiles of bfloat16")
    assert emulated.targets[0].units(TileProduct) == TILE_PRODUCTS
    with core_settings.overrides(cpu_c__cc=compiler.find().command[0]):
        own = devices.report()
    refusal = amx_permission.request_tiles()
    has_tiles = own.targets[0].units(TileProduct) == TILE_PRODUCTS
    assert has_tiles == own.details[2].endswith(", tiles of bfloat16")
    assert not (has_tiles and refusal)
