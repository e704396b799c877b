"""The digits demo learns, writes its files, and reports failed training."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = ["--seeds", "1", "--epochs", "6", "--hidden", "16", "--backend", "cpu_c", "--quiet"]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import digits

    return digits


def test_a_short_run_learns_and_leaves_a_picture_and_the_code(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = demo.main([*QUICK, "--require", "0.85", "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert status == 0, printed
    assert "mean held-out accuracy 0." in printed.out
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert "void k_" in (tmp_path / "step.c").read_text()


def test_an_accuracy_below_the_required_one_fails(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*QUICK, "--epochs", "1", "--require", "1.0", "--out", str(tmp_path)]
    assert demo.main(arguments) == 1
    assert "below the required 1.0" in capsys.readouterr().err


def test_a_learning_rate_that_is_far_too_high_is_reported_as_divergence(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main([*QUICK, "--learning-rate", "1e6", "--out", str(tmp_path)]) == 1
    assert "training diverged: seed 0: The loss" in capsys.readouterr().err
    assert not (tmp_path / "digits.png").exists()


def test_the_same_seed_gives_the_same_accuracy(demo: ModuleType) -> None:
    data = demo.digits()
    options = demo.parse([*QUICK, "--epochs", "2"])
    first, second = (demo.train(data, options, seed=3) for _ in range(2))
    assert first.losses == second.losses


def test_held_out_images_are_not_trained_on(demo: ModuleType) -> None:
    data = demo.digits()
    seen = {image.tobytes() for image in data.train_images}
    assert len(data.train_images) + len(data.test_images) == 1797
    assert not any(image.tobytes() in seen for image in data.test_images)
