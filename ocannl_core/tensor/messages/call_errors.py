"""Errors about arguments: the boundary between users and the package.

A public module holds each of its functions with a boundary around it: an exception that leaves the
function is compared with the arguments of the call. If an argument does not fit the annotation of
its parameter, that is the error reported. A call that succeeds pays for one more call of Python and
nothing else. Calls from inside the package do not pass the boundary: modules import functions from
where they are defined.
"""

from __future__ import annotations

import inspect
import re
import reprlib
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import wraps
from inspect import Parameter, Signature, isclass, isfunction, signature
from types import TracebackType
from typing import Any

from ocannl_core.base.errors import OcannlError, UsageError
from ocannl_core.base.origin import is_inside
from ocannl_core.tensor.messages.annotations import annotation_of, fits, in_words

_NAMES = {
    "dim": "axis",
    "dims": "axis",
    "keepdim": "keepdims",
    "correction": "ddof",
    "lr": "learning_rate",
    "p": "rate",
    "label_smoothing": "smoothing",
    "ignore_index": "ignore",
    "kernel_size": "window",
    "low": "min",
    "high": "max",
    "a_min": "min",
    "a_max": "max",
}
"""Names of arguments in PyTorch and NumPy, and their names here."""

_CALLS = {
    "oc.placeholder": 'oc.placeholder("x", batch=[32], output=[64])',
    "oc.param": 'oc.param("w", input=[64], output=[10])',
    "oc.declare": 'oc.declare("state", output=[10])',
    "oc.static_index": 'oc.static_index("i", range=10)',
    "oc.static_extent": 'oc.static_extent("n", max=256)',
    "oc.tensor": "oc.tensor(array, batch_axes=1)",
    "oc.nn.dropout": "oc.nn.dropout(x, rate=0.1)",
}
"""Examples of calls, for functions whose arguments have no counterpart in another library."""


_BOUNDARY = "_ocannl_boundary"
_METHODS = frozenset({"__init__", "__call__", "__getitem__", "__setitem__", "__contains__"})


def guard(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Put the boundary around the functions and the methods of the classes of a public module."""
    module = namespace["__name__"].replace("ocannl_core", "oc", 1)
    for name in names:
        value = namespace.get(name)
        if not str(getattr(value, "__module__", "")).startswith("ocannl_core."):
            continue
        if isfunction(value):
            namespace[name] = bounded(f"{module}.{name}", value)
        elif isclass(value) and not issubclass(value, Exception):
            _guard_class(value)


def _guard_class(owner: type) -> None:
    for base in owner.__mro__:
        if not base.__module__.startswith("ocannl_core.") or getattr(base, "_is_protocol", False):
            continue
        for name, value in list(vars(base).items()):
            if isfunction(value) and (name in _METHODS or not name.startswith("_")):
                setattr(base, name, bounded(f"{base.__name__}.{name}", value))
            elif name == "__new__" and isinstance(value, staticmethod):
                base.__new__ = bounded(base.__name__, value.__func__)  # type: ignore[method-assign]


def bounded(title: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose exceptions name the argument that does not fit, if one does not."""
    if hasattr(function, _BOUNDARY):
        return function

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            refuse(error, title, function, args, kwargs)
            raise

    setattr(wrapper, _BOUNDARY, True)
    return wrapper


def called(
    title: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the result of a function, behind the boundary."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        refuse(error, title, function, args, kwargs)
        raise


def refuse(
    error: Exception,
    title: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Raise the error about the first argument that does not fit its parameter, after a call has
    failed. Errors that explain themselves, and errors from code of the user, are left alone.
    """
    if isinstance(error, OcannlError) or _left_the_package(error.__traceback__):
        return
    parameters = signature(function)
    if function.__name__ == "__init__" and args:
        title = type(args[0]).__name__
    try:
        bound = parameters.bind(*args, **kwargs)
    except TypeError as mismatch:
        raise _mismatch(title, parameters, kwargs, mismatch) from None
    _check(title, function, bound.arguments, type(args[0]) if args else None)


def check_fields(value: Any) -> None:
    """Refuse fields of a data class, which are used later, that do not fit their annotations."""
    owner = type(value)
    arguments = {each.name: getattr(value, each.name) for each in fields(owner) if each.init}
    _check(owner.__name__, owner.__init__, arguments, owner)


def _check(
    title: str, function: Callable[..., Any], arguments: Mapping[str, Any], owner: type | None
) -> None:
    parameters = signature(function).parameters
    for name, given in arguments.items():
        kind = parameters[name].kind
        values = {name: given}
        if kind is Parameter.VAR_POSITIONAL:
            values = {f"{name}[{number}]": each for number, each in enumerate(given)}
        elif kind is Parameter.VAR_KEYWORD:
            values = given
        note = annotation_of(parameters[name], function, owner)
        for text, value in values.items():
            if not fits(value, note):
                raise UsageError.at_caller(
                    f"{title} takes {in_words(note)} as {name}.",
                    found=f"{text}={_written(value)}, of type {type(value).__name__}",
                    fix=_description((function, *inspect.getmro(owner or object)), name),
                ) from None


def _left_the_package(traceback: TracebackType | None) -> bool:
    """True if a function of the user was running."""
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_inside(code) and not code.co_filename.startswith(("<", *libraries)):
            return True
        traceback = traceback.tb_next
    return False


def _mismatch(
    title: str, parameters: Signature, kwargs: dict[str, Any], mismatch: TypeError
) -> UsageError:
    others = [
        f"{_NAMES[each]}= for {each}="
        for each in kwargs
        if _NAMES.get(each) in parameters.parameters
    ]
    listed = [
        each.replace(annotation=Parameter.empty)
        for each in parameters.parameters.values()
        if each.name not in ("capture", "label", "self")
    ]
    return UsageError.at_caller(
        f"{title} takes the arguments {Signature(listed)}.",
        found=str(mismatch),
        fix=f"write {', '.join(others)}" if others else _CALLS.get(title, ""),
    )


def _written(value: object) -> str:
    with suppress(Exception):
        return reprlib.repr(value)
    return "an object that cannot be printed"


def _description(described: Iterable[object], name: str) -> str:
    """Return the description of a parameter in the first docstring that has one, or nothing."""
    for each in described:
        text = getattr(each, "__doc__", None)
        entry = re.compile(rf"^    {name}: (.*(?:\n {{8}}.*)*)", re.MULTILINE)
        found = entry.search(inspect.cleandoc(text)) if isinstance(text, str) else None
        if found is not None:
            return f"{name}: {' '.join(found[1].split())}"
    return ""
