"""Settings: their values, and the source of each value.

Sources in order of precedence: the innermost `with overrides(...)`, the command line
`--ocannl_<NAME>=`, the environment variable `OCANNL_<NAME>`, the project's configuration file, the
user's own, the default. An empty value means the default. Names are case-insensitive.

A profile stands for a group of settings. The profile of the strongest source that states one is in
force; it ranks directly below the other settings of that source.

Settings of commands, plugins and directories are not taken from the file of a project, which is
found on the way up from the working directory, unless the user trusts its directory.

Plugins have settings of their own, which a dataclass declares (`setting`): `of_plugin` returns
their values. Their full names, as in `overrides(cuda__graphs=True)`, have two underscores; files
have a table for each plugin.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ocannl_core.base import config_files
from ocannl_core.base import setting_formats as formats
from ocannl_core.base.context_variables import scoped
from ocannl_core.base.errors import SettingsError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.plugin_settings import PluginTable, setting
from ocannl_core.base.renamings import SETTINGS
from ocannl_core.base.setting_sources import (
    BETWEEN,
    PREFIX,
    ConfigTable,
    GivenValue,
    Resolved,
    SettingFormat,
    full_name,
    key_of,
    plugin_of,
    setting_arguments,
)

# fmt: off
__all__ = [
    "PREFIX", "SettingReport", "Settings", "cache_directory", "code_settings", "current", "declare",
    "declared_plugins", "describe", "describe_plugin", "forget_plugins", "held", "of_plugin",
    "other_arguments", "overrides", "setting", "unread_settings",
]
# fmt: on


def _setting(default: object, form: SettingFormat, doc: str, *, needs_trust: bool = False) -> Any:
    """Return the field of a setting.

    Args:
        default: The default value.
        form: The format of its values.
        needs_trust: True if it sets commands, plugins or directories: a project's file may set it
            only in a directory that the user trusts.
    """
    metadata = {"format": form, "doc": doc, "needs_trust": needs_trust}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force at one moment; `describe` returns the source of each."""

    # fmt: off
    backend: str | None = _setting(
        None, formats.TEXT,
        "the backend of new contexts: NAME or NAME:DEVICE; by default the best available one",
    )
    fallback: tuple[str, ...] = _setting(
        (), formats.NAMES,
        "the backends for kernels that the backend of a new context does not support, in order; by "
        "default such kernels are errors",
    )
    cache_dir: str | None = _setting(
        None, formats.DIRECTORY,
        "the directory of compiled code; by default `ocannl` in the user's cache directory",
        needs_trust=True,
    )
    asynchronous_products: bool = _setting(
        False, formats.BOOLEAN,
        "whether products of matrices of 16-bit floats run asynchronously on devices that can, "
        "from operands that a copy engine fetches; tested on emulated devices only",
    )
    dump_dir: str | None = _setting(
        None, formats.DIRECTORY,
        "the directory for dumps of all stages of compilation; by default none are written",
        needs_trust=True,
    )
    timeline: str | None = _setting(
        None, formats.FILE,
        "the file for a timeline of the process in the format of Chrome's trace viewer, in which "
        "kernels run one by one; by default none is written",
        needs_trust=True,
    )
    log_runs: int = _setting(
        0, formats.LOG_LEVEL,
        "the detail of logs of runs, by assignment: 0 logs none, 1 the ranges of results, 2 also "
        "those of operands, 3 all cells",
    )
    guard_values: str = _setting(
        "off", formats.GUARD,
        "the values of results that are errors, whose first cause a replay finds: `off`, `nan`, or "
        "`infinite` for NaN and infinities",
    )
    check_bounds: bool = _setting(
        False, formats.BOOLEAN,
        "whether the reference interpreter checks all accesses of kernels before each run",
    )
    profile: str | None = _setting(
        None, formats.PROFILE,
        "a group of settings: `reproducible` for the bits of the interpreter, `performance` for "
        "the speed of tuned schedules, `approximate` for speed at a greater rounding error; by "
        "default none",
    )
    schedule: str = _setting(
        "default", formats.SCHEDULE,
        "the order of loops: `default` may reassociate sums and omit the rounding of "
        "products; `none` runs loops as they are lowered",
    )
    accumulation: str = _setting(
        "float32", formats.ACCUMULATION,
        "the accumulator of sums of narrow floats, with `schedule = default`: `exact` rounds "
        "after every term, as the interpreter does; `float32` rounds once, at the end; `fast` uses "
        "instructions for dot products and for products of tiles, too, which take numbers below "
        "2**-126 for zero, and for tiles cuts factors of float32 into parts",
    )
    tune: str = _setting(
        "cached", formats.TUNING,
        "the use of schedules and placements measured on this machine: `cached` uses those in the "
        "tuning cache; `search` also tunes new kernels at compilation; `off` uses none",
    )
    tune_budget: float = _setting(
        10.0, formats.SECONDS,
        "the approximate time in seconds that `tune = search` spends on each routine",
    )
    tune_placements: bool = _setting(
        False, formats.BOOLEAN,
        "whether `tune = search` first spends as much time on a search over placements: which "
        "intermediate tensors are stored, and which are computed at each read",
    )
    contract: bool = _setting(
        True, formats.BOOLEAN,
        "whether a * b + c rounds once, as a fused multiply-add, and small powers become products",
    )
    libraries: bool = _setting(
        False, formats.BOOLEAN,
        "whether backends may compute products by libraries of vendors, whose sums have an order "
        "of their own",
    )
    threads: int | None = _setting(
        None, formats.OPTIONAL_COUNT,
        "the number of threads for a large kernel on a CPU device, without effect on results; "
        "by default one for each core of the device",
    )
    host_devices: int = _setting(
        1, formats.COUNT,
        "the number of devices into which a backend divides the cores of this machine",
    )
    asynchronous: bool = _setting(
        False, formats.BOOLEAN,
        "whether calls on devices of this process return when the work is submitted to the queue "
        "of the device",
    )
    device_memory: int | None = _setting(
        None, formats.OPTIONAL_COUNT,
        "the greatest memory in MiB that the tensors and routines on one device may take; by "
        "default all that it has",
    )
    tables_are_finite: bool = _setting(
        False, formats.BOOLEAN,
        "whether (k == id) * table[k], summed over k, reads one entry of the table, although any "
        "other that is infinite or NaN would make the sum NaN",
    )
    check_positions: bool = _setting(
        True, formats.BOOLEAN,
        "whether positions in a tensor, as in `oc.take(x, ids)`, are errors beyond their axis; "
        "without the check, a read there is NaN, or the integer of the greatest magnitude, and a "
        "write is dropped",
    )
    seed: int = _setting(42, formats.SEED, "the seed of a session's random numbers")
    threefry_rounds: int = _setting(
        20, formats.ROUNDS,
        "the rounds of the hash that random numbers are made with: 20, or 12 for speed",
    )
    default_dtype: str = _setting(
        "float32", formats.FLOAT_FORMAT, "the number format of tensors that state none"
    )
    param_dtype: str | None = _setting(
        None, formats.OPTIONAL_FLOAT_FORMAT,
        "the number format of parameters that state none; by default inferred from their uses",
    )
    half_constant_cutoff: int = _setting(
        16384, formats.COUNT,
        "the limit of the magnitude of constants and literals in float16 and 8-bit floats, "
        "exclusive",
    )
    allow_nan: bool = _setting(False, formats.BOOLEAN, "whether host data may contain NaN")
    warn_summed_once: bool = _setting(
        True, formats.BOOLEAN,
        "whether a label of a specification with several operands that occurs once and is summed "
        "gives a warning",
    )
    missing_axes: str = _setting(
        "warn", formats.MISSING_AXES,
        "the response to an operand without an axis that a specification names, to an "
        "axis of the result without a constraint on its size, and to broadcasts that are probably "
        "mistakes: `warn`, `error` or `allow`",
    )
    python_ops: bool = _setting(
        False, formats.BOOLEAN,
        "whether user-written operations run their Python code even if they have native code",
    )
    memory_budget: int | None = _setting(
        None, formats.BYTES,
        "the bytes that a routine may need for values of its own: values are computed again rather "
        "than kept, until they fit; 0 for as few as possible",
    )
    max_visits: int = _setting(
        1, formats.NATURAL,
        "the number of reads of a cell up to which its computation is inlined at every read; "
        "0 switches inlining off",
    )
    max_tracing_dim: int = _setting(
        5, formats.COUNT,
        "the number of iterations of each loop in an estimate of visits, where an exact count "
        "would take too long",
    )
    enable_device_only: bool = _setting(
        True, formats.BOOLEAN,
        "whether intermediate tensors may live in memory of the routine alone; without it, all "
        "that are not inlined can be read",
    )
    inline_scalar_constexprs: bool = _setting(
        True, formats.BOOLEAN, "whether constant numbers are inlined however often they are read"
    )
    inline_simple_computations: bool = _setting(
        True, formats.BOOLEAN,
        "whether copies, constants, functions of the position alone and comparisons with it are "
        "inlined however often they are read",
    )
    inline_complex_computations: bool = _setting(
        False, formats.BOOLEAN,
        "whether computations are inlined however often they are read, which repeats their work",
    )
    load_plugins: tuple[str, ...] | None = _setting(
        None, formats.OPTIONAL_NAMES,
        "the only plugins to load, by entry-point name; by default all that are installed",
        needs_trust=True,
    )
    disable_plugins: tuple[str, ...] = _setting(
        (), formats.NAMES, "plugins not to load, by entry-point name"
    )
    strict_plugins: bool = _setting(
        False, formats.BOOLEAN, "whether a plugin that fails to load is an error at once"
    )
    plugin_timeout: float = _setting(
        10.0, formats.SECONDS,
        "the time limit in seconds for the import of a plugin, and for its search for devices",
    )
    trusted_directories: tuple[str, ...] = _setting(
        (), formats.TRUSTED,
        "directories in and below which configuration files are used whoever can write them, "
        "and may set commands, plugins and directories",
        needs_trust=True,
    )
    fill_limit: int = _setting(
        formats.MOST_FILL_VALUES, formats.FILL_LIMIT,
        "the greatest number of cells that `oc.reshape` writes into generated code; more are data",
    )
    print_decimals: int = _setting(
        4, formats.COUNT, "the greatest number of decimals of printed numbers"
    )
    print_edge: int = _setting(
        4, formats.COUNT, "the number of positions printed at each end of a long axis"
    )
    # fmt: on

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Return a setting of a plugin by the name that it had: a backend for version 1.0 of
            the interface may read it.
            """
            plugin, _, setting = SETTINGS.get(name, "").rpartition(BETWEEN)
            if plugin not in _declared:
                raise AttributeError(f"there is no setting {name}", name=name, obj=self)
            text = (
                f"{name} is a setting of the plugin {plugin}, which the plugin reads by of_plugin"
            )
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(of_plugin(plugin, _declared[plugin].declared), setting)


_TABLE = ConfigTable(
    {each.name: each.metadata["format"] for each in fields(Settings)},
    {each.name: each.default for each in fields(Settings)},
    frozenset(each.name for each in fields(Settings) if each.metadata["needs_trust"]),
    SETTINGS,
)


@dataclass(frozen=True, slots=True)
class SettingReport:
    """One setting for a report."""

    name: str
    """The name in `overrides` and in configuration files."""
    value: object
    """The value in force."""
    source: str
    """`overrides(...)`, an option, a variable, the path of a file, or `default`."""
    doc: str
    """The documentation of the setting."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All settings at one moment."""

    core: Settings
    plugins: dict[str, tuple[GivenValue, ...]]
    """The values of plugins' settings by full name, the strongest source last."""


