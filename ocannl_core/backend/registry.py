"""The registry of plugins: discovery, loading, and their faults.

Entry points are listed without importing their modules, and loaded one by one: a broken plugin is
kept with its error for reports, and never stops the others.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from enum import Enum
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.backend.plugins import (
    PluginError,
    Wrapper,
    backend_manager,
    check_wrapper,
    describe,
    load,
)
from ocannl_core.backend.protocols import Check, CheckOutcome
from ocannl_core.backend.results import shown
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, UsageError, printable
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.forks import process_lock
from ocannl_core.base.interruptions import reraise_interruption
from ocannl_core.base.origin import caller_depth
from ocannl_core.base.plugin_settings import violation_of_settings
from ocannl_core.base.suggestions import join_lines, similar_names

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint

BACKEND_GROUP = "ocannl.backends"
WRAPPER_GROUP = "ocannl.wrappers"
CHECKS_GROUP = "ocannl.checks"
COMMANDS_GROUP = "ocannl.commands"
CORPORA_GROUP = "ocannl.corpora"


class Status(Enum):
    """The state of a plugin."""

    INSTALLED = "installed"
    """Found, not imported yet."""
    LOADED = "loaded"
    BROKEN = "broken"
    DISABLED = "disabled"
    """Excluded by the settings `load_plugins` or `disable_plugins`."""


_IN_PROCESS = "registered in this process"
"""In the place of a distribution, for plugins that `register` adds."""


@dataclass(frozen=True, slots=True)
class PluginEntry:
    """A plugin that is installed."""

    name: str
    """The name of the entry point, which is the backend's name."""
    value: str
    """The module, or object in one, that the entry point names."""
    distribution: str
    version: str
    editable: bool = False
    """True if it runs from a source checkout."""
    status: Status = Status.INSTALLED
    error: str = ""
    shadowed: tuple[str, ...] = ()
    """Plugins of the same name that are not used, because this one comes first."""
    fix: str = ""
    """The repair of a broken plugin, if its error states one."""

    @property
    def repair(self) -> str:
        """The repair of a broken plugin, for messages."""
        if self.fix:
            return self.fix
        return f"repair or uninstall {self.distribution}" if self.version else "repair the plugin"

    def __str__(self) -> str:
        owner = f"{self.distribution} {self.version}".strip()
        return f"plugin {owner} (entry point {self.name} = {self.value})"


@dataclass(slots=True)
class _Plugins:
    """The plugins of one entry-point group, their loaders and their errors."""

    entries: dict[str, PluginEntry]
    """The plugins by name. One that is not used, because another one of its name comes first, has
    the key `NAME@DISTRIBUTION`.
    """
    readers: dict[str, Callable[[], object]]
    errors: dict[str, PluginError]

    def entry(self, name: str, loaded: bool) -> PluginEntry:
        """Return an entry with the status that it has now."""
        entry = self.entries[name]
        if not _is_enabled(entry.name):
            return replace(entry, status=Status.DISABLED)
        if name in self.errors:
            error = self.errors[name]
            return replace(entry, status=Status.BROKEN, error=str(error), fix=error.fix)
        return replace(entry, status=Status.LOADED) if loaded else entry


@dataclass(slots=True)
class Registry:
    backends: _Plugins
    wrappers: _Plugins
    loaded: dict[str, Backend] = field(default_factory=dict)
    loaded_wrappers: dict[str, Wrapper] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)


_registry: Registry | None = None
_lock = process_lock()


def get_registry() -> Registry:
    """Return the registry; scan entry points on the first call."""
    global _registry
    with _lock:
        if _registry is None:
            backends, wrappers = _scan(BACKEND_GROUP, WRAPPER_GROUP)
            _registry = Registry(backends, wrappers)
        return _registry


def _scan(*groups: str) -> list[_Plugins]:
    """Return the plugins of some groups that installed distributions declare; import none."""
    # Imported here because it replaces the standard finder, and to keep importing the core cheap.
    from importlib_metadata import EntryPoints, distributions

    # `entry_points` would read two files of each of the hundreds of distributions, and parse one
    declared: dict[str | int, EntryPoints] = {}
    for each in distributions():
        text = each.read_text("entry_points.txt") or ""
        if any(group in text for group in groups):
            (name,) = _headers(each, "Name")
            declared.setdefault(_normal(name) or len(declared), each.entry_points)
    every = EntryPoints(point for points in declared.values() for point in points)
    return [_plugins_among(every.select(group=group)) for group in groups]


