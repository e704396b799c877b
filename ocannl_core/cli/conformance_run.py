"""Runs of the conformance suite and the corpora, for `ocannl check-backend`."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from ocannl_core.backend import registry
from ocannl_core.backend.interface_use import files_of, notes_for_authors
from ocannl_core.backend.manager import reference, select
from ocannl_core.backend.plugins import describe, describe_hang
from ocannl_core.backend.protocols import VERSIONS_PAGE
from ocannl_core.backend.time_limit import overdue
from ocannl_core.base import settings
from ocannl_core.base.errors import UsageError
from ocannl_core.base.files.directory import unfinished_directory
from ocannl_core.base.interruptions import reraise_interruption
from ocannl_core.cli.conformance_report import ConformanceReport
from ocannl_core.compile.saved_code import why_not_saved
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
    found = _Outcomes(str(target), str(oracle), files_of(backend))

    def conclude(*, is_complete: bool) -> int:
        results = [allowances.apply(each) for each in found.results]
        stale = allowances.stale(results, is_complete=is_complete)
        report = ConformanceReport(
            backend, target, oracle.target, corpora, tuple(results), tuple(stale), found.tracebacks
        )
        print("\n".join(report.lines(is_verbose=arguments.verbose)))
        notes = [*notes_for_authors(backend), *found.deprecations]
        if reason := why_not_saved(backend):
            notes.append(f"OCANNL_SOURCE: {reason}, so that its sources are not saved on disk")
        if notes:
            print(f"for the authors of {backend.plugin} ({VERSIONS_PAGE}):")
            print("\n".join(f"  {each}" for each in notes))
        for file, text in ((arguments.json, report.to_json), (arguments.table, report.to_markdown)):
            if file is not None:
                _write(file, text())
        return 0 if report.is_passed else 1

    def end(name: str, error: TimeoutError) -> None:
        found.add_hang(name, error)
        conclude(is_complete=False)

    found.watch = watch = _Watch(arguments.timeout, end)
    cases = {each: _corpus_named(each, watch) for each in corpora if each != "suite"}
    try:
        for corpus in corpora:
            if corpus == "suite":
                _run_suite(found, arguments.k, is_verbose=arguments.verbose)
                continue
            watch.begin(corpus)
            for result in cases[corpus](subject, oracle, allowances, arguments.k or ""):
                found.results.append(result)
                watch.begin(f"{corpus}, after {result.name}")
    finally:
        watch.end()
    if not found.results:
        raise UsageError("The suite has a test that matches.", found=f"-k {arguments.k}")
    return conclude(is_complete=arguments.k is None)


class _Watch:
    """A limit of the time of each test. The process ends with the first one that exceeds it: its
    thread cannot be stopped, and may hold locks.
    """

    def __init__(self, seconds: float, report: Callable[[str, TimeoutError], None]) -> None:
        self._seconds = seconds
        self._report = report
        self._thread = threading.current_thread()
        self._timer: threading.Timer | None = None

    def begin(self, name: str) -> None:
        """Begin the time of a test."""
        self.end()
        self._timer = threading.Timer(self._seconds, self._end_process, (name,))
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """End the time of the running test."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_process(self, name: str) -> None:
        try:
            self._report(name, overdue(self._seconds, self._thread))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)


_Corpus: TypeAlias = Callable[[Subject, Subject, Allowances, str], Iterable[CaseResult]]
"""The results of a device beside an oracle, with allowances, of cases with a part in their name."""


def _corpus_named(name: str, watch: _Watch) -> _Corpus:
    """Return a corpus of the core or of a plugin.

    Raises:
        UsageError: if there is none, or the plugin does not load.
    """
    own = {
        "primitives": primitive_edges.results,
        "opinfo": _with_references("opinfo", opinfo.cases, watch),
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
    return _with_references(name, found, watch)


def _with_references(
    name: str, cases: Callable[[], Iterable[ReferenceCase]], watch: _Watch
) -> _Corpus:
    def results(
        subject: Subject, _: Subject, allowances: Allowances, wanted: str
    ) -> Iterable[CaseResult]:
        def watched() -> Iterator[ReferenceCase]:
            for case in cases():
                watch.begin(f"{name}/{case.name}")
                yield case

        return reference_cases.results(name, watched(), subject, allowances, wanted)

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
        self.watch: _Watch | None = None
        self._names = {"target": target, "oracle_target": oracle}
        self._release_output: Callable[[], object] = bool

    def add_hang(self, name: str, error: TimeoutError) -> None:
        """Record a test that takes too long, and let output reach the terminal."""
        self._release_output()
        text = f"{describe_hang(error)}; the tests after it did not run"
        self.results.append(CaseResult(name, Outcome.FAILED, text=text))
        assert error.__cause__ is not None
        self.tracebacks[name] = "".join(traceback.format_tb(error.__cause__.__traceback__))

    def pytest_configure(self, config: Any) -> None:
        """Prepare the import of the suites."""
        explain_assertions()
        capture = config.pluginmanager.getplugin("capturemanager")
        self._release_output = capture.suspend_global_capture

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin the time of a test."""
        assert self.watch is not None
        self.watch.begin(_name(nodeid.rpartition("::")[2]))

    def pytest_runtest_logfinish(self) -> None:
        """End the time of a test."""
        assert self.watch is not None
        self.watch.end()

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
        import pytest

        if find_spec("hypothesis") is None:  # pytest warns of one that is imported before
            raise ImportError("No module named 'hypothesis'")
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
