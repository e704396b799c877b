"""Public names of version 0.1 that have another spelling: the table behind warnings and `migrate`.

A name works under its old spelling until version 0.3, with a warning at the line of its use.
`ocannl migrate` rewrites programs from the same table. Modules have a table of their own, `moved`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from ocannl_core.base.errors import printable
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import is_inside

P = ParamSpec("P")
R = TypeVar("R")

GONE = "0.3"
"""The version in which old names stop working."""

NAMES: dict[str, str] = {
    # the names of NumPy, the array API standard and PyTorch, where these agree
    "oc.bool_": "oc.bool",
    "oc.sub": "oc.subtract",
    "oc.mul": "oc.multiply",
    "oc.div": "oc.divide",
    "oc.neg": "oc.negative",
    "oc.mod": "oc.remainder",
    "oc.power": "oc.pow",
    "oc.recip": "oc.reciprocal",
    "oc.recip_sqrt": "oc.rsqrt",
    # parts of other operations, and the machinery of random numbers
    **{
        f"oc.{name}": f"oc.primitives.{name}"
        for name in (
            "first",
            "second",
            "identity",
            "interleave",
            "offsets",
            "outer_sum",
            "relu_gate",
            "sat01",
            "sat01_gate",
            "tropical",
        )
    },
    **{
        f"oc.{name}": f"oc.random.{new}"
        for name, new in {
            "random_words": "words",
            "threefry4x32": "threefry4x32",
            "uint4x32": "uint4x32",
            "uniform_of": "uniform_of",
            "word": "word",
        }.items()
    },
    "oc.mapped": "oc.data.memmap",
    "oc.unchanged_roots": "oc.train.unchanged_roots",
    # one spelling
    "oc.train.Optimiser": "oc.train.Optimizer",
    "oc.backend_api.launches.CompilerVectorisation": (
        "oc.backend_api.launches.CompilerVectorization"
    ),
    "oc.backend_api.rendering.NotVectorisedError": "oc.backend_api.rendering.NotVectorizedError",
}
"""New names of values, functions and classes, by old names; their arguments are the same."""

METHODS: dict[str, dict[str, str]] = {"oc.train.Optimizer": {"minimise": "minimize"}}
"""New names of methods, by classes and old names."""

KEYWORDS: dict[str, dict[str, str]] = {
    "oc.clip": {"low": "min", "high": "max"},
    "oc.nn.batch_norm": {"axes": "shape"},
    "oc.nn.resize": {"axes": "axis"},
}
"""New names of keyword arguments, by functions and old names."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A function that another one replaces, with other arguments.

    Attributes:
        parameters: The parameters of the function; those after a star are keywords, which are
            passed on under their own names.
        call: The call in its place, with a parameter in braces for the text of its argument.
        place: The module that has the function until it is gone; empty if it is gone, because its
            name has another meaning.
    """

    parameters: tuple[str, ...]
    call: str
    place: str = ""


CALLS: dict[str, Rewritten] = {
    "oc.transpose": Rewritten(("x",), "{x}.T"),
    "oc.nn.mean": Rewritten(
        ("spec", "x"), "oc.mean({x}, logic={spec})", "ocannl_core.nn.statistics"
    ),
    "oc.nn.softmax": Rewritten(
        ("spec", "x", "*", "scale"), "oc.softmax({x}, logic={spec})", "ocannl_core.nn.statistics"
    ),
    "oc.nn.variance": Rewritten(
        ("spec", "x", "center"),
        "oc.mean(oc.square({x} - {center}), logic={spec})",
        "ocannl_core.nn.statistics",
    ),
}
"""Functions that another one replaces, by name."""


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