def _plugins_among(points: Iterable[EntryPoint]) -> _Plugins:
    found: dict[str, list[EntryPoint]] = {}
    for point in points:
        found.setdefault(printable(point.name), []).append(point)
    plugins = _Plugins({}, {}, {})
    for name, alike in sorted(found.items()):
        first, *others = sorted(alike, key=_precedence) if len(alike) > 1 else alike
        shadowed = tuple(str(_entry(point)) for point in others)
        plugins.entries[name] = replace(_entry(first), shadowed=shadowed)
        plugins.readers[name] = first.load
        for point in others:
            entry = _entry(point)
            key = f"{name}@{_normal(entry.distribution)}"
            plugins.entries[key] = entry
            plugins.readers[key] = partial(_load_second, point, first)
    return plugins


def _normal(distribution: str) -> str:
    """Return the name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _load_second(point: EntryPoint, first: EntryPoint) -> object:
    """Return the plugin of a distribution that is not the first of its name."""
    if point.module == first.module:
        raise PluginError(
            f"both distributions have the module {point.module}, of which Python imports one",
            f"uninstall {_entry(first).distribution}, or import from another directory",
        )
    return point.load()


def plugin_key(name: str) -> str:
    """Return the key of a plugin for `NAME` or `NAME@DISTRIBUTION`, whether it is installed or not.

    Args:
        name: The name of a backend, perhaps with its distribution.
    """
    name, _, distribution = name.partition("@")
    entry = get_registry().backends.entries.get(name)
    is_first = entry is not None and _normal(entry.distribution) == _normal(distribution)
    return name if not distribution or is_first else f"{name}@{_normal(distribution)}"


def entry_of(key: str) -> PluginEntry | None:
    """Return the plugin of a key, as `backend_entries` does; None if it is not installed."""
    registry = get_registry()
    known = key in registry.backends.entries
    return registry.backends.entry(key, key in registry.loaded) if known else None


def _precedence(point: EntryPoint) -> tuple[int, str, str]:
    """Return the key that decides between plugins of one name.

    The first on the import path wins, as among modules; in one directory the first by the name of
    its distribution.
    """
    owner = _entry(point).distribution.lower()
    path = [os.path.realpath(each or os.curdir) for each in sys.path]
    try:
        place = os.path.realpath(str(point.dist.locate_file(""))) if point.dist else ""
    except Exception:  # distributions of other finders have no place
        place = ""
    return path.index(place) if place in path else len(path), owner, point.value


def checks_named(name: str) -> Callable[[], Iterator[Check]] | None:
    """Return the checks that a distribution which is no backend has for `ocannl doctor`."""
    (plugins,) = _scan(CHECKS_GROUP)
    if name not in plugins.entries:
        return None

    def run() -> Iterator[Check]:
        subject = f"plugin {plugins.entries[name]}"
        try:
            function = plugins.readers[name]()
            assert callable(function), f"{function!r} is no function"
            for check in function():
                if not isinstance(check, Check) or not isinstance(check.outcome, CheckOutcome):
                    raise TypeError(f"Checks have a CheckOutcome, and one is {shown(check)}")
                str(check)  # raises for fields that are no texts
                yield check
        except BaseException as error:
            reraise_interruption(error)
            yield Check(subject, CheckOutcome.FAIL, f"its checks failed: {describe(error)}")

    return run


def commands() -> dict[str, tuple[PluginEntry, Callable[[], object]]]:
    """Return the commands that other distributions add to `ocannl`, by name, with their loaders."""
    return _with_loaders(COMMANDS_GROUP)


def corpora() -> dict[str, tuple[PluginEntry, Callable[[], object]]]:
    """Return the corpora that other distributions add to `ocannl check-backend`, by name."""
    return _with_loaders(CORPORA_GROUP)


def _with_loaders(group: str) -> dict[str, tuple[PluginEntry, Callable[[], object]]]:
    (plugins,) = _scan(group)
    return {name: (entry, plugins.readers[name]) for name, entry in plugins.entries.items()}


def _entry(point: EntryPoint) -> PluginEntry:
    distribution = point.dist
    called, value = printable(point.name), printable(point.value)
    if distribution is None:
        return PluginEntry(called, value, "unknown distribution", "")
    try:
        origin = distribution.origin
    except (AttributeError, ValueError):  # the record of the origin is missing or malformed
        origin = None
    editable = bool(getattr(getattr(origin, "dir_info", None), "editable", False))
    name, version = map(printable, _headers(distribution, "Name", "Version"))
    return PluginEntry(called, value, name or "unknown distribution", version, editable)


class _Texts(Protocol):
    """The part of a distribution that reads its files."""

    def read_text(self, filename: str, /) -> str | None: ...


def _headers(distribution: _Texts, *names: str) -> list[str]:
    """Return the values of headers in a distribution's metadata, empty where one is missing."""
    # `distribution.metadata` would import `email`, which takes as long as the whole scan
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    lines = text.partition("\n\n")[0].splitlines()
    found: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        found.setdefault(key.lower(), value.strip())
    return [found.get(each.lower(), "") for each in names]


