"""Kernels on thread blocks agree with plain loops on the reference interpreter, and with NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import ocannl_core as oc
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.numbers.dtypes import float32, int32, uint32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import finish_for, schedule_for
from ocannl_core.passes.kernels.split_kernels import split_kernels
from ocannl_core.testing import programs
from ocannl_core.testing.parser.loops import parse
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import subject_named
from tests.support.attention import Sizes, expected_gradients, gradient_program
from tests.support.example_count import example_count
from tests.support.loop_programs import loop_programs
from tests.support.reductions import random_reductions
from tests.support.rows import random_row_programs

LONG = (1, 2, 3, 5, 16, 33, 70)
FEW = settings(
    max_examples=example_count(3),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def scheduled(plan: Plan, target: Target) -> Plan:
    return schedule_for(plan, target, finish_for(target)).plan()


def check(example: Example) -> None:
    """Small integers are exact in every order of addition."""
    expected = subject_named("interp").run(example.program, example.arrays, example.indices)
    found = subject_named("opencl").run(example.program, example.arrays, example.indices, scheduled)
    for node in example.program.params:
        np.testing.assert_array_equal(found[node], expected[node])


@FEW
@given(example=random_reductions(int32, LONG, 5000) | random_reductions(float32, LONG, 5000))
def test_reductions_are_right(example: Example) -> None:
    check(example)


@FEW
@given(example=random_programs(dtypes=(int32, uint32), max_nests=4))
def test_programs_of_many_kernels_are_right(example: Example) -> None:
    check(example)


@FEW
@given(example=loop_programs(dtypes=(int32, uint32)))
def test_dependent_statements_are_right(example: Example) -> None:
    check(example)


@FEW
@given(example=random_row_programs())
def test_kernels_over_the_same_rows_are_right(example: Example) -> None:
    check(example)


@pytest.mark.parametrize("make", programs.HAND_MADE, ids=lambda make: make.__name__)
def test_hand_made_programs_are_right(make: Callable[[], Example]) -> None:
    example = make()
    found = subject_named("opencl").run(example.program, example.arrays, example.indices, scheduled)
    for node, expected in example.expected.items():
        np.testing.assert_allclose(
            found[node].astype(float), np.asarray(expected, float), rtol=1e-5
        )


def schedules_of(routine: oc.Routine) -> list[str]:
    return [str(kernel.schedule) for kernel in oc.explain(routine).kernels]


def test_a_product_in_tiles_is_within_the_bound() -> None:
    """`n u / (1 - n u)` times the sum of magnitudes, for sums of `n` products in `float32`."""
    random = np.random.default_rng(1)
    a, b = random.normal(size=(70, 90)), random.normal(size=(90, 50))
    a, b = a.astype(np.float32), b.astype(np.float32)
    product = oc.relu(oc.einsum("ij; jk => ik", oc.tensor(a), oc.tensor(b)) + 1.0)
    context = oc.Context("opencl")
    routine = context.compile(oc.train.forward(product))
    routine()
    assert "pack 0 inside" in schedules_of(routine)[0]
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + 1, 0)
    bound = 92 * 2.0**-24 / (1 - 92 * 2.0**-24) * (np.abs(a) @ np.abs(b) + 1)
    assert (np.abs(context[product] - exact) <= bound).all()


@pytest.mark.parametrize("layout", [("i, k", "k, j"), ("k, i", "j, k")], ids=" ".join)
@pytest.mark.parametrize("extents", [(100, 61, 37), (64, 80, 48)], ids=str)
def test_products_have_the_bits_of_their_schedule_on_the_interpreter(
    extents: tuple[int, int, int], layout: tuple[str, str]
) -> None:
    sizes = dict(zip("ijk", extents, strict=True))
    left, right = (", ".join(str(sizes[name]) for name in each.split(", ")) for each in layout)
    program = parse(f"""\
