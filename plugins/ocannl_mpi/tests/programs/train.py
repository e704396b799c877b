"""A training run over the processes of MPI, with checkpoints; prints the bits of its parameters."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

import ocannl_core as oc
import ocannl_mpi


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="cpu_c")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--clip", action="store_true", help="clip by the global norm")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of an update")
    parser.add_argument("--regularized", action="store_true", help="dropout and batch norm")
    parser.add_argument("--sharded", action="store_true", help="divide the optimizer's state")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument(
        "--fault", choices=("raise", "exit", "hang", "kill", "quit", "differ", "rate")
    )
    parser.add_argument("--rank", type=int, default=1, help="the process that fails")
    parser.add_argument("--at", type=int, default=3, help="the step at which it fails")
    parser.add_argument("--timeout", type=float, default=30)
    return parser.parse_args(given)


def fail(fault: str) -> None:
    """Fail in one of several ways."""
    match fault:
        case "raise":
            raise MemoryError("no memory is left for the cells of w1")
        case "exit":
            sys.exit(3)
        case "hang":
            time.sleep(600)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "quit":
            os._exit(0)


def main() -> None:
    given = arguments()
    with ocannl_mpi.communicator(timeout=given.timeout) as group:
        seed = group.rank if given.fault == "differ" else 0
        with oc.Session(seed=seed):
            found = train(group, given)
        if group.rank == 0:
            print(found, flush=True)


def train(group: oc.train.Communicator, given: argparse.Namespace) -> str:
    """Return the bits of the parameters and the mean loss after training."""
    x = oc.placeholder("x", batch=[2], output=[6])
    y = oc.placeholder("y", batch=[2], output=[3])
    hidden = oc.relu(oc.param("w1", output=[8]) @ x + oc.param("b1", output=[8]))
    if given.regularized:
        hidden = oc.nn.dropout(oc.nn.batch_norm(hidden), rate=0.2)
    error = oc.param("w2", output=[3]) @ hidden + oc.param("b2", output=[3]) - y
    loss = oc.einsum("...|... => 0", error * error) / 6
    own = group.rank if given.fault == "rate" else 0
    if given.optimizer == "sgd":
        optimizer: oc.train.Optimizer = oc.train.SGD(learning_rate=0.05, momentum=0.9)
    else:
        optimizer = oc.train.AdamW(
            learning_rate=0.01 * (1 + own),
            clip_norm=0.5 if given.clip else None,
            accumulate=given.accumulate,
        )
    step = oc.train.data_parallel(
        loss,
        optimizer,
        [x, y],
        slots=given.slots,
        devices=[given.backend],
        shard_state=given.sharded,
        communicator=group,
    )
    random = np.random.default_rng(0)
    rows = 4 * 2 * given.slots
    arrays = random.standard_normal((rows, 6)), random.standard_normal((rows, 3))
    loader = oc.data.Loader(
        *(each.astype(np.float32) for each in arrays), batch=2 * given.slots, shuffle=True, seed=5
    )
    step.context.init_params(loss)
    done = 0
    if given.checkpoint is not None and given.checkpoint.exists():
        saved = step.whole_state()
        loaded = oc.load(given.checkpoint, saved.context, loss, optimizer=saved, loader=loader)
        saved.restore()
        done = loaded.step or 0
    while done < given.steps:
        for batch in loader:
            if group.rank == given.rank and done == given.at and given.fault:
                fail(given.fault)
            step(*batch)
            done += 1
            if given.checkpoint is not None and done % 2 == 0:
                saved = step.whole_state()
                save = partial(oc.save, given.checkpoint, saved.context, loss, optimizer=saved)
                group.first(partial(save, loader=loader, step=done), "the checkpoint")
            if done >= given.steps:
                break
    cells = b"".join(step.context[each].tobytes() for each in loss.parameters())
    return f"bits {hashlib.sha256(cells).hexdigest()[:16]} loss {step.loss:.9g}"


if __name__ == "__main__":
    main()
