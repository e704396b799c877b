"""Damaged and hostile files end in an error that names the place."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import TensorProto, helper  # noqa: E402

import ocannl_onnx  # noqa: E402
from plugins.ocannl_onnx.tests.models import model, perceptron  # noqa: E402


def apply(proto: onnx.ModelProto) -> None:
    with oc.Session():
        loaded = ocannl_onnx.load(proto)
        loaded(**loaded.placeholders(batch=2))


def test_a_cycle_is_named() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    with pytest.raises(ocannl_onnx.OnnxError, match="'b' is read before Relu"):
        apply(model(nodes, {"x": [1]}, {"b": [1]}))


def test_a_missing_input_is_named() -> None:
    nodes = [helper.make_node("Add", ["x", "nowhere"], ["y"], name="sum")]
    with pytest.raises(ocannl_onnx.OnnxError, match=r"nothing computes 'nowhere'[^.]*node 'sum'"):
        apply(model(nodes, {"x": [1]}, {"y": [1]}))


def test_a_missing_output_is_named() -> None:
    with pytest.raises(ocannl_onnx.OnnxError, match="no node computes 'y'"):
        apply(model([helper.make_node("Relu", ["x"], ["z"])], {"x": [1]}, {"y": [1]}))


def test_a_name_that_is_computed_twice_is_an_error() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])] * 2
    with pytest.raises(ocannl_onnx.OnnxError, match="'y' again"):
        apply(model(nodes, {"x": [1]}, {"y": [1]}))


def test_a_function_that_calls_itself_is_an_error() -> None:
    body = [helper.make_node("Own", ["x"], ["y"], domain="own")]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    proto = model([helper.make_node("Own", ["x"], ["y"], domain="own")], {"x": [1]}, {"y": [1]})
    proto.opset_import.extend(imports[1:])
    proto.functions.append(helper.make_function("own", "Own", ["x"], ["y"], body, imports))
    with pytest.raises(ocannl_onnx.OnnxError, match="calls itself"):
        apply(proto)


@pytest.mark.parametrize("dims", [[5, 3], [3, -1], [2**40, 2**40]])
def test_sizes_that_lie_are_an_error(dims: list[int]) -> None:
    proto, _ = perceptron(np.random.default_rng(0))
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend(dims)
    proto.graph.initializer[0].raw_data = b"1234"
    with pytest.raises(ocannl_onnx.OnnxError, match=r"layers\.0\.weight"):
        apply(proto)


def test_sizes_beyond_any_memory_are_an_error() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["y"])]
    sizes = {"shape": np.array([2**40, 2**20], np.int64)}
    with pytest.raises(ocannl_onnx.OnnxError, match="more than"):
        apply(model(nodes, {"x": [1]}, {"y": [1]}, sizes))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "", "link.bin"])
def test_external_data_outside_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(60))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    proto, _ = perceptron(np.random.default_rng(0))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ocannl_onnx.OnnxError, match="in the folder of the model"):
        ocannl_onnx.load(folder / "model.onnx")


@pytest.mark.parametrize(
    "entries", [{"offset": "40"}, {"length": "7"}, {"offset": "-8"}, {"offset": "x"}]
)
def test_external_data_that_exceed_their_file_are_refused(
    tmp_path: Path, entries: dict[str, str]
) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(60))
    proto, _ = perceptron(np.random.default_rng(0))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ocannl_onnx.OnnxError, match=r"layers\.0\.weight"):
        ocannl_onnx.load(tmp_path / "model.onnx")


def _mutated(content: bytes, rng: random.Random) -> bytes:
    """Return a file with bytes changed, removed, repeated or inserted."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randint(1, 8)]
            case 3:
                data[at:at] = data[at : at + rng.randint(1, 16)]
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
        data = data or bytearray(b"\0")
    return bytes(data)


def _samples() -> list[bytes]:
    rng = np.random.default_rng(0)
    loop = helper.make_graph(
        [
            helper.make_node("Add", ["state", "w"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2]),
        ],
    )
    several = [
        helper.make_node("Loop", ["count", "", "x"], ["state"], body=loop),
        helper.make_node("Reshape", ["state", "shape"], ["row"]),
        helper.make_node("Conv", ["row", "kernel"], ["z"], pads=[1, 1]),
        helper.make_node("Slice", ["z", "shape", "ends"], ["y"]),
    ]
    weights = {
        "w": np.ones(2, np.float32),
        "count": np.array(3, np.int64),
        "shape": np.array([1, 1, 2], np.int64),
        "ends": np.array([1, 1, 2], np.int64),
        "kernel": rng.standard_normal((1, 1, 3)).astype(np.float32),
    }
    return [
        perceptron(rng)[0].SerializeToString(),
        model(several, {"x": [2]}, {"y": ["a", "b", "c"]}, weights).SerializeToString(),
    ]


def _run_mutations(count: int, seed: int, path: Path, write: Callable[[bytes], None]) -> None:
    rng, samples = random.Random(seed), _samples()
    for _ in range(count):
        content = _mutated(rng.choice(samples), rng)
        write(content)
        with oc.Session(), suppress(oc.OcannlError):
            loaded = ocannl_onnx.load(path)
            loaded(**loaded.placeholders(batch=2))


def _to(path: Path) -> Callable[[bytes], None]:
    def write(content: bytes) -> None:
        with io.FileIO(path, "w") as file:
            file.write(content)

    return write


@pytest.mark.parametrize("seed", range(3))
def test_mutations_of_bytes_end_in_an_error_or_a_model(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "model.onnx"
    _run_mutations(100, seed, path, _to(path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_ten_thousand_mutations_end_in_an_error_or_a_model(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "model.onnx"
    _run_mutations(1000, seed, path, _to(path))
