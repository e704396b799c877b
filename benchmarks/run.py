"""Run every benchmark, each in a process of its own: `python benchmarks/run.py [arguments]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = (
    "digits_step.py",
    "calls.py",
    "tiny_step.py",
    "contractions.py",
    "networks.py",
    "epochs.py",
    "narrow.py",
    "inference.py",
    "start.py",
    "compile_latency.py",
    "recurrent.py",
    "decode.py",
    "onnx_models.py",
)


def main() -> int:
    """Return the exit status of the first benchmark that fails, or 0."""
    folder = Path(__file__).resolve().parent
    for name in BENCHMARKS:
        print(f"== {name}", flush=True)
        status = subprocess.run([sys.executable, str(folder / name), *sys.argv[1:]]).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
