"""Random numbers: the same bits everywhere, the distributions that they claim, no dependence.

Seeds are fixed, so that every statistical test has one outcome; its bounds are those that a perfect
generator misses once in some thousand seeds.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.threefry import number_of, numbers_of, threefry4x32, word_of
from ocannl_core.tensor.graph.definitions import ancestors
from ocannl_core.testing.compare import assert_same, ulp_distances

Array = np.ndarray[Any, Any]
NUMBERS = [dtype for dtype in dtypes.ALL if dtype is not dtypes.uint4x32]
SEED = 20
FAST = "cpu_c"


def cells(target: str, make: Callable[[], oc.Tensor], *sizes: int, seed: int = SEED) -> Array:
    """Return random numbers of a shape, from a session of their own."""
    with oc.Session(seed=seed):
        return computed(target, make(), *sizes)


def computed(target: str, numbers: oc.Tensor, *sizes: int) -> Array:
    declared = oc.declare("result", batch=[], input=[], output=sizes, dtype=numbers.dtype)

    @oc.cd
    def fill() -> None:
        declared[:] = numbers

    ctx = oc.Context(target)
    ctx.compile(fill())()
    return ctx[declared]


def key(seed: int, identity: int = 0, rounds: int = 20) -> tuple[int, int, int, int]:
    return threefry4x32((identity, 0, 0, 0), (seed, 0, 0, 0), rounds)


@pytest.mark.parametrize("dtype", [d for d in NUMBERS if d.nbytes > 1 or not d.is_float], ids=str)
def test_uniform_numbers_are_hashed_offsets(target: str, dtype: DType) -> None:
    for row in (5, 37):  # shorter than a vector register, and with a remainder
        found = cells(target, lambda: oc.uniform(dtype=dtype), 3, row)
        words = [threefry4x32(key(SEED), word_of(i, dtypes.uint32)) for i in range(3 * row)]
        expected = np.array([number_of(word, dtype) for word in words], dtype.numpy)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_packed_numbers_are_all_that_a_word_holds(target: str, dtype: DType) -> None:
    length = 16 // dtype.nbytes
    found = cells(
        target,
        lambda: oc.random.uniform_of(oc.random.words(), packed=True, dtype=dtype),
        3,
        2 * length,
    )
    words = [threefry4x32(key(SEED), word_of(i, dtypes.uint32)) for i in range(6)]
    numbers = [number for word in words for number in numbers_of(word, dtype)]
    expected = np.array(numbers, dtype.numpy).reshape(3, -1)
    assert_same(found, expected, dtype)  # an 8-bit float may be a NaN, with any payload


def test_uniform_short_floats_are_numbers(target: str) -> None:
    for packed in (False, True):
        found = cells(target, lambda p=packed: oc.uniform(dtype="float8_e5m2", packed=p), 64)
        numbers = found.astype(np.float32)
        assert np.all((numbers >= 0) & (numbers <= 1))
        assert len(set(numbers.tolist())) > 10


def test_normal_numbers_agree_within_two_units(target: str) -> None:
    for dtype in (dtypes.float32, dtypes.float64, dtypes.bfloat16):
        found = cells(target, lambda d=dtype: oc.normal(dtype=d), 500)
        reference = cells("interp", lambda d=dtype: oc.normal(dtype=d), 500)
        assert max(ulp_distances(found, reference, dtype)) <= 2


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_normal_numbers_are_made_of_two_uniform_ones_by_box_and_muller(dtype: DType) -> None:
    found = cells("interp", lambda: oc.normal(dtype=dtype), 50).astype(np.float64)
    radius, angle = (
        np.array(
            [
                number_of(threefry4x32(key(SEED, identity), word_of(i, dtypes.uint32)), dtype)
                for i in range(50)
            ]
        )
        for identity in identities()
    )
    expected = np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def identities() -> list[int]:
    """Return the creation ordinals of the offsets behind the two parts of a normal number."""
    with oc.Session(seed=SEED):
        return [each.id for each in ancestors([oc.normal()]) if each.label == ("offsets",)]


def test_normal_numbers_reach_far() -> None:
    sample = cells(FAST, oc.normal, MANY)
    assert np.abs(sample).max() > 3.9


PROGRAM = """
import sys, ocannl_core as oc
with oc.Session(seed=5):
    x = oc.placeholder("x", output=[3])
    y = oc.param("w", output=[4]) @ x + oc.param("b", init=oc.kaiming(distribution="normal"))
    ctx = oc.Context("interp")
    ctx.compile(oc.train.grad_update(y))
    ctx.init_params(y)
    for p in sorted(y.params, key=lambda p: p.id):
        sys.stdout.write(ctx[p].tobytes().hex() + " ")
