"""Parts of a benchmark in processes that are replaced when one hangs or dies."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress

START_SECONDS = 120.0
"""The most seconds before the first part: first imports, and uses of a device, are slow."""


def run_isolated(
    script: str, arguments: list[str], seconds: float, start: float = START_SECONDS
) -> int:
    """Run the parts of a script in a process that is replaced where one takes too long, or ends it.

    The script takes `--skip`, a number of parts to leave out, and `--progress`, a file descriptor
    to which it writes the number and the name of each part before it begins. Return the exit code.

    Args:
        script: Its path.
        arguments: Its other arguments.
        seconds: The most seconds of a part.
        start: The most seconds before the first part.
    """
    skipped = failed = 0
    while True:
        reading, writing = os.pipe()
        more = ["--skip", str(skipped), "--progress", str(writing)]
        command = [sys.executable, "-u", script, *arguments, *more]
        process = subprocess.Popen(command, pass_fds=(writing,))
        os.close(writing)
        began, name, given = skipped - 1, "the start", start
        limit = time.monotonic() + given
        rest = b""
        while time.monotonic() < limit:
            if select.select([reading], [], [], 0.2)[0]:
                found = os.read(reading, 4096)
                if not found:  # the process ends
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(max(limit - time.monotonic(), 0.1))
                    break
                *lines, rest = (rest + found).split(b"\n")
                if lines:  # of several, the last one is the part that runs
                    first, _, name = lines[-1].decode().partition(" ")
                    began, given = int(first), seconds
                    limit = time.monotonic() + given
            elif process.poll() is not None:
                break
        os.close(reading)
        if process.poll() is None:
            process.kill()
            print(f"{name}: CUT OFF after {given:.0f} s", flush=True)
        elif process.returncode not in (0, 1):
            print(f"{name}: ENDED the process with {process.returncode}", flush=True)
        if process.wait() == 0:
            return int(failed > 0)
        failed += 1
        if began < skipped:  # no part has begun: all are done, or none can
            return 1
        skipped = began + 1
