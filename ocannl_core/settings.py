"""Settings: their values, and where each value came from.

A value is looked for in this order: the innermost `with overrides(...)`, the environment variable
`OCANNL_<NAME>`, the nearest configuration file going up from the working directory, the default. A
configuration file is `ocannl.toml`, or a `pyproject.toml` with a table `[tool.ocannl]`; in one
directory the former wins.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from ocannl_core.errors import SettingsError
from ocannl_core.records import dataclass

PREFIX = "OCANNL_"
FLOAT_FORMATS = ("float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn")
"""The values of `default_dtype` and `param_dtype`."""

THREEFRY_ROUNDS = (20, 12)
"""The values of `threefry_rounds`."""

MOST_FILL_VALUES = 16
"""The greatest `fill_limit`: a longer list of values in generated code has to be an array."""


@dataclass(frozen=True, slots=True)
class _Format:
    """How the values of a setting look.

    Attributes:
        expected: A description for messages.
        from_text: Reads the text of an environment variable; raises ValueError.
        from_value: Checks a Python or TOML value and returns its normal form; raises ValueError.
    """

    expected: str
    from_text: Callable[[str], object]
    from_value: Callable[[object], object]


def _check_text(value: object) -> object:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, os.PathLike):
        return str(value)
    raise ValueError


def _check_nonempty_text(value: object) -> object:
    if isinstance(value, str) and value:
        return value
    raise ValueError


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
_BOOLEANS |= {"0": False, "false": False, "no": False, "off": False, "": False}


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
"""The values of `accumulation`, each of which allows what those before it do."""


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
    return None if value in (None, "") else _check_float_format(value)


def _read_rounds(text: str) -> object:
    return _check_rounds(int(text))


def _check_rounds(value: object) -> object:
    if _check_integer(value) in THREEFRY_ROUNDS:
        return value
    raise ValueError


_SCHEDULE = _Format("one of " + ", ".join(SCHEDULES), _check_schedule, _check_schedule)
_ACCUMULATION = _Format(
    "one of " + ", ".join(ACCUMULATIONS), _check_accumulation, _check_accumulation
)
_TUNING = _Format("one of " + ", ".join(TUNING), _check_tuning, _check_tuning)
_MISSING_AXES = _Format(
    "one of " + ", ".join(MISSING_AXES), _check_missing_axes, _check_missing_axes
)
_SECONDS = _Format(
    "a positive number of seconds", lambda text: _check_seconds(float(text)), _check_seconds
)
_TEXT = _Format("a text", _check_text, _check_text)
_NONEMPTY_TEXT = _Format("a text", _check_nonempty_text, _check_nonempty_text)
_INTEGER = _Format("an integer", int, _check_integer)
_FILL_LIMIT = _Format(
    f"an integer from 0 to {MOST_FILL_VALUES}",
    lambda text: _check_fill_limit(int(text)),
    _check_fill_limit,
)
_COUNT = _Format("a positive integer", lambda text: _check_count(int(text)), _check_count)
_OPTIONAL_COUNT = _Format(
    "a positive integer",
    lambda text: _check_count(int(text)) if text else None,
    lambda value: None if value is None else _check_count(value),
)
_BOOLEAN = _Format("true or false", _read_boolean, _check_boolean)
_NAMES = _Format("a list of names", _read_names, _check_names)
_OPTIONAL_NAMES = _Format("a list of names", _read_names, _check_optional_names)
_FLOAT_FORMAT = _Format(
    "one of " + ", ".join(FLOAT_FORMATS), _check_float_format, _check_float_format
)
_OPTIONAL_FLOAT_FORMAT = _Format(
    "one of " + ", ".join(FLOAT_FORMATS), _check_optional_float_format, _check_optional_float_format
)
_ROUNDS = _Format("20 or 12", _read_rounds, _check_rounds)


def _setting(default: object, form: _Format, doc: str) -> Any:
    return field(default=default, metadata={"format": form, "doc": doc})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force at one moment; `describe` tells where each came from."""

    backend: str | None = _setting(
        None,
        _TEXT,
        "the backend of new contexts: NAME or NAME:DEVICE; by default the best available one",
    )
    cache_dir: str | None = _setting(
        None,
        _TEXT,
        "where compiled code is kept; by default `ocannl` in the user's cache directory",
    )
    cc: str | None = _setting(None, _TEXT, "the C compiler command; by default the first one found")
    cc_arch: str = _setting(
        "native", _NONEMPTY_TEXT, "the processor that C code is compiled for, as in -march="
    )
    dump_dir: str | None = _setting(
        None, _TEXT, "where compiled routines leave all stages as files; by default nowhere"
    )
    schedule: str = _setting(
        "default",
        _SCHEDULE,
        "how loops run: `default` may add the terms of a sum in another order and without rounding "
        "each product; `none` runs them as they are lowered",
    )
    accumulation: str = _setting(
        "float32",
        _ACCUMULATION,
        "what sums of narrow floats are added up in, with `schedule = default`: `exact` rounds "
        "after every term, as the interpreter does; `float32` rounds once, at the end; `fast` uses "
        "instructions for products of pairs and of tiles, too, which take numbers below 2**-126 "
        "for zero, and for tiles cuts factors of float32 into three parts",
    )
    tune: str = _setting(
        "cached",
        _TUNING,
        "whether kernels run by schedules that were measured on this machine: `cached` those that "
        "an earlier search remembered; `search` looks for those of new kernels when they are "
        "compiled; `off` none",
    )
    tune_budget: float = _setting(
        10.0, _SECONDS, "how many seconds `tune = search` spends on each routine, about"
    )
    contract: bool = _setting(
        True,
        _BOOLEAN,
        "whether a * b + c rounds once, as a fused multiply-add, and small powers become products",
    )
    threads: int | None = _setting(
        None,
        _OPTIONAL_COUNT,
        "how many threads share a large kernel on a device that is a processor, which changes no "
        "result; by default one for each core of the device",
    )
    host_devices: int = _setting(
        1, _COUNT, "into how many devices a backend divides the cores of this machine"
    )
    tables_are_finite: bool = _setting(
        False,
        _BOOLEAN,
        "whether (k == id) * table[k], summed over k, reads one entry of the table, although any "
        "other that is infinite or NaN would make the sum NaN",
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
        "the number format in which parameters that state none are stored; by default what their "
        "use asks for",
    )
    half_constant_cutoff: int = _setting(
        16384,
        _INTEGER,
        "the least magnitude that a constant or literal in float16 or an 8-bit float may not have",
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
        "what happens where an operand lacks an axis that a specification names, or where nothing "
        "gives an axis of the result its size: `warn`, `error` or `allow`",
    )
    python_ops: bool = _setting(
        False,
        _BOOLEAN,
        "whether user-written operations run their Python code even where they have native code",
    )
    max_visits: int = _setting(
        1,
        _INTEGER,
        "how often a cell may be read for its computation to be repeated at every read instead of "
        "stored; 0 switches inlining off",
    )
    max_tracing_dim: int = _setting(
        5,
        _INTEGER,
        "how many iterations of each loop an estimate of visits looks at, where counting exactly "
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
    )
    disable_plugins: tuple[str, ...] = _setting(
        (), _NAMES, "plugins not to load, by entry-point name"
    )
    strict_plugins: bool = _setting(
        False, _BOOLEAN, "whether a plugin that fails to load is an error at once"
    )
    fill_limit: int = _setting(
        MOST_FILL_VALUES,
        _FILL_LIMIT,
        "how many cells `oc.reshape` writes into generated code at most; more are data",
    )
    print_decimals: int = _setting(4, _COUNT, "how many decimals printed numbers have at most")
    print_edge: int = _setting(
        4, _COUNT, "how many positions at both ends of a long axis are printed"
    )


