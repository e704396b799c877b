"""Annotations of functions and classes, also those that name types for type checkers alone.

As of Python 3.14 a module needs no `from __future__ import annotations` for such names: annotations
are evaluated when they are read (PEP 649), and reading them raises NameError.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function; annotations that are not defined are references."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def annotations_of(cls: type) -> Mapping[str, Any]:
        """Return the annotations in the body of a class, in the format of `signature_of`."""
        return get_annotations(cls, format=Format.FORWARDREF)

    def annotations_of_call(function: Callable[..., Any]) -> Mapping[str, Any]:
        """Return the annotations of a function, in the format of `signature_of`."""
        try:
            found: Mapping[str, Any] = getattr(function, "__annotations__", {})
        except NameError:
            return get_annotations(function, format=Format.FORWARDREF)
        return found

else:
    signature_of = inspect.signature

    def annotations_of(cls: type) -> Mapping[str, Any]:
        """Return the annotations in the body of a class."""
        found: Mapping[str, Any] = vars(cls).get("__annotations__", {})
        return found

    def annotations_of_call(function: Callable[..., Any]) -> Mapping[str, Any]:
        """Return the annotations of a function; none for another callable."""
        found: Mapping[str, Any] = getattr(function, "__annotations__", {})
        return found
