"""Saving under odd conditions: files in the way, others who save, odd arguments, extreme numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
import ocannl_onnx  # noqa: E402
from plugins.ocannl_onnx.tests.saved import computed, run_elsewhere, run_reference, saved  # noqa: E402


def _x(*output: int, name: str = "x", dtype: str | None = None) -> Any:
    return oc.placeholder(name, output=list(output), dtype=dtype)


def _dense(width: int = 300) -> Any:
    return oc.nn.dense(_x(8), output=width)


# Files


def test_folders_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("folder.onnx", "pipe.onnx"):
        with oc.Session(), pytest.raises(ocannl_onnx.OnnxError, match="as a whole, or not at all"):
            saved(tmp_path / name, _dense(), weights="beside")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder.onnx", "pipe.onnx"]


@pytest.mark.parametrize("path", ["", ".", "/", None, b"model.onnx", "a\0b"])
def test_a_path_names_a_file(path: Any) -> None:
    with oc.Session(), pytest.raises(ocannl_onnx.OnnxError, match="A model is written to a"):
        ocannl_onnx.save(path, oc.relu(_x(3)))


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link, path = tmp_path / "link.onnx", folder / "model.onnx"
    path.touch()
    path.chmod(0o600)
    link.symlink_to(path)
    for width in (300, 400):
        with oc.Session():
            saved(link, _dense(width), weights="beside")
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600
    onnx.checker.check_model(str(path), full_check=True)
    assert len([*folder.iterdir()]) == 2


def test_a_save_keeps_the_weights_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the weights and the model of a save, another one writes both of its files."""
    path = tmp_path / "model.onnx"
    move, moves = os.replace, 0

    def interrupted(*arguments: Any, **options: Any) -> None:
        nonlocal moves
        moves += 1
        if moves == 2:
            with oc.Session():
                saved(path, _dense(400), weights="beside")
        move(*arguments, **options)

    monkeypatch.setattr("os.replace", interrupted)
    with oc.Session():
        found = saved(path, _dense(300), weights="beside")
    assert moves == 4
    found.check()
    assert np.allclose(found.elsewhere()[0], found.results[0], atol=1e-5)


# Arguments


def test_odd_arguments_are_refused(tmp_path: Path) -> None:
    def save(*arguments: Any, **options: Any) -> None:
        ocannl_onnx.save(tmp_path / "m.onnx", *arguments, **options)

    with oc.Session():
        x = _x(3)
        y = oc.relu(x)
        named: list[Any] = [None, 3, "y", [3], {1: y}, {"": y}, {b"y": y}, {"\ud800": y}, {"\0": y}]
        for outputs in named:
            with pytest.raises(ocannl_onnx.OnnxError, match="are tensors with names"):
                save(outputs, [x])
        for inputs in ([x, x], {"a": x, "b": x}):
            with pytest.raises(ocannl_onnx.OnnxError, match="a tensor of its own"):
                save(y, inputs)
        with pytest.raises(ocannl_onnx.OnnxError, match="code of a model computes its outputs"):
            save(y, [x], code=oc.train.forward(2 * x))
        for options in ({"ctx": "ctx"}, {"code": 3}):
            with pytest.raises(ocannl_onnx.OnnxError, match="= is a C"):
                save(y, [x], **options)
        for options in ({"opset": "21"}, {"opset": 21.0}, {"ir_version": 10.5}):
            with pytest.raises(ocannl_onnx.OnnxError, match=r"versions of the file|operator sets"):
                save(y, [x], **options)
    assert list(tmp_path.iterdir()) == []


def test_results_of_one_name_get_numbers(tmp_path: Path) -> None:
    with oc.Session():
        found = saved(tmp_path / "m.onnx", (oc.relu(_x(3)), oc.relu(_x(3, name="other"))))
    assert [each.name for each in found.proto.graph.output] == ["relu", "relu_1"]
    found.check()


# Code that changes state


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_steps_read_the_weights_that_they_change(momentum: float, tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    with oc.Session(seed=1):
        x = _x(3)
        loss = oc.mean(oc.nn.dense(x, output=2) ** 2)
        update = oc.train.sgd_update(loss, learning_rate=0.5, momentum=momentum)
        code = oc.train.grad_update(loss) + update
        weight, bias = code.params["dense.weight"], code.params["dense.bias"]
        ctx = oc.Context("interp")
        ctx.init_params(loss)
        outputs = {"loss": loss, "weight_after": weight, "bias_after": bias}
        ocannl_onnx.save(path, outputs, {"x": x, "weight": weight}, ctx, code=code)
        onnx.checker.check_model(str(path), full_check=True)
        given = {"x": np.array([1, 2, 3], np.float32), "weight": np.asarray(ctx[weight]).copy()}
        ctx[x] = given["x"]
        ctx.compile(code)()
        for there, here in zip(run_elsewhere(path, given), outputs.values(), strict=True):
            assert np.allclose(there, ctx[here], atol=1e-6)
        assert not np.allclose(ctx[weight], given["weight"])


# Numbers


def _check(path: Path, make: Callable[..., Any], *cells: Any) -> None:
    """Check that a function of tensors has equal results elsewhere."""
    with oc.Session():
        every = [np.asarray(each) for each in cells]
        inputs = [_x(*a.shape, name=f"x{k}", dtype=a.dtype.name) for k, a in enumerate(every)]
        result = make(*inputs)
        (here,), ctx = computed([result], dict(zip(inputs, every, strict=True)))
        ocannl_onnx.save(path, {"y": result}, inputs, ctx)
    onnx.checker.check_model(str(path), full_check=True)
    given = {f"x{k}": each for k, each in enumerate(every)}
    for run in (run_reference, run_elsewhere):
        (there,) = run(path, given)
        assert there.dtype == here.dtype
        assert np.array_equal(there, here, equal_nan=here.dtype.kind == "f")


def test_any_number_but_0_is_true(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    _check(path, lambda x: oc.cast(x, "bool"), np.array([0.5, 0, -0.25, 3], np.float32))
    _check(path, lambda x: oc.cast(x, "bool"), np.array([2**32, 0, -(2**40)]))


def test_numbers_beyond_8_bits_are_not_saturated(tmp_path: Path) -> None:
    cells = np.array([1.5, 449, 1e5, -1e6], np.float32)
    for format in ("float8_e4m3fn", "float8_e5m2"):
        _check(
            tmp_path / "m.onnx",
            lambda x, format=format: oc.cast(oc.cast(x, format), "float32"),
            cells,
        )


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_divided_at_the_ends_of_their_range(dtype: str, tmp_path: Path) -> None:
    ends = np.iinfo(dtype)
    a = np.array([ends.max, ends.min, ends.min, 7, -7, -7, 0, 5], dtype)
    b = np.array([-2, 3, -2, -2, 2, -2, 3, 0], dtype)
    _check(tmp_path / "m.onnx", lambda a, b: a // b, a, b)


def test_integers_beyond_53_bits_are_exact(tmp_path: Path) -> None:
    big = 2**60 + 1
    _check(tmp_path / "m.onnx", lambda x: x * big, np.array([1, 3]))
    _check(tmp_path / "m.onnx", lambda x: x + oc.tensor(np.array([big])), np.array([1, 3]))


def test_unsigned_integers_of_64_bits_wrap(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    cells = np.array([1, 2**63 + 5, 0, 2**64 - 1], np.uint64)
    _check(path, lambda x: -x, cells)
    with oc.Session():
        saved(path, _x(3, dtype="uint64") ** 2)
    onnx.checker.check_model(str(path), full_check=True)