_FORMATS: dict[str, _Format] = {each.name: each.metadata["format"] for each in fields(Settings)}
_DEFAULTS: dict[str, object] = {each.name: each.default for each in fields(Settings)}
_VARIABLES: dict[str, str] = {name: PREFIX + name.upper() for name in _FORMATS}


@dataclass(frozen=True, slots=True)
class Described:
    """One setting for a report.

    Attributes:
        name: The name in `overrides` and in configuration files.
        value: The value in force.
        source: `overrides(...)`, the name of a variable, the path of a file, or `default`.
        doc: What the setting means.
    """

    name: str
    value: object
    source: str
    doc: str


_overrides: ContextVar[Mapping[str, object]] = ContextVar("ocannl settings overrides")


def current() -> Settings:
    """Returns the settings in force here and now.

    Raises:
        SettingsError: if a configuration file or a variable holds something that is no setting.
    """
    values = {name: value for name, (value, _) in _resolve().items()}
    return Settings(**cast("dict[str, Any]", values))


def describe() -> list[Described]:
    """Returns every setting with its value, the place that the value came from, and its meaning."""
    resolved = _resolve()
    return [
        Described(each.name, *resolved[each.name], doc=each.metadata["doc"])
        for each in fields(Settings)
    ]


@contextmanager
def overrides(**values: object) -> Iterator[Settings]:
    """Puts values above every other source for the duration of a `with` statement.

    Raises:
        SettingsError: for an unknown name or an impossible value.
    """
    checked = {name: _checked(name, value, "overrides(...)") for name, value in values.items()}
    token = _overrides.set({**_overrides.get({}), **checked})
    try:
        yield current()
    finally:
        _overrides.reset(token)


