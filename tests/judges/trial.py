"""One input of a module of PyTorch, and the registry of the blocks that stand for modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ocannl_core as oc


class Missing(Exception):
    """An option that blocks do not have."""


@dataclass(frozen=True)
class Tie:
    """A tensor that stands for tensors of PyTorch's.

    Attributes:
        theirs: PyTorch's: one, or one for each layer along the leftmost axis.
        convert: The conversion of the cells of one of them.
    """

    tensor: oc.Tensor
    theirs: tuple[Any, ...]
    convert: Callable[[Any], Any]

    @property
    def cells(self) -> Any:
        return self._joined([each.detach().numpy() for each in self.theirs])

    @property
    def gradient(self) -> Any:
        """The gradient of PyTorch; None where it has none."""
        if not all(each.requires_grad and each.grad is not None for each in self.theirs):
            return None
        return self._joined([each.grad.numpy() for each in self.theirs])

    def _joined(self, given: list[Any]) -> Any:
        cells = [self.convert(each) for each in given]
        return cells[0] if len(cells) == 1 else np.stack(cells)


class Trial:
    """One input of a module, and the tensors that stand for PyTorch's.

    Attributes:
        ties: These tensors.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.ties: list[Tie] = []

    def leaf(self, x: Any, batch: int | None = None, *, convert: Any = None) -> oc.Tensor:
        """Return an input; all axes but the last are batch axes unless stated."""
        change = convert or same
        cells = change(x.detach().numpy())
        axes = max(0, cells.ndim - 1) if batch is None else batch
        if not x.is_floating_point():
            return oc.tensor(cells.astype(np.int32), batch_axes=axes, dtype="int32")
        for tie in self.ties:
            if tie.theirs[0] is x:
                return tie.tensor
        made = oc.tensor(cells, batch_axes=axes, requires_grad=True)
        if x.requires_grad:
            x.retain_grad()
        self.ties.append(Tie(made, (x,), change))
        return made

    def images(self, x: Any, axes: int) -> oc.Tensor:
        """Return features with channels last."""
        batch = x.ndim - axes - 1
        return self.leaf(x, batch, convert=lambda cells: np.moveaxis(cells, batch, -1))

    def tie(self, tensor: oc.Tensor, parameter: Any, convert: Any = None) -> None:
        """State that a parameter has the value of PyTorch's, or of those of all layers."""
        theirs = tuple(parameter) if isinstance(parameter, list) else (parameter,)
        self.ties.append(Tie(tensor, theirs, convert or same))

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
