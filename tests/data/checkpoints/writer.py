"""A program that saves checkpoints until it is killed; each file holds one number in every cell.

python writer.py PATH CELLS [LIMIT]     LIMIT: the largest file in bytes that it may write
"""

from __future__ import annotations

import resource
import sys

import numpy as np

import ocannl_core as oc


def main(path: str, count: int, limit: int | None) -> None:
    tensors = [oc.declare(f"w{i}", output=[count]) for i in range(4)]
    ctx = oc.Context("interp")
    for step in range(1_000_000):
        if limit is not None and step == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for tensor in tensors:
            ctx[tensor] = np.full(count, step, np.float32)
        try:
            oc.save(path, ctx, tensors, step=step)
        except oc.CheckpointError as error:
            print(error, flush=True)
            return
        print(step, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
