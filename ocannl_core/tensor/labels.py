"""Labels: the names of tensors and blocks in printed code, files and messages."""

from __future__ import annotations

from ocannl_core.errors import UsageError
from ocannl_core.origin import caller_location


def check_label(*parts: object) -> None:
    """Raises UsageError unless every part of a label is a text, or is not given."""
    for part in parts:
        if part is not None and not isinstance(part, str):
            raise UsageError(
                "A label is a text: printed code and messages name tensors by it.",
                found=f"label={part!r}",
                where=str(caller_location() or ""),
                fix='label="x"',
            )
