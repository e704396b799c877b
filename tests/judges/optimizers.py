"""Optimizers beside PyTorch's and optax's, with the settings of PyTorch's own tests.

    python -m tests.judges.optimizers [--only Adam Lion] [--verbose]

Every setting of `torch.testing._internal.common_optimizers.optim_db`, and the optimizers and
wrappers of optax that PyTorch lacks, take 20 steps here and there, from the same weights: the
results agree to 1e-6 of the largest weight in float32, and to 1e-12 of it in float64.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch.testing._internal.common_optimizers import optim_db

import ocannl_core as oc

STEPS = 20
TOLERANCES = {"float32": 1e-6, "float64": 1e-12}
NUMBERS = np.random.default_rng(0)
DATA = NUMBERS.standard_normal((6, 5))
WEIGHTS = {"w": NUMBERS.standard_normal((3, 5)), "b": np.full(3, 0.1)}
VARIANTS = {"foreach", "fused", "capturable", "differentiable"}
"""Arguments of PyTorch that choose an implementation."""
REFUSED = {
    "ASGD": "its steps depend on t0 and lambd; average= keeps the mean of the parameters",
    "LBFGS": "it evaluates the loss several times a step",
    "SparseAdam": "gradients of rows that were not read are zeros here",
}
ROUGHER = {"NAdam": 1e-8, "linear": 1e-7, "MultiSteps": 1e-9}
"""PyTorch keeps the product of momenta of NAdam in float32, optax schedules and weights of means."""

Weights = Mapping[str, Any]


def ours(optimizer: Any, dtype: str, names: list[str]) -> tuple[Weights, float]:
    """Return the weights after all steps, and the largest change of one."""
    with oc.Session(dtype=dtype):
        made = {
            name: oc.param(
                name, init=oc.tensor(cells.astype(dtype), input_axes=cells.ndim - 1, dtype=dtype)
            )
            for name, cells in WEIGHTS.items()
            if name in names
        }
        y = made["w"] @ oc.tensor(DATA.astype(dtype), batch_axes=1, dtype=dtype)
        y = oc.tanh(y + made["b"] if "b" in made else y)
        loss = oc.einsum("...|...->... => 0", y * y)
        opt = optimizer() if callable(optimizer) else optimizer
        ctx = oc.Context("cpu_c")
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + opt.update(loss))
        for _ in range(STEPS):
            step()
        shown = opt.averages or made
        found = {name: np.array(ctx[shown[name]]) for name in made}
        return found, max(float(abs(found[name] - WEIGHTS[name]).max()) for name in found)


def of_torch(optimizer: Any, arguments: Mapping[str, Any], dtype: str, names: list[str]) -> Weights:
    values = {name: torch.tensor(WEIGHTS[name].astype(dtype), requires_grad=True) for name in names}
    data = torch.tensor(DATA.astype(dtype))
    made = optimizer(list(values.values()), **arguments)
    for _ in range(STEPS):
        made.zero_grad()
        y = data @ values["w"].T
        (torch.tanh(y + values["b"] if "b" in values else y) ** 2).sum().backward()
        made.step()
    return {name: value.detach().numpy() for name, value in values.items()}


def judge_torch(info: Any, each: Any, dtype: str) -> str:
    """Return the reason for a disagreement, or nothing."""
    name = info.optim_cls.__name__
    arguments = {
        key: value.double() if isinstance(value, torch.Tensor) else value
        for key, value in each.kwargs.items()
        if key not in VARIANTS
    }
    # PyTorch's Muon takes matrices only
    names = ["w"] if name == "Muon" else ["w", "b"]
    # Muon multiplies in bfloat16 there; here in the format of the parameters
    with mock.patch.object(torch.Tensor, "bfloat16", lambda cells: cells):
        expected = of_torch(info.optim_cls, arguments, dtype, names)
    own = {key: _plain(value) for key, value in arguments.items()}
    default = inspect.signature(info.optim_cls).parameters["lr"].default
    own["learning_rate"] = own.pop("lr", _plain(default))
    return _difference(
        *ours(lambda: getattr(oc.train, name)(**own), dtype, names), expected, name, dtype
    )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _difference(found: Weights, moved: float, expected: Weights, name: str, dtype: str) -> str:
    tolerance = max(TOLERANCES[dtype], ROUGHER.get(name, 0.0))
    most = max(float(abs(found[key] - expected[key]).max()) for key in expected)
    most /= max(float(abs(cells).max()) for cells in WEIGHTS.values())
    if not moved > 0.0:
        return "the weights do not move"
    return "" if most <= tolerance else f"{most:.1e} after {STEPS} steps in {dtype}"


Pair = tuple[Callable[[], Any], Callable[[], Any]]
train = oc.train

OPTAX: dict[str, Pair] = {
    "Lion": (lambda: train.Lion(learning_rate=0.01), lambda: optax.lion(0.01, weight_decay=0.0)),
    "Lion, decay": (
        lambda: train.Lion(learning_rate=0.01, betas=(0.95, 0.98), weight_decay=0.1),
        lambda: optax.lion(0.01, b1=0.95, b2=0.98, weight_decay=0.1),
    ),
    "LAMB": (lambda: train.LAMB(learning_rate=0.01), lambda: optax.lamb(0.01)),
    "LAMB, decay": (
        lambda: train.LAMB(learning_rate=0.01, trust=0.1, eps=1e-3),
        lambda: optax.lamb(0.01, weight_decay=0.1, eps=1e-3),
    ),
    "clip_by_global_norm": (
        lambda: train.SGD(learning_rate=0.1, clip_norm=0.5),
        lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
    ),
    "clip": (
        lambda: train.SGD(learning_rate=0.1, momentum=0.9, clip_value=0.05),
        lambda: optax.chain(optax.clip(0.05), optax.sgd(0.1, momentum=0.9)),
    ),
    "MultiSteps": (
        lambda: train.AdamW(learning_rate=0.01, weight_decay=0.1, accumulate=4),
        lambda: optax.MultiSteps(optax.adamw(0.01, weight_decay=0.1), 4),
    ),
    "apply_if_finite": (
        lambda: train.Adam(learning_rate=0.01, skip_nonfinite=True),
        lambda: optax.apply_if_finite(optax.adam(0.01), 5),
    ),
    "mask of weight decay": (
        lambda: train.AdamW(
            learning_rate=0.01, weight_decay=0.2, groups={"b": {"weight_decay": 0.0}}
        ),
        lambda: optax.adamw(0.01, weight_decay=0.2, mask={"w": True, "b": False}),
    ),
    "frozen parameters": (
        lambda: train.SGD(learning_rate=0.01, groups={"b": None}),
        lambda: optax.multi_transform(
            {"on": optax.sgd(0.01), "off": optax.set_to_zero()}, {"w": "on", "b": "off"}
        ),
    ),
    "constant": (
        lambda: train.SGD(learning_rate=train.constant(0.02)),
        lambda: optax.sgd(optax.constant_schedule(0.02)),
    ),
    "linear": (
        lambda: train.SGD(learning_rate=train.linear(0.1, final=0.01, steps=15)),
        lambda: optax.sgd(optax.linear_schedule(0.1, 0.01, 15)),
    ),
    "cosine": (
        lambda: train.Adam(learning_rate=train.cosine(0.02, steps=15)),
        lambda: optax.adam(optax.cosine_decay_schedule(0.02, 15)),
    ),
}


def of_optax(make: Callable[[], Any], dtype: str) -> Weights:
    data = jnp.asarray(DATA.astype(dtype))
    values: Any = {name: jnp.asarray(cells.astype(dtype)) for name, cells in WEIGHTS.items()}
    optimizer = make()
    state = optimizer.init(values)
    slope = jax.grad(lambda v: jnp.sum(jnp.tanh(data @ v["w"].T + v["b"]) ** 2))
    for _ in range(STEPS):
        steps, state = optimizer.update(slope(values), state, values)
        values = optax.apply_updates(values, steps)
    return {name: np.asarray(value) for name, value in values.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    agree = differ = refused = 0

    def note(title: str, outcome: str) -> None:
        nonlocal agree, differ
        agree, differ = (agree, differ + 1) if outcome else (agree + 1, differ)
        if outcome or arguments.verbose:
            print(f"  {title}: {outcome or 'agrees'}", flush=True)

    for info in optim_db:
        name = info.optim_cls.__name__
        if arguments.only and name not in arguments.only:
            continue
        settings = info.optim_inputs_func(device="cpu")
        if name in REFUSED:
            refused += len(settings)
            print(f"  {name}: {len(settings)} settings are not ours: {REFUSED[name]}")
            continue
        for each in settings:
            for dtype in TOLERANCES:
                note(f"{name}, {each.desc}, {dtype}", _guarded(judge_torch, info, each, dtype))
    print(f"PyTorch: {agree} agree, {differ} differ, {refused} settings are not ours")
    total, agree, differ = differ, 0, 0
    for name, pair in OPTAX.items():
        if arguments.only and name not in arguments.only:
            continue
        for dtype in TOLERANCES:
            note(f"{name}, {dtype}", _guarded(judge_optax, name, pair, dtype))
    print(f"optax: {agree} agree, {differ} differ")
    return int(total + differ > 0)


def judge_optax(name: str, pair: Pair, dtype: str) -> str:
    own, theirs = pair
    found, moved = ours(own, dtype, ["w", "b"])
    return _difference(found, moved, of_optax(theirs, dtype), name, dtype)


def _guarded(judge: Callable[..., str], *arguments: Any) -> str:
    try:
        return judge(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
