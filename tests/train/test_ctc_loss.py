"""Connectionist temporal classification against the sum over all alignments."""

from __future__ import annotations

from itertools import groupby, product
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

STEPS, BATCH, CLASSES = 5, 4, 3
RNG = np.random.default_rng(0)
SCORES = RNG.standard_normal((STEPS, BATCH, CLASSES))
TARGETS = np.array([[1, 2], [2, 2], [1, -1], [9, 9]], np.int32)
LENGTHS = np.array([5, 4, 3, 1], np.int32)
TARGET_LENGTHS = np.array([2, 2, 1, 0], np.int32)


def expected(scores: Any, target: Any, blank: int = 0) -> float:
    """Return the loss of one sequence: all sequences of classes that merge to the target."""
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    total = 0.0
    for classes in product(range(CLASSES), repeat=len(logs)):
        if [each for each, _ in groupby(classes) if each != blank] == list(target):
            total += np.exp(sum(logs[t, c] for t, c in enumerate(classes)))
    return -float(np.log(total)) if total else np.inf


def losses(target: str, scores: Any = SCORES, targets: Any = TARGETS, **arguments: Any) -> Any:
    """Return the loss of each sequence, and the gradient of their sum."""
    with oc.Session(dtype="float64"):
        s = oc.tensor(scores, batch_axes=2, dtype="float64", requires_grad=True)
        given: dict[str, Any] = {
            name: oc.tensor(value, batch_axes=1, dtype="int32") if name != "blank" else value
            for name, value in arguments.items()
        }
        ids = oc.tensor(targets, batch_axes=2, dtype="int32")
        each = oc.nn.ctc_loss(s, ids, reduction="none", **given)
        assert s.grad is not None
        ctx = oc.Context(target)
        ctx.compile(oc.train.grad_update(oc.sum(each)), keep=[each, s.grad])()
        return ctx[each], ctx[s.grad]


def test_a_loss_is_that_of_all_alignments(target: str) -> None:
    found, _ = losses(target, targets=TARGETS[:2], scores=SCORES[:, :2])
    each = [expected(SCORES[:, k], TARGETS[k]) for k in range(2)]
    np.testing.assert_allclose(found, each, rtol=1e-12)


def test_sequences_have_lengths_of_their_own(target: str) -> None:
    found, slopes = losses(target, lengths=LENGTHS, target_lengths=TARGET_LENGTHS)
    each = [
        expected(SCORES[: LENGTHS[k], k], TARGETS[k, : TARGET_LENGTHS[k]]) for k in range(BATCH)
    ]
    np.testing.assert_allclose(found, each, rtol=1e-12)
    for k, length in enumerate(LENGTHS):
        assert not slopes[length:, k].any()


def test_any_class_is_blank(target: str) -> None:
    targets = np.array([[0, 1], [1, 1]], np.int32)
    found, _ = losses(target, SCORES[:, :2], targets, blank=2)
    each = [expected(SCORES[:, k], targets[k], blank=2) for k in range(2)]
    np.testing.assert_allclose(found, each, rtol=1e-12)


def test_gradients_are_those_of_differences(target: str) -> None:
    _, slopes = losses(target, lengths=LENGTHS, target_lengths=TARGET_LENGTHS)
    for cell in ((0, 0, 0), (4, 0, 2), (2, 1, 1), (1, 2, 0), (0, 3, 1)):
        k = cell[1]
        ends = []
        for step in (-1e-6, 1e-6):
            moved = SCORES.copy()
            moved[cell] += step
            ends.append(expected(moved[: LENGTHS[k], k], TARGETS[k, : TARGET_LENGTHS[k]]))
        assert slopes[cell] == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-5, abs=1e-8)


def test_too_few_steps_for_a_target_have_an_infinite_loss_and_finite_gradients() -> None:
    lengths = np.array([5, 2, 1, 1], np.int32)  # two equal classes need a blank between them
    targets = np.array([[1, 2], [2, 2], [1, 2], [2, 1]], np.int32)
    found, slopes = losses("cpu_c:0", targets=targets, lengths=lengths)
    assert np.isinf(found).tolist() == [False, True, True, True]
    assert np.isfinite(slopes).all()


def test_scores_of_one_sequence_and_of_half_precision_are_taken() -> None:
    with oc.Session():
        s = oc.tensor(SCORES[:, 0].astype(np.float32), batch_axes=1, dtype="bfloat16")
        ids = oc.tensor(TARGETS[0], batch_axes=1, dtype="int32")
        loss = oc.nn.ctc_loss(s, ids)
        ctx = oc.Context("cpu_c:0")
        ctx.compile(oc.train.forward(loss), keep=[loss])()
        assert loss.dtype is oc.bfloat16
        assert float(ctx[loss]) == pytest.approx(expected(SCORES[:, 0], TARGETS[0]), rel=0.02)


def test_arguments_of_other_shapes_and_formats_are_refused() -> None:
    scores = oc.placeholder("scores", batch=[STEPS, BATCH], output=[CLASSES])
    ids = oc.placeholder("ids", batch=[BATCH, 2], output=[], dtype="int32")
    with pytest.raises(
        oc.ShapeError, match=r"the time in front of the batch[^~]*targets of shape 2,4"
    ):
        oc.nn.ctc_loss(scores, oc.placeholder("ids", batch=[2, BATCH], output=[], dtype="int32"))
    wrong = oc.placeholder("n", batch=[3], output=[], dtype="int32")
    with pytest.raises(oc.ShapeError, match="A length is one number for each sequence"):
        oc.nn.ctc_loss(scores, ids, lengths=wrong)
    with pytest.raises(oc.UsageError, match=r"are integers[^~]*of float32"):
        oc.nn.ctc_loss(scores, oc.placeholder("ids", batch=[BATCH, 2], output=[]))
    for blank in (-1, CLASSES, 1.0, True):
        with pytest.raises(oc.UsageError, match=r"number of a class[^~]*beside 3 classes"):
            oc.nn.ctc_loss(scores, ids, blank=blank)  # type: ignore[arg-type]
    with pytest.raises(oc.UsageError, match="The reduction of a loss"):
        oc.nn.ctc_loss(scores, ids, reduction="batch")  # type: ignore[arg-type]


def test_a_length_beyond_the_targets_is_refused_when_the_routine_runs() -> None:
    with pytest.raises(oc.OcannlError, match="position"):
        losses("cpu_c:0", target_lengths=np.array([2, 3, 1, 1], np.int32))
