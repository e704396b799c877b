"""Optimizers, step by step, against their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.assignments import Accumulate, leaves
from tests.train import formulas

RNG = np.random.default_rng(0)
DATA, WEIGHTS = RNG.standard_normal((6, 4)), RNG.standard_normal((3, 4))
OFFSETS = np.full(3, 0.1)

Formula = Callable[..., formulas.Step]

CASES: list[tuple[str, Formula, dict[str, Any]]] = [
    ("SGD", formulas.sgd, {}),
    ("SGD", formulas.sgd, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    ("SGD", formulas.sgd, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("RMSprop", formulas.rmsprop, {}),
    ("RMSprop", formulas.rmsprop, {"alpha": 0.9, "momentum": 0.5, "centered": True}),
    ("Adagrad", formulas.adagrad, {}),
    ("Adagrad", formulas.adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    ("Adadelta", formulas.adadelta, {"rho": 0.8}),
    ("Adam", formulas.adam, {}),
    ("Adam", formulas.adam, {"weight_decay": 0.1, "amsgrad": True, "betas": (0.8, 0.9)}),
    ("AdamW", formulas.adamw, {}),
    ("AdamW", formulas.adamw, {"weight_decay": 0.3, "eps": 1e-3}),
    ("Adamax", formulas.adamax, {}),
    ("NAdam", formulas.nadam, {}),
    ("RAdam", formulas.radam, {}),
    ("Rprop", formulas.rprop, {}),
    ("Rprop", formulas.rprop, {"etas": (0.6, 1.3), "step_sizes": (1e-4, 0.02)}),
    ("Lion", formulas.lion, {"weight_decay": 0.1}),
    ("LAMB", formulas.lamb, {}),
    ("LAMB", formulas.lamb, {"trust": 0.1}),
    ("Adafactor", formulas.adafactor, {}),
    ("Adafactor", formulas.adafactor, {"weight_decay": 0.1, "d": 0.5}),
    ("ScheduleFreeAdamW", formulas.schedule_free_adamw, {}),
    ("ScheduleFreeAdamW", formulas.schedule_free_adamw, {"weight_decay": 0.3}),
]


def _tanh_squares(dtype: str = "float64") -> tuple[oc.Tensor, oc.Tensor, oc.Tensor]:
    """Return the sum of the squares of a layer's results, its weights and its offsets."""
    w = oc.param("w", init=oc.tensor(WEIGHTS, input_axes=1, dtype=dtype))
    b = oc.param("b", init=oc.tensor(OFFSETS, dtype=dtype))
    y = oc.tanh(w @ oc.tensor(DATA, batch_axes=1, dtype=dtype) + b)
    return oc.einsum("...|...->... => 0", y * y), w, b


def _gradients(w: Any, b: Any) -> tuple[Any, Any]:
    y = np.tanh(DATA @ w.T + b)
    g = 2 * y * (1 - y**2)
    return g.T @ DATA, g.sum(axis=0)


@pytest.mark.parametrize(
    ("name", "formula", "arguments"), CASES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CASES)]
)
def test_every_optimizer_takes_the_steps_of_its_formula(
    target: str, name: str, formula: Formula, arguments: dict[str, Any]
) -> None:
    with oc.Session(dtype="float64"):
        loss, w, b = _tanh_squares()
        optimizer = getattr(oc.train, name)(learning_rate=0.01, **arguments)
        ctx = oc.Context(target)
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        steps = formula(0.01, **arguments), formula(0.01, **arguments)
        values: list[Any] = [WEIGHTS.copy(), OFFSETS.copy()]
        for count in range(1, 8):
            step()
            gradients = _gradients(*values)
            values = [
                move(p, g, count) for move, p, g in zip(steps, values, gradients, strict=True)
            ]
            np.testing.assert_allclose(ctx[w], values[0], rtol=1e-11, atol=1e-13)
            np.testing.assert_allclose(ctx[b], values[1], rtol=1e-11, atol=1e-13)