_overrides: ContextVar[tuple[Resolved, ...]] = ContextVar("ocannl settings overrides", default=())
"""The settings of the `with overrides(...)` statements around, the outermost first."""
SettingsInForce = tuple[tuple[Resolved, ...], _Snapshot]
"""Settings that were read already, behind the overrides that they contain."""
_held: ContextVar[SettingsInForce | None] = ContextVar("ocannl settings held", default=None)
_declared: dict[str, PluginTable] = {}
"""The settings of the plugins that have been loaded."""

S = TypeVar("S")


def current() -> Settings:
    """Return the settings in force here and now.

    Raises:
        SettingsError: if a file or a variable contains an unknown or malformed setting.
    """
    return _snapshot().core


def of_plugin(plugin: str, declared: type[S]) -> S:
    """Return the settings of a plugin that are in force here and now.

    Args:
        plugin: The name of its entry point.
        declared: The dataclass that declares them, which the plugin states as `OCANNL_SETTINGS`.

    Raises:
        SettingsError: if a file or `overrides` has an unknown setting of the plugin, or any source
            an impossible value.
    """
    resolved = PluginTable(plugin, declared).resolved(_snapshot().plugins)
    return declared(**{name: value for name, (value, _) in resolved.items()})


def declare(plugin: str, declared: type[Any]) -> None:
    """Let reports, keys of caches and `overrides` know the settings of a plugin.

    Raises:
        SettingsError: as `of_plugin`.
    """
    table = PluginTable(plugin, declared)
    table.resolved(_snapshot().plugins)
    _declared[key_of(plugin)] = table


