"""Numbers of examples of properties, and the extent of other long tests."""

from __future__ import annotations

import os

_MORE = 10


def is_exploring() -> bool:
    """Return True in the profile `explore`, in which tests may take long."""
    return os.environ.get("HYPOTHESIS_PROFILE") == "explore"


def example_count(count: int) -> int:
    """Return the number of examples of a property that takes long for each: ten times as many in
    the profile `explore`.
    """
    return _MORE * count if is_exploring() else count