def test_muon_makes_the_steps_of_matrices_orthogonal_and_those_of_vectors_adamw(
    target: str,
) -> None:
    with oc.Session(dtype="float64"):
        loss, w, b = _tanh_squares()
        optimizer = oc.train.Muon(learning_rate=0.01)
        ctx = oc.Context(target)
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        steps = formulas.muon(0.01), formulas.adamw(0.01, weight_decay=0.1)
        values: list[Any] = [WEIGHTS.copy(), OFFSETS.copy()]
        for count in range(1, 5):
            step()
            gradients = _gradients(*values)
            values = [
                move(p, g, count) for move, p, g in zip(steps, values, gradients, strict=True)
            ]
        np.testing.assert_allclose(ctx[w], values[0], rtol=1e-9)
        np.testing.assert_allclose(ctx[b], values[1], rtol=1e-9)


@pytest.mark.parametrize("name", ["Adam", "RAdam", "Adamax", "NAdam"])
def test_corrections_of_the_first_steps_keep_the_digits_of_float32(target: str, name: str) -> None:
    """`1 - 0.99999**t` has two digits in float32 if it is computed so."""
    found = []
    for dtype in ("float32", "float64"):
        with oc.Session(dtype=dtype):
            loss, w, _ = _tanh_squares(dtype)
            optimizer = getattr(oc.train, name)(learning_rate=0.25, betas=(0.9, 0.99999))
            ctx = oc.Context(target)
            ctx.init_params(loss)
            step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
            for _ in range(3):
                step()
            found.append(np.array(ctx[w]))
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_averages_of_short_parameters_move_by_less_than_their_rounding(dtype: str) -> None:
    """In bfloat16, `v + (1 - v) / 8192` is v for every v above 0.06."""
    with oc.Session(dtype=dtype):
        w = oc.param("w", init=0.5, output=[2])
        loss = oc.sum(w * oc.tensor([1.0, 2.0]))
        decay = 1.0 - 2.0**-13
        optimizer = oc.train.Adam(
            learning_rate=2.0**-20, betas=(0.9, decay), average=decay, accumulate=2, clip_norm=100.0
        )
        ctx = oc.Context("cpu_c")
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        for _ in range(4000):
            step()
        assert {t.dtype for t in optimizer.state.values() if t.dtype.is_float} == {oc.float32}
        moment = ctx[optimizer.state["w.second_moment"]]
        np.testing.assert_allclose(moment, (1 - decay**2000) * np.array([1.0, 4.0]), rtol=1e-3)
        assert str(w.dtype) == dtype


def test_twenty_steps_in_float32_stay_within_rounding_of_float64() -> None:
    results = {}
    for dtype in ("float32", "float64"):
        with oc.Session(dtype=dtype):
            loss, w, _ = _tanh_squares(dtype)
            optimizer = oc.train.AdamW(learning_rate=0.01)
            ctx = oc.Context("cpu_c")
            ctx.init_params(loss)
            step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
            for _ in range(20):
                step()
            results[dtype] = ctx[w]
    np.testing.assert_allclose(results["float32"], results["float64"], rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", [*dict.fromkeys(case[0] for case in CASES), "Muon"])
def test_short_parameters_are_rounded_once_in_an_update(name: str) -> None:
    """State and formula are in float32: one step of a parameter that it holds is the float32 step,
    rounded.
    """
    found = {}
    for dtype in ("bfloat16", "float32"):
        with oc.Session(dtype=dtype):
            start = oc.tensor(np.arange(12.0).reshape(3, 4) / 8, input_axes=1)
            w = oc.param("w", init=start)
            loss = oc.sum(w @ oc.tensor([1.0, -1.0, 0.5, 0.25]))
            optimizer = getattr(oc.train, name)(learning_rate=0.01)
            ctx = oc.Context("interp")
            ctx.init_params(loss)
            ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))()
            found[dtype] = ctx[w]
            assert {t.dtype for t in optimizer.state.values()} <= {oc.float32, oc.int32}
    expected = found["float32"].astype(found["bfloat16"].dtype)
    np.testing.assert_array_equal(found["bfloat16"], expected)


