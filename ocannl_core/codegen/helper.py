"""A function or type that generated C mentions."""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.records import dataclass


@dataclass(frozen=True, slots=True)
class Helper:
    """A function or type of the prelude.

    Attributes:
        text: Its definition, with INLINE where a dialect's keywords go.
        needs: The helpers that it mentions.
    """

    text: str
    needs: tuple[str, ...] = ()


def chosen(special: Iterable[tuple[str, str]], plain: str) -> str:
    """Returns the first text whose condition the compiler finds true, and else the plain one."""
    lines: list[str] = []
    for condition, text in special:
        lines += [f"#{'elif' if lines else 'if'} {condition}", text]
    return "\n".join([*lines, "#else", plain, "#endif"]) if lines else plain


FUSES = "defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(FP_FAST_FMAF)"
"""Where an instruction multiplies and adds with one rounding."""