def cache_directory() -> Path:
    """Returns where compiled code is kept; the directory need not exist yet."""
    chosen = current().cache_dir
    if chosen is not None:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "ocannl"


def _resolve() -> dict[str, tuple[object, str]]:
    """Returns value and source of every setting."""
    _warn_about_unknown_variables()
    resolved = {name: (value, "default") for name, value in _DEFAULTS.items()}
    found = _config_file()
    if found is not None:
        path, changed = found
        resolved.update(
            {name: (value, path) for name, value in _read_config(path, changed).items()}
        )
    for name, variable in _VARIABLES.items():
        text = os.environ.get(variable)
        if text is not None:
            resolved[name] = (_from_environment(name, variable, text), variable)
    resolved.update({name: (value, "overrides(...)") for name, value in _overrides.get({}).items()})
    return resolved


def _from_environment(name: str, variable: str, text: str) -> object:
    try:
        return _FORMATS[name].from_text(text)
    except ValueError:
        raise SettingsError(
            f"The setting `{name}` must be {_FORMATS[name].expected}.",
            found=repr(text),
            where=f"environment variable {variable}",
        ) from None


def _checked(name: str, value: object, where: str) -> object:
    """Returns the normal form of a setting's value.

    Raises:
        SettingsError: for an unknown name or an impossible value.
    """
    if name not in _FORMATS:
        raise SettingsError(
            "A setting must have a known name.", found=name, where=where, fix=_suggestion(name)
        )
    try:
        return _FORMATS[name].from_value(value)
    except ValueError:
        raise SettingsError(
            f"The setting `{name}` must be {_FORMATS[name].expected}.",
            found=repr(value),
            where=where,
        ) from None


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, _FORMATS, n=2)
    known = "the settings are " + ", ".join(sorted(_FORMATS))
    return f"did you mean {' or '.join(close)}?\n{known}" if close else known


# ----- configuration files -------------------------------------------------------------------


def _config_file() -> tuple[str, int] | None:
    """Returns the path of the nearest configuration file and when it changed; None without one."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # the working directory was deleted
        return None
    while True:
        for name in ("ocannl.toml", "pyproject.toml"):
            path = os.path.join(folder, name)
            try:
                changed = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if name == "ocannl.toml" or _has_table(path, changed):
                return path, changed
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


@lru_cache(maxsize=32)
def _has_table(path: str, changed: int) -> bool:
    """True if a pyproject.toml may have a table `[tool.ocannl]`; others are not parsed."""
    try:
        return "tool.ocannl" in Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


@lru_cache(maxsize=32)
def _read_config(path: str, changed: int) -> dict[str, object]:
    """Returns the settings of a file; `changed` makes an edited file a different cache entry."""
    import tomllib  # most programs have no configuration file

    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(
            "A configuration file must be readable TOML.", found=str(error), where=path
        ) from error
    where = path
    if os.path.basename(path) == "pyproject.toml":
        content = content.get("tool", {}).get("ocannl", {})
        where = f"{path}, table [tool.ocannl]"
    return {name: _checked(name, value, where) for name, value in content.items()}


# ----- unknown variables ---------------------------------------------------------------------

_reported: set[str] = set()


def _warn_about_unknown_variables() -> None:
    """Warns once about each variable that looks like a setting and is none."""
    for variable in [each for each in os.environ if each.startswith(PREFIX)]:
        name = variable.removeprefix(PREFIX).lower()
        if name not in _FORMATS and variable not in _reported:
            _reported.add(variable)
            warnings.warn(
                f"The environment variable {variable} is no setting: {_suggestion(name)}",
                stacklevel=4,
            )
