"""Arguments of operations of PyTorch, and the table of operations here that take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ocannl_core as oc


class NotOurs(Exception):
    """Arguments without a counterpart here, with the reason."""


OPERATIONS: dict[str, Callable[..., Any]] = {}


def ours(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return register


def rank(x: Any) -> int:
    return x.ndim if isinstance(x, oc.Tensor) else np.ndim(x)


def axes(dim: Any) -> Any:
    """Return axes for the dimensions of PyTorch, which has all for none."""
    if dim is None or dim == () or dim == []:
        return None
    return tuple(dim) if isinstance(dim, list | tuple) else dim


def numbers(x: Any) -> Any:
    """Return the cells of a tensor of constants, as an integer or a list."""
    return x.tolist() if hasattr(x, "tolist") else x


def scalar_dim(x: Any, dim: Any) -> Any:
    if isinstance(x, oc.Tensor) and rank(x) == 0 and dim is not None:
        raise NotOurs("a tensor without axes has no axis to count")
    return axes(dim)


def no(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            raise NotOurs(f"no argument {name}")
