"""A training step in one process and in two, beside PyTorch's DistributedDataParallel with gloo and
JAX with its collectives between CPUs.

    python benchmarks/processes.py

A perceptron on batches of 512 rows, one thread for each process. Each contender runs in processes
of its own, in turn, for some rounds; a time is the least of several samples. The last line of a
contender is its time in two processes over the half of its time in one plus that of the plain
all-reduce of MPI: the time of processes that lose nothing but the exchange. `no messages` is the
time of two processes that train half of the batch each and exchange nothing: what the machine
itself loses when both cores are busy.

`--timeline FILE` writes a step of both processes in the format of Chrome's trace viewer. Needs
ocannl-mpi; contenders that are not installed are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

_LAYERS = (784, 512, 256, 10)
_BATCH, _SLOTS = 512, 2
_STEPS, _SAMPLES = 5, 24
_COUNT = sum(a * b + b for a, b in itertools.pairwise(_LAYERS))
_Report = dict[str, Any]


def arrays() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((_BATCH, _LAYERS[0]), dtype=np.float32)
    return inputs, random.standard_normal((_BATCH, _LAYERS[-1]), dtype=np.float32)


def least(step: Callable[[], object]) -> float:
    """Return the least time of a step, in milliseconds."""
    found = float("inf")
    for _ in range(_SAMPLES):
        start = time.perf_counter()
        for _ in range(_STEPS):
            step()
        found = min(found, (time.perf_counter() - start) / _STEPS)
    return 1e3 * found


def own(kind: str) -> _Report | None:
    """Measure a step of the compiled code; `alone` exchanges nothing with the other process."""
    import ocannl_core as oc
    import ocannl_mpi
    from ocannl_core.train.communication import OneProcess

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
        is_alone = kind == "alone"
        step = oc.train.data_parallel(
            loss,
            optimizer,
            [x, y],
            slots=1 if is_alone else _SLOTS,
            devices=1,
            shard_state=kind == "sharded",
            communicator=OneProcess() if is_alone else group,
        )
        step.context.init_params(loss)
        share = rows * len(step.slots) if is_alone else _BATCH
        batch = tuple(each[:share] for each in arrays())
        step(*batch)
        group.first(lambda: None)
        report: _Report = {"step": least(lambda: step(*batch))}
        steps: list[list[tuple[str, float, float]]] = []
        seconds: list[float] = []
        for _ in range(50):
            with step.traced() as found:
                start = time.perf_counter()
                step(*batch)
                seconds.append(time.perf_counter() - start)
            steps.append([(each.name, each.start, each.end) for each in found])
        names = [name for name, _, _ in steps[0]]
        report["phases"] = {
            name: 1e3 * min(end - start for step in steps for n, start, end in step if n == name)
            for name in names
        }
        report["all-reduce"] = plain_all_reduce() if group.size > 1 else 0.0
        folder = os.environ.get("BENCHMARK_TIMELINES")
        if folder:
            (least_at,) = group.broadcast([np.array([int(np.argmin(seconds))])])
            Path(folder, f"{group.rank}.json").write_text(json.dumps(steps[int(least_at[0])]))
        return report if group.rank == 0 else None


def plain_all_reduce() -> float:
    """Return the time of one all-reduce of MPI over all gradients."""
    from mpi4py import MPI

    cells, sums = np.ones(_COUNT, np.float32), np.empty(_COUNT, np.float32)
    return least(lambda: MPI.COMM_WORLD.Allreduce(cells, sums))


def torch_ddp(rank: int, count: int, port: int) -> _Report:
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
    share = _BATCH // count
    own_rows = slice(rank * share, (rank + 1) * share)
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
    milliseconds = least(step)
    distributed.destroy_process_group()
    return {"step": milliseconds}


def jax_collectives(rank: int, count: int, port: int) -> _Report:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, rank)
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("batch"))
    random = np.random.default_rng(1)
    layers = [
        (random.standard_normal((a, b), dtype=np.float32) * 0.05, np.zeros(b, np.float32))
        for a, b in itertools.pairwise(_LAYERS)
    ]
    share = _BATCH // count
    own_rows = slice(rank * share, (rank + 1) * share)

    def placed(cells: Any, sharding: Any) -> Any:
        return jax.make_array_from_process_local_data(sharding, cells)

    parameters = jax.tree.map(lambda each: placed(each, everywhere), layers)
    momenta = jax.tree.map(lambda each: placed(np.zeros_like(each), everywhere), layers)
    batch = tuple(placed(each[own_rows], divided) for each in arrays())

    def loss(parameters: Any, inputs: Any, targets: Any) -> Any:
        hidden = inputs
        for number, (w, b) in enumerate(parameters):
            hidden = hidden @ w + b
            hidden = jax.nn.relu(hidden) if number + 2 < len(_LAYERS) else hidden
        return ((hidden - targets) ** 2).sum() / _BATCH

    def update(parameters: Any, momenta: Any, inputs: Any, targets: Any) -> Any:
        gradients = jax.grad(loss)(parameters, inputs, targets)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return jax.tree.map(lambda p, m: p - 0.001 * m, parameters, momenta), momenta

    shardings = everywhere, everywhere
    compiled = jax.jit(update, donate_argnums=(0, 1), out_shardings=shardings)
    state = parameters, momenta

    def step() -> None:
        nonlocal state
        state = compiled(*state, *batch)
        jax.block_until_ready(state)

    del jnp
    step()
    return {"step": least(step)}


def run_own(kind: str, count: int) -> _Report:
    from ocannl_mpi.checks import find_launcher

    command = [str(find_launcher()), "-n", str(count), sys.executable, __file__, "--only", kind]
    return _report(subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout)


_ports = itertools.count(29500 + os.getpid() % 500)


def run_other(kind: str, count: int, python: str) -> _Report:
    port = str(next(_ports))
    command = [python, __file__, "--only", kind, "--count", str(count), "--port", port]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], text=True, stdout=subprocess.PIPE)
        for rank in range(count)
    ]
    outputs = [each.communicate()[0] for each in processes]
    return _report(outputs[0])


def has_module(python: str, name: str) -> bool:
    """Return True if a Python has a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", code]).returncode == 0