def forget_plugins() -> None:
    """Forget all settings that plugins have declared."""
    _declared.clear()


def code_settings(plugin: str) -> list[tuple[str, object]]:
    """Return the settings of a plugin that generated or compiled code may depend on."""
    table = _declared.get(key_of(plugin))
    if table is None:
        return []
    known, found = table.declarations(), table.resolved(_snapshot().plugins)
    return [(name, value) for name, (value, _) in found.items() if known[name].affects_code]


def declared_plugins() -> list[str]:
    """Return the names of the plugins that have been loaded and have settings, sorted."""
    return sorted(_declared)


def describe_plugin(plugin: str) -> list[SettingReport]:
    """Return every setting of a plugin that has been loaded, as `describe`."""
    table = _declared.get(key_of(plugin))
    if table is None:
        return []
    known, found = table.declarations(), table.resolved(_snapshot().plugins)
    return [
        SettingReport(full_name(plugin, name), *found[name], doc=each.doc)
        for name, each in known.items()
    ]


def unread_settings() -> list[SettingReport]:
    """Return the settings of plugins that are not installed, or not loaded."""
    return [
        SettingReport(name, each.value, each.source, f"no plugin {plugin_of(name)} is loaded")
        for name, values in _snapshot().plugins.items()
        if plugin_of(name) not in _declared
        for each in values[-1:]
    ]


