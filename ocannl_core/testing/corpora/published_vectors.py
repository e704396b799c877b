"""Functions of this project beside test vectors of other projects, on a device.

- `onnx`: the node tests of the package `onnx` whose operator a function of `oc` states directly:
  one node without attributes, tensors as operands, one result;
- `opinfo`: the samples of PyTorch's OpInfo for functions of equal names, with tensors as operands.

Neither package is a dependency. A vector that the function refuses, or whose formats are not those
of the device, is skipped with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError, ShapeError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.renamed import public_title, value_of
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.testing.allowances import Allowances
from ocannl_core.testing.compare import Array
from ocannl_core.testing.outcomes import CaseResult, Outcome
from ocannl_core.testing.subject import Subject

_SAMPLES = 12
"""The most samples of one operator."""
_RELATIVE: Mapping[int, float] = {8: 1e-7, 4: 1e-5, 2: 1e-2, 1: 0.25}
"""The accepted error of floats by their bytes."""
_SAME_NAMES = (
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Equal Erf Exp Floor HardSwish Less "
    "Log Mish Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh Where"
)
_OF_ONNX = {
    **{name: name.lower() for name in _SAME_NAMES.split()},
    "Div": "divide",
    "Identity": "primitives.identity",
    "Max": "maximum",
    "Min": "minimum",
    "Mul": "multiply",
    "Neg": "negative",
    "Sub": "subtract",
    "And": "logical_and",
    "Or": "logical_or",
    "Not": "logical_not",
    "Xor": "logical_xor",
    "IsNaN": "isnan",
}
"""The function of each operator of ONNX."""

_OTHER_MEANINGS: Mapping[str, str] = {
    "matmul": "the axes of a matrix are not all output axes",
    "median": "of an even number of cells PyTorch takes the lesser one in the middle",
    "std": "PyTorch divides by the number of cells less 1",
    "take": "PyTorch counts positions over all axes",
    "var": "PyTorch divides by the number of cells less 1",
    "where": "a sample has its condition in the second place",
}
"""The functions that have another meaning in PyTorch, or another order of operands in OpInfo."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Operands of a function, and its result in another project.

    Attributes:
        reason: The reason why the function cannot be applied; empty if it can.
    """

    name: str
    function: str = ""
    operands: tuple[Array, ...] = ()
    expected: Array | None = None
    reason: str = ""


def results(
    vectors: Iterator[Vector], subject: Subject, allowances: Allowances, wanted: str = ""
) -> Iterator[CaseResult]:
    """Yield the result of each vector on a device.

    Args:
        wanted: A part of the names of the vectors.
    """
    for vector in vectors:
        if wanted not in vector.name:
            continue
        if vector.reason or vector.expected is None:
            yield CaseResult(vector.name, Outcome.SKIPPED, text=vector.reason)
        else:
            yield _result(vector, vector.expected, subject, allowances)


def _result(
    vector: Vector, expected: Array, subject: Subject, allowances: Allowances
) -> CaseResult:
    formats = [_format(each) for each in (*vector.operands, expected)]
    declared = subject.target.formats
    missing = [
        str(array.dtype)
        for array, dtype in zip((*vector.operands, expected), formats, strict=True)
        if dtype is None or (declared is not None and dtype not in declared)
    ]
    if missing:
        text = f"no format {missing[0]}"
        return CaseResult(vector.name, Outcome.SKIPPED, text=text)
    part = str(formats[0])
    try:
        found = _computed(vector, subject)
    except (UsageError, ShapeError, CodegenError) as error:
        text = f"{vector.function} refuses it: {str(error).splitlines()[0]}"
        return CaseResult(vector.name, Outcome.SKIPPED, part, text)
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return CaseResult(vector.name, Outcome.FAILED, part, text)
    if found.shape != expected.shape:
        text = f"{vector.function} has the shape {found.shape} instead of {expected.shape}"
        return CaseResult(vector.name, Outcome.FAILED, part, text)
    if expected.dtype == np.bool_:  # a truth is 1 or 0 in the format of the operands
        expected = expected.astype(found.dtype)
    if found.dtype != expected.dtype:
        text = f"{vector.function} results in {found.dtype} instead of {expected.dtype}"
        return CaseResult(vector.name, Outcome.SKIPPED, part, text)
    result = formats[-1]
    default = _RELATIVE[result.nbytes] if result is not None and result.is_float else 0.0
    allowed = allowances.relative(vector.name, default)
    wrong = _differences(found, expected, allowed)
    if not wrong:
        needs = bool(_differences(found, expected, default))
        return CaseResult(vector.name, Outcome.PASSED, part, needs_tolerance=needs)
    at = np.unravel_index(wrong[0], expected.shape)
    text = (
        f"{len(wrong)} of {expected.size} cells of {vector.function} differ; at "
        f"{[int(axis) for axis in at]}: {found[at]!s} instead of {expected[at]!s}"
    )
    return CaseResult(vector.name, Outcome.FAILED, part, text)


def _differences(found: Array, expected: Array, relative: float) -> list[int]:
    """Return the positions of cells that differ too much."""
    a, b = (each.astype(np.float64).reshape(-1) for each in (found, expected))
    with np.errstate(invalid="ignore"):
        is_near = np.abs(a - b) <= relative * np.maximum(np.abs(b), 1 if relative else 0)
    is_same = (a == b) | (np.isnan(a) & np.isnan(b))
    return [int(each) for each in np.flatnonzero(~(is_near | is_same))]


def _computed(vector: Vector, subject: Subject) -> Array:
    from ocannl_core.runtime.context import Context
    from ocannl_core.tensor.computations.computation import forward
    from ocannl_core.tensor.graph.session import Session
    from ocannl_core.tensor.operations.literals import tensor

    with Session(), settings.overrides(allow_nan=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = _function(vector.function)
        assert function is not None, "vectors name functions that there are"
        operands = [tensor(each, dtype=_format(each)) for each in vector.operands]
        result = function(*operands)
        ctx = Context(str(subject))
        ctx.compile(forward(result))()
        return np.array(ctx[result])


def _function(name: str) -> Callable[..., Any] | None:
    """Return a function of the package by its name, or by the name that it had."""
    import ocannl_core  # noqa: F401

    try:
        found = value_of(public_title(f"oc.{name}"))
    except AttributeError:
        return None
    return found if callable(found) else None


def _format(array: Array) -> DType | None:
    return next((each for each in dtypes.ALL if each.numpy == array.dtype), None)


def onnx_vectors() -> Iterator[Vector]:
    """Yield the node tests of the installed package `onnx`.

    Raises:
        UsageError: if it is not installed.
    """
    try:
        from onnx import numpy_helper
        from onnx.backend.test.case.node import collect_testcases
    except ImportError as error:
        raise UsageError(
            "The corpus onnx consists of the node tests of the package `onnx`.",
            found=str(error),
            fix="pip install onnx",
        ) from error
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        name = f"onnx/{case.name.removeprefix('test_')}"
        nodes = case.model.graph.node
        function = _OF_ONNX.get(nodes[0].op_type, "") if len(nodes) == 1 else ""
        if len(nodes) != 1:
            yield Vector(name, reason="several nodes")
        elif not function or _function(function) is None or nodes[0].domain:
            yield Vector(name, reason="no function of its operator")
        elif nodes[0].attribute:
            yield Vector(name, reason="attributes")
        else:
            for operands, expected in case.data_sets or ():
                arrays = [
                    each if isinstance(each, np.ndarray) else numpy_helper.to_array(each)
                    for each in (*operands, *expected)
                    if isinstance(each, np.ndarray) or hasattr(each, "data_type")
                ]
                if len(arrays) != len(operands) + 1 or len(expected) != 1:
                    yield Vector(name, reason="operands that are no tensors")
                else:
                    yield Vector(name, function, tuple(arrays[:-1]), arrays[-1])


def opinfo_vectors() -> Iterator[Vector]:
    """Yield the samples of PyTorch's OpInfo, in float32, for functions of equal names.

    Raises:
        UsageError: if PyTorch or its tests are not installed.
    """
    try:
        import torch
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise UsageError(
            "The corpus opinfo consists of samples of PyTorch, from `torch.testing`.",
            found=str(error),
            fix="pip install torch expecttest",
        ) from error
    torch.manual_seed(0)
    for op in op_db:
        function = op.name.rpartition(".")[2]
        if _function(function) is None or torch.float32 not in op.dtypes:
            continue
        name = "/".join(filter(None, ("opinfo", op.name, op.variant_test_name)))
        if function in _OTHER_MEANINGS:
            yield Vector(name, reason=_OTHER_MEANINGS[function])
            continue
        samples = op.sample_inputs("cpu", torch.float32)
        for number, sample in enumerate(islice(samples, _SAMPLES)):
            yield _sample(f"{name}/{number}", function, op, sample, torch)


def _sample(name: str, function: str, op: Any, sample: Any, torch: Any) -> Vector:
    given = (sample.input, *sample.args)
    if sample.kwargs or not all(isinstance(each, torch.Tensor) for each in given):
        return Vector(name, reason="operands that are no tensors")
    try:
        expected = op(*given)
    except Exception as error:
        return Vector(name, reason=f"PyTorch refuses it: {type(error).__name__}")
    if not isinstance(expected, torch.Tensor):
        return Vector(name, reason="several results")
    arrays = [each.detach().resolve_neg().numpy() for each in (*given, expected)]
    return Vector(name, function, tuple(arrays[:-1]), arrays[-1])