def test_state_has_the_names_of_parameters_and_of_moments() -> None:
    with oc.Session():
        loss, *_ = _tanh_squares("float32")
        optimizer = oc.train.AdamW(learning_rate=0.01)
        assert not optimizer.state
        optimizer.update(loss)
        assert list(optimizer.state) == [
            "updates",
            "w.first_moment",
            "w.second_moment",
            "b.first_moment",
            "b.second_moment",
        ]


def test_two_routines_share_the_state_of_one_optimizer() -> None:
    with oc.Session(dtype="float64"):
        loss, w, _ = _tanh_squares()
        optimizer = oc.train.Adam(learning_rate=0.01)
        ctx = oc.Context("cpu_c")
        ctx.init_params(loss)
        first = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        second = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        for step in (first, second, first, second):
            step()
        assert int(ctx.item(optimizer.state["updates"])) == 4
        move, values = formulas.adam(0.01), WEIGHTS.copy()
        offsets, other = formulas.adam(0.01), OFFSETS.copy()
        for count in range(1, 5):
            g, h = _gradients(values, other)
            values, other = move(values, g, count), offsets(other, h, count)
        np.testing.assert_allclose(ctx[w], values, rtol=1e-11)


def test_groups_change_hyperparameters_by_the_names_of_parameters() -> None:
    with oc.Session(dtype="float64"):
        loss, w, b = _tanh_squares()
        optimizer = oc.train.SGD(
            learning_rate=0.1, weight_decay=0.5, groups={"b": {"weight_decay": 0.0}}
        )
        ctx = oc.Context("cpu_c")
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))()
        dw, db = _gradients(WEIGHTS, OFFSETS)
        np.testing.assert_allclose(ctx[w], WEIGHTS - 0.1 * (dw + 0.5 * WEIGHTS), rtol=1e-12)
        np.testing.assert_allclose(ctx[b], OFFSETS - 0.1 * db, rtol=1e-12)


def test_a_group_without_hyperparameters_is_frozen() -> None:
    with oc.Session(dtype="float64"):
        loss, w, b = _tanh_squares()
        optimizer = oc.train.SGD(learning_rate=0.1, groups={"w*": None})
        ctx = oc.Context("cpu_c")
        ctx.init_params(loss)
        ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))()
        np.testing.assert_array_equal(ctx[w], WEIGHTS)
        assert not np.array_equal(ctx[b], OFFSETS)


def test_a_group_that_matches_no_parameter_is_refused() -> None:
    with oc.Session():
        loss, *_ = _tanh_squares("float32")
        optimizer = oc.train.SGD(learning_rate=0.1, groups={"*.bias": {"weight_decay": 0.0}})
        with pytest.raises(oc.UsageError, match=r"no parameter for \*\.bias"):
            optimizer.update(loss)


