"""The samples of PyTorch's OpInfo for functions of equal names, in `float32`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.renamed import public_title, value_of
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.testing.compare import Array
from ocannl_core.testing.corpora.reference_cases import CaseSkipped, ReferenceCase, skipped_case

_SAMPLES = 12
"""The most samples of one operator."""
_OTHER_MEANINGS: Mapping[str, str] = {
    "matmul": "the axes of a matrix are not all output axes",
    "median": "of an even number of cells PyTorch takes the lesser one in the middle",
    "std": "PyTorch divides by the number of cells less 1",
    "take": "PyTorch counts positions over all axes",
    "var": "PyTorch divides by the number of cells less 1",
    "where": "a sample has its condition in the second place",
}
"""The functions that have another meaning in PyTorch, or another order of operands in OpInfo."""


def cases() -> Iterator[ReferenceCase]:
    """Yield a case for each sample.

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
        title = op.name.rpartition(".")[2]
        function = _function(title)
        if function is None or torch.float32 not in op.dtypes:
            continue
        name = "/".join(filter(None, (op.name, op.variant_test_name)))
        if title in _OTHER_MEANINGS:
            yield skipped_case(name, _OTHER_MEANINGS[title])
            continue
        samples = op.sample_inputs("cpu", torch.float32)
        for number, sample in enumerate(islice(samples, _SAMPLES)):
            yield _of_sample(f"{name}/{number}", function, op, sample, torch)


def _of_sample(
    name: str, function: Callable[..., Any], op: Any, sample: Any, torch: Any
) -> ReferenceCase:
    given = (sample.input, *sample.args)
    if sample.kwargs or not all(isinstance(each, torch.Tensor) for each in given):
        return skipped_case(name, "operands that are no tensors")
    try:
        expected = op(*given)
    except Exception as error:
        return skipped_case(name, f"PyTorch refuses it: {type(error).__name__}")
    if not isinstance(expected, torch.Tensor):
        return skipped_case(name, "several results")
    operands = [each.detach().resolve_neg().numpy() for each in given]
    return case_of(name, function, operands, expected.detach().resolve_neg().numpy())


def case_of(
    name: str, function: Callable[..., Any], operands: Sequence[Array], expected: Array
) -> ReferenceCase:
    """Return the case of a function of `oc`, applied to tensors.

    Args:
        expected: Truths count as 1 and 0 in the format of the result.
    """
    formats = {each.dtype for each in (*operands, expected)}
    unknown = [each for each in formats if _format(each) is None]
    if unknown:
        return skipped_case(name, f"no format {unknown[0]}")

    def compute(device: str) -> Sequence[Array]:
        found = _computed(function, operands, device)
        if expected.dtype == np.bool_:
            found = found.astype(np.bool_) if np.isin(found, (0, 1)).all() else found
        elif found.dtype != expected.dtype:
            raise CaseSkipped(f"it results in {found.dtype} instead of {expected.dtype}")
        return [found]

    return ReferenceCase(
        name, compute, [expected], frozenset(str(_format(each)) for each in formats), 1e-5, 1e-5
    )


def _computed(function: Callable[..., Any], operands: Sequence[Array], device: str) -> Array:
    from ocannl_core.runtime.context import Context
    from ocannl_core.tensor.computations.computation import forward
    from ocannl_core.tensor.graph.session import Session
    from ocannl_core.tensor.operations.literals import tensor

    with Session(), settings.overrides(allow_nan=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*(tensor(each, dtype=_format(each.dtype)) for each in operands))
            code = forward(result)
        except (UsageError, ShapeError) as error:
            raise CaseSkipped(f"the function refuses it: {str(error).splitlines()[0]}") from error
        ctx = Context(device)
        try:
            routine = ctx.compile(code)
        except ShapeError as error:
            raise CaseSkipped(f"the function refuses it: {str(error).splitlines()[0]}") from error
        routine()
        return np.array(ctx[result])


def _function(name: str) -> Callable[..., Any] | None:
    """Return a function of the package by its name, or by the name that it had."""
    import ocannl_core  # noqa: F401

    try:
        found = value_of(public_title(f"oc.{name}"))
    except AttributeError:
        return None
    return found if callable(found) else None


def _format(dtype: np.dtype[Any]) -> DType | None:
    return next((each for each in dtypes.ALL if each.numpy == dtype), None)
