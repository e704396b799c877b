"""The table of operators: a function for each, with the versions that it implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STANDARD = ""
"""The domain of the standard's operators; files also spell it `ai.onnx`."""
MICROSOFT = "com.microsoft"
"""The domain of the operators that onnxruntime adds: its optimizer and its quantizer write them."""


@dataclass(frozen=True)
class Operator:
    """An implementation of an operator.

    Attributes:
        since: The first version of the operator set with this meaning.
        until: The last one; None for all later ones.
        is_pointwise: True if the result has the sizes to which the inputs broadcast.
    """

    function: Callable[..., Any]
    since: int
    until: int | None
    is_pointwise: bool = False


_TABLE: dict[tuple[str, str], list[Operator]] = {}
FOLDED: dict[tuple[str, str], Callable[..., Any]] = {}
"""Functions on arrays, for nodes whose inputs are all known when the graph is read."""


def operator(
    *names: str,
    since: int = 1,
    until: int | None = None,
    domain: str = STANDARD,
    pointwise: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the implementation of operators.

    It takes the node, then a value for each input (None for one that is left out), and returns a
    value, tensor or array for the output, or a tuple of these.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _TABLE.setdefault((domain, name), []).append(
                Operator(function, since, until, pointwise)
            )
        return function

    return register


def folded(
    *names: str, domain: str = STANDARD
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function on arrays; it takes the node and an array for each input."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FOLDED.update({(domain, name): function for name in names})
        return function

    return register


def find(domain: str, name: str, version: int) -> Operator | None:
    """Return the implementation of an operator in a version of its operator set."""
    for each in _TABLE.get((domain, name), ()):
        if each.since <= version and (each.until is None or version <= each.until):
            return each
    return None


def versions(domain: str, name: str) -> list[tuple[int, int | None]]:
    """Return the ranges of versions in which an operator is implemented."""
    return [(each.since, each.until) for each in _TABLE.get((domain, name), ())]


def supported() -> list[tuple[str, str]]:
    """Return the domains and names of all implemented operators, sorted."""
    return sorted(_TABLE)
