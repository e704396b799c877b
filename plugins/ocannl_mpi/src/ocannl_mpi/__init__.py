"""Data parallel training over the processes of MPI.

    with ocannl_mpi.communicator() as processes:
        ...  # oc.train.data_parallel(..., communicator=processes)

Run the program with `mpiexec -n 4 python program.py`. Without `mpiexec` it is one process.
"""

from __future__ import annotations

from ocannl_mpi.communicator import MpiCommunicator, communicator
from ocannl_mpi.requests import CommunicationError

__all__ = ["CommunicationError", "MpiCommunicator", "communicator"]