def test_a_group_whose_parameters_an_earlier_pattern_takes_is_refused() -> None:
    with oc.Session():
        w = oc.param("w", init=[1.0])
        opt = oc.train.SGD(learning_rate=0.1, groups={"*": None, "w*": {"weight_decay": 0.1}})
        with pytest.raises(oc.UsageError, match=r"state w\* before the patterns"):
            opt.update(oc.sum(w * w))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"learning_rate": "fast"}, "learning_rate='fast'"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"learning_rate": 0.1, "clip_norm": -1.0}, "clip_norm=-1.0"),
        ({"learning_rate": 0.1, "clip_value": float("inf")}, "clip_value=inf"),
        ({"learning_rate": 0.1, "accumulate": 0}, "accumulate=0"),
        ({"learning_rate": 0.1, "average": 1.0}, "average=1.0"),
        ({"learning_rate": 0.1, "weight_decay": "x"}, "weight_decay='x'"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(arguments: dict[str, Any], found: str) -> None:
    with pytest.raises(oc.UsageError) as error:
        oc.train.Adam(**arguments)
    assert found in str(error.value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Adam", {"betas": (0.9, 1.0)}),
        ("AdamW", {"betas": (-0.1, 0.9)}),
        ("RMSprop", {"alpha": 1.5}),
        ("Adadelta", {"rho": -0.1}),
        ("Adam", {"eps": -1e-8}),
        ("SGD", {"momentum": -0.9}),
        ("Adagrad", {"lr_decay": -1.0}),
        ("NAdam", {"momentum_decay": -1.0}),
        ("Rprop", {"etas": (1.2, 0.5)}),
        ("Rprop", {"step_sizes": (1.0, 0.1)}),
        ("Adafactor", {"beta2_decay": 0.8}),
        ("Adafactor", {"eps": (1e-14, float("nan"))}),
        ("Muon", {"ns_steps": 0}),
    ],
)
def test_constants_of_formulas_out_of_range_are_refused(
    name: str, arguments: dict[str, Any]
) -> None:
    ((key, _),) = arguments.items()
    with pytest.raises(oc.UsageError, match=f"{key}= of an optimizer is"):
        getattr(oc.train, name)(learning_rate=0.1, **arguments)


@pytest.mark.parametrize("arguments", [{}, {"momentum": 0.9, "dampening": 0.1}])
def test_nesterov_momentum_without_momentum_or_with_dampening_is_refused(
    arguments: dict[str, Any],
) -> None:
    with pytest.raises(oc.UsageError, match="Nesterov momentum is momentum without dampening"):
        oc.train.SGD(learning_rate=0.1, nesterov=True, **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"nesterov": True},
        {"momentum": -0.5},
        {"learning_rate": -0.1},
        {"weight_decay": float("nan")},
    ],
)
def test_a_plain_step_checks_its_arguments_as_an_optimizer(arguments: dict[str, Any]) -> None:
    with oc.Session():
        loss, *_ = _tanh_squares("float32")
        with pytest.raises(oc.UsageError, match=r"Nesterov momentum|of an optimizer is"):
            oc.train.sgd_update(loss, **{"learning_rate": 0.1, **arguments})


@pytest.mark.parametrize(
    "group",
    [
        {"clip_norm": 1.0},
        {"accumulate": 2},
        {"skip_nonfinite": True},
        {"skip_outliers": oc.train.ZScore()},
        {"loss_scale": oc.train.DynamicScale()},
    ],
)
def test_a_group_without_a_say_in_a_hyperparameter_of_all_is_refused(group: dict[str, Any]) -> None:
    (key,) = group
    with pytest.raises(oc.UsageError, match=f"{key} of an optimizer concerns all parameters"):
        oc.train.SGD(learning_rate=0.1, groups={"w": group})


def test_an_optimizer_of_two_losses_with_parameters_of_one_name_is_refused() -> None:
    with oc.Session():
        first, second = (oc.param("w", init=np.ones(3, np.float32)) for _ in range(2))
        optimizer = oc.train.Adam(learning_rate=0.1)
        optimizer.update(oc.sum(first * first))
        with pytest.raises(oc.UsageError, match="same parameters") as error:
            optimizer.update(oc.sum(second * second))
        assert "w after w, of which 0 are the same" in str(error.value)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ZeroDivisionError])
