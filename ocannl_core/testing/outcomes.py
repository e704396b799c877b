"""Outcomes of the tests and cases of a check of a backend."""

from __future__ import annotations

from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass


class Outcome(Enum):
    """The outcome of one case; the value is its word in reports."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"
    """It failed, and the device does not declare the part of the language."""
    UNDECLARED = "passed, undeclared"
    EXCLUDED = "excluded"
    """It failed, and the plugin has a reason for that."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case."""

    name: str
    """The name of the case, whose first part is the suite or the corpus."""
    outcome: Outcome
    part: str = ""
    """The format or capability that it is about; empty if it is about none."""
    text: str = ""
    """The error, the reason for skipping, or the reason of the exclusion."""
    error: float | None = None
    """The largest error found, in units in the last place; None if not measured."""
    needs_tolerance: bool = False
    """True if it passed by a tolerance of the plugin alone."""
