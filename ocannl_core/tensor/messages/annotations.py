"""Values compared with the annotations of parameters, once a call has failed.

A value fits an annotation that is not understood.
"""

from __future__ import annotations

import collections.abc
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, isclass
from itertools import islice
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union

import numpy as np

from ocannl_core.base.deferred_annotations import annotations_of, signature_of

_LONGEST = 20
"""The number of elements of a collection that are compared."""

_COLLECTIONS = (
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.Iterator,
    collections.abc.Set,
    set,
    frozenset,
    list,
)

_NOTHING = object()
"""An object that fits only annotations that exclude nothing."""

_WORDS: dict[Any, str] = {
    int: "an integer of 64 bits",
    float: "a number",
    bool: "True or False",
    str: "a string",
    NoneType: "None",
}


def annotation_of(parameter: Parameter, function: Callable[..., Any], owner: type | None) -> Any:
    """Return the annotation of a parameter as an object, `Any` if it has none.

    Names that a module imports for type checkers alone are looked up among the public ones.
    """
    note = parameter.annotation
    if not isinstance(note, str):
        return Any if note is Parameter.empty else note
    module = function.__module__
    if owner is not None and function.__name__ == "__init__":  # the fields of a data class
        declaring = [each for each in owner.__mro__ if parameter.name in annotations_of(each)]
        module = declaring[-1].__module__ if declaring else module
    try:
        return eval(note, {**_public_names(), **vars(sys.modules[module])})
    except Exception:
        return Any


def _public_names() -> dict[str, Any]:
    public = import_module("ocannl_core")
    return {name: getattr(public, name) for name in ("Context", "Routine", "Computation", "Tensor")}


def fits(value: object, note: Any) -> bool:
    """True unless an annotation excludes a value."""
    origin, parts = typing.get_origin(note), typing.get_args(note)
    if note is Any:
        return True
    if note is None or note is NoneType:
        return value is None
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in parts)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in parts)
    if isinstance(note, TypeVar):
        return note.__bound__ is None or fits(value, note.__bound__)
    if note is bool:
        return isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1))
    if note is int:
        return isinstance(value, Integral) and -(2**63) <= int(value) < 2**63
    if note is float:
        return isinstance(value, Real)
    if origin is collections.abc.Callable or note is Callable:
        return callable(value) and _takes(value, _argument_count(note))
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(parts) == 2 and parts[1] is ...:
            return all(fits(each, parts[0]) for each in value[:_LONGEST])
        return len(value) == len(parts) and all(map(fits, value, parts))
    if isclass(origin) and issubclass(origin, Mapping):
        return isinstance(value, origin) and (
            len(parts) != 2
            or all(
                fits(k, parts[0]) and fits(v, parts[1]) for k, v in islice(value.items(), _LONGEST)
            )
        )
    if origin in _COLLECTIONS:
        return _collection_fits(value, origin, parts)
    if getattr(note, "_is_runtime_protocol", False):
        return isinstance(value, note)
    if getattr(note, "_is_protocol", False):
        return all(hasattr(value, name) for name in _members(note))
    if isclass(origin):
        return isinstance(value, origin)
    if isclass(note):
        return isinstance(value, note)
    return True


def _argument_count(note: Any) -> int | None:
    """Return the number of arguments that a function is called with, None if any."""
    parameters = typing.get_args(note)[:1]
    return len(parameters[0]) if parameters and isinstance(parameters[0], list) else None


def _takes(function: Callable[..., Any], count: int | None) -> bool:
    """True unless a function cannot be called with a number of arguments."""
    try:
        signature = signature_of(function)
    except ValueError:  # functions of C may have none
        return True
    try:
        signature.bind(*[None] * (count or 0))
    except TypeError:
        return count is None
    return True


def _collection_fits(value: Any, origin: type, parts: tuple[Any, ...]) -> bool:
    if isinstance(value, str | bytes) and issubclass(Sequence, origin):
        return bool(parts) and parts[0] in (str, object, Any)
    if isinstance(value, np.ndarray):
        if value.ndim == 0 or not issubclass(Sequence, origin):
            return False
        if not value.size:
            return not parts or parts[0] in (int, float, object, Any)
    elif not isinstance(value, origin):
        return False
    if not parts or not isinstance(value, Collection):
        return True
    return all(fits(each, parts[0]) for each in islice(value, _LONGEST))


def _members(protocol: Any) -> Iterable[str]:
    """Return the names of the public methods and attributes of a protocol."""
    classes = [each for each in protocol.__mro__ if getattr(each, "_is_protocol", False)]
    return {
        name
        for each in classes
        for name in {*vars(each), *annotations_of(each)}
        if not name.startswith("_")
    }


def in_words(note: Any) -> str:
    """Return an annotation as text, such as `an integer, a sequence of integers or None`."""
    origin, parts = typing.get_origin(note), typing.get_args(note)
    if origin in (Union, UnionType):
        *first, last = dict.fromkeys(in_words(each) for each in parts)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if note is None:
        return "None"
    if isinstance(note, TypeVar):
        return in_words(note.__bound__ or Any)
    if note is Any:
        return "Any"
    if note in _WORDS:
        return _WORDS[note]
    if origin is collections.abc.Callable or note is Callable:
        arguments = _argument_count(note)
        plural = "" if arguments == 1 else "s"
        return "a function" if arguments is None else f"a function of {arguments} argument{plural}"
    if origin is tuple:
        kinds = ", ".join(in_words(each) for each in parts if each is not ...)
        count = "several" if parts[-1:] == (...,) else len(parts)
        return f"a tuple of {count}: {kinds}"
    if isclass(origin) and issubclass(origin, Iterable):
        elements = [in_words(each) for each in parts if not fits(_NOTHING, each)]
        inside = f" (each {' and '.join(elements)})" if elements else ""
        return f"{_article(origin.__name__.lower())}{inside}"
    if isclass(note) and not isinstance(note, types.GenericAlias):
        return _article(note.__name__)
    return str(note).replace("typing.", "")


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
