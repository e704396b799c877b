"""The programs of the gallery learn, at small settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ocannl_core as oc

Example = Callable[[str], ModuleType]


def test_the_ladder_of_names_descends(example: Example) -> None:
    makemore = example("makemore")
    models = ["bigram", "mlp", "wavenet"]
    found = makemore.main(["--epochs", "2", "--names", "400", "--models", *models])
    losses = [found[each].held_out for each in models]
    assert losses[0] < 3.1
    assert losses[1] < losses[0] - 0.3
    assert losses[2] < losses[0] - 0.3
    assert all(set(name) <= set(makemore.LETTERS) for name in found["mlp"].invented)


def test_the_census_names_are_there_once(example: Example) -> None:
    names = example("makemore").names()
    assert len(names) == len(set(names)) == 5163


def test_lenet_learns_and_leaves_a_checkpoint(example: Example, tmp_path: Path) -> None:
    lenet = example("lenet")
    known, held_out = lenet.digit_images()
    file = tmp_path / "lenet.safetensors"
    result = lenet.train(known, held_out, 2, file=file)
    assert result.evaluations[-1] > 0.85
    assert file.exists()


def test_lenet_reads_the_files_of_mnist(example: Example, tmp_path: Path) -> None:
    for part, count in (("train", 3), ("t10k", 2)):
        for kind, shape in (("images-idx3", (count, 4, 5)), ("labels-idx1", (count,))):
            head = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            cells = (np.arange(np.prod(shape)) % 10).astype(np.uint8)
            (tmp_path / f"{part}-{kind}-ubyte").write_bytes(head + cells.tobytes())
    known, held_out = example("lenet").mnist(tmp_path)
    assert known[0].shape == (3, 4, 5, 1)
    assert held_out[1].tolist() == [0, 1]
    assert known[0].max() <= 1


def test_text_written_from_the_cache_is_that_of_whole_windows(example: Example) -> None:
    gpt = example("char_gpt")
    text = "the cat sat on the mat. " * 40
    writer = gpt.Writer((text, text[:300]), 150, batch=8, length=16, width=16, heads=2)
    assert writer.held_out < 1.5
    written = writer.continue_text("the ", temperature=0.0)
    assert written.startswith("the ")
    codes = np.array([[writer.alphabet.index(each) for each in written]], np.int32)
    with oc.evaluation():
        scores = writer.model(oc.tensor(codes, batch_axes=2))
    writer.ctx.compile(oc.train.forward(scores))()
    assert writer.ctx[scores][0].argmax(axis=1)[3:-1].tolist() == codes[0, 4:].tolist()
    weights = writer.attention("the cat").cells
    assert weights.shape == (4, 7, 7)  # two heads of two layers
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)


def test_the_autoencoder_tightens_its_bound(example: Example) -> None:
    vae = example("vae")
    result = vae.train(4, hidden=32)
    assert result.last < 33 < 45 < result.first
    assert result.images.shape == (8, 8, 8)


def test_the_generator_finds_the_clusters(example: Example) -> None:
    gan = example("gan")
    result = gan.train(250)
    assert result.covered >= 5
    assert gan.judge(gan.clusters(500, np.random.default_rng(1))).covered == 8


def test_the_recurrent_network_remembers_both_numbers(example: Example) -> None:
    assert example("gru").train(250, length=8, width=24).held_out < 0.03


def test_the_pendulum_obeys_its_equation(example: Example) -> None:
    pendulum = example("pendulum")
    assert np.abs(pendulum.solution(np.array([0.0, 0.01])) - [1.2, 1.2 - 9.3e-5]).max() < 1e-5
    result = pendulum.train(1500, points=32)
    assert result.error < 0.06
    assert abs(result.stiffness - pendulum.STIFFNESS) < 0.1
    assert abs(result.damping - pendulum.DAMPING) < 0.06


def test_all_puzzles_agree_with_numpy(example: Example) -> None:
    puzzles = example("puzzles")
    assert puzzles.main() == len(puzzles.PUZZLES) == 20


def test_the_karate_club_divides_as_it_did(example: Example) -> None:
    karate = example("karate_club")
    source, target = karate.edges()
    assert len(source) == 2 * 78 + 34
    assert {*zip(source, target, strict=True)} == {*zip(target, source, strict=True)}
    assert karate.train(60).right >= 29


def test_short_rows_are_sorted(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("sort_digits")
    monkeypatch.setattr(module, "LENGTH", 3)
    result = module.train(150, batch=50, width=24)
    assert result.sorted > 0.8
    assert result.losses[-1] < 0.5


def test_saved_layers_are_trained_again_with_few_images(example: Example, tmp_path: Path) -> None:
    result = example("finetune").train(3, tmp_path / "digits.safetensors")
    assert result.first > 0.8
    assert result.frozen > 0.7
    assert result.tuned > 0.7
