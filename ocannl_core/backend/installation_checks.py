"""Checks of an installation, as `ocannl doctor` prints them.

A distribution that is no backend has checks of its own: an entry point of the group
`ocannl.checks`, whose name follows `ocannl doctor`, refers to a function that returns them.
"""

from __future__ import annotations

from enum import Enum

from ocannl_core.base.errors import printable
from ocannl_core.base.fast_dataclass import dataclass


class CheckOutcome(Enum):
    """The outcome of a check."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        what: The subject of the check.
    """

    what: str
    outcome: CheckOutcome
    found: str = ""
    fix: str = ""

    def __str__(self) -> str:
        lines = [f"{self.outcome.value:<5} {self.what}" + (f": {self.found}" if self.found else "")]
        lines += [f"      try  {line}" for line in self.fix.splitlines()]
        return printable("\n".join(lines))
