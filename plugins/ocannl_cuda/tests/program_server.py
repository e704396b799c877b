"""Starts programs that need the same modules: reads orders from its input, one in a line.

    {"program": "...", "variables": {...}, "output": "/path", "errors": "/path"}   -->   exit status

Each program runs in a fork of this process, as `python -c` would run it, and ends as a process does:
by the end of the interpreter and the handlers of the libraries. This process imports modules, and
calls nothing in them: no device, thread or cache is there before the fork.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
from importlib import import_module
from typing import Any

MODULES = (
    "numpy",
    "tomllib",
    "pycuda.driver",
    "ocannl_core",
    "ocannl_core.compile.driver",
    "ocannl_core.backend.manager",
    "ocannl_core.passes.kernels.pipeline",
    "ocannl_core.passes.loops.pipeline",
    "ocannl_core.runtime.context",
    "ocannl_core.train",
    "ocannl_cpu_c",
    "ocannl_interp",
    "ocannl_cuda",
    "ocannl_cuda.device",
    "ocannl_cuda.executable",
    "ocannl_cuda.interop",
    "ocannl_cuda.source",
    "ocannl_cuda_emulator.host_compiler",
)


def become(order: dict[str, Any]) -> str:
    """Make this process one with the files and variables of an order; return its program."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    files = [os.open(order[each], os.O_WRONLY) for each in ("output", "errors")]
    for number, descriptor in enumerate((nothing, *files)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["variables"])
    tempfile.tempdir = None
    program: str = order["program"]
    return program


def wait_for_program() -> str | None:
    """Return the program of a fork of this process; None in this process, when its input ends."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    return None


def show_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print an exception of a program without the frame of this file."""
    sys.__excepthook__(kind, error, trace and trace.tb_next)


for name in MODULES:
    import_module(name)
print("ready", flush=True)
PROGRAM = wait_for_program()
if PROGRAM is not None:
    sys.argv = ["-c"]
    sys.excepthook = show_exception
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(PROGRAM, "<string>", "exec"), vars(sys.modules["__main__"]))
