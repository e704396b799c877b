"""Settings that plugins declare: their fields, and their values among all that were given.

    @dataclass(frozen=True, slots=True)
    class ChipSettings:
        clock: int = setting(800, "the clock of the chip in MHz", affects_code=False)

A file may have settings of plugins that are not installed, so a value is kept as it was given, and
checked against the declaration of its plugin once there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any

from ocannl_core.base import config_files
from ocannl_core.base import setting_formats as formats
from ocannl_core.base.errors import SettingsError, warn_once
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.setting_sources import (
    BETWEEN,
    PREFIX,
    GivenValue,
    SettingFormat,
    full_name,
    key_of,
    plugin_of,
)
from ocannl_core.base.suggestions import did_you_mean, join_lines

_FORMATS: dict[type, SettingFormat] = {
    bool: formats.BOOLEAN,
    int: formats.INTEGER,
    float: formats.NUMBER,
    str: formats.TEXT,
    tuple: formats.NAMES,
}
_METADATA = "ocannl setting"


@dataclass(frozen=True, slots=True)
class _Declaration:
    """A setting of a plugin; `setting` has the meaning of the attributes."""

    default: object
    form: SettingFormat
    doc: str
    affects_code: bool
    needs_trust: bool


def setting(
    default: object,
    doc: str,
    *,
    kind: type | None = None,
    choices: Sequence[str] = (),
    check: Callable[[Any], bool] | None = None,
    expected: str = "",
    affects_code: bool = True,
    needs_trust: bool = False,
) -> Any:
    """Return the field of a setting, in a dataclass of the settings of a plugin.

    Args:
        default: The default value; None for a setting that may be absent, with a `kind`.
        doc: The documentation, which `ocannl config` prints.
        kind: `bool`, `int`, `float`, `str`, or `tuple` for a list of names; by default the type
            of the default value.
        choices: The only values that a text may have.
        check: A condition on the value, with a description of such values in `expected`.
        affects_code: True if generated code, or the speed of compiled code, may depend on it: its
            value is part of the keys of caches.
        needs_trust: True if it names commands or directories: a project's file may set it only
            in a directory that the user trusts.
    """
    chosen = kind or type(default)
    if chosen not in _FORMATS:
        raise TypeError(f"a setting is of type {_kinds()}, and not {chosen.__name__}")
    form = formats.one_of(*choices) if choices else _FORMATS[chosen]
    if check is not None:
        form = formats.checked(form, check, expected)
    if default is None:
        form = formats.optional(form)
    declaration = _Declaration(default, form, doc, affects_code, needs_trust)
    return field(default=default, metadata={_METADATA: declaration})


def _kinds() -> str:
    return ", ".join(each.__name__ for each in _FORMATS)


def violation_of_settings(declared: object) -> str:
    """Return why a plugin's `OCANNL_SETTINGS` declares no settings; an empty text if it does."""
    if not isinstance(declared, type) or not is_dataclass(declared):
        return f"its OCANNL_SETTINGS must be a dataclass, and is {declared!r}"
    for each in fields(declared):
        if _METADATA not in each.metadata:
            return f"the field {each.name} of its OCANNL_SETTINGS must be made by `setting`"
        if BETWEEN in each.name or each.name != each.name.lower() or each.name.startswith("_"):
            return f"the name of a setting is an identifier in lower case, and not {each.name}"
    return ""


@dataclass(frozen=True, slots=True)
class PluginTable:
    """The settings of one plugin."""

    plugin: str
    """The name of its entry point."""
    declared: type[Any]
    """The dataclass that declares them."""

    def declarations(self) -> Mapping[str, _Declaration]:
        """Return the declarations by name."""
        return {each.name: each.metadata[_METADATA] for each in fields(self.declared)}

    def resolved(self, given: Mapping[str, Sequence[GivenValue]]) -> dict[str, tuple[object, str]]:
        """Return value and source of every setting.

        Args:
            given: The values of all sources by full name, the strongest source last.

        Raises:
            SettingsError: for an impossible value, and for an unknown name in a file or in Python.
        """
        found: dict[str, tuple[object, str]] = {}
        known = self.declarations()
        for name, each in known.items():
            values = [
                (checked, one.source)
                for one in given.get(full_name(self.plugin, name), ())
                for checked in self._accepted(name, each, one)
            ]
            found[name] = values[-1] if values else (each.default, "default")
        for name, values_of in given.items():
            if plugin_of(name) == key_of(self.plugin):
                for one in values_of:
                    self.check_name(name.rpartition(BETWEEN)[2], one)
        return found

    def check_name(self, name: str, given: GivenValue) -> None:
        """Check that there is a setting of this name: one that a file or Python states must exist,
        another one is a warning.
        """
        known = self.declarations()
        if name in known:
            return
        listed = f"the settings of {self.plugin} are {', '.join(sorted(known)) or 'none'}"
        fix = join_lines(did_you_mean(name, known, 2), listed)
        if given.is_text:
            text = f"{given.where} is no setting of the plugin {self.plugin}: {fix}"
            warn_once("; ".join(text.splitlines()))
            return
        raise SettingsError(
            f"A setting of the plugin {self.plugin} must have a known name.",
            found=name,
            where=given.where,
            fix=fix,
        )

    def _accepted(
        self, name: str, declaration: _Declaration, given: GivenValue
    ) -> Iterator[object]:
        """Yield the normal form of a value, unless its file may not set it."""
        value, form = given.value, declaration.form
        if isinstance(value, str) and not value.strip():
            yield declaration.default
            return
        try:
            checked = form.from_text(str(value)) if given.is_text else form.from_value(value)
        except (ValueError, TypeError):
            raise SettingsError(
                f"The setting `{name}` of the plugin {self.plugin} must be {form.expected}.",
                found=repr(value),
                where=given.where,
            ) from None
        if declaration.needs_trust and given.file is not None and not given.file.is_trusted:
            variable = PREFIX + full_name(self.plugin, name).upper()
            config_files.warn_refused(given.file, f"plugins.{self.plugin}.{name}", variable)
            return
        yield checked
