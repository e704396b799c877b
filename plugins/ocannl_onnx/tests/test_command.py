"""`ocannl onnx`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.cli import main

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import helper  # noqa: E402

from ocannl_onnx import registry  # noqa: E402
from plugins.ocannl_onnx.tests.models import expected_of, model, perceptron  # noqa: E402


@pytest.fixture
def file(tmp_path: Path) -> str:
    proto, _ = perceptron(np.random.default_rng(3))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return str(path)


def test_info_lists_ports_parameters_and_operators(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["onnx", "info", file, "--extents", "batch=2"]) == 0
    text = capsys.readouterr().out
    assert "x: float32[batch, 3]" in text
    assert "parameters: 3 arrays, 30 numbers, 120 bytes" in text
    assert "2 MatMul" in text
    assert "applies to placeholders" in text


def test_info_names_refused_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = model([helper.make_node("Own", ["x"], ["y"])], {"x": [1]}, {"y": [1]})
    onnx.save(proto, tmp_path / "own.onnx")
    assert main(["onnx", "info", str(tmp_path / "own.onnx")]) == 1
    assert "Own   refused: the standard has no such operator" in capsys.readouterr().out


def test_info_takes_bounds_of_sizes_that_data_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "places.onnx")
    node = helper.make_node("NonZero", ["x"], ["y"], name="places")
    onnx.save(model([node], {"x": [4]}, {"y": None}), file)
    assert main(["onnx", "info", file]) == 0
    assert 'bounds={"places": 100}' in capsys.readouterr().out
    assert main(["onnx", "info", file, "--bounds", "places=3"]) == 0
    assert "applies to placeholders" in capsys.readouterr().out
    assert main(["onnx", "info", file, "--bounds", "places"]) != 0
    assert "--bounds NonZero_12=100" in capsys.readouterr().err


def test_run_takes_arrays_and_saves_results(file: str, tmp_path: Path) -> None:
    x = np.ones((2, 3), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    outputs = tmp_path / "out.npz"
    arguments = ["onnx", "run", file, str(tmp_path / "in.npz"), "--backend", "interp"]
    assert main([*arguments, "--output", str(outputs)]) == 0
    _, weights = perceptron(np.random.default_rng(3))
    assert np.allclose(np.load(outputs)["y"], expected_of(weights, x), atol=1e-5)


def test_check_compares_with_onnxruntime(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    arguments = ["onnx", "check", file, "--extents", "batch=4", "--backend", "interp"]
    assert main(arguments) == 0
    assert "agrees with onnxruntime" in capsys.readouterr().out


def test_check_names_the_first_node_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Exp", ["a"], ["b"], name="second"),
        helper.make_node("Sub", ["b", "a"], ["y"], name="third"),
    ]
    onnx.save(model(nodes, {"x": [5]}, {"y": [5]}), tmp_path / "m.onnx")
    monkeypatch.setitem(
        registry._TABLE,
        ("", "Exp"),
        [registry.Operator(lambda node, x: oc.exp(x.tensor) + 0.01, 1, None)],
    )
    assert main(["onnx", "check", str(tmp_path / "m.onnx"), "--backend", "interp"]) == 1
    text = capsys.readouterr().out
    assert "differs from onnxruntime" in text
    assert "first at node second: Exp\n  b: greatest difference 0.01" in text


def test_a_wrong_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    assert main(["onnx", "info", str(tmp_path / "text.onnx")]) == 1
    assert "OnnxError" in capsys.readouterr().err


PROGRAM = """
import sys
import ocannl_core as oc


def exported():
    x = oc.placeholder("x", batch=[4], output=[3])
    y = oc.nn.mlp(x, hidden=(int(sys.argv[1]),), output=2)
    ctx = oc.Context("interp")
    ctx.init_params(y)
    return {"outputs": {"y": y}, "inputs": [x], "ctx": ctx}


def nothing():
    return []
"""


def test_save_writes_the_model_of_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, path = tmp_path / "train.py", tmp_path / "model.onnx"
    program.write_text(PROGRAM)
    arguments = ["--opset", "20", "--weights", "beside", f"{program}:exported", str(path)]
    with oc.Session():
        assert main(["onnx", "save", *arguments, "--", "300"]) == 0
    text = capsys.readouterr().out
    assert str(path) in text
    assert ".data" in text
    proto = onnx.load(path)
    assert proto.opset_import[0].version == 20
    assert {each.name for each in proto.functions} == {"dense", "mlp"}
    assert [300, 3] in [list(each.dims) for each in proto.graph.initializer]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing", "returns the arguments of ocannl_onnx.save"),
        ("missing", "but exported, nothing"),
    ],
)
def test_save_takes_the_arguments_from_a_function(
    tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    assert main(["onnx", "save", f"{program}:{name}", str(tmp_path / "m.onnx")]) == 1
    assert text in capsys.readouterr().err
    assert main(["onnx", "save", str(program), str(tmp_path / "m.onnx")]) == 1
    assert "a program and the name of a function" in capsys.readouterr().err
