"""A part of each parameter, for updates that several workers divide among themselves."""

from __future__ import annotations

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.slot_tree import share


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one worker: consecutive rows along the first axis of each parameter.

    Attributes:
        worker: The number of the worker.
        workers: The number of workers.
    """

    worker: int
    workers: int

    def rows(self, p: Tensor) -> slice | None:
        """Return the rows of the worker; None for a parameter without axes, which all update."""
        if not p.info.dims:
            return None
        rows = share(p.info.dims[0], self.workers, self.worker)
        return slice(rows.start, rows.stop)
