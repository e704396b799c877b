"""Optimizers beside PyTorch's, where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from tests.train.test_optimizers import DATA, OFFSETS, WEIGHTS, _tanh_squares

torch = pytest.importorskip("torch")

DECAY = {"weight_decay": 0.1}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *(("SGD", each) for each in ({}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5})),
    *(("SGD", each) for each in (DECAY, {"maximize": True}, {"momentum": 0.9, "nesterov": True})),
    *((n, each) for n in ("Adam", "AdamW") for each in ({}, DECAY, {"amsgrad": True})),
    *((n, {"maximize": True, **DECAY}) for n in ("Adam", "AdamW", "RMSprop", "Adamax")),
    *(("RMSprop", each) for each in ({}, DECAY, {"centered": True}, {"momentum": 0.9})),
    *(("Adagrad", each) for each in ({}, DECAY, {"lr_decay": 0.1})),
    ("Adagrad", {"initial_accumulator_value": 0.1}),
    *(("Adadelta", each) for each in ({}, DECAY, {"rho": 0.95})),
    *((n, each) for n in ("Adamax", "RAdam") for each in ({}, DECAY)),
    ("RAdam", {"decoupled_weight_decay": True, **DECAY}),
    *(("Rprop", each) for each in ({}, {"etas": (0.6, 1.3)}, {"step_sizes": (1e-4, 0.02)})),
    *(("Adafactor", each) for each in ({}, DECAY, {"lr": 0.5, **DECAY})),
    *(("NAdam", each) for each in ({}, DECAY, {"momentum_decay": 6e-3})),
]


@pytest.mark.parametrize(("name", "arguments"), SETTINGS)
def test_twenty_steps_equal_those_of_torch(name: str, arguments: dict[str, Any]) -> None:
    values = [torch.tensor(each, requires_grad=True) for each in (WEIGHTS, OFFSETS)]
    arguments = {"lr": 0.01, **arguments}
    theirs = getattr(torch.optim, name)(values, **arguments)
    for _ in range(20):
        theirs.zero_grad()
        (torch.tanh(torch.tensor(DATA) @ values[0].T + values[1]) ** 2).sum().backward()
        theirs.step()
    with oc.Session(dtype="float64"):
        loss, w, b = _tanh_squares()
        ours = getattr(oc.train, name)(learning_rate=arguments.pop("lr"), **arguments)
        ctx = oc.Context("cpu_c")
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + ours.update(loss))
        for _ in range(20):
            step()
        # PyTorch keeps NAdam's product of momenta in float32
        tolerance = 1e-8 if name == "NAdam" else 1e-12
        for tensor, value in zip((w, b), values, strict=True):
            expected = value.detach().numpy()
            np.testing.assert_allclose(ctx[tensor], expected, rtol=0, atol=tolerance)
