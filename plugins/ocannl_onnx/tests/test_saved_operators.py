"""Expressions that are saved as one operator: products of bytes, and overlapping windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import helper  # noqa: E402

import ocannl_onnx  # noqa: E402
from plugins.ocannl_onnx.tests.models import model  # noqa: E402
from plugins.ocannl_onnx.tests.saved import Saved, computed, run_elsewhere, saved  # noqa: E402


def operators(proto: onnx.ModelProto) -> list[str]:
    """Return the operators of a model and of its functions."""
    nodes = [*proto.graph.node, *(node for each in proto.functions for node in each.node)]
    return [node.op_type for node in nodes]


def check(found: Saved, tolerance: float) -> None:
    """Compare the results elsewhere, and of the model that is read back."""
    found.check()
    for results in (found.elsewhere(), found.read_back()):
        for one, expected in zip(results, found.results, strict=True):
            assert one.dtype == expected.dtype
            np.testing.assert_allclose(one, expected, rtol=tolerance, atol=tolerance)


def _x(name: str, *output: int, dtype: str | None = None, batch: Any = ()) -> Any:
    return oc.placeholder(name, output=list(output), batch=list(batch), dtype=dtype)


def shifted(tensor: Any, zero: Any) -> Any:
    return oc.cast(tensor, "int32") - zero


PRODUCTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "bytes": lambda a, b, _: (a, b),
    "zero points": lambda a, b, _: (shifted(a, 128), shifted(b, 3)),
    "a zero point of the left factor": lambda a, b, _: (shifted(a, 7), b),
    "a zero point at run time": lambda a, b, zero: (
        shifted(a, oc.cast(zero, "int32")),
        oc.cast(b, "int32"),
    ),
}


@pytest.mark.parametrize("spec", ["ij; jk => ik", "ij; jk => ki", "nij; njk => nik"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_bytes_is_one_operator(name: str, spec: str, tmp_path: Path) -> None:
    batch = [3] if spec.startswith("n") else []
    with oc.Session():
        a, b = _x("a", *batch, 4, 8, dtype="uint8"), _x("b", *batch, 8, 5, dtype="int8")
        factors = PRODUCTS[name](a, b, _x("zero", dtype="uint8"))
        found = saved(tmp_path / "model.onnx", oc.einsum(spec, *factors, dtype="int32"))
    assert operators(found.proto).count("MatMulInteger") == 1
    assert not {"MatMul", "Einsum", "Cast", "Sub"} & {*operators(found.proto)}
    check(found, 0)


def other_products() -> dict[str, Any]:
    a, b = _x("a", 4, 8, dtype="uint8"), _x("b", 8, 5, dtype="int8")
    c = _x("c", 8, dtype="uint8")
    return {
        "a zero point that is no byte": oc.einsum(
            "ij; jk => ik", shifted(a, 256), b, dtype="int32"
        ),
        "a zero point for each row": oc.einsum(
            "ij; jk => ik", shifted(a, oc.cast(c, "int32")), b, dtype="int32"
        ),
        "a product of no matrices": oc.einsum("j; jk => k", c, b, dtype="int32"),
    }


@pytest.mark.parametrize(
    "name",
    ["a zero point that is no byte", "a zero point for each row", "a product of no matrices"],
)
def test_other_products_of_bytes_are_none(name: str, tmp_path: Path) -> None:
    with oc.Session():
        found = saved(tmp_path / "model.onnx", other_products()[name])
    assert "MatMulInteger" not in operators(found.proto)
    check(found, 0)


def windows(spec: str, x: Any, w: Any) -> Callable[[], Any]:
    return lambda: oc.einsum(spec, _x("x", *x), _x("w", *w))


def image() -> Any:
    return _x("x", 5, 6, 4, batch=[2])


WINDOWS: dict[str, Callable[[], Any]] = {
    "strides": lambda: oc.nn.conv(image(), channels=6, kernel=3, stride=2, transposed=True),
    "disjoint windows": lambda: oc.nn.conv(
        image(), channels=6, kernel=2, stride=2, transposed=True
    ),
    "dilation": lambda: oc.nn.conv(image(), channels=6, kernel=3, dilation=2, transposed=True),
    "groups": lambda: oc.nn.conv(
        image(), channels=6, kernel=3, stride=2, groups=2, transposed=True
    ),
    "one axis": windows("n,a,c; i,c,d => n,d,3*a<+2*i", (2, 5, 4), (3, 4, 6)),
    "three axes": windows("a,b,e,c; i,j,k,c => 2*a<+i,b<+j,e<+k", (3, 2, 4, 2), (2, 3, 2, 2)),
    "each channel by itself": windows("a,b,c; i,j,c => 2*a<+i,2*b<+j,c", (5, 4, 3), (3, 2, 3)),
    "windows along the first of two axes": windows(
        "a,b,c; i,c,d => 2*a<+i,b,d", (5, 4, 3), (3, 3, 6)
    ),
    "windows of one cell along an axis": windows(
        "a,b,c; j,c,d => 2*a,2*b<+j,d", (5, 4, 3), (3, 3, 6)
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_overlapping_windows_are_one_operator(name: str, tmp_path: Path) -> None:
    with oc.Session(seed=0):
        found = saved(tmp_path / "model.onnx", WINDOWS[name]())
    assert operators(found.proto).count("ConvTranspose") == 1
    assert not {"ScatterND", "Einsum", "MatMul"} & {*operators(found.proto)}
    check(found, 1e-5)


OTHER_WINDOWS: dict[str, Callable[[], Any]] = {
    "a sum before the product": lambda: oc.einsum(
        "...,a,c; i,c,d => 2*a<+i,d", _x("x", 2, 5, 4), _x("w", 3, 4, 6)
    ),
    "float64": lambda: oc.einsum(
        "a,c; i,c => 2*a<+i", _x("x", 5, 4, dtype="float64"), _x("w", 3, 4, dtype="float64")
    ),
    "disjoint windows along one axis": windows("a,c; i,c => 3*a<+i", (5, 4), (3, 4)),
}


@pytest.mark.parametrize("name", OTHER_WINDOWS)
def test_other_windows_are_none(name: str, tmp_path: Path) -> None:
    with oc.Session(seed=0):
        found = saved(tmp_path / "model.onnx", OTHER_WINDOWS[name]())
    assert "ConvTranspose" not in operators(found.proto)
    check(found, 1e-5)


def test_a_batch_of_open_size_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with oc.Session(seed=0):
        rows = oc.static_extent("rows", max=9)
        x = _x("x", 4, 5, 2, batch=[rows])
        y = oc.nn.conv(x, channels=3, kernel=3, stride=2, transposed=True)
        cells = np.random.default_rng(0).normal(size=(5, 4, 5, 2)).astype(np.float32)
        (expected,), ctx = computed([y], {x: cells}, rows=5)
        ocannl_onnx.save(path, {"y": y}, [x], ctx)
    assert operators(onnx.load(path)).count("ConvTranspose") == 1
    onnx.checker.check_model(str(path), full_check=True)
    np.testing.assert_allclose(run_elsewhere(path, {"x": cells})[0], expected, atol=1e-5)


def test_positions_among_open_sizes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with oc.Session(seed=0):
        x = _x("x", oc.static_extent("n", max=9), 3, batch=[oc.static_extent("rows", max=4)])
        y = oc.argmax(x)
        cells = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
        (expected,), ctx = computed([y], {x: cells}, rows=2, n=5)
        ocannl_onnx.save(path, {"y": y}, [x], ctx)
    onnx.checker.check_model(str(path), full_check=True)
    assert run_elsewhere(path, {"x": cells})[0] == expected == cells.argmax()


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 2], "pads": [1, 0, 1, 1], "output_padding": [1, 0]},
        {"group": 2, "strides": [3, 1], "dilations": [1, 2]},
    ],
    ids=["plain", "strides", "groups"],
)
def test_operators_that_are_read_are_written_again(
    attributes: dict[str, Any], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    weights = {"w": random.normal(size=(4, 3, 3, 2)).astype(np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    first = tmp_path / "first.onnx"
    onnx.save(model([node], {"x": [2, 4, 5, 4]}, {"y": None}, weights), first)
    inputs = {"x": random.normal(size=(2, 4, 5, 4)).astype(np.float32)}
    with oc.Session():
        found = saved(tmp_path / "second.onnx", ocannl_onnx.load(first)(image_in_order()))
    assert operators(found.proto).count("ConvTranspose") == 1
    expected = run_elsewhere(first, inputs)
    np.testing.assert_allclose(run_elsewhere(found.path, inputs)[0], expected[0], atol=1e-5)
    check(found, 1e-5)


def image_in_order() -> Any:
    return _x("x", 2, 4, 5, 4)


def test_the_gradient_of_a_convolution_is_one_operator(tmp_path: Path) -> None:
    """So are the windows of a training step."""
    with oc.Session(seed=0):
        x, w = _x("x", 7, 6, 2), _x("w", 3, 3, 2, 4)
        y = oc.einsum("2*a<+i, b<+j, c; i,j,c,d => a,b,d", x, w)
        (gradient,) = oc.gradients(oc.sum(y * y), [x])
        found = saved(tmp_path / "model.onnx", gradient)
    assert operators(found.proto).count("ConvTranspose") == 1
    check(found, 1e-4)


def test_angles_and_quotients_of_special_values(tmp_path: Path) -> None:
    numbers = np.array([0.0, -0.0, 0.5, -1.5, 3.0, np.inf, -np.inf, np.nan], np.float32)
    a, b = (each.ravel() for each in np.meshgrid(numbers, numbers))
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        y, x = _x("y", 64), _x("x", 64)
        results = [oc.atan2(y, x), oc.floor_divide(y, x), oc.remainder(y, x)]
        path = tmp_path / "model.onnx"
        ocannl_onnx.save(path, results, [y, x])
        expected, _ = computed(results, {y: a, x: b})
    elsewhere = run_elsewhere(path, {"y": a, "x": b})
    for found, each in zip(elsewhere, expected, strict=True):
        np.testing.assert_allclose(found, each, rtol=1e-6)
