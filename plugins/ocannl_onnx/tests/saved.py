"""Models that are saved, run elsewhere, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import ocannl_core as oc
import ocannl_onnx

Array = np.ndarray[Any, Any]


@dataclass
class Saved:
    """A model in a file, with cells of its inputs and the results of the interpreter."""

    path: Path
    inputs: dict[str, Array]
    results: list[Array]

    @property
    def proto(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    def check(self) -> None:
        """Check the file, with the inference of all types and shapes."""
        onnx.checker.check_model(str(self.path), full_check=True)

    def elsewhere(self) -> list[Array]:
        return run_elsewhere(self.path, self.inputs)

    def read_back(self) -> list[Array]:
        """Return the results of the model that is loaded again, of the interpreter."""
        with oc.Session():
            model = ocannl_onnx.load(self.path)
            given = model.placeholders()
            found = model(**given)
            results = list(found) if isinstance(found, tuple) else [found]
            return computed(results, {t: self.inputs[n] for n, t in given.items()})[0]


def run_reference(path: Path, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the results of the reference evaluator of the onnx package."""
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(str(path)).run(None, dict(inputs)))


def run_elsewhere(path: Path, inputs: Mapping[str, Array]) -> list[Array]:
    """Return the results of onnxruntime, or of the reference evaluator without it."""
    try:
        import onnxruntime
    except ImportError:
        return run_reference(path, inputs)
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def code_of(results: Sequence[Any]) -> Any:
    code = oc.train.forward(results[0])
    for each in results[1:]:
        code = code + oc.train.forward(each)
    return code


def computed(
    results: Sequence[Any], cells: Mapping[Any, Array], **indices: int
) -> tuple[list[Array], oc.Context]:
    """Return the cells of tensors on the interpreter, and the context."""
    ctx = oc.Context("interp")
    for each in results:
        ctx.init_params(each)
    routine = ctx.compile(code_of(results), keep=list(results))
    for tensor, value in cells.items():
        ctx[tensor] = value
    routine(**indices)
    return [np.asarray(ctx[each]) for each in results], ctx


def random_cells(random: np.random.Generator, tensor: Any) -> Array:
    """Return random cells; of integers from 0 to 4."""
    dims, dtype = tensor.info.dims, tensor.dtype
    cells = random.normal(size=dims) if dtype.is_float else random.integers(0, 5, dims)
    return np.asarray(cells).astype(dtype.numpy)


def saved(path: Path, results: Any, **options: Any) -> Saved:
    """Save tensors that depend on placeholders."""
    found = list(results) if isinstance(results, tuple) else [results]
    tensors = code_of(found).tensors(of_steps=True).values()
    inputs = sorted({t for t in tensors if t.is_placeholder}, key=lambda t: t.id)
    random = np.random.default_rng(5)
    cells = {tensor: random_cells(random, tensor) for tensor in inputs}
    expected, ctx = computed(found, cells)
    ocannl_onnx.save(path, found, inputs, ctx, **options)
    return Saved(path, {t.node.name: value for t, value in cells.items()}, expected)
