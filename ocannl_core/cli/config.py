"""`ocannl config`: lists every setting with its value and the source of the value.

The settings of the plugins that load follow; then those that files and variables state for others.
"""

from __future__ import annotations

import argparse

from ocannl_core.backend.registry import declare_settings_of_checks, load_each
from ocannl_core.base import settings
from ocannl_core.base.errors import printable
from ocannl_core.cli.backends import stdout_to_stderr

HELP = "show every setting with the source of its value"
DESCRIPTION = "Shows every setting with the source of its value."


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return 0."""
    described = settings.describe()
    with stdout_to_stderr():  # plugins may print
        declare_settings_of_checks()
        for _ in load_each():  # a broken one is a matter of `ocannl backends`
            pass
    for plugin in settings.declared_plugins():
        described += settings.describe_plugin(plugin)
    described += settings.unread_settings()
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
