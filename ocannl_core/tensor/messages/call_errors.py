"""Errors about arguments that a function does not take, with the names that other libraries give
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, cast

from ocannl_core.errors import UsageError
from ocannl_core.origin import caller_location

F = TypeVar("F", bound=Callable[..., Any])

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
    "oc.nn.softmax": 'oc.nn.softmax("...|... => ...|0", x), or oc.softmax(x, axis=-1)',
}
"""Examples of calls, for functions whose arguments are none of another library's."""


def explained(function: F) -> F:
    """Return a function whose wrong arguments are a UsageError."""
    module = "oc.nn" if function.__module__.startswith("ocannl_core.nn.") else "oc"

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return called(f"{module}.{function.__name__}", function, args, kwargs)

    return cast(F, wrapper)


def called(
    title: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the result of a function.

    Raises:
        UsageError: if it does not take these arguments.
    """
    try:
        return function(*args, **kwargs)
    except TypeError:
        check_arguments(title, signature(function), args, kwargs)
        raise


def check_arguments(
    title: str, parameters: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise UsageError unless a function takes these arguments.

    Args:
        title: The function, as users write it.
        parameters: Its parameters.
        args: The positional arguments.
        kwargs: The others.
    """
    try:
        parameters.bind(*args, **kwargs)
    except TypeError as mismatch:
        others = [
            f"{_NAMES[each]}= for {each}="
            for each in kwargs
            if _NAMES.get(each) in parameters.parameters
        ]
        raise UsageError(
            f"{title} takes the arguments {_listed(parameters)}.",
            found=str(mismatch),
            where=str(caller_location() or ""),
            fix=f"write {', '.join(others)}" if others else _CALLS.get(title, ""),
        ) from None


def _listed(parameters: Signature) -> str:
    """Return the parameters of a function as text, without annotations."""
    plain = [
        each.replace(annotation=Parameter.empty)
        for each in parameters.parameters.values()
        if each.name not in ("capture", "label")
    ]
    return str(Signature(plain))
