"""The division of summands into buckets and chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mpi4py", reason="the processes of MPI need mpi4py")

from ocannl_core.dtypes import float32, float64, int32
from ocannl_core.train.communication import Summand
from ocannl_core.train.slot_tree import share
from ocannl_mpi.buckets import buckets_of, pack, unpack

SUMMANDS = st.lists(
    st.builds(
        Summand,
        st.just("w"),
        st.sampled_from([float32, float64, int32]),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=8,
)


@given(SUMMANDS, st.integers(1, 100), st.integers(1, 5))
def test_every_cell_travels_once(summands: list[Summand], most_bytes: int, processes: int) -> None:
    sizes = [int(np.prod(each.dims, dtype=int)) for each in summands]
    cells = [
        np.arange(size, dtype=each.dtype.numpy) for size, each in zip(sizes, summands, strict=True)
    ]
    copies = [np.full_like(each, -1) for each in cells]
    for bucket in buckets_of(summands, most_bytes):
        assert bucket.size * bucket.dtype.numpy.itemsize <= max(most_bytes, 8)
        assert {summands[piece.summand].dtype for piece in bucket.pieces} == {bucket.dtype}
        for process in range(processes):
            chunk = share(bucket.size, processes, process)
            message = np.empty(len(chunk), bucket.dtype.numpy)
            pack(bucket, chunk, cells, message)
            unpack(bucket, chunk, message, copies)
    for copy, each in zip(copies, cells, strict=True):
        np.testing.assert_array_equal(copy, each)
