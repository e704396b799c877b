"""Plugins for the rest of the core: the registry, and the choice of a backend and a device."""

from __future__ import annotations

import re

from ocannl_core.backend.loaded_backend import Backend, DefectReport, transfer
from ocannl_core.backend.plugins import PluginError
from ocannl_core.backend.protocols import (
    BACKEND_API,
    HOST,
    Buffer,
    Done,
    Event,
    Executable,
    HostBuffer,
    Launcher,
    Source,
    TargetReport,
)
from ocannl_core.backend.registry import (
    BACKEND_GROUP,
    CHECKS_GROUP,
    WRAPPER_GROUP,
    PluginEntry,
    Status,
    backend_entries,
    checks_named,
    entry_of,
    get_registry,
    load_all,
    load_backend,
    load_each,
    plugin_key,
    refresh,
    register,
    warn_once,
    wrapper_entries,
)
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, UsageError
from ocannl_core.base.suggestions import did_you_mean, join_lines, similar_names
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.target import Target

# fmt: off
__all__ = [
    "BACKEND_API", "BACKEND_GROUP", "CHECKS_GROUP", "HOST", "WRAPPER_GROUP", "Backend", "Buffer",
    "Done", "Event", "Executable", "ExternalOp", "HostBuffer", "Launcher", "PluginEntry", "Source",
    "Status", "Target", "TargetReport", "backend", "backend_entries", "checks_named", "load_all",
    "reference", "refresh", "register", "select", "transfer", "wrapper_entries",
]
# fmt: on

_CORE = "ocannl-core"
_SIMILAR = 0.75
"""The least similarity of a name to the one that is suggested: `cpu` to `cpu_c`."""


def backend(name: str) -> Backend:
    """Return the backend of this name.

    Raises:
        BackendNotFoundError: if it is not installed, disabled, or broken.
    """
    return _require_backend(name, by="")


def select(name: str | None = None) -> tuple[Backend, Target]:
    """Return the backend and the device to use.

    A name, passed or set, selects that backend or raises. Otherwise the available device of highest
    priority is chosen; a warning is issued once for each broken plugin, and for each plugin whose
    missing devices would have had a higher priority.

    Args:
        name: `NAME` or `NAME:DEVICE`; None leaves the choice to the settings. Of two plugins with
            one name, `NAME@DISTRIBUTION` is the one of a distribution.

    Raises:
        BackendNotFoundError: if the requested backend or device cannot be used, or is missing.
        UsageError: if the device is no number.
    """
    by = ""
    if name is None:
        described = next(each for each in settings.describe() if each.name == "backend")
        if described.value is None:
            return _choose_device()
        name, by = str(described.value), described.source
    backend_name, colon, device = str(name).partition(":")
    if not isinstance(name, str) or (colon and not device.isdecimal()):
        raise UsageError(
            "A device must be given as NAME or NAME:NUMBER.",
            found=repr(name),
            where=by,
            fix=f"{name.name if isinstance(name, Backend) else backend_name}:0",
        )
    chosen = _require_backend(backend_name, by)
    return chosen, _device(chosen, int(device) if colon else None, by)


def reference() -> tuple[Backend, Target]:
    """Return the backend and device whose results are right by definition.

    Raises:
        BackendNotFoundError: if none is installed.
    """
    for each in load_each():
        for target in each.targets().targets:
            if target.is_reference and not each.lacking():
                return each, target
    raise BackendNotFoundError(
        "A comparison needs a reference interpreter.",
        found="no device of an installed backend is a reference",
        fix="pip install 'ocannl-core[interp]'; `ocannl backends` lists installed backends",
    )


def _device(chosen: Backend, ordinal: int | None, by: str) -> Target:
    report = chosen.targets()
    entry = get_registry().backends.entries[chosen.key]
    if not report.targets:
        raise BackendNotFoundError(
            f"{_request(chosen.name, by)} but has no device on this machine.",
            found=report.reason,
            where=f"{entry}, loaded",
            fix=join_lines(
                report.fix, _others(chosen.name), f"details: ocannl doctor {chosen.name}"
            ),
        )
    if ordinal is None:
        return max(report.targets, key=lambda target: (target.priority, -target.device))
    for target in report.targets:
        if target.device == ordinal:
            return target
    raise BackendNotFoundError(
        f"{_request(f'{chosen.name}:{ordinal}', by)} but there is no such device.",
        found="devices: " + ", ".join(str(target) for target in report.targets),
        where=f"{entry}, loaded",
    )


