"""One input of a module of PyTorch, and the registry of the blocks that stand for modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ocannl_core as oc


class Missing(Exception):
    """An option that blocks do not have."""


class Trial:
    """One input of a module, and the tensors that stand for PyTorch's.

    Attributes:
        module: The module.
        pairs: Tensors, PyTorch's for them, and the conversion of arrays to the layout of the first.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.pairs: list[tuple[oc.Tensor, Any, Callable[[Any], Any]]] = []

    def leaf(self, x: Any, batch: int | None = None, *, convert: Any = None) -> oc.Tensor:
        """Return an input; all axes but the last are batch axes unless stated."""
        change = convert or (lambda cells: cells)
        cells = change(x.detach().numpy())
        if np.isnan(cells).any():
            raise Missing("data with NaN")
        axes = max(0, cells.ndim - 1) if batch is None else batch
        if not x.is_floating_point():
            return oc.tensor(cells.astype(np.int32), batch_axes=axes, dtype="int32")
        made = oc.tensor(cells, batch_axes=axes, requires_grad=True)
        self.pairs.append((made, x, change))
        return made

    def images(self, x: Any, axes: int) -> oc.Tensor:
        """Return features with channels last."""
        batch = x.ndim - axes - 1
        return self.leaf(x, batch, convert=lambda cells: np.moveaxis(cells, batch, -1))

    def tie(self, tensor: oc.Tensor, parameter: Any, convert: Any = None) -> None:
        """State that a parameter has the value of PyTorch's."""
        self.pairs.append((tensor, parameter, convert or (lambda cells: cells)))

    def tie_by_order(self, result: oc.Tensor, **conversions: Any) -> None:
        """Tie parameters to those of the module of the same name."""
        own = dict(self.module.named_parameters())
        names = {"gamma": "weight", "beta": "bias", "table": "weight"}
        for path, tensor in result.params.items():
            name = path.rsplit(".", 1)[-1]
            theirs = own.get(names.get(name, name))
            if theirs is not None:
                self.tie(tensor, theirs, conversions.get(name))


Adapter = Callable[..., tuple[oc.Tensor, Callable[[Any], Any]]]
ADAPTERS: dict[str, Adapter] = {}


def same(cells: Any) -> Any:
    return cells


def adapter(*names: str) -> Callable[[Adapter], Adapter]:
    def register(function: Adapter) -> Adapter:
        ADAPTERS.update(dict.fromkeys(names, function))
        return function

    return register
