"""Operators on bytes with a scale and a zero point: sums, functions, pools and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed")

from plugins.ocannl_onnx.tests.microsoft import check
from plugins.ocannl_onnx.tests.test_attention import as_heads, attended

Array = np.ndarray[Any, Any]
FORMATS = ["uint8", "int8"]


class Scaled:
    """Random bytes, with their scale and zero point."""

    def __init__(self, dtype: str, *shape: int, scale: float, zero: int, seed: int = 0) -> None:
        limits = np.iinfo(dtype)
        random = np.random.default_rng([seed, *shape])
        self.cells = random.integers(limits.min, limits.max + 1, shape).astype(dtype)
        self.scale, self.zero = np.array(scale, np.float32), np.array(zero, dtype)

    @property
    def real(self) -> Array:
        return (self.cells.astype(np.int32) - int(self.zero)).astype(np.float32) * self.scale


def as_bytes(real: Array, scale: float, zero: int, dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(np.rint(real / np.float32(scale)) + zero, limits.min, limits.max).astype(dtype)


def target(scale: float, zero: int, dtype: str) -> dict[str, Array]:
    return {"ys": np.array(scale, np.float32), "yz": np.array(zero, dtype)}


NUMBERS = {"as", "az", "bs", "bz", "ys", "yz"}
MIDDLE = {"uint8": 121, "int8": -3}


@pytest.mark.parametrize("known", [(), NUMBERS], ids=["at run time", "known"])
@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((3, 1), (2, 1, 4))])
@pytest.mark.parametrize("dtype", FORMATS)
def test_sums_and_products_agree(
    dtype: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], known: tuple[str, ...]
) -> None:
    zero = MIDDLE[dtype]
    a = Scaled(dtype, *shapes[0], scale=0.031, zero=zero)
    b = Scaled(dtype, *shapes[1], scale=0.0173, zero=zero + 5, seed=1)
    cells = {"a": a.cells, "as": a.scale, "az": a.zero, "b": b.cells, "bs": b.scale, "bz": b.zero}
    for name, real in (("QLinearAdd", a.real + b.real), ("QLinearMul", a.real * b.real)):
        expected = as_bytes(real, 0.0417, zero - 4, dtype)
        check(name, {**cells, **target(0.0417, zero - 4, dtype)}, [expected], known)


@pytest.mark.parametrize("dtype", FORMATS)
def test_functions_agree(dtype: str) -> None:
    x = Scaled(dtype, 2, 3, 50, scale=0.031, zero=MIDDLE[dtype])
    cells = {"x": x.cells, "as": x.scale, "az": x.zero}
    low = np.iinfo(dtype).min
    sigmoid = as_bytes(1 / (1 + np.exp(-x.real)), 1 / 256, low, dtype)
    check("QLinearSigmoid", {**cells, **target(1 / 256, low, dtype)}, [sigmoid], NUMBERS)
    leaky = as_bytes(np.where(x.real < 0, np.float32(0.2) * x.real, x.real), 0.02, 5, dtype)
    check("QLinearLeakyRelu", {**cells, **target(0.02, 5, dtype)}, [leaky], NUMBERS, alpha=0.2)
    for axis, version in ((-1, 13), (1, 13), (1, 12)):
        axes = (1, 2) if version < 13 else axis
        powers = np.exp(x.real - x.real.max(axes, keepdims=True))
        real = powers / powers.sum(axes, keepdims=True)
        check(
            "QLinearSoftmax", {**cells, **target(1 / 256, low, dtype)},
            [as_bytes(real, 1 / 256, low, dtype)], NUMBERS, axis=axis, opset=version,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_are_brought_to_one_scale(dtype: str, axis: int) -> None:
    shapes = ((2, 3, 4), (5, 3, 4)) if axis == 0 else ((2, 3, 4), (2, 6, 4))
    zero = MIDDLE[dtype]
    a = Scaled(dtype, *shapes[0], scale=0.031, zero=zero)
    b = Scaled(dtype, *shapes[1], scale=0.0173, zero=zero + 5)
    cells = {
        **target(0.025, zero - 1, dtype),
        "a": a.cells, "as": a.scale, "az": a.zero, "b": b.cells, "bs": b.scale, "bz": b.zero,
    }  # fmt: skip
    expected = as_bytes(np.concatenate([a.real, b.real], axis), 0.025, zero - 1, dtype)
    check("QLinearConcat", cells, [expected], NUMBERS, axis=axis)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("channels_last", [0, 1])
def test_pools_agree(dtype: str, channels_last: int) -> None:
    zero = MIDDLE[dtype]
    x = Scaled(dtype, 2, 3, 6, 5, scale=0.0317, zero=zero)
    real = x.real
    cells = {
        "x": x.cells.transpose(0, 2, 3, 1).copy() if channels_last else x.cells,
        "as": x.scale, "az": x.zero, **target(0.01103, zero + 2, dtype),
    }  # fmt: skip

    def check_pool(name: str, mean: Array, **options: Any) -> None:
        expected = as_bytes(mean.astype(np.float32), 0.01103, zero + 2, dtype)
        expected = expected.transpose(0, 2, 3, 1).copy() if channels_last else expected
        check(name, cells, [expected], NUMBERS, channels_last=channels_last, **options)

    check_pool("QLinearGlobalAveragePool", real.mean((2, 3), keepdims=True, dtype=np.float64))
    if channels_last:
        return  # onnxruntime takes other pads there
    windows = np.lib.stride_tricks.sliding_window_view
    view = windows(real, (3, 2), (2, 3))[:, :, ::2]
    kernel = {"kernel_shape": [3, 2], "strides": [2, 1]}
    check_pool("QLinearAveragePool", view.mean((4, 5), dtype=np.float64), **kernel)
    wide = np.pad(real, [(0, 0), (0, 0), (1, 1), (0, 1)])
    total = windows(wide, (3, 2), (2, 3))[:, :, ::2].sum((4, 5), dtype=np.float64)
    count = windows(np.pad(np.ones((6, 5)), [(1, 1), (0, 1)]), (3, 2))[::2].sum((2, 3))
    kernel["pads"] = [1, 0, 1, 1]
    check_pool("QLinearAveragePool", total / count, **kernel)
    check_pool("QLinearAveragePool", total / 6, count_include_pad=1, **kernel)


@pytest.mark.parametrize("turns", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "scales of columns"])
@pytest.mark.parametrize("weights", FORMATS)
def test_products_of_bytes_agree(weights: str, columns: bool, turns: tuple[int, int]) -> None:
    a = Scaled("uint8", 5, 19, scale=0.031, zero=121)
    b = Scaled(weights, 19, 7, scale=0.0173, zero=MIDDLE[weights])
    if columns:
        b.scale = np.linspace(0.01, 0.02, 7, dtype=np.float32)
        b.zero = np.arange(7).astype(weights)
    bias = np.random.default_rng(0).integers(-2000, 2000, 7).astype(np.int32)
    left = a.cells.astype(np.int32) - int(a.zero)
    right = b.cells.astype(np.int32) - b.zero.astype(np.int32)
    real = (left @ right + bias).astype(np.float32) * (np.float32(0.5) * a.scale * b.scale)
    cells = {
        "a": a.cells.T.copy() if turns[0] else a.cells, "as": a.scale, "az": a.zero,
        "b": b.cells.T.copy() if turns[1] else b.cells, "bs": b.scale, "bz": b.zero, "c": bias,
    }  # fmt: skip
    options: dict[str, Any] = {"alpha": 0.5, "transA": turns[0], "transB": turns[1]}
    known = NUMBERS | {"b", "c"}
    check("QGemm", cells, [real], known, **options)
    expected = as_bytes(real, 0.7, 130, "uint8")
    check("QGemm", {**cells, **target(0.7, 130, "uint8")}, [expected], known, **options)


@pytest.mark.parametrize("weights", FORMATS)
def test_real_products_of_bytes_agree(weights: str) -> None:
    random = np.random.default_rng(0)
    a = Scaled("uint8", 2, 5, 19, scale=0.031, zero=121)
    b = Scaled(weights, 19, 7, scale=0.0173, zero=MIDDLE[weights])
    bias = random.standard_normal(7).astype(np.float32)
    left = a.cells.astype(np.int32) - int(a.zero)
    right = b.cells.astype(np.int32) - int(b.zero)
    cells = {
        "a": a.cells, "b": b.cells, "as": a.scale, "bs": b.scale, "az": a.zero, "bz": b.zero,
        "c": bias,
    }  # fmt: skip
    expected = (left @ right).astype(np.float32) * (a.scale * b.scale) + bias
    check("MatMulIntegerToFloat", cells, [expected], {"b", "bs", "bz", "c"})

    x = random.standard_normal((2, 5, 19)).astype(np.float32)
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / np.float32(255))
    zero = np.rint(-low / scale)
    numbers = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero).astype(np.int32)
    expected = (numbers @ right).astype(np.float32) * (scale * b.scale) + bias
    cells = {"x": x, "b": b.cells, "bs": b.scale, "bz": b.zero, "c": bias}
    check("DynamicQuantizeMatMul", cells, [expected], {"b", "bs", "bz", "c"}, tolerance=1e-4)


def test_attention_of_bytes_agrees() -> None:
    x = Scaled("uint8", 2, 3, 6, scale=0.011, zero=121)
    weights = Scaled("int8", 6, 192, scale=0.0173, zero=0)
    bias = np.random.default_rng(0).standard_normal(192).astype(np.float32)
    mask = np.array([[1, 0, 1], [1, 1, 0]], np.int32)
    heads = [as_heads(each) for each in np.split(x.real @ weights.real + bias, 3, -1)]
    cells = {
        "x": x.cells, "w": weights.cells, "c": bias, "as": x.scale, "bs": weights.scale,
        "m": mask, "az": x.zero, "bz": weights.zero,
    }  # fmt: skip
    expected = attended(*heads, np.where(mask > 0, 0, -10000.0)[:, None, None])
    check("QAttention", cells, [expected], NUMBERS | {"w", "c"}, tolerance=1e-4, num_heads=4)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_conversions_agree(dtype: str) -> None:
    x = 3 * np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    scales, zeros = np.array([0.01, 0.02, 0.03], np.float32), np.array([1, 3, 4], dtype)
    limits = np.iinfo(dtype)
    shift = zeros.astype(np.int32)[:, None]
    numbers = np.clip(np.rint(x / scales[:, None]) + shift, limits.min, limits.max).astype(dtype)
    cells = {"x": x, "s": scales, "z": zeros}
    check("QuantizeLinear", cells, [numbers], {"s", "z"}, axis=1)
    real = (numbers.astype(np.int32) - shift).astype(np.float32) * scales[:, None]
    cells = {"x": numbers, "s": scales, "z": zeros}
    check("DequantizeLinear", cells, [real], {"s", "z"}, axis=1)