routine product(a: float32[{left}], b: float32[{right}], c: float32[{sizes["i"]}, {sizes["j"]}]):
    for i in range({sizes["i"]}):
        for j in range({sizes["j"]}):
            for k in range({sizes["k"]}):
                c[i, j] += a[{layout[0]}] * b[{layout[1]}]""")
    random = np.random.default_rng(6)
    arrays = {
        node: random.normal(size=program.nodes[node].dims).astype(np.float32)
        for node in program.params[:2]
    }
    target = oc.Context("opencl").target
    plan = scheduled(split_kernels(program), target)
    (kernel,) = plan.kernels
    assert "pack 0 inside" in schedule_text(kernel.schedule)
    found, expected = (
        subject_named(name).run(program, arrays, (), lambda plan, _: scheduled(plan, target))
        for name in ("opencl", "interp")
    )
    result = program.params[2]
    assert found[result].tobytes() == expected[result].tobytes()


def test_a_product_of_few_tiles_is_added_up_from_parts_in_order() -> None:
    random = np.random.default_rng(7)
    a, b = random.normal(size=(16, 4100)), random.normal(size=(4100, 17))
    a, b = a.astype(np.float32), b.astype(np.float32)
    product = oc.einsum("ij; jk => ik", oc.tensor(a), oc.tensor(b))
    context = oc.Context("opencl")
    routine = context.compile(oc.train.forward(product))
    routine()
    assert len(schedules_of(routine)) == 2
    first = np.asarray(context[product]).tobytes()
    exact, magnitude = (
        x @ y for x, y in ((a.astype(float), b), (np.abs(a), np.abs(b).astype(float)))
    )
    assert (np.abs(context[product] - exact) <= 1100 * 2.0**-24 * magnitude).all()
    routine()
    assert np.asarray(context[product]).tobytes() == first


def test_a_softmax_is_one_kernel() -> None:
    x = oc.placeholder("x", batch=[9], output=[130])
    shares = oc.softmax(x, logic="...|... => ...|0")
    context = oc.Context("opencl")
    routine = context.compile(oc.train.forward(shares))
    values = np.random.default_rng(2).normal(size=(9, 130)).astype(np.float32)
    context[x] = values
    routine()
    (schedule,) = schedules_of(routine)
    assert schedule.startswith("rows i on ")
    powers = np.exp(values - values.max(1, keepdims=True))
    np.testing.assert_allclose(context[shares], powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_a_long_sum_runs_on_many_blocks_and_keeps_its_bits() -> None:
    values = np.random.default_rng(3).normal(size=60000).astype(np.float32)
    x = oc.tensor(values)
    total = oc.einsum("i; i => 0", x, x)
    context = oc.Context("opencl")
    routine = context.compile(oc.train.forward(total))
    routine()
    first = np.asarray(context[total]).tobytes()
    assert len(schedules_of(routine)) == 2
    np.testing.assert_allclose(context[total], (values.astype(np.float64) ** 2).sum(), rtol=1e-5)
    routine()
    assert np.asarray(context[total]).tobytes() == first


def train_losses(backend: str) -> list[float]:
    """Return the losses of some steps of a small network with two convolutions."""
    with oc.Session():
        random = np.random.default_rng(5)
        images = random.normal(size=(4, 10, 9, 2)).astype(np.float32)
        labels = random.normal(size=(4, 3)).astype(np.float32)
        hidden = oc.tensor(images)
        for name, shape in (("first", (3, 3, 2, 4)), ("second", (3, 3, 4, 3))):
            window = random.normal(size=shape).astype(np.float32) * 0.2
            kernel = oc.param(name, init=oc.tensor(window))
            hidden = oc.relu(
                oc.einsum("b, x<+p, y<+q, i; p, q, i, o => b, x, y, o", hidden, kernel)
            )
        scores = oc.einsum("b, x, y, o => b, o", hidden) / 10.0
        loss = oc.einsum("...=>0", (scores - oc.tensor(labels)) ** 2)
        update = oc.train.sgd_update(loss, learning_rate=0.02)
        context = oc.Context(backend)
        step = context.compile(oc.train.grad_update(loss) + update)
        context.init_params(loss)
        found = []
        for _ in range(3):
            step()
            found.append(float(np.asarray(context[loss]).reshape(-1)[0]))
        return found


def test_a_network_with_a_convolution_trains_as_on_the_interpreter() -> None:
    expected = train_losses("interp")
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(train_losses("opencl"), expected, rtol=1e-4)


def test_gradients_of_attention_that_recompute_weights_are_right() -> None:
    sizes = Sizes(1, 21, 17, 2, 8, 3)
    program, nodes = gradient_program(sizes, causal=True)
    plans: list[Plan] = []

    def without_caches(plan: Plan, target: Target) -> Plan:
        plans.append(scheduled(plan, replace(target, cache_bytes=())))
        return plans[-1]

    random = np.random.default_rng(0)
    cells = {
        name: random.normal(size=program.nodes[nodes[name]].dims).astype(np.float32)
        for name in "qkvg"
    }
    given = {nodes[name]: cells[name] for name in cells}
    found = subject_named("opencl").run(program, given, (), without_caches)
    (plan,) = plans
    assert not [node for node in plan.scratch if {21, 17} <= set(plan.nodes[node].dims)]
    for name, (exact, bound) in expected_gradients(cells, causal=True, tiles=17).items():
        assert (abs(found[nodes[name]] - exact) <= bound).all()
