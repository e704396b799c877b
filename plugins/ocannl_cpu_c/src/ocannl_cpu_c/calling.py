"""Python functions that run routines, built from addresses without an extension module."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from ocannl_core.backend_api import LinkError, raise_overlap
from ocannl_cpu_c.bindings import ffi

_FUNCTIONS = {
    "size": "PySequence_Size",
    "item": "PySequence_GetItem",
    "member": "PyTuple_GetItem",
    "as_integer": "PyLong_AsLongLong",
    "as_pointer": "PyLong_AsVoidPtr",
    "error": "PyErr_Occurred",
    "call": "PyObject_CallFunctionObjArgs",
    "keep": "Py_IncRef",
    "drop": "Py_DecRef",
    "let_others_run": "PyEval_SaveThread",
    "run_again": "PyEval_RestoreThread",
}
"""The fields of `struct python` and their names in Python's stable interface."""


def set_python_functions(library: Any) -> None:
    """Pass the functions of Python that it calls to the compiled code that runs routines."""
    python = library.ocannl_python
    python.none = ffi.cast("void *", id(None))
    for field, name in _FUNCTIONS.items():
        function = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
        setattr(python, field, ffi.cast("void *", function.value))


def launcher(
    library: Any, routine: Any, name: str, raise_failure: Callable[[], None], kept: object
) -> Callable[[Sequence[int]], None]:
    """Return a function that runs a routine with the values of its static indices. A call during
    another one raises UsageError.

    Args:
        library: The compiled code that runs routines.
        routine: A pointer to the routine.
        name: The name of the routine.
        raise_failure: Raises the error of the check that failed.
        kept: The objects whose addresses the routine has; they live as long as the function.
    """
    method, address = (int(ffi.cast("intptr_t", each)) for each in (library.ocannl_method, routine))
    refusals = partial(refuse, routine.index_count), partial(raise_overlap, name), raise_failure
    receiver = (address, *refusals, routine, kept)
    made: Callable[[Sequence[int]], None] = _new_function(method, receiver, None)
    return made


def refuse(count: int, values: Sequence[int]) -> NoReturn:
    """Raise LinkError because a routine takes another number of static indices."""
    raise LinkError(f"The routine takes {count} static indices.", found=f"{len(values)} given")


_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))
