"""Random chains of pointwise operations, as long as one likes."""

from __future__ import annotations

from random import Random

from .programs import BEFORE, RUNNING, Link

SHORTEST = 20
"""The least number of links."""
SHRINKING = ("relu", "neg", "sat01", "clamp")
CLAMP = Link("clamp")


def links_of(random: Random, operands: int, *, widens: bool = True) -> tuple[Link, ...]:
    """Return one round of a chain, whose values stay small.

    Args:
        random: The source of choices.
        operands: The number of operands beside the start.
        widens: True for gradients that may double with every round.
    """
    found: list[Link] = []
    while len(found) < 2 or random.random() < 0.5:
        found += _link(random, operands, widens=widens)
    return tuple(found)


def _link(random: Random, operands: int, *, widens: bool) -> list[Link]:
    """Return a link, together with one that keeps its values small."""
    other = random.choice([BEFORE, *range(1, operands + 1)])
    pair = (RUNNING, other) if random.random() < 0.5 else (other, RUNNING)
    match random.choices(["one", "greatest", "sum", "choice", "wide"], [2, 3, 3, 1, int(widens)])[
        0
    ]:
        case "one":
            return [Link(random.choice(SHRINKING))]
        case "greatest":
            return [Link(random.choice(["maximum", "minimum"]), pair), CLAMP]
        case "sum" if other == BEFORE and not widens:
            return [Link("maximum", pair)]
        case "sum":
            return [Link(random.choice(["add", "sub"]), pair), CLAMP]
        case "choice":
            third = random.choice([BEFORE, *range(1, operands + 1)])
            return [Link("where", (other, RUNNING, third)), CLAMP]
        case _:
            return [Link(random.choice(["add", "mul"]), (RUNNING, RUNNING)), CLAMP]


def rounds_of(random: Random, links: int, longest: int) -> int:
    """Return the number of rounds of a chain: short ones are as likely as long ones."""
    length = SHORTEST * (longest / SHORTEST) ** random.random()
    return max(1, int(length) // links)
