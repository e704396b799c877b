"""Settings under new names in files that are no programs: TOML, scripts, workflows.

Environment variables and options are replaced as whole words. Keys of TOML become dotted keys in
their table: `cuda_graphs = true`  -->  `plugins.cuda.graphs = true`. The file is parsed before and
after, so that nothing but these keys can have changed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.renamings import SETTINGS
from ocannl_core.base.setting_sources import BETWEEN, OPTION, PLUGINS, PREFIX

WORDS = {PREFIX + old.upper(): PREFIX + new.upper() for old, new in SETTINGS.items()} | {
    OPTION + old: OPTION + new for old, new in SETTINGS.items()
}
"""New names of environment variables and options by old names."""
_WORD = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, WORDS))})(?!\w)")
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"\s*([\w.-]+?)\s*=")
_TABLES = {"pyproject.toml": ("tool", "ocannl"), "ocannl.toml": ()}
"""The table of settings in each kind of file."""
_SUFFIXES = frozenset(
    {".bash", ".bat", ".cfg", ".env", ".ini", ".ps1", ".sh", ".yaml", ".yml", ".zsh"}
)
_NAMES = frozenset({".env", ".envrc", "Dockerfile", "Makefile", "justfile"})


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The text of a file with new names.

    Attributes:
        notes: Lines with old names that a person has to rewrite, with the reason.
    """

    text: str
    notes: tuple[str, ...] = ()


def has_settings(path: PurePath) -> bool:
    """Return True if a file may have settings, beside programs."""
    return path.name in _TABLES or path.name in _NAMES or path.suffix in _SUFFIXES


def new_words(text: str) -> str:
    """Return a text with new names of environment variables and options."""
    return _WORD.sub(lambda found: WORDS[found[1]], text)


def rewrite_settings(path: PurePath, text: str) -> Rewriting:
    """Return the text of a file with new names of settings.

    Raises:
        ValueError: if a TOML file cannot be parsed.
    """
    if path.name not in _TABLES:
        return Rewriting(new_words(text))
    table = _TABLES[path.name]
    before = tomllib.loads(text)
    rewritten = "".join(_with_new_keys(text, table, before))
    try:
        is_same = tomllib.loads(rewritten) == _with_new_tables(before, table)
    except tomllib.TOMLDecodeError:  # the table of the plugin stands elsewhere in the file
        is_same = False
    if not is_same:
        rewritten = text
    notes = (
        f"{'.'.join((*table, old))} is now {'.'.join((*table, *_path_of(new)))}"
        for old, new in SETTINGS.items()
        if not is_same and old in _inside(before, table)
    )
    return Rewriting(rewritten, tuple(notes))


def _with_new_keys(text: str, table: tuple[str, ...], before: Any) -> Iterator[str]:
    """Yield the lines of a file, with dotted keys for settings of plugins."""
    here: tuple[str, ...] = ()
    for line in text.splitlines(keepends=True):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            here = tuple(header[1].split("."))
        elif key is not None:
            *owner, name = key[1].split(".")
            if (*here, *owner) == table and name in SETTINGS and name in _inside(before, table):
                new = ".".join((*owner, *_path_of(SETTINGS[name])))
                line = line[: key.start(1)] + new + line[key.end(1) :]
        yield line


def _with_new_tables(content: Any, table: tuple[str, ...]) -> Any:
    """Return the parsed content with moved settings."""
    if table:
        first, *others = table
        if first not in content:
            return content
        return content | {first: _with_new_tables(content[first], tuple(others))}
    found = {name: value for name, value in content.items() if name not in SETTINGS}
    for old in content.keys() & SETTINGS.keys():
        _, plugin, name = _path_of(SETTINGS[old])
        plugins = dict(found.get(PLUGINS, {}))
        plugins[plugin] = {**plugins.get(plugin, {}), name: content[old]}
        found[PLUGINS] = plugins
    return found


def _inside(content: Any, table: tuple[str, ...]) -> Any:
    for name in table:
        content = content.get(name, {})
    return content


def _path_of(name: str) -> tuple[str, str, str]:
    """Return the keys of a setting of a plugin: `cuda__graphs`  -->  plugins, cuda, graphs."""
    plugin, _, setting = name.partition(BETWEEN)
    return PLUGINS, plugin, setting
