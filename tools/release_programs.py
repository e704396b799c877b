"""Programs that a release runs where its wheels are installed, outside of the checkout.

    python release_programs.py readme README.md cpu_c   # the README's programs, on this backend
    python release_programs.py leave                    # what a version leaves behind
    python release_programs.py find                     # the same files, used by the next version

This file needs the core and NumPy alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core import cli

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CHECKPOINT = Path("model.safetensors")
_LEFT = Path("left.json")


def require(condition: object, text: str) -> None:
    """Exit with an error if a condition does not hold."""
    if not condition:
        raise SystemExit(f"error: {text}")


def readme(page: str, backend: str) -> None:
    """Run the programs of the README, and check the backend that the default context chose.

    On the interpreter, a warning must name the missing compiler.
    """
    checkout = Path(page).resolve().parent
    place = Path(oc.__file__).resolve()
    require(not place.is_relative_to(checkout), f"{place} is the checkout, and not a wheel")
    blocks = _BLOCK.findall(Path(page).read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "readme"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(io.StringIO()):
            for block in blocks:
                exec(compile(block, page, "exec"), names)
    chosen = names["ctx"].target.backend
    require(chosen == backend, f"the default backend is {chosen} and not {backend}")
    signs = np.sign(names["ctx"][names["guess"]].ravel())
    require((signs == [-1, 1, 1, -1]).all(), "the network has not learned")
    texts = [str(each.message) for each in caught]
    explained = [text for text in texts if "compiler" in text]
    if backend == "interp":
        require(explained, f"no warning names the missing compiler: {texts}")
        print(f"README without a compiler, on {chosen}: {explained[0]}")
    else:
        require(not texts, f"unexpected warnings: {texts}")
        print(f"README with a compiler, on {chosen}")


def _model() -> tuple[oc.Tensor, Any, oc.Context, Any]:
    """Return the loss, optimizer, context and training step of a small network."""
    x = oc.tensor(np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4), batch_axes=1)
    hidden = oc.tanh(oc.param("w1", output=[64]) @ x + oc.param("b1", init=0.0))
    error = oc.param("w2", output=[1]) @ hidden - 0.5
    loss = oc.einsum("...|... => 0", error * error)
    adam = oc.train.Adam(learning_rate=1e-2)
    context = oc.Context("cpu_c")
    return loss, adam, context, context.compile(adam.minimize(loss))


def _product() -> tuple[oc.Context, Any, oc.Tensor]:
    """Return a routine whose schedule is tuned, and its result."""
    a, b = (oc.param(name, output=[96], input=[96], init=0.5) for name in ("a", "b"))
    product = oc.einsum("i->j; j->k => i->k", a, b)
    context = oc.Context("cpu_c")
    routine = context.compile(oc.train.forward(product))
    context.init_params(product)
    return context, routine, product


def _command(*arguments: str) -> None:
    """Run a command of `ocannl`, which must succeed."""
    status = cli.main(list(arguments))
    require(status == 0, f"ocannl {' '.join(arguments)} ended with status {status}")


def leave() -> None:
    """Leave a checkpoint, tuned schedules, cached routines and compiled code behind."""
    with oc.Session(seed=3):
        loss, adam, context, step = _model()
        context.init_params(loss)
        for _ in range(5):
            step()
        oc.save(_CHECKPOINT, context, loss, optimizer=adam, step=5)
        values = {name: context[p].tolist() for name, p in loss.params.items()}
    with oc.Session(seed=3):
        _product()[1].tune(budget=0.5)
    _LEFT.write_text(json.dumps({"values": values}), encoding="utf-8")
    print(f"left by {oc.__version__}: a checkpoint, a tuned schedule and caches")


def find() -> None:
    """Go on from the files that `leave` left."""
    left = json.loads(_LEFT.read_text(encoding="utf-8"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with oc.Session(seed=3):
            loss, adam, context, step = _model()
            found = oc.load(_CHECKPOINT, context, loss, optimizer=adam)
            require(found.step == 5, f"the checkpoint is of step {found.step} and not 5")
            for name, p in loss.params.items():
                same = np.array_equal(context[p], np.asarray(left["values"][name], np.float32))
                require(same, f"the checkpoint has other bits of {name}")
            step()
            before = context.item(loss)
            for _ in range(20):
                step()
            require(context.item(loss) < before, "training does not go on")
        with oc.Session(seed=3):
            context, routine, product = _product()
            routine()
            require((context[product] == 24.0).all(), "a product with a tuned schedule is wrong")
    _command("cache", "verify")
    _command("tune", "--show")
    print(f"used by {oc.__version__}: a checkpoint, a tuned schedule and caches")


if __name__ == "__main__":
    {"readme": readme, "leave": leave, "find": find}[sys.argv[1]](*sys.argv[2:])
