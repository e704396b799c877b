"""Values of public names by their old spellings, with a warning at the line of their use."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from ocannl_core.base.errors import printable
from ocannl_core.base.origin import is_inside
from ocannl_core.base.renamings import CALLS, KEYWORDS, METHODS, NAMES
from ocannl_core.base.version import GONE

P = ParamSpec("P")
R = TypeVar("R")


def old_name(title: str) -> tuple[str, Callable[[], Any]] | None:
    """Return the spelling that replaces an old name of a public module, and a function that
    returns its value; None for other names.
    """
    if (new := NAMES.get(title)) is not None:
        return new, lambda: value_of(new)
    replaced = CALLS.get(title)
    if replaced is None or not replaced.place:
        return None
    return replaced.call, lambda: getattr(import_module(replaced.place), title.rpartition(".")[2])


def find_old_names(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that finds values by their old names."""
    title = module.replace("ocannl_core", "oc", 1)

    def load(name: str) -> Any:
        if (renamed := old_name(f"{title}.{name}")) is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new, value = renamed
        warn_of_old(f"{title}.{name}", new)
        return value()

    return load


def public_title(title: str) -> str:
    """Return the spelling of a public name; the names of operations are parts of printed code."""
    return NAMES.get(title, title)


def value_of(title: str) -> Any:
    """Return the value of a public name."""
    value: Any = sys.modules["ocannl_core"]
    for part in title.split(".")[1:]:
        value = getattr(value, part)
    return value


def warn_of_old(old: str, new: str) -> None:
    """Warn about an old spelling at the line of the user, once for a line."""
    frame = sys._getframe(1)
    while is_inside(frame.f_code) and frame.f_back is not None:
        frame = frame.f_back
    warnings.warn_explicit(
        printable(
            f"{old} is now {new.translate(_NO_BRACES)}. The old name works until version {GONE}; "
            "`ocannl migrate` rewrites programs."
        ),
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


_NO_BRACES = str.maketrans("", "", "{}")


def with_new_keywords(title: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call under their new names, with warnings."""
    renamed = KEYWORDS.get(title)
    if renamed is None or keywords.keys().isdisjoint(renamed):
        return keywords
    found = dict(keywords)
    for old, new in renamed.items():
        if old in found and new not in found:
            warn_of_old(f"{old}= of {title}", f"{new}=")
            found[new] = found.pop(old)
    return found


def takes_old_keywords(title: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a function whose keyword arguments have been renamed."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapper(*args: P.args, **keywords: P.kwargs) -> R:
            found: Any = with_new_keywords(title, keywords)
            return function(*args, **found)

        return wrapper

    return decorate


def old_method(title: str, old: str) -> Callable[..., Any]:
    """Return the method of a class under its old name."""
    new = METHODS[title][old]

    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        warn_of_old(f"{title}.{old}", new)
        return getattr(self, new)(*args, **keywords)

    method.__name__ = old
    method.__doc__ = f"The name of `{new}` until version {GONE}."
    return method
