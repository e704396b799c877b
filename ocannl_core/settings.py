"""Settings: their values, and the source of each value.

Sources in order of precedence: the innermost `with overrides(...)`, the environment variable
`OCANNL_<NAME>`, the project's configuration file, the user's own, the default. An empty value means
the default. Names are case-insensitive.

Settings of commands, plugins and directories are not taken from the file of a project, which is
found on the way up from the working directory, unless the user trusts its directory.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, fields
from pathlib import Path
from typing import Any, cast

from ocannl_core import config_files
from ocannl_core.errors import SettingsError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.setting_sources import PREFIX, ConfigTable, Resolved
from ocannl_core.setting_sources import SettingFormat as _Format

__all__ = ["PREFIX", "Described", "Settings", "cache_directory", "current", "describe", "overrides"]

FLOAT_FORMATS = ("float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn")
"""The values of `default_dtype` and `param_dtype`."""

THREEFRY_ROUNDS = (20, 12)
"""The values of `threefry_rounds`."""

MOST_FILL_VALUES = 16
"""The greatest `fill_limit`: a longer list of values must be an array."""


def _check_text(value: object) -> object:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, os.PathLike):
        return str(value)
    raise ValueError


def _check_processor(value: object) -> object:
    if isinstance(value, str) and all(c.isalnum() or c in "_.+=-" for c in value):
        return value
    raise ValueError


def _check_directory(value: object) -> object:
    path = _check_text(value)
    if isinstance(path, str):
        path.encode()  # a UnicodeEncodeError is a ValueError
        if "\0" in path:
            raise ValueError
    return path


def _check_integer(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError


def _check_fill_limit(value: object) -> object:
    if _check_integer(value) in range(MOST_FILL_VALUES + 1):
        return value
    raise ValueError


def _check_count(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError


_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True}
_BOOLEANS |= {"0": False, "false": False, "no": False, "off": False}


def _read_boolean(text: str) -> object:
    if text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    raise ValueError


def _check_boolean(value: object) -> object:
    if isinstance(value, bool):
        return value
    raise ValueError


def _read_names(text: str) -> object:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check_names(value: object) -> object:
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise ValueError


def _check_optional_names(value: object) -> object:
    return None if value is None else _check_names(value)


def _check_trusted(value: object) -> object:
    paths = cast("tuple[str, ...]", _check_names(value))
    if all(os.path.isabs(os.path.expanduser(path)) for path in paths):
        return paths
    raise ValueError


def _check_float_format(value: object) -> object:
    if value in FLOAT_FORMATS:
        return value
    raise ValueError


SCHEDULES = ("default", "none")
"""The values of `schedule`."""


def _check_schedule(value: object) -> object:
    if value in SCHEDULES:
        return value
    raise ValueError


ACCUMULATIONS = ("exact", "float32", "fast")
"""The values of `accumulation`; each allows all that the previous ones do."""


def _check_accumulation(value: object) -> object:
    if value in ACCUMULATIONS:
        return value
    raise ValueError


TUNING = ("off", "cached", "search")
"""The values of `tune`."""


def _check_tuning(value: object) -> object:
    if value in TUNING:
        return value
    raise ValueError


MISSING_AXES = ("warn", "error", "allow")
"""The values of `missing_axes`."""


def _check_missing_axes(value: object) -> object:
    if value in MISSING_AXES:
        return value
    raise ValueError


def _check_seconds(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError


def _check_optional_float_format(value: object) -> object:
    return None if value is None else _check_float_format(value)


def _read_rounds(text: str) -> object:
    return _check_rounds(int(text))


def _check_rounds(value: object) -> object:
    if _check_integer(value) in THREEFRY_ROUNDS:
        return value
    raise ValueError


def _one_of(values: tuple[str, ...], check: Callable[[object], object]) -> _Format:
    """Return the format of one of several names, which are case-insensitive in variables."""
    return _Format("one of " + ", ".join(values), lambda text: check(text.lower()), check)


_SCHEDULE = _one_of(SCHEDULES, _check_schedule)
_ACCUMULATION = _one_of(ACCUMULATIONS, _check_accumulation)
_TUNING = _one_of(TUNING, _check_tuning)
_MISSING_AXES = _one_of(MISSING_AXES, _check_missing_axes)
_SECONDS = _Format(
    "a positive number of seconds", lambda text: _check_seconds(float(text)), _check_seconds
)
_TEXT = _Format("a text", _check_text, _check_text)
_DIRECTORY = _Format("the path of a directory, in UTF-8", _check_directory, _check_directory)
_PROCESSOR_NAME = _Format("the name of a processor", _check_processor, _check_processor)
_INTEGER = _Format("an integer", int, _check_integer)
_FILL_LIMIT = _Format(
    f"an integer from 0 to {MOST_FILL_VALUES}",
    lambda text: _check_fill_limit(int(text)),
    _check_fill_limit,
)
_COUNT = _Format("a positive integer", lambda text: _check_count(int(text)), _check_count)
_OPTIONAL_COUNT = _Format(
    "a positive integer",
    lambda text: _check_count(int(text)),
    lambda value: None if value is None else _check_count(value),
)
_BOOLEAN = _Format("true or false", _read_boolean, _check_boolean)
_NAMES = _Format("a list of names", _read_names, _check_names)
_TRUSTED = _Format(
    "a list of absolute paths", lambda text: _check_trusted(_read_names(text)), _check_trusted
)
_OPTIONAL_NAMES = _Format("a list of names", _read_names, _check_optional_names)
_FLOAT_FORMAT = _one_of(FLOAT_FORMATS, _check_float_format)
_OPTIONAL_FLOAT_FORMAT = _one_of(FLOAT_FORMATS, _check_optional_float_format)
_ROUNDS = _Format("20 or 12", _read_rounds, _check_rounds)


def _setting(default: object, form: _Format, doc: str, *, needs_trust: bool = False) -> Any:
    """Return the field of a setting.

    Args:
        default: The default value.
        form: The format of its values.
        doc: Its documentation.
        needs_trust: True if it sets commands, plugins or directories: a project's file may set it
            only in a directory that the user trusts.
    """
    metadata = {"format": form, "doc": doc, "needs_trust": needs_trust}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force at one moment; `describe` returns the source of each."""

    backend: str | None = _setting(
        None,
        _TEXT,
        "the backend of new contexts: NAME or NAME:DEVICE; by default the best available one",
    )
    cache_dir: str | None = _setting(
        None,
        _DIRECTORY,
        "the directory of compiled code; by default `ocannl` in the user's cache directory",
        needs_trust=True,
    )
    cc: str | None = _setting(
        None, _TEXT, "the C compiler command; by default the first one found", needs_trust=True
    )
    cc_arch: str = _setting(
        "native", _PROCESSOR_NAME, "the target processor of C code, as in -march="
    )
    dump_dir: str | None = _setting(
        None,
        _DIRECTORY,
        "the directory for dumps of all stages of compilation; by default none are written",
        needs_trust=True,
    )
    schedule: str = _setting(
        "default",
        _SCHEDULE,
        "the order of loops: `default` may reassociate sums and omit the rounding of "
        "products; `none` runs loops as they are lowered",
    )
    accumulation: str = _setting(
        "float32",
        _ACCUMULATION,
        "the accumulator of sums of narrow floats, with `schedule = default`: `exact` rounds "
        "after every term, as the interpreter does; `float32` rounds once, at the end; `fast` uses "
        "instructions for products of pairs and of tiles, too, which take numbers below 2**-126 "
        "for zero, and for tiles cuts factors of float32 into three parts",
    )
    tune: str = _setting(
        "cached",
        _TUNING,
        "the use of schedules measured on this machine: `cached` uses those in the tuning "
        "cache; `search` also tunes new kernels at compilation; `off` uses none",
    )
    tune_budget: float = _setting(
        10.0,
        _SECONDS,
        "the approximate time in seconds that `tune = search` spends on each routine",
    )
    contract: bool = _setting(
        True,
        _BOOLEAN,
        "whether a * b + c rounds once, as a fused multiply-add, and small powers become products",
    )
    threads: int | None = _setting(
        None,
        _OPTIONAL_COUNT,
        "the number of threads for a large kernel on a CPU device, without effect on results; "
        "by default one for each core of the device",
    )
    host_devices: int = _setting(
        1, _COUNT, "the number of devices into which a backend divides the cores of this machine"
    )
    asynchronous: bool = _setting(
        False,
        _BOOLEAN,
        "whether calls on devices of this process return when the work is submitted to the queue "
        "of the device",
    )
    tables_are_finite: bool = _setting(
        False,
        _BOOLEAN,
        "whether (k == id) * table[k], summed over k, reads one entry of the table, although any "
        "other that is infinite or NaN would make the sum NaN",
    )
    check_positions: bool = _setting(
        True,
        _BOOLEAN,
        "whether positions in a tensor, as in `oc.take(x, ids)`, are errors beyond their axis; "
        "without the check, a read there is NaN, or the integer of the greatest magnitude, and a "
        "write is dropped",
    )
    seed: int = _setting(42, _INTEGER, "the seed of a session's random numbers")
    threefry_rounds: int = _setting(
        20,
        _ROUNDS,
        "the rounds of the hash that random numbers are made with: 20, or 12 for speed",
    )
    default_dtype: str = _setting(
        "float32", _FLOAT_FORMAT, "the number format of tensors that state none"
    )
    param_dtype: str | None = _setting(
        None,
        _OPTIONAL_FLOAT_FORMAT,
        "the number format of parameters that state none; by default inferred from their uses",
    )
    half_constant_cutoff: int = _setting(
        16384,
        _INTEGER,
        "the limit of the magnitude of constants and literals in float16 and 8-bit floats, "
        "exclusive",
    )
    allow_nan: bool = _setting(False, _BOOLEAN, "whether host data may contain NaN")
    warn_summed_once: bool = _setting(
        True,
        _BOOLEAN,
        "whether a label of a specification with several operands that occurs once and is summed "
        "gives a warning",
    )
    missing_axes: str = _setting(
        "warn",
        _MISSING_AXES,
        "the response to an operand without an axis that a specification names, to an "
        "axis of the result without a constraint on its size, and to broadcasts that are probably "
        "mistakes: `warn`, `error` or `allow`",
    )
    python_ops: bool = _setting(
        False,
        _BOOLEAN,
        "whether user-written operations run their Python code even if they have native code",
    )
    max_visits: int = _setting(
        1,
        _INTEGER,
        "the number of reads of a cell up to which its computation is inlined at every read; "
        "0 switches inlining off",
    )
    max_tracing_dim: int = _setting(
        5,
        _INTEGER,
        "the number of iterations of each loop in an estimate of visits, where an exact count "
        "would take too long",
    )
    enable_device_only: bool = _setting(
        True,
        _BOOLEAN,
        "whether intermediate tensors may live in memory of the routine alone; without it, all "
        "that are not inlined can be read",
    )
    inline_scalar_constexprs: bool = _setting(
        True, _BOOLEAN, "whether constant numbers are inlined however often they are read"
    )
    inline_simple_computations: bool = _setting(
        True,
        _BOOLEAN,
        "whether copies, constants, functions of the position alone and comparisons with it are "
        "inlined however often they are read",
    )
    inline_complex_computations: bool = _setting(
        False,
        _BOOLEAN,
        "whether computations are inlined however often they are read, which repeats their work",
    )
    load_plugins: tuple[str, ...] | None = _setting(
        None,
        _OPTIONAL_NAMES,
        "the only plugins to load, by entry-point name; by default all that are installed",
        needs_trust=True,
    )
    disable_plugins: tuple[str, ...] = _setting(
        (), _NAMES, "plugins not to load, by entry-point name"
    )
    strict_plugins: bool = _setting(
        False, _BOOLEAN, "whether a plugin that fails to load is an error at once"
    )
    plugin_timeout: float = _setting(
        60.0,
        _SECONDS,
        "the time limit in seconds for the import of a plugin, and for its search for devices",
    )
    trusted_directories: tuple[str, ...] = _setting(
        (),
        _TRUSTED,
        "directories in and below which configuration files are used whoever can write them, "
        "and may set commands, plugins and directories",
        needs_trust=True,
    )
    fill_limit: int = _setting(
        MOST_FILL_VALUES,
        _FILL_LIMIT,
        "the greatest number of cells that `oc.reshape` writes into generated code; more are data",
    )
    print_decimals: int = _setting(4, _COUNT, "the greatest number of decimals of printed numbers")
    print_edge: int = _setting(
        4, _COUNT, "the number of positions printed at each end of a long axis"
    )


