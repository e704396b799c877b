"""The rules that transforms of products keep together, each checked in turn."""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.kernels.nest import Reduction
from ocannl_core.ir.numbers.primitives import BinaryOp

Rules = Iterator[tuple[str, bool]]
"""Rules of schedules, each with True if a schedule keeps it; later ones may need those before."""


def require(rules: Rules) -> None:
    """Check rules.

    Raises:
        UsageError: for the first rule that is violated.
    """
    for rule, is_kept in rules:
        if not is_kept:
            raise UsageError(rule)


def is_wide_product(reduction: Reduction | None) -> bool:
    """Return True for a sum of products in a format that is not narrow."""
    return (
        reduction is not None
        and reduction.op is BinaryOp.ADD
        and reduction.dtype.is_float
        and not reduction.dtype.is_narrow
    )
