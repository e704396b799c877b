"""ONNX models beside onnxruntime, and OpenVINO where it is installed, on one thread.

python benchmarks/onnx_models.py [--only GRAPH ...] [--models FILE.onnx ...]

The results of all are compared before they are timed. Times are least ones of interleaved samples.
Quantized graphs round numbers that lie between two steps, so that single cells may differ by one.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness  # before NumPy: it limits the threads
import numpy as np
import onnx
from workloads.onnx_graphs import GRAPHS

import ocannl_core as oc
import ocannl_onnx
from ocannl_core.base import settings

Array = np.ndarray[Any, Any]
_OPEN_SIZE = 1


@dataclass(frozen=True, slots=True)
class Runner:
    """A model in one runtime.

    Attributes:
        name: The name of the runtime in the table.
        run: A function that computes the outputs a number of times.
        outputs: Returns the outputs of the last run.
    """

    name: str
    run: Callable[[int], None]
    outputs: Callable[[], list[Array]]


Sizes = dict[str, tuple[int, ...]]
"""The sizes of inputs by name; for one without axes, its value."""


def inputs_of(model: ocannl_onnx.Model, sizes: Sizes) -> dict[str, Array]:
    """Return random inputs; open sizes that are not stated are 1."""
    random, cells = np.random.default_rng(0), {}
    for port in model.inputs:
        assert port.format is not None
        if port.sizes == ():  # a number that may decide the graph, such as a rate
            cells[port.name] = np.array(sizes[port.name][0], port.format.numpy)
            continue
        stated = sizes.get(port.name, port.sizes)
        assert stated is not None
        shape = [each if isinstance(each, int) else _OPEN_SIZE for each in stated]
        drawn = random.integers(0, 256, shape) if port.format.is_integer else None
        numbers = random.standard_normal(shape) if drawn is None else drawn
        cells[port.name] = numbers.astype(port.format.numpy)
    return cells


def own(model: ocannl_onnx.Model, cells: dict[str, Array], backend: str | None) -> Runner:
    inputs = {
        name: oc.placeholder(f"input{at}", output=list(each.shape), dtype=str(each.dtype))
        for at, (name, each) in enumerate(cells.items())
        if each.ndim
    }
    results = model(**cells | inputs)
    outputs = list(results) if isinstance(results, tuple) else [results]
    ctx = oc.Context(backend)
    code = oc.train.forward(outputs[0])
    for each in outputs[1:]:
        code = code + oc.train.forward(each)
    for each in outputs:
        ctx.init_params(each)
    routine = ctx.compile(code, keep=outputs)
    for name, tensor in inputs.items():
        ctx[tensor] = cells[name]

    def run(times: int) -> None:
        for _ in range(times):
            routine()
        ctx.synchronize()

    return Runner("ocannl", run, lambda: [ctx[each] for each in outputs])


def onnxruntime_runner(proto: bytes, cells: dict[str, Array]) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = harness.THREADS
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])

    def run(times: int) -> None:
        for _ in range(times):
            session.run(None, cells)

    return Runner("onnxruntime", run, lambda: session.run(None, cells))


def openvino_runner(proto: bytes, cells: dict[str, Array]) -> Runner:
    import openvino

    core = openvino.Core()
    limits = {"INFERENCE_NUM_THREADS": harness.THREADS, "PERFORMANCE_HINT": "LATENCY"}
    # the processor's own default may compute in bfloat16
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(proto), "CPU", limits | exact)
    request = compiled.create_infer_request()

    def run(times: int) -> None:
        for _ in range(times):
            request.infer(cells)

    return Runner(
        "openvino", run, lambda: [np.array(request.get_output_tensor(at).data) for at in
                                  range(len(compiled.outputs))],
    )  # fmt: skip


PEERS = {"onnxruntime": onnxruntime_runner, "openvino": openvino_runner}


def runners_of(proto: onnx.ModelProto, sizes: Sizes, backend: str | None) -> Iterator[Runner]:
    model = ocannl_onnx.load(proto)
    cells = inputs_of(model, sizes)
    yield own(model, cells, backend)
    for name, make in PEERS.items():
        if importlib.util.find_spec(name) is None:
            continue
        try:
            yield make(proto.SerializeToString(), cells)
        except RuntimeError as error:  # a peer may lack an operator
            print(f"{name} refuses the model: {str(error).splitlines()[-1]}")


def difference(found: list[Array], wanted: list[Array]) -> float:
    """Return the mean difference of cells, relative to their mean size or 0.001."""
    errors = [
        float(np.abs(one.astype(float) - other).mean() / max(np.abs(other).mean(), 1e-3))
        for one, other in zip(found, wanted, strict=True)
    ]
    return max(errors, default=0.0)


def start_times(path: Path, sizes: Sizes, backend: str | None) -> list[float]:
    """Return the seconds from reading the file to the first result, cold and warm."""
    times = []
    with tempfile.TemporaryDirectory() as folder, settings.overrides(cache_dir=folder):
        for _ in ("cold", "warm"):
            with oc.Session(seed=0):
                start = time.perf_counter()
                model = ocannl_onnx.load(path)
                own(model, inputs_of(model, sizes), backend).run(1)
                times.append(time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(GRAPHS), choices=list(GRAPHS))
    parser.add_argument("--models", nargs="*", type=Path, default=[], help="files of models")
    parser.add_argument(
        "--sizes",
        nargs="*",
        default=[],
        metavar="INPUT=1,3,48,192",
        help="open sizes of inputs; the value of an input without axes",
    )
    parser.add_argument("--start", action="store_true", help="also time cold and warm starts")
    given = parser.parse_args()
    sizes = {
        name: tuple(map(int, stated.split(",")))
        for name, _, stated in (each.rpartition("=") for each in given.sizes)
    }
    models = {name: GRAPHS[name]() for name in given.only}
    models |= {path.name: onnx.load(path) for path in given.models}
    print(f"{harness.THREADS} thread(s); the least time of each, and ours as a multiple of it")
    for name, proto in models.items():
        with oc.Session(seed=0):
            runners = list(runners_of(proto, sizes, given.backend))
            for each in runners:
                each.run(1)
            ours, *others = (each.outputs() for each in runners)
            worst = max((difference(ours, each) for each in others), default=0.0)
            timings = harness.compare([harness.TimedWork(each.name, each.run) for each in runners])
            own_time = timings[0].least
            shown = "".join(
                f"  {each.name} {1e3 * each.least:.3f} ms ({own_time / each.least:.2f})"
                for each in timings[1:]
            )
            print(
                f"{name:18} {len(proto.graph.node):4} nodes {1e3 * own_time:8.3f} ms{shown}"
                f"  difference {worst:.1e}",
                flush=True,
            )
        if given.start:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.onnx")
                onnx.save(proto, path)
                cold, warm = start_times(path, sizes, given.backend)
                print(f"{'':18} to the first result: cold {cold:.2f} s, warm {warm:.2f} s")


if __name__ == "__main__":
    main()
