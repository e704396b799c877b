"""Messages of MPI from and to fixed memory, in one process that sends to itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="the processes of MPI need mpi4py")

from mpi4py import MPI

import ocannl_mpi
from ocannl_core.train.communication import Cells, Parcel
from ocannl_mpi.requests import CommunicationError, MpiExchange, wait


class DeviceMemory:
    """Memory of this process that is found as a device's is."""

    target: Any = None
    info: Any = None

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array.__array_interface__


@pytest.mark.parametrize("place", [lambda array: array, DeviceMemory])
def test_cells_travel_between_many_places_in_each_start(place: Any) -> None:
    """Small and large ones; none is touched beside the message."""
    sizes = [1, 7, 40_000, 3, 20_000]
    sent = [np.arange(size + 2, dtype=np.float32) for size in sizes]
    received = [np.full(size + 2, -1, np.float32) for size in sizes]

    def cells(arrays: list[np.ndarray[Any, Any]]) -> tuple[Cells, ...]:
        return tuple(Cells(place(each), 4, each.nbytes - 8) for each in arrays)

    exchange = MpiExchange(MPI.COMM_SELF, [Parcel(0, cells(sent), cells(received))], 5, "a test")
    assert exchange.is_over()
    for factor in (1, -3):
        for each in sent:
            each *= factor
        exchange.start()
        while not exchange.is_over():
            wait([exchange], 60)
        for one, other in zip(sent, received, strict=True):
            assert other[1:-1].tolist() == one[1:-1].tolist()
            assert other[[0, -1]].tolist() == [-1, -1]


def test_a_message_that_does_not_come_is_named_after_the_limit() -> None:
    cells = (Cells(np.zeros(4), 0, 32),)
    exchange = MpiExchange(MPI.COMM_SELF, [Parcel(0, (), cells)], 6, "the sum of a test")
    exchange.start()
    with pytest.raises(CommunicationError, match="no message from rank 0 for") as raised:
        wait([exchange], 0.01)
    assert "Every process takes part in the sum of a test." in str(raised.value)
    late = MpiExchange(MPI.COMM_SELF, [Parcel(0, cells, ())], 6, "the sum of a test")
    late.start()
    while not exchange.is_over():
        wait([exchange], 60)


def test_arrays_of_process_0_keep_their_extents() -> None:
    matrix = np.arange(24.0).reshape(4, 6)
    arrays = [np.array(5.0), matrix[:, ::2].T, np.zeros((0, 3)), np.array([1, 2], ">i4")]
    found = ocannl_mpi.communicator(MPI.COMM_SELF).broadcast(arrays)
    for one, other in zip(arrays, found, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert (one == other).all()
