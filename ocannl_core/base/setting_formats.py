"""The formats of settings: parsers of texts, and checks of values."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

from ocannl_core.base.setting_sources import SettingFormat

FLOAT_FORMATS = ("float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn")
"""The values of `default_dtype` and `param_dtype`."""

MOST_FILL_VALUES = 16
"""The greatest `fill_limit`: a longer list of values must be an array."""

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


def _integer(
    expected: str, is_allowed: Callable[[int], bool] = lambda number: True
) -> SettingFormat:
    """Return the format of integers that satisfy a condition."""

    def check(value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool) and is_allowed(value):
            return value
        raise ValueError

    return SettingFormat(expected, lambda text: check(int(text)), check)


def one_of(*values: str) -> SettingFormat:
    """Return the format of one of several names, which are case-insensitive in variables."""

    def check(value: object) -> object:
        if value in values:
            return value
        raise ValueError

    return SettingFormat("one of " + ", ".join(values), lambda text: check(text.lower()), check)


def optional(form: SettingFormat) -> SettingFormat:
    """Return the format of values that may be None."""
    return SettingFormat(
        form.expected,
        form.from_text,
        lambda value: None if value is None else form.from_value(value),
    )


def checked(form: SettingFormat, is_allowed: Callable[[Any], bool], expected: str) -> SettingFormat:
    """Return the format of those values of another format that satisfy a condition."""

    def check(value: object) -> object:
        if is_allowed(value):
            return value
        raise ValueError

    return SettingFormat(
        expected or form.expected,
        lambda text: check(form.from_text(text)),
        lambda value: check(form.from_value(value)),
    )


def _check_number(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError


def _check_text(value: object) -> object:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, os.PathLike):
        return str(value)
    raise ValueError


def _check_path(value: object) -> object:
    path = _check_text(value)
    if isinstance(path, str):
        path.encode()  # a UnicodeEncodeError is a ValueError
        if "\0" in path:
            raise ValueError
    return path


def _check_seconds(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError


def _read_bytes(text: str) -> object:
    number = text.strip().upper().removesuffix("B")
    power = "KMG".find(number[-1:]) + 1 if number[-1:] else 0
    return _BYTES.from_value(int(number[:-1] if power else number) * 1024**power)


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


def _check_trusted(value: object) -> object:
    paths = cast("tuple[str, ...]", _check_names(value))
    if all(os.path.isabs(os.path.expanduser(path)) for path in paths):
        return paths
    raise ValueError


_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True}
_BOOLEANS |= {"0": False, "false": False, "no": False, "off": False}

# no address space has 2**63 bytes
_BYTES = optional(
    _integer(
        "a number of bytes below 2**63, or one with K, M or G for powers of 1024",
        lambda number: 0 <= number < 1 << 63,
    )
)

TEXT = SettingFormat("a text", _check_text, _check_text)
FILE = SettingFormat("the path of a file, in UTF-8", _check_path, _check_path)
DIRECTORY = SettingFormat("the path of a directory, in UTF-8", _check_path, _check_path)
BOOLEAN = SettingFormat("true or false", _read_boolean, _check_boolean)
INTEGER = _integer("an integer")
SEED = _integer("an integer of 64 bits", range(-(1 << 63), 1 << 64).__contains__)
COUNT = _integer("a positive integer", lambda number: number > 0)
NATURAL = _integer("an integer of at least 0", lambda number: number >= 0)
OPTIONAL_COUNT = optional(COUNT)
FILL_LIMIT = _integer(
    f"an integer from 0 to {MOST_FILL_VALUES}", range(MOST_FILL_VALUES + 1).__contains__
)
LOG_LEVEL = _integer("an integer from 0 to 3", range(4).__contains__)
ROUNDS = _integer("20 or 12", (20, 12).__contains__)
BYTES = SettingFormat(
    _BYTES.expected,
    _read_bytes,
    lambda value: _read_bytes(value) if isinstance(value, str) else _BYTES.from_value(value),
)
NUMBER = SettingFormat("a number", lambda text: float(text), _check_number)
SECONDS = SettingFormat(
    "a positive number of seconds", lambda text: _check_seconds(float(text)), _check_seconds
)
NAMES = SettingFormat("a list of names", _read_names, _check_names)
OPTIONAL_NAMES = optional(NAMES)
TRUSTED = SettingFormat(
    "a list of absolute paths", lambda text: _check_trusted(_read_names(text)), _check_trusted
)
SCHEDULE = one_of("default", "none")
ACCUMULATION = one_of("exact", "float32", "fast")  # each allows all that the previous ones do
TUNING = one_of("off", "cached", "search")
MISSING_AXES = one_of("warn", "error", "allow")
GUARD = one_of("off", "nan", "infinite")
PROFILE = optional(one_of(*PROFILES))
FLOAT_FORMAT = one_of(*FLOAT_FORMATS)
OPTIONAL_FLOAT_FORMAT = optional(FLOAT_FORMAT)