def _require_backend(name: str, by: str) -> Backend:
    """Return a backend that was requested by name."""
    entries = {entry.name: entry for entry in backend_entries()}
    key = plugin_key(name)
    entry = entry_of(key)
    plain, _, distribution = name.partition("@")
    if entry is None and distribution and plain in entries:
        raise BackendNotFoundError(
            f"{_request(name, by)} but that distribution has no such backend.",
            found="; ".join((str(entries[plain]), *entries[plain].shadowed)),
            fix=f"name one of these distributions behind the @, or write {plain}",
        )
    if entry is None:
        raise BackendNotFoundError(
            f"{_request(name, by)} but is not installed.",
            found=f"installed backends: {', '.join(entries) or 'none'}",
            fix=join_lines(
                did_you_mean(name, entries, cutoff=_SIMILAR) or _installation(name), _others(name)
            ),
        )
    if entry.status is Status.DISABLED:
        raise BackendNotFoundError(
            f"{_request(name, by)} but is disabled.",
            found="the settings load_plugins and disable_plugins exclude it",
            where=str(entry),
            fix=join_lines("`ocannl config` shows where they are set", _others(name)),
        )
    try:
        return load_backend(key)
    except PluginError as error:
        raise BackendNotFoundError(
            f"{_request(name, by)} but its plugin is broken.",
            found=str(error),
            where=f"{entry}, not loaded",
            fix=join_lines(error.fix or entry.repair, _others(name)),
        ) from error.__cause__


def _installation(name: str) -> str:
    """Return the command that installs a backend of this project.

    Other names are not suggested: anybody may have published a package under them.
    """
    listed = "`ocannl backends` lists installed backends"
    from importlib_metadata import PackageNotFoundError, requires

    try:
        requirements = requires(_CORE) or []
    except PackageNotFoundError:
        return listed
    names = [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in requirements]
    own = [each.removeprefix("ocannl-").replace("-", "_") for each in names if each != _CORE]
    close = similar_names(re.sub("[-.]", "_", name.lower()), own, cutoff=_SIMILAR)
    return f"pip install '{_CORE}[{close[0]}]'" if close else listed


def _choose_device() -> tuple[Backend, Target]:
    """Return the available device of highest priority on which programs can run."""
    registry = get_registry()
    reports = [(each, each.targets()) for each in load_each()]
    devices = [
        (each, target)
        for each, report in reports
        if not each.lacking()
        for target in report.targets
    ]
    broken = [entry for entry in backend_entries() if entry.status is Status.BROKEN]
    if not devices:
        reasons = [f"{each.name}: {_unfitness(each, report)}" for each, report in reports]
        reasons += [f"{entry.name}: {entry.error}" for entry in broken]
        disabled = [entry for entry in backend_entries() if entry.status is Status.DISABLED]
        reasons += [f"{entry.name}: disabled by the settings" for entry in disabled]
        enable = "change the settings load_plugins and disable_plugins, or " if disabled else ""
        raise BackendNotFoundError(
            "Running a computation needs a backend with a device on this machine.",
            found="\n".join(reasons) or "no backend is installed",
            fix=f"{enable}pip install 'ocannl-core[all]'; `ocannl doctor` checks what is installed",
        )
    best = min(devices, key=lambda found: (-found[1].priority, found[0].name, found[1].device))
    rivals = {each.name for each, target in devices if target.priority == best[1].priority}
    rivals.discard(best[0].name)
    if rivals:
        warn_once(
            registry,
            f"Backends {', '.join(sorted((best[0].name, *rivals)))} have devices of the same "
            f"priority, {best[1].priority}: '{best[0].name}' is used, the first by name; choose "
            "one by the setting backend",
        )
    for entry in broken:
        warn_once(registry, f"Backend '{entry.name}' is not considered: {entry.error} ({entry})")
    for each, report in reports:
        reason = _unfitness(each, report)
        priority = max((each.priority for each in report.targets), default=report.priority)
        if reason and (isinstance(report, DefectReport) or priority > best[1].priority):
            warn_once(
                registry,
                f"Using backend '{best[0].name}': '{each.name}' is not available: {reason}"
                + (f" (try: {' '.join(report.fix.split())})" if report.fix else ""),
            )
    return best


def _unfitness(chosen: Backend, report: TargetReport) -> str:
    """Return why programs cannot run on a backend; an empty text if they can."""
    if not report.targets:
        return report.reason
    lacking = chosen.lacking()
    return f"it has devices and does not implement {', '.join(lacking)}" if lacking else ""


def _request(name: str, by: str) -> str:
    return f"Backend '{name}' was requested by {by}" if by else f"Backend '{name}' was requested"


def _others(name: str) -> str:
    """Return a line with the names of the other usable backends."""
    names = []
    for entry in backend_entries():
        if entry.name == name or entry.status is Status.DISABLED:
            continue
        try:
            if load_backend(entry.name).targets().targets:
                names.append(entry.name)
        except PluginError:
            continue
    return f"available: {', '.join(names)}" if names else "no other backend is available"
