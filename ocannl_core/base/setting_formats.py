"""The formats of settings: parsers of texts, and checks of values."""

from __future__ import annotations

import os
from typing import cast

from ocannl_core.base.setting_sources import SettingFormat

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


MOST_BYTES = 1 << 63
"""Numbers of bytes are less than this: no address space has more."""


def _read_bytes(text: str) -> object:
    number = text.strip().upper().removesuffix("B")
    power = "KMG".find(number[-1:]) + 1 if number[-1:] else 0
    return _check_bytes(int(number[:-1] if power else number) * 1024**power)


def _check_bytes(value: object) -> object:
    if isinstance(value, str):
        return _read_bytes(value)
    if value is None:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_BYTES:
        return value
    raise ValueError


def _check_count(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError


BOOLEANS = {"1": True, "true": True, "yes": True, "on": True}
BOOLEANS |= {"0": False, "false": False, "no": False, "off": False}


def _read_boolean(text: str) -> object:
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
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


SCHEDULES = ("default", "none")
"""The values of `schedule`."""


ACCUMULATIONS = ("exact", "float32", "fast")
"""The values of `accumulation`; each allows all that the previous ones do."""


PROFILES: dict[str, dict[str, object]] = {
    "reproducible": {
        "schedule": "none",
        "accumulation": "exact",
        "contract": False,
        "tune": "off",
        "tune_placements": False,
        "tables_are_finite": False,
    },
    "performance": {
        "schedule": "default",
        "accumulation": "float32",
        "contract": True,
        "tune": "search",
        "tune_placements": True,
    },
    "approximate": {
        "schedule": "default",
        "accumulation": "fast",
        "contract": True,
        "tune": "search",
        "tune_placements": True,
        "tables_are_finite": True,
    },
}
"""The values of `profile`, with the settings that each stands for."""

TUNING = ("off", "cached", "search")
"""The values of `tune`."""


MISSING_AXES = ("warn", "error", "allow")
"""The values of `missing_axes`."""


def _check_seconds(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError


def _read_rounds(text: str) -> object:
    return _check_rounds(int(text))


def _check_rounds(value: object) -> object:
    if _check_integer(value) in THREEFRY_ROUNDS:
        return value
    raise ValueError


def _one_of(values: tuple[str, ...], *, is_optional: bool = False) -> SettingFormat:
    """Return the format of one of several names, which are case-insensitive in variables."""

    def check(value: object) -> object:
        if value in values or (is_optional and value is None):
            return value
        raise ValueError

    return SettingFormat("one of " + ", ".join(values), lambda text: check(text.lower()), check)


GUARDS = ("off", "nan", "infinite")
"""The values of `guard_values`."""

MOST_LOG_LEVEL = 3
"""The greatest `log_runs`."""


def _check_log_level(value: object) -> object:
    if _check_integer(value) in range(MOST_LOG_LEVEL + 1):
        return value
    raise ValueError


SCHEDULE = _one_of(SCHEDULES)
ACCUMULATION = _one_of(ACCUMULATIONS)
TUNING_FORMAT = _one_of(TUNING)
MISSING_AXES_FORMAT = _one_of(MISSING_AXES)
PROFILE = _one_of(tuple(PROFILES), is_optional=True)
SECONDS = SettingFormat(
    "a positive number of seconds", lambda text: _check_seconds(float(text)), _check_seconds
)
GUARD = _one_of(GUARDS)
LOG_LEVEL = SettingFormat(
    f"an integer from 0 to {MOST_LOG_LEVEL}",
    lambda text: _check_log_level(int(text)),
    _check_log_level,
)
FILE = SettingFormat("the path of a file, in UTF-8", _check_directory, _check_directory)
TEXT = SettingFormat("a text", _check_text, _check_text)
DIRECTORY = SettingFormat("the path of a directory, in UTF-8", _check_directory, _check_directory)
PROCESSOR_NAME = SettingFormat("the name of a processor", _check_processor, _check_processor)
INTEGER = SettingFormat("an integer", int, _check_integer)
FILL_LIMIT = SettingFormat(
    f"an integer from 0 to {MOST_FILL_VALUES}",
    lambda text: _check_fill_limit(int(text)),
    _check_fill_limit,
)
COUNT = SettingFormat("a positive integer", lambda text: _check_count(int(text)), _check_count)
OPTIONAL_COUNT = SettingFormat(
    "a positive integer",
    lambda text: _check_count(int(text)),
    lambda value: None if value is None else _check_count(value),
)
BYTES = SettingFormat(
    "a number of bytes below 2**63, or one with K, M or G for powers of 1024",
    _read_bytes,
    _check_bytes,
)
BOOLEAN = SettingFormat("true or false", _read_boolean, _check_boolean)
NAMES = SettingFormat("a list of names", _read_names, _check_names)
TRUSTED = SettingFormat(
    "a list of absolute paths", lambda text: _check_trusted(_read_names(text)), _check_trusted
)
OPTIONAL_NAMES = SettingFormat("a list of names", _read_names, _check_optional_names)
FLOAT_FORMAT = _one_of(FLOAT_FORMATS)
OPTIONAL_FLOAT_FORMAT = _one_of(FLOAT_FORMATS, is_optional=True)
ROUNDS = SettingFormat("20 or 12", _read_rounds, _check_rounds)
