"""The state of each installed backend, for the commands."""

from __future__ import annotations

import warnings

from ocannl_core.backend import manager
from ocannl_core.backend.protocols import TargetReport
from ocannl_core.base.errors import BackendNotFoundError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.target import Target


@dataclass(frozen=True, slots=True)
class BackendRow:
    """One installed backend."""

    entry: manager.PluginEntry
    backend: manager.Backend | None
    """The loaded backend; None if it is broken or disabled."""
    report: TargetReport
    """Its devices on this machine; empty without a loaded backend."""
    is_default: bool
    """True if new contexts use it."""

    @property
    def state(self) -> str:
        """One word: available, unavailable, incomplete, broken or disabled."""
        if self.entry.status in (manager.Status.BROKEN, manager.Status.DISABLED):
            return str(self.entry.status.value)
        if self.report.targets and self.lacking:
            return "incomplete"
        return "available" if self.report.targets else "unavailable"

    @property
    def reason(self) -> str:
        """The reason why it cannot be used; empty if it can."""
        if self.entry.status is manager.Status.DISABLED:
            return "the settings load_plugins and disable_plugins exclude it"
        if self.report.targets and self.lacking:
            return f"it does not implement {', '.join(self.lacking)}, which programs need"
        return self.entry.error or self.report.reason

    @property
    def lacking(self) -> tuple[str, ...]:
        """Hooks that running a program needs and that it does not implement."""
        return () if self.backend is None else self.backend.lacking()

    @property
    def fix(self) -> str:
        """A change that makes it usable; empty if none is known."""
        if self.entry.status is manager.Status.BROKEN:
            return self.entry.repair
        return self.report.fix

    @property
    def priority(self) -> int | None:
        """The highest priority of its devices; None without devices."""
        return max((target.priority for target in self.report.targets), default=None)


def inventory() -> list[BackendRow]:
    """Return every installed backend: available ones by falling priority, then the others."""
    loaded = {each.name: each for each in manager.load_all()}
    default, _ = default_target()
    rows = []
    for entry in manager.backend_entries():
        backend = loaded.get(entry.name)
        report = backend.targets() if backend is not None else TargetReport()
        is_default = default is not None and default.backend == entry.name
        rows.append(BackendRow(entry, backend, report, is_default))
    return sorted(
        rows, key=lambda row: (row.priority is None, -(row.priority or 0), row.entry.name)
    )


def default_target() -> tuple[Target | None, BackendNotFoundError | None]:
    """Return the device of new contexts, or the error that creating one would raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reasons are part of the report
        try:
            return manager.select()[1], None
        except BackendNotFoundError as error:
            return None, error
