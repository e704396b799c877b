"""Losses and metrics against their formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((6, 5))
IDS = np.array([0, 3, 3, 4, 1, 3], np.int32)
REAL = RNG.standard_normal((6, 5))
PARTS = np.exp(REAL) / np.exp(REAL).sum(axis=1, keepdims=True)
FLAGS = (RNG.random((6, 5)) < 0.5).astype(np.float64)
LOGARITHMS = SCORES - np.log(np.exp(SCORES).sum(axis=1, keepdims=True))
OWN = -LOGARITHMS[np.arange(6), IDS]


def _run(
    target: str,
    loss: Callable[[oc.Tensor], oc.Tensor],
    scores: Any = SCORES,
    dtype: str = "float64",
) -> tuple[Any, Any]:
    """Return a loss of scores and its gradient."""
    s = oc.tensor(scores, batch_axes=1, dtype=dtype, requires_grad=True)
    found = loss(s)
    ctx = oc.Context(target)
    ctx.compile(oc.train.grad_update(found), keep=[found, s.grad])()
    assert s.grad is not None
    return ctx[found], ctx[s.grad]


def _ids(ids: Any = IDS) -> oc.Tensor:
    return oc.tensor(ids, batch_axes=1, dtype="int32")


def _cells(cells: Any) -> oc.Tensor:
    return oc.tensor(cells, batch_axes=1, dtype="float64")


def _size(x: Any) -> Any:
    return np.minimum(np.abs(x), 0.5) * (np.abs(x) - 0.5 * np.minimum(np.abs(x), 0.5))


CASES: dict[str, tuple[Callable[[oc.Tensor], oc.Tensor], Any]] = {
    "ids": (lambda s: oc.nn.cross_entropy(s, _ids()), OWN.mean()),
    "sum": (lambda s: oc.nn.cross_entropy(s, _ids(), reduction="sum"), OWN.sum()),
    "each": (lambda s: oc.nn.cross_entropy(s, _ids(), reduction="none"), OWN),
    "probabilities": (
        lambda s: oc.nn.cross_entropy(s, _cells(PARTS)),
        -(PARTS * LOGARITHMS).sum(axis=1).mean(),
    ),
    "probabilities that do not add up to 1": (
        lambda s: oc.nn.cross_entropy(s, _cells(PARTS * FLAGS), reduction="none"),
        -(PARTS * FLAGS * LOGARITHMS).sum(axis=1),
    ),
    "smoothed probabilities": (
        lambda s: oc.nn.cross_entropy(s, _cells(PARTS), smoothing=0.2),
        -((0.8 * PARTS + 0.04) * LOGARITHMS).sum(axis=1).mean(),
    ),
    "smoothing": (
        lambda s: oc.nn.cross_entropy(s, _ids(), smoothing=0.2),
        (0.8 * OWN - 0.2 * LOGARITHMS.mean(axis=1)).mean(),
    ),
    "ignore": (lambda s: oc.nn.cross_entropy(s, _ids(), ignore=3), OWN[IDS != 3].mean()),
    "binary": (
        lambda s: oc.nn.binary_cross_entropy(s, _cells(FLAGS)),
        (np.log1p(np.exp(SCORES)) - FLAGS * SCORES).mean(),
    ),
    "squares": (lambda s: oc.nn.mean_squared_error(s, _cells(REAL)), ((SCORES - REAL) ** 2).mean()),
    "huber": (lambda s: oc.nn.huber(s, _cells(REAL), delta=0.5), _size(SCORES - REAL).mean()),
    "hinge": (
        lambda s: oc.nn.hinge(s, _cells(2 * FLAGS - 1)),
        np.maximum(1 - (2 * FLAGS - 1) * SCORES, 0).mean(),
    ),
    "divergence": (
        lambda s: oc.nn.kl_divergence(s, _cells(PARTS)),
        (PARTS * (np.log(PARTS) - SCORES)).sum(axis=1).mean(),
    ),
    "perplexity": (lambda s: oc.nn.perplexity(s, _ids()), np.exp(OWN.mean())),
}


@pytest.mark.parametrize("name", CASES)
def test_every_loss_has_its_formula_and_the_slope_of_its_differences(
    target: str, name: str
) -> None:
    loss, expected = CASES[name]
    with oc.Session(dtype="float64"):
        found, slopes = _run(target, loss)
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for cell in ((0, 0), (2, 3), (5, 1)):
        ends = []
        for step in (-1e-6, 1e-6):
            moved = SCORES.copy()
            moved[cell] += step
            with oc.Session(dtype="float64"):
                ends.append(_run("cpu_c:0", loss, moved)[0].sum())
        assert slopes[cell] == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("far", [1e4, -1e4])
def test_cross_entropy_of_far_scores_is_finite(far: float) -> None:
    scores = SCORES + far
    scores[0, 0] = 3e4
    with oc.Session():
        found, slopes = _run("cpu_c:0", lambda s: oc.nn.cross_entropy(s, _ids()), scores, "float32")
    assert np.isfinite(found).all()
    assert np.isfinite(slopes).all()


def test_impossible_classes_do_not_disturb_the_loss_of_others() -> None:
    scores = SCORES.copy()
    scores[:, 2] = -np.inf
    with oc.Session(dtype="float64"):
        found, slopes = _run("cpu_c:0", lambda s: oc.nn.cross_entropy(s, _ids()), scores)
    rest = np.delete(SCORES, 2, axis=1)
    own = np.log(np.exp(rest).sum(axis=1)) - SCORES[np.arange(6), IDS]
    np.testing.assert_allclose(found, own.mean(), rtol=1e-12)
    assert np.isfinite(slopes).all()


def test_divergence_of_impossible_classes_is_zero() -> None:
    parts = np.array([[0.5, 0.5, 0.0]])
    with oc.Session(dtype="float64"):
        found, _ = _run(
            "cpu_c:0", lambda s: oc.nn.kl_divergence(s, _cells(parts)), np.log([[0.25, 0.5, 0.25]])
        )
    np.testing.assert_allclose(found, 0.5 * np.log(2.0), rtol=1e-12)


def test_accuracy_is_the_fraction_of_highest_scores_at_the_true_class(target: str) -> None:
    with oc.Session(dtype="float64"):
        s = oc.tensor(SCORES, batch_axes=1)
        found = oc.nn.accuracy(s, _ids())
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(found))()
        assert ctx.item(found) == pytest.approx((SCORES.argmax(axis=1) == IDS).mean())


def test_confusion_counts_pairs_of_true_and_predicted_classes(target: str) -> None:
    expected = np.zeros((5, 5), np.int32)
    np.add.at(expected, (IDS, SCORES.argmax(axis=1)), 1)
    with oc.Session(dtype="float64"):
        found = oc.nn.confusion(oc.tensor(SCORES, batch_axes=1), _ids())
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(found))()
        np.testing.assert_array_equal(ctx[found], expected)


@pytest.mark.parametrize("metric", [oc.nn.cross_entropy, oc.nn.accuracy, oc.nn.confusion])
@pytest.mark.parametrize("wrong", [5, -1])
def test_a_target_that_is_no_class_is_an_error(target: str, metric: Any, wrong: int) -> None:
    ids = IDS.copy()
    ids[2] = wrong
    with oc.Session(dtype="float64"):
        found = metric(oc.tensor(SCORES, batch_axes=1), _ids(ids))
        run = oc.Context(target).compile(oc.train.forward(found))
        with pytest.raises(
            oc.UsageError, match=rf"classes has the positions range\(5\)[^~]*\[2\] = {wrong}"
        ):
            run()


def test_ignored_targets_need_not_be_classes(target: str) -> None:
    ids = np.where(IDS == 3, -100, IDS)
    with oc.Session(dtype="float64"):
        found, slopes = _run(target, lambda s: oc.nn.cross_entropy(s, _ids(ids), ignore=-100))
    np.testing.assert_allclose(found, OWN[IDS != 3].mean(), rtol=1e-12)
    assert not slopes[IDS == 3].any()


PAIRED = [
    oc.nn.cross_entropy,
    oc.nn.binary_cross_entropy,
    oc.nn.mean_squared_error,
    oc.nn.huber,
    oc.nn.hinge,
    oc.nn.kl_divergence,
]
NUMBERED = [oc.nn.cross_entropy, oc.nn.accuracy, oc.nn.confusion, oc.nn.perplexity]


def _shaped(shape: Any, **options: Any) -> oc.Tensor:
    batch, _, output = shape.partition("|")
    rows = [[int(n) for n in row.split(",") if n] for row in (batch, output)]
    return oc.placeholder("x", batch=rows[0], output=rows[1], **options)


@pytest.mark.parametrize("loss", PAIRED)
@pytest.mark.parametrize(
    "targets", ["4|", "|3", "1|3", "4|1", "3|3", "4|4", "2,4|3", "|4,3", "4|2,3"]
)
def test_a_target_of_another_shape_is_refused_by_every_loss(loss: Any, targets: str) -> None:
    with pytest.raises(oc.ShapeError, match=r"none is broadcast[^~]*shape 4\|3 and targets"):
        loss(_shaped("4|3"), _shaped(targets))
    with pytest.raises(oc.ShapeError, match="none is broadcast"):
        loss(_shaped(targets), _shaped("4|3"))


@pytest.mark.parametrize("loss", NUMBERED)
@pytest.mark.parametrize("targets", ["|", "1|", "3|", "2,4|"])
def test_numbers_of_classes_for_other_examples_are_refused(loss: Any, targets: str) -> None:
    with pytest.raises(oc.ShapeError, match="the number of its class; none is broadcast"):
        loss(_shaped("4|3"), _shaped(targets, dtype="int32"))


def test_numbers_of_classes_that_are_floats_are_refused() -> None:
    with pytest.raises(oc.ShapeError, match=r'try +dtype="int32" for numbers of classes'):
        oc.nn.cross_entropy(_shaped("4|3"), _shaped("4|"))


@pytest.mark.parametrize("loss", PAIRED)
def test_predictions_without_a_stated_width_have_that_of_the_targets(loss: Any) -> None:
    scores = oc.nn.dense(_shaped("4|2"))
    loss(scores, _shaped("4|3"))
    assert str(scores.shape) == "4|3"


@pytest.mark.parametrize("loss", PAIRED)
@pytest.mark.parametrize("targets", ["4|3", "4|", "2,4|1"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: oc.nn.dense(x, output=[1]),
        lambda x: oc.relu(oc.nn.dense(x, output=[1], bias=False)),
        lambda x: oc.einsum("...|... => ...|0", x),
    ],
    ids=["layer", "product", "sum"],
)
def test_computed_predictions_of_one_number_are_not_stretched_to_the_targets(
    loss: Any, targets: str, make: Any
) -> None:
    with pytest.raises(oc.ShapeError, match=r"none is broadcast[^~]*shape 4\|1 and targets"):
        loss(make(_shaped("4|2")), _shaped(targets))
    scores = make(_shaped("4|2"))
    loss(scores, _shaped("4|1"))
    assert str(scores.shape) == "4|1"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_metrics_leave_out_ignored_targets(target: str, reduction: Any) -> None:
    ids = np.where(IDS == 3, -100, IDS)
    right = (SCORES.argmax(axis=1) == IDS) & (IDS != 3)
    wanted = {"mean": right[IDS != 3].mean(), "sum": right.sum(), "none": right}[reduction]
    table = np.zeros((5, 5), np.int32)
    np.add.at(table, (IDS[IDS != 3], SCORES.argmax(axis=1)[IDS != 3]), 1)
    with oc.Session(dtype="float64"):
        scores, targets = oc.tensor(SCORES, batch_axes=1), _ids(ids)
        found = oc.nn.accuracy(scores, targets, ignore=-100, reduction=reduction)
        counts = oc.nn.confusion(scores, targets, ignore=-100)
        doubt = oc.nn.perplexity(scores, targets, ignore=-100)
        ctx = oc.Context(target)
        ctx.compile(sum(map(oc.train.forward, (counts, doubt)), oc.train.forward(found)))()
        np.testing.assert_allclose(ctx[found], wanted, rtol=1e-6)
        np.testing.assert_array_equal(ctx[counts], table)
        np.testing.assert_allclose(ctx[doubt], np.exp(OWN[IDS != 3].mean()))


@pytest.mark.parametrize("ignore", [None, -100])
def test_the_mean_of_many_losses_in_float16_is_in_its_range(
    target: str, ignore: int | None
) -> None:
    with oc.Session(dtype="float16"):
        scores = oc.tensor(np.tile([[0.0, 40.0]], (4096, 1)), batch_axes=1, dtype="float16")
        ids = oc.tensor(np.zeros(4096, np.int32), batch_axes=1)
        loss = oc.nn.cross_entropy(scores, ids, ignore=ignore)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(loss))()
        assert ctx.item(loss) == 40.0


def test_more_classes_than_the_range_of_float16_are_summed_up(target: str) -> None:
    with oc.Session(dtype="float16"):
        scores = oc.tensor(np.zeros((2, 70000), np.float16), batch_axes=1)
        loss = oc.nn.cross_entropy(scores, oc.tensor(np.zeros(2, np.int32), batch_axes=1))
        logs = oc.log_softmax(scores).mean()
        total = oc.logsumexp(scores, axis=-1).mean()
        assert {each.dtype for each in (loss, logs, total)} == {oc.float16}
        ctx = oc.Context(target)
        forward = sum(map(oc.train.forward, (logs, total)), oc.train.forward(loss))
        ctx.compile(forward)()
        found = [ctx.item(loss), -ctx.item(logs), ctx.item(total)]
        np.testing.assert_allclose(found, np.log(70000), rtol=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: oc.nn.cross_entropy(s, _ids(), reduction="avg"),
        lambda s: oc.nn.cross_entropy(s, _ids(), smoothing=1.0),
        lambda s: oc.nn.cross_entropy(s, _cells(PARTS), ignore=3),
        lambda s: oc.nn.cross_entropy(s, _ids(), ignore=2.5),
        lambda s: oc.nn.accuracy(s, _ids(), ignore=True),
        lambda s: oc.nn.cross_entropy(s, IDS),
        lambda s: oc.nn.huber(s, _cells(REAL), delta=0.0),
        lambda s: oc.nn.accuracy(s, _cells(PARTS)),
        lambda s: oc.nn.confusion(s, _cells(PARTS)),
    ],
)
def test_arguments_that_mean_nothing_are_refused(make: Any) -> None:
    with oc.Session(), pytest.raises(oc.UsageError):
        make(oc.tensor(SCORES, batch_axes=1))


@pytest.mark.parametrize("row", ["output", "input"])
@pytest.mark.parametrize("metric", [oc.nn.cross_entropy, oc.nn.accuracy])
def test_true_classes_along_another_axis_than_the_batch_are_refused(metric: Any, row: str) -> None:
    scores = oc.placeholder("scores", batch=[8], output=[3])
    sizes: Any = {row: [8]}
    ids = oc.placeholder("ids", dtype="int32", **sizes)
    with pytest.raises(oc.ShapeError, match="one number for each example"):
        metric(scores, ids)


def test_an_axis_of_one_position_beside_the_batch_of_true_classes_is_no_second_class() -> None:
    scores = oc.tensor(SCORES, batch_axes=1)
    ids = oc.tensor(IDS[:, None], batch_axes=1, dtype="int32")
    ctx = oc.Context("interp")
    both = oc.nn.cross_entropy(scores, ids), oc.nn.cross_entropy(scores, _ids())
    ctx.compile(oc.train.forward(both[0]) + oc.train.forward(both[1]))()
    assert ctx.item(both[0]) == ctx.item(both[1])


@pytest.mark.parametrize(
    ("dtype", "rounding", "least"),
    [
        ("float32", 2.0**-19, 0.0),
        ("float16", 2.0**-10, 2.0**-24),
        ("bfloat16", 2.0**-7, 0.0),
        ("float8_e4m3fn", 2.0**-3, 2.0**-9),
    ],
)
def test_events_that_are_almost_certain_keep_their_digits(
    target: str, dtype: str, rounding: float, least: float
) -> None:
    """Neither the loss nor its gradient is a difference of close numbers."""
    with oc.Session(dtype=dtype):
        s = oc.param("s", init=[-7.5, -5.0, -1.0, -0.0, 0.0, 0.125, 2.0, 7.5] * 3)
        t = oc.param("t", init=np.repeat([0.0, 0.25, 1.0], 8))
        each = oc.nn.binary_cross_entropy(s, t, reduction="none")
        loss = oc.einsum("...|... => 0", each)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[each, s.grad, t.grad])
        ctx.init_params(loss)
        step()
        scores, truths = (np.asarray(ctx[given], np.float64) for given in (s, t))
        odds = np.exp(-np.abs(scores))
        missed = np.where(scores < 0, truths, 1 - truths)
        gradient = np.sign(scores + 1e-300) * (missed - odds / (1 + odds))
        wanted = np.abs(scores) * missed + np.log1p(odds)
        for found, exact in ((each, wanted), (s.grad, gradient), (t.grad, -scores)):
            np.testing.assert_allclose(
                np.asarray(ctx[found], np.float64), exact, rtol=rounding, atol=least
            )
