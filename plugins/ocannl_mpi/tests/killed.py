"""Kill a random process of a training run at a random step, and resume with another number.

    python -m plugins.ocannl_mpi.tests.killed --trials 20

Every trial must end with the bits of a run that nothing interrupted.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ocannl_mpi.checks import find_launcher

_PROGRAM = Path(__file__).parent / "programs" / "train.py"
_COUNTS = (1, 2, 3, 4)
_OPTIONS = ("--optimizer", "adamw", "--clip", "--regularized", "--timeout", "60")


def run(count: int, steps: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the program; a run that hangs raises TimeoutExpired."""
    command = [str(find_launcher()), "-n", str(count), sys.executable, str(_PROGRAM)]
    return subprocess.run(
        [*command, "--steps", str(steps), *_OPTIONS, *options],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OCANNL_THREADS": "1"},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    choice = random.Random(given.seed)
    expected = run(1, given.steps).stdout
    print(f"uninterrupted: {expected.strip()}", flush=True)
    wrong = 0
    for trial in range(given.trials):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = ("--checkpoint", str(Path(folder) / "model.safetensors"))
            count, following = choice.choice(_COUNTS[1:]), choice.choice(_COUNTS)
            rank, at = choice.randrange(count), choice.randrange(1, given.steps)
            start = time.monotonic()
            fault = ("--fault", "kill", "--rank", str(rank), "--at", str(at))
            killed = run(count, given.steps, *checkpoint, *fault)
            seconds = time.monotonic() - start
            resumed = run(following, given.steps, *checkpoint)
        is_right = killed.returncode != 0 and resumed.stdout == expected
        wrong += not is_right
        print(
            f"{trial + 1}: rank {rank} of {count} killed at step {at}, ended after {seconds:.1f} s; "
            f"resumed with {following}: {'same bits' if is_right else resumed.stdout + resumed.stderr}",
            flush=True,
        )
    print(f"wrong: {wrong} of {given.trials}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
