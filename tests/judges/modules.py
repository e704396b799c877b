"""Blocks and losses beside PyTorch's modules, on the inputs of its own test suite.

    python -m tests.judges.modules [--backend interp] [--only Conv2d LSTM] [--most 20]

For every input of `torch.testing._internal.common_modules.module_db`, the module's parameters are
copied to the block, and the outputs and the gradients of a weighted sum of them are compared in
float64. A line for each module counts the inputs that agree; `--verbose` shows the others.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_modules import module_db

import ocannl_core as oc
from ocannl_core.base import settings
from tests.judges import layers, losses, sequences, windows
from tests.judges.trial import ADAPTERS, Adapter, Missing, Trial

MAPPED = layers, losses, sequences, windows
"""The modules whose import registers the adapters."""


def compare(trial: Trial, adapted: Adapter, forward: Any, backend: str) -> str:
    """Return the reason for a disagreement, or nothing."""
    expected = trial.module(*forward.args, **forward.kwargs)
    expected = expected[0] if isinstance(expected, tuple) else expected
    with oc.Session(dtype="float64"), settings.overrides(allow_nan=True):
        result, change = adapted(trial, *forward.args, **forward.kwargs)
        ctx = oc.Context(backend)
        rng = np.random.default_rng(0)
        weights = rng.normal(size=np.shape(change(expected.detach().numpy())))
        assert result.info
        dims = result.shape
        weighting = oc.placeholder(
            "weighting", batch=dims.batch.sizes, output=dims.output.sizes, input=dims.input.sizes
        )
        loss = oc.einsum("...|...->... => 0", result * weighting)
        moved = [tie for tie in trial.ties if tie.theirs[0].requires_grad]
        step = ctx.compile(
            oc.train.grad_update(loss), keep=[result, *(tie.tensor.grad for tie in moved)]
        )
        ctx.init_params(loss)
        for tie in trial.ties:
            if tie.tensor.is_parameter:
                ctx[tie.tensor] = tie.cells.reshape(tie.tensor.info.dims)
        ctx[weighting] = weights.reshape(weighting.info.dims)
        step()
        ours = ctx[result].reshape(weights.shape)
        wanted = change(expected.detach().numpy())
        if not np.allclose(ours, wanted, rtol=1e-7, atol=1e-9, equal_nan=True):
            return "another output"
        back = torch.tensor(np.ascontiguousarray(_undo(change, weights, expected)))
        (expected * back).sum().backward()
        for tie in moved:
            gradient = tie.gradient
            if gradient is None:
                continue
            found = ctx[tie.tensor.grad].reshape(gradient.shape)
            if not np.allclose(found, gradient, rtol=1e-6, atol=1e-8, equal_nan=True):
                return f"another gradient of {tie.tensor.label[0]}"
    return ""


def _undo(change: Any, cells: Any, like: Any) -> Any:
    """Return cells in the layout before a conversion that permutes them."""
    order = change(np.arange(like.numel()).reshape(like.shape))
    result = np.empty(like.numel())
    result[order.ravel()] = cells.ravel()
    return result.reshape(like.shape)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="interp")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--most", type=int, default=1000, help="inputs of each module")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    total: Counter[str] = Counter()
    for info in module_db:
        name = info.name.split(".")[1]
        if arguments.only and name not in arguments.only:
            continue
        torch.manual_seed(0)
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=True
        )[: arguments.most]
        outcomes: Counter[str] = Counter()
        for each in inputs:
            outcome = judge(info, name, each, arguments.backend)
            kind = "differ" if outcome.startswith("differ") else outcome or "agree"
            outcomes[kind] += 1
            if arguments.verbose and kind == "differ":
                print(f"    {name}: {outcome}")
        reasons = "; ".join(f"{n} {kind}" for kind, n in outcomes.items() if kind != "agree")
        print(f"{name:24} {outcomes['agree']:4} of {len(inputs):4}  {reasons}", flush=True)
        for kind, n in outcomes.items():
            total[kind.split(":")[0]] += n
        total["modules"] += outcomes["agree"] == len(inputs)
    print(
        f"{total['agree']} inputs agree in outputs and gradients, {total['differ']} differ, "
        f"{total['missing']} have options that blocks lack, {total['unmapped']} are of other modules; "
        f"{total['modules']} modules agree in all inputs"
    )
    return int(total["differ"] > 0)


def judge(info: Any, name: str, each: Any, backend: str) -> str:
    """Return the outcome of one input."""
    adapted = ADAPTERS.get(name)
    if adapted is None:
        return "unmapped"
    module = info.module_cls(*each.constructor_input.args, **each.constructor_input.kwargs)
    module = module.double().train()
    try:
        with torch.no_grad():
            module(*each.forward_input.args, **each.forward_input.kwargs)  # lazy parameters
        if hasattr(module, "reset_running_stats"):
            module.reset_running_stats()
        return (
            f"differ: {reason}"
            if (reason := compare(Trial(module), adapted, each.forward_input, backend))
            else ""
        )
    except Missing as missing:
        return f"missing: {missing}"
    except Exception as error:
        return f"differ: {type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