def _snapshot() -> _Snapshot:
    held = _held.get()
    if held is not None and held[0] is _overrides.get():
        return held[1]
    values: dict[str, Any] = {}
    plugins: dict[str, tuple[GivenValue, ...]] = {}
    levels = _levels()
    for level in levels:
        for name, (value, _) in level.items():
            if isinstance(value, GivenValue):
                plugins[name] = (*plugins.get(name, ()), value)
            else:
                values[name] = value
    return _Snapshot(Settings(**values), plugins)


def as_of_now() -> SettingsInForce:
    """Return the settings in force, for `held`.

    Raises:
        SettingsError: as `current`.
    """
    return _overrides.get(), _snapshot()


@contextmanager
def held(chosen: SettingsInForce | None = None) -> Iterator[None]:
    """Read files, variables and options once for a `with` statement, so that all of a compilation
    has the same settings. Overrides inside the statement are in force.

    Args:
        chosen: The settings, for example of an earlier compilation; None for the settings in force.

    Raises:
        SettingsError: as `current`.
    """
    found = chosen or as_of_now()
    overridden, _ = found
    token, outer = _held.set(found), _overrides.set(overridden)
    try:
        yield
    finally:
        _overrides.reset(outer)
        _held.reset(token)


def describe() -> list[SettingReport]:
    """Return every setting with its value, the source of the value, and its documentation."""
    resolved = _merged(_levels())
    return [
        SettingReport(each.name, *resolved[each.name], doc=each.metadata["doc"])
        for each in fields(Settings)
    ]


