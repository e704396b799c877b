"""Run a program on emulated CUDA devices:

python -m ocannl_cuda_emulator --devices 2 -- python program.py
"""

from __future__ import annotations

import argparse
import os
import sys

from ocannl_core.backend_api import OcannlError
from ocannl_cuda_emulator import driver, host_compiler


def main() -> int:
    """Replace this process by the program."""
    parser = argparse.ArgumentParser(
        prog="python -m ocannl_cuda_emulator", description="Runs a program on emulated devices."
    )
    parser.add_argument("--devices", type=int, default=1, help="the number of devices")
    parser.add_argument(
        "--sanitize", action="store_true", help="stop at accesses beyond an allocation"
    )
    parser.add_argument("--races", action="store_true", help="report races of threads")
    parser.add_argument("command", nargs="+", help="the program and its arguments, after `--`")
    arguments = parser.parse_args()
    if arguments.sanitize and arguments.races:
        parser.error("--sanitize and --races instrument the same accesses: run the program twice")
    try:
        own = driver.environment(arguments.devices)
        own = driver.with_sanitizer(own) if arguments.sanitize else own
        own |= {host_compiler.RACES: "1"} if arguments.races else {}
    except OcannlError as error:
        print(error, file=sys.stderr)
        return 1
    os.execvpe(arguments.command[0], arguments.command, os.environ | own)


if __name__ == "__main__":
    sys.exit(main())
