"""A training step in one process and in two, beside PyTorch's DistributedDataParallel with gloo.

    python benchmarks/processes.py

A perceptron on batches of 512 rows, one thread for each process. Each contender runs in processes
of its own; the time of a step is the least of several samples. Also printed: half of the time of
one process plus that of the sum of gradients alone, which is the time of two processes that lose
nothing. Needs ocannl-mpi; PyTorch is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_LAYERS = (784, 512, 256, 10)
_BATCH, _SLOTS = 512, 2
_STEPS, _SAMPLES = 10, 7


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((_BATCH, _LAYERS[0]), dtype=np.float32)
    return inputs, random.standard_normal((_BATCH, _LAYERS[-1]), dtype=np.float32)


def least(step: Callable[[], object]) -> float:
    """Return the least time of a step."""
    found = float("inf")
    for _ in range(_SAMPLES):
        start = time.perf_counter()
        for _ in range(_STEPS):
            step()
        found = min(found, (time.perf_counter() - start) / _STEPS)
    return found


# ----- contenders, each in a process of its own ---------------------------------------------------


def own() -> None:
    import ocannl_core as oc
    import ocannl_mpi

    with ocannl_mpi.communicator() as group:
        rows = _BATCH // _SLOTS
        x = oc.placeholder("x", batch=[rows], output=[_LAYERS[0]])
        y = oc.placeholder("y", batch=[rows], output=[_LAYERS[-1]])
        hidden = x
        for number, width in enumerate(_LAYERS[1:]):
            hidden = oc.param(f"w{number}", output=[width]) @ hidden
            hidden = hidden + oc.param(f"b{number}", output=[width])
            hidden = oc.relu(hidden) if width != _LAYERS[-1] else hidden
        loss = oc.einsum("...|... => 0", (hidden - y) * (hidden - y)) / rows
        optimizer = oc.train.SGD(learning_rate=0.001, momentum=0.9)
        step = oc.train.data_parallel(
            loss, optimizer, [x, y], slots=_SLOTS, devices=1, communicator=group
        )
        step.context.init_params(loss)
        batch = arrays()
        seconds = least(lambda: step(*batch))
        sums = 0.0
        if group.size > 1:
            partials = [step._partial(each) for each in step._sums]
            sums = least(lambda: group.all_reduce(partials))
        if group.rank == 0:
            print(seconds, sums)


def torch_ddp() -> None:
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    share = _BATCH // distributed.get_world_size()
    own_rows = slice(distributed.get_rank() * share, (distributed.get_rank() + 1) * share)
    inputs, targets = (torch.from_numpy(each[own_rows]) for each in arrays())
    layers: list[Any] = []
    for width, following in itertools.pairwise(_LAYERS):
        layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        ((model(inputs) - targets) ** 2).sum().div(share).backward()
        optimizer.step()

    step()
    seconds = least(step)
    if distributed.get_rank() == 0:
        print(seconds, 0.0)
    distributed.destroy_process_group()


# ----- the comparison ----------------------------------------------------------------------------


def run_own(count: int) -> tuple[float, float]:
    from ocannl_mpi.checks import find_launcher

    command = [str(find_launcher()), "-n", str(count), sys.executable, __file__, "--only", "own"]
    return _numbers(subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout)


def run_torch(count: int) -> tuple[float, float]:
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29517",
        "WORLD_SIZE": str(count),
    }
    command = [sys.executable, __file__, "--only", "torch"]
    processes = [
        subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, env=environment | {"RANK": str(rank)}
        )
        for rank in range(count)
    ]
    outputs = [each.communicate()[0] for each in processes]
    return _numbers(outputs[0])


def _numbers(text: str) -> tuple[float, float]:
    seconds, sums = text.split()[-2:]
    return float(seconds), float(sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("own", "torch"), help="the contender of this process")
    parser.add_argument("--backend", default=None, help="ignored: the default backend is measured")
    parser.add_argument("--threads", type=int, default=1, help="ignored: one for each process")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.only:
        own() if given.only == "own" else torch_ddp()
        return
    os.environ |= {"OCANNL_THREADS": "1", "OMP_NUM_THREADS": "1"}
    contenders = {"compiled": run_own}
    if importlib.util.find_spec("torch"):
        contenders["torch"] = run_torch
    for name, function in contenders.items():
        found = [[function(count) for count in (1, 2)] for _ in range(given.rounds)]
        alone = min(each[0][0] for each in found)
        both = min(each[1][0] for each in found)
        line = f"{name:9} one process {1e3 * alone:6.2f} ms, two {1e3 * both:6.2f} ms"
        sums = min(each[1][1] for each in found)
        if sums:
            ideal = alone / 2 + sums
            line += f"; sums alone {1e3 * sums:.2f} ms, to {1e3 * ideal:.2f} ms: {both / ideal:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
