"""Rotations by positions, sinusoids and learned positions, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

X = np.random.default_rng(0).normal(size=(2, 5, 3, 6))
PLACES = np.array([4, 0, 9, 1, 1])


def angles(positions: Any, width: int, base: float = 10000.0) -> Any:
    return np.multiply.outer(positions, base ** (-2.0 * np.arange(width // 2) / width))


def rotated(x: Any, positions: Any, *, interleaved: bool) -> Any:
    """Products of complex numbers, one for each pair of features."""
    turn = np.exp(1j * angles(positions, x.shape[-1]))[..., None, :]
    half = x.shape[-1] // 2
    parts = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    product = (parts[0] + 1j * parts[1]) * turn
    joined = np.stack([product.real, product.imag], -1 if interleaved else -2)
    return joined.reshape(x.shape)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("places", [None, PLACES])
def test_a_rotation_is_a_product_of_complex_numbers(
    check: Any, interleaved: bool, places: Any
) -> None:
    scale = oc.param("scale", output=[3, 6])
    x = scale * oc.tensor(X, batch_axes=2)
    positions = None if places is None else oc.tensor(places, batch_axes=1, dtype="int32")
    output = nn.rotary(x, positions, interleaved=interleaved)

    def reference(scale: Any) -> Any:
        return rotated(
            scale * X, np.arange(5) if places is None else places, interleaved=interleaved
        )

    check(output, reference)


def test_sinusoids_alternate_between_sine_and_cosine(check: Any) -> None:
    scale = oc.param("scale", output=[6])
    output = nn.sinusoidal_positions(scale * oc.tensor(X[:, :, 0], batch_axes=2))

    def reference(scale: Any) -> Any:
        waves = np.stack([f(angles(np.arange(5), 6)) for f in (np.sin, np.cos)], -1)
        return scale * X[:, :, 0] + waves.reshape(5, 6)

    check(output, reference)


def test_learned_positions_are_rows_of_a_table(check: Any) -> None:
    output = nn.learned_positions(oc.tensor(X[:, :, 0], batch_axes=2), length=8)
    assert check(output, lambda table: X[:, :, 0] + table[:5]) == ["8,6"]


def test_scores_of_rotated_queries_and_keys_depend_on_distances(target: str) -> None:
    scores = []
    for start in (0, 100):
        with oc.Session(dtype="float64"):
            places = oc.tensor(start + np.arange(5), batch_axes=1, dtype="int32")
            x = nn.rotary(oc.tensor(X, batch_axes=2), places)
            product = oc.einsum("... s | h d; ... t | h d => ... s | t -> h", x, x)
            ctx = oc.Context(target)
            ctx.compile(oc.train.forward(product))()
            scores.append(ctx[product])
    np.testing.assert_allclose(*scores, rtol=1e-10, atol=1e-12)


def test_a_position_is_an_argument_of_a_call(target: str) -> None:
    with oc.Session(dtype="float64"):
        i = oc.static_index("i", range=100)
        x = oc.tensor(X[:, :1], batch_axes=2)
        y, z = nn.rotary(x, i), nn.sinusoidal_positions(oc.tensor(X[:, :1, 0], batch_axes=2), i)
        ctx = oc.Context(target)
        run = ctx.compile(oc.train.forward(y) + oc.train.forward(z), bindings=[i])
        for place in (0, 7, 99):
            run(i=place)
            expected = rotated(X[:, :1], np.array([place]), interleaved=False)
            np.testing.assert_allclose(ctx[y], expected, rtol=1e-12, atol=1e-14)
            waves = np.stack([f(angles(place, 6)) for f in (np.sin, np.cos)], -1).reshape(6)
            np.testing.assert_allclose(ctx[z], X[:, :1, 0] + waves, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("features", [5, 0])
@pytest.mark.parametrize("block", [nn.rotary, nn.sinusoidal_positions])
def test_an_odd_number_of_features_and_none_have_no_pairs(block: Any, features: int) -> None:
    with oc.Session():
        x = oc.tensor(X[:, :, 0, :features], batch_axes=2)
        with pytest.raises(oc.UsageError, match="pairs of features") as error:
            block(x)
        assert f"{features} features" in str(error.value)


def test_the_base_of_wave_lengths_is_positive() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="positive base"):
        nn.rotary(oc.tensor(X, batch_axes=2), base=-1.0)


def test_positions_that_are_no_integers_are_an_error() -> None:
    with oc.Session():
        places = oc.tensor([0.5, 1.0, 2.0, 3.0, 4.0])
        with pytest.raises(oc.UsageError, match="Positions are integers"):
            nn.rotary(oc.tensor(X, batch_axes=2), places)


def test_the_features_that_a_rotation_divides_are_known() -> None:
    with oc.Session():
        unknown = oc.param("w") @ oc.tensor(X[:, :, 0], batch_axes=2)
        with pytest.raises(oc.ShapeError, match="its size is known when the block is applied"):
            nn.rotary(unknown)
