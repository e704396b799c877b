"""Sizes computed from other sizes: strided, windowed and concatenated axes."""

from __future__ import annotations

from ocannl_core.errors import SpecError
from ocannl_core.shape.constraints import DimBelow, DimEqual
from ocannl_core.shape.messages import place
from ocannl_core.shape.state import State
from ocannl_core.shape.terms import Dim


def equate_derived(state: State, left: Dim, right: Dim, cause: DimEqual | DimBelow) -> None:
    """Equates two sizes, at least one of which is computed from others.

    Raises:
        SpecError: always; strides, windows and concatenations are not inferred.
    """
    raise SpecError(
        "Sizes of strided, windowed and concatenated axes are not supported here.",
        found=f"{left} = {right}",
        where=place(cause),
        fix="name the axis plainly",
    )
