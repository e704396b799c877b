"""Labels: the names of tensors and blocks in printed code, files and messages."""

from __future__ import annotations

from ocannl_core.errors import UsageError
from ocannl_core.origin import caller_location
from ocannl_core.tensor.definitions import LITERAL, Applied, Definition, Filled, Literal


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


def has_name(definition: Definition, label: tuple[str, ...]) -> bool:
    """True if a label tells more than what made the tensor: an operation, a number, a literal."""
    match definition:
        case Applied(operation):
            return label != (operation.name,)
        case Literal():
            return label != (LITERAL,)
        case Filled():
            return label[0].isidentifier()
        case _:
            return True
