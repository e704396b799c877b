"""Run a program in a process that lacks the names that another operating system lacks.

    python -m tests.support.other_system win32 program.py

Names of Linux are removed from the modules of the standard library before the core is imported,
Windows's missing modules cannot be imported, and `sys.platform` is the name of the system. The C
library is still that of Linux: a program shows that code has a counterpart, or refuses the system,
and not that the counterpart works there.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from typing import Any

import cffi
import importlib_metadata
import ml_dtypes
import numpy as np
import pluggy

from tools.portability_lint import ABSENT_MODULES, MODULES, SYSTEMS, absent_names

BUILT_FOR_LINUX = (
    cffi,
    ctypes,
    importlib_metadata,
    ml_dtypes,
    multiprocessing,
    np,
    pluggy,
    subprocess,
)
"""Libraries that choose functions for their system when they are imported."""


def become(system: str) -> None:
    """Remove the names that a system lacks."""
    (chosen,) = (each for each in SYSTEMS if each == system)
    for name in MODULES:
        module: Any = importlib.import_module(name)
        for absent in absent_names(name, chosen) & vars(module).keys():
            delattr(module, absent)
    if chosen == "win32":
        os.supports_dir_fd.clear()
        for name in ABSENT_MODULES:
            sys.modules[name] = None  # type: ignore[assignment]
    importlib.reload(tempfile)  # it is written in Python, and chooses flags of files
    sys.platform = system


if __name__ == "__main__":
    _, system, program = sys.argv
    become(system)
    runpy.run_path(program, run_name="__main__")
