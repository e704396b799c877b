"""Picture of a training run: its curves, and predictions for held-out images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import numpy as np
import numpy.typing as npt
from digits_data import Digits

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # needs the choice above: no display

_ROWS, _COLUMNS = 4, 12
_RIGHT, _WRONG = "#2a7d4f", "#c8102e"


class DrawableRun(Protocol):
    """The part of a training run that is drawn."""

    seed: int
    losses: list[float]
    accuracies: list[float]
    predictions: npt.NDArray[np.int64]


def save_picture(runs: Sequence[DrawableRun], data: Digits, path: Path) -> None:
    """Draw all runs' curves, and the last run's predictions: every wrong one first."""
    figure: Any = plt.figure(figsize=(13, 8), layout="constrained")
    curves, gallery = figure.subfigures(2, 1, height_ratios=[1, 1.15])
    _draw_curves(curves.subplots(1, 2), runs)
    _draw_gallery(gallery, runs[-1], data)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_curves(axes: Any, runs: Sequence[DrawableRun]) -> None:
    loss_axes, accuracy_axes = axes
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(runs)))
    for run, color in zip(runs, colors, strict=True):
        epochs = range(1, len(run.losses) + 1)
        loss_axes.plot(epochs, run.losses, color=color, label=f"seed {run.seed}")
        accuracy_axes.plot(epochs, run.accuracies, color=color, label=f"seed {run.seed}")
    loss_axes.set(title="training loss", xlabel="epoch", ylabel="mean cross-entropy", yscale="log")
    lowest = min(min(run.accuracies) for run in runs)
    accuracy_axes.set(
        title="held-out accuracy", xlabel="epoch", ylim=(max(0.0, min(0.88, lowest - 0.01)), 1.0)
    )
    for each in axes:
        each.grid(alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
    accuracy_axes.legend(loc="lower right", frameon=False)


def _draw_gallery(figure: Any, run: DrawableRun, data: Digits) -> None:
    is_right = run.predictions == data.test_classes
    wrong = np.flatnonzero(~is_right)
    shown = np.concatenate([wrong, np.flatnonzero(is_right)])[: _ROWS * _COLUMNS]
    figure.suptitle(
        f"held-out images, seed {run.seed}: {len(wrong)} of {len(is_right)} are wrong"
        " (red: predicted, and the true digit in brackets)"
    )
    axes = figure.subplots(_ROWS, _COLUMNS)
    for each in axes.flat:
        each.set_axis_off()
    for each, index in zip(axes.flat, shown, strict=False):
        predicted, true = run.predictions[index], data.test_classes[index]
        each.set_axis_on()
        each.set(xticks=[], yticks=[])
        each.imshow(data.test_images[index].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        color = _RIGHT if predicted == true else _WRONG
        label = f"{predicted}" if predicted == true else f"{predicted}  ({true})"
        each.set_title(label, fontsize=10, color=color, pad=3)
        each.spines[:].set(color=color, linewidth=0.8 if predicted == true else 2.5)
