"""Exceptions of the project.

A message has four parts, each on its own line: the rule, the finding, its place and the fix. The
constructor takes them as separate arguments, so that no error lacks this structure; the parts stay
readable as attributes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from enum import Enum
from functools import cache
from typing import Self

from ocannl_core.base.origin import caller_depth, caller_location


def printable(text: str) -> str:
    """Return a text without characters that a terminal would act upon; lines and tabs stay.

    Texts of errors and warnings come from files and plugins, too.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text
    )


@cache
def warn_once(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the line of the caller outside this package, once in a process."""
    warnings.warn(printable(text), category, stacklevel=caller_depth())


_LINE = r"[^\s:]:[0-9]+\b"
"""The line of a file: `model.py:7`."""

_MOST_LINES = 40
"""Lines of one part of an error in its text, after the first one."""


class OcannlError(Exception):
    """Base of all errors raised on purpose. The text has the first lines of parts that are long.

    Args:
        rule: The violated rule, or the failure, as one sentence.
        found: The finding that violates it.
        where: The user's source line, operation, axis or file concerned.
        fix: The change that the user can make.

    Attributes:
        is_common: True if all processes of a group raise it.
    """

    def __init__(self, rule: str, *, found: str = "", where: str = "", fix: str = "") -> None:
        self.rule = printable(rule)
        self.found = printable(found)
        self.where = printable(where)
        self.fix = printable(fix)
        self.is_common = False
        super().__init__(self._render())

    @classmethod
    def at_caller(cls, rule: str, found: str = "", fix: str = "") -> Self:
        """Return an error about the line of the user that has called the package."""
        return cls(rule, found=found, where=str(caller_location() or ""), fix=fix)

    def on_all_processes(self) -> Self:
        """Mark and return an error that all processes raise, so that one of them prints it."""
        self.is_common = True
        return self

    def _render(self) -> str:
        lines = [self.rule]
        for attribute, title in {"found": "found", "where": "where", "fix": "try"}.items():
            if text := getattr(self, attribute):
                first, *rest = text.splitlines()
                if len(rest) > _MOST_LINES:
                    left = len(rest) - _MOST_LINES + 1
                    rest[-left:] = [f"... and {left} more lines: the attribute `{attribute}`"]
                lines.append(f"  {title:<6} {first}")
                lines += [f"         {line}" for line in rest]
        return "\n".join(lines)


class ShapeError(OcannlError):
    """The shapes of an expression contradict each other, or leave a size undetermined."""


class SpecError(OcannlError):
    """An einsum specification does not follow the notation."""


class SpecWarning(UserWarning):
    """An einsum specification follows the notation, but is probably a mistake."""


class ShapeWarning(UserWarning):
    """Shapes are compatible, but a broadcast is probably a mistake."""


class UsageError(OcannlError):
    """An operation was used in a way that its contract excludes."""


class MissingAttributeError(UsageError, AttributeError):
    """A tensor has no such attribute."""


class OpError(OcannlError):
    """A user-written operation failed, or does something that its contract excludes."""


class MissingGradientError(OpError, AttributeError):
    """A gradient flows into a user-written operation that defines none."""


class SettingsError(OcannlError):
    """A setting has an unknown name or an impossible value."""


class LoweringError(OcannlError):
    """An assignment cannot be turned into loops."""


class CodegenError(OcannlError):
    """A backend cannot express a loop program."""


class UnsupportedError(CodegenError):
    """A kernel needs a part of the language that its device lacks."""


class CompileError(OcannlError):
    """A compiler is missing or rejected generated code."""


class LaunchLimitError(CompileError):
    """A kernel needs more for its launch than its device has.

    Args:
        title: The title of the kernel in its plan.
    """

    def __init__(
        self, rule: str, *, found: str = "", where: str = "", fix: str = "", title: str = ""
    ) -> None:
        self.title = title
        super().__init__(rule, found=found, where=where, fix=fix)

    def with_lines(self, lines: Iterable[str]) -> LaunchLimitError:
        """Return the error with lines of the user behind the kernel."""
        where = "\n".join(dict.fromkeys((self.where, *lines)))
        return LaunchLimitError(
            self.rule, found=self.found, where=where, fix=self.fix, title=self.title
        )


class BackendNotFoundError(OcannlError):
    """The requested backend is not installed, is broken, or has no device on this machine."""


class DeviceFailure(Enum):
    """The kind of a failure of a device, with the rule that it violates."""

    LOST = "A device stays connected while a program uses it."
    FAULT = "The work of a device runs to its end."
    TIME_LIMIT = "The work of a device ends within its time limit."
    FORKED = "A device is used by the process that has opened its driver."


_STATES = {
    True: "the device works; values of tensors that the routine writes are undefined",
    False: "contexts on the device are unusable, and the values of their tensors are lost",
}
_REMEDIES = {
    True: "assign or compute the tensors again that the routine writes",
    False: "start a new process, and load the last checkpoint; `ocannl doctor` checks devices",
}
"""States of a device after a failure, and remedies; the keys are `DeviceError.is_usable`."""
_REMEDIES_OF_KINDS = {
    DeviceFailure.TIME_LIMIT: "shorten the work: smaller batches, or parts of an axis",
    DeviceFailure.FORKED: 'multiprocessing.get_context("spawn") starts processes anew; or fork '
    "before the first context, which lists devices",
}


class DeviceError(OcannlError):
    """A device failed, for which neither the program nor the plugin of its backend need be at
    fault.

    Args:
        failure: The kind of the failure.
        found: The report of the device or of its driver.
        where: The device, and the work that failed.
        fix: A remedy, which stands before the one for the state of the device.
        is_usable: True if the device runs later work, and its memory is kept.
        device: The device, as `str(target)`; by default the one that the failing call was for.
    """

    def __init__(
        self,
        failure: DeviceFailure,
        *,
        found: str = "",
        where: str = "",
        fix: str = "",
        is_usable: bool = False,
        device: str = "",
    ) -> None:
        self.failure = failure
        self.device = device
        self.is_usable = is_usable
        self._report = found
        self._remedy = fix
        remedies = [fix, _REMEDIES_OF_KINDS.get(failure, ""), _REMEDIES[is_usable]]
        super().__init__(
            failure.value,
            found="\n".join(filter(None, (found, f"state: {_STATES[is_usable]}"))),
            where=where,
            fix="\n".join(filter(None, remedies)),
        )

    def at(self, where: str, device: str = "") -> DeviceError:
        """Return a copy of the error, with a place and a device where it states none."""
        return DeviceError(
            self.failure,
            found=self._report,
            where=self.where or where,
            fix=self._remedy,
            is_usable=self.is_usable,
            device=self.device or device,
        )


class HookError(OcannlError):
    """A plugin's hook failed, or returned an excluded result: a defect of the plugin."""


class LinkError(OcannlError):
    """A routine and the context it runs in do not fit together."""


class TransferError(OcannlError):
    """Data cannot be moved between the host and a device, or between devices."""


class CheckpointError(OcannlError):
    """A checkpoint cannot be written, is damaged, or does not fit the tensors it is loaded into."""


class DataError(OcannlError):
    """A file of training data is damaged, or examples contradict each other."""


class DivergenceError(OcannlError):
    """The loss of a training loop is infinite or no number."""


class ValueGuardError(OcannlError):
    """A run has computed NaN, which the setting `guard_values` forbids."""


class ParseError(OcannlError):
    """The text of a program does not follow the notation that the printer writes."""


class VerifyError(OcannlError):
    """An internal invariant is broken: a defect of the project, not of the user's program."""


def add_line(error: OcannlError) -> None:
    """Add the line of the user that has called the package, if no part of an error names a line;
    failures of devices and plugins have their own places.
    """
    if isinstance(error, DeviceError | HookError) or re.search(
        _LINE, f"{error.found} {error.where}"
    ):
        return
    if (location := caller_location()) is not None:
        error.where = f"{error.where}, at {location}" if error.where else str(location)
        error.args = (error._render(),)
