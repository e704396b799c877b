"""Products with weights of a few bits, and rows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed")

import ocannl_core as oc
import ocannl_onnx
from plugins.ocannl_onnx.tests.microsoft import DOMAIN, check, model_of

Array = np.ndarray[Any, Any]


def packed(numbers: Array, bits: int) -> Array:
    """Return rows of numbers as bytes, the first number in the low bits."""
    per = 8 // bits
    wide = np.pad(numbers, [*[(0, 0)] * (numbers.ndim - 1), (0, -numbers.shape[-1] % per)])
    parts = wide.reshape(*wide.shape[:-1], -1, per).astype(int) << np.arange(0, 8, bits)
    return parts.sum(-1).astype(np.uint8)


def product_cells(
    bits: int, depth: int, zeros: str, dtype: type = np.float32
) -> tuple[dict[str, Array | None], Array]:
    """Return the inputs of a product of 3 by 5 cells, and the product."""
    random = np.random.default_rng(0)
    width, size = 5, 16
    count = -(-depth // size)
    weights = random.integers(0, 2**bits, (width, count, size))
    scales = (random.standard_normal((width, count)) / 2**bits).astype(dtype)
    shifts = random.integers(0, 2**bits, (width, count))
    a = random.standard_normal((2, 3, depth)).astype(dtype)
    bias = random.standard_normal(width).astype(dtype)
    given: dict[str, tuple[Array | None, Array]] = {
        "none": (None, np.full_like(shifts, 2 ** (bits - 1))),
        "packed": (packed(shifts, bits), shifts),
        "floats": (shifts.astype(dtype), shifts),
    }
    numbers, own = given[zeros]
    real = (weights - own[:, :, None]) * scales.astype(float)[:, :, None]
    cells = {
        "a": a, "b": packed(weights, bits), "s": scales, "z": numbers, "g": None, "c": bias,
    }  # fmt: skip
    return cells, (a @ real.reshape(width, -1)[:, :depth].T + bias).astype(dtype)


@pytest.mark.parametrize("known", [(), ("b", "s", "z", "c")], ids=["at run time", "known"])
@pytest.mark.parametrize("zeros", ["none", "packed", "floats"])
@pytest.mark.parametrize("depth", [64, 73])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_agree(bits: int, depth: int, zeros: str, known: tuple[str, ...]) -> None:
    cells, expected = product_cells(bits, depth, zeros)
    sizes = {"bits": bits, "K": depth, "N": 5, "block_size": 16}
    elsewhere = not (bits == 8 and zeros == "floats")
    check("MatMulNBits", cells, [expected], known, elsewhere=elsewhere, **sizes)


def test_products_of_float16_agree() -> None:
    cells, expected = product_cells(4, 64, "packed", np.float16)
    sizes = {"bits": 4, "K": 64, "N": 5, "block_size": 16}
    check("MatMulNBits", cells, [expected], ("b", "s", "z"), tolerance=4e-3, **sizes)


def test_weights_stay_in_4_bits() -> None:
    """A product reads them from bytes of two cells each, and converts them on the way."""
    cells = {
        "a": np.zeros((1, 512), np.float32),
        "b": np.full((256, 16, 16), 0x9A, np.uint8),
        "s": np.ones((256, 16), np.float32),
    }
    proto = model_of("MatMulNBits", cells, {"b", "s"}, ["y"], K=512, N=256, bits=4, block_size=32)
    with oc.Session():
        y = ocannl_onnx.load(proto)(a=oc.placeholder("a", output=[1, 512]))
        context = oc.Context("cpu_c")
        context.init_params(y)
        routine = context.compile(oc.train.forward(y), keep=[y])
        total = oc.explain(routine).nbytes
    assert total < 1.5 * 256 * 512 / 2


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [({"bits": 3}, "3 bits"), ({"weight_prepacked": 1}, "weight_prepacked")],
)
def test_other_orders_of_weights_are_refused(attributes: dict[str, Any], reason: str) -> None:
    cells, _ = product_cells(4, 64, "none")
    options = {"bits": 4, "K": 64, "N": 5, "block_size": 16, **attributes}
    proto = model_of("MatMulNBits", cells, {"b", "s", "c"}, ["y"], **options)
    with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match=reason) as found, oc.Session():
        ocannl_onnx.load(proto)(a=oc.placeholder("a", output=[2, 3, 64]))
    assert found.value.operator == f"{DOMAIN}::MatMulNBits"


def test_order_of_blocks_is_checked() -> None:
    cells, expected = product_cells(4, 64, "none")
    order = np.arange(64, dtype=np.int32) // 16
    sizes = {"bits": 4, "K": 64, "N": 5, "block_size": 16}
    check("MatMulNBits", {**cells, "g": order}, [expected], ("b", "s", "g", "c"), **sizes)
    proto = model_of("MatMulNBits", {**cells, "g": order[::-1].copy()}, {"b", "g"}, ["y"], **sizes)
    with pytest.raises(ocannl_onnx.UnsupportedOperatorError, match="g_idx"), oc.Session():
        ocannl_onnx.load(proto)(a=np.zeros((2, 3, 64), np.float32), s=cells["s"], c=cells["c"])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_packed_weights_agree(bits: int, zeros: bool) -> None:
    random = np.random.default_rng(0)
    weights = random.integers(0, 2**bits, (7, 64))
    scales = random.standard_normal((7, 4)).astype(np.float32)
    shifts = random.integers(0, 2**bits, (7, 4)) if zeros else np.full((7, 4), 2 ** (bits - 1))
    ids = np.array([[3, 0, 6], [1, 1, -1]], np.int64)
    real = (weights.reshape(7, 4, 16) - shifts[:, :, None]) * scales[:, :, None]
    cells = {
        "data": packed(weights, bits), "ids": ids, "scales": scales,
        "zeros": packed(shifts, bits) if zeros else None,
    }  # fmt: skip
    expected = real.reshape(7, 64)[ids].astype(np.float32)
    for known in ((), ("data", "scales", "zeros")):
        check("GatherBlockQuantized", cells, [expected], known, bits=bits, block_size=16)
