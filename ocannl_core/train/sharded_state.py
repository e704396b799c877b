"""The state of an optimizer divided among processes: each updates some rows of every parameter.

    rows of gradients -> additions -> update of own rows, with state for them -> rows of parameters

Every process updates a row by the same code, so that the bits do not depend on the number of
processes. A checkpoint has the whole state, and is loaded by any number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.runtime.context import Context
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.communication import Communicator
from ocannl_core.train.optimizer import Optimizer, Shard
from ocannl_core.train.parallel_code import like
from ocannl_core.train.process_sums import Rows


@dataclass(frozen=True, slots=True, eq=False)
class WholeState:
    """The complete state of an optimizer, for a checkpoint.

    saved = step.whole_state()
    oc.save(path, saved.context, loss, optimizer=saved)

    saved = step.whole_state()
    oc.load(path, saved.context, loss, optimizer=saved)
    saved.restore()
    """

    context: Context
    """A context that has the parameters and the whole state."""
    state: Mapping[str, Tensor]
    """The state by name, as in `optimizer.state`."""
    optimizer: Optimizer
    _sharded: ShardedState | None = None

    def restore(self) -> None:
        """Copy the rows of this process to the state that updates read; needed after a load."""
        if self._sharded is not None:
            self._sharded.restore(self)


@dataclass(slots=True, eq=False)
class ShardedState:
    """The state of one process."""

    _optimizer: Optimizer
    _context: Context
    _communicator: Communicator
    shard: Shard
    _wholes: dict[str, Tensor] = field(default_factory=dict)
    _rows: Rows | None = None

    @property
    def _owners(self) -> Mapping[str, Tensor]:
        """The parameter of each sharded tensor, by path; a number that belongs to a parameter is
        the same in all processes.
        """
        state = self._optimizer.state
        return {
            path: owner
            for path, owner in self._optimizer._state.sharded.items()
            if owner.info.dims and state[path].info.dims
        }

    def tensors(self) -> frozenset[Tensor]:
        """Return the tensors that have the rows of this process alone."""
        return frozenset(self._optimizer.state[path] for path in self._owners)

    def gather_parameters(self, parameters: Sequence[Tensor], contexts: Sequence[Context]) -> None:
        """Copy the rows that other processes have updated to all devices of this one."""
        sharded = [p for p in parameters if p.info.dims]
        if self._rows is None:
            subject = "the exchange of parameters"
            self._rows = Rows(self._communicator, self._context, sharded, subject)
        self._rows.gather()
        for other in contexts[1:]:
            other.copy_from(self._context, sharded).wait()

    def whole(self) -> WholeState:
        """Return the state of all processes; called by each of them."""
        context = self._context.child()
        for path, owner in self._owners.items():
            whole = self._whole(path)
            cells = np.zeros(owner.info.dims, whole.dtype.numpy)
            own = self._context.store.find(self._optimizer.state[path].node)
            if own is not None and own.has_value:  # else no update has been made
                cells[self.shard.rows(owner)] = self._context[self._optimizer.state[path]]
            context.assign({whole: cells})
        wholes = [self._wholes[path] for path in self._owners]
        Rows(self._communicator, context, wholes, "the collection of the state").gather()
        state = {**self._optimizer.state, **self._wholes}
        return WholeState(context, state, self._optimizer, self)

    def restore(self, saved: WholeState) -> None:
        """Copy the rows of this process from the whole state."""
        for path, owner in self._owners.items():
            cells = saved.context[saved.state[path]][self.shard.rows(owner)]
            self._context.assign({self._optimizer.state[path]: cells})

    def _whole(self, path: str) -> Tensor:
        """Return the tensor that holds the state of all processes."""
        if path not in self._wholes:
            owner, own = self._owners[path], self._optimizer.state[path]
            with owner.session, owner.session.apart():
                self._wholes[path] = like(owner, "whole", own.dtype)
        return self._wholes[path]
