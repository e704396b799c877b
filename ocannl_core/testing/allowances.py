"""The outcomes of a check of a backend, and what its package allows in `conformance.toml`.

    [[tolerance]]
    cases = "primitives/exp/float16"
    ulps = 2
    reason = "the device computes exp in float16"

    [[exclusion]]
    cases = "suite/test_conversions_to_every_format_round_and_wrap/float64"
    reason = "the device rounds conversions of float64 towards zero"

`cases` is a name of cases, in which `*` stands for any characters. An entry without effect is
stale: an exclusion of cases that all pass, or a tolerance that no case needs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from importlib import resources

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.plugins import packages_of
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.testing.compare import Tolerance


class Outcome(Enum):
    """The outcome of one case; the value is its word in reports."""

    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"
    """It failed, and the device does not declare the part of the language."""
    UNDECLARED = "passed, undeclared"
    EXCLUDED = "excluded"
    """It failed, and the plugin has a reason for that."""
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case."""

    name: str
    """The name of the case, whose first part is the suite or the corpus."""
    outcome: Outcome
    part: str = ""
    """The format or capability that it is about; empty if it is about none."""
    text: str = ""
    """The error, the reason for skipping, or the reason of the exclusion."""
    error: float | None = None
    """The largest error found, in units in the last place; None if not measured."""
    needs_tolerance: bool = False
    """True if it passed by a tolerance of the plugin alone."""


FILE = "conformance.toml"
_KEYS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "exclusion": {"cases": (str,), "reason": (str,)},
    "tolerance": {"cases": (str,), "reason": (str,), "ulps": (int,), "relative": (int, float)},
}


@dataclass(frozen=True, slots=True)
class Allowance:
    """One entry."""

    kind: str
    """`exclusion` or `tolerance`."""
    cases: str
    """The pattern of the names of cases."""
    reason: str
    ulps: int | None = None
    """The accepted error in units in the last place."""
    relative: float | None = None
    """The accepted error as a part of the expected number."""

    def covers(self, case: str) -> bool:
        """Return True if the entry is about a case."""
        # brackets are no sets of characters
        return fnmatchcase(case, self.cases.replace("[", "[[]"))

    def __str__(self) -> str:
        return f"{self.kind} {self.cases}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Allowances:
    """The entries of a backend, in the order of the file; the first one about a case counts."""

    entries: tuple[Allowance, ...] = ()

    def exclusion(self, case: str) -> Allowance | None:
        """Return the exclusion of a case, if there is one."""
        return self._find("exclusion", case)

    def ulps(self, case: str, default: Tolerance) -> Tolerance:
        """Return the tolerance of a case in units in the last place."""
        found = self._find("tolerance", case)
        if found is None or found.ulps is None:
            return default
        return replace(default, ulps=max(default.ulps, found.ulps))

    def relative(self, case: str, default: float) -> float:
        """Return the relative tolerance of a case."""
        found = self._find("tolerance", case)
        return default if found is None or found.relative is None else found.relative

    def apply(self, result: CaseResult) -> CaseResult:
        """Return the result with a failure that the backend has a reason for as an exclusion."""
        entry = self.exclusion(result.name)
        if entry is None or result.outcome is not Outcome.FAILED:
            return result
        return replace(result, outcome=Outcome.EXCLUDED, text=entry.reason)

    def stale(self, results: Iterable[CaseResult], *, is_complete: bool) -> list[str]:
        """Return a sentence for each entry without effect.

        Args:
            results: The results after `apply`.
            is_complete: True if all cases of each corpus in the results have run, so that an entry
                about none of them is about no case.
        """
        results = list(results)
        corpora = {_corpus(each.name) for each in results}
        found = []
        for entry in self.entries:
            about = [each for each in results if entry.covers(each.name)]
            if not about:
                if is_complete and _corpus(entry.cases) in corpora:
                    found.append(f"{entry}: there is no such case")
            elif entry.kind == "exclusion":
                if all(each.outcome in _PASSES for each in about):
                    found.append(f"{entry}: all of its cases pass")
            elif not any(each.needs_tolerance or each.outcome not in _PASSES for each in about):
                found.append(f"{entry}: all of its cases pass without it")
        return found

    def _find(self, kind: str, case: str) -> Allowance | None:
        found = (each for each in self.entries if each.kind == kind and each.covers(case))
        return next(found, None)


_PASSES = (Outcome.PASSED, Outcome.UNDECLARED)


def _corpus(name: str) -> str:
    return name.partition("/")[0]


def allowances_of(backend: Backend) -> Allowances:
    """Return the entries of the innermost package with a file around a backend's module or class;
    none without a file.

    Raises:
        UsageError: if the file is no list of such entries.
    """
    for package in reversed(packages_of(backend.manager.get_plugin(backend.name))):
        if package.__spec__ is None:  # made in this process
            continue
        try:
            text = resources.files(package).joinpath(FILE).read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):  # also where finders add to a namespace
            continue
        return read_allowances(text, f"{FILE} of {backend.plugin}")
    return Allowances()


def read_allowances(text: str, where: str) -> Allowances:
    """Return the entries of a file.

    Raises:
        UsageError: if the text is no list of such entries.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError("A file of allowances is TOML.", found=str(error), where=where) from None
    entries = []
    for kind, given in tables.items():
        if kind not in _KEYS or not isinstance(given, list):
            raise UsageError(
                "A file of allowances has the lists of tables `exclusion` and `tolerance`.",
                found=f"{kind}",
                where=where,
                fix="begin an entry with [[exclusion]] or [[tolerance]]",
            )
        entries += [_entry(kind, each, f"{kind} {at} in {where}") for at, each in enumerate(given)]
    return Allowances(tuple(entries))


def _entry(kind: str, given: Mapping[str, object], where: str) -> Allowance:
    keys = _KEYS[kind]
    for name, value in given.items():
        if name not in keys or type(value) not in keys[name]:
            raise UsageError(
                f"An entry of the kind {kind} has the keys {', '.join(keys)}.",
                found=f"{name} = {value!r}",
                where=where,
            )
    for name in ("cases", "reason"):
        if not str(given.get(name, "")).strip():
            raise UsageError(
                "An entry names cases, and has a reason.", found=f"no {name}", where=where
            )
    if kind == "tolerance" and len(given) != 3:
        raise UsageError(
            "A tolerance states `ulps` for primitives, or `relative` for vectors.",
            found=f"the keys {', '.join(given)}",
            where=where,
        )
    return Allowance(kind, **given)  # type: ignore[arg-type]
