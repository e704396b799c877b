"""Computations with results of another project, on a device.

A corpus is a function without arguments that yields such cases. A distribution names its corpora by
entry points of the group `ocannl.corpora`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ocannl_core.base.errors import UnsupportedError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers import dtypes
from ocannl_core.testing.allowances import Allowances, CaseResult, Outcome
from ocannl_core.testing.subject import Subject

Result: TypeAlias = Any
"""An array or a number, a list or a tuple of results, or None for an optional value."""


class CaseSkipped(Exception):
    """A computation that does not apply; its message is the reason."""


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """A computation, and its results in another project.

    Attributes:
        name: The name within its corpus, such as `add/0`.
        compute: The results on a device, which has the form `NAME:DEVICE`. `CaseSkipped` skips the
            case; any other exception is a failure.
        expected: The results of the other project.
        formats: The names of the number formats that it needs; without them it is skipped.
        relative: The accepted error of floats as a part of the expected number.
        absolute: The accepted error of floats near zero, which is added.
    """

    name: str
    compute: Callable[[str], Sequence[Result]]
    expected: Sequence[Result]
    formats: frozenset[str] = frozenset()
    relative: float = 1e-5
    absolute: float = 0.0


def skipped_case(name: str, reason: str) -> ReferenceCase:
    """Return a case that does not apply for a reason."""

    def compute(_: str) -> Sequence[Result]:
        raise CaseSkipped(reason)

    return ReferenceCase(name, compute, ())


def results(
    corpus: str,
    cases: Iterable[ReferenceCase],
    subject: Subject,
    allowances: Allowances,
    wanted: str = "",
) -> Iterator[CaseResult]:
    """Yield the result of each case on a device.

    Args:
        corpus: The first part of the names of the results.
        wanted: A part of the names of the cases that run.
    """
    for case in cases:
        name = f"{corpus}/{case.name}"
        if wanted in name:
            yield _result(name, case, subject, allowances)


def _result(name: str, case: ReferenceCase, subject: Subject, allowances: Allowances) -> CaseResult:
    part = min(case.formats, default="")
    declared = subject.target.formats
    known = {str(each) for each in (dtypes.ALL if declared is None else declared)}
    missing = sorted(case.formats - known)
    if missing:
        return CaseResult(name, Outcome.SKIPPED, text=f"no format {missing[0]}")
    try:
        found = case.compute(str(subject))
    except CaseSkipped as error:
        return CaseResult(name, Outcome.SKIPPED, part, str(error))
    except UnsupportedError as error:  # the core has refused it, by what the device declares
        return CaseResult(name, Outcome.REFUSED, part, _line(error))
    except Exception as error:
        text = f"{type(error).__name__}: {_line(error)}"
        return CaseResult(name, Outcome.FAILED, part, text)
    allowed = allowances.relative(name, case.relative)
    wrong = difference(found, case.expected, allowed, case.absolute)
    if wrong:
        return CaseResult(name, Outcome.FAILED, part, wrong)
    needs = allowed > case.relative and bool(
        difference(found, case.expected, case.relative, case.absolute)
    )
    return CaseResult(name, Outcome.PASSED, part, needs_tolerance=needs)


def difference(
    found: Result, expected: Result, relative: float, absolute: float, at: str = "results"
) -> str:
    """Return the first difference between results in words; empty if there is none.

    Args:
        at: The expression of the results.
    """
    if expected is None or found is None:
        return "" if found is expected else f"{at}: {found!r} instead of {expected!r}"
    if isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            many = len(found) if isinstance(found, list | tuple) else "no sequence"
            return f"{at}: {many} in place of {len(expected)} results"
        pairs = enumerate(zip(found, expected, strict=True))
        each = (difference(a, b, relative, absolute, f"{at}[{k}]") for k, (a, b) in pairs)
        return next(filter(None, each), "")
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape:
        return f"{at}: the shape {a.shape} instead of {b.shape}"
    if a.dtype != b.dtype and not (_is_text(a) and _is_text(b)):
        return f"{at}: the format {a.dtype} instead of {b.dtype}"
    wrong = np.argwhere(~_equal(a, b, relative, absolute))
    if not len(wrong):
        return ""
    cell = tuple(wrong[0])
    return (
        f"{at}: {len(wrong)} of {b.size} cells differ; at {[int(each) for each in cell]}: "
        f"{a[cell]!s} instead of {b[cell]!s}"
    )


def _equal(a: Any, b: Any, relative: float, absolute: float) -> Any:
    if _is_text(b):
        return a.astype(str) == b.astype(str)
    if b.dtype.kind in "biu":
        return a == b
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(a - b) <= absolute + relative * np.abs(b)
    return (a == b) | (np.isnan(a) & np.isnan(b)) | (near & np.isfinite(b))


def _is_text(array: Any) -> bool:
    return array.dtype.kind in "OUST"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