"""


def test_processes_agree() -> None:
    outputs = set()
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "OCANNL_SEED": salt}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 2


def first_weights(target: str) -> Array:
    x = oc.placeholder("x", output=[4])
    w = oc.param("w", output=[3])
    y = w @ x
    ctx = oc.Context(target)
    ctx.compile(oc.train.forward(y))
    ctx.init_params(y)
    return ctx[w]


def test_a_rebuilt_model_has_the_same_weights(target: str) -> None:
    with oc.Session():
        oc.reset(7)
        first = first_weights(target)
        later = first_weights(target)
        oc.reset(7)
        again = first_weights(target)
        oc.reset(8)
        other = first_weights(target)
    with oc.Session(seed=7):
        fresh = first_weights(target)
    assert first.tobytes() == again.tobytes() == fresh.tobytes()
    assert not np.any(first == later)
    assert not np.any(first == other)


def test_initial_values_of_equal_layers_are_compiled_once() -> None:
    def kernels(layers: int) -> set[str]:
        with oc.Session(seed=layers):
            x = oc.placeholder("x", output=[33])
            for _ in range(layers):
                x = oc.nn.dense(x, output=[33])
            ctx = oc.Context(FAST)
            routine = ctx.compile(sum_of(each.initialization() for each in x.parameters()))
            routine()
            weights = [ctx[each] for each in x.parameters() if each.shape.size > 33]
            assert len({each.tobytes() for each in weights}) == layers
            return set(re.findall(r"^void (k_\w+)\(", routine.source, re.MULTILINE))

    assert kernels(4) == kernels(1)


def sum_of(codes: Iterable[Any]) -> Any:
    return functools.reduce(operator.add, codes)


def test_a_later_routine_computes_the_same_random_numbers(target: str) -> None:
    with oc.Session(seed=SEED):
        drawn = oc.uniform()
        x = oc.tensor([0.25, 0.5, 0.125])
        product, total = x * drawn, x + drawn
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(product))()
        ctx.compile(oc.train.forward(total))()
        numbers = cells(target, oc.uniform, 3)
        assert np.array_equal(ctx[total], np.float32([0.25, 0.5, 0.125]) + numbers)
        assert np.array_equal(ctx[product], np.float32([0.25, 0.5, 0.125]) * numbers)


def test_code_compiled_later_reads_the_new_seed(target: str) -> None:
    with oc.Session(seed=1) as session:
        w = oc.param("w", output=[3], init=lambda: oc.uniform())
        ctx = oc.Context(target)
        ctx.init_params(w)
        first = ctx[w]
        session.seed = SEED
        ctx.init_params(w, reinitialize=True)
        assert np.array_equal(ctx[w], cells(target, oc.uniform, 3))
        assert not np.array_equal(ctx[w], first)


def test_a_context_on_the_same_device_links_random_code(target: str) -> None:
    with oc.Session(seed=SEED):
        w = oc.param("w", output=[3], init=lambda: oc.uniform())
        ctx, other = oc.Context(target), oc.Context(target)
        routine = ctx.compile(w.initialization())
        routine()
        other.link(routine)()
        assert np.array_equal(ctx[w], other[w])


def test_the_seed_comes_from_the_settings_and_can_be_set(target: str) -> None:
    with settings.overrides(seed=7), oc.Session():
        configured = first_weights(target)
    with oc.Session() as session:
        session.seed = 7
        assigned = first_weights(target)
    with oc.Session(seed=7):
        stated = first_weights(target)
    assert configured.tobytes() == assigned.tobytes() == stated.tobytes()


def test_numbers_and_their_formats_make_words(target: str) -> None:
    values = {"int64": 5, "int32": -2, "float32": 0.5, "bfloat16": 3.0, "uint8": 7}
    for dtype, value in values.items():
        made = cells(target, lambda v=value, d=dtype: oc.random.word(oc.number(v, dtype=d)), 2)
        expected = word_of(value, dtypes.dtype_of(dtype))
        assert made.tolist() == [expected, expected]
    assert cells(target, lambda: oc.random.word(-1), 1).tolist() == [(2**32 - 1, 2**32 - 1, 0, 0)]


def test_hashes_are_computed_directly(target: str) -> None:
    found = cells(target, lambda: oc.random.threefry4x32(oc.random.word(3), oc.random.word(4)), 1)
    assert found.tolist() == [threefry4x32((3, 0, 0, 0), (4, 0, 0, 0))]


def test_two_recorded_functions_can_both_make_random_numbers(target: str) -> None:
    with oc.Session(seed=SEED):
        one, other = computed(target, oc.uniform(), 5), computed(target, oc.uniform(), 5)
    assert not np.any(one == other)


def test_twelve_rounds_are_a_setting(target: str) -> None:
    with settings.overrides(threefry_rounds=12):
        found = cells(target, oc.uniform, 6)
    hashed = key(SEED, rounds=12)
    words = [threefry4x32(hashed, word_of(i, dtypes.uint32), 12) for i in range(6)]
    assert found.tolist() == [number_of(word) for word in words]


def test_a_counter_is_hashed_in_before_the_offset(target: str) -> None:
    found = cells(target, lambda: oc.uniform(counter=-3), 4)
    with_counter = threefry4x32(key(SEED), word_of(-3, dtypes.int64))
    words = [threefry4x32(with_counter, word_of(i, dtypes.uint32)) for i in range(4)]
    assert found.tolist() == [number_of(word) for word in words]


def test_a_static_index_gives_other_numbers_in_every_call(target: str) -> None:
    with oc.Session(seed=SEED):
        step = oc.static_index("step")
        noise = oc.arange(5) * 0.0 + oc.uniform(counter=step, dtype="float32")
        ctx = oc.Context(target)
        routine = ctx.compile(oc.train.forward(noise), bindings=[step])
        runs = []
        for i in (0, 1, 0):
            routine(step=i)
            runs.append(ctx[noise])
    assert runs[0].tobytes() == runs[2].tobytes()
    assert not np.any(runs[0] == runs[1])


def test_a_tensor_of_counters_gives_every_position_numbers_of_its_own(target: str) -> None:
    def make() -> oc.Tensor:
        counters = oc.tensor(np.array([4, 5, 4]), batch_axes=1)
        noise: oc.Tensor = oc.tensor(np.zeros((3, 6)), batch_axes=1) + oc.uniform(counter=counters)
        return noise

    with oc.Session(seed=SEED):
        noise = make()
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(noise))()
        found = ctx[noise]
    assert len(set(found.ravel().tolist())) == 18  # offsets differ where counters do not


def test_other_counters_are_refused() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="an integer, a static index or a tensor"):
        oc.uniform(counter=1.5)  # type: ignore[arg-type]


def test_packed_numbers_need_a_whole_number_of_words() -> None:
    with oc.Session():
        code = oc.train.forward(oc.tensor(np.zeros((3, 3))) + oc.uniform(packed=True))
        with pytest.raises(oc.ShapeError) as error:
            code.resolve()
    assert "9 cells in place of 4" in error.value.found
    assert "4 numbers of each random word of uniform" in error.value.where


@pytest.mark.parametrize("sizes", [(), (1,), (2, 3, 4)], ids=str)
def test_pointwise_numbers_fit_every_shape(target: str, sizes: tuple[int, ...]) -> None:
    assert cells(target, oc.uniform, *sizes).shape == sizes


def test_packed_numbers_fill_any_kinds_of_axes(target: str) -> None:
    with oc.Session(seed=SEED):
        x = oc.tensor(np.zeros((3, 2, 8), np.float32), batch_axes=1, input_axes=1)
        y = x + oc.uniform(packed=True)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(y))()
        found = ctx[y]
    identity = 1  # after the literal
    words = [threefry4x32(key(SEED, identity), word_of(i, dtypes.uint32)) for i in range(12)]
    numbers = [number for word in words for number in numbers_of(word, dtypes.float32)]
    # in the order of the buffer: batch, output, input
    assert found.shape == (3, 2, 8)
    assert found.ravel().tolist() == numbers


@pytest.mark.parametrize(
    "dtype", [dtypes.float64, dtypes.bfloat16, dtypes.float16, dtypes.float32], ids=str
)
def test_packed_numbers_have_the_format_of_their_use(target: str, dtype: DType) -> None:
    with oc.Session(seed=SEED):
        noise = oc.uniform(packed=True)
        y = oc.tensor(np.zeros(16), dtype=dtype) + noise
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(y), keep=[y])()
        assert noise.dtype is y.dtype is dtype
        found = ctx[y]
    per_word = 16 // dtype.nbytes
    words = [threefry4x32(key(SEED, 0), word_of(i, dtypes.uint32)) for i in range(16 // per_word)]
    numbers = [number for word in words for number in numbers_of(word, dtype)]
    assert found.astype(np.float64).tolist() == numbers


def test_packed_numbers_take_the_widest_format_before_their_shape_is_read() -> None:
    with oc.Session():
        noise = oc.uniform(packed=True)
        _ = oc.tensor(np.zeros(8), dtype="bfloat16") + noise
        wide = oc.tensor(np.zeros(8), dtype="float32") * noise
        assert wide.info.dims == noise.info.dims == (8,)
        assert noise.dtype is oc.float32
        assert oc.uniform(packed=True).info.dims == (4,)  # one word of the session's default format


MANY = 40_000


def distance_from_uniform(sample: Array) -> float:
    """Return the statistic of Kolmogorov and Smirnov times the root of the number of cells."""
    ordered = np.sort(sample.ravel().astype(np.float64))
    steps = np.arange(1, ordered.size + 1) / ordered.size
    return float(max(np.max(steps - ordered), np.max(ordered - steps + 1 / ordered.size))) * (
        math.sqrt(ordered.size)
    )


def normal_distribution(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in x.ravel()])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_numbers_are_uniform(packed: bool, dtype: str) -> None:
    sample = cells(FAST, lambda: oc.uniform(packed=packed, dtype=dtype), MANY)
    assert sample.min() >= 0
    assert sample.max() < 1
    assert abs(sample.mean() - 0.5) * math.sqrt(12 * MANY) < 3.3
    assert sample.var() == pytest.approx(1 / 12, rel=0.02)
    assert distance_from_uniform(sample) < 1.95  # 0.001 of perfect generators are above


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_uniform_numbers_of_short_formats_are_uniform(dtype: str) -> None:
    sample = cells(FAST, lambda: oc.uniform(dtype=dtype), MANY).astype(np.float64)
    assert abs(sample.mean() - 0.5) * math.sqrt(12 * MANY) < 3.3
    assert sample.var() == pytest.approx(1 / 12, rel=0.02)


def test_every_byte_is_equally_likely() -> None:
    sample = cells(FAST, lambda: oc.uniform(packed=True, dtype="uint8"), MANY)
    counts = np.bincount(sample, minlength=256)
    chi_square = float(np.sum((counts - MANY / 256) ** 2) / (MANY / 256))
    assert 185 < chi_square < 332  # 255 degrees of freedom, 0.0005 on either side


def test_every_bit_of_a_word_is_fair() -> None:
    sample = cells(FAST, lambda: oc.uniform(packed=True, dtype="uint32"), MANY)
    bits = (sample[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    deviations = (bits.mean(axis=0) - 0.5) * 2 * math.sqrt(MANY)
    assert np.max(np.abs(deviations)) < 4.2


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers_are_normal(packed: bool, dtype: str) -> None:
    sample = cells(FAST, lambda: oc.normal(packed=packed, dtype=dtype), MANY).astype(np.float64)
    assert abs(sample.mean()) * math.sqrt(MANY) < 3.3
    assert sample.var() == pytest.approx(1.0, rel=0.025)
    assert abs((sample**3).mean()) < 0.05
    assert (sample**4).mean() == pytest.approx(3.0, rel=0.05)
    assert distance_from_uniform(normal_distribution(sample)) < 1.95


def correlation(one: Array, other: Array) -> float:
    """Return the correlation in standard deviations of that of independent samples."""
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1]) * math.sqrt(one.size)


def test_neighboring_cells_are_independent() -> None:
    for packed in (False, True):
        sample = cells(FAST, lambda p=packed: oc.uniform(packed=p), MANY)
        for distance in (1, 2, 3, 4, 7, 64, 1024):
            assert abs(correlation(sample[:-distance], sample[distance:])) < 3.6
        pairs = np.floor(sample.reshape(-1, 2) * 16).astype(int)
        counts = np.bincount(pairs[:, 0] * 16 + pairs[:, 1], minlength=256)
        expected = MANY / 2 / 256
        assert 185 < float(np.sum((counts - expected) ** 2) / expected) < 332


def test_tensors_and_seeds_are_independent() -> None:
    with oc.Session(seed=SEED):
        samples = [computed(FAST, oc.uniform(), MANY) for _ in range(4)]
    samples += [cells(FAST, oc.uniform, MANY, seed=SEED + i) for i in (1, 2)]
    samples += [cells(FAST, lambda i=i: oc.uniform(counter=i), MANY) for i in (0, 1)]
    for i, one in enumerate(samples):
        for other in samples[:i]:
            assert abs(correlation(one, other)) < 3.9
            assert np.mean(one == other) < 1e-4


def weights(
    target: str, init: Callable[[], oc.Tensor] | None, dtype: str | None = None, outputs: int = 10
) -> Array:
    """Return the initial cells of a parameter of 200 input and ten times as many output cells."""
    with oc.Session(seed=SEED):
        w = oc.param("w", output=[outputs, 10], init=init() if init else None, dtype=dtype)
        x = oc.tensor(np.ones((20, 10)))
        y = oc.matmul(w, x)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(y))
        ctx.init_params(y)
        assert str(w.shape) == f"20,10->{outputs},10"
        return ctx[w].astype(np.float64)


DEVIATIONS: dict[str, tuple[Callable[[], oc.Tensor] | None, float]] = {
    "default": (None, 1 / math.sqrt(200)),
    "kaiming": (oc.kaiming, math.sqrt(2 / 200)),
    "kaiming of outputs": (lambda: oc.kaiming(mode="fan_out"), math.sqrt(2 / 100)),
    "kaiming with a gain": (lambda: oc.kaiming(gain=1.0), math.sqrt(1 / 200)),
    "kaiming, normal": (lambda: oc.kaiming(distribution="normal"), math.sqrt(2 / 200)),
    "xavier": (oc.xavier, math.sqrt(2 / 300)),
    "xavier with a gain": (lambda: oc.xavier(gain=3.0), 3 * math.sqrt(2 / 300)),
    "xavier, normal": (lambda: oc.xavier(distribution="normal"), math.sqrt(2 / 300)),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_initializers_spread_with_the_sizes_that_inference_finds(name: str) -> None:
    init, deviation = DEVIATIONS[name]
    found = weights(FAST, init)
    assert found.std() == pytest.approx(deviation, rel=0.02)
    assert abs(found.mean()) < 4 * deviation / math.sqrt(found.size)
    if "normal" not in name:
        assert np.abs(found).max() <= deviation * math.sqrt(3) * (1 + 1e-6)
        assert np.abs(found).max() > deviation * math.sqrt(3) * 0.99


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "float8_e5m2"])
def test_initializers_give_the_same_bits_everywhere(target: str, dtype: str) -> None:
    for init in (None, oc.kaiming, oc.uniform):
        found, reference = (weights(each, init, dtype, 1) for each in (target, "interp"))
        assert found.tobytes() == reference.tobytes()
        assert np.all(np.isfinite(found))


def test_without_input_axes_the_default_range_is_a_quarter(target: str) -> None:
    with oc.Session(seed=SEED):
        b = oc.param("b", output=[500])
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(b * 1.0))
        ctx.init_params(b)
        found = ctx[b]
    assert -0.25 <= found.min() < -0.24
    assert 0.24 < found.max() < 0.25


def test_an_initializer_serves_several_shapes_by_itself(target: str) -> None:
    """Fans are those of the random numbers' own shape, so that an initializer needs no parameter."""
    found = cells(target, lambda: oc.kaiming(gain=1.0), 2000)
    assert found.std() == pytest.approx(1.0, rel=0.05)  # no input axes: a fan of 1


def test_unknown_choices_of_an_initializer_are_refused() -> None:
    with oc.Session():
        with pytest.raises(oc.UsageError, match="'fan_in', 'fan_out', 'fan_avg'"):
            oc.kaiming(mode="fan")  # type: ignore[arg-type]
        with pytest.raises(oc.UsageError, match="'uniform', 'normal'"):
            oc.xavier(distribution="gaussian")  # type: ignore[arg-type]
        with pytest.raises(oc.UsageError, match="Normally distributed numbers are floats"):
            oc.normal(dtype="int32")
