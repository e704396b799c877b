"""A program that trains several models and saves them halfway, or resumes.

    python training.py whole FOLDER      2N steps
    python training.py first FOLDER      N steps, then checkpoints in the folder
    python training.py second FOLDER     checkpoints of the folder, then N steps

Prints, for each model, a digest of every bit of its parameters and of its optimizer's state.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ocannl_core as oc

STEPS = 4
train = oc.train

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: train.SGD(learning_rate=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda: train.AdamW(
        learning_rate=train.cosine(1e-2, steps=2 * STEPS, warmup=2), clip_norm=0.5, average=0.9
    ),
    "lion": lambda: train.Lion(learning_rate=1e-2, skip_outliers=train.ZScore(window=3)),
    "muon": lambda: train.Muon(learning_rate=1e-2, groups={"b*": None}),
    "schedule_free": lambda: train.ScheduleFreeAdamW(learning_rate=1e-2, accumulate=2),
}


@oc.cd
def count_up(counter: Any) -> None:
    counter += 1


def run(action: str, folder: Path, name: str) -> str:
    """Train one model; return the digest."""
    numbers = np.random.default_rng(1)
    x = oc.placeholder("x", batch=[64], output=[32])
    y = oc.tensor(numbers.standard_normal((64, 4)).astype(np.float32), batch_axes=1)
    calls = oc.declare("calls", batch=(), input=(), output=(), dtype="int32")
    hidden = oc.relu(oc.param("w1", output=[128]) @ x + oc.param("b1", init=0.0))
    kept = oc.where(oc.uniform(counter=calls) < 0.5, 2.0 * hidden, 0.0)
    error = oc.param("w2") @ kept + oc.param("b2", init=0.0) - y
    loss = oc.einsum("...|...->... => 0", error * error) / 256.0
    opt = OPTIMIZERS[name]()
    ctx = oc.Context("cpu_c")
    ctx[calls] = 0
    step = ctx.compile(train.grad_update(loss) + opt.update(loss) + count_up(calls))
    loader = oc.data.Loader(
        numbers.standard_normal((192, 32)).astype(np.float32), batch=64, shuffle=True, seed=9
    )
    subject = {**loss.params, "calls": calls}
    path = folder / f"{name}.safetensors"
    begin = 0
    if action == "second":
        found = oc.load(path, ctx, subject, optimizer=opt, loader=loader)
        assert found.step == STEPS
        begin = found.step
    else:
        ctx.init_params(loss)
    end = STEPS if action == "first" else 2 * STEPS
    while begin < end:
        for (batch,) in loader:
            ctx[x] = batch
            step()
            begin += 1
            if begin == end:
                break
    if action == "first":
        oc.save(path, ctx, subject, optimizer=opt, loader=loader, step=STEPS)
    digest = hashlib.sha256()
    for tensor in [*subject.values(), *opt.state.values()]:
        digest.update(ctx[tensor].tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    for model in OPTIMIZERS:
        with oc.Session(seed=3):
            print(model, run(sys.argv[1], Path(sys.argv[2]), model), flush=True)
