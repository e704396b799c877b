"""`ocannl backends`: lists the installed backends, and the reason why one cannot be used."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from ocannl_core.backend.manager import wrapper_entries
from ocannl_core.base import settings
from ocannl_core.base.text_tables import aligned_rows
from ocannl_core.cli.inventory import BackendRow, default_target, inventory

HELP = "list the installed backends, and the reasons why they cannot be used"
DESCRIPTION = "Lists the installed backends, and the reasons why they cannot be used."


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("-v", "--verbose", action="store_true", help="show devices and details")
    command.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the list; return 0, or 1 if no backend can be used or the chosen one cannot."""
    with stdout_to_stderr():  # plugins may print
        rows = inventory()
        _, error = default_target()
    if arguments.json:
        print(json.dumps([as_json(row) for row in rows], indent=2))
        return 0 if error is None else 1
    print(table(rows, verbose=arguments.verbose))
    for entry in wrapper_entries():
        error_text = f": {entry.error}" if entry.error else ""
        print(f"wrapper {entry.name}: {entry.status.value}, {entry}{error_text}")
    if error is not None:
        print(f"\n{error}")
        return 1
    source = next(each.source for each in settings.describe() if each.name == "backend")
    why = "it has the highest priority" if source == "default" else f"chosen by {source}"
    best = next((row for row in rows if row.is_default), None)
    rivals = [row.entry.name for row in rows if best and row.priority == best.priority]
    if source == "default" and len(rivals) > 1:
        why = f"the first by name of {', '.join(sorted(rivals))}, which have equal priorities"
    print(f"\n* new contexts use this backend: {why}")
    return 0


def table(rows: list[BackendRow], *, verbose: bool) -> str:
    """Return the backends as aligned text, each followed by the reason why it cannot be used."""
    if not rows:
        return "no backend is installed; try: pip install 'ocannl-core[all]'"
    cells = [("backend", "status", "devices", "priority", "plugin")]
    for row in rows:
        name = f"{row.entry.name} *" if row.is_default else row.entry.name
        priority = "-" if row.priority is None else str(row.priority)
        editable = " (editable)" if row.entry.editable else ""
        plugin = f"{row.entry.distribution} {row.entry.version}{editable}"
        cells.append((name, row.state, str(len(row.report.targets)), priority, plugin))
    head, *others = aligned_rows(cells)
    lines = [head]
    for line, row in zip(others, rows, strict=True):
        lines += [line, *(f"    {text}" for text in _notes(row, verbose))]
    return "\n".join(lines)


def as_json(row: BackendRow) -> dict[str, Any]:
    """Return a backend as JSON data."""
    return {
        "name": row.entry.name,
        "entry_point": row.entry.value,
        "distribution": row.entry.distribution,
        "version": row.entry.version,
        "editable": row.entry.editable,
        "status": row.state,
        "default": row.is_default,
        "priority": row.priority,
        "reason": row.reason,
        "fix": row.fix,
        "details": list(row.report.details),
        "shadowed": list(row.entry.shadowed),
        "devices": [
            {
                "device": target.device,
                "description": target.description,
                "priority": target.priority,
                "vector_bytes": target.vector_bytes,
                "cores": target.cores,
            }
            for target in row.report.targets
        ],
    }


def _notes(row: BackendRow, verbose: bool) -> list[str]:
    notes = _title_lines("reason", row.reason) + _title_lines("try", row.fix)
    notes += [
        f"shadows {plugin}: uninstall one, or write {row.entry.name}@DISTRIBUTION"
        for plugin in row.entry.shadowed
    ]
    if verbose:
        notes += [
            f"device  {target}: {target.description or 'no description'}, cores: {target.cores}, "
            f"bytes in a vector: {target.vector_bytes}"
            for target in row.report.targets
        ]
        notes += [f"detail  {text}" for text in row.report.details]
        notes.append(f"from    {row.entry}")
    return notes


def _title_lines(title: str, text: str) -> list[str]:
    """Return the lines of a text behind its title; no lines for an empty text."""
    return [
        f"{title if line == 0 else '':<7} {part}" for line, part in enumerate(text.splitlines())
    ]


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to standard error all that is printed, by libraries in C as well."""
    print(end="", flush=True)
    saved = -1
    with suppress(OSError):
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)
