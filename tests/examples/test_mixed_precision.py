"""Programs of the gallery in 16 bits, with parameters in 32, learn as in 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

import ocannl_core as oc

Example = Callable[[str], ModuleType]


def bound_of_the_autoencoder(example: Example, scale: oc.train.DynamicScale | None) -> float:
    """Return the held-out bound after 299 steps."""
    result = example("vae").train(13, hidden=32, code=4, scale=scale)
    return float(result.last)


def loss_of_the_perceptron(example: Example, scale: oc.train.DynamicScale | None) -> float:
    """Return the loss on held-out names after one pass over the others."""
    makemore = example("makemore")
    words = makemore.names()[:400]
    return float(makemore.train(makemore.mlp, 1, words, 8, scale=scale).held_out)


@pytest.mark.parametrize("train", [bound_of_the_autoencoder, loss_of_the_perceptron])
def test_losses_of_short_formats_are_within_a_percent_of_those_of_float32(
    example: Example, train: Callable[..., float]
) -> None:
    found = {}
    for dtype in ("float32", "bfloat16", "float16"):
        scale = oc.train.DynamicScale() if dtype == "float16" else None
        with oc.Session(seed=0, dtype=dtype, param_dtype="float32"):
            found[dtype] = train(example, scale)
    assert found["bfloat16"] != found["float32"] != found["float16"]
    assert found["bfloat16"] == pytest.approx(found["float32"], rel=0.01)
    assert found["float16"] == pytest.approx(found["float32"], rel=0.01)