def _report(text: str) -> _Report:
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    found: _Report = json.loads(line)
    return found


def write_timeline(folder: Path, file: Path) -> None:
    """Write the steps of all processes in one file for Chrome's trace viewer."""
    steps = {int(each.stem): json.loads(each.read_text()) for each in folder.glob("*.json")}
    first = min(start for events in steps.values() for _, start, _ in events)
    rows = [
        {
            "name": name,
            "ph": "X",
            "ts": 1e6 * (start - first),
            "dur": 1e6 * (end - start),
            "pid": rank,
            "tid": name.split(":")[0] if name.startswith("bucket") else "device",
        }
        for rank, events in steps.items()
        for name, start, end in events
    ]
    file.write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the contender of this process")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("--backend", default=None, help="ignored: the default backend is measured")
    parser.add_argument("--threads", type=int, default=1, help="ignored: one for each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=sys.executable, help="a Python with PyTorch and JAX")
    parser.add_argument("--timeline", type=Path, help="a file for a step of two processes")
    given = parser.parse_args()
    if given.only:
        others = {"torch": torch_ddp, "jax": jax_collectives}
        if given.only in others:
            report: _Report | None = others[given.only](given.rank, given.count, given.port)
        else:
            report = own(given.only)
        if report is not None:
            print(json.dumps(report), flush=True)
        return
    os.environ |= {
        "OCANNL_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }
    compare(given.rounds, given.timeline, given.peers)


def compare(rounds: int, timeline: Path | None, peers: str) -> None:
    """Run all contenders, and print the table."""
    import tempfile

    contenders: dict[str, Callable[[int], _Report]] = {
        "compiled": partial(run_own, "whole"),
        "compiled, sharded state": partial(run_own, "sharded"),
    }
    for kind, label in (("torch", "PyTorch DDP, gloo"), ("jax", "JAX, gloo")):
        if has_module(peers, kind):
            contenders[label] = partial(run_other, kind, python=peers)
    found: dict[str, dict[int, list[_Report]]] = {name: {1: [], 2: []} for name in contenders}
    alone: list[_Report] = []
    with tempfile.TemporaryDirectory() if timeline else nullcontext() as folder:
        for _ in range(rounds):
            for name, run in contenders.items():
                for count in (1, 2):
                    if folder and name == "compiled" and count == 2:
                        os.environ["BENCHMARK_TIMELINES"] = folder
                    found[name][count].append(run(count))
                    os.environ.pop("BENCHMARK_TIMELINES", None)
            alone.append(run_own("alone", 2))
        if folder and timeline:
            write_timeline(Path(folder), timeline)
    steps = {
        name: {count: min(each["step"] for each in reports) for count, reports in by_count.items()}
        for name, by_count in found.items()
    }
    plain = min(each["all-reduce"] for each in found["compiled"][2])
    print(f"all-reduce of {4 * _COUNT:,} bytes by MPI: {plain:.2f} ms")
    print(f"no messages, half of the batch each: {min(each['step'] for each in alone):.2f} ms")
    print(f"{'':24}{'1 process':>11}{'2 processes':>13}{'half + sum':>12}{'ratio':>7}")
    for name, by_count in steps.items():
        ideal = by_count[1] / 2 + plain
        numbers = f"{by_count[1]:11.2f}{by_count[2]:13.2f}{ideal:12.2f}{by_count[2] / ideal:7.2f}"
        print(f"{name:24}{numbers}", flush=True)
    for name in ("compiled", "compiled, sharded state"):
        print(f"phases of two processes, {name}, in ms:")
        for phase in found[name][2][0]["phases"]:
            times = [each["phases"].get(phase, float("inf")) for each in found[name][2]]
            print(f"    {phase:24}{min(times):7.3f}")


if __name__ == "__main__":
    main()