def _is_enabled(name: str) -> bool:
    chosen = settings.current()
    if name in chosen.disable_plugins:
        return False
    return chosen.load_plugins is None or name in chosen.load_plugins


def backend_entries() -> tuple[PluginEntry, ...]:
    """Return every installed backend by name, without importing any."""
    registry = get_registry()
    names = sorted(key for key, entry in registry.backends.entries.items() if key == entry.name)
    return tuple(registry.backends.entry(name, name in registry.loaded) for name in names)


def wrapper_entries() -> tuple[PluginEntry, ...]:
    """Load the enabled wrapper plugins, and return all installed ones by name."""
    registry = get_registry()
    _load_wrappers(registry)
    names = sorted(registry.wrappers.entries)
    return tuple(registry.wrappers.entry(name, name in registry.loaded_wrappers) for name in names)


def load_all() -> tuple[Backend, ...]:
    """Return every backend that loads, by name; `backend_entries` marks the others as broken.

    Raises:
        BackendNotFoundError: for the first that does not load, if `strict_plugins` is on.
    """
    return tuple(load_each())


def load_each() -> Iterator[Backend]:
    _check_requested_names()
    for entry in backend_entries():
        if entry.status is Status.DISABLED:
            continue
        try:
            yield load_backend(entry.name)
        except PluginError as error:
            if settings.current().strict_plugins:
                raise BackendNotFoundError(
                    f"Backend '{entry.name}' is installed and must load: strict_plugins is on.",
                    found=str(error),
                    where=str(entry),
                ) from error.__cause__


def _check_requested_names() -> None:
    """Warn once about names in the setting `load_plugins` that no plugin has."""
    registry, chosen = get_registry(), settings.current()
    known = {*registry.backends.entries, *registry.wrappers.entries}
    unknown = [name for name in chosen.load_plugins or () if name not in known]
    if not unknown:
        return
    source = next(each.source for each in settings.describe() if each.name == "load_plugins")
    close = {match for name in unknown for match in similar_names(name, known)}
    hint = f"did you mean {' or '.join(sorted(close))}?" if close else ""
    names = ", ".join(f"'{name}'" for name in unknown)
    if chosen.strict_plugins:
        raise BackendNotFoundError(
            "Every name in load_plugins names an installed plugin: strict_plugins is on.",
            found=names,
            where=source,
            fix=join_lines(hint, f"installed: {', '.join(sorted(known)) or 'none'}"),
        )
    warn_once(
        registry,
        f"load_plugins, set by {source}, names plugins that are not installed: {names}"
        + (f"; {hint}" if hint else ""),
    )


