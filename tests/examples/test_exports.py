"""Exported routines of the examples have the bits of the routines."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.runtime.routine import Routine
from tests.support.example_count import is_exploring
from tests.support.exported_routines import compiled, exported, recorded_routines

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TEXT = "the cat sat on the mat. " * 40


def makemore(module: Any, folder: Path) -> None:
    module.main(["--epochs", "3", "--names", "200"])


def lenet(module: Any, folder: Path) -> None:
    known, held_out = module.digit_images()
    module.train(known, held_out, 2)


def char_gpt(module: Any, folder: Path) -> None:
    writer = module.Writer((TEXT, TEXT[:300]), 5, batch=8, length=16, width=16, heads=2)
    writer.continue_text("the ", temperature=0.0)


def names(module: Any, folder: Path) -> None:
    module.Speller(module.names()[:-100], epochs=1).name(np.random.default_rng(0))


def digits(module: Any, folder: Path) -> None:
    module.main(["--epochs", "1", "--seeds", "1", "--out", str(folder), "--quiet"])


RUNS: dict[str, Callable[[Any, Path], object]] = {
    "char_gpt": char_gpt,
    "digits": digits,
    "finetune": lambda module, folder: module.train(1, folder / "digits.safetensors"),
    "gan": lambda module, folder: module.train(3),
    "gru": lambda module, folder: module.train(3, length=8, width=24),
    "karate_club": lambda module, folder: module.train(3),
    "lenet": lenet,
    "makemore": makemore,
    "micrograd": lambda module, folder: module.main(),
    "moons": lambda module, folder: module.train(1),
    "names": names,
    "pendulum": lambda module, folder: module.train(60, points=32),
    "puzzles": lambda module, folder: module.main(),
    "sort_digits": lambda module, folder: module.train(3, batch=50, width=24),
    "vae": lambda module, folder: module.train(1, hidden=32),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_bits_of_an_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with oc.Session(seed=0), oc.settings.overrides(backend="cpu_c"), recorded_routines() as found:
        RUNS[name](importlib.import_module(name), tmp_path)
        by_context: dict[int, list[Routine]] = {}
        for each in found:
            by_context.setdefault(id(each.context), []).append(each)
        for number, routines in enumerate(by_context.values()):
            (folder := tmp_path / f"context{number}").mkdir()
            model = exported(routines, folder)
            for level in ("-O1", "-O3") if is_exploring() else ("-O3",):
                library = compiled(model, ["gcc", level, "-march=native"], level)
                assert model.differences(model.states(library)) == []
