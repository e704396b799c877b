"""PyTorch's own samples as a judge: `python -m tests.judges.torch_samples [--only NAME ...]`.

Each sample of `torch.testing._internal.common_methods_invocations.op_db` whose operation has a
counterpart in `torch_operations` is computed here and there, with its gradient. The table lists how
many agree, and the rest with reasons. A disagreement, and an error that is not of `oc.OcannlError`,
end with exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core.base import settings
from tests.judges.torch_operations import OPERATIONS, NotOurs

Outcome = tuple[str, str]
"""The outcome of a sample, and the reason."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="names of operations")
    parser.add_argument("--backend", default="interp")
    parser.add_argument("--limit", type=int, default=None, help="samples for each operation")
    parser.add_argument("--verbose", action="store_true", help="every sample that is not ours")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    torch.manual_seed(0)
    total: Counter[str] = Counter()
    rest: Counter[tuple[str, str, str]] = Counter()
    names = set()
    for op in op_db:
        if op.name not in OPERATIONS or (arguments.only and op.name not in arguments.only):
            continue
        if op.variant_test_name not in (
            "",
            "no_rounding_mode",
            "trunc_rounding",
            "floor_rounding",
            "decimals_0",
            "decimals_3",
            "decimals_neg_3",
            "reduction_no_dim",
            "reduction_with_dim",
            "binary",
            "with_dtype",
        ):
            continue
        if torch.float64 not in op.dtypes:
            continue
        names.add(op.name)
        for number, sample in enumerate(samples_of(op, torch)):
            if arguments.limit is not None and number >= arguments.limit:
                break
            outcome, reason = judge(op, sample, arguments.backend, torch)
            total[outcome] += 1
            if outcome not in ("agrees", "agrees, gradient too"):
                rest[op.name, outcome, reason] += 1
                if arguments.verbose:
                    print(f"{op.name}: {outcome}: {reason}: {sample}", flush=True)
    report(names, total, rest)
    return 1 if total["differs"] or total["gradient differs"] or total["fails"] else 0


def samples_of(op: Any, torch: Any) -> Iterator[Any]:
    try:
        yield from op.sample_inputs("cpu", torch.float64, requires_grad=op.supports_autograd)
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"{op.name}: samples end with {error!r}", file=sys.stderr)


def judge(op: Any, sample: Any, backend: str, torch: Any) -> Outcome:
    """Compare one sample."""
    try:
        given = op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        return "refused there", type(error).__name__
    expected = [
        each
        for each in (given if isinstance(given, list | tuple) else [given])
        if isinstance(each, torch.Tensor)
    ]
    leaves: list[tuple[Any, oc.Tensor]] = []

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                raise NotOurs("complex numbers")
            array = value.detach().numpy()
            array = array.astype(np.int32) if array.dtype == np.int64 else array
            array = array.astype(np.float64) if array.dtype == bool else array
            made = oc.tensor(
                np.ascontiguousarray(array).reshape(array.shape),
                requires_grad=bool(value.requires_grad),
            )
            if array.dtype == np.float64 and value.dtype == torch.bool:
                made = made != 0.0
            leaves.append((value, made))
            return made
        if isinstance(value, list | tuple):
            return type(value)(map(convert, value))
        if value is torch.float64:
            return None
        if isinstance(value, torch.dtype):
            raise NotOurs("another number format")
        if isinstance(value, complex):
            raise NotOurs("complex numbers")
        return value

    with oc.Session(dtype="float64"), settings.overrides(allow_nan=True):
        try:
            args = [convert(each) for each in (sample.input, *sample.args)]
            kwargs = {name: convert(each) for name, each in sample.kwargs.items()}
            result = OPERATIONS[op.name](*args, **kwargs)
        except NotOurs as reason:
            return "not ours", str(reason)
        except oc.OcannlError as error:
            return "refused", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        except Exception as error:
            return "fails", f"{type(error).__name__}: {error}"
        found = list(result) if isinstance(result, list | tuple) else [result]
        if not all(isinstance(each, oc.Tensor) for each in found):
            return "not ours", "a number"
        try:
            return compare(found, expected, leaves, backend, torch)
        except oc.OcannlError as error:
            return "refused", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        except Exception as error:
            return "fails", f"{type(error).__name__}: {error}"


def compare(
    found: list[Any], expected: list[Any], leaves: list[tuple[Any, Any]], backend: str, torch: Any
) -> Outcome:
    rng = np.random.default_rng(0)
    expected = expected[: len(found)]  # running extremes have positions there, too
    flows = [k for k, each in enumerate(expected) if each.requires_grad and found[k].requires_grad]
    weights = [rng.uniform(0.5, 1.5, size=tuple(expected[k].shape)) for k in flows]
    trained = [(theirs, mine) for theirs, mine in leaves if theirs.requires_grad]
    code = oc.train.forward(found[0])
    for each in found[1:]:
        code += oc.train.forward(each)
    if flows and trained:
        loss = sum(
            (oc.sum(found[k] * oc.tensor(w)) for k, w in zip(flows, weights, strict=True)),
            oc.number(0.0),
        )
        code += oc.train.grad_update(loss)
    grads = [mine.grad for _, mine in trained if mine.grad is not None]
    ctx = oc.Context(backend)
    ctx.compile(code, keep=[*found, *(grads if flows and trained else [])])()
    for mine, theirs in zip(found, expected, strict=True):
        wanted = theirs.detach().numpy()
        if ctx[mine].shape != wanted.shape:
            return "differs", f"shape {ctx[mine].shape}, {wanted.shape} there"
        if not np.allclose(ctx[mine], wanted, rtol=1e-9, atol=1e-11, equal_nan=True):
            return "differs", "cells"
    if not flows or not trained:
        return "agrees", ""
    theirs_total = sum(
        (expected[k] * torch.from_numpy(w)).sum() for k, w in zip(flows, weights, strict=True)
    )
    slopes = torch.autograd.grad(theirs_total, [theirs for theirs, _ in trained], allow_unused=True)
    for (theirs, mine), slope in zip(trained, slopes, strict=True):
        wanted = np.zeros(tuple(theirs.shape)) if slope is None else slope.numpy()
        if not np.allclose(ctx[mine.grad], wanted, rtol=1e-7, atol=1e-9, equal_nan=True):
            return "gradient differs", ""
    return "agrees, gradient too", ""


def report(names: set[str], total: Counter[str], rest: Counter[tuple[str, str, str]]) -> None:
    count = sum(total.values()) - total["refused there"]
    ours = count - total["not ours"]
    agree = total["agrees"] + total["agrees, gradient too"]
    print(f"{len(names)} operations, {count} samples")
    print(f"{ours} are ours ({ours / max(count, 1):.1%})")
    print(
        f"{agree} agree ({agree / max(ours, 1):.1%} of ours), {total['agrees, gradient too']} of these with a gradient"
    )
    for (name, outcome, reason), number in sorted(
        rest.items(), key=lambda each: (each[0][1], each[0][0])
    ):
        print(f"  {outcome:17} {number:4}  {name}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
