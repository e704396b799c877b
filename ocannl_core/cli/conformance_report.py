"""The report of `ocannl check-backend`: for a terminal, as JSON, and as a table in Markdown."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ocannl_core.backend.manager import Backend
from ocannl_core.backend.protocols import BACKEND_API
from ocannl_core.base.errors import printable
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.text_tables import aligned_rows
from ocannl_core.base.version import __version__
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.target import Capability, Target
from ocannl_core.testing.allowances import CaseResult, Outcome

SCHEMA = 1
"""The version of the JSON: incremented when a key changes its meaning or goes."""
_LANGUAGE = "the rest of the language"
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of a check."""

    backend: Backend
    target: Target
    oracle: Target
    corpora: tuple[str, ...]
    """The suite and the corpora that ran."""
    results: tuple[CaseResult, ...]
    stale: tuple[str, ...]
    """A sentence for each allowance without effect."""
    tracebacks: Mapping[str, str]
    """The traceback of each case that failed, by name, where there is one."""

    @property
    def is_passed(self) -> bool:
        """True if all that is declared works, and no allowance is stale."""
        return not self.stale and not any(r.outcome is Outcome.FAILED for r in self.results)

    def lines(self, *, is_verbose: bool) -> Iterator[str]:
        """Yield the report for a terminal."""
        yield ""
        yield f"{self.target}: {self._description} ({self.backend.plugin})"
        rows = [("part", "declared", "found", "tests"), *self._rows()]
        for row in aligned_rows(rows):
            yield f"  {row}"
        yield from self._undeclared()
        yield from self._groups("skipped", Outcome.SKIPPED, is_verbose=is_verbose)
        yield from self._groups("excluded", Outcome.EXCLUDED, is_verbose=is_verbose)
        if is_verbose:
            yield from self._groups("refused", Outcome.REFUSED, is_verbose=True)
        yield from self._groups("FAILED", Outcome.FAILED, is_verbose=is_verbose)
        if is_verbose:
            for name, text in self.tracebacks.items():
                yield f"{name}:\n{text}\n"
        for text in self.stale:
            yield f"STALE {text}"
        failed = self.counts[Outcome.FAILED]
        if failed or self.stale:
            yield f"failed: {failed}" + (f", stale: {len(self.stale)}" if self.stale else "")
        else:
            yield "everything that is declared works"

    def to_json(self) -> str:
        """Return the report as JSON; `docs/reference/check_backend.md` describes the keys."""
        target = self.target
        content = {
            "schema": SCHEMA,
            "versions": {
                "ocannl-core": __version__,
                "interface": ".".join(map(str, BACKEND_API)),
                "plugin": self.backend.plugin,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "platform": platform.platform(),
            },
            "target": {
                "name": str(target),
                "description": target.description,
                "compiler": target.compiler,
                "formats": [str(each) for each in self._formats],
                "capabilities": [each.value for each in target.capabilities],
            },
            "oracle": str(self.oracle),
            "corpora": list(self.corpora),
            "passed": self.is_passed,
            "counts": {each.value: self.counts[each] for each in Outcome},
            "parts": [
                {
                    "part": part,
                    "declared": declared,
                    "found": found,
                    "counts": {each.value: n for each, n in self._counts_of(part).items()},
                }
                for part, declared, found, _ in self._rows()
            ],
            "cases": [_as_json(each) for each in self.results],
            "stale": list(self.stale),
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    def to_markdown(self) -> str:
        """Return the table of parts in Markdown, under a line with the versions and the result."""
        passed, failed = self.counts[Outcome.PASSED], self.counts[Outcome.FAILED]
        verdict = "conforms" if self.is_passed else f"fails in {failed} of {passed + failed} tests"
        title = (
            f"**{self.target}** ({_cell(self.backend.plugin)}, ocannl-core {__version__}, "
            f"{', '.join(self.corpora)}): {verdict}"
        )
        head = ["| part | declared | found | tests |", "|---|---|---|---|"]
        rows = [f"| {' | '.join(map(_cell, row))} |" for row in self._rows()]
        return "\n".join([title, "", *head, *rows]) + "\n"

    @property
    def counts(self) -> Counter[Outcome]:
        """The number of cases of each outcome."""
        return Counter(each.outcome for each in self.results)

    @property
    def _description(self) -> str:
        return self.target.description or "no description"

    @property
    def _formats(self) -> tuple[dtypes.DType, ...]:
        every = (*dtypes.ALL, *dtypes.PACKED)
        return every if self.target.formats is None else self.target.formats

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield part, declaration, finding and numbers of tests."""
        every, formats = (*dtypes.ALL, *dtypes.PACKED), self._formats
        declared: dict[str, str] = {_LANGUAGE: "always"}
        declared |= {str(each): "yes" if each in formats else "no" for each in every}
        has = self.target.capabilities
        declared |= {each.value: "yes" if each in has else "no" for each in Capability}
        for part, is_declared in declared.items():
            counts = self._counts_of(part)
            texts = [f"{number} {outcome.value}" for outcome, number in counts.items()]
            yield part, is_declared, _finding(counts), ", ".join(texts) or "-"

    def _counts_of(self, part: str) -> dict[Outcome, int]:
        """Return the number of cases of each outcome that occurs."""
        found = Counter(r.outcome for r in self.results if (r.part or _LANGUAGE) == part)
        order = (
            Outcome.PASSED,
            Outcome.FAILED,
            Outcome.EXCLUDED,
            Outcome.REFUSED,
            Outcome.UNDECLARED,
            Outcome.SKIPPED,
        )
        return {each: found[each] for each in order if found[each]}

    def _undeclared(self) -> Iterator[str]:
        """Yield lines about parts that work and are not declared."""
        names = {each.value: str(each) for each in Capability}
        parts = dict.fromkeys(r.part for r in self.results if r.outcome is Outcome.UNDECLARED)
        counts = {names.get(part, part): self._counts_of(part) for part in parts}
        whole = [part for part, each in counts.items() if Outcome.REFUSED not in each]
        if whole:
            yield f"works and is not declared by the Target: {', '.join(whole)}"
        partly = [
            f"{part} ({each[Outcome.UNDECLARED]} of "
            f"{each[Outcome.UNDECLARED] + each[Outcome.REFUSED]} tests)"
            for part, each in counts.items()
            if Outcome.REFUSED in each
        ]
        if partly:
            yield f"works in part and is not declared by the Target: {', '.join(partly)}"

    def _groups(self, word: str, outcome: Outcome, *, is_verbose: bool) -> Iterator[str]:
        """Yield the cases of an outcome, one line for all that have one text."""
        groups: dict[str, list[str]] = {}
        for each in self.results:
            if each.outcome is outcome and each.text:
                groups.setdefault(each.text, []).append(each.name)
        for text, names in groups.items():
            shown = names if is_verbose or len(names) <= _NAMES_SHOWN else names[:_NAMES_SHOWN]
            more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
            yield printable(f"{word} {', '.join(shown)}{more}: {text}")


def _finding(counts: Mapping[Outcome, int]) -> str:
    if Outcome.FAILED in counts:
        return "fails"
    works = Outcome.PASSED in counts or Outcome.UNDECLARED in counts
    if Outcome.REFUSED in counts:
        return "refused in part" if works else "refused"
    if Outcome.EXCLUDED in counts:
        return "works in part" if works else "excluded"
    return "works" if works else "not tried"


def _as_json(result: CaseResult) -> dict[str, Any]:
    content: dict[str, Any] = {"name": result.name, "outcome": result.outcome.value}
    if result.part:
        content["part"] = result.part
    if result.text:
        content["text"] = printable(result.text)
    if result.error is not None:
        content["ulps"] = result.error
    return content


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
