"""`ocannl config`: lists every setting with its value and the source of the value."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ocannl_core.base import settings
from ocannl_core.base.errors import printable

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    command = subparsers.add_parser(
        "config",
        help="show every setting with the source of its value",
        description="Shows every setting with the source of its value.",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return 0."""
    described = settings.describe()
    width = max(len(each.name) for each in described)
    for each in described:
        value = printable(f"{_value_text(each.value)}  (from {each.source})")
        print(f"{each.name:<{width}}  {value}")
        print(f"{'':<{width}}    {each.doc}")
    return 0


def _value_text(value: object) -> str:
    match value:
        case None:
            return "not set"
        case tuple():
            return ", ".join(value) or "none"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
