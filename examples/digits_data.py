"""Handwritten digits that ship with scikit-learn, split into two parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Images = npt.NDArray[np.float32]
"""Pixel brightness from 0 to 1, one row of 64 per image."""

Classes = npt.NDArray[np.int64]
"""The digit in each image."""

Labels = npt.NDArray[np.int32]

PIXELS = 64
CLASSES = 10
_LARGEST_PIXEL = 16.0


@dataclass(frozen=True, slots=True)
class Digits:
    """Training images and held-out images."""

    train_images: Images
    train_classes: Classes
    test_images: Images
    test_classes: Classes


def digits(test_fraction: float = 0.2, seed: int = 0) -> Digits:
    """Return the 1797 images, split so that every digit has the same share in both parts.

    The seed fixes the split, not the training: all runs are judged on the same held-out images.
    """
    images, classes = load_digits(return_X_y=True)
    train_images, test_images, train_classes, test_classes = train_test_split(
        (images / _LARGEST_PIXEL).astype(np.float32),
        classes.astype(np.int64),
        test_size=test_fraction,
        stratify=classes,
        random_state=seed,
    )
    return Digits(train_images, train_classes, test_images, test_classes)


def digit_images() -> tuple[tuple[Images, Labels], tuple[Images, Labels]]:
    """Return the images to train on and the held-out ones, of 8 by 8 pixels and one channel."""
    found = digits()
    return (
        (found.train_images.reshape(-1, 8, 8, 1), found.train_classes.astype(np.int32)),
        (found.test_images.reshape(-1, 8, 8, 1), found.test_classes.astype(np.int32)),
    )
