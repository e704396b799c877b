"""Numbers of examples of properties."""

from __future__ import annotations

import os

_MORE = 10


def example_count(count: int) -> int:
    """Return the number of examples of a property that takes long for each: ten times as many in
    the profile `explore`.
    """
    return _MORE * count if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else count
