"""A function or type that generated C mentions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Helper:
    """A function or type of the prelude.

    Attributes:
        text: Its definition, with INLINE where a dialect's keywords go.
        needs: The helpers that it mentions.
    """

    text: str
    needs: tuple[str, ...] = ()