_TABLE = ConfigTable(
    {each.name: each.metadata["format"] for each in fields(Settings)},
    {each.name: each.default for each in fields(Settings)},
    frozenset(each.name for each in fields(Settings) if each.metadata["needs_trust"]),
)


@dataclass(frozen=True, slots=True)
class Described:
    """One setting for a report.

    Attributes:
        name: The name in `overrides` and in configuration files.
        value: The value in force.
        source: `overrides(...)`, the name of a variable, the path of a file, or `default`.
        doc: The documentation of the setting.
    """

    name: str
    value: object
    source: str
    doc: str


_overrides: ContextVar[Mapping[str, object]] = ContextVar("ocannl settings overrides")


def current() -> Settings:
    """Return the settings in force here and now.

    Raises:
        SettingsError: if a configuration file or a variable contains an unknown or malformed
            setting.
    """
    values = {name: value for name, (value, _) in _resolve().items()}
    return Settings(**cast("dict[str, Any]", values))


def describe() -> list[Described]:
    """Return every setting with its value, the source of the value, and its documentation."""
    resolved = _resolve()
    return [
        Described(each.name, *resolved[each.name], doc=each.metadata["doc"])
        for each in fields(Settings)
    ]


@contextmanager
def overrides(**values: object) -> Iterator[Settings]:
    """Override settings for the duration of a `with` statement.

    Raises:
        SettingsError: for an unknown name or an impossible value.
    """
    checked = {name: _TABLE.check(name, value, "overrides(...)") for name, value in values.items()}
    token = _overrides.set({**_overrides.get({}), **checked})
    try:
        yield current()
    finally:
        _overrides.reset(token)


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


def _resolve() -> Resolved:
    """Return value and source of every setting.

    Raises:
        SettingsError: if a configuration file or a variable contains an unknown or malformed
            setting.
    """
    resolved: Resolved = {name: (value, "default") for name, value in _TABLE.defaults.items()}
    chosen, unknown = _TABLE.from_environment()
    for variable, name in unknown.items():
        _warn_about_unknown(variable, name)
    chosen.update({name: (value, "overrides(...)") for name, value in _overrides.get({}).items()})
    own = config_files.user_file()
    if own is not None:
        resolved.update(_TABLE.from_file(own))
    trusted, _ = chosen.get("trusted_directories", resolved["trusted_directories"])
    project = config_files.project_file(cast("tuple[str, ...]", trusted))
    if project is not None:
        resolved.update(_TABLE.from_file(project))
    resolved.update(chosen)
    return resolved


_reported: set[str] = set()


def _warn_about_unknown(variable: str, name: str) -> None:
    """Warn once about a variable that is named like a setting and is none."""
    if variable not in _reported:
        _reported.add(variable)
        warnings.warn(
            f"The environment variable {variable} is no setting: {_TABLE.suggestion(name)}",
            stacklevel=4,
        )
