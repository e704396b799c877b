"""Runs of the conformance suite and the corpora, for `ocannl check-backend`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ocannl_core.backend import registry
from ocannl_core.backend.interface_use import files_of, notes_for_authors
from ocannl_core.backend.manager import reference, select
from ocannl_core.backend.plugins import describe
from ocannl_core.backend.protocols import VERSIONS_PAGE
from ocannl_core.backend.results import reraise_interruption
from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.files.directory import unfinished_directory
from ocannl_core.cli.conformance_report import ConformanceReport
from ocannl_core.testing import explain_assertions
from ocannl_core.testing.allowances import Allowances, CaseResult, Outcome, allowances_of
from ocannl_core.testing.corpora import opinfo, primitive_edges, reference_cases
from ocannl_core.testing.corpora.reference_cases import ReferenceCase
from ocannl_core.testing.subject import Subject

_SUITE = Path(__file__).parents[1] / "testing" / "suite.py"
"""A file for pytest: importing it would load pytest."""


def check(arguments: argparse.Namespace) -> int:
    """Run the tests and print the report; return 0 if nothing failed and nothing is stale."""
    backend, target = select(arguments.backend)
    oracle = Subject(*(select(arguments.oracle) if arguments.oracle else reference()))
    subject, allowances = Subject(backend, target), allowances_of(backend)
    corpora = tuple(dict.fromkeys(arguments.corpus or ["suite"]))
    cases = {each: _corpus_named(each) for each in corpora if each != "suite"}
    results: list[CaseResult] = []
    tracebacks: dict[str, str] = {}
    deprecations: dict[str, None] = {}
    for corpus in corpora:
        if corpus == "suite":
            outcomes = _Outcomes(str(target), str(oracle), files_of(backend))
            _run_suite(outcomes, arguments.k, is_verbose=arguments.verbose)
            results += outcomes.results
            tracebacks |= outcomes.tracebacks
            deprecations |= outcomes.deprecations
        else:
            results += cases[corpus](subject, oracle, allowances, arguments.k or "")
    if not results:
        raise UsageError("The suite has a test that matches.", found=f"-k {arguments.k}")
    results = [allowances.apply(each) for each in results]
    stale = allowances.stale(results, is_complete=arguments.k is None)
    report = ConformanceReport(
        backend, target, oracle.target, corpora, tuple(results), tuple(stale), tracebacks
    )
    print("\n".join(report.lines(is_verbose=arguments.verbose)))
    notes = [*notes_for_authors(backend), *deprecations]
    if notes:
        print(f"for the authors of {backend.plugin} ({VERSIONS_PAGE}):")
        print("\n".join(f"  {each}" for each in notes))
    for file, text in ((arguments.json, report.to_json), (arguments.table, report.to_markdown)):
        if file is not None:
            _write(file, text())
    return 0 if report.is_passed else 1


_Corpus: TypeAlias = Callable[[Subject, Subject, Allowances, str], Iterable[CaseResult]]
"""The results of a device beside an oracle, with allowances, of cases with a part in their name."""


def _corpus_named(name: str) -> _Corpus:
    """Return a corpus of the core or of a plugin.

    Raises:
        UsageError: if there is none, or the plugin does not load.
    """
    own = {
        "primitives": primitive_edges.results,
        "opinfo": _with_references("opinfo", opinfo.cases),
    }
    if name in own:
        return own[name]
    added = registry.corpora()
    if name not in added:
        raise UsageError(
            f"A corpus is one of {', '.join(dict.fromkeys(['suite', *own, *sorted(added)]))}.",
            found=f"--corpus {name}",
            fix="pip install ocannl-onnx"
            if name == "onnx"
            else "install the distribution with this corpus",
        )
    entry, load = added[name]
    try:
        found = load()
        if not callable(found):
            raise TypeError(f"{found!r} is no function that yields cases")
    except BaseException as error:
        reraise_interruption(error)
        raise UsageError(
            f"The corpus {name} is in a plugin that loads.",
            found=describe(error),
            where=str(entry),
            fix=entry.repair,
        ) from error
    return _with_references(name, found)


def _with_references(name: str, cases: Callable[[], Iterable[ReferenceCase]]) -> _Corpus:
    def results(
        subject: Subject, _: Subject, allowances: Allowances, wanted: str
    ) -> Iterable[CaseResult]:
        return reference_cases.results(name, cases(), subject, allowances, wanted)

    return results


class _Outcomes:
    """A pytest plugin that names the devices, and collects the outcomes."""

    def __init__(self, target: str, oracle: str, files: Sequence[Path]) -> None:
        self.deprecations: dict[str, None] = {}
        """The warnings about deprecated uses in the source code of the plugin."""
        self._files = frozenset(map(str, files))
        self.results: list[CaseResult] = []
        """The result of each test."""
        self.tracebacks: dict[str, str] = {}
        """The name of each test that failed, with its traceback."""
        self._names = {"target": target, "oracle_target": oracle}

    def pytest_configure(self) -> None:
        """Prepare the import of the suites."""
        explain_assertions()

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
        if report.when != "call" and report.outcome == "passed":
            return
        outcome, text = _OUTCOMES[report.outcome], ""
        if hasattr(report, "wasxfail"):
            outcome = Outcome.REFUSED if report.outcome == "skipped" else Outcome.UNDECLARED
        name = _name(report.nodeid.rpartition("::")[2])
        if outcome in (Outcome.FAILED, Outcome.REFUSED):
            text = _error_of(report)
        elif outcome is Outcome.SKIPPED:
            *_, text = report.longrepr
            text = text.removeprefix("Skipped: ")
        if outcome is Outcome.FAILED:
            self.tracebacks[name] = str(report.longreprtext)
        part = str(dict(report.user_properties).get("part", ""))
        self.results.append(CaseResult(name, outcome, part, text))


_OUTCOMES = {"passed": Outcome.PASSED, "failed": Outcome.FAILED, "skipped": Outcome.SKIPPED}


def _name(test: str) -> str:
    """Return the name of a case: test_adds[--float32]  -->  suite/test_adds/float32."""
    function, _, given = test.removesuffix("]").partition("[")
    # the devices, which are the same for all, have empty ids
    given = given.lstrip("-")
    return f"suite/{function}/{given}" if given else f"suite/{function}"


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


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "A report is written into a directory that exists.", found=str(error), where=str(file)
        ) from error