@contextmanager
def overrides(**values: object) -> Iterator[Settings]:
    """Override settings for the duration of a `with` statement.

    A setting of a plugin has the plugin's name and two underscores in front of its own; it is
    checked at once if the plugin has been loaded, and else when the plugin reads it.

    Raises:
        SettingsError: for an unknown name or an impossible value.
    """
    checked = _TABLE.from_python(values, "overrides(...)")
    for name, (value, _) in checked.items():
        table = _declared.get(plugin_of(name)) if isinstance(value, GivenValue) else None
        if table is not None:
            table.resolved({name: (cast("GivenValue", value),)})
    with scoped(_overrides, (*_overrides.get(), checked)):
        yield current()


def other_arguments(arguments: Sequence[str] | None = None) -> list[str]:
    """Return command-line arguments without the settings among them, for a parser of the program.

    Args:
        arguments: The arguments; by default the arguments of this process.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    own = setting_arguments(given)
    end = given.index("--") if "--" in given else len(given)
    return [each for each in given[:end] if each not in own] + given[end:]


def cache_directory() -> Path:
    """Return the directory of cached code, which need not exist yet.

    Raises:
        SettingsError: if there is no home directory to keep it in, or its name is no UTF-8.
    """
    chosen = current().cache_dir
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = os.path.expanduser(os.path.join(base, "ocannl") if chosen is None else chosen)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise _no_cache_directory("The cache directory must have a name in UTF-8.", path) from None
    if path.startswith("~"):
        raise _no_cache_directory("The cache directory must be in a home directory.", path)
    return Path(path)


def _no_cache_directory(rule: str, path: str) -> SettingsError:
    fix = "set OCANNL_CACHE_DIR to another directory of your own"
    return SettingsError(rule, found=repr(path), fix=fix)


def _levels() -> list[Resolved]:
    """Return the settings of every source, the weakest first."""
    variables, unknown = _TABLE.from_environment()
    for variable, name in unknown.items():
        _warn_about_unknown(f"environment variable {variable}", name)
    options, unknown = _TABLE.from_arguments(sys.argv[1:])
    for option, name in unknown.items():
        _warn_about_unknown(f"option {option}", name)
    defaults: Resolved = {name: (value, "default") for name, value in _TABLE.defaults.items()}
    own = config_files.user_file()
    weaker = [defaults, *([] if own is None else [_TABLE.from_file(own)])]
    stronger = [variables, options, *_overrides.get()]
    trusted, _ = _merged([*weaker, *stronger])["trusted_directories"]
    project = config_files.project_file(cast("tuple[str, ...]", trusted))
    levels = [*weaker, *([] if project is None else [_TABLE.from_file(project)]), *stronger]
    level = max(i for i, each in enumerate(levels) if "profile" in each)
    return [*levels[:level], _of_profile(*levels[level]["profile"]), *levels[level:]]


def _merged(levels: Sequence[Resolved]) -> Resolved:
    """Return the settings of sources, the weakest of which comes first."""
    return {name: found for each in levels for name, found in each.items()}


def _of_profile(profile: object, source: str) -> Resolved:
    """Return the settings that a profile stands for."""
    values = formats.PROFILES.get(str(profile), {})
    return {name: (value, f"profile {profile}, {source}") for name, value in values.items()}


_reported: set[str] = set()


def _warn_about_unknown(source: str, name: str) -> None:
    """Warn once about a variable or an option that is named like a setting and is none."""
    if source not in _reported:
        _reported.add(source)
        warnings.warn(f"The {source} is no setting: {_TABLE.suggestion(name)}", stacklevel=4)
