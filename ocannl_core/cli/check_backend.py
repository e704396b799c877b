"""`ocannl check-backend`: runs the conformance suite, and prints a table of capabilities.

ocannl check-backend my_chip              the backend's best device
ocannl check-backend my_chip:1 -k random  another device, and a part of the suite
ocannl check-backend my_chip --verbose    with the traceback of each failure
ocannl check-backend my_chip --corpus primitives    other cases, in place of the suite
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

HELP = "run the conformance suite on a backend, and list its capabilities"
DESCRIPTION = (
    "Runs the conformance suite on a device, and prints a table: what it declares, "
    "and what works. Whatever is declared must work."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("backend", help="NAME or NAME:DEVICE")
    command.add_argument(
        "-k",
        metavar="EXPRESSION",
        help="only tests whose names match, as pytest; of a corpus, names that contain it",
    )
    command.add_argument(
        "--corpus",
        action="append",
        metavar="NAME",
        help="suite (default): the conformance suite; primitives: every primitive at the edges of "
        "every declared format; opinfo: samples of PyTorch; or a corpus of a plugin, such as onnx "
        "of ocannl-onnx; may be repeated",
    )
    command.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON")
    command.add_argument(
        "--table", metavar="FILE", type=Path, help="write the table of parts in Markdown"
    )
    command.add_argument(
        "--oracle", metavar="NAME", help="the backend to compare with; by default the reference"
    )
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=300.0,
        help="the limit of each test, by default 300; the check ends with one that takes longer",
    )
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the traceback of each failure, and the reason of each refusal",
    )


def seconds(text: str) -> float:
    """Return the time limit of an argument; the name is in the error about another text."""
    number = float(text)
    if not 0 < number <= threading.TIMEOUT_MAX:  # NaN, too
        raise ValueError(text)
    return number


def run(arguments: argparse.Namespace) -> int:
    """Run the tests and print the report; return 0 if nothing failed and nothing is stale."""
    from ocannl_core.cli.conformance_run import check  # the test kit, which other commands need not

    return check(arguments)
