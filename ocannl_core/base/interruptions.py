"""Exceptions that are no fault of the code that they pass through."""

from __future__ import annotations

import signal
from functools import partial
from traceback import walk_tb
from types import CodeType, FunctionType, MethodType


class Overdue(BaseException):
    """The interruption of code that takes too long; `except Exception` does not catch it."""


def reraise_interruption(error: BaseException) -> None:
    """Raise an exception that is no fault of a plugin or an operation: an interruption by the user,
    by a handler of signals or by a time limit, the end of a generator, or a warning of the core
    that filters make an exception.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit | Overdue):
        raise error
    if _is_own_warning(error) or _is_of_signal_handler(error):
        raise error


def _is_own_warning(error: BaseException) -> bool:
    if not isinstance(error, Warning):
        return False
    raised_in = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    return str(raised_in[-1:]).startswith("['ocannl_core.")


def _is_of_signal_handler(error: BaseException) -> bool:
    """Return True if a handler of the program has raised it, such as one that ends the process."""
    handlers = {_code_of(signal.getsignal(each)) for each in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in walk_tb(error.__traceback__))


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):  # an instance, or no handler
        own = (vars(kind).get("__call__") for kind in type(handler).__mro__)  # no metaclass's
        handler = next(filter(None, own), None)
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
