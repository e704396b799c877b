"""Nodes of onnxruntime's own operators: run here, by onnxruntime where it is installed, and beside
formulas in NumPy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ocannl_core as oc
import ocannl_onnx

Array = np.ndarray[Any, Any]
Cells = Mapping[str, Array | None]
BACKENDS = ("interp", "cpu_c")
DOMAIN = "com.microsoft"


def model_of(
    operator: str, cells: Cells, known: Collection[str], outputs: Sequence[str], **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one node; known inputs are initializers."""
    domain = attributes.pop("domain", DOMAIN)
    names = [name if cells[name] is not None else "" for name in cells]
    given = {name: x for name, x in cells.items() if x is not None}
    graph = helper.make_graph(
        [helper.make_node(operator, names, list(outputs), domain=domain, **attributes)],
        "graph",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in given.items()
            if n not in known
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs if n],
        [numpy_helper.from_array(given[name], name) for name in known if name in given],
    )
    for port in graph.output:  # onnxruntime infers the types
        port.ClearField("type")
    sets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def run_here(
    proto: onnx.ModelProto, cells: Mapping[str, Array], backend: str, **arrays: Array
) -> list[Array]:
    """Return the outputs; inputs in `arrays` are known when the graph is read."""
    with oc.Session(seed=0):
        tensors = {
            name: oc.placeholder(name, output=list(x.shape), dtype=str(x.dtype))
            for name, x in cells.items()
        }
        found = ocannl_onnx.load(proto)(**tensors, **arrays)
        results = list(found) if isinstance(found, tuple) else [found]
        code = oc.train.forward(results[0])
        for each in results[1:]:
            code = code + oc.train.forward(each)
        context = oc.Context(backend)
        context.init_params(code)
        routine = context.compile(code, keep=results)
        for name, tensor in tensors.items():
            context[tensor] = cells[name]
        routine()
        return [np.asarray(context[each]) for each in results]


def run_elsewhere(proto: onnx.ModelProto, cells: Mapping[str, Array]) -> list[Array] | None:
    """Return the outputs of onnxruntime; None if it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(cells)))


def check(
    operator: str,
    cells: Cells,
    expected: Sequence[Array],
    known: Collection[str] = (),
    arrays: Collection[str] = (),
    outputs: Sequence[str] = (),
    tolerance: float = 1e-5,
    backends: Sequence[str] = BACKENDS,
    elsewhere: bool = True,
    valid: Array | None = None,
    **attributes: Any,
) -> None:
    """Compare the outputs of a node with expected ones, here and in onnxruntime.

    Args:
        known: The inputs that are initializers.
        arrays: The inputs that a call here gives as arrays.
        elsewhere: False for what onnxruntime lacks on processors.
        valid: The number of rows of each example that are compared, along the axis before the last.
    """
    outputs = outputs or [f"y{k}" for k in range(len(expected))]
    proto = model_of(operator, cells, known, outputs, **attributes)
    given = {n: x for n, x in cells.items() if x is not None and n not in known}
    runs = {"onnxruntime": run_elsewhere(proto, given) if elsewhere else None}
    at_run_time = {n: x for n, x in given.items() if n not in arrays}
    for backend in backends:
        runs[backend] = run_here(
            proto, at_run_time, backend, **{n: given[n] for n in arrays if n in given}
        )
    for place, results in runs.items():
        if results is None:
            continue
        for wanted, found in zip(expected, results, strict=True):
            assert found.shape == wanted.shape, (place, found.shape, wanted.shape)
            assert found.dtype == wanted.dtype, place
            if valid is not None:
                behind = (
                    np.arange(wanted.shape[-2])[:, None]
                    >= valid[(..., *[None] * (wanted.ndim - 1))]
                )
                found, wanted = (np.where(behind, 0, x) for x in (found, wanted))
            if wanted.dtype.kind in "iu":
                np.testing.assert_array_equal(found, wanted, err_msg=place)
            else:
                # onnxruntime orders its sums and rounds its functions in a way of its own
                np.testing.assert_allclose(
                    found.astype(np.float64), wanted.astype(np.float64),
                    rtol=tolerance, atol=tolerance, err_msg=place,
                )  # fmt: skip
