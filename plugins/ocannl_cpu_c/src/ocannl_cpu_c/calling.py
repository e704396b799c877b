"""Functions of Python that run routines, made of addresses: no extension module is compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from ocannl_core.errors import LinkError
from ocannl_core.exclusive import raise_overlap
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
"""The fields of `struct python` and what they are called in Python's stable interface."""


def introduce(library: Any) -> None:
    """Gives the compiled code that runs routines what it calls of Python."""
    python = library.ocannl_python
    python.none = ffi.cast("void *", id(None))
    for field, name in _FUNCTIONS.items():
        function = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
        setattr(python, field, ffi.cast("void *", function.value))


def launcher(
    library: Any, routine: Any, name: str, kept: object
) -> Callable[[Sequence[int]], None]:
    """Returns a function that runs a routine with the values of its static indices. A call while
    another one runs raises UsageError.

    Args:
        library: The compiled code that runs routines.
        routine: A pointer to the routine.
        name: What the routine is called.
        kept: What lives as long as the function: all that the routine has addresses of.
    """
    method, address = (int(ffi.cast("intptr_t", each)) for each in (library.ocannl_method, routine))
    refusals = partial(refuse, routine.index_count), partial(raise_overlap, name)
    receiver = (address, *refusals, routine, kept)
    made: Callable[[Sequence[int]], None] = _new_function(method, receiver, None)
    return made


def refuse(count: int, values: Sequence[int]) -> NoReturn:
    """Raises LinkError because a routine takes another number of static indices."""
    raise LinkError(f"The routine takes {count} static indices.", found=f"{len(values)} given")


_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))
