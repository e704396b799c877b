"""Runs programs as other users: reads orders from its input, one in a line; started by root.

    {"user": 65011, "folder": "/", "program": "...", "variables": {...}, "output": "/path"}   -->   process id
    12345                                                                                  -->   exit status

Each program runs in a fork of this process, which has imported the packages: the user may not be
able to read them. Caches that root has filled are cleared before.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import tomllib  # noqa: F401  # imported late by the settings
import traceback
from typing import Any, NoReturn

import numpy as np

import ocannl_core as oc
from ocannl_core.base import settings, timeline
from ocannl_core.base.files import directory
from ocannl_cpu_c import background_compilation, compiler, loader


def warm_up() -> None:
    """Compile and run something, so that all modules are there; forget it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.overrides(cache_dir=folder, backend="cpu_c", cpu_c__cc="cc"),
        oc.Session(),
    ):
        x = oc.tensor(np.ones((3, 4), np.float32), batch_axes=1)
        context = oc.Context()
        loss = oc.einsum("... | ... => 0", oc.tanh(oc.param("w", output=[2]) @ x))
        routine = context.compile(oc.train.grad_update(loss))
        context.init_params(loss)
        routine()
        settings.describe()
        oc.save(f"{folder}/file", context, loss)
        oc.graph(loss).save(f"{folder}/file.svg")
        oc.Context("interp").compile(oc.train.forward(x * 2.0)).profile(0.0).save_trace(
            f"{folder}/file"
        )
        with settings.overrides(timeline=f"{folder}/file"):
            oc.Context("interp").compile(oc.train.forward(x * 3.0))
        timeline.write()
    timeline.clear()
    background_compilation.stop()
    for known in (loader._loaded, loader._libraries, loader._pools, loader._found_runtime):
        known.clear()
    compiler._find.cache_clear()
    directory._swept.clear()
    oc.reset()


def become(user: int, folder: str, variables: dict[str, str], output: str) -> None:
    """Make this process one of a user, for good."""
    opened = os.open(output, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in ((0, nothing), (1, opened), (2, opened)):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    os.chdir(folder)


def run(program: str) -> NoReturn:
    try:
        exec(compile(program, "<program>", "exec"), {"np": np, "oc": oc})
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    finally:
        sys.stdout.flush()
    sys.exit(0)


def main() -> None:
    warm_up()
    print("ready", flush=True)
    for line in sys.stdin:
        order: Any = json.loads(line)
        if isinstance(order, int):
            print(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]), flush=True)
            continue
        process = os.fork()
        if process == 0:
            program = order.pop("program")
            become(**order)
            run(program)
        print(process, flush=True)


if __name__ == "__main__":
    main()
