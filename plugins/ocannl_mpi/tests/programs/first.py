"""Work of process 0 that fails, with texts of several kinds: `mpiexec -n 2 python first.py` prints
the error of each process.
"""

from __future__ import annotations

from mpi4py import MPI

import ocannl_mpi

MESSAGES = ("the disk is full", "", "caf\udce9.safetensors")


def main() -> None:
    group = ocannl_mpi.communicator(timeout=30)
    for message in MESSAGES:

        def fail(text: str = message) -> None:
            raise ValueError(text)

        try:
            group.first(fail, "saving")
            found = "nothing"
        except Exception as error:
            found = f"{type(error).__name__} {getattr(error, 'found', '')}"
        lines = MPI.COMM_WORLD.gather(ascii(found))
        if group.rank == 0:
            print(" | ".join(lines or []), flush=True)


if __name__ == "__main__":
    main()