def load_backend(name: str) -> Backend:
    """Return an installed backend; load it on the first call.

    Args:
        name: Its key, as `plugin_key` returns it.

    Raises:
        PluginError: if it is broken.
    """
    registry = get_registry()
    with _lock:
        if name in registry.loaded:
            return registry.loaded[name]
        if name in registry.backends.errors:
            raise registry.backends.errors[name]
        entry = registry.backends.entries[name]
        if entry.shadowed:
            text = f"{entry} is used; not used, for it has the same name: "
            text += f"{'; '.join(entry.shadowed)}. Uninstall all but one, or choose one as "
            text += f"{name}@DISTRIBUTION"
            if settings.current().strict_plugins:
                raise PluginError(f"several plugins have this name: {text}")
            warn_once(registry, f"Backend '{name}': {text}")
        try:
            plugin = load(registry.backends.readers[name], entry.value)
            manager = backend_manager(entry.name, plugin, _load_wrappers(registry))
            _declare_settings(entry.name, plugin)
        except PluginError as error:
            registry.backends.errors[name] = error
            raise
        registry.loaded[name] = Backend(
            entry.name, entry.distribution, entry.version, manager, key=name
        )
        return registry.loaded[name]


def _declare_settings(name: str, plugin: object) -> None:
    """Let the settings module know the settings of a plugin.

    Raises:
        PluginError: if it declares none as it should.
        SettingsError: if the user has set them to impossible values.
    """
    declared = getattr(plugin, "OCANNL_SETTINGS", None)
    if declared is not None:
        violation = violation_of_settings(declared)
        if violation:
            raise PluginError(violation)
        settings.declare(name, declared)


def declare_settings_of_checks() -> None:
    """Declare the settings of distributions that are no backends: those of the modules that their
    entry points for `ocannl doctor` name.
    """
    (plugins,) = _scan(CHECKS_GROUP)
    for name, entry in plugins.entries.items():
        module = entry.value.partition(":")[0]
        try:
            _declare_settings(name, load(partial(importlib.import_module, module), entry.value))
        except PluginError as error:
            warn_once(get_registry(), f"The settings of {entry} are not known: {error}")


def _load_wrappers(registry: Registry) -> list[Wrapper]:
    """Return the wrapper plugins that work and are enabled; warn once about each broken one."""
    with _lock:
        for name, entry in registry.wrappers.entries.items():
            if name in registry.loaded_wrappers or not _is_enabled(name):
                continue
            try:
                if name in registry.wrappers.errors:
                    raise registry.wrappers.errors[name]
                plugin = load(registry.wrappers.readers[name], entry.value)
                check_wrapper(name, plugin)
                _declare_settings(name, plugin)
            except PluginError as error:
                registry.wrappers.errors[name] = error
                warn_once(registry, f"Wrapper {entry} is not used: {error}")
            else:
                registry.loaded_wrappers[name] = Wrapper(name, str(entry), plugin)
        loaded = sorted(registry.loaded_wrappers.items())
        return [wrapper for name, wrapper in loaded if _is_enabled(name)]


def register(name: str, plugin: object) -> None:
    """Add a backend that is not installed: a module, or an object with the hooks as methods.

    It lasts until `refresh`.

    Raises:
        UsageError: if the name is taken, or is none that `oc.Context` takes.
    """
    if not isinstance(name, str) or not name or any(each in ":@" for each in name):
        raise UsageError(
            "The name of a backend is a text without : and @, behind which devices and "
            "distributions stand.",
            found=shown(name),
            fix="a name like that of an entry point",
        )
    registry = get_registry()
    with _lock:
        taken = registry.backends.entries.get(name)
        if taken is not None:
            fix = "register it under another name"
            if taken.distribution == _IN_PROCESS:
                fix += ", or forget all that are registered in this process: backend_api.refresh()"
            raise UsageError(
                "A backend must have a name of its own.",
                found=f"'{name}' is taken by {taken}",
                fix=fix,
            )
        value = getattr(plugin, "__name__", "") if isinstance(plugin, ModuleType) else ""
        value = value or type(plugin).__name__
        registry.backends.entries[name] = PluginEntry(name, value, _IN_PROCESS, "")
        registry.backends.readers[name] = lambda: plugin


def refresh() -> None:
    """Forget all scanned, loaded and registered plugins; the next call scans again."""
    global _registry
    with _lock:
        _registry = None
        settings.forget_plugins()
        importlib.invalidate_caches()


def warn_once(registry: Registry, text: str) -> None:
    if text not in registry.warned:
        registry.warned.add(text)
        warnings.warn(printable(text), RuntimeWarning, stacklevel=caller_depth())