def test_an_update_that_is_interrupted_leaves_no_state(interruption: type[BaseException]) -> None:
    interruptions = [interruption()]

    def rate(updates: Any) -> Any:
        if interruptions:
            raise interruptions.pop()
        return 0.5 / (1.0 + updates)

    options = {"clip_norm": 1.0, "accumulate": 2, "average": 0.9, "skip_nonfinite": True}
    opt = oc.train.Adam(learning_rate=rate, **options)
    first, second = oc.param("first", init=[3.0, 4.0]), oc.param("second", init=[1.0])
    with pytest.raises(interruption):
        opt.minimize(oc.sum(first * first))
    assert not opt.state
    assert not opt.diagnostics
    assert not opt.averages
    loss = oc.sum(second * second)
    ctx = oc.Context("interp")
    ctx.init_params(loss)
    step = ctx.compile(opt.minimize(loss))
    for _ in range(2):
        step()
    assert np.allclose(ctx[second], 0.5)
    assert np.allclose(ctx[opt.averages["second"]], 0.5)


@pytest.mark.parametrize("name", ["Rprop", "ScheduleFreeAdamW", "Adafactor"])
def test_a_learning_rate_of_0_leaves_parameters_finite(target: str, name: str) -> None:
    rate = oc.train.joined([oc.train.constant(0.0), oc.train.linear(0.1, steps=2)], boundaries=[1])
    with oc.Session():
        loss, w, _ = _tanh_squares("float32")
        optimizer = getattr(oc.train, name)(learning_rate=rate)
        ctx = oc.Context(target)
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        for _ in range(5):
            step()
        assert np.isfinite(ctx[w]).all()
        assert not np.array_equal(ctx[w], WEIGHTS.astype(np.float32))


def test_adafactor_moves_at_most_by_the_inverse_root_of_the_count(target: str) -> None:
    with oc.Session(dtype="float64"):
        loss, w, _ = _tanh_squares()
        optimizer = oc.train.Adafactor(learning_rate=0.8, weight_decay=0.1)
        ctx = oc.Context(target)
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        formula = formulas.adafactor(0.8, weight_decay=0.1)
        for count in range(1, 6):
            before, (gradient, _) = ctx[w], _gradients(ctx[w], ctx[loss.params["b"]])
            step()
            np.testing.assert_allclose(ctx[w], formula(before, gradient, count), rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("step", r"step = ctx\.compile"),
        ("zero_grad", "begins with gradients of 0"),
        ("param_groups", "groups="),
        ("state_dict", r"oc\.save"),
        ("load_state_dict", r"oc\.load"),
    ],
)
def test_attributes_of_other_optimizers_have_counterparts(name: str, fix: str) -> None:
    optimizer = oc.train.SGD(learning_rate=0.1)
    with pytest.raises(AttributeError, match=fix):
        getattr(optimizer, name)
    assert not hasattr(optimizer, "others")


def test_a_loss_without_trainable_parameters_is_refused() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
        with pytest.raises(oc.UsageError, match="gradients flow into"):
            oc.train.Adam(learning_rate=0.1).update(oc.einsum("...=>0", x))


