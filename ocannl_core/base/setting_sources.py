"""Settings from files, variables, options and Python, parsed and checked by a table of formats."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ocannl_core.base import config_files
from ocannl_core.base.errors import SettingsError
from ocannl_core.base.fast_dataclass import dataclass

PREFIX = "OCANNL_"

_OF_PROCESSES = "mpi_"
"""The variables of groups of processes, which are no settings of a compilation."""

Resolved = dict[str, tuple[object, str]]
"""Value and source of some settings."""


OPTION = "--ocannl_"
"""The beginning of command-line options that are settings; dashes stand for underscores as well."""


def setting_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are settings, `--ocannl_NAME=VALUE`, up to `--`."""
    arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return [
        each
        for each in arguments
        if "=" in each and each[: len(OPTION)].lower().replace("-", "_") == "__ocannl_"
    ]


@dataclass(frozen=True, slots=True)
class SettingFormat:
    """The format of a setting's values.

    Attributes:
        expected: A description for messages.
        from_text: A parser of the text of an environment variable; raises ValueError.
        from_value: A function from a Python or TOML value to its normal form; raises ValueError.
    """

    expected: str
    from_text: Callable[[str], object]
    from_value: Callable[[object], object]


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """Formats and defaults of all settings, by name.

    Attributes:
        formats: The formats of their values.
        defaults: The default values.
        in_trusted_files: Settings that are taken only from trusted files.
    """

    formats: Mapping[str, SettingFormat]
    defaults: Mapping[str, object]
    in_trusted_files: frozenset[str]

    def check(self, name: str, value: object, where: str) -> object:
        """Return the normal form of a setting's value; an empty text means the default.

        Raises:
            SettingsError: for an unknown name or an impossible value.
        """
        if name not in self.formats:
            raise SettingsError(
                "A setting must have a known name.",
                found=name,
                where=where,
                fix=self.suggestion(name),
            )
        if value == "":
            return self.defaults[name]
        return self._convert(name, self.formats[name].from_value, value, where)

    def from_file(self, file: config_files.ConfigFile) -> Resolved:
        """Return the settings of a file, after a warning about settings that it may not set.

        Raises:
            SettingsError: for unknown names and impossible values.
        """
        found: Resolved = {}
        for key, value in file.values.items():
            name = key.lower()
            if name in found:
                raise SettingsError("A setting must have one value.", found=key, where=file.where)
            checked = self.check(name, value, file.where)
            if name in self.in_trusted_files and not file.is_trusted:
                config_files.warn_refused(file, name, f"{PREFIX}{name.upper()}")
            else:
                found[name] = checked, file.path
        return found

    def from_environment(self) -> tuple[Resolved, dict[str, str]]:
        """Return the settings of environment variables, and the names of unknown settings by
        variable.

        Raises:
            SettingsError: for impossible values.
        """
        found: Resolved = {}
        unknown: dict[str, str] = {}
        for variable in os.environ:
            if variable[: len(PREFIX)].upper() != PREFIX:
                continue
            name = variable[len(PREFIX) :].lower()
            if name.startswith(_OF_PROCESSES):
                continue
            if name not in self.formats:
                unknown[variable] = name
            elif name not in found or variable.isupper():
                where = f"environment variable {variable}"
                found[name] = self._parse(name, os.environ[variable], where), variable
        return found, unknown

    def from_arguments(self, arguments: Sequence[str]) -> tuple[Resolved, dict[str, str]]:
        """Return the settings of command-line arguments, and the names of unknown settings by
        argument.

        Raises:
            SettingsError: for impossible values, and two of one setting.
        """
        found: Resolved = {}
        unknown: dict[str, str] = {}
        for argument in setting_arguments(arguments):
            option, _, text = argument.partition("=")
            name = option[len(OPTION) :].lower().replace("-", "_")
            where = f"command line, {option}"
            if name not in self.formats:
                unknown[option] = name
            elif name in found:
                raise SettingsError("A setting must have one value.", found=argument, where=where)
            else:
                found[name] = self._parse(name, text, where), option
        return found, unknown

    def suggestion(self, name: str) -> str:
        """Return a line with the settings that are similar to an unknown name."""
        close = difflib.get_close_matches(name, self.formats, n=2)
        known = "the settings are " + ", ".join(sorted(self.formats))
        return f"did you mean {' or '.join(close)}?\n{known}" if close else known

    def _parse(self, name: str, text: str, where: str) -> object:
        """Return the value that a text states; for an empty one the default."""
        if not text.strip():
            return self.defaults[name]
        return self._convert(name, self.formats[name].from_text, text, where)

    def _convert(
        self, name: str, convert: Callable[[Any], object], value: object, where: str
    ) -> object:
        try:
            return convert(value)
        except ValueError:
            rule = f"The setting `{name}` must be {self.formats[name].expected}."
            raise SettingsError(rule, found=repr(value), where=where) from None
