"""Losses of a training loop, kept on the device and read many at a time."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.numbers.dtypes import float32, float64, int32
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import declare
from ocannl_core.tensor.operations.contractions import where
from ocannl_core.tensor.operations.literals import arange
from ocannl_core.tensor.primitives.pointwise_operations import cast, equal, less

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context


class LossLog:
    """A ring of losses on the device.

    Reading one number for each step would wait for the device and copy; a routine stores the loss
    in a ring instead, which the host reads when it is full.

    """

    def __init__(self, ctx: Context, loss: Tensor, length: int) -> None:
        if prod(loss.info.dims) != 1:
            raise UsageError.at_caller(
                "The loss of a training loop is one number.",
                found=f"shape {loss.shape}",
                fix='sum it up: oc.einsum("...|...->... => 0", loss)',
            )
        self._ctx = ctx
        self._length = length
        self._read = 0
        self._losses: list[Array] = []
        with loss.session:
            dtype = float64 if loss.dtype is float64 else float32
            one = {"batch": (), "input": ()}
            self._ring = declare("losses", **one, output=[length], dtype=dtype)
            self._place = declare("place", **one, output=(), dtype=int32)
            code = cd(self._append)(loss)
        ctx.assign({self._ring: 0.0, self._place: 0})
        self._routine = ctx.compile(code, name="record_loss")

    @property
    def record(self) -> Callable[[], object]:
        """The function that appends the current loss, to call after each step. After the first call
        there is a quicker one: nothing else writes the ring.
        """
        return self._routine.unchecked() or self._routine

    def _append(self, loss: Any) -> None:
        places = arange(self._length, dtype=int32)
        ring, place = self._ring, self._place
        ring[:] = where(equal(places, place), cast(loss, ring.dtype), ring)
        place[:] = where(less(place, self._length - 1), place + 1, 0)

    def read(self, steps: int) -> Array:
        """Return the losses that were recorded since the last read.

        Args:
            steps: The number of calls of `record` so far; at most `length` since the last read.
        """
        ring = self._ctx[self._ring]
        found: Array = ring[np.arange(self._read, steps) % self._length].astype(np.float64)
        self._read = steps
        self._losses.append(found)
        return found

    def all(self) -> Array:
        """Return every loss that was read."""
        return np.concatenate([np.zeros(0), *self._losses])