def test_an_optimizer_reads_zeros_where_no_gradient_arrives_before_another_optimizer_steps() -> (
    None
):
    found = []
    for schedule in ("none", "default"):
        with oc.Session(), oc.settings.overrides(backend="cpu_c", schedule=schedule):
            v = oc.param("v", init=np.ones(40, np.float32))
            w = oc.param("w", init=np.ones(40, np.float32))
            first = oc.sum((oc.stop_gradient(v) - w) ** 2.0)
            second = oc.sum((v - 3.0) ** 2.0)
            ctx = oc.Context()
            ctx.init_params(first)
            ctx.init_params(second)
            code = [
                oc.train.grad_update(each)
                + oc.train.Adam(learning_rate=1e-2, betas=(0.0, 0.99)).update(
                    each, params=each.params
                )
                for each in (first, second)
            ]
            step = ctx.compile(code[0] + code[1])
            for _ in range(3):
                step()
            found.append(np.array(ctx[v]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


DECAYING: dict[str, Callable[..., oc.Computation]] = {
    **{
        name: lambda loss, name=name, **options: getattr(oc.train, name)(
            learning_rate=0.1, weight_decay=0.5
        ).update(loss, **options)
        for name in (*dict.fromkeys(name for name, *_ in CASES), "Muon")
    },
    "minimize": lambda loss, **options: oc.train.AdamW(
        learning_rate=0.1, weight_decay=0.5
    ).minimize(loss, **options),
    "sgd_update": lambda loss, **options: oc.train.sgd_update(
        loss, learning_rate=0.1, weight_decay=0.5, **options
    ),
}


def _scanned(frozen: oc.Tensor, trained: oc.Tensor) -> oc.Tensor:
    def body(carry: Any, _: Any) -> Any:
        return carry * trained + oc.stop_gradient(frozen), None

    return oc.sum(oc.scan(body, trained, None, length=3)[1])


FREEZES: dict[str, Callable[[oc.Tensor, oc.Tensor], oc.Tensor]] = {
    "stop_gradient": lambda f, t: oc.sum(oc.stop_gradient(f * 2.0) * t),
    "a condition": lambda f, t: oc.sum(oc.where(f > 0.0, t, 2.0 * t)),
    "a number in place of a truth value": lambda f, t: oc.sum(oc.where(f, t, 2.0 * t)),
    "a rounding": lambda f, t: oc.sum(oc.round(f) * t),
    "positions": lambda f, t: oc.sum(t[oc.cast(oc.floor(f), "int32")]),
    "a sum": lambda f, t: oc.sum(oc.tanh(t) + oc.stop_gradient(oc.exp(f))),
    "a step of a loop": _scanned,
}


@pytest.mark.parametrize("freeze", FREEZES)
@pytest.mark.parametrize("update", ["AdamW", "sgd_update", "minimize"])
def test_parameters_without_a_gradient_do_not_move(update: str, freeze: str) -> None:
    with oc.Session(dtype="float64"):
        frozen = oc.param("frozen", output=[2], init=1.0)
        trained = oc.param("trained", output=[2], init=1.0)
        loss = FREEZES[freeze](frozen, trained)
        assert list(oc.train.trainable_params(loss).keys()) == ["trained"]
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        code = DECAYING[update](loss)
        ctx.compile(code if update == "minimize" else oc.train.grad_update(loss) + code)()
        np.testing.assert_array_equal(ctx[frozen], np.ones(2))
        assert not np.array_equal(ctx[trained], np.ones(2))


@pytest.mark.parametrize("update", DECAYING)
def test_every_optimizer_leaves_frozen_parameters_alone_unless_they_are_named(update: str) -> None:
    for is_named in (False, True):
        with oc.Session():
            frozen, trained = oc.param("frozen", init=[1.0, 1.0]), oc.param("w", init=[1.0, 1.0])
            loss = oc.sum(oc.stop_gradient(frozen) * trained * trained)
            ctx = oc.Context("interp")
            ctx.init_params(loss)
            code = DECAYING[update](loss, params=[frozen] if is_named else None)
            ctx.compile(code if update == "minimize" else oc.train.grad_update(loss) + code)()
            moved = [not np.array_equal(ctx[each], np.ones(2)) for each in (frozen, trained)]
            assert moved == [is_named, not is_named]


def test_parameters_that_a_loop_carries_are_trained() -> None:
    with oc.Session():
        first, second = oc.param("first", init=1.0), oc.param("second", init=1.0)
        loss = oc.sum(oc.scan(lambda c, _: (c * second, c), first, None, length=3)[0])
        assert list(oc.train.trainable_params(loss).keys()) == ["first", "second"]
        deep = oc.sum(oc.scan(lambda c, _: (c * second, c), first, None, length=3)[1])
        assert list(oc.train.trainable_params(deep).keys()) == ["first", "second"]


@pytest.mark.parametrize("update", DECAYING)
def test_a_loss_that_trains_nothing_is_refused_by_every_helper(update: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3], requires_grad=True)
        loss = oc.sum(oc.stop_gradient(oc.param("w", output=[3])) * x)
        with pytest.raises(oc.UsageError, match="gradients flow into"):
            DECAYING[update](loss)
        with pytest.raises(oc.UsageError, match="params= are parameters of the loss"):
            DECAYING[update](loss, params=[x])
        with pytest.raises(oc.UsageError, match="params= are parameters of the loss"):
            DECAYING[update](loss, params=[])


def test_groups_that_freeze_everything_are_refused() -> None:
    with oc.Session():
        loss, *_ = _tanh_squares("float32")
        with pytest.raises(oc.UsageError, match="groups= freezes every parameter"):
            oc.train.SGD(learning_rate=0.1, groups={"*": None}).update(loss)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_state_of_an_optimizer_is_named_after_its_parameters(
    dtype: str, accumulate: int
) -> None:
    x = oc.placeholder("x", batch=[8], output=[10], dtype=dtype)
    w = oc.param("w", output=[3], dtype=dtype)
    loss = oc.mean((w @ x) ** 2)
    optimizer = oc.train.Adam(
        learning_rate=1e-2, weight_decay=1e-2, clip_norm=1.0, accumulate=accumulate, average=0.9
    )
    optimizer.update(loss)
    names = [each.node.name for each in optimizer.state.values()]
    accumulated = ["micro_batch", "gradient_sum_w"] if accumulate > 1 else []
    assert names == ["updates", *accumulated, "first_moment_w", "second_moment_w", "average_w"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
        ("RMSprop", {"momentum": 0.5, "centered": True}),
        ("Adagrad", {"lr_decay": 0.1}),
        ("Adam", {"betas": (0.0, 0.9), "amsgrad": True, "average": 0.9}),
        ("AdamW", {"clip_norm": 0.5, "accumulate": 2, "maximize": True}),
        ("AdamW", {"learning_rate": oc.train.cosine(0.1, steps=5), "skip_nonfinite": True}),
        ("Adamax", {}),
        ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ],
)
def test_traced_formulas_have_the_bits_of_updates_recorded_with_tensors(
    name: str, settings: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = getattr(oc.train, name)

    def bits() -> list[bytes]:
        opt = optimizer(**{"learning_rate": 0.1, **settings})
        w = oc.param("w", init=WEIGHTS, input=[4], output=[3], dtype=dtype)
        x = oc.placeholder("x", batch=[6], output=[4], dtype=dtype)
        loss = oc.sum(oc.tanh(w @ x) ** 2)
        context = oc.Context("interp")
        context.init_params(loss)
        step = context.compile(opt.minimize(loss))
        context[x] = DATA
        for _ in range(4):
            step()
        return [context[each].tobytes() for each in (w, *opt.state.values())]

    assert optimizer(learning_rate=0.1)._traced(is_gated=False) is not None
    traced = bits()
    monkeypatch.setattr(optimizer, "_traced", lambda *_, **__: None)
    assert traced == bits()


def test_an_update_of_adam_is_an_assignment_for_each_tensor_that_it_writes() -> None:
    w = oc.param("w", output=[3], input=[4])
    loss = oc.sum(w * w)
    program = oc.train.Adam(learning_rate=0.1).update(loss).resolve()
    written = [each for each in leaves(program.body) if isinstance(each, Accumulate)]
    assert [len(each.projections.domain) for each in written].count(2) == 3


def test_overridden_formulas_of_optimizers_may_read_shapes() -> None:
    class PerCell(oc.train.Adam):
        def direction(self, update: Any) -> Any:
            return super().direction(update) / float(np.prod(update.p.shape.output.sizes))

    def moved(optimizer: Any) -> Any:
        p = oc.param("p", init=np.ones(4), input=[])
        loss = oc.sum(p * p)
        context = oc.Context("interp")
        context.init_params(loss)
        context.compile(optimizer.minimize(loss))()
        return 1.0 - context[p]

    whole = moved(oc.train.Adam(learning_rate=0.1))
    np.testing.assert_allclose(moved(PerCell(learning_rate=0.1)), whole / 4, rtol=1e-5)
