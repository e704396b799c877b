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

_NAMES = {"dim": "axis", "dims": "axis", "keepdim": "keepdims", "correction": "ddof"}
"""Names of arguments in PyTorch and NumPy, and their names here."""

_CALLS = {
    "oc.placeholder": 'oc.placeholder("x", batch=[32], output=[64])',
    "oc.param": 'oc.param("w", input=[64], output=[10])',
    "oc.declare": 'oc.declare("state", output=[10])',
    "oc.static_index": 'oc.static_index("i", range=10)',
    "oc.static_extent": 'oc.static_extent("n", max=256)',
    "oc.tensor": "oc.tensor(array, batch_axes=1)",
}
"""Examples of calls, for functions whose arguments are none of another library's."""


def explained(function: F) -> F:
    """Return a function whose wrong arguments are a UsageError."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return called(f"oc.{function.__name__}", function, args, kwargs)

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
    except TypeError as error:
        parameters = signature(function)
        try:
            parameters.bind(*args, **kwargs)
        except TypeError as mismatch:
            found = str(mismatch)
        else:
            raise
        others = [
            f"{_NAMES[each]}= for {each}="
            for each in kwargs
            if _NAMES.get(each) in parameters.parameters
        ]
        raise UsageError(
            f"{title} takes the arguments {_listed(parameters)}.",
            found=found,
            where=str(caller_location() or ""),
            fix=f"write {', '.join(others)}" if others else _CALLS.get(title, ""),
        ) from error


def _listed(parameters: Signature) -> str:
    """Return the parameters of a function as text, without annotations."""
    plain = [
        each.replace(annotation=Parameter.empty)
        for each in parameters.parameters.values()
        if each.name not in ("capture", "label")
    ]
    return str(Signature(plain))
