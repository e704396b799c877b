"""Operators that onnxruntime's optimizer joins from several: norms, activations, products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed")

from plugins.ocannl_onnx.tests.microsoft import check

Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def layer_norm(x: Array, gain: Array, shift: Any = 0.0, epsilon: float = 1e-12) -> Array:
    centered = x - x.mean(-1, keepdims=True, dtype=np.float64)
    variance = (centered * centered).mean(-1, keepdims=True)
    return (centered / np.sqrt(variance + epsilon) * gain + shift).astype(np.float32)


def square_norm(x: Array, gain: Array, epsilon: float = 1e-12) -> Array:
    mean = (x.astype(np.float64) ** 2).mean(-1, keepdims=True)
    return (x / np.sqrt(mean + epsilon) * gain).astype(np.float32)


def gelu(x: Array) -> Array:
    return (x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))).astype(np.float32)


def tanh_gelu(x: Array) -> Array:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return (x * 0.5 * (1 + np.tanh(inner))).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype(np.float32)


def test_activations_agree() -> None:
    x, bias = 3 * normal(2, 3, 8), normal(8)
    check("Gelu", {"x": x}, [gelu(x)])
    check("BiasGelu", {"x": x, "b": bias}, [gelu(x + bias)])
    check("FastGelu", {"x": x}, [tanh_gelu(x)])
    check("FastGelu", {"x": x, "b": bias}, [tanh_gelu(x + bias)], {"b"})
    check("QuickGelu", {"x": x}, [x * sigmoid(1.702 * x)])
    check("QuickGelu", {"x": x}, [x * sigmoid(x)], alpha=1.0)


@pytest.mark.parametrize("epsilon", [{}, {"epsilon": 0.25}])
def test_norms_of_sums_agree(epsilon: dict[str, float]) -> None:
    x, gain, shift, bias = normal(2, 3, 8), normal(8, seed=1), normal(8, seed=2), normal(8, seed=3)
    own = epsilon or {"epsilon": 1e-12}
    for skip in (normal(2, 3, 8, seed=4), normal(1, 3, 8, seed=4), normal(3, 8, seed=4)):
        total = x + skip
        cells = {"x": x, "skip": skip, "gain": gain}
        check("SkipLayerNormalization", cells, [layer_norm(total, gain, **own)], **epsilon)
        check(
            "SkipLayerNormalization",
            {**cells, "shift": shift, "bias": bias},
            [layer_norm(total + bias, gain, shift, **own), total + bias],
            {"gain", "shift", "bias"},
            outputs=["y", "", "", "total"],
            **epsilon,
        )
        check(
            "SkipSimplifiedLayerNormalization",
            {**cells, "bias": bias},
            [square_norm(total + bias, gain, **own), total + bias],
            outputs=["y", "", "", "total"],
            **epsilon,
        )


@pytest.mark.parametrize("epsilon", [1e-5, 0.25])
def test_norms_by_roots_of_mean_squares_agree(epsilon: float) -> None:
    x, gain = normal(2, 3, 8), normal(8, seed=1)
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon))
    expected = [square_norm(x, gain, epsilon), inverse]
    cells = {"x": x, "gain": gain}
    check("SimplifiedLayerNormalization", cells, expected, epsilon=epsilon, domain="")


@pytest.mark.parametrize("has_kinds", [False, True])
@pytest.mark.parametrize("has_positions", [False, True])
def test_embeddings_with_norms_agree(has_kinds: bool, has_positions: bool) -> None:
    random = np.random.default_rng(0)
    words, places, kinds = normal(9, 8), normal(6, 8), normal(2, 8)
    gain, shift = normal(8, seed=1), normal(8, seed=2)
    ids = random.integers(0, 9, (2, 4)).astype(np.int32)
    segments = random.integers(0, 2, (2, 4)).astype(np.int32)
    positions = random.integers(0, 6, (2, 4)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    cells = {
        "ids": ids, "segments": segments if has_kinds else None, "words": words, "places": places,
        "kinds": kinds if has_kinds else None, "gain": gain, "shift": shift, "mask": mask,
        "positions": positions if has_positions else None,
    }  # fmt: skip
    total = words[ids] + (places[positions] if has_positions else places[:4])
    if has_kinds:
        total = total + kinds[segments]
    lengths = mask.sum(1).astype(np.int32)
    check(
        "EmbedLayerNormalization", cells, [layer_norm(total, gain, shift), lengths, total],
        {"words", "places", "kinds", "gain", "shift"}, mask_index_type=1,
    )  # fmt: skip


@pytest.mark.parametrize("shapes", [((5, 4), (4, 6)), ((2, 5, 4), (2, 4, 6)), ((2, 5, 4), (4, 6)),
                                    ((2, 3, 5, 4), (2, 3, 4, 6))], ids=str)  # fmt: skip
@pytest.mark.parametrize("turns", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_turned_products_agree(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], turns: tuple[int, int]
) -> None:
    a, b = normal(*shapes[0]), normal(*shapes[1], seed=1)
    given = [
        np.ascontiguousarray(x.swapaxes(-1, -2)) if t else x
        for x, t in zip((a, b), turns, strict=True)
    ]
    cells = dict(zip("ab", given, strict=True))
    expected = [(0.5 * (a @ b)).astype(np.float32)]
    check("FusedMatMul", cells, expected, alpha=0.5, transA=turns[0], transB=turns[1])


@pytest.mark.parametrize("turns", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_products_with_stacks_behind_the_rows_agree(turns: tuple[int, int]) -> None:
    a, b = normal(2, 3, 5, 4), normal(2, 3, 4, 6, seed=1)
    given = []
    for x, turn in zip((a, b), turns, strict=True):
        turned = x.swapaxes(-1, -2) if turn else x
        given.append(np.ascontiguousarray(np.moveaxis(turned, -2, 0)))
    check(
        "FusedMatMul", dict(zip("ab", given, strict=True)), [a @ b], transBatchA=1, transBatchB=1,
        transA=turns[0], transB=turns[1],
    )  # fmt: skip


def test_products_with_activations_agree() -> None:
    a, b, c = normal(5, 4), normal(4, 6), normal(6)
    total = 0.5 * (a @ b) + 2.0 * c
    leaky = np.where(total < 0, np.float32(0.2) * total, total)
    cells = {"a": a, "b": b, "c": c}
    options: dict[str, Any] = {"alpha": 0.5, "beta": 2.0}
    check("FusedGemm", cells, [np.maximum(total, 0)], activation="Relu", **options)
    check("FusedGemm", cells, [leaky], activation="LeakyRelu", activation_alpha=0.2, **options)
    turned = {**cells, "b": b.T.copy()}
    check(
        "FusedGemm", turned, [sigmoid(total)], {"b", "c"}, activation="Sigmoid", transB=1, **options
    )


@pytest.mark.parametrize("activation", [
    ("Relu", (), lambda x: np.maximum(x, 0)),
    ("LeakyRelu", (0.2,), lambda x: np.where(x < 0, 0.2 * x, x)),
    ("Tanh", (), np.tanh),
    ("Sigmoid", (), sigmoid),
    ("Clip", (-0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75)),
    ("HardSigmoid", (0.3, 0.4), lambda x: np.clip(0.3 * x + 0.4, 0, 1)),
], ids=lambda each: str(each[0]))  # fmt: skip
@pytest.mark.parametrize("has_addend", [False, True])
def test_convolutions_with_activations_agree(activation: Any, has_addend: bool) -> None:
    name, parameters, function = activation
    x, w, bias, addend = normal(1, 3, 5, 6), normal(4, 3, 3, 3), normal(4), normal(1, 4, 5, 6)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3)
    )
    total = np.einsum("ncpqij,mcij->nmpq", windows, w) + bias[:, None, None]
    cells = {"x": x, "w": w, "b": bias}
    if has_addend:
        total, cells = total + addend, {**cells, "z": addend}
    options: dict[str, Any] = {"activation_params": parameters} if parameters else {}
    expected = [function(total).astype(np.float32)]
    check("FusedConv", cells, expected, {"w", "b"}, pads=[1, 1, 1, 1], activation=name, **options)
