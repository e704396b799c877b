"""Every exception that the project raises on purpose.

A message answers four questions, each on its own line: what must hold, what was found, where, and
what to do. The constructor takes them apart so that no error can forget its structure; the parts
stay readable as attributes.
"""

from __future__ import annotations


class OcannlError(Exception):
    """Base of all errors raised on purpose.

    Args:
        rule: What must hold, or what went wrong, as one sentence.
        found: What was found instead.
        where: The user's source line, operation, axis or file concerned.
        fix: What the user can do about it.
    """

    def __init__(self, rule: str, *, found: str = "", where: str = "", fix: str = "") -> None:
        self.rule = rule
        self.found = found
        self.where = where
        self.fix = fix
        super().__init__(self._render())

    def _render(self) -> str:
        lines = [self.rule]
        for title, text in (("found", self.found), ("where", self.where), ("try", self.fix)):
            if text:
                first, *rest = text.splitlines()
                lines.append(f"  {title:<6} {first}")
                lines += [f"         {line}" for line in rest]
        return "\n".join(lines)


class ShapeError(OcannlError):
    """The shapes of an expression contradict each other, or leave a size undetermined."""


class SpecError(OcannlError):
    """An einsum specification does not follow the notation."""


class SpecWarning(UserWarning):
    """An einsum specification follows the notation, but hardly says what its author means."""


class UsageError(OcannlError):
    """An operation was used in a way that its contract excludes."""


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


class CompileError(OcannlError):
    """A compiler is missing or rejected generated code."""


class BackendNotFoundError(OcannlError):
    """The requested backend is not installed, is broken, or has no device on this machine."""


class LinkError(OcannlError):
    """A routine and the context it runs in do not fit together."""


class TransferError(OcannlError):
    """Data cannot be moved between the host and a device, or between devices."""


class ParseError(OcannlError):
    """The text of a program does not follow the notation that the printer writes."""


class VerifyError(OcannlError):
    """An internal invariant is broken: a defect of the project, not of the user's program."""
