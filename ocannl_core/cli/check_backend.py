"""`ocannl check-backend`: runs the conformance suite, and prints a table of capabilities.

ocannl check-backend my_chip              the backend's best device
ocannl check-backend my_chip:1 -k random  another device, and a part of the suite
ocannl check-backend my_chip --verbose    with the traceback of each failure
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ocannl_core.backend.interface_use import files_of, notes_for_authors
from ocannl_core.backend.manager import Backend, reference, select
from ocannl_core.backend.protocols import VERSIONS_PAGE
from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.files.directory import unfinished_directory
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.target import Capability, Target

_SUITE = Path(__file__).parents[1] / "testing" / "suite.py"
"""A file for pytest: importing it would load pytest."""
_LANGUAGE = "the rest of the language"
_WORDS = {
    "passed": "passed",
    "failed": "failed",
    "xfailed": "refused",
    "xpassed": "passed, undeclared",
    "skipped": "skipped",
}


HELP = "run the conformance suite on a backend, and list its capabilities"
DESCRIPTION = (
    "Runs the conformance suite on a device, and prints a table: what it declares, "
    "and what works. Whatever is declared must work."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("backend", help="NAME or NAME:DEVICE")
    command.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match, as pytest")
    command.add_argument(
        "--oracle", metavar="NAME", help="the backend to compare with; by default the reference"
    )
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the traceback of each failure, and the reason of each refusal",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the suite and print the table; return 0 if nothing failed."""
    backend, target = select(arguments.backend)
    _, oracle = select(arguments.oracle) if arguments.oracle else reference()
    outcomes = _Outcomes(str(target), str(oracle), files_of(backend))
    _run_suite(outcomes, arguments.k, is_verbose=arguments.verbose)
    if not outcomes.counts:
        raise UsageError("The suite has a test that matches.", found=f"-k {arguments.k}")
    print("\n".join(_lines(backend, target, outcomes, is_verbose=arguments.verbose)))
    return 1 if outcomes.failures else 0


class _Outcomes:
    """A pytest plugin that names the devices, and collects the outcomes by part.

    Attributes:
        counts: The number of tests by part and outcome.
        failures: The name of each test that failed, with its error.
        tracebacks: The name of each test that failed, with its traceback.
        refusals: The name of each test of an undeclared part that failed, with its error.
        deprecations: The warnings about deprecated uses in the source code of the plugin.
    """

    def __init__(self, target: str, oracle: str, files: Sequence[Path]) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.failures: dict[str, str] = {}
        self.tracebacks: dict[str, str] = {}
        self.refusals: dict[str, str] = {}
        self.deprecations: dict[str, None] = {}
        self._files = frozenset(map(str, files))
        self._names = {"target": target, "oracle_target": oracle}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Pass the devices to the tests."""
        for name, device in self._names.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, [device], ids=[""])

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        """Record a deprecated use of the core by the plugin."""
        if (
            issubclass(warning_message.category, DeprecationWarning)
            and warning_message.filename in self._files
        ):
            place = f"{Path(warning_message.filename).name}:{warning_message.lineno}"
            self.deprecations[f"{place}: {warning_message.message}"] = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count an outcome."""
        if report.when != "call" and report.outcome == "passed":
            return
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if outcome == "skipped" else "xpassed"
        part = dict(report.user_properties).get("part", _LANGUAGE)
        self.counts.setdefault(str(part), Counter())[outcome] += 1
        name = report.nodeid.rpartition("::")[2]
        if outcome == "failed":
            self.failures[name] = _error_of(report)
            self.tracebacks[name] = str(report.longreprtext)
        elif outcome == "xfailed":
            self.refusals[name] = _error_of(report)


def _error_of(report: Any) -> str:
    """Return the error of a test on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = getattr(crash, "message", str(report.longrepr))
    return " ".join(text.split())[:300]


def _run_suite(outcomes: _Outcomes, expression: str | None, *, is_verbose: bool) -> None:
    try:
        import hypothesis  # noqa: F401
        import pytest
    except ImportError as error:
        raise UsageError(
            "The conformance suite runs under pytest, with Hypothesis.",
            found=str(error),
            fix="pip install pytest hypothesis",
        ) from error
    with unfinished_directory(settings.cache_directory(), "conformance") as directory:
        directory.create("pytest.ini", b"[pytest]\n")  # the user's is not meant for these tests
        folder, configuration = str(directory.path), directory.path / "pytest.ini"
        options = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider"]
        options += ["--tb=auto" if is_verbose else "--tb=short"]
        options += ["--import-mode=importlib", "-c", str(configuration), "--rootdir", folder]
        options += ["--noconftest"]  # a project's, where the core is installed in its folder
        options += ["-k", expression] if expression else []
        before = os.getcwd()
        try:
            pytest.main([*options, str(_SUITE)], plugins=[outcomes])
        finally:
            os.chdir(before)


def _lines(
    backend: Backend, target: Target, outcomes: _Outcomes, *, is_verbose: bool
) -> Iterator[str]:
    yield ""
    yield f"{target}: {target.description or 'no description'} ({backend.plugin})"
    rows = [("part", "declared", "found", "tests"), *_rows(target, outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
    undeclared = {part: each for part, each in outcomes.counts.items() if each["xpassed"]}
    whole = [part for part, each in undeclared.items() if not each["xfailed"]]
    if whole:
        yield f"works and is not declared by the Target: {', '.join(whole)}"
    partly = [
        f"{part} ({each['xpassed']} of {each['xpassed'] + each['xfailed']} tests)"
        for part, each in undeclared.items()
        if each["xfailed"]
    ]
    if partly:
        yield f"works in part and is not declared by the Target: {', '.join(partly)}"
    if is_verbose:
        for name, text in outcomes.refusals.items():
            yield f"refused {name}: {text}"
    for name, text in outcomes.failures.items():
        yield f"FAILED {name}: {text}"
        if is_verbose:
            yield f"{outcomes.tracebacks[name]}\n"
    failed = len(outcomes.failures)
    yield f"failed: {failed}" if failed else "everything that is declared works"
    notes = [*notes_for_authors(backend), *outcomes.deprecations]
    if notes:
        yield f"for the authors of {backend.plugin} ({VERSIONS_PAGE}):"
        yield from (f"  {each}" for each in notes)


def _rows(target: Target, outcomes: _Outcomes) -> Iterator[tuple[str, ...]]:
    every = (*dtypes.ALL, *dtypes.PACKED)
    formats = every if target.formats is None else target.formats
    declared: dict[str, str] = {_LANGUAGE: "always"}
    declared |= {str(each): "yes" if each in formats else "no" for each in every}
    declared |= {each.value: "yes" if each in target.capabilities else "no" for each in Capability}
    for part, is_declared in declared.items():
        counts = outcomes.counts.get(part, Counter())
        texts = [f"{counts[key]} {word}" for key, word in _WORDS.items() if counts[key]]
        yield part, is_declared, _finding(counts), ", ".join(texts) or "-"


def _finding(counts: Counter[str]) -> str:
    if counts["failed"]:
        return "fails"
    if counts["xfailed"]:
        return "refused in part" if counts["xpassed"] + counts["passed"] else "refused"
    return "works" if counts["passed"] + counts["xpassed"] else "not tried"
