"""`ocannl onnx info | run | check FILE`: shows, runs and compares ONNX models; and `ocannl onnx
save PROGRAM:FUNCTION FILE`, which writes one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ocannl_onnx.model import Model

HELP = "show, run, check and write ONNX models"
DESCRIPTION = (
    "Shows what an ONNX model holds, runs it, compares it with onnxruntime, and writes models of "
    "programs."
)


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
        each.add_argument(
            "--bounds",
            default="",
            metavar="NODE=NUMBER,...",
            help="greatest sizes and numbers of iterations that data decide: NonZero_12=100",
        )
    save = actions.add_parser("save", help="write the model that a function of a program returns")
    save.add_argument("program", metavar="PROGRAM:FUNCTION", help="train.py:exported")
    save.add_argument("file", metavar="FILE", help="model.onnx")
    save.add_argument("--opset", type=int, metavar="VERSION", help="of the operator set")
    save.add_argument("--ir-version", type=int, metavar="VERSION", help="of the file format")
    save.add_argument("--weights", choices=("inside", "beside"), help="their place")
    save.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, after --")
    for each in (info, run):
        each.add_argument("--reroll", action="store_true", help="load repeated layers as one loop")
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
    if arguments.action == "save":
        return _save(arguments)
    from ocannl_onnx.model import load

    bounds, reroll = _bounds(arguments.bounds), getattr(arguments, "reroll", False)
    extents = _extents(arguments.extents)
    model = load(arguments.file, extents=extents, bounds=bounds, reroll=reroll)
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


def _bounds(text: str) -> dict[str, int]:
    from ocannl_onnx.errors import OnnxError

    result: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.rpartition("=")
        if not name or not number.isdecimal():
            raise OnnxError(
                "Bounds are numbers by node.", found=part, fix="--bounds NonZero_12=100"
            )
        result[name.strip()] = int(number)
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


def _save(arguments: argparse.Namespace) -> int:
    """Write the model of a program's function, which returns the arguments of `save`."""
    from ocannl_core.cli.scripts import returned_by
    from ocannl_onnx.errors import OnnxError
    from ocannl_onnx.saving import save, weight_files

    function, made = returned_by("onnx save", arguments.program, arguments.arguments, "model.onnx")
    names = {"outputs", "inputs", "ctx", "code"}
    if not isinstance(made, dict) or not {"outputs"} <= made.keys() <= names:
        raise OnnxError(
            "The function of a program that is saved returns the arguments of ocannl_onnx.save, by "
            "name.",
            found=f"{function} is {made!r}",
            where=arguments.program,
            fix=f'def {function}(): ...; return {{"outputs": scores, "inputs": [x], "ctx": ctx}}',
        )
    chosen = {"opset": arguments.opset, "ir_version": arguments.ir_version}
    options = {name: value for name, value in chosen.items() if value is not None}
    save(arguments.file, **made, **options, weights=arguments.weights)
    path = Path(arguments.file)
    for file in (path, *weight_files(path)):
        print(f"{file.stat().st_size:>12,} bytes  {file}")
    return 0
