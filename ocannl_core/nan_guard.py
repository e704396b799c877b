"""Refuses host data that is not a number before it spoils a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ocannl_core import settings
from ocannl_core.errors import TransferError


def refuse_nan(array: np.ndarray[Any, Any], where: str) -> None:
    """Checks host data on its way into a tensor. Infinities pass: masks are made of them.

    Raises:
        TransferError: if a cell is NaN, unless the setting `allow_nan` is on.
    """
    if array.dtype.kind != "f":
        return
    is_nan = np.isnan(array)
    if not is_nan.any() or settings.current().allow_nan:
        return
    first = tuple(int(position) for position in np.argwhere(is_nan)[0])
    raise TransferError(
        "Host data has no NaN: one of them makes every result that depends on it NaN.",
        found=f"{int(is_nan.sum())} of {array.size} cells, the first at {list(first)}",
        where=where,
        fix="clean the data, as with np.nan_to_num(array); "
        "where NaN is meant, OCANNL_ALLOW_NAN=1 or settings.overrides(allow_nan=True) lets it pass",
    )
