"""Settings from files, variables, options and Python, parsed and checked by a table of formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ocannl_core.base import config_files
from ocannl_core.base.errors import SettingsError, warn_once
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.suggestions import did_you_mean
from ocannl_core.base.version import GONE

PREFIX = "OCANNL_"

BETWEEN = "__"
"""The characters between the name of a plugin and its setting, in variables, options and Python."""
PLUGINS = "plugins"
"""The table of files that holds a table for each plugin."""

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
    """The format of a setting's values."""

    expected: str
    """A description for messages."""
    from_text: Callable[[str], object]
    """A parser of the text of an environment variable; raises ValueError."""
    from_value: Callable[[object], object]
    """A function from a Python or TOML value to its normal form; raises ValueError."""


@dataclass(frozen=True, slots=True)
class GivenValue:
    """The value of a setting of a plugin in one source, unchecked."""

    value: object
    source: str
    """The source as reports name it."""
    where: str
    """The source as messages name it."""
    is_text: bool = False
    """True for a variable or an option, whose value is a text in every format."""
    file: config_files.ConfigFile | None = None
    """The file that has it."""


def key_of(plugin: str) -> str:
    """Return the name of a plugin as it stands in full names."""
    return plugin.lower().replace("-", "_").replace(".", "_")


def full_name(plugin: str, setting: str) -> str:
    """Return the name of a setting of a plugin among all settings: `cpu_c__cc`."""
    return f"{key_of(plugin)}{BETWEEN}{setting}"


def plugin_of(name: str) -> str:
    """Return the plugin in the full name of a setting; an empty text for one of the core."""
    return name.rpartition(BETWEEN)[0]


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """Formats and defaults of all settings, by name.

    Settings of plugins have full names, and a `GivenValue` in the place of their value.
    """

    formats: Mapping[str, SettingFormat]
    """The formats of their values."""
    defaults: Mapping[str, object]
    """The default values."""
    in_trusted_files: frozenset[str]
    """Settings that are taken only from trusted files."""
    moved: Mapping[str, str]
    """Full names of settings that plugins have now, by the names that they had."""

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
        for name, given in self._of_plugins(file):
            if name in found:
                raise SettingsError("A setting must have one value.", found=name, where=file.where)
            found[name] = given, file.path
        for key, value in file.values.items():
            name = key.lower()
            if name == PLUGINS:
                continue
            new = self.moved.get(name, name)
            if new in found:
                raise SettingsError("A setting must have one value.", found=key, where=file.where)
            if new is not name:
                plugin, _, setting = new.rpartition(BETWEEN)
                _warn_about_old(f"{name} of {file.where}", f"{setting} in a table for {plugin}")
                found[new] = GivenValue(value, file.path, file.where, file=file), file.path
                continue
            if isinstance(value, dict) and name not in self.formats:
                raise self._refusal_of_table(key, value, file)
            checked = self.check(name, value, file.where)
            if name in self.in_trusted_files and not file.is_trusted:
                config_files.warn_refused(file, name, f"{PREFIX}{name.upper()}")
            else:
                found[name] = checked, file.path
        return found

    def _refusal_of_table(
        self, path: str, table: Mapping[str, object], file: config_files.ConfigFile
    ) -> SettingsError:
        """Return the error about a table of a file that is not the one for plugins."""
        while len(table) == 1 and isinstance((inner := next(iter(table.values()))), dict):
            path, table = f"{path}.{next(iter(table))}", inner
        outer = "tool.ocannl." if file.is_project else ""
        place = "in the table [tool.ocannl]" if file.is_project else "above all tables"
        fix = f"remove the header [{outer}{path}], and write its settings above all other tables"
        if self.formats.keys().isdisjoint(map(str.lower, table)):
            plugin = path.rpartition(".")[2]
            fix += f"\nif {plugin} is a plugin, its table is [{outer}{PLUGINS}.{plugin}]"
        return SettingsError(
            f"A file has the settings of the core {place}, and the settings of a plugin in "
            f"[{outer}{PLUGINS}.NAME].",
            found=f"[{outer}{path}]",
            where=file.path,
            fix=fix,
        )

    def _of_plugins(self, file: config_files.ConfigFile) -> Iterator[tuple[str, GivenValue]]:
        """Yield the settings of the plugins' tables in a file by full name."""
        tables = next((v for key, v in file.values.items() if key.lower() == PLUGINS), {})
        tables = tables if isinstance(tables, dict) else {PLUGINS: tables}
        for plugin, table in tables.items():
            if not isinstance(table, dict):
                raise SettingsError(
                    "The settings of a plugin are a table, [plugins.NAME].",
                    found=f"{plugin} = {table!r}",
                    where=file.where,
                    fix="in a pyproject.toml the table is [tool.ocannl.plugins.NAME]",
                )
            where = f"{file.where}, plugins.{plugin}"
            for key, value in table.items():
                if BETWEEN in key:  # no plugin can declare it
                    rule = "The name of a setting in a table of a plugin has no two underscores."
                    raise SettingsError(rule, found=key, where=where)
                given = GivenValue(value, file.path, where, file=file)
                yield full_name(plugin, key.lower()), given

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
            where = f"environment variable {variable}"
            new = self.moved.get(name, name)
            if new is not name:
                _warn_about_old(where, PREFIX + new.upper())
            if plugin_of(new):
                given = GivenValue(os.environ[variable], variable, where, is_text=True)
                if new not in found or (new is name and variable.isupper()):
                    found[new] = given, variable
            elif name not in self.formats:
                unknown[variable] = name
            elif name not in found or variable.isupper():
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
            new = self.moved.get(name, name)
            if new in found:
                raise SettingsError("A setting must have one value.", found=argument, where=where)
            if new is not name:
                _warn_about_old(where, OPTION + new)
            if plugin_of(new):
                found[new] = GivenValue(text, option, where, is_text=True), option
            elif name not in self.formats:
                unknown[option] = name
            else:
                found[name] = self._parse(name, text, where), option
        return found, unknown

    def from_python(self, values: Mapping[str, object], source: str) -> Resolved:
        """Return the settings of keyword arguments.

        Raises:
            SettingsError: for an unknown name or an impossible value.
        """
        found: Resolved = {}
        for name, value in values.items():
            new = self.moved.get(name, name)
            if new is not name:
                _warn_about_old(f"{name}= of {source}", f"{new}=")
            if plugin_of(new):
                found[new] = GivenValue(value, source, source), source
            else:
                found[name] = self.check(name, value, source), source
        return found

    def suggestion(self, name: str) -> str:
        """Return the settings that are similar to an unknown name, or else the names of all."""
        known = "the settings are " + ", ".join(sorted(self.formats))
        return did_you_mean(name, self.formats, 2) or known

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


def _warn_about_old(source: str, new: str) -> None:
    """Warn once about a setting under the name that it had before a plugin had it."""
    text = f"The setting of {source} is one of a plugin now: write {new}. The old name works "
    warn_once(text + f"until version {GONE}.", FutureWarning)
