"""`ocannl onnx info | run | check FILE`: shows, runs and compares ONNX models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocannl_onnx.model import Model

HELP = "show, run and check ONNX models"
DESCRIPTION = "Shows what an ONNX model holds, runs it, and compares it with onnxruntime."


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = command.add_subparsers(
        title="actions", required=True, metavar="ACTION", dest="action"
    )
    info = actions.add_parser(
        "info", help="list inputs, outputs, parameters, operators and refusals"
    )
    run = actions.add_parser("run", help="run the model with the arrays of an .npz file")
    check = actions.add_parser(
        "check", help="compare with onnxruntime, node by node at a difference"
    )
    for each in (info, run, check):
        each.add_argument("file", help="the model")
        each.add_argument(
            "--extents",
            default="",
            metavar="NAME=SIZE,...",
            help="sizes of the axes that the file names, or of an input: batch=8,image=1x3x48x48",
        )
    for each in (run, check):
        each.add_argument("--backend", help="the backend; the settings choose without it")
    run.add_argument("inputs", help="an .npz file with an array for each input")
    run.add_argument("--output", help="an .npz file for the results; they are printed without it")
    check.add_argument("--inputs", help="an .npz file with the inputs; random ones without it")
    check.add_argument("--seed", type=int, default=0, help="of the random inputs")
    check.add_argument("--rtol", type=float, default=1e-4, help="greatest relative difference")
    check.add_argument("--atol", type=float, default=1e-5, help="greatest absolute difference")


def run(arguments: argparse.Namespace) -> int:
    """Run an action; return the exit code."""
    from ocannl_onnx.model import load

    model = load(arguments.file, extents=_extents(arguments.extents))
    match arguments.action:
        case "info":
            return _info(model)
        case "run":
            return _run(model, arguments)
        case _:
            return _check(model, arguments)


def _extents(text: str) -> dict[str, int | list[int]]:
    from ocannl_onnx.errors import OnnxError

    result: dict[str, int | list[int]] = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.rpartition("=")
        sizes = size.split("x")
        if not name or not all(each.isdecimal() for each in sizes):
            raise OnnxError(
                "Extents are sizes by name.", found=part, fix="--extents batch=8,time=100"
            )
        numbers = [int(each) for each in sizes]
        result[name.strip()] = numbers if len(numbers) > 1 else numbers[0]
    return result


def _info(model: Model) -> int:
    import ocannl_core as oc
    from ocannl_onnx.errors import OnnxError
    from ocannl_onnx.survey import operators_of

    graph = model.proto.graph
    versions = ", ".join(f"{e.domain or 'ai.onnx'} {e.version}" for e in model.proto.opset_import)
    print(f"{graph.name or 'graph'}: IR version {model.proto.ir_version}, operator sets {versions}")
    for title, ports in (
        ("inputs", model.inputs),
        ("with a default", model.defaults),
        ("outputs", model.outputs),
    ):
        if ports:
            print(f"\n{title}")
            for port in ports:
                print(f"  {port}")
    weights = [each for each in model.weights.values() if each.is_weight]
    cells = sum(_count(each.shape) for each in weights)
    size = sum(_count(each.shape) * each.format.bits // 8 for each in weights)
    print(f"\nparameters: {len(weights)} arrays, {cells:,} numbers, {size:,} bytes")
    rows = operators_of(model.proto)
    print("\noperators")
    for name, (count, reason) in sorted(rows.items(), key=lambda item: (-item[1][0], item[0])):
        print(f"  {count:5} {name}{f'   refused: {reason}' if reason else ''}")
    refused = any(reason for _, reason in rows.values())
    if refused:
        return 1
    try:
        with oc.Session():
            model(**model.placeholders())
    except OnnxError as error:
        print(f"\nnot applied to placeholders:\n{error}")
    else:
        print("\napplies to placeholders of the stated sizes")
    return 0


def _count(shape: tuple[int, ...]) -> int:
    import math

    return math.prod(shape)


def _arrays(path: str) -> dict[str, Any]:
    import numpy as np

    from ocannl_onnx.errors import OnnxError

    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise OnnxError("Inputs are in an .npz file.", found=str(error), where=path) from error


def _run(model: Model, arguments: argparse.Namespace) -> int:
    import numpy as np

    from ocannl_onnx.backend import PreparedModel

    results = PreparedModel(model, arguments.backend).run(_arrays(arguments.inputs))
    named = {port.name: value for port, value in zip(model.outputs, results, strict=True)}
    if arguments.output:
        np.savez(arguments.output, **named)
        return 0
    for name, value in named.items():
        print(
            name, getattr(value, "dtype", type(value).__name__), list(getattr(value, "shape", ()))
        )
        print(value)
    return 0


def _check(model: Model, arguments: argparse.Namespace) -> int:
    from ocannl_onnx.comparison import check, random_inputs

    inputs = _arrays(arguments.inputs) if arguments.inputs else random_inputs(model, arguments.seed)
    report = check(model, inputs, arguments.backend, arguments.rtol, arguments.atol)
    print(report)
    return 0 if report.agrees else 1
